/* What changed between two stacks of layers. Only directories that the two do not share are looked into, so that it takes
   as long as there are changes. The records are read by ../../engines/comparing.py. */
#include "stacks.h"
#include "sha256.h"

#include <stdarg.h>

#define BLOCK 65536

struct record {
  char before, after; /* kinds; 0 is nothing */
  uint8_t what;       /* of the following; without kinds UNSEEN or the end */
  uint8_t zero;
  uint32_t mode_before, mode_after;
  uint64_t size_before, size_after;
  uint32_t path_length, text_before, text_after;
} __attribute__((packed));
_Static_assert(sizeof(struct record) == 40, "the record's size is known to whoever reads it");
enum { CONTENT = 1, MODE = 2, OWNER = 4, TEXT = 8, UNSEEN = 16, LOOK = 32 };

struct pair {
  struct node *shown;
  struct place before, after;
};

static struct stack before, after;
static uint8_t origin[2][LAYERS_MAX]; /* l: a layer; b: a base, whose owners are shifted too; r: raw, as the host has it */
static uint32_t first_id, id_count;
static uint64_t entries_left, output_left, text_each, text_left;
static char **wanted; /* sorted; all that is asked for, NULL is everything */
static size_t wanted_count;
static bool truncated, exact; /* `exact`: times and extended attributes count as well */
static int unread; /* the errno of content that could not be read */

/* ------------------------------------------------------------------------------------------------ output */

static void emit(const void *data, size_t length) {
  if (length && fwrite(data, 1, length, stdout) != length) _exit(errno);
}

static bool fits(uint64_t *left, uint64_t amount) {
  if (*left < amount) return false;
  *left -= amount;
  return true;
}

/* Everything of an open file that says it has `size` bytes; shorter if it shrinks, NULL if it cannot be read. */
static char *content_of(const struct found *f, uint32_t *length) {
  char *text = room_for((size_t)f->s.st_size + PATH_MAX);
  ssize_t n = 0;
  *length = 0;
  if (f->kind == 'l') {
    if ((n = readlinkat(f->dir, f->name, text, PATH_MAX)) > 0) *length = (uint32_t)n;
  } else if (f->kind == 'f') {
    int fd = openat(f->dir, f->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    n = fd;
    while (fd >= 0 && *length < (uint64_t)f->s.st_size &&
           (n = pread(fd, text + *length, (size_t)f->s.st_size - *length, *length)) > 0)
      *length += (uint32_t)n;
    if (fd >= 0) close(fd);
  }
  if (n >= 0) return text;
  free(text);
  *length = 0;
  return NULL;
}

static bool has_text(const struct found *f) { return f->kind == 'f' || f->kind == 'l'; }

static bool has_room_for(const struct record *r) {
  if (truncated || !fits(&entries_left, 1) || !fits(&output_left, sizeof *r + r->path_length)) truncated = true;
  return !truncated;
}

static void report_unseen(const char *path) {
  struct record r = {.what = UNSEEN, .path_length = (uint32_t)strlen(path)};
  if (!has_room_for(&r)) return;
  emit(&r, sizeof r);
  emit(path, r.path_length);
}

static void report(const char *path, const struct found *a, const struct found *b, uint8_t what) {
  struct record r = {.before = a->kind, .after = b->kind, .what = what, .path_length = (uint32_t)strlen(path)};
  char *old = NULL, *new = NULL;
  if (!has_room_for(&r)) return;
  if (a->kind) r.mode_before = a->s.st_mode & 07777, r.size_before = a->kind == 'd' ? 0 : (uint64_t)a->s.st_size;
  if (b->kind) r.mode_after = b->s.st_mode & 07777, r.size_after = b->kind == 'd' ? 0 : (uint64_t)b->s.st_size;
  bool texts = (what & CONTENT) && (has_text(a) || has_text(b)) && r.size_before <= text_each && r.size_after <= text_each;
  if (texts && fits(&text_left, r.size_before + r.size_after)) {
    old = content_of(a, &r.text_before);
    new = content_of(b, &r.text_after);
    if (old && new) r.what |= TEXT;
    else r.text_before = r.text_after = 0;
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
    ssize_t n = pread(a, x, want, at), m = n > 0 ? pread(b, y, (size_t)n, at) : 0;
    if (n < 0 || m < 0) unread = errno;
    if (n <= 0 || m != n || memcmp(x, y, (size_t)n)) return false;
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
  int x = openat(a->dir, a->name, flags), y = x < 0 ? -1 : openat(b->dir, b->name, flags);
  if ((x < 0 || y < 0) && !is_absence(errno)) unread = errno;
  bool same = x >= 0 && y >= 0 && same_bytes(x, y, a->s.st_size);
  if (x >= 0) close(x);
  if (y >= 0) close(y);
  return same;
}

static bool same_look(const struct found *a, const struct found *b) {
  if (a->s.st_mtim.tv_sec != b->s.st_mtim.tv_sec || a->s.st_mtim.tv_nsec != b->s.st_mtim.tv_nsec) return false;
  if (a->kind != 'f' && a->kind != 'd') return true;
  const struct found *both[] = {a, b};
  unsigned char digests[2][SHA256_BYTES] = {{0}};
  for (int i = 0; i < 2; i++) {
    char path[64 + NAME_MAX];
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", both[i]->dir, both[i]->name);
    if (*both[i]->name && digest_attributes(path, true, digests[i])) return false;
  }
  return !memcmp(digests[0], digests[1], SHA256_BYTES);
}

static uint8_t difference(const struct found *a, const struct found *b) {
  uint8_t what = 0;
  if (a->kind != b->kind) return CONTENT;
  if (a->kind != 'd' && !same_content(a, b)) what |= CONTENT;
  if (a->kind != 'l' && (a->s.st_mode & 07777) != (b->s.st_mode & 07777)) what |= MODE;
  if (id_count > 1 && (owner_of(a->s.st_uid, origin[0][a->layer]) != owner_of(b->s.st_uid, origin[1][b->layer]) ||
                       owner_of(a->s.st_gid, origin[0][a->layer]) != owner_of(b->s.st_gid, origin[1][b->layer])))
    what |= OWNER;
  if (exact && !same_look(a, b)) what |= LOOK;
  return what;
}

/* The first path asked for that is not before `path`. */
static size_t place_among_wanted(const char *path) {
  size_t low = 0, high = wanted_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (strcmp(wanted[middle], path) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

static bool is_wanted(const char *path) {
  size_t at = place_among_wanted(path);
  return at < wanted_count && !strcmp(wanted[at], path);
}

/* Whether a path was asked for: 2, lies above one that was: 1, neither: 0. */
static int asked_for(const char *path) {
  if (!wanted || is_wanted("/")) return 2;
  size_t length = strlen(path);
  char *prefix = room_for(length + 2);
  memcpy(prefix, path, length);
  bool whole = is_wanted(prefix);
  for (size_t at = length; at > 1 && !whole; at--)
    if (path[at] == '/') {
      prefix[at] = 0;
      whole = is_wanted(prefix);
    }
  snprintf(prefix, length + 2, "%s/", strcmp(path, "/") ? path : "");
  size_t at = place_among_wanted(prefix);
  bool above = at < wanted_count && !strncmp(wanted[at], prefix, strlen(prefix));
  free(prefix);
  return whole ? 2 : above;
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

/* Add the directories of a place that the other one has not, and say whether all could be opened. */
static bool add_unshared(int *dirs, int *count, const struct place *p, const int *fds, const struct place *other) {
  bool opened = true;
  for (int i = 0; i < p->count; i++) {
    if (fds[i] < 0) opened &= is_absence(-fds[i]);
    else if (!has_part(other, &p->part[i])) dirs[(*count)++] = fds[i];
  }
  return opened;
}

static void compare_name(struct list **work, struct pair *p, const char *target, const int *a_fds, const int *b_fds,
                         const char *name) {
  static struct found a, b;
  struct node *shown = node_below(p->shown, name);
  char *path = shown_path(target, shown);
  int asked = asked_for(path);
  a = b = (struct found){0};
  if (asked) {
    look_up(&before, &p->before, a_fds, name, &a);
    look_up(&after, &p->after, b_fds, name, &b);
    ignore_what_is_not_there(&a);
    ignore_what_is_not_there(&b);
  }
  bool same = a.kind == b.kind && same_place(&a.below, &b.below);
  unread = 0;
  uint8_t what = (a.kind || b.kind) ? difference(&a, &b) : 0;
  if (unread) what &= (uint8_t)~CONTENT;
  if (what && asked == 2) report(path, &a, &b, what);
  if (unread || ((a.error || b.error) && !(same && a.kind == 'd'))) report_unseen(path);
  if ((a.below.count || b.below.count) && !same) {
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

static void compare_directory(struct list **work, struct pair *p, const char *target) {
  int *a_fds = open_place(&before, &p->before), *b_fds = open_place(&after, &p->after);
  int *dirs = room_for(sizeof *dirs * (size_t)(p->before.count + p->after.count));
  struct names names = {.dir = dirs};
  bool opened = add_unshared(dirs, &names.count, &p->before, a_fds, &p->after);
  opened &= add_unshared(dirs, &names.count, &p->after, b_fds, &p->before);
  for (const char *name; !truncated && (name = next_name(&names));) compare_name(work, p, target, a_fds, b_fds, name);
  if (!opened || names.error) {
    char *path = shown_path(target, p->shown);
    report_unseen(path);
    free(path);
  }
  end_names(&names);
  free(dirs);
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

/* The paths asked for, each with a NUL behind it, sorted by their bytes. */
static int read_wanted(void) {
  size_t used = 0, room = 1 << 16;
  char *text = room_for(room);
  for (ssize_t n; (n = read(0, text + used, room - used)) != 0;) {
    if (n < 0) return errno;
    if ((used += (size_t)n) < room) continue;
    if (!(text = realloc(text, room *= 2))) return ENOMEM;
  }
  if (!used) return 0;
  if (text[used - 1]) return EPROTO;
  for (size_t at = 0; at < used; at += strlen(text + at) + 1) wanted_count++;
  wanted = room_for(sizeof *wanted * wanted_count);
  for (size_t at = 0, i = 0; at < used; at += strlen(text + at) + 1) wanted[i++] = text + at;
  return 0;
}

/* Arguments: prefix, entries at most, bytes of output, bytes of a text, bytes of all texts, first id, ids, whether times and
   attributes count; then for each
   volume where it is mounted, and twice a number of layers and the layers from the top. */
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
  exact = next_number() != 0;
  int error = read_wanted();
  while (!error && arguments_left > 0) {
    const char *target = next_argument();
    error = read_stack(&before, origin[0], prefix);
    if (!error) error = read_stack(&after, origin[1], prefix);
    if (!error) compare_volume(target);
  }
  if (error) return error;
  struct record end = {.what = truncated};
  emit(&end, sizeof end);
  return fflush(stdout) ? errno : 0;
}
