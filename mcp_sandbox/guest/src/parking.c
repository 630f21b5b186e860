/* A bridge without a host: while everything that runs is written down, and in what is made of that, for good. */
#include "bridge.h"

#include <poll.h>
#include <time.h>

#define PARKING_MS 2000           /* how long the host may take to read what was said */

bool parked, detached;

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void let_go(void) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 3; fd++) dup2(null, fd);
  close(null);
}

/* What is said is written first. Nothing that belongs to the engine stays open here, so that it can write us down. */
void park(int agent, uint32_t name) {
  for (long end = now_ms() + PARKING_MS; !queue_empty();) {
    struct pollfd room = {1, POLLOUT, 0};
    if (now_ms() > end) bridge_die("the host does not read");
    poll(&room, 1, (int)(end - now_ms()));
    flush_queue();
  }
  parked = true;
  let_go();
  send_frame(agent, T_PARK, 0, &name, sizeof name, -1);
}

/* The standard input comes first. */
void take_stream(uint32_t end, int fd) {
  dup2(fd, (int)end);
  close(fd);
  fcntl((int)end, F_SETFL, fcntl((int)end, F_GETFL) | O_NONBLOCK);
  parked = end == 0;
}

void detach(void) {
  if (!parked) let_go();
  parked = detached = true;
  drop_queue();
}
