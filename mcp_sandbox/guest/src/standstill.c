/* Processes brought to a standstill, so that none forks away: a tree to kill it, everything to freeze it. That can take
   seconds where something inside fights it, so it is done step by step, between whatever else is asked for. */
#include "guest.h"

#include <signal.h>
#include <time.h>

/* On a busy machine each process waits for the processor once more before it stops. */
#define FREEZE_MS 5000
#define KILL_MS 2000
#define QUICK_ROUNDS 100
#define QUICK_US 100
#define SLOW_US 2000

struct standstill {
  pid_t root;               /* of the tree to kill; 0 freezes everything */
  int peer;                 /* who is told; -1 is nobody */
  uint32_t id;
  bool tracers;             /* a kill before this one did not help */
  int round, still;
  long next_us, end_us;
  struct standstill *next;
};
static struct standstill *begun;

static long now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static bool begin(struct standstill wanted, int most_ms) {
  struct standstill *s = malloc(sizeof *s);
  if (!s) return false;
  *s = wanted;
  s->next_us = now_us();
  s->end_us = s->next_us + most_ms * 1000L;
  s->next = begun;
  begun = s;
  return true;
}

void begin_kill(int peer, uint32_t id, pid_t root, bool tracers) {
  if (begin((struct standstill){.root = root, .peer = peer, .id = id, .tracers = tracers}, KILL_MS)) return;
  int done = kill_tree(root, tracers);
  if (peer >= 0) answer_count(peer, id, done);
}

bool begin_freeze(int peer, uint32_t id) {
  return begin((struct standstill){.peer = peer, .id = id}, FREEZE_MS);
}

/* Still means two looks in a row that see all of it still: the first may have passed the place of a new child by. */
static bool is_done(struct standstill *s, long now) {
  bool still;
  int count = s->root ? 0 : stop_all(&still);
  if (s->root) still = stop_tree(s->root);
  s->still = still ? s->still + 1 : 0;
  s->round++;
  bool late = now >= s->end_us;
  if (count >= 0 && s->still < 2 && !late) {
    long wait_us = s->round < 3 || still ? 0 : s->round < QUICK_ROUNDS ? QUICK_US : SLOW_US;
    s->next_us = now_us() + wait_us; /* so that other processors stop what runs on them */
    return false;
  }
  if (s->root) {
    int killed = kill_tree(s->root, s->tracers);
    if (s->peer >= 0) answer_count(s->peer, s->id, killed);
  } else end_freeze(s->peer, s->id, count < 0 ? count : s->still < 2 ? -EBUSY : count);
  return true;
}

void step_standstills(void) {
  for (struct standstill **at = &begun; *at;) {
    struct standstill *s = *at;
    long now = now_us();
    if (s->next_us > now || !is_done(s, now)) {
      at = &s->next;
      continue;
    }
    *at = s->next;
    free(s);
  }
}

long standstill_wait_us(void) {
  long first = -1;
  for (const struct standstill *s = begun; s; s = s->next)
    if (first < 0 || s->next_us < first) first = s->next_us;
  if (first < 0) return -1;
  long wait = first - now_us();
  return wait > 0 ? wait : 0;
}

void forget_peer_of_kills(int peer) {
  for (struct standstill *s = begun; s; s = s->next)
    if (s->root && s->peer == peer) s->peer = -1;
}

/* All of them: whoever froze everything may have asked for it again, and what is left would stop everybody for nobody. */
void cancel_freeze(bool told) {
  for (struct standstill **at = &begun; *at;) {
    struct standstill *s = *at;
    if (s->root) {
      at = &s->next;
      continue;
    }
    if (told) answer_count(s->peer, s->id, -EBUSY);
    *at = s->next;
    free(s);
  }
}
