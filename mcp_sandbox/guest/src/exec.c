/* Commands: spawn, reap, and the signals that reach a whole tree. */
#include "guest.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

struct job *jobs;
int proc_fd = -1, null_fd = -1;

struct spawn {
  char **argv, **envp;
  const char *cwd, *path;
  int in, out, err;
  bool pty;
  volatile int error; /* written by the vforked child, which shares our memory */
  const char *volatile step;
};

static void remember(uint32_t id, int peer, pid_t pid, enum job_kind kind, const char *step) {
  struct job *j = malloc(sizeof *j);
  if (!j) {
    kill(pid, SIGKILL);
    return;
  }
  *j = (struct job){id, peer, pid, kind, step, jobs};
  jobs = j;
}

struct job *find_job(int peer, uint32_t id) {
  for (struct job *j = jobs; j; j = j->next)
    if (j->peer == peer && j->id == id) return j;
  return NULL;
}

/* Our own PATH walk: execvpe would try the agent's. EACCES is remembered, as a shell does. */
static void exec_in_path(struct spawn *s) {
  if (strchr(s->argv[0], '/')) {
    execve(s->argv[0], s->argv, s->envp);
    return;
  }
  char file[4352];
  int error = ENOENT;
  for (const char *at = s->path; *at;) {
    size_t n = strcspn(at, ":");
    if (n && n < 4096 && strlen(s->argv[0]) < 256) {
      snprintf(file, sizeof file, "%.*s/%s", (int)n, at, s->argv[0]);
      execve(file, s->argv, s->envp);
      if (errno != ENOENT && errno != ENOTDIR) error = errno;
      if (errno == E2BIG) break;
    }
    at += n;
    if (*at) at++;
  }
  errno = error;
}

static void become_command(struct spawn *s) {
  setsid();
  if (s->pty) ioctl(s->in, TIOCSCTTY, 0);
  dup2(s->in, 0);
  dup2(s->out, 1);
  dup2(s->err, 2);
  /* Orphans of the command come back to it, not to init: a kill finds them. */
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  umask(022);
  sigset_t none;
  sigemptyset(&none);
  /* The kernel's own call: libc hides the signals that it uses itself, and posix_spawn left them ignored. */
  static const char by_default[32];
  for (int n = 1; n <= 64; n++) syscall(SYS_rt_sigaction, n, by_default, NULL, 8);
  sigprocmask(SIG_SETMASK, &none, NULL);
  s->step = "chdir";
  if (chdir(s->cwd) == 0) {
    s->step = "seccomp";
    struct sock_fprog program = {.len = settings.filter_length, .filter = settings.filter};
    if (!settings.filter || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0) {
      s->step = "exec";
      exec_in_path(s);
    }
  }
  s->error = errno;
  _exit(127);
}

static int open_terminal(uint16_t rows, uint16_t cols, int *slave) {
  struct winsize size = {.ws_row = rows, .ws_col = cols};
  int unlock = 0, master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0) return -1;
  if (ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0 ||
      (*slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
    close(master);
    return -1;
  }
  return master;
}

void exec_command(int peer, uint32_t id, struct cursor *c, int *fds, int count) {
  uint32_t flags = take_u32(c), size = take_u32(c);
  struct spawn s = {.cwd = take_string(c), .path = "/usr/local/bin:/usr/bin:/bin", .in = -1, .out = -1, .err = -1};
  uint32_t argc = take_u32(c);
  s.argv = take_strings(c, argc);
  s.envp = take_strings(c, take_u32(c));
  int master = -1, slave = -1, want = (flags & EXEC_PTY) ? 0 : 2 + !!(flags & EXEC_STDIN);
  if (c->bad || argc == 0 || count != want || find_job(peer, id)) {
    send_error(peer, id, EPROTO, "exec");
    goto done;
  }
  for (char **e = s.envp; *e; e++)
    if (!strncmp(*e, "PATH=", 5)) s.path = *e + 5;
  if (flags & EXEC_PTY) {
    s.pty = true;
    if ((master = open_terminal((uint16_t)(size >> 16), (uint16_t)size, &slave)) < 0) {
      send_error(peer, id, errno, "pty");
      goto done;
    }
    s.in = s.out = s.err = slave;
  } else {
    s.in = (flags & EXEC_STDIN) ? fds[0] : null_fd;
    s.out = fds[count - 2];
    s.err = fds[count - 1];
  }
  pid_t pid = vfork();
  if (pid == 0) become_command(&s);
  if (pid < 0) {
    send_error(peer, id, errno, "fork");
  } else if (s.error) {
    waitpid(pid, NULL, 0);
    send_error(peer, id, s.error, s.step);
  } else {
    uint32_t number = (uint32_t)pid;
    remember(id, peer, pid, JOB_COMMAND, "exec");
    send_frame(peer, T_STARTED, id, &number, sizeof number, master);
  }
done:
  if (master >= 0) close(master);
  if (slave >= 0) close(slave);
  free(s.argv);
  free(s.envp);
}

bool start_worker(int peer, uint32_t id, const char *step) {
  pid_t pid = fork();
  if (pid == 0) return true;
  if (pid < 0) send_error(peer, id, errno, step);
  else remember(id, peer, pid, JOB_WORKER, step);
  return false;
}

static void report(const struct job *j, int status, const struct rusage *use) {
  if (j->kind == JOB_WORKER) {
    int error = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
    if (error) send_error(j->peer, j->id, error, j->step);
    else send_frame(j->peer, T_OK, j->id, NULL, 0, -1);
    return;
  }
  struct message m = {.length = 0};
  put_u32(&m, (uint32_t)status);
  put_u64(&m, (uint64_t)use->ru_utime.tv_sec * 1000000u + (uint64_t)use->ru_utime.tv_usec);
  put_u64(&m, (uint64_t)use->ru_stime.tv_sec * 1000000u + (uint64_t)use->ru_stime.tv_usec);
  put_u64(&m, (uint64_t)use->ru_maxrss * 1024u);
  send_frame(j->peer, T_EXIT, j->id, m.data, m.length, -1);
}

void reap(void) {
  int status;
  struct rusage use;
  for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &use)) > 0;)
    for (struct job **at = &jobs; *at; at = &(*at)->next)
      if ((*at)->pid == pid) {
        struct job *j = *at;
        *at = j->next;
        if (j->peer >= 0) report(j, status, &use);
        free(j);
        break;
      }
}

int signal_group(pid_t pid, int number) { return kill(-pid, number); }

#define ROUNDS_MAX 100
struct process {
  pid_t pid, parent, session;
  char state;
  bool marked;
};
#define PROCESSES_MAX 16384
static struct process processes[PROCESSES_MAX];

static bool read_stat(int pid, struct process *p) {
  char path[32], line[512];
  int group;
  snprintf(path, sizeof path, "%d/stat", pid);
  int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
  if (fd >= 0) close(fd);
  if (size <= 0) return false;
  line[size] = 0;
  char *after = strrchr(line, ')'); /* the name itself may hold anything */
  *p = (struct process){.pid = pid};
  return after && sscanf(after + 1, " %c %d %d %d", &p->state, &p->parent, &group, &p->session) == 4;
}

static int scan(void) {
  char entries[32768];
  int n = 0, dir = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return 0;
  long got;
  while ((got = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0)
    for (long at = 0; at < got;) {
      unsigned short length;
      memcpy(&length, entries + at + 16, 2); /* struct linux_dirent64: ino, off, reclen, type, name */
      const char *name = entries + at + 19;
      at += length;
      if (*name < '1' || *name > '9' || n == PROCESSES_MAX) continue;
      struct process *p = &processes[n];
      if (read_stat(atoi(name), p) && p->state != 'Z' && p->state != 'X') n++;
    }
  close(dir);
  return n;
}

static void mark_tree(int n, pid_t root) {
  for (int i = 0; i < n; i++)
    processes[i].marked = processes[i].pid == root || processes[i].session == root;
  for (bool changed = true; changed;) {
    changed = false;
    for (int i = 0; i < n; i++) {
      if (processes[i].marked || processes[i].pid == 1) continue;
      for (int k = 0; k < n; k++)
        if (processes[k].marked && processes[k].pid == processes[i].parent) {
          processes[i].marked = changed = true;
          break;
        }
    }
  }
}

pid_t parent_of(pid_t pid) {
  struct process p;
  return read_stat(pid, &p) ? p.parent : -1;
}

/* Init and the bridges: no part of what the sandbox runs. */
static bool is_ours(pid_t pid) { return pid == 1 || is_peer(pid); }

/* Stop everything first, so that nothing can fork away from the kill: two scans in a row that see all of it still, for
   the first may have passed the place of a new child by. The root goes last, because its orphans become ours when it is
   gone. */
int signal_tree(pid_t root, int number) {
  int n = 0, total = 0;
  for (int round = 0, still = 0; round < ROUNDS_MAX && still < 2; round++) {
    struct timespec moment = {0, 100000};
    if (round > 2 && !still) nanosleep(&moment, NULL); /* other processors take a moment to stop what runs on them */
    n = scan();
    mark_tree(n, root);
    if (number != SIGKILL) break;
    still++;
    for (int i = 0; i < n; i++)
      if (processes[i].marked && processes[i].state != 'T') {
        kill(processes[i].pid, SIGSTOP);
        if (processes[i].state != 'D') still = 0; /* one that waits for its vforked child stops when that is gone */
      }
  }
  for (int last = 0; last < 2; last++)
    for (int i = 0; i < n; i++)
      if (processes[i].marked && (processes[i].pid == root) == last) total += kill(processes[i].pid, number) == 0;
  return total;
}

int live_processes(void) {
  int n = scan(), live = 0;
  for (int i = 0; i < n; i++) live += !is_ours(processes[i].pid);
  return live;
}

static pid_t *frozen;
static int frozen_count;

int freeze_all(void) {
  for (int round = 0, still = 0; round < ROUNDS_MAX && still < 2; round++) { /* as signal_tree does */
    struct timespec moment = {0, 100000};
    if (round > 2 && !still) nanosleep(&moment, NULL);
    int n = scan();
    still++;
    for (int i = 0; i < n; i++) {
      if (is_ours(processes[i].pid) || processes[i].state == 'T') continue;
      if (processes[i].state != 'D') still = 0;
      pid_t *grown = realloc(frozen, sizeof *frozen * (size_t)(frozen_count + 1));
      if (!grown) return -ENOMEM;
      frozen = grown;
      if (kill(processes[i].pid, SIGSTOP) == 0) frozen[frozen_count++] = processes[i].pid;
    }
  }
  return frozen_count;
}

int thaw_all(void) {
  int n = frozen_count;
  for (int i = 0; i < n; i++) kill(frozen[i], SIGCONT);
  frozen_count = 0;
  return n;
}

void end_jobs_of(int peer) {
  for (struct job *j = jobs; j; j = j->next)
    if (j->peer == peer) {
      j->peer = -1;
      signal_tree(j->pid, SIGKILL);
    }
}
