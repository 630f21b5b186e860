/* SHA-256 (FIPS 180-4). */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SHA256_BYTES 32

struct sha256 {
  uint32_t state[8];
  uint64_t length;
  unsigned char block[64];
};
void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t length);
/* An open file; of its holes and blocks of zeros only the places count. An errno, else 0. */
int sha256_add_file(struct sha256 *s, int fd, off_t size);
void sha256_end(struct sha256 *s, unsigned char digest[SHA256_BYTES]);

#endif
