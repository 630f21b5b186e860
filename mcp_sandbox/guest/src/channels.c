/* The bridge's channels: descriptors that stay in the sandbox, their bytes as DATA under credit. */
#include "bridge.h"

#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

struct channel channels[CHANNELS_MAX];
int channel_count;

static char *queue;
static size_t queue_length, queue_start, queue_size;
static bool dropped;

void to_host(uint8_t type, uint16_t number, uint32_t id, const void *data, size_t length) {
  struct head head = {.length = (uint32_t)length, .id = id, .type = type, .channel = number};
  size_t need = sizeof head + length;
  if (dropped) return;
  if (queue_start == queue_length) queue_start = queue_length = 0;
  if (queue_length + need > queue_size) {
    if (queue_start) memmove(queue, queue + queue_start, queue_length - queue_start);
    queue_length -= queue_start;
    queue_start = 0;
    while (queue_length + need > queue_size) queue_size = queue_size ? queue_size * 2 : 1 << 18;
    if (!(queue = realloc(queue, queue_size))) bridge_die("out of memory");
  }
  memcpy(queue + queue_length, &head, sizeof head);
  if (length) memcpy(queue + queue_length + sizeof head, data, length);
  queue_length += need;
}

void error_to_host(uint32_t id, int error, const char *step) {
  struct message m = {.length = 0};
  put_u32(&m, (uint32_t)error);
  put_string(&m, step);
  to_host(T_ERROR, 0, id, m.data, m.length);
}

void flush_queue(void) {
  while (queue_start < queue_length) {
    ssize_t n = write(1, queue + queue_start, queue_length - queue_start);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(0); /* the host is gone */
    queue_start += (size_t)n;
  }
}

/* From now on nobody listens. */
void drop_queue(void) {
  dropped = true;
  queue_start = queue_length = 0;
  for (int i = 0; i < channel_count; i++)
    if (channels[i].number != TO_GUEST) {
      channels[i].window = WINDOW;
      channels[i].start = channels[i].length;
    }
}

bool queue_empty(void) { return queue_start == queue_length; }
bool queue_full(void) { return queue_length - queue_start > QUEUE_HIGH; }

struct channel *find_channel(uint32_t id, uint16_t number) {
  for (int i = 0; i < channel_count; i++)
    if (channels[i].id == id && channels[i].number == number) return &channels[i];
  return NULL;
}

bool open_channel(uint32_t id, uint16_t number, int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  if (fd < 0 || channel_count == CHANNELS_MAX) {
    if (fd >= 0) close(fd);
    return false;
  }
  bool is_socket = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  channels[channel_count++] =
      (struct channel){.id = id, .number = number, .fd = fd, .window = WINDOW, .socket = is_socket,
                       .datagrams = is_socket && type == SOCK_DGRAM};
  return true;
}

void close_channel(struct channel *c, int error, bool tell) {
  uint32_t number = (uint32_t)error;
  if (tell) to_host(T_CLOSE, c->number, c->id, &number, sizeof number);
  if (c->number == TO_GUEST) shutdown(c->fd, SHUT_WR); /* the other direction may hold a copy of the socket */
  close(c->fd);
  free(c->buffer);
  *c = channels[--channel_count];
}

void drop_channels(uint32_t id) {
  for (int i = channel_count - 1; i >= 0; i--)
    if (channels[i].id == id) close_channel(&channels[i], 0, false);
}

/* What is in the pipe is taken out at once: a child of the command could read it away, and the host would wait. */
uint64_t before_exit(uint32_t id, uint16_t number) {
  struct channel *c = find_channel(id, number);
  int waiting = 0;
  if (c && c->start == c->length && ioctl(c->fd, FIONREAD, &waiting) == 0 && waiting > 0) {
    if (!(c->buffer = realloc(c->buffer, (size_t)waiting))) bridge_die("out of memory");
    ssize_t n = read(c->fd, c->buffer, (size_t)waiting);
    c->start = 0;
    c->length = n > 0 ? (size_t)n : 0;
  }
  return c ? c->sent + (c->length - c->start) : 0;
}

/* ------------------------------------------------------------------------------------------------ to the host */

static ssize_t read_datagram(int fd, char *data) {
  struct sockaddr_in from = {.sin_family = AF_UNSPEC};
  socklen_t size = sizeof from;
  ssize_t n = recvfrom(fd, data + ADDRESS_SIZE, FRAME_MAX - ADDRESS_SIZE, 0, (struct sockaddr *)&from, &size);
  if (n < 0) return n;
  memset(data, 0, ADDRESS_SIZE);
  memcpy(data, &from.sin_addr, 4);
  memcpy(data + 4, &from.sin_port, 2);
  return n + ADDRESS_SIZE;
}

static void send_held(struct channel *c) {
  while (c->start < c->length && c->window) {
    size_t n = c->length - c->start;
    if (n > c->window) n = c->window;
    if (n > FRAME_MAX) n = FRAME_MAX;
    to_host(T_DATA, c->number, c->id, c->buffer + c->start, n);
    c->start += n;
    c->window -= (uint32_t)n;
    c->sent += n;
  }
}

void add_credit(struct channel *c, uint32_t bytes) {
  c->window += bytes;
  if (c->number != TO_GUEST) send_held(c);
}

static void pump_out(struct channel *c) {
  static char data[FRAME_MAX];
  size_t want = c->window < sizeof data ? c->window : sizeof data;
  ssize_t n = c->datagrams ? read_datagram(c->fd, data) : read(c->fd, data, want);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0 && c->datagrams) return; /* an ICMP answer to an earlier datagram */
  if (n <= 0) {
    close_channel(c, n < 0 && errno != EIO ? errno : 0, true); /* EIO: a terminal whose last user left */
    return;
  }
  to_host(T_DATA, c->number, c->id, data, (size_t)n);
  if (!dropped) c->window -= (uint32_t)n;
  c->sent += (uint64_t)n;
}

/* ------------------------------------------------------------------------------------------------ to the guest */

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
  if (taken) to_host(T_CREDIT, c->number, c->id, &taken, sizeof taken);
  if (error || (c->closing && c->start == c->length)) close_channel(c, error, true);
}

static void send_datagram(struct channel *c, const char *data, size_t length) {
  struct sockaddr_in to = {.sin_family = AF_INET};
  uint32_t taken = (uint32_t)length;
  if (length >= ADDRESS_SIZE) {
    memcpy(&to.sin_addr, data, 4);
    memcpy(&to.sin_port, data + 4, 2);
    /* What does not fit is lost, as datagrams are. */
    (void)!sendto(c->fd, data + ADDRESS_SIZE, length - ADDRESS_SIZE, MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof to);
  }
  to_host(T_CREDIT, c->number, c->id, &taken, sizeof taken);
}

void data_from_host(uint32_t id, uint16_t number, const char *data, size_t length) {
  struct channel *c = number == TO_GUEST ? find_channel(id, number) : NULL;
  if (!c || c->closing) return; /* it closed while this was under way */
  if (c->datagrams) {
    send_datagram(c, data, length);
    return;
  }
  if (!c->buffer && !(c->buffer = malloc(WINDOW))) bridge_die("out of memory");
  memmove(c->buffer, c->buffer + c->start, c->length - c->start);
  c->length -= c->start;
  c->start = 0;
  if (length > WINDOW - c->length) bridge_die("the host sent more than its credit");
  memcpy(c->buffer + c->length, data, length);
  c->length += length;
  pump_in(c);
}

/* Who wants nothing more from a server, and has nothing more to say to it, has given the connection up: what the server
   did not take yet must not stay here until it does. */
static void give_up(uint32_t id) {
  struct channel *c = find_channel(id, TO_GUEST);
  struct linger reset = {1, 0};
  if (!c || !c->closing || !c->socket) return;
  setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  close_channel(c, ECONNRESET, true);
}

void close_from_host(struct channel *c) {
  uint32_t id = c->id;
  if (c->number == TO_GUEST) {
    c->closing = true;
    pump_in(c);
  } else {
    close_channel(c, 0, true);
    give_up(id);
  }
}

bool wants_poll(const struct channel *c) {
  if (c->number == TO_GUEST) return c->start < c->length;
  return c->start == c->length && !queue_full() && c->window >= (c->datagrams ? FRAME_MAX : 1);
}

void pump(struct channel *c) {
  if (c->number == TO_GUEST) pump_in(c);
  else pump_out(c);
}
