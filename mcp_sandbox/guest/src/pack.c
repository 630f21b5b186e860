/* Whole trees as a stream of records, both ways. A worker does it, so that init stays free. The format is in
   ../PROTOCOL.md; directories come twice: before their children, and after them with their final attributes. */
#include "guest.h"
#include "sha256.h"

#include <dirent.h>
#include <sys/xattr.h>

#define DEPTH_MAX 1024

struct record {
  uint8_t kind, flags;
  uint16_t path_length, link_length, zero;
  uint32_t mode, uid, gid, links;
  uint64_t size;
  int64_t seconds;
  uint32_t nanoseconds, zero2;
} __attribute__((packed));
_Static_assert(sizeof(struct record) == 48, "the record's size is part of the protocol");

struct segment {
  uint64_t offset, length;
};

static char block[1 << 17];

/* ------------------------------------------------------------------------------------------------ packing */

struct packer {
  int out;
  bool meta, digest, truncated;
  dev_t device;
  uint32_t depth, limit, count;
  char **prune;
  char *buffer;
  size_t used;
};

static void flush(struct packer *p) {
  for (size_t at = 0; at < p->used;) {
    ssize_t n = write(p->out, p->buffer + at, p->used - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) _exit(errno);
    at += (size_t)n;
  }
  p->used = 0;
}

static void emit(struct packer *p, const void *data, size_t length) {
  if (p->used + length > sizeof block) flush(p);
  memcpy(p->buffer + p->used, data, length);
  p->used += length;
}

static void emit_error(struct packer *p, const char *path, int error) {
  struct record r = {.kind = 'e', .path_length = (uint16_t)strlen(path), .mode = (uint32_t)error};
  emit(p, &r, sizeof r);
  emit(p, path, r.path_length);
}

static void emit_record(struct packer *p, uint8_t kind, const struct stat *s, const char *path, const char *link) {
  struct record r = {.kind = kind, .path_length = (uint16_t)strlen(path), .link_length = (uint16_t)strlen(link),
                     .mode = s->st_mode, .uid = s->st_uid, .gid = s->st_gid, .links = (uint32_t)s->st_nlink,
                     .size = (uint64_t)s->st_size, .seconds = s->st_mtim.tv_sec,
                     .nanoseconds = (uint32_t)s->st_mtim.tv_nsec};
  emit(p, &r, sizeof r);
  emit(p, path, r.path_length);
  emit(p, link, r.link_length);
}

/* The attributes of programs, each before the file or directory that it belongs to. */
static void emit_attributes(struct packer *p, int fd) {
  static char names[ATTRIBUTE_VALUE_MAX], value[ATTRIBUTE_VALUE_MAX];
  ssize_t size = flistxattr(fd, names, sizeof names);
  size_t left = FILE_ATTRIBUTES_MAX;
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
    const char *name = names + at;
    if (strncmp(name, "user.", 5)) continue;
    ssize_t n = fgetxattr(fd, name, value, sizeof value);
    if (n < 0) continue; /* gone meanwhile */
    if (strlen(name) + (size_t)n > left) _exit(E2BIG);
    left -= strlen(name) + (size_t)n;
    struct record r = {.kind = 'x', .path_length = (uint16_t)strlen(name), .size = (uint64_t)n};
    emit(p, &r, sizeof r);
    emit(p, name, r.path_length);
    emit(p, value, (size_t)n);
  }
}

static void emit_content(struct packer *p, int fd, off_t size) {
  for (off_t at = 0; at < size;) {
    off_t data = lseek(fd, at, SEEK_DATA), hole;
    if (data < 0) {
      if (errno == ENXIO) break;
      data = at;
      hole = size;
    } else {
      hole = lseek(fd, data, SEEK_HOLE);
    }
    if (hole > size || hole < 0) hole = size;
    for (at = data; at < hole;) {
      size_t want = (size_t)(hole - at) < sizeof block - 64 ? (size_t)(hole - at) : sizeof block - 64;
      static char piece[sizeof block];
      ssize_t n = pread(fd, piece, want, at);
      if (n < 0) _exit(errno);
      if (n == 0) goto shorter; /* it shrank meanwhile */
      struct segment s = {(uint64_t)at, (uint64_t)n};
      emit(p, &s, sizeof s);
      emit(p, piece, (size_t)n);
      at += n;
    }
  }
shorter:;
  struct segment end = {(uint64_t)size, 0};
  emit(p, &end, sizeof end);
}

/* In a listing with digests that of a file goes where a link's text does. Nobody inside is the user whose files get none:
   where commands are an ordinary user, root's are as the image has them. */
static bool is_digested(const struct packer *p, const struct stat *s) {
  return p->digest && (!settings.user || s->st_uid != 0);
}

static void emit_digest(struct packer *p, int dir, const char *name, const char *path) {
  unsigned char digest[SHA256_BYTES];
  char hex[2 * SHA256_BYTES + 1];
  struct sha256 sum;
  struct stat now;
  int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), error = fd < 0 ? errno : 0;
  if (!error && fstat(fd, &now) < 0) error = errno;
  if (!error && !S_ISREG(now.st_mode)) error = ESTALE;
  sha256_begin(&sum);
  if (!error) error = sha256_add_file(&sum, fd, now.st_size);
  if (fd >= 0) close(fd);
  sha256_end(&sum, digest);
  for (int i = 0; i < SHA256_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
  if (error) emit_error(p, path, error);
  else emit_record(p, 'f', &now, path, hex);
}

static void pack_directory(struct packer *p, int dir, char *path, size_t length, uint32_t depth);

static void pack_entry(struct packer *p, int dir, const char *name, char *path, size_t length, uint32_t depth) {
  struct stat s;
  char link[PATH_MAX + 1] = "";
  if (fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) < 0) return; /* gone meanwhile */
  if (p->count++ >= p->limit) {
    p->truncated = true;
    return;
  }
  if (S_ISDIR(s.st_mode)) {
    bool pruned = false;
    for (char **n = p->prune; *n; n++) pruned |= !strcmp(*n, name);
    bool deep = depth >= DEPTH_MAX, told = !p->meta || (is_digested(p, &s) && depth < p->depth);
    pruned |= p->digest && s.st_dev != p->device;
    int fd = pruned || deep || depth >= p->depth
                 ? -1 : openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = deep ? ENAMETOOLONG : errno;
    if (fd >= 0 && !p->meta) emit_attributes(p, fd);
    emit_record(p, 'd', &s, path, "");
    if (fd >= 0) pack_directory(p, fd, path, length, depth + 1);
    else if (told && !pruned) emit_error(p, path, error);
    if (!p->meta) emit_record(p, 'D', &s, path, "");
  } else if (S_ISLNK(s.st_mode)) {
    ssize_t n = readlinkat(dir, name, link, sizeof link - 1);
    link[n > 0 ? n : 0] = 0;
    emit_record(p, 'l', &s, path, link);
  } else if (S_ISREG(s.st_mode)) {
    const char *before = !p->meta && s.st_nlink > 1 ? first_path(&s, path) : NULL;
    if (is_digested(p, &s)) emit_digest(p, dir, name, path);
    else if (p->meta) emit_record(p, 'f', &s, path, "");
    else if (before) emit_record(p, 'h', &s, path, before);
    else {
      int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
      struct stat now;
      if (fd < 0 || fstat(fd, &now) < 0) emit_error(p, path, errno);
      else if (!S_ISREG(now.st_mode)) emit_error(p, path, ESTALE);
      else {
        emit_attributes(p, fd);
        emit_record(p, 'f', &now, path, "");
        emit_content(p, fd, now.st_size);
      }
      if (fd >= 0) close(fd);
    }
  } else {
    emit_record(p, S_ISFIFO(s.st_mode) ? 'p' : S_ISSOCK(s.st_mode) ? 's' : 'c', &s, path, "");
  }
}

static void pack_directory(struct packer *p, int dir, char *path, size_t length, uint32_t depth) {
  DIR *d = fdopendir(dir);
  if (!d) _exit(errno);
  for (struct dirent *e; !p->truncated && (e = readdir(d));) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    size_t n = strlen(e->d_name);
    if (length + n + 2 > UINT16_MAX) {
      emit_error(p, path, ENAMETOOLONG);
      continue;
    }
    char *end = path + length;
    if (length) *end++ = '/';
    memcpy(end, e->d_name, n + 1);
    pack_entry(p, dir, e->d_name, path, (size_t)(end - path) + n, depth);
    path[length] = 0;
  }
  closedir(d);
}

void tree_pack(int peer, uint32_t id, struct cursor *c, int out) {
  struct packer p = {.out = out, .buffer = block};
  uint32_t flags = take_u32(c);
  p.depth = take_u32(c);
  p.limit = take_u32(c);
  const char *path = take_string(c);
  p.prune = take_strings(c, take_u32(c));
  p.meta = flags & PACK_META;
  p.digest = p.meta && flags & PACK_DIGEST;
  struct stat s;
  int fd = -1, error = c->bad ? EPROTO : 0;
  if (!error && *path != '/') error = EINVAL;
  if (!error && ((fd = open_inside(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0)) < 0 || fstat(fd, &s) < 0))
    error = errno == ENXIO ? EINVAL : errno;
  if (!error && !S_ISDIR(s.st_mode)) error = p.meta ? ENOTDIR : S_ISREG(s.st_mode) ? 0 : EINVAL;
  if (error) {
    send_error(peer, id, error, "pack");
  } else if (start_worker(peer, id, "pack")) {
    static char name[UINT16_MAX + 1];
    p.device = s.st_dev;
    if (S_ISDIR(s.st_mode)) {
      int itself = p.meta ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the other one is closed behind its entries */
      pack_directory(&p, fd, name, 0, 1);
      if (itself >= 0) emit_attributes(&p, itself);
      if (!p.meta) emit_record(&p, 'D', &s, ".", "");
    } else {
      if (!p.meta) emit_attributes(&p, fd);
      emit_record(&p, 'f', &s, strrchr(path, '/') + 1, "");
      emit_content(&p, fd, s.st_size);
    }
    struct record end = {.kind = 'z', .flags = p.truncated};
    emit(&p, &end, sizeof end);
    flush(&p);
    _exit(0);
  }
  if (fd >= 0) close(fd);
  free(p.prune);
}

/* ------------------------------------------------------------------------------------------------ unpacking */

static void take(int in, void *data, size_t length) {
  for (size_t at = 0; at < length;) {
    ssize_t n = read(in, (char *)data + at, length - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(n < 0 ? errno : EPIPE); /* the stream ended before its end record */
    at += (size_t)n;
  }
}

/* Open the directory before the last component of `path`, which is taken apart. One step at a time, so that no link
   leads out; an archive need not list the directories it implies. */
static int parent_beneath(int root, char *path, const char **base) {
  int dir = fcntl(root, F_DUPFD_CLOEXEC, 3);
  for (char *name = path; dir >= 0;) {
    char *slash = strchr(name, '/');
    *base = name;
    if (slash) *slash = 0;
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..")) break;
    if (!slash) return dir;
    int next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == ENOENT && mkdirat(dir, name, 0755) == 0)
      next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = errno;
    close(dir);
    errno = error;
    if ((dir = next) < 0) return -1;
    name = slash + 1;
  }
  if (dir >= 0) close(dir);
  errno = EINVAL;
  return -1;
}

static void take_content(int in, int fd, uint64_t size) {
  for (;;) {
    struct segment s;
    take(in, &s, sizeof s);
    if (s.length == 0) break;
    for (uint64_t left = s.length, at = s.offset; left;) {
      size_t want = left < sizeof block ? (size_t)left : sizeof block;
      take(in, block, want);
      for (size_t done = 0; done < want;) {
        ssize_t n = pwrite(fd, block + done, want - done, (off_t)(at + done));
        if (n < 0) _exit(errno);
        done += (size_t)n;
      }
      at += want;
      left -= want;
    }
  }
  if (ftruncate(fd, (off_t)size) < 0) _exit(errno);
}

/* Through the open file where there is one: a name may have become a link meanwhile, and chmod follows links. */
static void set_attributes(int dir, const char *name, int fd, const struct record *r) {
  struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {r->seconds, r->nanoseconds}};
  (void)!fchownat(dir, name, r->uid, r->gid, AT_SYMLINK_NOFOLLOW); /* EINVAL where only one id exists */
  if (fd >= 0 && fchmod(fd, r->mode & 07777) < 0) _exit(errno);
  if (fd >= 0 ? futimens(fd, times) < 0 : utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) < 0) _exit(errno);
}

static void unpack_one(int in, int root, const struct record *r, char *path, char *link) {
  const char *base, *target;
  if (r->kind == 'D' && !strcmp(path, ".")) { /* the directory itself stays as it is, but for attributes */
    int error = set_kept_attributes(root);
    if (error) _exit(error);
    return;
  }
  int dir = parent_beneath(root, path, &base);
  if (dir < 0) _exit(errno);
  struct stat s;
  bool there = fstatat(dir, base, &s, AT_SYMLINK_NOFOLLOW) == 0;
  if (r->kind == 'd') {
    if (there && !S_ISDIR(s.st_mode) && unlinkat(dir, base, 0) < 0) _exit(errno);
    if (!(there && S_ISDIR(s.st_mode)) && mkdirat(dir, base, 0700) < 0) _exit(errno);
    int fd = attributes_kept() ? openat(dir, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    int error = fd >= 0 ? set_kept_attributes(fd) : 0;
    if (fd >= 0) close(fd);
    if (error) _exit(error);
  } else if (r->kind == 'D') {
    int fd = openat(dir, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) set_attributes(dir, base, fd, r);
    else if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) _exit(errno); /* a later member took its place */
    if (fd >= 0) close(fd);
  } else {
    int error = there ? remove_tree(dir, base) : 0;
    if (error) _exit(error);
    if (r->kind == 'f') {
      int fd = openat(dir, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
      if (fd < 0) _exit(errno);
      take_content(in, fd, r->size);
      if ((error = set_kept_attributes(fd)) != 0) _exit(error);
      set_attributes(dir, base, fd, r);
      close(fd);
    } else if (r->kind == 'l') {
      if (symlinkat(link, dir, base) < 0) _exit(errno);
      set_attributes(dir, base, -1, r);
    } else if (r->kind == 'p') {
      if (mkfifoat(dir, base, r->mode & 0777) < 0) _exit(errno);
      set_attributes(dir, base, -1, r);
    } else {
      int from = parent_beneath(root, link, &target);
      if (from < 0 || linkat(from, target, dir, base, 0) < 0) _exit(errno);
      close(from);
    }
  }
  close(dir);
}

void tree_unpack(int peer, uint32_t id, struct cursor *c, int in) {
  const char *path = take_string(c);
  int root = c->bad ? -1 : open_inside(path, O_RDONLY | O_DIRECTORY, 0);
  if (root < 0) {
    send_error(peer, id, c->bad ? EPROTO : errno, "unpack");
  } else if (start_worker(peer, id, "unpack")) {
    static char name[UINT16_MAX + 1], link[UINT16_MAX + 1];
    umask(0);
    for (;;) {
      struct record r;
      take(in, &r, sizeof r);
      take(in, name, r.path_length);
      take(in, link, r.link_length);
      name[r.path_length] = link[r.link_length] = 0;
      if (r.kind == 'z') break;
      if (!r.kind || !strchr("dDflhpx", r.kind) || memchr(name, 0, r.path_length) || memchr(link, 0, r.link_length)) _exit(EPROTO);
      if (r.kind == 'x') {
        char *room = keep_attribute(name, r.path_length, r.size);
        if (!room) _exit(EPROTO);
        take(in, room, r.size);
        continue;
      }
      unpack_one(in, root, &r, name, link);
      forget_attributes();
    }
    _exit(0);
  }
  if (root >= 0) close(root);
}
