/* File requests. Paths resolve inside the sandbox; magic links (/proc/self/mem and its like) are never followed, and
   procfs is left to commands: its files would speak for init. */
#include "guest.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <sys/vfs.h>

#define PROC_MAGIC 0x9fa0
#define LINKS_MAX 40
#define HELD_MAX 100
#define FCHMODAT2 452
#ifndef OPENAT2
#define OPENAT2 SYS_openat2
#endif

/* Before Linux 5.6, in gVisor and under old seccomp profiles there is no openat2. Magic links are followed there; all
   that they lead to is inside. */
static bool has_openat2(void) {
  static int known = -1;
  struct open_how root = {.flags = O_PATH | O_CLOEXEC};
  if (known < 0) {
    int fd = (int)syscall(OPENAT2, AT_FDCWD, "/", &root, sizeof root);
    known = fd >= 0;
    if (fd >= 0) close(fd);
  }
  return known;
}

int open_inside(const char *path, int flags, mode_t mode) {
  struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .mode = (flags & O_CREAT) ? mode : 0,
                         .resolve = RESOLVE_NO_MAGICLINKS};
  int fd = has_openat2() ? (int)syscall(OPENAT2, AT_FDCWD, path, &how, sizeof how)
                         : openat(AT_FDCWD, path, flags | O_CLOEXEC, mode);
  struct statfs fs;
  if (fd >= 0 && (fstatfs(fd, &fs) < 0 || fs.f_type == PROC_MAGIC)) {
    close(fd);
    errno = EACCES;
    return -1;
  }
  return fd;
}

static int make_parents(const char *path) {
  char at[PATH_MAX + 1];
  snprintf(at, sizeof at, "%s", path);
  for (char *slash = at + 1; (slash = strchr(slash, '/')); slash++) {
    *slash = 0;
    if (mkdir(at, 0755) < 0 && errno != EEXIST) return -1;
    *slash = '/';
  }
  return mkdir(at, 0755) < 0 && errno != EEXIST ? -1 : 0;
}

/* Split off the last component into `base` and open the directory before it. */
int open_parent(const char *path, bool make, char *base, size_t size) {
  char at[PATH_MAX + 1];
  size_t n = strlen(path);
  if (*path != '/' || n > PATH_MAX) {
    errno = *path == '/' ? ENAMETOOLONG : EINVAL;
    return -1;
  }
  memcpy(at, path, n + 1);
  while (n > 1 && at[n - 1] == '/') at[--n] = 0;
  char *slash = strrchr(at, '/');
  if (snprintf(base, size, "%s", slash + 1) >= (int)size) {
    errno = ENAMETOOLONG;
    return -1;
  }
  if (!*base) snprintf(base, size, ".");
  slash[slash == at] = 0;
  int fd = open_inside(at, O_PATH | O_DIRECTORY, 0);
  if (fd < 0 && errno == ENOENT && make && make_parents(at) == 0) fd = open_inside(at, O_PATH | O_DIRECTORY, 0);
  return fd;
}

static void put_stat(struct message *m, const struct stat *s, const char *link) {
  put_u32(m, s->st_mode);
  put_u32(m, s->st_uid);
  put_u32(m, s->st_gid);
  put_u32(m, (uint32_t)s->st_nlink);
  put_u64(m, (uint64_t)s->st_size);
  put_u64(m, (uint64_t)s->st_mtim.tv_sec);
  put_u32(m, (uint32_t)s->st_mtim.tv_nsec);
  put_string(m, link);
}

/* Only regular files are handed out: nothing that blocks, nothing that acts. */
static int regular(int fd, struct stat *s) {
  if (fstat(fd, s) < 0) return errno;
  if (S_ISREG(s->st_mode)) return 0;
  return S_ISDIR(s->st_mode) ? EISDIR : EINVAL;
}

void file_open(int peer, uint32_t id, struct cursor *c) {
  uint32_t flags = take_u32(c), mode = take_u32(c);
  uint64_t offset = take_u32(c);
  offset |= (uint64_t)take_u32(c) << 32;
  const char *path = take_string(c);
  if (c->bad || *path != '/') {
    send_error(peer, id, c->bad ? EPROTO : EINVAL, "open");
    return;
  }
  int how = O_NONBLOCK | O_NOCTTY;
  how |= (flags & OPEN_WRITE) ? O_WRONLY | O_CREAT | ((flags & OPEN_APPEND) ? O_APPEND : O_TRUNC) : O_RDONLY;
  int fd = open_inside(path, how, mode & 07777);
  if (fd < 0 && errno == ENOENT && (flags & OPEN_PARENTS)) {
    char base[256];
    int parent = open_parent(path, true, base, sizeof base);
    if (parent >= 0) close(parent);
    fd = open_inside(path, how, mode & 07777);
  }
  struct stat s;
  int error = fd < 0 ? (errno == ENXIO ? EINVAL : errno) : regular(fd, &s);
  if (!error && offset && lseek(fd, (off_t)offset, SEEK_SET) < 0) error = errno;
  if (error) {
    send_error(peer, id, error, "open");
  } else {
    struct message m = {.length = 0};
    put_stat(&m, &s, "");
    send_frame(peer, T_OK, id, m.data, m.length, fd);
  }
  if (fd >= 0) close(fd);
}

/* Follow the final link ourselves, so that a link to a file stays a link when the file is replaced. */
static int resolve_links(char *path, size_t size, bool make, char *base, size_t base_size) {
  for (int hops = 0; hops < LINKS_MAX; hops++) {
    char target[PATH_MAX + 1];
    int parent = open_parent(path, make, base, base_size);
    if (parent < 0) return -1;
    ssize_t n = readlinkat(parent, base, target, sizeof target - 1);
    if (n < 0) return parent;
    close(parent);
    target[n] = 0;
    char *slash = strrchr(path, '/');
    size_t keep = *target == '/' ? 0 : (size_t)(slash - path) + 1;
    if (keep + (size_t)n >= size) {
      errno = ENAMETOOLONG;
      return -1;
    }
    memcpy(path + keep, target, (size_t)n + 1);
  }
  errno = ELOOP;
  return -1;
}

void file_create(int peer, uint32_t id, struct cursor *c) {
  uint32_t flags = take_u32(c);
  const char *asked = take_string(c);
  char path[PATH_MAX + 1], base[256], name[64];
  if (c->bad || strlen(asked) > PATH_MAX) {
    send_error(peer, id, c->bad ? EPROTO : ENAMETOOLONG, "create");
    return;
  }
  if (*asked && asked[strlen(asked) - 1] == '/') { /* as open(2) says, and links behind it stay unfollowed */
    send_error(peer, id, EISDIR, "create");
    return;
  }
  snprintf(path, sizeof path, "%s", asked);
  bool make = flags & OPEN_PARENTS; /* CREATE_ONLY must not look through a link */
  int parent = (flags & CREATE_ONLY) ? open_parent(path, make, base, sizeof base)
                                     : resolve_links(path, sizeof path, make, base, sizeof base);
  int fd = -1, error = 0;
  struct stat s;
  bool existed = false;
  if (parent < 0) error = errno;
  else if (fstatat(parent, base, &s, AT_SYMLINK_NOFOLLOW) == 0) {
    existed = true;
    if (flags & CREATE_ONLY) error = EEXIST;
    else if (!S_ISREG(s.st_mode)) error = S_ISDIR(s.st_mode) ? EISDIR : EINVAL;
  } else if (errno != ENOENT) error = errno;
  if (!error) {
    uint64_t salt;
    if (getrandom(&salt, sizeof salt, 0) != sizeof salt) salt = (uint64_t)id << 32 | (uint32_t)rand();
    snprintf(name, sizeof name, ".write-%016llx", (unsigned long long)salt);
    fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) error = errno;
  }
  if (error) {
    send_error(peer, id, error, "create");
  } else {
    struct message m = {.length = 0};
    put_u32(&m, existed);
    put_string(&m, path);
    put_string(&m, name);
    send_frame(peer, T_OK, id, m.data, m.length, fd);
  }
  if (fd >= 0) close(fd);
  if (parent >= 0) close(parent);
}

void file_commit(int peer, uint32_t id, struct cursor *c) {
  uint32_t flags = take_u32(c), mode = take_u32(c);
  const char *path = take_string(c), *name = take_string(c);
  char base[256];
  if (c->bad || strchr(name, '/')) {
    send_error(peer, id, EPROTO, "commit");
    return;
  }
  int parent = open_parent(path, false, base, sizeof base), error = parent < 0 ? errno : 0;
  struct stat old;
  bool had = !error && fstatat(parent, base, &old, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(old.st_mode);
  if (!error) {
    if (mode == UINT32_MAX) mode = had ? old.st_mode & 07777 : 0644;
    if (had && (old.st_uid || old.st_gid)) (void)!fchownat(parent, name, old.st_uid, old.st_gid, AT_SYMLINK_NOFOLLOW);
    if (fchmodat(parent, name, mode & 07777, 0) < 0 ||
        syscall(SYS_renameat2, parent, name, parent, base, (flags & CREATE_ONLY) ? 1 /* RENAME_NOREPLACE */ : 0) < 0) {
      error = errno;
      unlinkat(parent, name, 0);
    }
  }
  if (error) send_error(peer, id, error, "commit");
  else send_frame(peer, T_OK, id, NULL, 0, -1);
  if (parent >= 0) close(parent);
}

void file_stat(int peer, uint32_t id, struct cursor *c) {
  uint32_t follow = take_u32(c);
  const char *path = take_string(c);
  struct stat s;
  char link[PATH_MAX + 1] = "";
  if (c->bad || *path != '/') {
    send_error(peer, id, c->bad ? EPROTO : EINVAL, "stat");
    return;
  }
  int fd = open_inside(path, O_PATH | (follow ? 0 : O_NOFOLLOW), 0);
  if (fd < 0 || fstat(fd, &s) < 0) {
    send_error(peer, id, errno, "stat");
  } else {
    ssize_t n = S_ISLNK(s.st_mode) ? readlinkat(fd, "", link, sizeof link - 1) : 0;
    link[n > 0 ? n : 0] = 0;
    struct message m = {.length = 0};
    put_stat(&m, &s, link);
    send_frame(peer, T_OK, id, m.data, m.length, -1);
  }
  if (fd >= 0) close(fd);
}

/* Never through a link that took the directory's place. */
static bool let_in(int dir, const char *name) {
  long done = syscall(FCHMODAT2, dir, name, 0700, AT_SYMLINK_NOFOLLOW);
  return done == 0 || (errno == ENOSYS && fchmodat(dir, name, 0700, 0) == 0); /* before Linux 6.6 */
}

/* Directories are open from `top` down to the one that is emptied; what lies deeper than HELD_MAX moves up first. */
static int remove_below(int dir, const char *name, int top, int depth, unsigned *moved) {
  char aside[32];
  if (unlinkat(dir, name, 0) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  if (unlinkat(dir, name, AT_REMOVEDIR) == 0) return 0;
  if (errno != ENOTEMPTY && errno != EEXIST) return errno;
  snprintf(aside, sizeof aside, ".removed-%d-%u", getpid(), *moved);
  if (depth > HELD_MAX && renameat(dir, name, top, aside) == 0) {
    ++*moved;
    return 0;
  }
  int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == EACCES && let_in(dir, name))
    fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *d = fd < 0 ? NULL : fdopendir(fd);
  if (!d) {
    int error = errno;
    if (fd >= 0) close(fd);
    return error;
  }
  int error = 0;
  bool opened = false;
  if (depth == 0) top = fd;
  for (struct dirent *e; (e = readdir(d));) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    int one = remove_below(fd, e->d_name, top, depth + 1, moved);
    if (one == EACCES && !opened && fchmod(fd, 0700) == 0) { /* a directory that its owner may not write */
      opened = true;
      one = remove_below(fd, e->d_name, top, depth + 1, moved);
    }
    if (one && !error) error = one;
  }
  closedir(d);
  if (unlinkat(dir, name, AT_REMOVEDIR) < 0 && !error) error = errno;
  return error;
}

int remove_tree(int dir, const char *name) {
  for (unsigned moved = 0, before = 0;; before = moved) {
    int error = remove_below(dir, name, -1, 0, &moved);
    if (moved == before) return error;
  }
}

void file_remove(int peer, uint32_t id, struct cursor *c) {
  uint32_t flags = take_u32(c);
  char base[256];
  int parent = open_parent(take_string(c), false, base, sizeof base), error = parent < 0 ? errno : 0;
  if (c->bad) error = EPROTO;
  if (!error && (!strcmp(base, ".") || !strcmp(base, ".."))) error = EBUSY;
  if (!error && unlinkat(parent, base, 0) < 0) {
    error = errno;
    if ((error == EISDIR || error == EPERM) && unlinkat(parent, base, AT_REMOVEDIR) == 0) error = 0;
    else if (error == EISDIR || error == EPERM) error = errno;
  }
  if ((error == ENOTEMPTY || error == EEXIST) && (flags & REMOVE_RECURSIVE)) {
    if (start_worker(peer, id, "remove")) _exit(remove_tree(parent, base));
  } else if (error) {
    send_error(peer, id, error, "remove");
  } else {
    send_frame(peer, T_OK, id, NULL, 0, -1);
  }
  if (parent >= 0) close(parent);
}

void file_rename(int peer, uint32_t id, struct cursor *c) {
  uint32_t flags = take_u32(c);
  char from[256], to[256];
  int a = open_parent(take_string(c), false, from, sizeof from), error = a < 0 ? errno : 0;
  int b = open_parent(take_string(c), false, to, sizeof to);
  if (!error && b < 0) error = errno;
  if (c->bad) error = EPROTO;
  unsigned how = (flags & CREATE_ONLY) ? 1 /* RENAME_NOREPLACE */ : 0;
  if (!error && syscall(SYS_renameat2, a, from, b, to, how) < 0) error = errno;
  if (error == EXDEV) { /* a directory of a lower layer, mounted without privilege */
    if (start_worker(peer, id, "rename")) _exit(move_directory(a, from, b, to, how));
    close(a);
    close(b);
    return;
  }
  if (error) send_error(peer, id, error, "rename");
  else send_frame(peer, T_OK, id, NULL, 0, -1);
  if (a >= 0) close(a);
  if (b >= 0) close(b);
}

void file_mkdir(int peer, uint32_t id, struct cursor *c) {
  uint32_t flags = take_u32(c), mode = take_u32(c);
  char base[256];
  int parent = open_parent(take_string(c), flags & MKDIR_PARENTS, base, sizeof base), error = parent < 0 ? errno : 0;
  if (c->bad) error = EPROTO;
  if (!error && mkdirat(parent, base, mode & 07777) < 0) {
    struct stat s;
    error = errno;
    if (error == EEXIST && (flags & MKDIR_EXIST_OK) && fstatat(parent, base, &s, 0) == 0 && S_ISDIR(s.st_mode)) error = 0;
  }
  if (error) send_error(peer, id, error, "mkdir");
  else send_frame(peer, T_OK, id, NULL, 0, -1);
  if (parent >= 0) close(parent);
}
