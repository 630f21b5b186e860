/* From a plan, sent as data, to init inside a fresh set of namespaces. Python decides; this carries out. */
#include "guest.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

int setup_report = -1;
jmp_buf *setup_recovery;

/* Answers with the failed step, which `doctor` explains. Ends this process, unless it is the launcher. */
void setup_fail(const char *format, ...) {
  char step[256];
  int error = errno;
  va_list args;
  va_start(args, format);
  vsnprintf(step, sizeof step, format, args);
  va_end(args);
  if (setup_report >= 0) send_error(setup_report, 0, error, step);
  if (setup_recovery) longjmp(*setup_recovery, 1);
  _exit(70);
}

void write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) setup_fail("write %s", path);
  close(fd);
}

const char *plan_option(const struct plan *p, const char *key) {
  for (int i = 0; i + 1 < p->count && strcmp(p->token[i], "--"); i += 2)
    if (!strcmp(p->token[i], key)) return p->token[i + 1];
  return NULL;
}

long plan_number(const struct plan *p, const char *key, long missing) {
  const char *text = plan_option(p, key);
  return text ? strtol(text, NULL, 0) : missing;
}

int plan_steps(const struct plan *p) {
  int i = 0;
  while (i < p->count && strcmp(p->token[i], "--")) i++;
  return i + 1;
}

static void loopback_up(void) {
  struct ifreq request = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0) setup_fail("loopback");
  close(fd);
}

/* All but open files hold for init, too. Of those it has twice as many as commands: the kernel lets nobody pass any on
   while more are under way, between all processes of one user, than the sender may have open. */
static void limit_resources(const struct plan *p) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) < 0) setup_fail("limit of files");
  settings.open_files = files.rlim_max / 2;
  for (int i = 0; i + 1 < p->count && strcmp(p->token[i], "--"); i += 2) {
    int resource;
    unsigned long long value;
    if (strcmp(p->token[i], "rlimit") || sscanf(p->token[i + 1], "%d:%llu", &resource, &value) != 2) continue;
    struct rlimit limit = {value, value};
    if (resource == RLIMIT_NOFILE && value < settings.open_files) settings.open_files = value;
    else if (resource == RLIMIT_NOFILE) continue;
    else if (setrlimit((__rlimit_resource_t)resource, &limit) < 0) setup_fail("rlimit %d", resource);
  }
}

/* Counters of the kernel that all programs of this user share; a sandbox may take its part. */
static void limit_counters(const struct plan *p) {
  char path[64], name[32], value[16];
  for (int i = 0; i + 1 < p->count && strcmp(p->token[i], "--"); i += 2) {
    if (strcmp(p->token[i], "counter") || sscanf(p->token[i + 1], "%31[a-z_]:%15[0-9]", name, value) != 2) continue;
    snprintf(path, sizeof path, "/proc/sys/user/%s", name);
    int fd = open(path, O_WRONLY | O_CLOEXEC); /* a container may show no writable /proc/sys; there others set limits */
    if (fd >= 0) {
      (void)!write(fd, value, strlen(value));
      close(fd);
    }
  }
}

/* What init keeps it also gives to commands; the rest leaves the bounding set for good. */
static void drop_capabilities(uint64_t keep) {
  for (int c = 0; c < 64; c++)
    if (!(keep >> c & 1) && prctl(PR_CAPBSET_DROP, c, 0, 0, 0) < 0) break;
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{(uint32_t)keep, (uint32_t)keep, 0}, {(uint32_t)(keep >> 32), (uint32_t)(keep >> 32), 0}};
  if (syscall(SYS_capset, &head, data) < 0) setup_fail("capset");
}

void load_filter(int fd) {
  struct stat s;
  if (fstat(fd, &s) == 0 && s.st_size == 0) { /* what runs here brings its own */
    close(fd);
    return;
  }
  if (fstat(fd, &s) < 0 || s.st_size % 8 || !(settings.filter = malloc((size_t)s.st_size)) ||
      pread(fd, settings.filter, (size_t)s.st_size, 0) != s.st_size)
    setup_fail("seccomp program");
  settings.filter_length = (unsigned short)(s.st_size / (long)sizeof(struct sock_filter));
  close(fd);
}

enum { STEP_TREE, STEP_MKDIR, STEP_TOUCH, STEP_SYMLINK, STEP_MASK, STEP_READONLY, STEP_CHMOD };
struct step {
  int kind, tree;
  const char *target, *argument;
};
#define STEPS_MAX 256

int step_length(char **t) {
  if (!strcmp(t[0], "overlay")) return 2 + 4 + atoi(t[4]);
  if (!strcmp(t[0], "bind") || !strcmp(t[0], "share")) return 4;
  if (!strcmp(t[0], "fs")) return 5;
  return !strcmp(t[0], "symlink") || !strcmp(t[0], "chmod") ? 3 : 2;
}

/* Everything that needs the host's tree is opened here; `early` holds what the launcher opened already. */
static int prepare(const struct plan *p, struct step *steps, const int *early) {
  int n = 0;
  for (int i = plan_steps(p); i < p->count && n < STEPS_MAX; n++) {
    char **t = p->token + i;
    struct step s = {.tree = -1, .target = t[1]};
    i += step_length(t);
    if (!strcmp(t[0], "overlay")) {
      int used;
      s.tree = early ? *early++ : make_overlay(t + 2, &used);
    } else if (!strcmp(t[0], "share") && early) {
      s.tree = *early++;
    } else if (!strcmp(t[0], "bind") || !strcmp(t[0], "share")) {
      s.tree = clone_tree(t[2], (unsigned)strtoul(t[3], NULL, 0), -1);
    } else if (!strcmp(t[0], "fs")) {
      s.tree = make_filesystem(t[2], t[3], (unsigned)strtoul(t[4], NULL, 0));
    } else if (!strcmp(t[0], "symlink") || !strcmp(t[0], "chmod")) {
      s.kind = t[0][0] == 's' ? STEP_SYMLINK : STEP_CHMOD;
      s.argument = t[2];
    } else {
      s.kind = !strcmp(t[0], "mkdir") ? STEP_MKDIR : !strcmp(t[0], "touch") ? STEP_TOUCH
               : !strcmp(t[0], "mask") ? STEP_MASK : !strcmp(t[0], "readonly") ? STEP_READONLY : -1;
      errno = EINVAL;
      if (s.kind < 0) setup_fail("step %.40s", t[0]);
    }
    steps[n] = s;
  }
  return n;
}

/* Whoever had the sandbox before may have moved the directories above a mount point, or put something else in the place
   of one. Links to directories on the way are good enough: all that they lead to is inside. */
static void restore_mount_point(int tree, const char *target) {
  char path[PATH_MAX];
  struct stat s, mounted;
  if (fstat(tree, &mounted) < 0 || !S_ISDIR(mounted.st_mode)) return;
  snprintf(path, sizeof path, "%s", target);
  for (char *end = path + 1;; *end++ = '/') {
    end += strcspn(end, "/");
    bool last = !*end;
    *end = 0;
    if ((last ? lstat(path, &s) : stat(path, &s)) < 0 || !S_ISDIR(s.st_mode)) {
      unlink(path);
      if (mkdir(path, 0755) < 0) setup_fail("make %s", path);
    }
    if (last) return;
  }
}

static void carry_out(const struct step *s) {
  struct stat st;
  switch (s->kind) {
  case STEP_TREE:
    restore_mount_point(s->tree, s->target);
    attach(s->tree, s->target);
    break;
  case STEP_MKDIR:
    if (mkdir(s->target, 0755) < 0 && errno != EEXIST) setup_fail("mkdir %s", s->target);
    break;
  case STEP_TOUCH: {
    int fd = open(s->target, O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) setup_fail("touch %s", s->target);
    close(fd);
    break;
  }
  case STEP_SYMLINK:
    if (symlink(s->argument, s->target) < 0 && errno != EEXIST) setup_fail("symlink %s", s->target);
    break;
  case STEP_CHMOD:
    if (chmod(s->target, (mode_t)strtoul(s->argument, NULL, 8)) < 0) setup_fail("chmod %s", s->target);
    break;
  case STEP_MASK: /* what this kernel does not have needs no mask */
    if (lstat(s->target, &st) == 0) attach(clone_tree("/dev/null", 1 | 2 | 8, -1), s->target);
    break;
  case STEP_READONLY:
    if (lstat(s->target, &st) == 0) attach(clone_tree(s->target, 1 | 2 | 4 | 8, -1), s->target);
    break;
  }
}

void enter_sandbox(const struct plan *p, int *early, int early_count) {
  static struct step steps[STEPS_MAX];
  if (plan_option(p, "map") && setgroups(0, NULL) < 0) setup_fail("drop groups");
  if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) setup_fail("become root inside");
  limit_counters(p);
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) setup_fail("private mounts");
  int n = prepare(p, steps, early_count ? early : NULL);
  /* Any directory that everybody may enter will do: this namespace's view of it is gone a moment later. */
  attach(steps[0].tree, "/usr");
  if (chdir("/usr") < 0) setup_fail("enter the new root");
  if (syscall(SYS_pivot_root, ".", ".") < 0) setup_fail("pivot_root");
  if (umount2(".", MNT_DETACH) < 0) setup_fail("leave the old root");
  if (chdir("/") < 0) setup_fail("chdir");
  umask(0);
  for (int i = 1; i < n; i++) carry_out(&steps[i]);
  if (plan_number(p, "loopback", 1)) loopback_up();
  const char *name = plan_option(p, "hostname");
  if (name && sethostname(name, strlen(name)) < 0) setup_fail("hostname");
  limit_resources(p);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) setup_fail("no_new_privs");
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  drop_capabilities(strtoull(plan_option(p, "capabilities"), NULL, 16));
}
