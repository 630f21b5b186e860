/* What overlayfs would show of layers that are put one upon the other. Nothing here follows a link. */
#include "stacks.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define PIECE_MAX 4000 /* bytes of a path that one system call takes */

void *room_for(size_t size) {
  void *room = calloc(1, size ? size : 1);
  if (!room) _exit(ENOMEM);
  return room;
}

void push(struct list **list, void *item) {
  struct list *link = room_for(sizeof *link);
  *link = (struct list){item, *list};
  *list = link;
}

void *pop(struct list **list) {
  struct list *link = *list;
  if (!link) return NULL;
  void *item = link->item;
  *list = link->next;
  free(link);
  return item;
}

/* ------------------------------------------------------------------------------------------------ paths */

struct node *node_below(struct node *above, const char *name) {
  struct node *n = room_for(sizeof *n + strlen(name) + 1);
  n->above = above;
  strcpy(n->name, name);
  return n;
}

char *node_path(const struct node *node) {
  size_t length = 0;
  for (const struct node *n = node; n; n = n->above) length += strlen(n->name) + 1;
  char *path = room_for(length + 1), *at = path + length;
  for (const struct node *n = node; n; n = n->above) {
    if (n != node) *--at = '/';
    at -= strlen(n->name);
    memcpy(at, n->name, strlen(n->name));
  }
  memmove(path, at, (size_t)(path + length - at) + 1);
  return path;
}

static int open_piece(int dir, const char *path) {
  struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                         .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
  int fd;
  do fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
  while (fd < 0 && errno == EAGAIN);
  return fd;
}

int open_node(int root, const struct node *node) {
  if (!node) return open_piece(root, ".");
  char *path = node_path(node), *rest = path;
  int dir = root;
  while (dir >= 0 && strlen(rest) > PIECE_MAX) {
    char *end = rest + PIECE_MAX;
    while (*end != '/') end--;
    *end = 0;
    int next = open_piece(dir, rest);
    if (dir != root) close(dir);
    dir = next;
    rest = end + 1;
  }
  int fd = dir < 0 ? -1 : open_piece(dir, rest);
  if (dir >= 0 && dir != root) close(dir);
  free(path);
  return fd;
}

/* ------------------------------------------------------------------------------------------------ places */

int stack_open(struct stack *s, const char *path) {
  if (s->count >= LAYERS_MAX) return E2BIG;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno;
  s->root[s->count++] = fd;
  return 0;
}

static void add_part(struct place *p, int layer, struct node *at, const struct stat *s) {
  p->part = realloc(p->part, sizeof *p->part * (size_t)(p->count + 1));
  if (!p->part) _exit(ENOMEM);
  p->part[p->count++] = (struct part){layer, at, s->st_dev, s->st_ino};
}

struct place stack_root(const struct stack *s) {
  struct place p = {0, NULL};
  struct stat look;
  for (int i = 0; i < s->count; i++)
    if (fstat(s->root[i], &look) == 0) add_part(&p, i, NULL, &look);
  return p;
}

static bool same_part(const struct part *a, const struct part *b) { return a->dev == b->dev && a->ino == b->ino; }

bool same_place(const struct place *a, const struct place *b) {
  if (a->count != b->count) return false;
  for (int i = 0; i < a->count; i++)
    if (!same_part(&a->part[i], &b->part[i])) return false;
  return true;
}

bool has_part(const struct place *p, const struct part *part) {
  for (int i = 0; i < p->count; i++)
    if (same_part(&p->part[i], part)) return true;
  return false;
}

int *open_place(const struct stack *s, const struct place *p) {
  int *fds = room_for(sizeof(int) * (size_t)p->count);
  for (int i = 0; i < p->count; i++)
    if ((fds[i] = open_node(s->root[p->part[i].layer], p->part[i].at)) < 0) fds[i] = -errno;
  return fds;
}

bool is_absence(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

void close_place(int *fds, const struct place *p) {
  for (int i = 0; i < p->count; i++)
    if (fds[i] >= 0) close(fds[i]);
  free(fds);
}

/* ------------------------------------------------------------------------------------------------ names */

static bool is_in(const int *dir, int count, const char *name) {
  struct stat look;
  for (int i = 0; i < count; i++)
    if (fstatat(dir[i], name, &look, AT_SYMLINK_NOFOLLOW) == 0) return true;
  return false;
}

const char *next_name(struct names *n) {
  while (!n->error && n->at < n->count) {
    if (!n->open) {
      int fd = openat(n->dir[n->at], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd < 0 || !(n->open = fdopendir(fd))) n->error = errno;
      if (n->error && fd >= 0) close(fd);
      continue;
    }
    errno = 0;
    struct dirent *e = readdir(n->open);
    if (e && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || is_in(n->dir, n->at, e->d_name))) continue;
    if (e) return e->d_name;
    n->error = errno;
    closedir(n->open);
    n->open = NULL;
    n->at++;
  }
  return NULL;
}

void end_names(struct names *n) {
  if (n->open) closedir(n->open);
}

/* ------------------------------------------------------------------------------------------------ looking up */

static void note_error(struct found *f) {
  if (!f->error && !is_absence(errno)) f->error = errno;
}

/* The value of one of overlayfs's marks, "" if it is not there. */
static const char *mark_of(const struct stack *s, int fd, const char *mark, struct found *f) {
  static char name[64], value[PATH_MAX];
  snprintf(name, sizeof name, "%s%s", s->prefix, mark);
  ssize_t n = fgetxattr(fd, name, value, sizeof value - 1);
  if (n < 0 && errno != ENODATA && errno != EOPNOTSUPP) note_error(f);
  value[n > 0 ? n : 0] = 0;
  return value;
}

static char kind_of(const struct stat *s) {
  if (S_ISREG(s->st_mode)) return 'f';
  if (S_ISDIR(s->st_mode)) return 'd';
  if (S_ISLNK(s->st_mode)) return 'l';
  if (S_ISFIFO(s->st_mode)) return 'p';
  if (S_ISSOCK(s->st_mode)) return 's';
  return S_ISCHR(s->st_mode) && s->st_rdev == makedev(0, 0) ? 'w' : 'c';
}

/* What one directory has under one name. False: nothing, look further down; `closed` tells whether to look at all. */
static bool look_into(const struct stack *s, int layer, int dir, struct node *above, const char *name, struct found *f) {
  struct stat look;
  if (dir < 0) return false;
  if (fstatat(dir, name, &look, AT_SYMLINK_NOFOLLOW) < 0) {
    note_error(f);
    return false;
  }
  char kind = kind_of(&look);
  if (kind != 'd') f->closed = true;
  if (kind == 'd' || !f->kind) {
    if (!f->kind) {
      *f = (struct found){.kind = kind, .s = look, .layer = layer, .dir = dir, .closed = f->closed, .error = f->error};
      snprintf(f->name, sizeof f->name, "%s", name);
    }
    if (kind == 'd') add_part(&f->below, layer, node_below(above, name), &look);
  }
  if (kind != 'd') return true;
  int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    note_error(f);
    return true;
  }
  if (!strcmp(mark_of(s, fd, "opaque", f), "y")) {
    f->closed = true;
    f->redirect[0] = 0;
  } else {
    const char *to = mark_of(s, fd, "redirect", f);
    if (*to) snprintf(f->redirect, sizeof f->redirect, "%s", to);
  }
  close(fd);
  return true;
}

/* The rest of a directory that was renamed, in one layer: at the absolute path `f->redirect`, whose own directories may
   have been renamed or replaced too. */
static void look_along(const struct stack *s, int layer, struct found *f) {
  char path[PATH_MAX], next[PATH_MAX] = "", so_far[PATH_MAX] = "";
  snprintf(path, sizeof path, "%s", f->redirect);
  int dir = open_node(s->root[layer], NULL);
  struct node *at = NULL;
  struct stat look;
  if (dir < 0) note_error(f);
  for (char *name = path + 1; dir >= 0 && *name;) {
    char *slash = strchr(name, '/');
    if (slash) *slash = 0;
    const char *rest = slash ? slash + 1 : "";
    if (fstatat(dir, name, &look, AT_SYMLINK_NOFOLLOW) < 0) {
      note_error(f);
      break;
    }
    if (!S_ISDIR(look.st_mode)) {
      f->closed = true;
      break;
    }
    int inner = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0) note_error(f);
    close(dir);
    if ((dir = inner) < 0) return;
    at = node_below(at, name);
    if (!slash) add_part(&f->below, layer, at, &look);
    if (!strcmp(mark_of(s, dir, "opaque", f), "y")) f->closed = true;
    else {
      const char *to = mark_of(s, dir, "redirect", f);
      if (*to == '/') {
        snprintf(next, sizeof next, "%s%s%s", to, *rest ? "/" : "", rest);
        f->closed = false;
      } else if (*to) snprintf(next, sizeof next, "%.2000s/%s%s%.1500s", so_far, to, *rest ? "/" : "", rest);
    }
    size_t used = strlen(so_far);
    snprintf(so_far + used, sizeof so_far - used, "/%s", name);
    if (!slash) break;
    name = slash + 1;
  }
  if (dir >= 0) close(dir);
  if (*next) snprintf(f->redirect, sizeof f->redirect, "%s", next);
}

void look_up(const struct stack *s, const struct place *p, const int *fds, const char *name, struct found *f) {
  char here[NAME_MAX + 1];
  *f = (struct found){0};
  snprintf(here, sizeof here, "%s", name);
  int last = -1;
  for (int i = 0; i < p->count && !f->closed && f->redirect[0] != '/'; i++) {
    if (f->redirect[0]) snprintf(here, sizeof here, "%.255s", f->redirect);
    if (look_into(s, p->part[i].layer, fds[i], p->part[i].at, here, f)) last = p->part[i].layer;
  }
  if (f->kind == 'w' || !f->kind) return;
  if (f->redirect[0] == '/')
    for (int layer = last + 1; layer < s->count && !f->closed; layer++) look_along(s, layer, f);
}
