/* What the two halves of the bridge share: channels.c moves bytes, bridge.c frames. */
#ifndef BRIDGE_H
#define BRIDGE_H

#include "guest.h"

#define CHANNELS_MAX 1024
#define WINDOW (256u << 10)       /* bytes that a sender may be ahead of the receiver's credit */
#define QUEUE_HIGH (1u << 20)     /* outgoing bytes beyond which nothing more is read */
#define ADDRESS_SIZE 8            /* before every datagram: IPv4 address, port, two zero bytes */
enum { TO_GUEST = 0, STDOUT = 1, STDERR = 2 };

struct channel {
  uint32_t id, window;            /* credit left, for data to the host */
  uint64_t sent;                  /* bytes that went to the host */
  uint16_t number;
  int fd;
  bool socket, datagrams;
  bool closing;                   /* the host sent its end; close once flushed */
  char *buffer;                   /* what the descriptor did not take yet; or what a command said before its end */
  size_t length, start;
};
extern struct channel channels[CHANNELS_MAX];
extern int channel_count;

void bridge_die(const char *why) __attribute__((noreturn));

/* parking.c */
extern bool parked;               /* without a stream, until we get another one */
extern bool detached;             /* for good: what our commands say is for nobody */
void park(int agent, uint32_t name);
void take_stream(uint32_t end, int fd);
void detach(void);

/* The queue of frames for the host. */
void to_host(uint8_t type, uint16_t number, uint32_t id, const void *data, size_t length);
void error_to_host(uint32_t id, int error, const char *step);
void flush_queue(void);
void drop_queue(void);
bool queue_empty(void);
bool queue_full(void);

struct channel *find_channel(uint32_t id, uint16_t number);
bool open_channel(uint32_t id, uint16_t number, int fd);
void close_channel(struct channel *c, int error, bool tell);
void drop_channels(uint32_t id);
bool wants_poll(const struct channel *c);
void pump(struct channel *c);
void add_credit(struct channel *c, uint32_t bytes);
void data_from_host(uint32_t id, uint16_t number, const char *data, size_t length);
void close_from_host(struct channel *c);
/* Bytes of a command's stream that come before its end: those sent, and those in the pipe. */
uint64_t before_exit(uint32_t id, uint16_t number);

#endif
