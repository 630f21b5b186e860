/* Sockets made inside the sandbox's network namespace and handed out. */
#include "guest.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define REFUSAL_MS 20

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

void net_connect(int peer, uint32_t id, struct cursor *c) {
  uint32_t port = take_u32(c);
  struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = -1, error = c->bad || port > 65535 ? EPROTO : 0;
  if (!error && (fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0) error = errno;
  if (!error && connect(fd, (struct sockaddr *)&loopback, sizeof loopback) < 0) error = errno;
  if (error == EINPROGRESS) { /* on the loopback a refusal is there at once; a busy listener is waited for outside */
    struct pollfd wait = {fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    poll(&wait, 1, REFUSAL_MS);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
  }
  answer(peer, id, fd, error, "connect");
}
