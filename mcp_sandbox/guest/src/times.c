/* Times of files as they were when a snapshot was taken, and FIFOs: the images of container engines know whole seconds
   only, and gVisor keeps FIFOs to itself.

   To set one copies the file out of the image's layer, which parts it from its other names; so these are made anew. */
#include "guest.h"

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

static void set_time(const struct entry *entry) {
  struct timespec times[2] = {{0, UTIME_OMIT}, entry->modified};
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
    set_time(&entries[i]); /* gVisor has times of its own for each name */
  }
  for (; places < most; places++) set_time(&entries[places]);
  free(entries);
  free(list);
  list = NULL;
}
