/* A list of what is in a frozen layer, with a digest of each file: whoever makes it again later sees what changed.

   One record for each name, with a NUL behind it: `kind parent mode uid gid size seconds device inode digest name`. Directories are counted from 1, in the order of their records; `parent` is that number, 0 is the layer itself. The
   digest is that of a file's bytes or a link's text (of holes, and blocks of zeros, only their place counts), together with
   the extended attributes. The last record is the digest of the list itself. Read by ../../engines/integrity.py. */
#include "stacks.h"
#include "sha256.h"

#include <dirent.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define VALUE_MAX 65536
#define HEX_MAX (2 * SHA256_BYTES + 1)

static const char *const volumes[] = {"root", "usr", "workspace", NULL};

struct directory {
  struct node *at;
  unsigned long number;
};

static FILE *list;
static struct sha256 whole;
static unsigned long directories;

static void to_hex(const unsigned char *digest, char *hex) {
  for (int i = 0; i < SHA256_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

/* Those that mean something in a sandbox or to overlayfs, in whatever order the file system lists them. */
int digest_attributes(const char *path, bool own, unsigned char *digest) {
  static char names[VALUE_MAX], value[VALUE_MAX];
  ssize_t size = llistxattr(path, names, sizeof names);
  if (size < 0) return errno == EOPNOTSUPP ? 0 : errno;
  for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
    const char *name = names + at;
    bool marks = !strncmp(name, "user.overlay.", 13) || !strncmp(name, "trusted.", 8);
    if (own ? marks || strncmp(name, "user.", 5) : !marks && strncmp(name, "user.", 5)) continue;
    ssize_t n = lgetxattr(path, name, value, sizeof value);
    if (n < 0) return errno;
    struct sha256 s;
    unsigned char one[SHA256_BYTES];
    sha256_begin(&s);
    sha256_add(&s, name, strlen(name) + 1);
    sha256_add(&s, value, (size_t)n);
    sha256_end(&s, one);
    for (int i = 0; i < SHA256_BYTES; i++) digest[i] ^= one[i];
  }
  return 0;
}

static int digest_entry(int dir, const char *name, const struct stat *look, char *hex) {
  static char text[PATH_MAX];
  char path[64 + NAME_MAX];
  unsigned char digest[SHA256_BYTES];
  struct sha256 s;
  int error = 0;
  sha256_begin(&s);
  if (S_ISREG(look->st_mode)) {
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    error = fd < 0 ? errno : sha256_add_file(&s, fd, look->st_size);
    if (fd >= 0) close(fd);
  } else if (S_ISLNK(look->st_mode)) {
    ssize_t n = readlinkat(dir, name, text, sizeof text);
    if (n < 0) error = errno;
    else sha256_add(&s, text, (size_t)n);
  }
  sha256_end(&s, digest);
  snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, name);
  if (!error) error = digest_attributes(path, false, digest);
  to_hex(digest, hex);
  return error;
}

static void put(const char *text, size_t length) {
  sha256_add(&whole, text, length);
  if (fwrite(text, 1, length, list) != length) _exit(errno);
}

/* What a digest stands for, so that one of a file that was changed since is not taken over. */
static void facts_of(const struct stat *s, char *facts, size_t size) {
  snprintf(facts, size, "%llu %lld.%09ld ", S_ISDIR(s->st_mode) ? 0 : (unsigned long long)s->st_size,
           (long long)s->st_mtim.tv_sec, s->st_mtim.tv_nsec);
}

static int list_entry(const struct directory *d, int dir, const char *name, struct list **work) {
  struct stat look;
  char facts[64], hex[HEX_MAX], text[NAME_MAX + 512];
  if (fstatat(dir, name, &look, AT_SYMLINK_NOFOLLOW) < 0) return errno;
  char kind = S_ISDIR(look.st_mode) ? 'd' : S_ISREG(look.st_mode) ? 'f' : S_ISLNK(look.st_mode) ? 'l' : 'o';
  facts_of(&look, facts, sizeof facts);
  const char *known = kind == 'f' ? known_path(&look) : NULL;
  if (known && !strncmp(known, facts, strlen(facts))) snprintf(hex, sizeof hex, "%s", known + strlen(facts));
  else {
    int error = digest_entry(dir, name, &look, hex);
    if (error) return error;
    snprintf(text, sizeof text, "%s%s", facts, hex);
    if (kind == 'f' && look.st_nlink > 1) first_path(&look, text);
  }
  bool special = kind == 'o';
  int n = snprintf(text, sizeof text, "%c %lu %o %u %u %s%u:%u %llu %s %s", kind, d->number, look.st_mode, look.st_uid,
                   look.st_gid, facts, special ? major(look.st_rdev) : 0, special ? minor(look.st_rdev) : 0,
                   (unsigned long long)look.st_ino, hex, name);
  put(text, (size_t)n + 1);
  if (kind == 'd') {
    struct directory *below = room_for(sizeof *below);
    *below = (struct directory){node_below(d->at, name), ++directories};
    push(work, below);
  }
  return 0;
}

static int list_directory(int root, const struct directory *d, struct list **work) {
  int dir = open_node(root, d->at), error = 0;
  if (dir < 0) return errno;
  struct names names = {.dir = &dir, .count = 1};
  for (const char *name; !error && (name = next_name(&names));) error = list_entry(d, dir, name, work);
  if (!error) error = names.error;
  end_names(&names);
  close(dir);
  return error;
}

/* Take over the digests of a list of another layer: the two may share files. */
static int read_known(const char *path, dev_t dev) {
  char *text = NULL;
  size_t room = 0;
  FILE *file = fopen(path, "re");
  if (!file) return errno;
  while (getdelim(&text, &room, 0, file) > 0) {
    char size[24], seconds[40], hex[HEX_MAX], facts[64 + HEX_MAX];
    unsigned long long inode;
    if (sscanf(text, "f %*u %*o %*u %*u %23s %39s %*s %llu %64s", size, seconds, &inode, hex) != 4) continue;
    snprintf(facts, sizeof facts, "%s %s %s", size, seconds, hex);
    first_path(&(struct stat){.st_dev = dev, .st_ino = inode}, facts);
  }
  free(text);
  fclose(file);
  return 0;
}

int contents_main(const char *layer, const char *target, int count, char **known) {
  unsigned char digest[SHA256_BYTES];
  char hex[HEX_MAX], last[HEX_MAX + 2];
  struct stat look;
  struct list *work = NULL;
  int root = open(layer, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = 0;
  if (root < 0 || fstat(root, &look) < 0) return errno;
  for (int i = 0; i < count && !error; i++) error = read_known(known[i], look.st_dev);
  if (error) return error;
  int fd = open(target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || !(list = fdopen(fd, "w"))) return errno;
  sha256_begin(&whole);
  for (const char *const *volume = volumes; *volume && !error; volume++) {
    error = list_entry(&(struct directory){NULL, 0}, root, *volume, &work);
    for (struct directory *d; !error && (d = pop(&work)) != NULL;) {
      error = list_directory(root, d, &work);
      free(d);
    }
  }
  sha256_end(&whole, digest);
  to_hex(digest, hex);
  snprintf(last, sizeof last, "z %s", hex);
  if (!error && (fwrite(last, 1, sizeof last, list) != sizeof last || fflush(list))) error = errno;
  return error;
}
