/* What a step does to the numbers of a net, in one pass over the memory: descent with momentum, and moving averages.
   Every tensor is [clients][size], each client with a rate of its own. Products are added in one rounding wherever the
   processor can: then it makes no difference where in a tensor a number stands. */

#include <stddef.h>
#include <stdint.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef struct {
    int32_t tensors, clients;
} shape;

#if defined(__FMA__)
static inline float add_product(float a, float b, float sum) { return __builtin_fmaf(a, b, sum); }
#else
static inline float add_product(float a, float b, float sum) { return a * b + sum; }
#endif

/* One client's numbers of one tensor. Without momentum `after` is not written, before the first step BEFORE is false. */
template <bool MOMENTUM, bool BEFORE, bool NESTEROV>
static void descend(size_t size, const float *value, const float *gradient, const float *before, float rate,
                    float momentum, float decay, float *__restrict result, float *__restrict after)
{
    for (size_t i = 0; i < size; i++) {
        float pull = add_product(decay, value[i], gradient[i]), ahead = pull;
        if (MOMENTUM) {
            float speed = BEFORE ? add_product(momentum, before[i], pull) : pull;
            after[i] = speed;
            ahead = NESTEROV ? add_product(momentum, speed, pull) : speed;
        }
        result[i] = add_product(-rate, ahead, value[i]);
    }
}

#if defined(__AVX512F__)
/* The same for tensors larger than caches: results go past them, where they would be read before they are written. */
template <bool MOMENTUM, bool BEFORE, bool NESTEROV>
static void descend_past(size_t size, const float *value, const float *gradient, const float *before, float rate,
                         float momentum, float decay, float *__restrict result, float *__restrict after)
{
    const __m512 back = _mm512_set1_ps(-rate), keep = _mm512_set1_ps(momentum), shrink = _mm512_set1_ps(decay);
    size_t i = 0;
    for (; i + 16 <= size; i += 16) {
        __m512 own = _mm512_loadu_ps(value + i);
        __m512 pull = _mm512_fmadd_ps(shrink, own, _mm512_loadu_ps(gradient + i)), ahead = pull;
        if (MOMENTUM) {
            __m512 speed = BEFORE ? _mm512_fmadd_ps(keep, _mm512_loadu_ps(before + i), pull) : pull;
            _mm512_stream_ps(after + i, speed);
            ahead = NESTEROV ? _mm512_fmadd_ps(keep, speed, pull) : speed;
        }
        _mm512_stream_ps(result + i, _mm512_fmadd_ps(back, ahead, own));
    }
    _mm_sfence();
    descend<MOMENTUM, BEFORE, NESTEROV>(size - i, value + i, gradient + i, BEFORE ? before + i : NULL, rate, momentum,
                                        decay, result + i, MOMENTUM ? after + i : NULL);
}

#endif

/* Large, and where such stores may go. */
static bool goes_past(size_t size, const float *result, const float *after)
{
    return size >= (size_t)1 << 20 && !(((uintptr_t)result | (uintptr_t)after) & 63);
}

typedef void (*descent)(size_t, const float *, const float *, const float *, float, float, float, float *, float *);

/* `before` and `after` are null without momentum, `before` alone before the first step. */
extern "C" int descend_all(const shape *s, const int64_t *sizes, const float *rates, const float *rule,
                           const float *const *values, const float *const *gradients, const float *const *before,
                           float *const *results, float *const *after)
{
    const bool nesterov = rule[2] != 0;
    descent one = descend<false, false, false>, past = one;
#if defined(__AVX512F__)
#define FORMS(m, b, n) one = descend<m, b, n>, past = descend_past<m, b, n>
#else
#define FORMS(m, b, n) one = past = descend<m, b, n>
#endif
    if (after && before && nesterov) FORMS(true, true, true);
    else if (after && before) FORMS(true, true, false);
    else if (after && nesterov) FORMS(true, false, true);
    else if (after) FORMS(true, false, false);
    else FORMS(false, false, false);
    for (int t = 0; t < s->tensors; t++)
        for (int c = 0; c < s->clients; c++) {
            size_t size = (size_t)sizes[t], at = c * size;
            float *to = results[t] + at, *speed = after ? after[t] + at : NULL;
            (goes_past(size, to, speed) ? past : one)(size, values[t] + at, gradients[t] + at,
                                                      before ? before[t] + at : NULL, rates[c], rule[0], rule[1], to,
                                                      speed);
        }
    return 0;
}

/* towards + decay * (value - towards) */
extern "C" int follow_all(const shape *s, const int64_t *sizes, const float *decays, const float *const *values,
                          const float *const *towards, float *const *results)
{
    for (int t = 0; t < s->tensors; t++)
        for (int c = 0; c < s->clients; c++) {
            size_t at = c * (size_t)sizes[t];
            const float *value = values[t] + at, *aim = towards[t] + at;
            const float decay = decays[c];
            float *__restrict result = results[t] + at;
            for (int64_t i = 0; i < sizes[t]; i++) result[i] = add_product(decay, value[i] - aim[i], aim[i]);
        }
    return 0;
}
