/* Requests to runsc's control socket, as runsc itself makes them: a program of its own for each takes far longer. */
#include "guest.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define ANSWER_MAX 4096
#define GOOD "{\"success\":true,"

static void die(const char *why) {
  dprintf(2, "%s\n", why);
  _exit(70);
}

static int connect_control(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  int control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (control < 0 || connect(control, (struct sockaddr *)&address, sizeof address) < 0) die(strerror(errno));
  return control;
}

static void send_request(int control, const char *method, const char *argument, bool streams) {
  int fds[3] = {0, 1, 2};
  struct iovec part[5] = {
      {"{\"method\":\"", 11}, {(void *)method, strlen(method)}, {"\",\"arg\":", 8}, {(void *)argument, strlen(argument)}, {"}", 1},
  };
  union {
    char space[CMSG_SPACE(sizeof fds)];
    struct cmsghdr align;
  } passed = {.space = {0}};
  struct msghdr message = {.msg_iov = part, .msg_iovlen = 5};
  size_t size = 0;
  for (int i = 0; i < 5; i++) size += part[i].iov_len;
  if (streams) {
    message.msg_control = passed.space;
    message.msg_controllen = sizeof passed.space;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fds)};
    memcpy(CMSG_DATA(c), fds, sizeof fds);
  }
  if (sendmsg(control, &message, MSG_NOSIGNAL) != (ssize_t)size) die("the request did not fit"); /* a few hundred bytes */
}

static bool is_whole(const char *text, size_t size) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < size; i++) {
    if (quoted && text[i] == '\\') i++;
    else if (text[i] == '"') quoted = !quoted;
    else if (!quoted && text[i] == '{') depth++;
    else if (!quoted && text[i] == '}' && --depth == 0) return true;
  }
  return false;
}

/* {"success":true,"err":"","result":...}, from whoever may have broken out of gVisor. Returns the number of the result. */
static long take_answer(int control) {
  static char answer[ANSWER_MAX];
  size_t have = 0;
  while (!is_whole(answer, have)) {
    ssize_t n = have < sizeof answer - 1 ? read(control, answer + have, sizeof answer - 1 - have) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) die("runsc did not answer");
    have += (size_t)n;
  }
  answer[have] = 0;
  if (strncmp(answer, GOOD, sizeof GOOD - 1)) die(answer);
  const char *result = strstr(answer, "\"result\":");
  return result ? atol(result + 9) : 0;
}

/* call SOCKET METHOD ARGUMENT */
void call_main(char **argv) {
  int control = connect_control(argv[2]);
  send_request(control, argv[3], argv[4], false);
  take_answer(control);
  _exit(0);
}

/* enter SOCKET CONTAINER ARGUMENT: run a program in it with our own streams, and end as it does. */
void enter_main(char **argv) {
  char waited[256];
  int control = connect_control(argv[2]);
  send_request(control, "containerManager.ExecuteAsync", argv[4], true);
  snprintf(waited, sizeof waited, "{\"PID\":%ld,\"CID\":\"%s\"}", take_answer(control), argv[3]);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < 2; fd++) dup2(null, fd);
  send_request(control, "containerManager.WaitPID", waited, false);
  long status = take_answer(control);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 70);
}
