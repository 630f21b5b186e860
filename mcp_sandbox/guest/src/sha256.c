#define _GNU_SOURCE
#include "sha256.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define FILE_BLOCK 65536

static const uint32_t constants[64] = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t turn(uint32_t value, int by) { return value >> by | value << (32 - by); }

/* The eight words change places by their names, not by copies: that is three times as fast. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                     \
  h += (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + (g ^ (e & (f ^ g))) + constants[i] + w[i];                 \
  d += h;                                                                                                    \
  h += (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) | (c & (a | b)))

static void take_block(struct sha256 *s, const unsigned char *data) {
  uint32_t w[64], a = s->state[0], b = s->state[1], c = s->state[2], d = s->state[3], e = s->state[4], f = s->state[5],
                  g = s->state[6], h = s->state[7];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
  for (int i = 16; i < 64; i++)
    w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
           (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
  for (int i = 0; i < 64; i += 8) {
    ROUND(a, b, c, d, e, f, g, h, i);
    ROUND(h, a, b, c, d, e, f, g, i + 1);
    ROUND(g, h, a, b, c, d, e, f, i + 2);
    ROUND(f, g, h, a, b, c, d, e, i + 3);
    ROUND(e, f, g, h, a, b, c, d, i + 4);
    ROUND(d, e, f, g, h, a, b, c, i + 5);
    ROUND(c, d, e, f, g, h, a, b, i + 6);
    ROUND(b, c, d, e, f, g, h, a, i + 7);
  }
  const uint32_t more[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; i++) s->state[i] += more[i];
}

void sha256_begin(struct sha256 *s) {
  *s = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *s, const void *data, size_t length) {
  const unsigned char *at = data;
  while (length) {
    size_t used = s->length % 64, n = 64 - used < length ? 64 - used : length;
    if (n == 64) take_block(s, at);
    else {
      memcpy(s->block + used, at, n);
      if (used + n == 64) take_block(s, s->block);
    }
    s->length += n;
    at += n;
    length -= n;
  }
}

int sha256_add_file(struct sha256 *s, int fd, off_t size) {
  static char block[FILE_BLOCK], zeros[FILE_BLOCK];
  for (off_t at = 0; at < size;) {
    off_t data = lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return 0;
    at = (data < 0 ? at : data) / FILE_BLOCK * FILE_BLOCK; /* some file systems know no holes */
    ssize_t n = pread(fd, block, FILE_BLOCK, at);
    if (n <= 0) return n < 0 ? errno : 0;
    if (memcmp(block, zeros, (size_t)n)) {
      uint64_t place = (uint64_t)at;
      sha256_add(s, &place, sizeof place);
      sha256_add(s, block, (size_t)n);
    }
    at += FILE_BLOCK;
  }
  return 0;
}

void sha256_end(struct sha256 *s, unsigned char digest[SHA256_BYTES]) {
  uint64_t bits = s->length * 8;
  unsigned char tail[8];
  for (int i = 0; i < 8; i++) tail[i] = (unsigned char)(bits >> (56 - 8 * i));
  sha256_add(s, "\x80", 1);
  while (s->length % 64 != 56) sha256_add(s, "", 1);
  sha256_add(s, tail, sizeof tail);
  for (int i = 0; i < SHA256_BYTES; i++) digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
