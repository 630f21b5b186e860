/* Commands: spawn them, say how they ended, and end them with whoever asked for them. */
#include "guest.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define LOOK_AGAIN_MS 10
#define REAPED_MAX 32
#define STARTING_MS 1000          /* whoever holds a lease on a program makes the kernel wait 45 s before it runs */

struct job *jobs;
int proc_fd = -1, null_fd = -1;

struct spawn {
  char **argv, **envp;
  const char *cwd, *path;
  int in, out, err, failed; /* the last one takes a struct failure and is closed by a good exec */
  bool pty;
};

enum step { STEP_USER, STEP_CHDIR, STEP_LIMIT, STEP_SECCOMP, STEP_EXEC };
static const char *const step_names[] = {"user", "chdir", "limit", "seccomp", "exec"};
struct failure {
  int error;
  enum step step;
};

static void remember(uint32_t id, int peer, pid_t pid, enum job_kind kind, const char *step) {
  struct job *j = malloc(sizeof *j);
  if (!j) {
    kill(pid, SIGKILL);
    return;
  }
  *j = (struct job){.id = id, .peer = peer, .pid = pid, .kind = kind, .step = step, .next = jobs};
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

/* The kernel's own call: libc hides the signals that it uses itself, and posix_spawn left them ignored. */
void default_signals(void) {
  static const char by_default[32];
  for (int n = 1; n <= 64; n++) syscall(SYS_rt_sigaction, n, by_default, NULL, 8);
}

static void become_command(struct spawn *s) {
  struct failure failure = {.step = STEP_USER};
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
  sigprocmask(SIG_SETMASK, &none, NULL);
  bool changed = become_user();
  if (changed) failure.step = STEP_CHDIR;
  if (changed && chdir(s->cwd) == 0) {
    struct sock_fprog program = {.len = settings.filter_length, .filter = settings.filter};
    struct rlimit files = {settings.open_files, settings.open_files};
    failure.step = STEP_LIMIT;
    if ((!settings.open_files || setrlimit(RLIMIT_NOFILE, &files) == 0) &&
        (!settings.limit_command || settings.limit_command())) {
      failure.step = STEP_SECCOMP;
      if (!settings.filter || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0) {
        failure.step = STEP_EXEC;
        exec_in_path(s);
      }
    }
  }
  failure.error = errno;
  (void)!write(s->failed, &failure, sizeof failure);
  _exit(127);
}

/* Wait until a child has become its program; whether it failed. One that somebody inside stops on the way, or holds up,
   counts as started: we would be held with it. */
static bool exec_failed(pid_t pid, int from, struct failure *failure) {
  for (int waited = 0; waited < STARTING_MS; waited += LOOK_AGAIN_MS) {
    struct pollfd told = {from, POLLIN, 0};
    siginfo_t stopped = {.si_pid = 0};
    if (poll(&told, 1, LOOK_AGAIN_MS) > 0) return read(from, failure, sizeof *failure) == sizeof *failure;
    if (waitid(P_PID, (id_t)pid, &stopped, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) < 0 || stopped.si_pid) return false;
  }
  return false;
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
  int ends[2] = {-1, -1}, master = -1, slave = -1, want = (flags & EXEC_PTY) ? 0 : 2 + !!(flags & EXEC_STDIN);
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
  if (pipe2(ends, O_CLOEXEC) < 0) {
    send_error(peer, id, errno, "fork");
    goto done;
  }
  s.failed = ends[1];
  struct failure failure;
  struct message before = {.length = 0};
  if (settings.container) put_counters(&before);
  pid_t pid = fork(); /* not vfork: who stops the child would stop us */
  if (pid == 0) become_command(&s);
  int error = errno;
  close(ends[1]);
  ends[1] = -1;
  if (pid < 0) {
    send_error(peer, id, error, "fork");
  } else if (exec_failed(pid, ends[0], &failure)) {
    send_error(peer, id, failure.error, step_names[failure.step]);
  } else {
    struct message started = {.length = 0};
    put_u32(&started, (uint32_t)pid);
    memcpy(started.data + started.length, before.data, before.length);
    started.length += before.length;
    remember(id, peer, pid, JOB_COMMAND, "exec");
    send_frame(peer, T_STARTED, id, started.data, started.length, master);
  }
done:
  for (int i = 0; i < 2; i++)
    if (ends[i] >= 0) close(ends[i]);
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
  if (status && settings.crowded && settings.crowded()) note_crowd();
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
  if (settings.container) put_counters(&m);
  send_frame(j->peer, T_EXIT, j->id, m.data, m.length, -1);
}

static bool forget(pid_t pid, int status, const struct rusage *use) {
  for (struct job **at = &jobs; *at; at = &(*at)->next)
    if ((*at)->pid == pid) {
      struct job *j = *at;
      if (WIFSTOPPED(status)) { /* a worker that somebody inside stops would leave its request without an answer */
        if (j->kind == JOB_WORKER && !is_frozen()) kill(pid, SIGKILL);
        return true;
      }
      *at = j->next;
      if (j->peer >= 0) report(j, status, use);
      free(j);
      return true;
    }
  return false;
}

static void reap_jobs(void) {
  int status;
  struct rusage use;
  for (struct job *j = jobs, *next; j; j = next) {
    pid_t pid = j->pid;
    next = j->next;
    if (wait4(pid, &status, WNOHANG | WUNTRACED, &use) == pid) forget(pid, status, &use);
  }
}

/* So many at a time: orphans may end as fast as we ask for them. Whether there may be more. */
bool reap(void) {
  int status;
  struct rusage use;
  for (int n = 0, orphans = 0; n < REAPED_MAX; n++) {
    if (settings.keep_dead && settings.keep_dead(orphans)) {
      reap_jobs();
      return false;
    }
    pid_t pid = wait4(-1, &status, WNOHANG | WUNTRACED, &use);
    if (pid <= 0) return false;
    if (WIFSTOPPED(status) && is_peer(pid)) kill(pid, SIGCONT); /* a bridge of our own: else nobody hears us */
    orphans = !forget(pid, status, &use) && !WIFSTOPPED(status);
  }
  return true;
}

void continue_workers(void) {
  for (struct job *j = jobs; j; j = j->next)
    if (j->kind == JOB_WORKER) kill(j->pid, SIGCONT);
}

void end_jobs_of(int peer) {
  for (struct job *j = jobs; j; j = j->next)
    if (j->peer == peer) {
      j->peer = -1;
      begin_kill(-1, 0, j->pid, false);
    }
}
