/* Sockets made inside the sandbox's network namespace and handed out. */
#include "guest.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define REFUSAL_MS 20             /* that a connection to a listener without room costs everybody else */

static void answer(int peer, uint32_t id, int fd, int error, const char *step) {
  if (error) send_error(peer, id, error, step);
  else send_frame(peer, T_OK, id, NULL, 0, fd);
  if (fd >= 0) close(fd);
}

void net_listen(int peer, uint32_t id, struct cursor *c) {
  uint32_t port = take_u32(c), datagram = take_u32(c);
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int one = 1, fd = -1, error = c->bad || port > 65535 ? EPROTO : 0;
  if (!error && (fd = socket(AF_INET, (datagram ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0)
    error = errno;
  if (!error && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
                 bind(fd, (struct sockaddr *)&any, sizeof any) < 0 || (!datagram && listen(fd, 1024) < 0)))
    error = errno;
  answer(peer, id, fd, error, "listen");
}

/* On the loopback a refusal is there at once; a busy listener is waited for outside. */
static int dial(const struct sockaddr *to, socklen_t size, int *fd) {
  int error = 0;
  if ((*fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0) return errno;
  if (connect(*fd, to, size) < 0) error = errno;
  if (error == EINPROGRESS) {
    struct pollfd wait = {*fd, POLLOUT, 0};
    socklen_t length = sizeof error;
    poll(&wait, 1, REFUSAL_MS);
    if (getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0) error = errno;
  }
  if (error) {
    close(*fd);
    *fd = -1;
  }
  return error;
}

void net_connect(int peer, uint32_t id, struct cursor *c) {
  uint32_t port = take_u32(c), family = 4;
  struct sockaddr_in one = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  one.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = -1, error = c->bad || port > 65535 ? EPROTO : dial((struct sockaddr *)&one, sizeof one, &fd);
  if (error == ECONNREFUSED && dial((struct sockaddr *)&other, sizeof other, &fd) == 0) {
    error = 0;
    family = 6;
  }
  if (error) send_error(peer, id, error, "connect");
  else send_frame(peer, T_OK, id, &family, sizeof family, fd);
  if (fd >= 0) close(fd);
}
