/* What runs in the sandbox, as /proc shows it: trees to signal, and everything to freeze. One look each, without waiting;
   standstill.c looks again until it is done. */
#include "guest.h"

#include <signal.h>

#define PROCESSES_MAX 16384

struct process {
  pid_t pid, parent, session;
  char state;
  enum { UNKNOWN, INSIDE, OUTSIDE } tree;
};
static struct process processes[PROCESSES_MAX]; /* by pid: /proc lists them so */

typedef void (*visit)(pid_t number, void *context);

static void each_number(int dir, visit each, void *context) {
  char entries[32768];
  long got;
  while ((got = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0)
    for (long at = 0; at < got;) {
      unsigned short length;
      memcpy(&length, entries + at + 16, 2); /* struct linux_dirent64: ino, off, reclen, type, name */
      const char *name = entries + at + 19;
      at += length;
      if (*name >= '1' && *name <= '9') each(atoi(name), context);
    }
}

static int open_task(pid_t pid, const char *file) {
  char path[48];
  snprintf(path, sizeof path, "%d/%s", pid, file);
  return openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
}

static bool parse_stat(int fd, struct process *p, int *threads) {
  char line[512];
  int group;
  ssize_t size = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
  if (fd >= 0) close(fd);
  if (size <= 0) return false;
  line[size] = 0;
  char *after = strrchr(line, ')'); /* the name itself may hold anything */
  return after && sscanf(after + 1, " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &p->state,
                         &p->parent, &group, &p->session, threads) == 5;
}

struct group {
  pid_t leader;
  char state;
};

static void look_at_thread(pid_t tid, void *context) {
  struct group *g = context;
  struct process thread;
  char file[32];
  int threads;
  if (tid == g->leader) return;
  snprintf(file, sizeof file, "task/%d/stat", tid);
  if (parse_stat(open_task(g->leader, file), &thread, &threads) && !strchr("ZX", thread.state) &&
      !strchr("RSD", g->state))
    g->state = thread.state;
}

/* The first thread of a process may be gone while others run: then it is one of them that says how the process is. */
static bool read_stat(pid_t pid, struct process *p) {
  int threads;
  *p = (struct process){.pid = pid};
  if (!parse_stat(open_task(pid, "stat"), p, &threads)) return false;
  if (p->state != 'Z' || threads < 2) return true;
  struct group g = {pid, 'Z'};
  int dir = open_task(pid, "task");
  if (dir >= 0) {
    each_number(dir, look_at_thread, &g);
    close(dir);
  }
  p->state = g.state;
  return true;
}

static void note_process(pid_t pid, void *context) {
  int *n = context;
  struct process *p = &processes[*n];
  if (*n < PROCESSES_MAX && read_stat(pid, p) && p->state != 'Z' && p->state != 'X') ++*n;
}

static int scan(void) {
  int n = 0, dir = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return 0;
  each_number(dir, note_process, &n);
  close(dir);
  return n;
}

static struct process *find(int n, pid_t pid) {
  int low = 0, high = n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (processes[middle].pid < pid) low = middle + 1;
    else high = middle;
  }
  return low < n && processes[low].pid == pid ? &processes[low] : NULL;
}

static void mark_tree(int n, pid_t root) {
  for (int i = 0; i < n; i++) {
    struct process *p = &processes[i];
    p->tree = p->pid == root || p->session == root ? INSIDE : p->pid == 1 ? OUTSIDE : UNKNOWN;
  }
  for (int i = 0; i < n; i++) { /* each one is passed once: what is found out holds for the whole way up */
    struct process *top = &processes[i];
    for (int steps = 0; top && top->tree == UNKNOWN && steps < n; steps++) top = find(n, top->parent);
    int tree = top && top->tree == INSIDE ? INSIDE : OUTSIDE;
    for (struct process *p = &processes[i]; p && p->tree == UNKNOWN; p = find(n, p->parent)) p->tree = tree;
  }
}

pid_t parent_of(pid_t pid) {
  struct process p;
  return read_stat(pid, &p) ? p.parent : -1;
}

/* Init and the bridges: no part of what the sandbox runs. */
static bool is_ours(pid_t pid) { return pid == 1 || is_peer(pid); }

/* Whoever traces a process can hold it back from dying for as long as it likes. */
static void kill_tracer(pid_t pid) {
  char text[1024];
  int fd = open_task(pid, "status");
  ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (size <= 0) return;
  text[size] = 0;
  char *line = strstr(text, "\nTracerPid:");
  pid_t tracer = line ? atoi(line + 11) : 0;
  if (tracer > 0 && !is_ours(tracer)) kill(tracer, SIGKILL);
}

/* The root goes last, because its orphans become ours when it is gone. */
static int signal_marked(int n, pid_t root, int number, bool tracers) {
  int total = 0;
  for (int last = 0; last < 2; last++)
    for (int i = 0; i < n; i++)
      if (processes[i].tree == INSIDE && (processes[i].pid == root) == last) {
        total += kill(processes[i].pid, number) == 0;
        if (tracers && processes[i].state == 't') kill_tracer(processes[i].pid);
      }
  return total;
}

int signal_tree(pid_t root, int number) {
  int n = scan();
  mark_tree(n, root);
  return signal_marked(n, root, number, false);
}

bool stop_tree(pid_t root) {
  int n = scan();
  bool still = true;
  mark_tree(n, root);
  for (int i = 0; i < n; i++)
    if (processes[i].tree == INSIDE && processes[i].state != 'T') {
      kill(processes[i].pid, SIGSTOP);
      if (processes[i].state != 'D') still = false; /* one that waits for its vforked child stops when that is gone */
    }
  return still;
}

int kill_tree(pid_t root, bool tracers) {
  int n = scan();
  mark_tree(n, root);
  return signal_marked(n, root, SIGKILL, tracers);
}

int signal_group(pid_t pid, int number) { return kill(-pid, number); }

int live_processes(void) {
  int n = scan(), live = 0;
  for (int i = 0; i < n; i++) live += !is_ours(processes[i].pid);
  return live;
}

static void count_threads(pid_t pid, void *context) {
  int *total = context, threads;
  struct process p;
  if (!is_ours(pid) && parse_stat(open_task(pid, "stat"), &p, &threads)) *total += threads > 1 ? threads : 1;
}

int count_tasks(void) {
  int total = 0, dir = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return 0;
  each_number(dir, count_threads, &total);
  close(dir);
  return total;
}

static pid_t *frozen;
static int frozen_count;

static bool remember_frozen(pid_t pid) {
  for (int i = 0; i < frozen_count; i++)
    if (frozen[i] == pid) return true;
  pid_t *grown = realloc(frozen, sizeof *frozen * (size_t)(frozen_count + 1));
  if (!grown) return false;
  frozen = grown;
  frozen[frozen_count++] = pid;
  return true;
}

int stop_all(bool *still) {
  int n = scan();
  *still = true;
  for (int i = 0; i < n; i++) {
    if (is_ours(processes[i].pid) || strchr("Tt", processes[i].state)) continue;
    if (processes[i].state != 'D') *still = false;
    if (kill(processes[i].pid, SIGSTOP) == 0 && !remember_frozen(processes[i].pid)) return -ENOMEM;
  }
  return frozen_count;
}

int thaw_all(void) {
  int n = frozen_count;
  for (int i = 0; i < n; i++) kill(frozen[i], SIGCONT);
  frozen_count = 0;
  return n;
}
