/* What changed between two stacks of layers. Only directories that the two do not share are looked into, so that it takes
   as long as there are changes. The records are read by ../../engines/comparing.py. */
#include "stacks.h"

#include <stdarg.h>

#define BLOCK 65536

struct record {
  char before, after; /* kinds; 0 is nothing */
  uint8_t what;       /* of the following */
  uint8_t zero;
  uint32_t mode_before, mode_after;
  uint64_t size_before, size_after;
  uint32_t path_length, text_before, text_after;
} __attribute__((packed));
_Static_assert(sizeof(struct record) == 40, "the record's size is known to whoever reads it");
enum { CONTENT = 1, MODE = 2, OWNER = 4, TEXT = 8 };

struct pair {
  struct node *shown;
  struct place before, after;
};

static struct stack before, after;
static uint8_t origin[2][LAYERS_MAX]; /* l: a layer; b: a base, whose owners are shifted too; r: raw, as the host has it */
static uint32_t first_id, id_count;
static uint64_t entries_left, output_left, text_each, text_left;
static char **wanted;
static int wanted_count;
static bool truncated;

/* ------------------------------------------------------------------------------------------------ output */

static void emit(const void *data, size_t length) {
  if (length && fwrite(data, 1, length, stdout) != length) _exit(errno);
}

static bool fits(uint64_t *left, uint64_t amount) {
  if (*left < amount) return false;
  *left -= amount;
  return true;
}

/* Everything of an open file that says it has `size` bytes; shorter if it shrinks. */
static char *content_of(const struct found *f, uint32_t *length) {
  char *text = room_for((size_t)f->s.st_size + PATH_MAX);
  *length = 0;
  if (f->kind == 'l') {
    ssize_t n = readlinkat(f->dir, f->name, text, PATH_MAX);
    *length = n > 0 ? (uint32_t)n : 0;
  } else if (f->kind == 'f') {
    int fd = openat(f->dir, f->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n;
    while (fd >= 0 && *length < (uint64_t)f->s.st_size &&
           (n = pread(fd, text + *length, (size_t)f->s.st_size - *length, *length)) > 0)
      *length += (uint32_t)n;
    if (fd >= 0) close(fd);
  }
  return text;
}

static bool has_text(const struct found *f) { return f->kind == 'f' || f->kind == 'l'; }

static void report(const char *path, const struct found *a, const struct found *b, uint8_t what) {
  struct record r = {.before = a->kind, .after = b->kind, .what = what, .path_length = (uint32_t)strlen(path)};
  char *old = NULL, *new = NULL;
  if (truncated) return;
  if (!fits(&entries_left, 1) || !fits(&output_left, sizeof r + r.path_length)) {
    truncated = true;
    return;
  }
  if (a->kind) r.mode_before = a->s.st_mode & 07777, r.size_before = a->kind == 'd' ? 0 : (uint64_t)a->s.st_size;
  if (b->kind) r.mode_after = b->s.st_mode & 07777, r.size_after = b->kind == 'd' ? 0 : (uint64_t)b->s.st_size;
  bool texts = (what & CONTENT) && (has_text(a) || has_text(b)) && r.size_before <= text_each && r.size_after <= text_each;
  if (texts && fits(&text_left, r.size_before + r.size_after)) {
    old = content_of(a, &r.text_before);
    new = content_of(b, &r.text_after);
    r.what |= TEXT;
  }
  emit(&r, sizeof r);
  emit(path, r.path_length);
  emit(old, r.text_before);
  emit(new, r.text_after);
  free(old);
  free(new);
}

/* ------------------------------------------------------------------------------------------------ comparing */

static uint32_t owner_of(uint32_t id, uint8_t from) { return from == 'r' ? id : id - first_id; }

static off_t next_data(int fd, off_t at, off_t size) {
  off_t data = lseek(fd, at, SEEK_DATA);
  return data >= 0 && data < size ? data : errno == ENXIO || data >= size ? size : at;
}

static bool same_bytes(int a, int b, off_t size) {
  static char x[BLOCK], y[BLOCK];
  for (off_t at = 0; at < size;) {
    off_t in_a = next_data(a, at, size), in_b = next_data(b, at, size);
    at = in_a < in_b ? in_a : in_b; /* both have holes up to there */
    if (at >= size) break;
    size_t want = (size_t)(size - at) < BLOCK ? (size_t)(size - at) : BLOCK;
    ssize_t n = pread(a, x, want, at);
    if (n <= 0 || pread(b, y, (size_t)n, at) != n || memcmp(x, y, (size_t)n)) return false;
    at += n;
  }
  return true;
}

static bool same_content(const struct found *a, const struct found *b) {
  if (a->s.st_dev == b->s.st_dev && a->s.st_ino == b->s.st_ino) return true;
  if (a->kind == 'l') {
    char x[PATH_MAX], y[PATH_MAX];
    ssize_t n = readlinkat(a->dir, a->name, x, sizeof x), m = readlinkat(b->dir, b->name, y, sizeof y);
    return n == m && n >= 0 && !memcmp(x, y, (size_t)n);
  }
  if (a->kind != 'f') return a->kind != 'c' || a->s.st_rdev == b->s.st_rdev;
  if (a->s.st_size != b->s.st_size) return false;
  int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  int x = openat(a->dir, a->name, flags), y = openat(b->dir, b->name, flags);
  bool same = x >= 0 && y >= 0 && same_bytes(x, y, a->s.st_size);
  if (x >= 0) close(x);
  if (y >= 0) close(y);
  return same;
}

static uint8_t difference(const struct found *a, const struct found *b) {
  uint8_t what = 0;
  if (a->kind != b->kind) return CONTENT;
  if (a->kind != 'd' && !same_content(a, b)) what |= CONTENT;
  if (a->kind != 'l' && (a->s.st_mode & 07777) != (b->s.st_mode & 07777)) what |= MODE;
  if (id_count > 1 && (owner_of(a->s.st_uid, origin[0][a->layer]) != owner_of(b->s.st_uid, origin[1][b->layer]) ||
                       owner_of(a->s.st_gid, origin[0][a->layer]) != owner_of(b->s.st_gid, origin[1][b->layer])))
    what |= OWNER;
  return what;
}

/* Whether a path was asked for: 2, lies above one that was: 1, neither: 0. */
static int asked_for(const char *path) {
  if (!wanted_count) return 2;
  size_t length = strlen(path);
  int best = 0;
  for (int i = 0; i < wanted_count; i++) {
    size_t n = strlen(wanted[i]);
    if (!strcmp(wanted[i], "/") || (!strncmp(wanted[i], path, n) && (!path[n] || path[n] == '/'))) return 2;
    if (!strncmp(wanted[i], path, length) && (wanted[i][length] == '/' || !strcmp(path, "/"))) best = 1;
  }
  return best;
}

static void ignore_what_is_not_there(struct found *f) {
  if (f->kind == 'w' || f->kind == 's') f->kind = 0; /* nobody can be behind a socket any more */
}

static char *shown_path(const char *target, const struct node *node) {
  char *inner = node ? node_path(node) : strdup("");
  size_t length = strlen(target) + strlen(inner) + 2;
  char *path = room_for(length);
  snprintf(path, length, "%s%s%s", target, *inner && strcmp(target, "/") ? "/" : "", inner);
  free(inner);
  return path;
}

static void compare_directory(struct list **work, struct pair *p, const char *target) {
  struct names names = {0};
  int *a_fds = open_place(&before, &p->before), *b_fds = open_place(&after, &p->after);
  for (int i = 0; i < p->before.count; i++)
    if (!has_part(&p->after, &p->before.part[i])) names_add(&names, a_fds[i]);
  for (int i = 0; i < p->after.count; i++)
    if (!has_part(&p->before, &p->after.part[i])) names_add(&names, b_fds[i]);
  names_sort(&names);
  for (size_t i = 0; i < names.count && !truncated; i++) {
    static struct found a, b;
    struct node *shown = node_below(p->shown, names.name[i]);
    char *path = shown_path(target, shown);
    int asked = asked_for(path);
    a = b = (struct found){0};
    if (asked) {
      look_up(&before, &p->before, a_fds, names.name[i], &a);
      look_up(&after, &p->after, b_fds, names.name[i], &b);
      ignore_what_is_not_there(&a);
      ignore_what_is_not_there(&b);
    }
    uint8_t what = (a.kind || b.kind) ? difference(&a, &b) : 0;
    if (what && asked == 2) report(path, &a, &b, what);
    if ((a.below.count || b.below.count) && !same_place(&a.below, &b.below)) {
      struct pair *below = room_for(sizeof *below);
      *below = (struct pair){shown, a.below, b.below};
      push(work, below);
    } else {
      free(a.below.part);
      free(b.below.part);
      free(shown);
    }
    free(path);
  }
  names_free(&names);
  close_place(a_fds, &p->before);
  close_place(b_fds, &p->after);
}

/* What the mount point itself shows: overlayfs takes it from the layer that is written, which starts as 0755 of root. */
static struct found mount_point(const struct stack *s, const uint8_t *from) {
  struct found f = {.kind = 'd'};
  if (from[0] == 'l') fstat(s->root[0], &f.s);
  else f.s.st_mode = S_IFDIR | 0755, f.s.st_uid = f.s.st_gid = from[0] == 'r' ? 0 : first_id;
  return f;
}

static void compare_volume(const char *target) {
  struct list *work = NULL;
  struct found a = mount_point(&before, origin[0]), b = mount_point(&after, origin[1]);
  uint8_t what = difference(&a, &b);
  if (what && asked_for(target) == 2) report(target, &a, &b, what);
  struct pair *p = room_for(sizeof *p);
  *p = (struct pair){NULL, stack_root(&before), stack_root(&after)};
  if (!same_place(&p->before, &p->after) && asked_for(target)) push(&work, p);
  while ((p = pop(&work)) != NULL) {
    if (!truncated) compare_directory(&work, p, target);
    free(p->before.part);
    free(p->after.part);
    free(p);
  }
}

/* ------------------------------------------------------------------------------------------------ arguments */

static char **argument;
static int arguments_left;

static char *next_argument(void) {
  if (arguments_left-- <= 0) {
    dprintf(2, "compare: too few arguments\n");
    _exit(2);
  }
  return *argument++;
}

static uint64_t next_number(void) { return strtoull(next_argument(), NULL, 10); }

static int read_stack(struct stack *s, uint8_t *from, const char *prefix) {
  for (int i = 0; i < s->count; i++) close(s->root[i]);
  s->count = 0;
  s->prefix = prefix;
  for (uint64_t left = next_number(); left; left--) {
    const char *layer = next_argument(); /* its origin, and its path */
    from[s->count] = (uint8_t)*layer;
    int error = stack_open(s, layer + 1);
    if (error) return error;
  }
  return 0;
}

/* Arguments: prefix, entries at most, bytes of output, bytes of a text, bytes of all texts, first id, ids, number of paths
   and the paths; then for each volume where it is mounted, and twice a number of layers and the layers from the top. */
int compare_main(int count, char **arguments) {
  argument = arguments;
  arguments_left = count;
  const char *prefix = next_argument();
  entries_left = next_number();
  output_left = next_number();
  text_each = next_number();
  text_left = next_number();
  first_id = (uint32_t)next_number();
  id_count = (uint32_t)next_number();
  wanted_count = (int)next_number();
  wanted = argument;
  for (int i = 0; i < wanted_count; i++) next_argument();
  while (arguments_left > 0) {
    const char *target = next_argument();
    int error = read_stack(&before, origin[0], prefix);
    if (!error) error = read_stack(&after, origin[1], prefix);
    if (error) return error;
    compare_volume(target);
  }
  struct record end = {.what = truncated};
  emit(&end, sizeof end);
  return fflush(stdout) ? errno : 0;
}
