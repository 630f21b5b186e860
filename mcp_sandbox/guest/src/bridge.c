/* The byte-stream carrier: the frames of ../PROTOCOL.md on standard input and output, for engines whose sandboxes are
   reached over one stream. To the agent the bridge is a peer like any other; the descriptors stay here, and what passes
   through them travels as DATA under credit. */
#include "guest.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <time.h>

#define CHANNELS_MAX 1024
#define WINDOW (256u << 10)       /* bytes that a sender may be ahead of the receiver's credit */
#define QUEUE_HIGH (1u << 20)     /* outgoing bytes beyond which no channel is read */
enum { TO_GUEST = 0, STDOUT = 1, STDERR = 2 };

struct channel {
  uint32_t id, window;            /* credit left, for data to the host */
  uint16_t number;
  int fd;
  bool closing;                   /* the host sent its end; close once flushed */
  char *buffer;                   /* data to the guest that the descriptor did not take yet */
  size_t length, start;
  size_t before_exit;             /* bytes that were in the pipe when the process ended */
};
struct exit_notice {
  uint32_t id;
  char payload[64];
  size_t length;
  struct exit_notice *next;
};
static struct channel channels[CHANNELS_MAX];
static int channel_count, agent_fd;
static struct exit_notice *notices;
static char *queue;
static size_t queue_length, queue_start, queue_size;
static time_t heard_at; /* when the host last said anything */
static uint32_t next_accepted = 0x80000000u;

static void die(const char *why) {
  dprintf(2, "mcp-sandbox bridge: %s\n", why);
  _exit(1);
}

static void to_host(uint8_t type, uint8_t flags, uint16_t number, uint32_t id, const void *data, size_t length) {
  struct head head = {.length = (uint32_t)length, .id = id, .type = type, .flags = flags, .channel = number};
  size_t need = sizeof head + length;
  if (queue_start && queue_start == queue_length) queue_start = queue_length = 0;
  if (queue_length + need > queue_size) {
    memmove(queue, queue + queue_start, queue_length - queue_start);
    queue_length -= queue_start;
    queue_start = 0;
    while (queue_length + need > queue_size) queue_size = queue_size ? queue_size * 2 : 1 << 18;
    if (!(queue = realloc(queue, queue_size))) die("out of memory");
  }
  memcpy(queue + queue_length, &head, sizeof head);
  memcpy(queue + queue_length + sizeof head, data, length);
  queue_length += need;
}

static void flush_queue(void) {
  while (queue_start < queue_length) {
    ssize_t n = write(1, queue + queue_start, queue_length - queue_start);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(0); /* the host is gone */
    queue_start += (size_t)n;
  }
}

static struct channel *find_channel(uint32_t id, uint16_t number) {
  for (int i = 0; i < channel_count; i++)
    if (channels[i].id == id && channels[i].number == number) return &channels[i];
  return NULL;
}

static void open_channel(uint32_t id, uint16_t number, int fd) {
  if (channel_count == CHANNELS_MAX) {
    close(fd);
    return;
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  channels[channel_count++] = (struct channel){.id = id, .number = number, .fd = fd, .window = WINDOW};
}

static void close_channel(struct channel *c, uint32_t error, bool tell) {
  if (tell) to_host(T_CLOSE, 0, c->number, c->id, &error, sizeof error);
  close(c->fd);
  free(c->buffer);
  *c = channels[--channel_count];
}

/* ------------------------------------------------------------------------------------------------ data */

static void release_exit(uint32_t id) {
  for (struct exit_notice **at = &notices; *at; at = &(*at)->next) {
    if ((*at)->id != id) continue;
    for (uint16_t number = STDOUT; number <= STDERR; number++) {
      struct channel *c = find_channel(id, number);
      if (c && c->before_exit) return; /* every byte it wrote comes first */
    }
    struct exit_notice *n = *at;
    *at = n->next;
    to_host(T_EXIT, 0, 0, id, n->payload, n->length);
    free(n);
    return;
  }
}

static void hold_exit(uint32_t id, const char *payload, size_t length) {
  struct exit_notice *n = calloc(1, sizeof *n);
  if (!n || length > sizeof n->payload) die("bad exit notice");
  n->id = id;
  n->length = length;
  memcpy(n->payload, payload, length);
  n->next = notices;
  notices = n;
  for (uint16_t number = STDOUT; number <= STDERR; number++) {
    struct channel *c = find_channel(id, number);
    int waiting = 0;
    if (c && ioctl(c->fd, FIONREAD, &waiting) == 0) c->before_exit = (size_t)waiting;
  }
  release_exit(id);
}

static void pump_out(struct channel *c) {
  static char data[FRAME_MAX];
  uint32_t id = c->id;
  size_t want = c->window < sizeof data ? c->window : sizeof data;
  ssize_t n = read(c->fd, data, want);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    close_channel(c, n < 0 && errno != EIO ? (uint32_t)errno : 0, true); /* EIO: a terminal whose last user left */
  } else {
    to_host(T_DATA, 0, c->number, c->id, data, (size_t)n);
    c->window -= (uint32_t)n;
    c->before_exit -= (size_t)n < c->before_exit ? (size_t)n : c->before_exit;
  }
  release_exit(id);
}

static void pump_in(struct channel *c) {
  uint32_t taken = 0;
  int error = 0;
  while (c->start < c->length) {
    ssize_t n = write(c->fd, c->buffer + c->start, c->length - c->start);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) error = errno;
    if (n < 0) break;
    c->start += (size_t)n;
    taken += (uint32_t)n;
  }
  if (taken) to_host(T_CREDIT, 0, c->number, c->id, &taken, sizeof taken);
  if (error || (c->closing && c->start == c->length)) close_channel(c, (uint32_t)error, true);
}

static void data_from_host(uint32_t id, uint16_t number, const char *data, size_t length) {
  struct channel *c = number == TO_GUEST ? find_channel(id, number) : NULL;
  if (!c || c->closing) return; /* it closed while this was under way */
  if (!c->buffer && !(c->buffer = malloc(WINDOW))) die("out of memory");
  memmove(c->buffer, c->buffer + c->start, c->length - c->start);
  c->length -= c->start;
  c->start = 0;
  if (length > WINDOW - c->length) die("the host sent more than its credit");
  memcpy(c->buffer + c->length, data, length);
  c->length += length;
  pump_in(c);
}

/* ------------------------------------------------------------------------------------------------ frames */

static void to_agent(const struct head *head, const char *payload, const int *fds, int count) {
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
  if (sendmsg(agent_fd, &message, MSG_NOSIGNAL) < 0) die("the agent is gone");
  for (int i = 0; i < count; i++) close(fds[i]);
}

/* The agent's end goes to `theirs`; ours becomes a channel. */
static void add_pipe(uint32_t id, uint16_t number, int *theirs, int *count) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) die("no pipe");
  bool out = number != TO_GUEST;
  theirs[(*count)++] = ends[out];
  open_channel(id, number, ends[!out]);
}

static void resize(const struct head *head, struct cursor c) {
  uint32_t target = take_u32(&c), size = take_u32(&c), error = 0;
  struct winsize w = {.ws_row = (uint16_t)(size >> 16), .ws_col = (uint16_t)size};
  struct channel *terminal = find_channel(target, STDOUT);
  if (c.bad || !terminal || ioctl(terminal->fd, TIOCSWINSZ, &w) < 0) error = EINVAL;
  if (error) to_host(T_ERROR, 0, 0, head->id, "\x16\0\0\0resize", 11);
  else to_host(T_OK, 0, 0, head->id, NULL, 0);
}

static void from_host(const struct head *head, const char *payload) {
  static uint32_t first_word; /* flags of the message under way; its first frame holds them */
  static bool under_way;
  struct cursor c = {payload, payload + head->length, false};
  if (head->type == T_DATA || head->type == T_CREDIT || head->type == T_CLOSE) {
    struct channel *channel = find_channel(head->id, head->channel);
    if (head->type == T_DATA) data_from_host(head->id, head->channel, payload, head->length);
    else if (channel && head->type == T_CREDIT) channel->window += take_u32(&c);
    else if (channel && head->channel == TO_GUEST) {
      channel->closing = true;
      pump_in(channel);
    } else if (channel) {
      channel->before_exit = 0;
      close_channel(channel, 0, true);
      release_exit(head->id);
    }
    return;
  }
  if (head->type == T_RESIZE) {
    resize(head, c);
    return;
  }
  if (!under_way) first_word = take_u32(&c);
  under_way = head->flags & FLAG_MORE;
  int fds[FDS_MAX], count = 0;
  if (!under_way && head->type == T_EXEC && !(first_word & EXEC_PTY)) {
    if (first_word & EXEC_STDIN) add_pipe(head->id, TO_GUEST, fds, &count);
    add_pipe(head->id, STDOUT, fds, &count);
    add_pipe(head->id, STDERR, fds, &count);
  } else if (!under_way && head->type == T_PACK) {
    add_pipe(head->id, STDOUT, fds, &count);
  } else if (!under_way && head->type == T_UNPACK) {
    add_pipe(head->id, TO_GUEST, fds, &count);
  }
  to_agent(head, payload, fds, count);
}

static void drop_channels(uint32_t id) {
  for (int i = channel_count - 1; i >= 0; i--)
    if (channels[i].id == id) close_channel(&channels[i], 0, false);
}

static struct {
  uint32_t id;
  int fd;
} listeners[64];
static int listener_count;

/* What a passed descriptor is good for shows in itself. */
static void adopt(uint32_t id, int fd) {
  int listening = 0, mode = fcntl(fd, F_GETFL) & O_ACCMODE;
  socklen_t size = sizeof listening;
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening && listener_count < 64) {
    listeners[listener_count].id = id;
    listeners[listener_count++].fd = fd;
    return;
  }
  if (mode == O_RDWR) {
    open_channel(id, TO_GUEST, dup(fd));
    open_channel(id, STDOUT, fd);
  } else {
    open_channel(id, mode == O_WRONLY ? TO_GUEST : STDOUT, fd);
  }
}

static void from_agent(void) {
  static char frame[sizeof(struct head) + FRAME_MAX];
  struct head head;
  struct iovec part = {frame, sizeof frame};
  union {
    char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
    struct cmsghdr align;
  } control;
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  ssize_t n = recvmsg(agent_fd, &message, MSG_CMSG_CLOEXEC);
  if (n < (ssize_t)sizeof head) {
    flush_queue();
    _exit(0);
  }
  memcpy(&head, frame, sizeof head);
  const char *payload = frame + sizeof head;
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (c && c->cmsg_type == SCM_RIGHTS) {
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    adopt(head.id, fd);
  }
  if (head.type == T_EXIT) {
    hold_exit(head.id, payload, head.length);
    return;
  }
  if (head.type == T_ERROR) drop_channels(head.id);
  to_host(head.type, head.flags, 0, head.id, payload, head.length);
}

static void accept_connection(int i) {
  int fd = accept4(listeners[i].fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  uint32_t id = next_accepted++ | 0x80000000u;
  to_host(T_ACCEPTED, 0, 0, id, &listeners[i].id, sizeof listeners[i].id);
  open_channel(id, TO_GUEST, dup(fd));
  open_channel(id, STDOUT, fd);
}

static void read_host(void) {
  static char input[sizeof(struct head) + FRAME_MAX];
  static size_t have;
  ssize_t n = read(0, input + have, sizeof input - have);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) _exit(0); /* our end closes, and the agent ends what we started */
  heard_at = time(NULL);
  have += (size_t)n;
  size_t at = 0;
  while (have - at >= sizeof(struct head)) {
    struct head head;
    memcpy(&head, input + at, sizeof head);
    if (head.length > FRAME_MAX) die("a frame is too long");
    if (have - at < sizeof head + head.length) break;
    from_host(&head, input + at + sizeof head);
    at += sizeof head + head.length;
  }
  memmove(input, input + at, have - at);
  have -= at;
}

void bridge_main(const char *directory, int timeout_s) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s/agent.sock", directory);
  agent_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (agent_fd < 0 || connect(agent_fd, (struct sockaddr *)&address, sizeof address) < 0) die(strerror(errno));
  signal(SIGPIPE, SIG_IGN);
  fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
  fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
  static struct pollfd watched[CHANNELS_MAX + 80];
  heard_at = time(NULL);
  for (;;) {
    int n = 0, first = 3 + listener_count, open = channel_count;
    bool full = queue_length - queue_start > QUEUE_HIGH;
    watched[n++] = (struct pollfd){0, POLLIN, 0};
    watched[n++] = (struct pollfd){agent_fd, POLLIN, 0};
    watched[n++] = (struct pollfd){queue_start < queue_length ? 1 : -1, POLLOUT, 0};
    for (int i = 0; i < listener_count; i++) watched[n++] = (struct pollfd){listeners[i].fd, POLLIN, 0};
    for (int i = 0; i < open; i++) {
      struct channel *c = &channels[i];
      bool in = c->number == TO_GUEST, wanted = in ? c->start < c->length : c->window && !full;
      watched[n++] = (struct pollfd){wanted ? c->fd : -1, in ? POLLOUT : POLLIN, 0};
    }
    int ready = poll(watched, (nfds_t)n, timeout_s * 1000);
    if (time(NULL) - heard_at >= timeout_s) die("no heartbeat from the host");
    if (ready < 0 && errno != EINTR) die(strerror(errno));
    for (int i = open - 1; i >= 0; i--) /* backwards: closing moves the last one down */
      if (watched[first + i].revents) channels[i].number == TO_GUEST ? pump_in(&channels[i]) : pump_out(&channels[i]);
    for (int i = 0; i < listener_count; i++)
      if (watched[3 + i].revents) accept_connection(i);
    if (watched[1].revents) from_agent();
    if (watched[0].revents) read_host();
    flush_queue();
  }
}
