/* The byte-stream carrier: the frames of ../PROTOCOL.md on standard input and output, for engines whose sandboxes are
   reached over one stream. To the agent the bridge is a peer like any other; the descriptors stay here, and what passes
   through them travels as DATA under credit. */
#include "bridge.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <time.h>

#define LISTENERS_MAX 64
#define FAREWELL_MS 1000          /* how long the last frames may take */
#define STARTING_MS 5000          /* how long the agent may take until it listens */

static int agent_fd;
static struct {
  uint32_t id;
  int fd;
} listeners[LISTENERS_MAX];
static int listener_count;
static uint32_t next_accepted;
static long heard_at;             /* when the host last said anything */

void bridge_die(const char *why) {
  dprintf(2, "mcp-sandbox bridge: %s\n", why);
  _exit(1);
}

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void farewell(void) {
  for (long end = now_ms() + FAREWELL_MS; !queue_empty() && now_ms() < end;) {
    struct pollfd room = {1, POLLOUT, 0};
    poll(&room, 1, (int)(end - now_ms()));
    flush_queue();
  }
  _exit(0);
}

/* ------------------------------------------------------------------------------------------------ from the agent */

/* What a passed descriptor is good for shows in itself. */
static bool adopt(uint32_t id, int fd) {
  int listening = 0, mode = fcntl(fd, F_GETFL) & O_ACCMODE;
  socklen_t size = sizeof listening;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening) {
    if (listener_count < LISTENERS_MAX) {
      listeners[listener_count].id = id;
      listeners[listener_count++].fd = fd;
      return true;
    }
    close(fd);
    return false;
  }
  if (mode != O_RDWR) return open_channel(id, mode == O_WRONLY ? TO_GUEST : STDOUT, fd);
  bool both = open_channel(id, TO_GUEST, fcntl(fd, F_DUPFD_CLOEXEC, 3));
  return open_channel(id, STDOUT, fd) && both;
}

static void exit_to_host(uint32_t id, const char *payload, size_t length) {
  struct message m = {.length = length};
  if (length > 64) bridge_die("the agent sent a strange end");
  memcpy(m.data, payload, length);
  put_u64(&m, before_exit(id, STDOUT));
  put_u64(&m, before_exit(id, STDERR));
  to_host(T_EXIT, 0, id, m.data, m.length);
  for (uint16_t number = STDOUT; number <= STDERR; number++)
    if (find_channel(id, number)) add_credit(find_channel(id, number), 0);
}

static void from_agent(void) {
  static char frame[sizeof(struct head) + FRAME_MAX];
  struct head head;
  struct iovec part = {frame, sizeof frame};
  union {
    char space[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  ssize_t n = recvmsg(agent_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return; /* what it said before is still there */
  if (n <= 0) farewell();
  if (n < (ssize_t)sizeof head) bridge_die("the agent sent half a frame");
  memcpy(&head, frame, sizeof head);
  if (head.length != (size_t)n - sizeof head) bridge_die("the agent sent a strange frame");
  const char *payload = frame + sizeof head;
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (c && c->cmsg_type == SCM_RIGHTS) {
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (head.type == T_PLUG) {
      take_stream(head.id, fd);
      heard_at = now_ms();
      return;
    }
    if (!adopt(head.id, fd)) {
      drop_channels(head.id);
      error_to_host(head.id, EMFILE, "channels");
      return;
    }
  }
  uint32_t reason = head.type == T_GOING && head.length == sizeof reason ? *(const uint32_t *)payload : 0;
  if (reason == GOING_DETACHED) {
    detach();
    return;
  }
  if (head.type == T_EXIT) {
    exit_to_host(head.id, payload, head.length);
    return;
  }
  if (head.type == T_ERROR) drop_channels(head.id);
  to_host(head.type, 0, head.id, payload, head.length);
}

/* ------------------------------------------------------------------------------------------------ from the host */

/* While the agent takes no more, what it says is taken: each could else wait for the other. */
static bool to_agent(const struct head *head, const char *payload, const int *fds, int count) {
  struct iovec part[2] = {{(void *)head, sizeof *head}, {(void *)payload, head->length}};
  union {
    char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
    struct cmsghdr align;
  } control;
  struct msghdr message = {.msg_iov = part, .msg_iovlen = 2};
  if (count) {
    message.msg_control = control.space;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)count);
  }
  while (sendmsg(agent_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == ETOOMANYREFS) return false;
    if (errno != EAGAIN && errno != EINTR) return true; /* it is gone: its last words, then its end are about to be read */
    struct pollfd agent = {agent_fd, POLLIN | POLLOUT, 0};
    if (poll(&agent, 1, -1) > 0 && (agent.revents & POLLIN)) from_agent();
  }
  return true;
}

static void resize(const struct head *head, struct cursor c) {
  uint32_t target = take_u32(&c), size = take_u32(&c);
  struct winsize w = {.ws_row = (uint16_t)(size >> 16), .ws_col = (uint16_t)size};
  struct channel *terminal = find_channel(target, STDOUT);
  if (c.bad || !terminal || ioctl(terminal->fd, TIOCSWINSZ, &w) < 0) error_to_host(head->id, EINVAL, "resize");
  else to_host(T_OK, 0, head->id, NULL, 0);
}

static bool close_listener(uint32_t id) {
  for (int i = 0; i < listener_count; i++) {
    if (listeners[i].id != id) continue;
    close(listeners[i].fd);
    listeners[i] = listeners[--listener_count];
    return true;
  }
  return false;
}

static bool channel_frame(const struct head *head, const char *payload, struct cursor c) {
  struct channel *channel = find_channel(head->id, head->channel);
  switch (head->type) {
  case T_DATA: data_from_host(head->id, head->channel, payload, head->length); return true;
  case T_CREDIT:
    if (channel) add_credit(channel, take_u32(&c));
    return true;
  case T_CLOSE:
    if (channel) close_from_host(channel);
    else close_listener(head->id);
    return true;
  default: return false;
  }
}

/* The message under way. Its pipes are made with its first frame, so that it is refused whole or not at all. */
static struct {
  bool under_way, refused;
  int ours[3], theirs[3], count;
  uint16_t number[3];
} request;

static void add_pipe(uint16_t number) {
  int ends[2];
  if (request.refused || channel_count + request.count >= CHANNELS_MAX || pipe2(ends, O_CLOEXEC) < 0) {
    request.refused = true;
    return;
  }
  bool out = number != TO_GUEST;
  request.ours[request.count] = ends[!out];
  request.theirs[request.count] = ends[out];
  request.number[request.count++] = number;
}

static void begin_request(uint8_t type, uint32_t flags) {
  request.refused = false;
  request.count = 0;
  if (type == T_EXEC && !(flags & EXEC_PTY)) {
    if (flags & EXEC_STDIN) add_pipe(TO_GUEST);
    add_pipe(STDOUT);
    add_pipe(STDERR);
  } else if (type == T_PACK) {
    add_pipe(STDOUT);
  } else if (type == T_UNPACK) {
    add_pipe(TO_GUEST);
  }
}

static void from_host(const struct head *head, const char *payload) {
  struct cursor c = {payload, payload + head->length, false};
  if (channel_frame(head, payload, c)) return;
  if (head->type == T_PARK) {
    park(agent_fd, take_u32(&c));
    return;
  }
  if (head->type == T_RESIZE) {
    resize(head, c);
    return;
  }
  if (!request.under_way) begin_request(head->type, take_u32(&c));
  request.under_way = head->flags & FLAG_MORE;
  if (request.under_way) {
    if (!request.refused) to_agent(head, payload, NULL, 0);
    return;
  }
  if (request.refused) {
    error_to_host(head->id, EMFILE, "channels");
    for (int i = 0; i < request.count; i++) close(request.ours[i]);
  } else {
    for (int i = 0; i < request.count; i++) open_channel(head->id, request.number[i], request.ours[i]);
    if (!to_agent(head, payload, request.theirs, request.count)) {
      drop_channels(head->id);
      error_to_host(head->id, EMFILE, "descriptors");
    }
  }
  for (int i = 0; i < request.count; i++) close(request.theirs[i]);
}

static void accept_connection(int i) {
  int fd = accept4(listeners[i].fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  uint32_t id = next_accepted++ | 0x80000000u;
  to_host(T_ACCEPTED, 0, id, &listeners[i].id, sizeof listeners[i].id);
  open_channel(id, TO_GUEST, fcntl(fd, F_DUPFD_CLOEXEC, 3));
  open_channel(id, STDOUT, fd);
}

static void read_host(void) {
  static char input[sizeof(struct head) + FRAME_MAX];
  static size_t have;
  ssize_t n = read(0, input + have, sizeof input - have);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) _exit(0); /* our end closes, and the agent ends what we started */
  heard_at = now_ms();
  have += (size_t)n;
  size_t at = 0;
  while (!parked && have - at >= sizeof(struct head)) {
    struct head head;
    memcpy(&head, input + at, sizeof head);
    if (head.length > FRAME_MAX) bridge_die("a frame is too long");
    if (have - at < sizeof head + head.length) break;
    from_host(&head, input + at + sizeof head);
    at += sizeof head + head.length;
  }
  memmove(input, input + at, have - at);
  have -= at;
}

/* ------------------------------------------------------------------------------------------------ the loop */

void bridge_serve(int agent, int timeout_s) {
  int parked_s = 0;
  static struct pollfd watched[CHANNELS_MAX + LISTENERS_MAX + 3];
  struct rlimit files;
  agent_fd = agent;
  signal(SIGPIPE, SIG_IGN);
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
  fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
  heard_at = now_ms();
  for (;;) {
    int n = 0, first = 3 + listener_count, open = channel_count;
    bool room = channel_count + 2 <= CHANNELS_MAX;
    watched[n++] = (struct pollfd){parked ? -1 : 0, queue_full() ? 0 : POLLIN, 0}; /* its end is told in any case */
    watched[n++] = (struct pollfd){agent_fd, POLLIN, 0};
    watched[n++] = (struct pollfd){parked ? -1 : 1, queue_empty() ? 0 : POLLOUT, 0};
    for (int i = 0; i < listener_count; i++) watched[n++] = (struct pollfd){room ? listeners[i].fd : -1, POLLIN, 0};
    for (int i = 0; i < open; i++)
      watched[n++] = (struct pollfd){wants_poll(&channels[i]) ? channels[i].fd : -1,
                                     channels[i].number == TO_GUEST ? POLLOUT : POLLIN, 0};
    long left = heard_at + timeout_s * 1000L - now_ms();
    if (left <= 0 && !parked) bridge_die("no heartbeat from the host");
    int ready = poll(watched, (nfds_t)n, detached ? -1 : parked ? 1000 : (int)left);
    if (ready < 0 && errno != EINTR) bridge_die(strerror(errno));
    /* While we are written down the clock may jump. */
    parked_s = parked ? parked_s + (ready == 0) : 0;
    if (parked_s > timeout_s && !detached) bridge_die("no stream from the host");
    if ((watched[2].revents & (POLLERR | POLLHUP)) || (queue_full() && (watched[0].revents & (POLLERR | POLLHUP))))
      _exit(0); /* the host is gone */
    for (int i = open - 1; i >= 0; i--) /* backwards: closing moves the last one down */
      if (watched[first + i].revents) pump(&channels[i]);
    for (int i = listener_count - 1; i >= 0; i--)
      if (watched[3 + i].revents) accept_connection(i);
    if (watched[1].revents) from_agent();
    if (watched[0].revents && !queue_full()) read_host();
    if (!parked) flush_queue();
  }
}

/* For an agent that cannot see who connected; any other one knows already. */
static void say_who(int agent) {
  struct head hello = {.type = T_HELLO};
  struct ucred who = {getpid(), getuid(), getgid()};
  struct iovec part = {&hello, sizeof hello};
  union {
    char space[CMSG_SPACE(sizeof who)];
    struct cmsghdr align;
  } control = {.space = {0}};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_CREDENTIALS, .cmsg_len = CMSG_LEN(sizeof who)};
  memcpy(CMSG_DATA(c), &who, sizeof who);
  if (sendmsg(agent, &message, MSG_NOSIGNAL) < 0) bridge_die(strerror(errno));
}

static int connect_agent(const char *directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s/agent.sock", directory);
  int agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (agent < 0) bridge_die(strerror(errno));
  for (long end = now_ms() + STARTING_MS; connect(agent, (struct sockaddr *)&address, sizeof address) < 0;) {
    if ((errno != ENOENT && errno != ECONNREFUSED) || now_ms() > end) bridge_die(strerror(errno));
    poll(NULL, 0, 2); /* the engine says that a container has started before its init has */
  }
  say_who(agent);
  return agent;
}

void bridge_main(const char *directory, int timeout_s, uid_t uid, gid_t gid) {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* nobody inside may look into the stream, or borrow the connection */
  int agent = connect_agent(directory);
  if (uid) make_files_of(uid, gid); /* the pipes of a command are its user's, who opens them again by name */
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  bridge_serve(agent, timeout_s);
}

/* Our own standard streams become those of the bridge that waits under `name`. */
void plug_main(const char *directory, uint32_t name) {
  struct head asked = {.length = sizeof name, .id = 1, .type = T_PLUG}, answer;
  int fds[2] = {0, 1}, agent = connect_agent(directory);
  agent_fd = agent;
  if (recv(agent, &answer, sizeof answer, 0) < (ssize_t)sizeof answer || answer.type != T_WELCOME) bridge_die("not let in");
  to_agent(&asked, (const char *)&name, fds, 2);
  if (recv(agent, &answer, sizeof answer, 0) < (ssize_t)sizeof answer || answer.type != T_OK) bridge_die("nobody waits");
  _exit(0);
}
