/* One static program, several roles; the first argument says which. */
#include "guest.h"
#include "stacks.h"

#include <sched.h>
#include <sys/prctl.h>

/* Without privilege, a user namespace of its own lets us read and remove what a sandbox's root made unreadable. */
static void own_namespace(void) {
  char map[64];
  uid_t uid = geteuid();
  gid_t gid = getegid();
  if (uid == 0) return;
  if (unshare(CLONE_NEWUSER) < 0) return;
  write_file("/proc/self/setgroups", "deny");
  snprintf(map, sizeof map, "0 %u 1", uid);
  write_file("/proc/self/uid_map", map);
  snprintf(map, sizeof map, "0 %u 1", gid);
  write_file("/proc/self/gid_map", map);
}

static int finish(int error, const char *what) {
  if (error) dprintf(2, "%s: %s\n", what, strerror(error));
  return error ? 1 : 0;
}

/* Whatever else wants the processor or the disk goes first. */
static void give_way(void) {
  setpriority(PRIO_PROCESS, 0, 19);
  syscall(SYS_ioprio_set, 1, 0, 3 << 13); /* IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE */
}

/* Nothing we open may take the place of a standard stream. */
static void fill_standard_streams(void) {
  int fd;
  while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd < 3) {}
  if (fd > 2) close(fd);
}

int main(int argc, char **argv) {
  const char *role = argc > 1 ? argv[1] : "";
  fill_standard_streams();
  if (!strcmp(role, "zygote")) {
    syscall(SYS_close_range, 4u, ~0u, 0u);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    zygote_main();
  }
  if (!strcmp(role, "init")) container_main(argc, argv);
  if (!strcmp(role, "gvisor")) gvisor_main(argc, argv);
  if (!strcmp(role, "stdio")) stdio_main(argc, argv);
  if (!strcmp(role, "bridge"))
    bridge_main(argc > 2 ? argv[2] : "/.mcp-sandbox", argc > 3 ? atoi(argv[3]) : 60, argc > 5 ? (uid_t)atol(argv[4]) : 0,
                argc > 5 ? (gid_t)atol(argv[5]) : 0);
  if (!strcmp(role, "plug") && argc == 4) plug_main(argv[2], (uint32_t)atol(argv[3]));
  if (!strcmp(role, "call") && argc == 5) call_main(argv);
  if (!strcmp(role, "enter") && argc == 5) enter_main(argv);
  if (!strcmp(role, "probe")) probe_main(argc - 2, argv + 2);
  if (!strcmp(role, "copy") && argc == 4) {
    own_namespace();
    return finish(layer_copy(argv[2], argv[3]), "copy");
  }
  if (!strcmp(role, "remove") && argc == 3) {
    own_namespace();
    return finish(layer_remove(argv[2]), "remove");
  }
  if (!strcmp(role, "usage") && argc > 2) {
    struct usage sum = {0, 0};
    int error = 0;
    own_namespace();
    open_many_files();
    for (int i = 2; i < argc && !error; i++) error = tree_usage(argv[i], &sum);
    dprintf(1, "%llu %llu\n", (unsigned long long)sum.bytes, (unsigned long long)(sum.parts / PARTS));
    return finish(error, "usage");
  }
  if (!strcmp(role, "compare")) {
    own_namespace();
    open_many_files();
    return finish(compare_main(argc - 2, argv + 2), "compare");
  }
  if (!strcmp(role, "merge") && argc > 4) {
    own_namespace();
    open_many_files();
    return finish(merge_main(argv[2], argv[3], argc - 4, argv + 4), "merge");
  }
  if (!strcmp(role, "contents") && argc > 4) {
    if (!strcmp(argv[2], "behind")) give_way();
    own_namespace();
    open_many_files();
    return finish(contents_main(argv[3], argv[4], argc - 5, argv + 5), "contents");
  }
  if (!strcmp(role, "skeleton") && argc == 4) return finish(directory_skeleton(argv[2], argv[3]), "skeleton");
  dprintf(2, "usage: guest zygote | init [DIRECTORY [GRACE_MS [UID GID FILES PROCESSES PLACE...]]] | "
             "gvisor PIDS DIRECTORY FILTER | bridge [DIRECTORY [TIMEOUT_S [UID GID]]] | "
             "plug DIRECTORY NAME | call SOCKET METHOD ARGUMENT | enter SOCKET CONTAINER ARGUMENT | stdio [TIMEOUT_S] | probe OPERATION... | copy FROM TO | remove TREE | skeleton FROM TO | compare ... | "
             "usage TREE... | merge PREFIX TO TREE... | contents behind|now LAYER LIST [KNOWN...]\n");
  return 2;
}
