/* What dropout multiplies by: 0 or `scale`, drawn as semifed/keys.py draws, from one key for each client, which is first
   folded with some numbers that all clients share.
       keys [clients]    folds [depth]    scales [clients][count]
   A number is kept if its 24 random bits are at least `threshold`. */

#include <stdint.h>

typedef struct {
    int32_t clients, count, threshold, depth;
} shape;

static inline uint64_t scramble(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t fold(uint64_t key, uint64_t more) { return scramble(key + 0x9E3779B97F4A7C15u * (more + 1)); }

extern "C" int dropout_scales(const shape *s, const uint64_t *keys, const uint64_t *folds, float *scales, float scale)
{
    for (int client = 0; client < s->clients; client++) {
        uint64_t key = keys[client];
        for (int f = 0; f < s->depth; f++) key = fold(key, folds[f]);
        for (int number = 0; number < s->count; number++)
            *scales++ = fold(key, (uint64_t)number) >> 40 >= (uint64_t)s->threshold ? scale : 0.0f;
    }
    return 0;
}
