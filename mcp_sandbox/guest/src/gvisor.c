/* Init in gVisor's kernel. Its control groups do not limit processes: whether one may fork is asked of any one of a task's
   groups, mostly of another controller's, and who asks often enough may. Its resource limit is exact and counts per user,
   for whoever has no user namespace of his own, which the filter of commands sees to; the host limits all users together. */
#include "guest.h"

#include <sys/resource.h>
#include <time.h>

#define STORM_US 1000000          /* in which a quarter of all that may be left their dead to us */
#define KEPT_US 1000000

static rlim_t most;

/* Init and the bridges are the same user's. */
static bool limit_command(void) {
  rlim_t count = most + 1 + (rlim_t)peer_count;
  struct rlimit processes = {count, count};
  return setrlimit(RLIMIT_NPROC, &processes) == 0;
}

/* A resource limit counts nobody whom it refused: a command that failed among as many as there may be is taken for one. */
static bool is_crowded(void) { return (rlim_t)count_tasks() + 1 >= most; }

static long now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The dead count as well, until somebody asks for them. Those of a bomb come to us as fast as we ask, and each makes room
   for the next: where they crowd they stay for a moment, in which nobody finds room, and what cannot fork gives up. */
static long kept_until_us;

static bool keep_dead(int orphans) {
  static long since_us;
  static rlim_t seen;
  long now = now_us();
  if (now < kept_until_us) return true;
  kept_until_us = 0;
  if (now - since_us > STORM_US) {
    since_us = now;
    seen = 0;
  }
  if ((seen += (rlim_t)orphans) < most / 4) return false;
  seen = 0;
  if ((rlim_t)count_tasks() < most / 4 * 3) return false;
  kept_until_us = now + KEPT_US;
  return true;
}

static long dead_kept_us(void) {
  long left = kept_until_us - now_us();
  return !kept_until_us ? -1 : left > 0 ? left : 0;
}

/* gvisor PIDS DIRECTORY FILTER, where no PIDS are without a limit. */
void gvisor_main(int argc, char **argv) {
  char *arguments[] = {argv[0], "init", argc > 3 ? argv[3] : "/.mcp-sandbox", "2147483647", NULL};
  int filter = argc > 4 ? open(argv[4], O_RDONLY | O_CLOEXEC) : -1;
  if (filter < 0) {
    dprintf(2, "mcp-sandbox guest: filter: %s\n", strerror(errno));
    _exit(70);
  }
  load_filter(filter);
  most = (rlim_t)atol(argv[2]);
  if (most) {
    settings.limit_command = limit_command;
    settings.crowded = is_crowded;
    settings.keep_dead = keep_dead;
    settings.dead_kept_us = dead_kept_us;
  }
  container_main(4, arguments);
}
