/* Convolution (stride 1, zero padding), 2x2 max-pooling and relu as one operation, and its gradient.

   Everything is stacked over clients, each with weights of its own:
       x [clients][rows][in][height][width]    weight [clients][out][in][KERNEL][KERNEL]    bias [clients][out]
       y, winner [clients][rows][out][pooled height][pooled width]
   Clients go one after the other, and every sum runs in an order that the client's own rows fix: its numbers do not
   depend on the others. One thread. KERNEL is a constant of the build, so that the inner loops unroll. */

#pragma once

#include "vectors.h"

#define NOBODY 4 /* the winner of a window that relu has cut off; else 0 to 3, line by line */

typedef struct {
    int32_t clients, rows, in, out, height, width, padding;
} shape;

static inline int pooled(int size, int padding) { return (size + 2 * padding - KERNEL + 1) / 2; }
