/* What the agent has to do with an engine that writes down everything that runs: bridges without streams, and new ones. */
#include "guest.h"

#include <signal.h>
#include <sys/socket.h>

/* Before everything that runs is written down: no bridge may hold a stream then. The answer is how many still do. */
void gather_bridges(int peer, uint32_t id) {
  uint32_t reason = GOING_PARK, left = 0;
  for (int i = 0; i < peer_count; i++) {
    if (peers[i].fd == peer || peers[i].parked || peers[i].detached || peers[i].unproven) continue;
    left++;
    send_frame(peers[i].fd, T_GOING, 0, &reason, sizeof reason, -1);
  }
  send_frame(peer, T_OK, id, &left, sizeof left, -1);
}

/* Afterwards, somewhere else: nobody comes back for what the bridges hold, and their commands go on. */
void detach_bridges(int peer, uint32_t id) {
  uint32_t reason = GOING_DETACHED;
  for (int i = 0; i < peer_count; i++) {
    if (peers[i].fd == peer) continue;
    peers[i].detached = true;
    send_frame(peers[i].fd, T_GOING, 0, &reason, sizeof reason, -1);
  }
  send_frame(peer, T_OK, id, NULL, 0, -1);
}

void note_parked(int peer, struct cursor *c) {
  for (int i = 0; i < peer_count; i++)
    if (peers[i].fd == peer) peers[i].parked = take_u32(c);
}

/* Without a program of its own, which gVisor would take milliseconds to start. */
static void become_bridge(void) {
  sigset_t none;
  sigemptyset(&none);
  if (syscall(SYS_close_range, 4u, 0x7fffffffu, 0u) < 0 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0) return;
  sigprocmask(SIG_SETMASK, &none, NULL);
  bridge_serve(3, 60);
}

/* A bridge of our own: whoever the engine puts inside does not outlive being written down. */
static void start_bridge(int peer, uint32_t id, const int *fds) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
    send_error(peer, id, errno, "bridge");
    return;
  }
  pid_t pid = fork();
  if (pid == 0) {
    if (dup2(fds[0], 0) == 0 && dup2(fds[1], 1) == 1 && dup2(null_fd, 2) == 2 && dup2(ends[1], 3) == 3)
      become_bridge();
    _exit(70);
  }
  int error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    send_error(peer, id, error, "bridge");
    return;
  }
  send_frame(peer, T_OK, id, NULL, 0, -1);
  add_peer(ends[0], pid);
}

void plug_bridge(int peer, uint32_t id, struct cursor *c, const int *fds, int count) {
  uint32_t name = take_u32(c);
  if (!name && !c->bad && count == 2) {
    start_bridge(peer, id, fds);
    return;
  }
  for (int i = 0; i < peer_count && name && count == 2; i++) {
    if (peers[i].parked != name) continue;
    peers[i].parked = 0;
    for (uint32_t end = 0; end < 2; end++) send_frame(peers[i].fd, T_PLUG, end, NULL, 0, fds[end]);
    send_frame(peer, T_OK, id, NULL, 0, -1);
    return;
  }
  send_error(peer, id, ESRCH, "plug");
}
