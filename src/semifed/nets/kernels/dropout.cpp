/* What dropout multiplies by: 0 or `scale`, drawn as semifed/keys.py draws, from one key for each client.
       keys [clients]    scales [clients][count]
   A number is kept if its 24 random bits are at least `threshold`. */

#include <stdint.h>

typedef struct {
    int32_t clients, count, threshold;
} shape;

static inline uint64_t scramble(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

extern "C" int dropout_scales(const shape *s, const uint64_t *keys, float *scales, float scale)
{
    for (int client = 0; client < s->clients; client++)
        for (int number = 0; number < s->count; number++) {
            uint64_t bits = scramble(keys[client] + 0x9E3779B97F4A7C15u * (uint64_t)(number + 1)) >> 40;
            *scales++ = bits >= (uint64_t)s->threshold ? scale : 0.0f;
        }
    return 0;
}
