/* Several layers as one. Files are linked, hardly ever copied: no layer that is frozen is ever written, so they may share them.
   Whiteouts, opaque directories and redirects stay what they are for the layers below. */
#include "stacks.h"

#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define VALUE_MAX 65536
/* File systems bound how many names a file may have (ext4: 65,000), and every merge adds as many as it finds. */
#define NAMES_REMEMBERED 1000
#define NAMES_SHARED 16000

static const char *const of_the_layer[] = {"opaque", "redirect", "origin", "impure", "nlink", NULL};
static const char *const volumes[] = {"root", "usr", "workspace", NULL};

struct directory {
  struct node *at;
  struct place from;
  struct stat look;
  bool closed, finished; /* finished: only its look is left to be set */
  char *redirect;
};

static bool is_mark_of_the_layer(const char *name, const char *prefix) {
  if (strncmp(name, prefix, strlen(prefix))) return false;
  for (const char *const *mark = of_the_layer; *mark; mark++)
    if (!strcmp(name + strlen(prefix), *mark)) return true;
  return false;
}

static int set_mark(const struct stack *s, int fd, const char *mark, const char *value) {
  char name[64];
  snprintf(name, sizeof name, "%s%s", s->prefix, mark);
  return fsetxattr(fd, name, value, strlen(value), 0) < 0 ? errno : 0;
}

static int copy_attributes(const struct stack *s, int from, int to) {
  static char names[VALUE_MAX], value[VALUE_MAX];
  ssize_t size = flistxattr(from, names, sizeof names);
  if (size < 0 && errno != EOPNOTSUPP) return errno;
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
    if (is_mark_of_the_layer(names + at, s->prefix)) continue;
    ssize_t n = fgetxattr(from, names + at, value, sizeof value);
    if (n < 0 || (fsetxattr(to, names + at, value, (size_t)n, 0) < 0 && errno != EPERM && errno != EOPNOTSUPP)) return errno;
  }
  return 0;
}

static int set_look(int fd, const struct stat *look) {
  struct timespec times[2] = {look->st_atim, look->st_mtim};
  if (fchown(fd, look->st_uid, look->st_gid) < 0 && errno != EPERM && errno != EINVAL) return errno;
  if (fchmod(fd, look->st_mode & 07777) < 0) return errno;
  return futimens(fd, times) < 0 ? errno : 0;
}

/* A file with too many names is copied, once: what was one file stays one. */
static int merge_file(const struct found *f, const struct node *above, int target, int to) {
  const char *before = NULL;
  if (f->s.st_nlink > NAMES_REMEMBERED) {
    struct node *at = node_below((struct node *)above, f->name);
    char *path = node_path(at);
    before = first_path(&f->s, path);
    free(path);
    free(at);
  }
  if (before) return linkat(target, before, to, f->name, 0) < 0 ? errno : 0;
  if (f->kind == 'f' && f->s.st_nlink > NAMES_SHARED) return copy_one_file(f->dir, f->name, to);
  return linkat(f->dir, f->name, to, f->name, 0) < 0 ? errno : 0;
}

static int merge_name(const struct stack *s, const struct directory *d, const int *fds, int target, int to,
                      const char *name, struct list **work) {
  static struct found f;
  look_up(s, &d->from, fds, name, &f);
  if (f.error) return f.error;
  if (f.kind == 'd') {
    struct directory *below = room_for(sizeof *below);
    *below = (struct directory){node_below(d->at, name), f.below, f.s, f.closed, false, strdup(f.redirect)};
    push(work, below);
    return mkdirat(to, name, 0700) < 0 ? errno : 0;
  }
  if (f.kind == 'w') return mknodat(to, name, S_IFCHR, makedev(0, 0)) < 0 ? errno : 0;
  return f.kind ? merge_file(&f, d->at, target, to) : 0;
}

static int merge_directory(const struct stack *s, struct directory *d, int target, int to, struct list **work) {
  int *fds = open_place(s, &d->from), error = 0;
  struct names names = {.dir = fds, .count = d->from.count};
  for (int i = 0; i < d->from.count && !error; i++)
    if (fds[i] < 0) error = -fds[i];
  if (!error && d->from.count) error = copy_attributes(s, fds[0], to);
  if (!error && d->closed) error = set_mark(s, to, "opaque", "y");
  else if (!error && d->redirect && *d->redirect) error = set_mark(s, to, "redirect", d->redirect);
  for (const char *name; !error && (name = next_name(&names));) error = merge_name(s, d, fds, target, to, name, work);
  if (!error) error = names.error;
  end_names(&names);
  close_place(fds, &d->from);
  return error;
}

static int merge_volume(const struct stack *s, int target) {
  struct list *work = NULL;
  struct directory *d = room_for(sizeof *d);
  *d = (struct directory){.from = stack_root(s)};
  if (fstat(s->root[0], &d->look) < 0) return errno;
  push(&work, d);
  int error = 0;
  while (!error && (d = pop(&work)) != NULL) {
    int to = open_node(target, d->at);
    if (to < 0) error = errno;
    else if (d->finished) error = set_look(to, &d->look);
    else {
      d->finished = true;
      push(&work, d); /* after what is below: that changes its time */
      error = merge_directory(s, d, target, to, &work);
    }
    if (to >= 0) close(to);
  }
  return error;
}

int merge_main(const char *prefix, const char *target, int count, char **layer) {
  static struct stack s;
  char path[PATH_MAX];
  umask(0);
  if (mkdir(target, 0700) < 0) return errno;
  for (const char *const *volume = volumes; *volume; volume++) {
    s.count = 0;
    s.prefix = prefix;
    for (int i = 0; i < count; i++) {
      snprintf(path, sizeof path, "%s/%s", layer[i], *volume);
      int error = stack_open(&s, path);
      if (error) return error;
    }
    snprintf(path, sizeof path, "%s/%s", target, *volume);
    if (mkdir(path, 0700) < 0) return errno;
    int to = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = to < 0 ? errno : merge_volume(&s, to);
    if (to >= 0) close(to);
    for (int i = 0; i < s.count; i++) close(s.root[i]);
    if (error) return error;
  }
  struct stat look;
  return stat(layer[0], &look) < 0 || chmod(target, look.st_mode & 07777) < 0 ? errno : 0;
}
