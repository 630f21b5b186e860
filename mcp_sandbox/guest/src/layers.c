/* Work on a sandbox's trees from outside: copy a layer, remove one, mirror a directory skeleton. Nothing here follows a
   link; whiteouts, opaque marks and redirects of overlayfs are kept as they are. */
#include "guest.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static int failed; /* the first errno; the walk goes on to do what it can */

static void note(int error) {
  if (!failed) failed = error;
}

/* overlayfs keeps its marks in extended attributes; user.overlay where it was mounted without privilege. */
static void copy_marks(int from, int to) {
  char names[4096], value[4096];
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

static void copy_content(int from, int to, off_t size) {
  if (ioctl(to, FICLONE, from) == 0) return;
  for (off_t at = 0; at < size;) {
    off_t data = lseek(from, at, SEEK_DATA), hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
    if (data < 0) break;
    for (at = data; at < hole;) {
      off_t in = at, out = at;
      ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(hole - at), 0);
      if (n <= 0) {
        note(n < 0 ? errno : EIO);
        return;
      }
      at += n;
    }
  }
  if (ftruncate(to, size) < 0) note(errno);
}

struct linked {
  dev_t dev;
  ino_t ino;
  char *path;
};
static struct linked *links;
static size_t link_count;

static void copy_directory(int from, int to, const char *path, int top);

static void copy_entry(int from, const char *source, int to, const char *name, const char *path, int top) {
  struct stat s;
  if (fstatat(from, source, &s, AT_SYMLINK_NOFOLLOW) < 0) return;
  if (S_ISDIR(s.st_mode)) {
    if (mkdirat(to, name, 0700) < 0) note(errno);
    int a = openat(from, source, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int b = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (a < 0 || b < 0) note(errno);
    else {
      copy_directory(dup(a), b, path, top);
      copy_marks(a, b);
      copy_times(b, &s);
    }
    close(a);
    close(b);
  } else if (S_ISREG(s.st_mode)) {
    for (size_t i = 0; s.st_nlink > 1 && i < link_count; i++)
      if (links[i].ino == s.st_ino && links[i].dev == s.st_dev && linkat(top, links[i].path, to, name, 0) == 0) return;
    int a = openat(from, source, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int b = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (a < 0 || b < 0) note(errno);
    else {
      copy_content(a, b, s.st_size);
      copy_marks(a, b);
      copy_times(b, &s);
      struct linked *grown = s.st_nlink > 1 ? realloc(links, (link_count + 1) * sizeof *grown) : NULL;
      if (grown) {
        links = grown;
        links[link_count++] = (struct linked){s.st_dev, s.st_ino, strdup(path)};
      }
    }
    close(a);
    close(b);
  } else {
    char target[PATH_MAX + 1];
    struct timespec times[2] = {s.st_atim, s.st_mtim};
    ssize_t n = S_ISLNK(s.st_mode) ? readlinkat(from, source, target, sizeof target - 1) : 0;
    target[n > 0 ? n : 0] = 0;
    if (S_ISSOCK(s.st_mode)) return; /* nobody can be behind it any more */
    if (S_ISLNK(s.st_mode) ? symlinkat(target, to, name) < 0 : mknodat(to, name, s.st_mode, s.st_rdev) < 0) note(errno);
    else {
      (void)!fchownat(to, name, s.st_uid, s.st_gid, AT_SYMLINK_NOFOLLOW);
      utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
    }
  }
}

static void copy_directory(int from, int to, const char *path, int top) {
  DIR *d = fdopendir(from);
  if (!d) {
    note(errno);
    return;
  }
  for (struct dirent *e; (e = readdir(d));) {
    char below[2 * PATH_MAX];
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", e->d_name);
    copy_entry(dirfd(d), e->d_name, to, e->d_name, below, top);
  }
  closedir(d);
}

int layer_copy(const char *source, const char *target) {
  struct stat s;
  umask(0);
  int from = open(source, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (from < 0 || fstat(from, &s) < 0 || (mkdir(target, 0700) < 0 && errno != EEXIST)) return errno;
  int to = open(target, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (to < 0) return errno;
  copy_directory(dup(from), to, "", to);
  copy_marks(from, to);
  copy_times(to, &s);
  return failed;
}

int move_directory(int from, const char *source, int to, const char *target, unsigned flags) {
  char aside[32];
  snprintf(aside, sizeof aside, ".moved-%d", getpid());
  umask(0);
  copy_entry(from, source, to, aside, aside, to);
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
