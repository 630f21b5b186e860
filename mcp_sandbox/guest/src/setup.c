/* From a plan, sent as data, to init inside a fresh set of namespaces. Python decides; this carries out. */
#include "guest.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define TOKENS_MAX 4096
#define PLAN_MAX (256u << 10)

int setup_report = -1;
static jmp_buf launcher; /* where the launcher goes on after a failed step of its own */
static bool in_launcher;

/* Answers with the failed step, which `doctor` explains. Ends this process, unless it is the launcher. */
void setup_fail(const char *format, ...) {
  char step[256];
  int error = errno;
  va_list args;
  va_start(args, format);
  vsnprintf(step, sizeof step, format, args);
  va_end(args);
  if (setup_report >= 0) send_error(setup_report, 0, error, step);
  if (in_launcher) longjmp(launcher, 1);
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

static long plan_number(const struct plan *p, const char *key, long missing) {
  const char *text = plan_option(p, key);
  return text ? strtol(text, NULL, 0) : missing;
}

static int first_step(const struct plan *p) {
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

static void limit_resources(const struct plan *p) {
  for (int i = 0; i + 1 < p->count && strcmp(p->token[i], "--"); i += 2) {
    int resource;
    unsigned long long value;
    if (strcmp(p->token[i], "rlimit") || sscanf(p->token[i + 1], "%d:%llu", &resource, &value) != 2) continue;
    struct rlimit limit = {value, value};
    if (setrlimit(resource, &limit) < 0) setup_fail("rlimit %d", resource);
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

static void load_filter(int fd) {
  struct stat s;
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

/* Everything that needs the host's tree is opened here; `early` holds overlays that the launcher made already. */
static int prepare(const struct plan *p, struct step *steps, const int *early) {
  int n = 0;
  for (int i = first_step(p); i < p->count && n < STEPS_MAX; n++) {
    char **t = p->token + i;
    struct step s = {.tree = -1, .target = t[1]};
    if (!strcmp(t[0], "overlay")) {
      int used = atoi(t[4]) + 4;
      s.tree = early ? *early++ : make_overlay(t + 2, &used);
      i += 2 + used;
    } else if (!strcmp(t[0], "bind")) {
      s.tree = clone_tree(t[2], (unsigned)strtoul(t[3], NULL, 0), -1);
      i += 4;
    } else if (!strcmp(t[0], "fs")) {
      s.tree = make_filesystem(t[2], t[3], (unsigned)strtoul(t[4], NULL, 0));
      i += 5;
    } else if (!strcmp(t[0], "symlink") || !strcmp(t[0], "chmod")) {
      s.kind = t[0][0] == 's' ? STEP_SYMLINK : STEP_CHMOD;
      s.argument = t[2];
      i += 3;
    } else {
      s.kind = !strcmp(t[0], "mkdir") ? STEP_MKDIR : !strcmp(t[0], "touch") ? STEP_TOUCH
               : !strcmp(t[0], "mask") ? STEP_MASK : !strcmp(t[0], "readonly") ? STEP_READONLY : -1;
      errno = EINVAL;
      if (s.kind < 0) setup_fail("step %.40s", t[0]);
      i += 2;
    }
    steps[n] = s;
  }
  return n;
}

static void carry_out(const struct step *s) {
  struct stat st;
  switch (s->kind) {
  case STEP_TREE:
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
  if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) setup_fail("become root inside");
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

/* ------------------------------------------------------------------------------------------------ the zygote */

static int identity_namespace = -1;
static int held[16], held_count; /* descriptors of the launcher's own that a failed step must not leave open */

static int hold(int fd) { return held[held_count++] = fd; }

static void release_held(void) {
  while (held_count) close(held[--held_count]);
}

static void split(struct plan *p, char *data, size_t length) {
  static char *tokens[TOKENS_MAX + 8];
  p->token = tokens;
  p->count = 0;
  for (size_t at = 0; at < length && p->count < TOKENS_MAX; at += strlen(data + at) + 1) tokens[p->count++] = data + at;
  for (int i = 0; i < 8; i++) tokens[p->count + i] = "";
}

static void map_ids(pid_t pid, const char *uids, const char *gids) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
  write_file(path, uids);
  snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
  write_file(path, gids);
}

/* A user namespace that only serves as a map for mounts. */
static void open_identity(const char *map) {
  int ready[2];
  char path[64];
  if (pipe2(ready, O_CLOEXEC) < 0) setup_fail("pipe");
  hold(ready[0]);
  hold(ready[1]);
  pid_t pid = fork();
  if (pid == 0) {
    unsigned char error = unshare(CLONE_NEWUSER) == 0 ? 0 : (unsigned char)errno;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a step that fails later leaves it behind */
    if (write(ready[1], &error, 1) != 1 || error) _exit(1);
    pause();
    _exit(0);
  }
  unsigned char error = (unsigned char)errno;
  if (pid < 0 || read(ready[0], &error, 1) != 1 || error) {
    errno = error;
    setup_fail("unshare user namespace");
  }
  map_ids(pid, map, map);
  snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
  identity_namespace = open(path, O_RDONLY | O_CLOEXEC);
  kill(pid, SIGKILL);
  release_held();
  if (identity_namespace < 0) setup_fail("open user namespace");
}

static void child(const struct plan *p, int *early, int early_count, const int *sync) {
  char byte, map[64];
  in_launcher = false;
  setup_report = p->fds[0];
  close(sync[1]); /* else the end of the launcher would not end the wait below */
  signal(SIGCHLD, SIG_DFL);
  if (plan_option(p, "map")) {
    if (read(sync[0], &byte, 1) != 1) _exit(1); /* the launcher writes the maps */
  } else {
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %ld 1", plan_number(p, "uid", 0));
    write_file("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %ld 1", plan_number(p, "gid", 0));
    write_file("/proc/self/gid_map", map);
  }
  close(sync[0]);
  close(3); /* the zygote's own channel */
  enter_sandbox(p, early, early_count);
  load_filter(p->fds[2]);
  settings.first = p->fds[0];
  settings.listener = p->fds[1];
  settings.grace_ms = (int)plan_number(p, "grace_ms", 0);
  agent_main();
}

static void start_sandbox(int channel, const struct plan *p) {
  int early[8], early_count = 0, pipes[2], pidfd = -1;
  const char *map = plan_option(p, "map");
  if (map) /* with a range of ids the overlays belong to the initial user namespace: only there may lowers be idmapped */
    for (int i = first_step(p); i < p->count && early_count < 8;) {
      if (strcmp(p->token[i], "overlay")) break;
      int used;
      early[early_count++] = hold(make_overlay(p->token + i + 2, &used));
      i += 2 + used;
    }
  if (pipe2(pipes, O_CLOEXEC) < 0) setup_fail("pipe");
  hold(pipes[0]);
  hold(pipes[1]);
  unsigned long flags = (unsigned long)plan_number(p, "namespaces", 0);
  pid_t pid = (pid_t)syscall(SYS_clone, flags | CLONE_PIDFD | SIGCHLD, 0, &pidfd, 0, 0);
  if (pid < 0) setup_fail("clone namespaces");
  if (pid == 0) child(p, early, early_count, pipes);
  hold(pidfd);
  if (map) {
    map_ids(pid, map, map);
    if (write(pipes[1], "x", 1) != 1) setup_fail("start");
  }
  uint32_t number = (uint32_t)pid;
  send_frame(channel, T_STARTED, 0, &number, sizeof number, pidfd);
  release_held();
}

static void close_descriptors(struct plan *p) {
  for (int i = 0; i < FDS_MAX; i++)
    if (p->fds[i] >= 0) close(p->fds[i]);
}

/* One request is one datagram: a letter, then tokens. A failed step is answered, and the next request served. */
void zygote_main(void) {
  const int channel = 3;
  static char data[PLAN_MAX + 1];
  static struct plan p;
  signal(SIGCHLD, SIG_IGN);
  in_launcher = true;
  for (;;) {
    if (setjmp(launcher)) {
      release_held();
      close_descriptors(&p);
      continue;
    }
    p = (struct plan){.fds = {-1, -1, -1, -1}};
    struct iovec part = {data, PLAN_MAX};
    union {
      char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
      struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t n = recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
    if (n <= 0) _exit(0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    int count = c && c->cmsg_type == SCM_RIGHTS ? (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
    if (count) memcpy(p.fds, CMSG_DATA(c), sizeof(int) * (size_t)count);
    data[n] = 0;
    split(&p, data + 1, (size_t)n - 1);
    setup_report = channel;
    switch (data[0]) {
    case 'D': /* every later path is relative to it */
      if (chdir(p.token[0]) < 0) setup_fail("enter the store");
      send_frame(channel, T_OK, 0, NULL, 0, -1);
      break;
    case 'N': /* namespace of mounts of our own, and the map of ids: once, at the start */
      if (unshare(CLONE_NEWNS) < 0) setup_fail("unshare mounts");
      if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) setup_fail("slave mounts");
      open_identity(p.token[0]);
      send_frame(channel, T_OK, 0, NULL, 0, -1);
      break;
    case 'M': /* source, target */
      attach(clone_tree(p.token[0], 1, identity_namespace), p.token[1]);
      send_frame(channel, T_OK, 0, NULL, 0, -1);
      break;
    case 'U':
      umount2(p.token[0], MNT_DETACH);
      break;
    case 'S':
      if (count == 3) start_sandbox(channel, &p);
      break;
    }
    close_descriptors(&p);
  }
}
