/* Tries what a sandbox must not allow, and tells how each try ended. What to try is data: Python decides, and judges. The
   same program runs outside of the sandbox, where it must find what there is to find.

   Arguments: one operation after the other. Answer to each: "<errno> <length>\n" and that many bytes. */
#include "guest.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define CONTENT_MAX (256 << 10)
#define ENTRIES_MAX 200000
#define CHILDREN_MAX 4096
#define DEPTH_MAX 64

static char content[CONTENT_MAX + 4096];
static size_t length;

static void answer(int error) {
  char line[64];
  int n = snprintf(line, sizeof line, "%d %zu\n", error, length);
  if (write(1, line, (size_t)n) != n) _exit(3);
  for (size_t at = 0; at < length;) {
    ssize_t done = write(1, content + at, length - at);
    if (done <= 0) _exit(3);
    at += (size_t)done;
  }
}

static void add(const char *text) {
  size_t n = strlen(text) + 1;
  if (length + n > CONTENT_MAX) return;
  memcpy(content + length, text, n);
  length += n;
}

static int read_whole(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return errno;
  ssize_t n = 0;
  while (length < CONTENT_MAX && (n = read(fd, content + length, CONTENT_MAX - length)) > 0) length += (size_t)n;
  int error = n < 0 ? errno : 0;
  close(fd);
  return error;
}

static int names_in(const char *path) {
  DIR *d = opendir(path);
  if (!d) return errno;
  for (struct dirent *e; (e = readdir(d));)
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) add(e->d_name);
  closedir(d);
  return 0;
}

/* The environment and the arguments of every process there is. */
static int every_process(void) {
  char path[64];
  DIR *d = opendir("/proc");
  if (!d) return errno;
  for (struct dirent *e; (e = readdir(d));) {
    if (atoi(e->d_name) <= 0) continue;
    const char *files[] = {"environ", "cmdline"};
    for (int i = 0; i < 2; i++) {
      snprintf(path, sizeof path, "/proc/%d/%s", atoi(e->d_name), files[i]);
      read_whole(path); /* one that we may not look at tells nothing */
    }
  }
  closedir(d);
  return 0;
}

/* Paths whose last part holds a text, anywhere but in /usr and /proc. */
static int left;
static void search(const char *top, const char *text, int depth) {
  char path[PATH_MAX];
  DIR *d = opendir(top);
  if (!d) return;
  for (struct dirent *e; left > 0 && (e = readdir(d)); left--) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    if (depth == 0 && (!strcmp(e->d_name, "usr") || !strcmp(e->d_name, "proc"))) continue;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", depth ? top : "", e->d_name) >= sizeof path) continue;
    if (strstr(e->d_name, text)) add(path);
    if (e->d_type == DT_DIR && depth < DEPTH_MAX) search(path, text, depth + 1);
  }
  closedir(d);
}

static int connect_to(int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int error = fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  return error;
}

/* How many processes can be there at once. */
static int count_children(int most) {
  static pid_t children[CHILDREN_MAX];
  int n = 0, error = 0;
  while (n < most && n < CHILDREN_MAX && (children[n] = fork()) >= 0) {
    if (children[n] == 0) {
      for (;;) pause();
    }
    n++;
  }
  if (n < most) error = errno;
  for (int i = 0; i < n; i++) kill(children[i], SIGKILL);
  for (int i = 0; i < n; i++) waitpid(children[i], NULL, 0);
  length = (size_t)snprintf(content, sizeof content, "%d", n);
  return error;
}

/* How much memory one process can have; ENOMEM if it was killed, or refused, before it had all. */
static int use_memory(size_t most) {
  int status;
  size_t *touched = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t pid = touched == MAP_FAILED ? -1 : fork();
  if (pid < 0) return errno;
  if (pid == 0) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); /* this one is to go, not who asks */
    if (fd >= 0) (void)!write(fd, "1000", 4);
    char *memory = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(ENOMEM);
    for (; *touched < most; *touched += 4096) memory[*touched] = 1;
    _exit(0);
  }
  if (waitpid(pid, &status, 0) < 0) return errno;
  length = (size_t)snprintf(content, sizeof content, "%zu", *touched);
  munmap(touched, 4096);
  return WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) == SIGKILL ? ENOMEM : EINTR;
}

/* How many bytes a file can have. */
static int fill(const char *path, size_t most) {
  static char block[1 << 16];
  size_t written = 0;
  int error = 0, fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  memset(block, 1, sizeof block);
  while (written < most && !error) {
    ssize_t n = write(fd, block, sizeof block);
    if (n < 0) error = errno;
    else written += (size_t)n;
  }
  close(fd);
  unlink(path);
  length = (size_t)snprintf(content, sizeof content, "%zu", written);
  return error;
}

/* How many files there can be in a new directory. */
static int make_files(const char *path, int most) {
  char name[32];
  int n = 0, error = 0, fd, dir = mkdir(path, 0700) < 0 ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return errno;
  for (; n < most; n++) {
    snprintf(name, sizeof name, "%d", n);
    if ((fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) {
      error = errno;
      break;
    }
    close(fd);
  }
  close(dir);
  length = (size_t)snprintf(content, sizeof content, "%d", n);
  return error;
}

/* One system call, in a process of its own: what it changes ends with that. Arguments: a number, `@text`, or `*` for a
   page of zeroes. */
static int call(char **arguments) {
  static char page[4096];
  long a[7];
  int status;
  for (int i = 0; i < 7; i++)
    a[i] = *arguments[i] == '@' ? (long)(arguments[i] + 1) : *arguments[i] == '*' ? (long)page : strtol(arguments[i], NULL, 0);
  pid_t pid = fork();
  if (pid < 0) return errno;
  if (pid == 0) {
    pid_t self = getpid();
    errno = 0;
    long done = syscall(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    _exit(getpid() == self && done < 0 ? errno : 0); /* the child of a `clone` says nothing */
  }
  if (waitpid(pid, &status, 0) < 0) return errno;
  length = (size_t)snprintf(content, sizeof content, "%d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

void probe_main(int count, char **argument) {
  for (int i = 0; i < count; i++) {
    const char *operation = argument[i], *first = i + 1 < count ? argument[i + 1] : "";
    int error = 0;
    length = 0;
    if (!strcmp(operation, "wait")) { /* for whoever looks at this process from outside */
      char byte;
      answer(0);
      while (read(0, &byte, 1) > 0) {}
      continue;
    }
    if (!strcmp(operation, "processes")) error = every_process();
    else if (!strcmp(operation, "call") && i + 7 < count) {
      error = call(argument + i + 1);
      i += 7;
    } else if ((!strcmp(operation, "fill") || !strcmp(operation, "files")) && i + 2 < count) {
      size_t most = (size_t)strtoull(argument[i + 2], NULL, 10);
      error = !strcmp(operation, "fill") ? fill(first, most) : make_files(first, (int)most);
      i += 2;
    } else {
      i++;
      if (!strcmp(operation, "read")) error = read_whole(first);
      else if (!strcmp(operation, "names")) error = names_in(first);
      else if (!strcmp(operation, "connect")) error = connect_to(atoi(first));
      else if (!strcmp(operation, "children")) error = count_children(atoi(first));
      else if (!strcmp(operation, "memory")) error = use_memory((size_t)strtoull(first, NULL, 10));
      else if (!strcmp(operation, "search")) {
        left = ENTRIES_MAX;
        search("/", first, 0);
        error = left > 0 ? 0 : E2BIG; /* not all was looked at */
      } else if (!strcmp(operation, "link")) {
        ssize_t n = readlink(first, content, CONTENT_MAX);
        error = n < 0 ? errno : 0;
        length = n < 0 ? 0 : (size_t)n;
      } else if (!strcmp(operation, "change")) {
        int fd = open(first, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        error = fd < 0 ? errno : 0;
        if (fd >= 0) close(fd);
      } else _exit(2);
    }
    answer(error);
  }
  _exit(0);
}
