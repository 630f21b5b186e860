/* The first steps of init in gVisor's kernel, which counts processes by a control group of its own that only somebody
   inside can set. Then nobody sees it any more, and the right to mount is gone. */
#include "guest.h"

#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define GROUPS "/sys/fs/cgroup"

static void fail(const char *step) {
  dprintf(2, "mcp-sandbox guest: %s: %s\n", step, strerror(errno));
  _exit(70);
}

static void drop_capability(unsigned number) {
  struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2];
  if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0 || syscall(SYS_capget, &head, data) < 0) fail("drop capabilities");
  uint32_t keep = ~(1u << (number % 32));
  struct __user_cap_data_struct *d = &data[number / 32];
  d->effective &= keep;
  d->permitted &= keep;
  d->inheritable &= keep;
  if (syscall(SYS_capset, &head, data) < 0) fail("drop capabilities");
}

static int current, maximum;
static const char *most;

static void set_maximum(const char *text) {
  if (pwrite(maximum, text, strlen(text), 0) < 0) fail("limit of processes");
}

static bool is_crowded(void) {
  char count[32] = "";
  return atol(most) && pread(current, count, sizeof count - 1, 0) > 0 && atol(count) >= atol(most) - 1;
}

static void bar_forks(bool bar) { set_maximum(bar ? "0" : most); }

/* gvisor PIDS DIRECTORY, where PIDS is a number or `max`. */
void gvisor_main(int argc, char **argv) {
  most = argc > 2 ? argv[2] : "max";
  maximum = open(GROUPS "/pids/pids.max", O_WRONLY | O_CLOEXEC);
  current = open(GROUPS "/pids/pids.current", O_RDONLY | O_CLOEXEC);
  if (maximum < 0 || current < 0) fail("limit of processes");
  set_maximum(most);
  settings.crowded = is_crowded;
  settings.bar_forks = bar_forks;
  if (umount2(GROUPS, MNT_DETACH) < 0 && errno != EINVAL) fail("hide the control groups");
  drop_capability(CAP_SYS_ADMIN);
  drop_capability(CAP_SETPCAP);
  char *arguments[] = {argv[0], "init", argc > 3 ? argv[3] : "/.mcp-sandbox", "2147483647", NULL};
  container_main(4, arguments);
}
