/* Vectors of eight floats in the compiler's own notation, so that one source serves every processor; and of sixteen
   where it has those, which halves the instructions of the loops that nearly all the time goes into. */

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define LANES 8
#define UNROLL _Pragma("GCC unroll 16")
#define ROLL _Pragma("GCC unroll 1") /* a loop around unrolled ones, whose sums then stay in their registers */

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

/* The lowest byte of each of eight integers. Said as a choice of bytes: GCC turns a conversion into single moves. */
static inline bytes narrow(integers wide)
{
#if defined(__clang__) || __GNUC__ >= 12
    typedef uint8_t all __attribute__((vector_size(4 * LANES)));
    return __builtin_shufflevector((all)wide, (all)wide, 0, 4, 8, 12, 16, 20, 24, 28);
#else
    return __builtin_convertvector(wide, bytes);
#endif
}

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

/* Sixteen floats where the processor has such vectors, else eight again. */
#if defined(__AVX512F__)
#define REGISTERS 32
typedef float wide __attribute__((vector_size(8 * LANES)));
typedef float unaligned_wide __attribute__((vector_size(8 * LANES), aligned(4), may_alias));
static inline wide add_product(wide a, wide b, wide sum) { return _mm512_fmadd_ps(a, b, sum); }
#else
#define REGISTERS 16
typedef vector wide;
typedef unaligned unaligned_wide;
#endif

/* The same for either kind. */
template <class V> struct kind;
template <> struct kind<vector> {
    typedef unaligned anywhere;
};
#if defined(__AVX512F__)
template <> struct kind<wide> {
    typedef unaligned_wide anywhere;
};
#endif
template <class V> static inline V load_as(const float *from) { return *(const typename kind<V>::anywhere *)from; }
template <class V> static inline void store_as(float *to, V value) { *(typename kind<V>::anywhere *)to = value; }
template <class V> static inline V spread_as(float v) { return v - V{}; }
template <class V> constexpr int lanes = sizeof(V) / sizeof(float);

/* Eight columns of two neighbouring lines of an image, as much as makes four windows of 2x2. */
#if defined(__AVX512F__)
typedef wide pair;
static inline pair both(vector top, vector bottom)
{
    return (pair)_mm512_insertf64x4(_mm512_castpd256_pd512((__m256d)top), (__m256d)bottom, 1);
}
static inline vector top(pair p) { return _mm512_castps512_ps256(p); }
static inline vector bottom(pair p) { return (vector)_mm512_extractf64x4_pd((__m512d)p, 1); }
static inline pair spread_both(float v) { return spread_as<wide>(v); }
#else
typedef struct {
    vector upper, lower;
} pair;
static inline pair both(vector top, vector bottom) { return {top, bottom}; }
static inline vector top(pair p) { return p.upper; }
static inline vector bottom(pair p) { return p.lower; }
static inline pair spread_both(float v) { return {spread(v), spread(v)}; }
static inline pair add_product(pair a, pair b, pair sum)
{
    return {add_product(a.upper, b.upper, sum.upper), add_product(a.lower, b.lower, sum.lower)};
}
#endif

static inline int vectors(int floats, int lanes = LANES) { return (floats + lanes - 1) / lanes; }
static inline int smaller(int one, int other) { return one < other ? one : other; }
static inline int larger(int one, int other) { return one > other ? one : other; }

/* Zeroed memory for so many floats; null if there is none. */
static inline float *zeros(size_t floats) { return (float *)calloc(floats ? floats : 1, sizeof(float)); }
