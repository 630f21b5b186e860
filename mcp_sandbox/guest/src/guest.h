/* Shared declarations of the guest agent. The frames are described in ../PROTOCOL.md. */
#ifndef GUEST_H
#define GUEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define PROTOCOL_VERSION 1u
#define FRAME_MAX 65536u          /* payload bytes of one frame */
#define MESSAGE_MAX (4u << 20)    /* payload bytes of one message, over all its frames */
#define FDS_MAX 4                 /* descriptors that one message carries */
#define FLAG_MORE 1u              /* the message goes on in the next frame */

enum type {
  T_HELLO = 1, T_EXEC, T_SIGNAL, T_RESIZE, T_OPEN, T_CREATE, T_COMMIT, T_STAT, T_PACK, T_UNPACK, T_REMOVE,
  T_RENAME, T_MKDIR, T_LISTEN, T_CONNECT, T_LIVE, T_FREEZE, T_THAW, T_QUIESCE, T_SHUTDOWN, T_PING,
  T_GATHER, T_PARK, T_PLUG, T_DETACH,
  T_DATA = 32, T_CREDIT, T_CLOSE,
  T_WELCOME = 64, T_OK, T_ERROR, T_STARTED, T_EXIT, T_GOING, T_ACCEPTED,
};
enum { EXEC_PTY = 1, EXEC_STDIN = 2 };
enum { OPEN_WRITE = 1, OPEN_APPEND = 2, OPEN_PARENTS = 4, CREATE_ONLY = 8 };
enum { PACK_META = 1, PACK_DIGEST = 2 };
enum { REMOVE_RECURSIVE = 1 };
enum { MKDIR_PARENTS = 1, MKDIR_EXIST_OK = 2 };
enum { SCOPE_GROUP = 0, SCOPE_TREE = 1 };
enum { GOING_RESTART = 1, GOING_SHUTDOWN = 2, GOING_DETACHED = 3, GOING_PARK = 4 };

struct head {
  uint32_t length, id;
  uint8_t type, flags;
  uint16_t channel;
} __attribute__((packed));

/* A cursor over a received payload. `bad` stays set after the first read beyond the end. */
struct cursor {
  const char *at, *end;
  bool bad;
};
uint32_t take_u32(struct cursor *c);
const char *take_string(struct cursor *c);
/* `count` strings, with a null pointer behind them; freed by the caller, valid while the payload is. */
char **take_strings(struct cursor *c, uint32_t count);

/* A message under construction. */
struct message {
  char data[8192];
  size_t length;
};
void put_u32(struct message *m, uint32_t v);
void put_u64(struct message *m, uint64_t v);
void put_string(struct message *m, const char *s);

/* One peer. Fragments of a message collect in `partial`. */
struct connection {
  int fd;
  pid_t pid;                /* of a peer in our own pid namespace; 0 is outside */
  uint32_t parked;          /* the name under which its bridge waits for another stream; 0 is none */
  bool detached;            /* its bridge tells nobody anything any more */
  bool unproven;            /* nothing is taken from it but the proof of who it is */
  char *partial;
  size_t length;
};
bool send_frame(int fd, uint8_t type, uint32_t id, const void *data, size_t length, int passed);
void send_error(int fd, uint32_t id, int error, const char *step);
/* The next whole message: 1, nothing yet: 0, end or protocol violation: -1. Descriptors beyond FDS_MAX are closed. */
int receive_message(struct connection *c, struct head *head, int *fds, int *count);

/* setup.c */
struct plan {
  char **token;
  int count;
  int fds[FDS_MAX];
};
const char *plan_option(const struct plan *p, const char *key);
long plan_number(const struct plan *p, const char *key, long missing);
int plan_steps(const struct plan *p); /* the first token behind the options */
int step_length(char **token);        /* in tokens */
void setup_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
extern int setup_report;           /* where a failed step is told */
extern jmp_buf *setup_recovery;    /* where it goes on after one; NULL ends the process */
int make_overlay(char **token, int *used);
int clone_tree(const char *source, unsigned attributes, int idmap);
int make_filesystem(const char *type, char *options, unsigned attributes);
void attach(int tree, const char *target);
void write_file(const char *path, const char *text);
void enter_sandbox(const struct plan *p, int *early, int early_count);
void load_filter(int fd);

/* zygote.c */
void zygote_main(void) __attribute__((noreturn));

/* agent.c */
struct settings {
  void *filter;             /* classic BPF program that every command runs under; NULL is none */
  unsigned short filter_length;
  rlim_t open_files;        /* that a command may have; 0 is as many as we */
  int grace_ms;             /* how long to outlive the last connection */
  int listener;             /* -1 is none */
  int first;                /* a connected peer; -1 is none */
  pid_t first_pid;
  bool (*crowded)(void);    /* whether no other process finds room; NULL where the host sees that */
  bool (*keep_dead)(int orphans); /* whether nobody asks for the dead now, so many orphans later; NULL is never */
  long (*dead_kept_us)(void);     /* how much longer; -1 is not at all */
  bool (*limit_command)(void); /* become one of those that are limited; NULL where init is one of them */
  bool container;           /* the engine may put bridges into our pid namespace */
  rlim_t processes;         /* that commands may have, where the kernel is the sandbox's own; 0 is not ours to limit */
  uid_t user;               /* whom commands belong to; 0 is whoever we are */
  gid_t group;
};
extern struct settings settings;
#define PEERS_MAX 64
extern struct connection peers[PEERS_MAX];
extern int peer_count;
void add_peer(int fd, pid_t pid);
bool is_peer(pid_t pid);
bool is_frozen(void);       /* or being frozen */
void answer_count(int peer, uint32_t id, int count); /* minus the errno is an error */
void end_freeze(int peer, uint32_t id, int count);
void agent_main(void) __attribute__((noreturn));
void container_main(int argc, char **argv) __attribute__((noreturn));
void stdio_main(int argc, char **argv) __attribute__((noreturn));

/* user.c: a user for commands who has no power over us, where nobody did so outside */
void give_place(const char *path, uid_t uid, gid_t gid);
void serve_user(uid_t uid, gid_t gid);
void make_files_of(uid_t uid, gid_t gid);
bool become_user(void);
void limit_open_files(rlim_t most);
void limit_processes(rlim_t most);

/* times.c: of files that came out of an image */
void take_times(const char *directory);
void set_times(void);

/* control.c: requests to gVisor from outside of it */
void call_main(char **argv) __attribute__((noreturn));
void enter_main(char **argv) __attribute__((noreturn));

/* counters.c */
void open_counters(void);
void put_counters(struct message *m);
void note_crowd(void);      /* where nobody else counts that no process found room */

/* exec.c */
void default_signals(void); /* for all that is started from now on */
enum job_kind { JOB_COMMAND, JOB_WORKER };
struct job {
  uint32_t id;
  int peer;                 /* descriptor of the connection that owns it */
  pid_t pid;
  enum job_kind kind;
  const char *step;
  bool killed;              /* with its tree, on request */
  struct job *next;
};
extern struct job *jobs;
extern int proc_fd, null_fd;
void exec_command(int peer, uint32_t id, struct cursor *c, int *fds, int count);
/* A forked copy of the agent for slow work: true in the child, which must _exit with 0 or an errno. */
bool start_worker(int peer, uint32_t id, const char *step);
bool reap(void);
struct job *find_job(int peer, uint32_t id);
void end_jobs_of(int peer);
void continue_workers(void);

/* processes.c */
/* 0 for a process that was put into our pid namespace from outside, -1 for one that is gone. */
pid_t parent_of(pid_t pid);
int signal_group(pid_t pid, int number);
int signal_tree(pid_t root, int number);
int live_processes(void);
int count_tasks(void);      /* threads of all but init and the bridges, the dead that nobody asked for too */
/* One look: stop what runs; whether all of it stood still already. */
bool stop_tree(pid_t root);
int stop_all(bool *still); /* how many are frozen so far, or minus the errno */
int kill_tree(pid_t root, bool tracers);
int thaw_all(void);

/* standstill.c: what takes several looks, in steps that each take as long as one. Answers by itself. */
void begin_kill(int peer, uint32_t id, pid_t root, bool tracers);
bool begin_freeze(int peer, uint32_t id);
void step_standstills(void);
long standstill_wait_us(void); /* until the next step is due; -1 is never */
void forget_peer_of_kills(int peer); /* it is gone; what is to be killed still is */
void cancel_freeze(bool told); /* before all stands still */

/* files.c: each answers its request by itself */
int open_inside(const char *path, int flags, mode_t mode);
int open_parent(const char *path, bool make, char *base, size_t size);
void file_open(int peer, uint32_t id, struct cursor *c);
void file_create(int peer, uint32_t id, struct cursor *c);
void file_commit(int peer, uint32_t id, struct cursor *c);
void file_stat(int peer, uint32_t id, struct cursor *c);
void file_remove(int peer, uint32_t id, struct cursor *c);
void file_rename(int peer, uint32_t id, struct cursor *c);
void file_mkdir(int peer, uint32_t id, struct cursor *c);
int remove_tree(int dir, const char *name);

/* links.c: the path under which this file was met before, NULL after remembering `path`; one memory per process */
const char *first_path(const struct stat *s, const char *path);
const char *known_path(const struct stat *s); /* the same, NULL if there is none */

/* pack.c */
void tree_pack(int peer, uint32_t id, struct cursor *c, int out);
void tree_unpack(int peer, uint32_t id, struct cursor *c, int in);

/* net.c */
void net_listen(int peer, uint32_t id, struct cursor *c);
void net_connect(int peer, uint32_t id, struct cursor *c);

/* capture.c */
void gather_bridges(int peer, uint32_t id);
void detach_bridges(int peer, uint32_t id);
void note_parked(int peer, struct cursor *c);
void plug_bridge(int peer, uint32_t id, struct cursor *c, const int *fds, int count);

/* gvisor.c */
void gvisor_main(int argc, char **argv) __attribute__((noreturn));

/* bridge.c */
void bridge_main(const char *directory, int timeout_s, uid_t uid, gid_t gid) __attribute__((noreturn));
void plug_main(const char *directory, uint32_t name) __attribute__((noreturn));
void bridge_serve(int agent, int timeout_s) __attribute__((noreturn));

/* probe.c */
void probe_main(int count, char **argument) __attribute__((noreturn));

/* layers.c: work on trees from outside */
int layer_copy(const char *source, const char *target);
int layer_remove(const char *path);
int copy_one_file(int from, const char *name, int to); /* with all that belongs to it, under the same name */
void open_many_files(void);
/* What rename(2) does to a directory, where overlayfs refuses (EXDEV): copy beside the target, rename, remove. */
int move_directory(int from, const char *source, int to, const char *target, unsigned flags);
int directory_skeleton(const char *source, const char *target);
/* What a tree takes on its disk, added up over calls; an error means that something could not be counted. */
#define PARTS 1024u               /* of a file that has several names */
struct usage {
  uint64_t bytes, parts;
};
int tree_usage(const char *path, struct usage *sum);

/* attributes.c */
#define ATTRIBUTE_VALUE_MAX 65536         /* of a value, and of all names together: XATTR_SIZE_MAX, XATTR_LIST_MAX */
#define FILE_ATTRIBUTES_MAX (128u << 10) /* of a file, names and values */
/* Where the value goes; NULL if there is no such attribute of programs, or they are too many. */
char *keep_attribute(const char *name, size_t length, uint64_t size);
bool attributes_kept(void);
int set_kept_attributes(int fd); /* an errno */
void forget_attributes(void);

#endif
