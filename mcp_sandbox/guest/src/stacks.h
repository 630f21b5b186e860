/* Layers of overlayfs, put one upon the other without mounting them: what a directory or a name in it would show. */
#ifndef STACKS_H
#define STACKS_H

#include "guest.h"

#define LAYERS_MAX 2048

/* The way to a directory from the root of its layer, kept to the end of the process. Directories are opened anew by it
   when their turn comes: whoever made the tree chose its depth, and it may not cost descriptors or recursion. */
struct node {
  struct node *above; /* NULL is the root itself */
  char name[];
};
struct node *node_below(struct node *above, const char *name);
/* Malloc'ed; without a slash in front. */
char *node_path(const struct node *node);
int open_node(int root, const struct node *node);

/* A directory of one layer that shows through. */
struct part {
  int layer;
  struct node *at;
  dev_t dev;
  ino_t ino;
};
struct place {
  int count;
  struct part *part; /* from the top down */
};

/* Layers from the top down. */
struct stack {
  int count;
  int root[LAYERS_MAX];
  const char *prefix; /* of the marks in extended attributes: trusted.overlay. or user.overlay. */
};
int stack_open(struct stack *s, const char *path); /* put it below all others; an errno */
struct place stack_root(const struct stack *s);
bool same_place(const struct place *a, const struct place *b);
bool has_part(const struct place *p, const struct part *part);

/* The directories of a place, open; minus the errno where one could not be. */
int *open_place(const struct stack *s, const struct place *p);
void close_place(int *fds, const struct place *p);
/* Whether an errno says only that something is not there (any more), and not that it could not be looked at. */
bool is_absence(int error);

/* Names in open directories, each one once; nothing is kept of them, however many there are. */
struct names {
  const int *dir;
  int count, at;
  void *open; /* a DIR */
  int error;  /* the first one: names may be missing */
};
const char *next_name(struct names *n); /* NULL is the end, or an error */
void end_names(struct names *n);

/* What a name in a place shows. */
struct found {
  char kind;          /* f d l p c as in a record, s a socket, w a whiteout, 0 nothing */
  struct stat s;
  int layer, dir;     /* where it is; the descriptor is the place's */
  char name[NAME_MAX + 1];
  struct place below; /* of a directory; its parts are the caller's to free */
  bool closed;        /* nothing from below the stack would show through */
  char redirect[PATH_MAX]; /* where it goes on below the stack; "" is the same name */
  int error;          /* the first one: the rest may not be as it is shown */
};
void look_up(const struct stack *s, const struct place *p, const int *fds, const char *name, struct found *f);

/* Work that is left, the newest first. */
struct list {
  void *item;
  struct list *next;
};
void push(struct list **list, void *item);
void *pop(struct list **list);
void *room_for(size_t size); /* zeroed; the process ends where there is none */

/* compare.c, merge.c, contents.c */
int compare_main(int count, char **argument);
int merge_main(const char *prefix, const char *target, int count, char **layer);
/* Add the extended attributes of a file to a digest: all that count, or only those that programs inside see; an errno. */
int digest_attributes(const char *path, bool own, unsigned char *digest);
int contents_main(const char *layer, const char *target, int count, char **known);

#endif
