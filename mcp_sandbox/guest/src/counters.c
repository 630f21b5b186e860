/* What the control group of a container has counted, as the engine shows it inside; zeros where it shows none. */
#include "guest.h"

static int memory_events = -1, pids_events = -1, memory_peak = -1;

static int open_either(const char *v2, const char *v1) {
  int fd = open(v2, O_RDONLY | O_CLOEXEC);
  return fd >= 0 ? fd : open(v1, O_RDONLY | O_CLOEXEC);
}

void open_counters(void) {
  memory_events = open_either("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control");
  pids_events = open_either("/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events");
  memory_peak = open_either("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes");
}

/* The number behind a word at the beginning of a line, or the first one of all. */
static uint64_t counted(int fd, const char *word) {
  char text[512];
  ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = 0;
  size_t length = strlen(word);
  for (char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (!strncmp(line, word, length)) return strtoull(line + length, NULL, 10);
  }
  return 0;
}

static uint64_t crowds;

void note_crowd(void) { crowds++; }

void put_counters(struct message *m) {
  put_u64(m, counted(memory_events, "oom_kill "));
  put_u64(m, counted(pids_events, "max ") + crowds);
  put_u64(m, counted(memory_peak, ""));
}
