/* Extended attributes on their way into a tree: kept until the file or directory is there that they belong to. */
#include "guest.h"

#include <sys/xattr.h>

/* `u32 length of the value, name, NUL, value`, one after the other. */
static char kept[FILE_ATTRIBUTES_MAX + 8 * 1024];
static size_t used;

bool attributes_kept(void) { return used > 0; }

void forget_attributes(void) { used = 0; }

char *keep_attribute(const char *name, size_t length, uint64_t size) {
  uint32_t value = (uint32_t)size;
  if (size > ATTRIBUTE_VALUE_MAX || length > 255 || strlen(name) != length || strncmp(name, "user.", 5)) return NULL;
  if (used + sizeof value + length + 1 + value > sizeof kept) return NULL;
  memcpy(kept + used, &value, sizeof value);
  memcpy(kept + used + sizeof value, name, length + 1);
  char *room = kept + used + sizeof value + length + 1;
  used += sizeof value + length + 1 + value;
  return room;
}

int set_kept_attributes(int fd) {
  for (size_t at = 0; at < used;) {
    uint32_t size;
    memcpy(&size, kept + at, sizeof size);
    const char *name = kept + at + sizeof size;
    at += sizeof size + strlen(name) + 1;
    /* Some file systems and kernels have none, and their owner says so; what does not fit is an error. */
    if (fsetxattr(fd, name, kept + at, size, 0) < 0 && errno != EOPNOTSUPP && errno != EPERM) return errno;
    at += size;
  }
  return 0;
}
