/* Times of files as they were when a snapshot was taken, and FIFOs: the images of container engines know whole seconds
   only, and gVisor keeps FIFOs to itself.

   To set one copies the file out of the image's layer, which parts it from its other names; so these are made anew. The
   kernel syncs what it copies so, file by file; copies of our own are as good as any other file that was just written. */
#include "guest.h"

#include <sys/xattr.h>

#define ATTRIBUTES_MAX 65536

struct entry {
  ino_t file;                     /* 0: no file with several names */
  const char *path;
  struct timespec modified;
};

static char *list;
static size_t list_size;

/* Takes the list out of our directory, so that it holds for one start: "SECONDS NANOSECONDS FIFO PATH", each with a 0
   behind; FIFO is its mode, else 0. */
void take_times(const char *directory) {
  char path[PATH_MAX];
  struct stat s;
  snprintf(path, sizeof path, "%s/times", directory);
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  unlink(path);
  if (fstat(fd, &s) == 0 && s.st_size > 0 && (list = calloc(1, (size_t)s.st_size + 1)))
    for (ssize_t n; list_size < (size_t)s.st_size && (n = read(fd, list + list_size, (size_t)s.st_size - list_size)) > 0;)
      list_size += (size_t)n;
  close(fd);
}

static int by_file(const void *a, const void *b) {
  const struct entry *x = a, *y = b;
  return x->file != y->file ? (x->file < y->file ? -1 : 1) : strcmp(x->path, y->path);
}

static bool copy_content(int from, int to, off_t size) {
  static char block[1 << 17];
  for (off_t at = 0; at < size;) {
    off_t data = lseek(from, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data > at) at = data;
    ssize_t n = pread(from, block, sizeof block, at);
    if (n <= 0 || pwrite(to, block, (size_t)n, at) != n) return false;
    at += n;
  }
  return ftruncate(to, size) == 0;
}

static bool copy_attributes(int from, int to) {
  static char names[ATTRIBUTES_MAX], value[ATTRIBUTES_MAX];
  ssize_t size = flistxattr(from, names, sizeof names);
  if (size < 0) return errno == EOPNOTSUPP;
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
    if (strncmp(names + at, "user.", 5)) continue;
    ssize_t n = fgetxattr(from, names + at, value, sizeof value);
    if (n < 0 || fsetxattr(to, names + at, value, (size_t)n, 0) < 0) return false;
  }
  return true;
}

/* Whether a file is another one now with everything that it had, and with its time. */
static bool replace(const char *path, const struct stat *s, const struct timespec *times) {
  char beside[PATH_MAX];
  struct stat made;
  if (s->st_uid != geteuid() || snprintf(beside, sizeof beside, "%s.mcp-sandbox", path) >= (int)sizeof beside) return false;
  int from = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  int to = from < 0 ? -1 : open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool done = to >= 0 && fstat(to, &made) == 0 && (made.st_gid == s->st_gid || fchown(to, (uid_t)-1, s->st_gid) == 0) &&
              copy_content(from, to, s->st_size) && copy_attributes(from, to) && fchmod(to, s->st_mode & 07777) == 0 &&
              futimens(to, times) == 0 && rename(beside, path) == 0;
  if (to >= 0 && !done) unlink(beside);
  if (to >= 0) close(to);
  if (from >= 0) close(from);
  return done;
}

static void set_time(const struct entry *entry, bool joined) {
  struct timespec times[2] = {{0, UTIME_OMIT}, entry->modified};
  struct stat s;
  if (!joined && lstat(entry->path, &s) == 0 && S_ISREG(s.st_mode) && replace(entry->path, &s, times)) return;
  utimensat(AT_FDCWD, entry->path, times, AT_SYMLINK_NOFOLLOW);
}

static void join(const char *first, const char *path) {
  char beside[PATH_MAX];
  struct stat a, b;
  if (lstat(first, &a) < 0 || lstat(path, &b) < 0 || a.st_ino == b.st_ino) return;
  if (snprintf(beside, sizeof beside, "%s.mcp-sandbox", path) >= (int)sizeof beside) return;
  if (linkat(AT_FDCWD, first, AT_FDCWD, beside, 0) == 0 && rename(beside, path) < 0) unlink(beside);
}

/* Nothing runs yet, so every path leads where it led. Directories come last: what is made in them changes their times. */
void set_times(void) {
  size_t most = 0, files = 0, places;
  for (char *at = list; at && at < list + list_size; at += strlen(at) + 1) most++;
  struct entry *entries = most ? calloc(most, sizeof *entries) : NULL;
  if (!entries) return;
  places = most;
  for (char *at = list; at < list + list_size; at += strlen(at) + 1) {
    struct stat s;
    char *path;
    struct entry entry = {0};
    entry.modified.tv_sec = strtoll(at, &path, 10);
    entry.modified.tv_nsec = strtol(path, &path, 10);
    mode_t fifo = (mode_t)strtol(path, &path, 10);
    entry.path = *path ? path + 1 : path;
    if (fifo) mkfifo(entry.path, fifo);
    if (lstat(entry.path, &s) < 0) continue;
    if (!S_ISDIR(s.st_mode) && s.st_nlink > 1) entry.file = s.st_ino;
    entries[S_ISDIR(s.st_mode) ? --places : files++] = entry;
  }
  qsort(entries, files, sizeof *entries, by_file);
  for (size_t i = 0, first = 0; i < files; i++) {
    if (entries[i].file == 0 || entries[i].file != entries[first].file) first = i;
    else join(entries[first].path, entries[i].path);
    set_time(&entries[i], i != first); /* gVisor has times of its own for each name */
  }
  for (; places < most; places++) set_time(&entries[places], false);
  free(entries);
  free(list);
  list = NULL;
}
