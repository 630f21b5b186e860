/* Work on a sandbox's trees from outside: copy a layer, remove one, mirror a directory skeleton. Nothing here follows a
   link; whiteouts, opaque marks and redirects of overlayfs are kept as they are. */
#include "guest.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define XATTR_MAX 65536
#define DEPTH_MAX 4096

static int failed; /* the first errno; the walk goes on to do what it can */
static int top;    /* of the copy */
static char path[1 << 20];

static void note(int error) {
  if (!failed) failed = error;
}

/* overlayfs keeps its marks in extended attributes; user.overlay where it was mounted without privilege. */
static void copy_marks(int from, int to) {
  static char names[XATTR_MAX], value[XATTR_MAX];
  ssize_t size = flistxattr(from, names, sizeof names);
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
    ssize_t n = fgetxattr(from, names + at, value, sizeof value);
    if (n >= 0 && fsetxattr(to, names + at, value, (size_t)n, 0) < 0 && errno != EPERM && errno != EOPNOTSUPP) note(errno);
  }
}

static void copy_times(int fd, const struct stat *s) {
  struct timespec times[2] = {s->st_atim, s->st_mtim};
  if (fchown(fd, s->st_uid, s->st_gid) < 0 && errno != EPERM && errno != EINVAL) note(errno);
  if (fchmod(fd, s->st_mode & 07777) < 0) note(errno);
  if (futimens(fd, times) < 0) note(errno);
}

/* Some kernels, as gVisor's, cannot copy by themselves. */
static ssize_t copy_range(int from, int to, off_t at, size_t size) {
  static char held[1 << 16];
  off_t in = at, out = at;
  ssize_t n = copy_file_range(from, &in, to, &out, size, 0);
  if (n >= 0 || errno != ENOSYS) return n;
  n = pread(from, held, size < sizeof held ? size : sizeof held, at);
  return n > 0 ? pwrite(to, held, (size_t)n, at) : n;
}

static void copy_content(int from, int to, off_t size) {
  if (ioctl(to, FICLONE, from) == 0) return;
  for (off_t at = 0; at < size;) {
    off_t data = lseek(from, at, SEEK_DATA), hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
    if (data < 0) break;
    for (at = data; at < hole;) {
      ssize_t n = copy_range(from, to, at, (size_t)(hole - at));
      if (n <= 0) {
        note(n < 0 ? errno : EIO);
        return;
      }
      at += n;
    }
  }
  if (ftruncate(to, size) < 0) note(errno);
}

static void copy_directory(int from, int to, size_t length, int depth);

static void copy_anew(int a, const struct stat *s, int to, const char *name) {
  int b = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (b < 0) {
    note(errno);
    return;
  }
  copy_content(a, b, s->st_size);
  copy_marks(a, b);
  copy_times(b, s);
  close(b);
}

static void copy_file(int from, const char *source, int to, const char *name) {
  struct stat s;
  int a = openat(from, source, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (a < 0 || fstat(a, &s) < 0) note(errno);
  else if (!S_ISREG(s.st_mode)) note(EBUSY); /* somebody changes the tree meanwhile */
  else {
    const char *before = s.st_nlink > 1 ? first_path(&s, path) : NULL;
    if (!before || linkat(top, before, to, name, 0) < 0) copy_anew(a, &s, to, name);
  }
  if (a >= 0) close(a);
}

int copy_one_file(int from, const char *name, int to) {
  struct stat s;
  int a = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (a < 0 || fstat(a, &s) < 0) note(errno);
  else copy_anew(a, &s, to, name);
  if (a >= 0) close(a);
  return failed;
}

static void copy_node(int from, const char *source, int to, const char *name, const struct stat *s) {
  static char target[PATH_MAX + 1];
  struct timespec times[2] = {s->st_atim, s->st_mtim};
  ssize_t n = S_ISLNK(s->st_mode) ? readlinkat(from, source, target, sizeof target - 1) : 0;
  target[n > 0 ? n : 0] = 0;
  if (S_ISSOCK(s->st_mode)) return; /* nobody can be behind it any more */
  if (S_ISLNK(s->st_mode) ? symlinkat(target, to, name) < 0 : mknodat(to, name, s->st_mode, s->st_rdev) < 0) {
    note(errno);
    return;
  }
  (void)!fchownat(to, name, s->st_uid, s->st_gid, AT_SYMLINK_NOFOLLOW);
  utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
}

/* `length` of `path` leads to the entry, as seen from `top`. */
static void copy_entry(int from, const char *source, int to, const char *name, size_t length, int depth) {
  struct stat s;
  if (fstatat(from, source, &s, AT_SYMLINK_NOFOLLOW) < 0) return;
  if (S_ISREG(s.st_mode)) copy_file(from, source, to, name);
  else if (!S_ISDIR(s.st_mode)) copy_node(from, source, to, name, &s);
  else {
    if (mkdirat(to, name, 0700) < 0) note(errno);
    int a = openat(from, source, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int b = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (a < 0 || b < 0 || depth >= DEPTH_MAX) {
      note(depth >= DEPTH_MAX ? ENAMETOOLONG : errno);
      if (a >= 0) close(a);
    } else {
      copy_marks(a, b);
      copy_directory(a, b, length, depth + 1);
      copy_times(b, &s);
    }
    if (b >= 0) close(b);
  }
}

/* Closes `from`. Frames are small and there are two descriptors to a level: whoever made the tree chose its depth. */
static void copy_directory(int from, int to, size_t length, int depth) {
  DIR *d = fdopendir(from);
  if (!d) {
    note(errno);
    close(from);
    return;
  }
  for (struct dirent *e; (e = readdir(d));) {
    size_t n = strlen(e->d_name), start = length + !!length;
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    if (start + n >= sizeof path) {
      note(ENAMETOOLONG);
      continue;
    }
    if (length) path[length] = '/';
    memcpy(path + start, e->d_name, n + 1);
    copy_entry(from, e->d_name, to, e->d_name, start + n, depth);
  }
  closedir(d);
}

void open_many_files(void) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) < 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int layer_copy(const char *source, const char *target) {
  struct stat s;
  umask(0);
  int from = open(source, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (from < 0 || fstat(from, &s) < 0 || (mkdir(target, 0700) < 0 && errno != EEXIST)) return errno;
  open_many_files();
  int to = top = open(target, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (to < 0) return errno;
  copy_marks(from, to);
  copy_directory(from, to, 0, 1);
  copy_times(to, &s);
  return failed;
}

int move_directory(int from, const char *source, int to, const char *target, unsigned flags) {
  char aside[32];
  snprintf(aside, sizeof aside, ".moved-%d", getpid());
  umask(0);
  top = to;
  strcpy(path, aside);
  copy_entry(from, source, to, aside, strlen(aside), 1);
  int error = failed;
  if (!error && syscall(SYS_renameat2, to, aside, to, target, flags) < 0) error = errno;
  if (error) remove_tree(to, aside);
  else error = remove_tree(from, source);
  return error;
}

int layer_remove(const char *path) {
  int error = remove_tree(AT_FDCWD, path);
  return error == ENOENT ? 0 : error;
}

static void mirror(int from, int to) {
  DIR *d = fdopendir(from);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));) {
    struct stat s;
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || (e->d_type != DT_DIR && e->d_type != DT_UNKNOWN)) continue;
    if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(s.st_mode)) continue;
    int a = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (a < 0) continue; /* a directory that this user cannot read stays the host's */
    if (mkdirat(to, e->d_name, (s.st_mode & 01777) | 0700) < 0 && errno != EEXIST) note(errno);
    int b = openat(to, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (b >= 0) {
      mirror(a, b);
      close(b);
    } else close(a);
  }
  closedir(d);
}

int directory_skeleton(const char *source, const char *target) {
  umask(0);
  if (mkdir(target, 0755) < 0 && errno != EEXIST) return errno;
  int from = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC), to = open(target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (from < 0 || to < 0) return errno;
  mirror(from, to);
  return failed;
}

static struct usage used;

/* Closes `dir`. What has several names is counted by parts; those of the parts that lie elsewhere are counted there. */
static void measure(int dir, int depth) {
  DIR *d = fdopendir(dir);
  if (!d) {
    note(errno);
    close(dir);
    return;
  }
  for (struct dirent *e; (e = readdir(d));) {
    struct stat s;
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    if (fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) < 0) continue; /* it went away */
    bool shared = !S_ISDIR(s.st_mode) && s.st_nlink > 1;
    used.bytes += (uint64_t)s.st_blocks * 512 / (shared ? s.st_nlink : 1);
    used.parts += PARTS / (shared ? s.st_nlink : 1);
    if (!S_ISDIR(s.st_mode)) continue;
    int below = depth < DEPTH_MAX ? openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (below >= 0) measure(below, depth + 1);
    else if (depth >= DEPTH_MAX || (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)) note(depth < DEPTH_MAX ? errno : ENAMETOOLONG);
  }
  closedir(d);
}

int tree_usage(const char *path, struct usage *sum) {
  int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (dir < 0) return errno == ENOENT ? 0 : errno;
  measure(dir, 1);
  *sum = used;
  return failed;
}
