/* Vectors of eight floats in the compiler's own notation, so that one source serves every processor. */

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#define LANES 8
#define UNROLL _Pragma("GCC unroll 8")

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

/* The named places of two vectors, counted through. GCC before 12 has another word for it. */
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, integers{__VA_ARGS__})
#endif

/* Even and odd places of two vectors. AVX2 does this within each half in one instruction: the order is
   a a b b a a b b, which IN_ORDER turns into a a a a b b b b. */
#define EVEN(a, b) PICK(a, b, 0, 2, 8, 10, 4, 6, 12, 14)
#define ODD(a, b) PICK(a, b, 1, 3, 9, 11, 5, 7, 13, 15)
#define IN_ORDER(a) PICK(a, a, 0, 1, 4, 5, 2, 3, 6, 7)

static inline vector load(const float *from) { return *(const unaligned *)from; }
static inline void store(float *to, vector value) { *(unaligned *)to = value; }
static inline vector spread(float v) { return vector{v, v, v, v, v, v, v, v}; }

/* a * b + sum. Said outright where it can be: left to itself a compiler rounds twice in some loops and once in others,
   and a number would depend on the size of the tile it falls into. */
static inline vector add_product(vector a, vector b, vector sum)
{
#if defined(__FMA__)
    return _mm256_fmadd_ps(a, b, sum);
#else
    return a * b + sum;
#endif
}

static inline int vectors(int floats) { return (floats + LANES - 1) / LANES; }
static inline int smaller(int one, int other) { return one < other ? one : other; }
static inline int larger(int one, int other) { return one > other ? one : other; }

/* Zeroed memory for so many floats; null if there is none. */
static inline float *zeros(size_t floats) { return (float *)calloc(floats ? floats : 1, sizeof(float)); }
