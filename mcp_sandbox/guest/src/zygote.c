/* The launcher: it carries out plans, one after the other, each in a child with fresh namespaces. */
#include "guest.h"

#include <linux/sched.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define TOKENS_MAX 4096
#define PLAN_MAX (256u << 10)
#define FILES_MAX (1u << 20) /* fs.nr_open, unless somebody changed it */
#define HIERARCHIES_MAX 3
#define EARLY_MAX 10

/* Where a sandbox is counted: a directory of cgroup v2, or a file `tasks` per hierarchy of v1. */
struct groups {
  int directory, tasks[HIERARCHIES_MAX], count;
};

static jmp_buf again; /* where it goes on after a failed step of its own */
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

static struct groups open_groups(const struct plan *p) {
  struct groups g = {.directory = -1};
  for (int i = 0; i + 1 < p->count && strcmp(p->token[i], "--"); i += 2) {
    const char *path = p->token[i + 1];
    int fd = -1;
    if (!strcmp(p->token[i], "cgroup") && g.directory < 0)
      g.directory = fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    else if (!strcmp(p->token[i], "tasks") && g.count < HIERARCHIES_MAX)
      g.tasks[g.count++] = fd = open(path, O_WRONLY | O_CLOEXEC);
    else continue;
    if (fd < 0) setup_fail("open the control group");
    hold(fd);
  }
  return g;
}

/* The one thread of a process that moves itself: nobody has to wait for a grace period, as who moves others does. The
   view of the tree begins where we are, so it is made afterwards. */
static void join_groups(const struct plan *p, const struct groups *g) {
  for (int i = 0; i < g->count; i++) {
    if (write(g->tasks[i], "0", 1) != 1) setup_fail("join the control group");
    close(g->tasks[i]);
  }
  if (g->directory >= 0) close(g->directory);
  bool joined = g->count || g->directory >= 0;
  if (joined && (plan_number(p, "namespaces", 0) & CLONE_NEWCGROUP) && unshare(CLONE_NEWCGROUP) < 0)
    setup_fail("unshare control groups");
}

static void child(const struct plan *p, int *early, int early_count, const int *sync, const struct groups *groups) {
  char byte, map[64];
  setup_recovery = NULL;
  setup_report = p->fds[0];
  close(sync[1]); /* else the end of the launcher would not end the wait below */
  signal(SIGCHLD, SIG_DFL);
  join_groups(p, groups);
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

/* The kernel counts what the users of a user namespace have, all of them together, for whoever made it. So that it can
   hold a sandbox to its limits whatever ids its programs take, one that has a range of them is made by an id that nobody
   else has; the capabilities stay. */
static pid_t clone_namespaces(const struct plan *p, int *pidfd, const struct groups *g) {
  unsigned long flags = (unsigned long)plan_number(p, "namespaces", 0) | CLONE_PIDFD;
  if (g->count || g->directory >= 0) flags &= ~(unsigned long)CLONE_NEWCGROUP;
  struct clone_args args = {.flags = flags | CLONE_INTO_CGROUP, .pidfd = (uintptr_t)pidfd, .exit_signal = SIGCHLD,
                            .cgroup = (uint64_t)g->directory};
  uid_t owner = (uid_t)plan_number(p, "owner", 0);
  struct rlimit usual = {0, 0};
  if (owner) {
    if (getrlimit(RLIMIT_NPROC, &usual) < 0) setup_fail("limit of processes");
    rlim_t processes = (rlim_t)plan_number(p, "processes", LONG_MAX);
    struct rlimit limit = {processes < usual.rlim_max ? processes : usual.rlim_max, usual.rlim_max};
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0) setup_fail("keep capabilities");
    if (setrlimit(RLIMIT_NPROC, &limit) < 0 || setresuid(owner, owner, 0) < 0) setup_fail("owner of namespaces");
  }
  pid_t pid = (pid_t)(g->directory >= 0 ? syscall(SYS_clone3, &args, sizeof args)
                                        : syscall(SYS_clone, flags | SIGCHLD, 0, pidfd, 0, 0));
  int error = errno;
  if (owner && pid != 0 && (setresuid(0, 0, 0) < 0 || setrlimit(RLIMIT_NPROC, &usual) < 0)) _exit(70);
  errno = error;
  return pid;
}

/* With a range of ids the overlays belong to the initial user namespace: only there may lowers be idmapped. And only we
   may enter the store. */
static int open_early(const struct plan *p, int *early) {
  int n = 0;
  for (int i = plan_steps(p); i < p->count && n < EARLY_MAX; i += step_length(p->token + i)) {
    char **t = p->token + i;
    int used;
    if (!strcmp(t[0], "overlay")) early[n++] = hold(make_overlay(t + 2, &used));
    else if (!strcmp(t[0], "share")) early[n++] = hold(clone_tree(t[2], (unsigned)strtoul(t[3], NULL, 0), -1));
  }
  return n;
}

static void start_sandbox(int channel, const struct plan *p) {
  int early[EARLY_MAX], early_count = 0, pipes[2], pidfd = -1;
  const char *map = plan_option(p, "map");
  if (map) early_count = open_early(p, early);
  if (pipe2(pipes, O_CLOEXEC) < 0) setup_fail("pipe");
  hold(pipes[0]);
  hold(pipes[1]);
  struct groups groups = open_groups(p);
  pid_t pid = clone_namespaces(p, &pidfd, &groups);
  if (pid < 0) setup_fail("clone namespaces");
  if (pid == 0) child(p, early, early_count, pipes, &groups);
  hold(pidfd);
  if (map) {
    map_ids(pid, map, map);
    if (write(pipes[1], "x", 1) != 1) setup_fail("start");
  }
  uint32_t number = (uint32_t)pid;
  send_frame(channel, T_STARTED, 0, &number, sizeof number, pidfd);
  release_held();
}

/* Every init has as many files as this machine lets it; root may ask for more than it was given. */
static void raise_file_limit(void) {
  struct rlimit files = {FILES_MAX, FILES_MAX};
  if (setrlimit(RLIMIT_NOFILE, &files) == 0 || getrlimit(RLIMIT_NOFILE, &files) < 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

/* When the machine runs out of memory, the kernel takes what runs in sandboxes before what the user runs. */
static void offer_memory(void) {
  int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!write(fd, "500", 3);
  close(fd);
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
  raise_file_limit();
  offer_memory();
  setup_recovery = &again;
  for (;;) {
    if (setjmp(again)) {
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
