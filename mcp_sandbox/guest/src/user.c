/* Who commands are in a container that the engine starts as root: an ordinary user, and none of them can reach us. */
#include "guest.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

#define FIRST_TO_GO "100"         /* of 1000: commands are killed for memory before agent and bridges are */

static void fail(const char *step) {
  dprintf(2, "mcp-sandbox guest: %s: %s\n", step, strerror(errno));
  _exit(70);
}

static void give_up_power(void) {
  struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
  if (syscall(SYS_capset, &head, none) < 0) fail("capset");
}

/* A directory of the user's, with those above it that an image lacks. One for everybody (a name that ends in a slash)
   is only made. */
void give_place(const char *path, uid_t uid, gid_t gid) {
  char part[PATH_MAX];
  size_t length = strlen(path);
  bool shared = length > 1 && path[length - 1] == '/';
  if (length < 2 || length >= sizeof part) return;
  memcpy(part, path, length + 1);
  if (shared) part[--length] = 0;
  for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    mkdir(part, 0755);
    *at = '/';
  }
  bool made = mkdir(part, 0755) == 0;
  int fd = open(part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat s;
  if (shared && made) (void)!chmod(part, 01777);
  if (!shared && (fd < 0 || fstat(fd, &s) < 0 || (s.st_uid != uid && fchown(fd, uid, gid) < 0))) fail(part);
  if (fd >= 0) close(fd);
}

static void drop_bounding_set(void) {
  for (unsigned long number = 0; prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0; number++)
    if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0) fail("drop capabilities");
}

/* Root stays our real and our saved id, so that no command may signal or trace us; the effective one is theirs, so that
   we meet files as they do. A process without capabilities may still take any of its three ids: commands become that
   user for good, and workers stay what we are. */
void serve_user(uid_t uid, gid_t gid) {
  drop_bounding_set();
  if (setgroups(1, &gid) < 0 || setresgid(0, gid, 0) < 0 || setresuid(0, uid, 0) < 0) fail("change the user");
  give_up_power();
  settings.user = uid;
  settings.group = gid;
}

/* Whoever has our effective id may set our priority and processors, and the filter of commands knows only init by its
   number: what is not init takes no more of the user's than the id of the files that it makes. gVisor cannot do that. */
void make_files_of(uid_t uid, gid_t gid) {
  setfsgid(gid);
  setfsuid(uid);
  if (setfsuid((uid_t)-1) != (int)uid) {
    serve_user(uid, gid);
    return;
  }
  drop_bounding_set();
  if (setgroups(1, &gid) < 0) fail("change the user");
  give_up_power();
}

bool become_user(void) {
  if (!settings.user) return true;
  if (setresuid(0, 0, settings.user) == 0) { /* until a program runs, the files of /proc about us are root's */
    int fd = openat(proc_fd, "self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
      (void)!write(fd, FIRST_TO_GO, sizeof FIRST_TO_GO - 1);
      close(fd);
    }
  }
  struct rlimit processes = {settings.processes, settings.processes};
  if (settings.processes && setrlimit(RLIMIT_NPROC, &processes) < 0) return false;
  return setresgid(settings.group, settings.group, settings.group) == 0 &&
         setresuid(settings.user, settings.user, settings.user) == 0;
}

/* A resource limit counts nobody whom it refused: a command that failed among as many as there may be is taken for one. */
static bool is_crowded(void) { return (rlim_t)live_processes() + 1 >= settings.processes; }

void limit_processes(rlim_t most) {
  settings.processes = most;
  if (most) settings.crowded = is_crowded;
}

void limit_open_files(rlim_t most) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) < 0) fail("limit of open files");
  settings.open_files = most && most < files.rlim_max ? most : files.rlim_max;
}
