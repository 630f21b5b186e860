/* Frames over a SEQPACKET socket, and the bounds-checked reading of what they carry. */
#include "guest.h"

#include <poll.h>
#include <sys/socket.h>

uint32_t take_u32(struct cursor *c) {
  uint32_t v = 0;
  if (c->bad || c->end - c->at < 4) {
    c->bad = true;
    return 0;
  }
  memcpy(&v, c->at, 4);
  c->at += 4;
  return v;
}

const char *take_string(struct cursor *c) {
  const char *start = c->at, *nul;
  if (c->bad || !(nul = memchr(start, 0, (size_t)(c->end - start)))) {
    c->bad = true;
    return "";
  }
  c->at = nul + 1;
  return start;
}

char **take_strings(struct cursor *c, uint32_t count) {
  if (c->bad || count > (size_t)(c->end - c->at)) { /* every string takes a byte at least */
    c->bad = true;
    return NULL;
  }
  char **list = calloc((size_t)count + 1, sizeof *list);
  if (!list) {
    c->bad = true;
    return NULL;
  }
  for (uint32_t i = 0; i < count; i++) list[i] = (char *)take_string(c);
  return list;
}

static void put(struct message *m, const void *data, size_t length) {
  if (length > sizeof m->data - m->length) length = sizeof m->data - m->length;
  memcpy(m->data + m->length, data, length);
  m->length += length;
}
void put_u32(struct message *m, uint32_t v) { put(m, &v, 4); }
void put_u64(struct message *m, uint64_t v) { put(m, &v, 8); }
void put_string(struct message *m, const char *s) { put(m, s, strlen(s) + 1); }

/* A peer that does not read for a second is treated as gone: init must never wait for anybody longer. */
bool send_frame(int fd, uint8_t type, uint32_t id, const void *data, size_t length, int passed) {
  struct head head = {.length = (uint32_t)length, .id = id, .type = type};
  struct iovec part[2] = {{&head, sizeof head}, {(void *)data, length}};
  union {
    char space[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct msghdr message = {.msg_iov = part, .msg_iovlen = 2};
  if (passed >= 0) {
    message.msg_control = control.space;
    message.msg_controllen = sizeof control.space;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &passed, sizeof passed);
  }
  for (int attempt = 0; attempt < 2; attempt++) {
    if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno == ETOOMANYREFS) { /* the kernel counts what is under way between all processes of this user */
      send_error(fd, id, EMFILE, "descriptors");
      return false;
    }
    if (errno != EAGAIN) break;
    struct pollfd wait = {fd, POLLOUT, 0};
    poll(&wait, 1, 1000);
  }
  shutdown(fd, SHUT_RDWR);
  return false;
}

void send_error(int fd, uint32_t id, int error, const char *step) {
  struct message m = {.length = 0};
  put_u32(&m, (uint32_t)error);
  put_string(&m, step);
  send_frame(fd, T_ERROR, id, m.data, m.length, -1);
}

static void keep_descriptors(struct msghdr *message, int *fds, int *count) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    int n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (int i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + sizeof(int) * (size_t)i, sizeof fd);
      if (*count < FDS_MAX) fds[(*count)++] = fd;
      else close(fd);
    }
  }
}

int receive_message(struct connection *c, struct head *head, int *fds, int *count) {
  static char frame[sizeof(struct head) + FRAME_MAX];
  struct iovec part = {frame, sizeof frame};
  union {
    char space[CMSG_SPACE(sizeof(int) * 16)];
    struct cmsghdr align;
  } control;
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                           .msg_controllen = sizeof control.space};
  *count = 0;
  ssize_t n = recvmsg(c->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  keep_descriptors(&message, fds, count);
  bool whole = n >= (ssize_t)sizeof *head && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
  if (whole) memcpy(head, frame, sizeof *head);
  if (!whole || head->length != (size_t)n - sizeof *head || c->length + head->length > MESSAGE_MAX) goto violation;
  char *grown = realloc(c->partial, c->length + head->length + 1);
  if (!grown) goto violation;
  c->partial = grown;
  memcpy(c->partial + c->length, frame + sizeof *head, head->length);
  c->length += head->length;
  if (!(head->flags & FLAG_MORE)) return 1;
  if (*count) goto violation; /* descriptors come with the last frame */
  return 0;
violation:
  for (int i = 0; i < *count; i++) close(fds[i]);
  *count = 0;
  return -1;
}
