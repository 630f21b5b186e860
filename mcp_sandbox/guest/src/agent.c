/* Init of a sandbox: one thread, one poll loop. It answers its peers, reaps, and ends with the last of them. */
#include "guest.h"

#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <time.h>

#define UNPROVEN_MAX 8
#define SEND_BUFFER (1 << 20)     /* answers that a peer may be behind */
#define FAREWELL_MS 1000          /* how long bridges have to pass on the last words */

struct settings settings = {.listener = -1, .first = -1};
struct connection peers[PEERS_MAX];
int peer_count;
static int freezer = -1;
static bool stands_still;         /* the freezer was told so */

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Which kernel this is: the host is told what the sandbox really runs on. */
static void put_kernel(struct message *m) {
  struct utsname name;
  if (uname(&name) < 0) return;
  put_string(m, name.release);
  put_string(m, name.version);
}

static void welcome(int fd) {
  int room = SEND_BUFFER;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  struct message m = {.length = 0};
  put_u32(&m, PROTOCOL_VERSION);
  put_kernel(&m);
  send_frame(fd, T_WELCOME, 0, m.data, m.length, -1);
}

void add_peer(int fd, pid_t pid) {
  if (peer_count == PEERS_MAX) {
    close(fd);
    return;
  }
  peers[peer_count++] = (struct connection){.fd = fd, .pid = pid};
  welcome(fd);
}

static int thaw(void) {
  freezer = -1;
  stands_still = false;
  continue_workers();
  return thaw_all();
}

bool is_frozen(void) { return freezer >= 0; }

static void drop_peer(int i) {
  int fd = peers[i].fd;
  forget_peer_of_kills(fd);
  end_jobs_of(fd);
  if (freezer == fd) {
    cancel_freeze(false);
    thaw();
  }
  shutdown(fd, SHUT_RDWR); /* a worker may hold a copy */
  close(fd);
  free(peers[i].partial);
  peers[i] = peers[--peer_count];
}

bool is_peer(pid_t pid) {
  for (int i = 0; i < peer_count; i++)
    if (peers[i].pid == pid) return true;
  return false;
}

/* A peer outside has no number in our pid namespace. In a container the bridge has one, but no parent: the engine put it
   here. Whoever was started inside has a parent inside, and gives no orders. */
static bool is_entitled(pid_t pid) { return pid == 0 || (settings.container && pid > 1 && parent_of(pid) == 0); }

/* Some kernels (gVisor's, until 2025) say of every peer that it is whoever asks. There the peer sends who it is, which
   every kernel checks. Programs inside may hold as many such connections as they like: the oldest one goes. */
static void add_unproven(int fd) {
  int on = 1, held = 0, oldest = -1;
  for (int i = peer_count - 1; i >= 0; i--)
    if (peers[i].unproven) {
      held++;
      oldest = i;
    }
  if (held == UNPROVEN_MAX) drop_peer(oldest);
  if (peer_count == PEERS_MAX || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0) close(fd);
  else peers[peer_count++] = (struct connection){.fd = fd, .unproven = true};
}

static bool prove(struct connection *peer) {
  char hello[sizeof(struct head)];
  struct iovec part = {hello, sizeof hello};
  union {
    char space[CMSG_SPACE(sizeof(struct ucred))];
    struct cmsghdr align;
  } control;
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  struct ucred who = {.pid = -1};
  int off = 0;
  if (recvmsg(peer->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0) return false;
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) memcpy(&who, CMSG_DATA(c), sizeof who);
  if (who.pid <= 1 || !is_entitled(who.pid)) return false;
  setsockopt(peer->fd, SOL_SOCKET, SO_PASSCRED, &off, sizeof off);
  peer->pid = who.pid;
  peer->unproven = false;
  welcome(peer->fd);
  return true;
}

static void accept_peer(void) {
  int fd = accept4(settings.listener, NULL, NULL, SOCK_CLOEXEC);
  struct ucred who;
  socklen_t size = sizeof who;
  if (fd < 0) return;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0) who.pid = -1;
  if (is_entitled(who.pid)) add_peer(fd, who.pid);
  else if (settings.container && who.pid == getpid()) add_unproven(fd);
  else close(fd);
}

void answer_count(int peer, uint32_t id, int count) {
  uint32_t number = (uint32_t)count;
  if (count < 0) send_error(peer, id, -count, "processes");
  else send_frame(peer, T_OK, id, &number, sizeof number, -1);
}

static void say_going(int i, uint32_t reason) {
  send_frame(peers[i].fd, T_GOING, 0, &reason, sizeof reason, -1);
  shutdown(peers[i].fd, SHUT_WR);
}

static void await_hangup(int i, long end) {
  struct pollfd gone = {peers[i].fd, 0, 0};
  /* Again and again: gVisor wakes nobody who waits for a hangup only. */
  while (peers[i].pid && !peers[i].detached && !(gone.revents & (POLLHUP | POLLERR)) && end > now_ms()) poll(&gone, 1, 5);
}

/* Bridges in our pid namespace die with us, so they get a moment to pass on what was said. Whoever asked for the end is
   told when all the others have been. */
static __attribute__((noreturn)) void leave(uint32_t reason, int asker, uint32_t id) {
  long end = now_ms() + FAREWELL_MS;
  for (int i = 0; i < peer_count; i++)
    if (peers[i].fd != asker) say_going(i, reason);
  for (int i = 0; i < peer_count; i++)
    if (peers[i].fd != asker) await_hangup(i, end);
  for (int i = 0; i < peer_count; i++)
    if (peers[i].fd == asker) {
      send_frame(asker, T_OK, id, NULL, 0, -1);
      say_going(i, reason);
      await_hangup(i, end);
    }
  _exit(0);
}

static void quiesce(int peer, uint32_t id) {
  reap();
  if (jobs || live_processes()) {
    send_error(peer, id, EBUSY, "quiesce");
    return;
  }
  leave(GOING_RESTART, peer, id);
}

/* Once everything stands still, only the peer that froze it is served: what others ask for would change the files that it
   copies. */
static void freeze(int peer, uint32_t id) {
  if (freezer >= 0 && (freezer != peer || !stands_still)) send_error(peer, id, EBUSY, "processes");
  else if (!begin_freeze(peer, id)) send_error(peer, id, ENOMEM, "processes");
  else freezer = peer;
}

/* Everything runs on if not all of it would stand still: some resume the others. */
void end_freeze(int peer, uint32_t id, int count) {
  if (count < 0) thaw();
  else stands_still = true;
  answer_count(peer, id, count);
}

static void thaw_request(int peer, uint32_t id) {
  int count = 0;
  if (freezer == peer) {
    cancel_freeze(true);
    count = thaw();
  }
  answer_count(peer, id, count);
}

static void signal_request(int peer, uint32_t id, struct cursor *c) {
  uint32_t target = take_u32(c), number = take_u32(c), scope = take_u32(c);
  struct job *j = find_job(peer, target);
  int error = c->bad || number > 64 ? EPROTO : 0;
  if (error) send_error(peer, id, error, "signal");
  else if (!j) answer_count(peer, id, 0);
  else if (scope == SCOPE_TREE && number == SIGKILL) {
    begin_kill(peer, id, j->pid, j->killed);
    j->killed = true;
  } else if (scope == SCOPE_TREE) answer_count(peer, id, signal_tree(j->pid, (int)number));
  else answer_count(peer, id, signal_group(j->pid, (int)number) < 0 ? -errno : 0);
}

static void dispatch(int peer, const struct head *head, struct cursor *c, int *fds, int count) {
  uint32_t id = head->id;
  switch (head->type) {
  case T_EXEC: exec_command(peer, id, c, fds, count); break;
  case T_SIGNAL: signal_request(peer, id, c); break;
  case T_OPEN: file_open(peer, id, c); break;
  case T_CREATE: file_create(peer, id, c); break;
  case T_COMMIT: file_commit(peer, id, c); break;
  case T_STAT: file_stat(peer, id, c); break;
  case T_REMOVE: file_remove(peer, id, c); break;
  case T_RENAME: file_rename(peer, id, c); break;
  case T_MKDIR: file_mkdir(peer, id, c); break;
  case T_PACK: count == 1 ? tree_pack(peer, id, c, fds[0]) : send_error(peer, id, EPROTO, "pack"); break;
  case T_UNPACK: count == 1 ? tree_unpack(peer, id, c, fds[0]) : send_error(peer, id, EPROTO, "unpack"); break;
  case T_LISTEN: net_listen(peer, id, c); break;
  case T_CONNECT: net_connect(peer, id, c); break;
  case T_LIVE: reap(); answer_count(peer, id, live_processes()); break;
  case T_FREEZE: freeze(peer, id); break;
  case T_THAW: thaw_request(peer, id); break;
  case T_QUIESCE: quiesce(peer, id); break;
  case T_SHUTDOWN: leave(take_u32(c) == GOING_RESTART ? GOING_RESTART : GOING_SHUTDOWN, peer, id);
  case T_PING: send_frame(peer, T_OK, id, NULL, 0, -1); break;
  case T_GATHER: gather_bridges(peer, id); break;
  case T_DETACH: detach_bridges(peer, id); break;
  case T_PARK: note_parked(peer, c); break;
  case T_PLUG: plug_bridge(peer, id, c, fds, count); break;
  case T_HELLO: break; /* said by whoever cannot know that we knew */
  default: send_error(peer, id, ENOSYS, "request");
  }
}

static bool serve_peer(struct connection *peer) {
  if (peer->unproven) return prove(peer);
  struct head head;
  int fds[FDS_MAX], count, got = receive_message(peer, &head, fds, &count);
  if (got <= 0) return got == 0;
  struct cursor c = {peer->partial, peer->partial + peer->length, false};
  dispatch(peer->fd, &head, &c, fds, count);
  for (int i = 0; i < count; i++) close(fds[i]);
  peer->length = 0;
  if (head.length > FRAME_MAX / 4) {
    free(peer->partial);
    peer->partial = NULL;
  }
  return true;
}

static bool is_served(int i) { return !stands_still || peers[i].fd == freezer; }

static void serve(void) {
  struct pollfd watched[PEERS_MAX + 2];
  sigset_t all, child;
  default_signals();
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  if (settings.container) sigaddset(&child, SIGTERM);
  int signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  if (proc_fd < 0) proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* now: later it may be something else */
  if (signals < 0 || proc_fd < 0 || null_fd < 0) setup_fail("start the agent");
  if (settings.first >= 0) add_peer(settings.first, settings.first_pid);
  bool more = false;
  for (long alone_since = now_ms();;) {
    int n = peer_count, wait = -1;
    if (n) alone_since = 0;
    else if (!alone_since) alone_since = now_ms();
    if (!n && (wait = settings.grace_ms - (int)(now_ms() - alone_since)) <= 0) _exit(0);
    watched[0] = (struct pollfd){signals, POLLIN, 0};
    watched[1] = (struct pollfd){settings.listener, POLLIN, 0};
    for (int i = 0; i < n; i++) watched[i + 2] = (struct pollfd){is_served(i) ? peers[i].fd : -1, POLLIN, 0};
    long step_us = standstill_wait_us(), wait_us = more ? 0 : wait * 1000L;
    long kept_us = settings.dead_kept_us ? settings.dead_kept_us() : -1;
    if (step_us >= 0 && (wait_us < 0 || step_us < wait_us)) wait_us = step_us;
    if (kept_us >= 0 && (wait_us < 0 || kept_us < wait_us)) wait_us = kept_us;
    struct timespec until = {wait_us / 1000000, wait_us % 1000000 * 1000};
    if (ppoll(watched, (nfds_t)n + 2, wait_us < 0 ? NULL : &until, NULL) < 0 && errno != EINTR) _exit(1);
    if (watched[0].revents || more || kept_us >= 0) {
      struct signalfd_siginfo info;
      while (read(signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGTERM && info.ssi_pid == 0 && info.ssi_code == SI_USER)
          leave(GOING_SHUTDOWN, -1, 0); /* the engine says so: a command can forge the number, with a code of its own */
      more = reap();
    }
    for (int i = n - 1; i >= 0; i--) /* backwards: dropping moves the last one down */
      if (watched[i + 2].revents && is_served(i) && !serve_peer(&peers[i])) drop_peer(i);
    if (n && !peer_count && settings.grace_ms <= 0) _exit(0); /* whoever comes now gets a sandbox without leftovers */
    if (watched[1].revents) accept_peer();
    step_standstills();
  }
}

void agent_main(void) {
  serve();
  _exit(0);
}

/* What the host decided, in files that only root may read. */
static void load_settings(const char *directory) {
  char path[128];
  snprintf(path, sizeof path, "%s/filter", directory);
  int filter = open(path, O_RDONLY | O_CLOEXEC);
  if (filter >= 0) load_filter(filter);
}

/* Entry point of a container: the same agent, with its socket in a directory of its own that only root may enter.
   init DIRECTORY GRACE_MS [UID GID OPEN_FILES PROCESSES PLACE...]: then commands belong to that user, and those directories. */
void container_main(int argc, char **argv) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *directory = argc > 2 ? argv[2] : "/.mcp-sandbox";
  settings.grace_ms = argc > 3 ? atoi(argv[3]) : 60000;
  settings.container = true;
  snprintf(address.sun_path, sizeof address.sun_path, "%s/agent.sock", directory);
  mkdir(directory, 0700);
  unlink(address.sun_path);
  settings.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (settings.listener < 0 || bind(settings.listener, (struct sockaddr *)&address, sizeof address) < 0 ||
      listen(settings.listener, PEERS_MAX) < 0) {
    dprintf(2, "mcp-sandbox guest: %s: %s\n", address.sun_path, strerror(errno));
    _exit(70);
  }
  load_settings(directory);
  open_counters();
  take_times(directory);
  if (argc > 6) {
    uid_t uid = (uid_t)atol(argv[4]);
    gid_t gid = (gid_t)atol(argv[5]);
    limit_open_files((rlim_t)atol(argv[6]));
    limit_processes(argc > 7 ? (rlim_t)atol(argv[7]) : 0);
    for (int i = 8; i < argc; i++) give_place(argv[i], uid, gid);
    serve_user(uid, gid);
  }
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  umask(0);
  set_times();
  serve();
  _exit(0);
}

/* Entry point where the engine hands us one stream: a bridge of our own sits between it and the agent. */
void stdio_main(int argc, char **argv) {
  int ends[2];
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  umask(0);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0 || (settings.first_pid = fork()) < 0) _exit(70);
  if (settings.first_pid == 0) {
    close(ends[0]);
    bridge_serve(ends[1], argc > 2 ? atoi(argv[2]) : 60);
  }
  close(ends[1]);
  settings.container = true;
  open_counters();
  settings.first = ends[0];
  for (int fd = 0, null = open("/dev/null", O_RDWR | O_CLOEXEC); fd < 2; fd++) dup2(null, fd);
  serve();
  _exit(0);
}
