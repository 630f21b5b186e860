/* Files with several names: under which path each one was met first. */
#include "guest.h"

struct met {
  dev_t dev;
  ino_t ino;
  char *path;
};
static struct met *table; /* open addressing; a power of two, at most half full */
static size_t size, used;

static struct met *slot(struct met *in, size_t among, dev_t dev, ino_t ino) {
  size_t at = (size_t)((ino ^ (uint64_t)dev << 32) * 0x9e3779b97f4a7c15u >> 20) & (among - 1);
  while (in[at].path && (in[at].ino != ino || in[at].dev != dev)) at = (at + 1) & (among - 1);
  return &in[at];
}

static bool grow(void) {
  size_t wanted = size ? size * 2 : 1024;
  struct met *fresh = calloc(wanted, sizeof *fresh);
  if (!fresh) return false;
  for (size_t i = 0; i < size; i++)
    if (table[i].path) *slot(fresh, wanted, table[i].dev, table[i].ino) = table[i];
  free(table);
  table = fresh;
  size = wanted;
  return true;
}

const char *known_path(const struct stat *s) { return size ? slot(table, size, s->st_dev, s->st_ino)->path : NULL; }

const char *first_path(const struct stat *s, const char *path) {
  if (used * 2 >= size && !grow()) return NULL;
  struct met *m = slot(table, size, s->st_dev, s->st_ino);
  if (m->path) return m->path;
  *m = (struct met){s->st_dev, s->st_ino, strdup(path)};
  used += m->path != NULL;
  return NULL;
}
