/* Detached mounts: made before the root is switched, attached after it, so that no link planted in a restored tree can
   redirect a mount onto the host. Paths are kept short and relative: /proc/self/mountinfo shows them inside. */
#include "guest.h"

#include <sys/mount.h>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
enum { TREE_CLONE = 1, RECURSIVE = 0x8000, SET_FLAG = 0, SET_STRING = 1, CREATE = 6, FROM_EMPTY = 4 };
enum { ATTRIBUTE_IDMAP = 0x00100000, ATTRIBUTES = 0xff, BIND_RECURSIVE = 0x100 };
struct attributes {
  uint64_t set, clear, propagation, userns;
};

static void configure(int fs, const char *type, char *options) {
  char *rest = NULL;
  for (char *o = strtok_r(options, ",", &rest); o; o = strtok_r(NULL, ",", &rest)) {
    char *value = strchr(o, '=');
    if (value) *value++ = 0;
    if (syscall(SYS_fsconfig, fs, value ? SET_STRING : SET_FLAG, o, value, 0) < 0) setup_fail("%s option %s", type, o);
  }
}

static int mount_made(int fs, const char *type, unsigned attributes) {
  if (syscall(SYS_fsconfig, fs, CREATE, NULL, NULL, 0) < 0) {
    int error = errno;
    char reason[256] = "";
    ssize_t n = read(fs, reason, sizeof reason - 1); /* the kernel's own words */
    reason[n > 0 ? n : 0] = 0;
    errno = error;
    setup_fail("create %s %s", type, reason);
  }
  int tree = (int)syscall(SYS_fsmount, fs, 1, attributes);
  if (tree < 0) setup_fail("mount %s", type);
  close(fs);
  return tree;
}

/* Tokens: upper, work, number of lowers, lowers from the top, options. */
int make_overlay(char **token, int *used) {
  int fs = (int)syscall(SYS_fsopen, "overlay", 1), lowers = atoi(token[2]);
  if (fs < 0) setup_fail("open overlay");
  for (int i = 0; i < lowers; i++)
    if (syscall(SYS_fsconfig, fs, SET_STRING, "lowerdir+", token[3 + i], 0) < 0) setup_fail("overlay lowerdir+ %d", i);
  if (syscall(SYS_fsconfig, fs, SET_STRING, "upperdir", token[0], 0) < 0) setup_fail("overlay upperdir");
  if (syscall(SYS_fsconfig, fs, SET_STRING, "workdir", token[1], 0) < 0) setup_fail("overlay workdir");
  configure(fs, "overlay", token[3 + lowers]);
  *used = lowers + 4;
  return mount_made(fs, "overlay", 2 | 4 /* nosuid, nodev */);
}

int make_filesystem(const char *type, char *options, unsigned attributes) {
  int fs = (int)syscall(SYS_fsopen, type, 1);
  if (fs < 0) setup_fail("open %s", type);
  configure(fs, type, options);
  return mount_made(fs, type, attributes);
}

int clone_tree(const char *source, unsigned attributes, int idmap) {
  unsigned deep = (attributes & BIND_RECURSIVE) ? RECURSIVE : 0;
  int tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, TREE_CLONE | O_CLOEXEC | deep);
  if (tree < 0) setup_fail("open_tree");
  struct attributes a = {.set = attributes & ATTRIBUTES};
  if (idmap >= 0) {
    a.set |= ATTRIBUTE_IDMAP;
    a.userns = (uint64_t)idmap;
  }
  if (a.set && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | deep, &a, sizeof a) < 0)
    setup_fail(idmap >= 0 ? "idmap" : "mount_setattr");
  return tree;
}

void attach(int tree, const char *target) {
  if (syscall(SYS_move_mount, tree, "", AT_FDCWD, target, FROM_EMPTY) < 0) setup_fail("attach %s", target);
  close(tree);
}
