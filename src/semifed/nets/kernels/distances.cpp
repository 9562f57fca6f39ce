/* The squared distance of two tensors and its gradient, each in one pass over the memory. */

#include "vectors.h"

#define SUMS 4
#define PIECE 4096 /* numbers that are summed in float; sums of pieces are added in double */

static double of_piece(int64_t size, const float *one, const float *two)
{
    const int lot = SUMS * lanes<wide>;
    wide sum[SUMS] = {};
    int64_t i = 0;
    for (; i + lot <= size; i += lot)
        UNROLL for (int k = 0; k < SUMS; k++) {
            const wide apart = load_as<wide>(one + i + k * lanes<wide>) - load_as<wide>(two + i + k * lanes<wide>);
            sum[k] = add_product(apart, apart, sum[k]);
        }
    const wide all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int k = 0; k < lanes<wide>; k++) total += all[k];
    for (; i < size; i++) total += (double)(one[i] - two[i]) * (one[i] - two[i]);
    return total;
}

extern "C" double squared_distance(int64_t size, const float *one, const float *two)
{
    double total = 0;
    for (int64_t i = 0; i < size; i += PIECE)
        total += of_piece(size - i < PIECE ? size - i : PIECE, one + i, two + i);
    return total;
}

/* scale * (one - two). It goes past the caches, where it would be read before it is written. */
extern "C" void scaled_difference(int64_t size, const float *one, const float *two, float scale, float *__restrict to)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    if (!((uintptr_t)to & 63)) {
        for (; i + 16 <= size; i += 16)
            _mm512_stream_ps(to + i, scale * (load_as<wide>(one + i) - load_as<wide>(two + i)));
        _mm_sfence();
    }
#endif
    for (; i < size; i++) to[i] = scale * (one[i] - two[i]);
}
