/* Convolution (stride 1, zero padding), 2x2 max-pooling and relu as one operation, and its gradient.

   Everything is stacked over clients, each with weights of its own:
       x [clients][rows][in][height][width]      weight [clients][out][in][KERNEL][KERNEL]
       bias [clients][out]                       y [clients][rows][out][pooled height][pooled width]
   A client's numbers never depend on the others: clients go one after the other and every sum runs in an order that
   the client's own rows fix. One thread; KERNEL is a constant of the build so that the inner loops unroll. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
#define MOST_CHANNELS 6  /* output channels at once: 2 rows of each fill 12 of 16 vector registers */
#define MOST_VECTORS 8   /* vectors of a weight row at once in the gradient */
#define BLOCK_FLOATS 4096 /* rows of x that the gradient works on at once, so that they stay in the first cache */
#define NOBODY 4         /* the winner of a window that relu has cut off */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

#define EVEN_COLUMNS(a, b) __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14)
#define ODD_COLUMNS(a, b) __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15)
#define IN_ORDER(a) __builtin_shufflevector(a, a, 0, 1, 4, 5, 2, 3, 6, 7)

typedef struct {
    int32_t clients, rows, in, out, height, width, padding;
} shape;

/* Windows that pass gradient on: where the winner's patch starts in x, and the gradient. */
typedef struct {
    int32_t *places;
    float *gradients;
    int count;
} entries;

INLINE vector load(const float *from) { return *(const unaligned *)from; }
INLINE void store(float *to, vector value) { *(unaligned *)to = value; }
INLINE vector spread(float value) { return value + (vector){}; }
static int at_least(int one, int other) { return one > other ? one : other; }
static int pooled(int size, int padding) { return (size + 2 * padding - KERNEL + 1) / 2; }
static int vectors(int floats) { return (floats + LANES - 1) / LANES; }

/* ---------------------------------------------------------------------------------------------- forward */

/* Four windows of two channels each, from two rows of 8 columns of either channel: the largest value and which one it
   was, the first of equals; not-a-number wins, as in torch. */
INLINE void pool(const vector *top, const vector *bottom, vector &best, integers &place)
{
    const vector candidates[4] = {EVEN_COLUMNS(top[0], top[1]), ODD_COLUMNS(top[0], top[1]),
                                  EVEN_COLUMNS(bottom[0], bottom[1]), ODD_COLUMNS(bottom[0], bottom[1])};
    best = candidates[0];
    place = (integers){};
    UNROLL for (int k = 1; k < 4; k++) {
        integers better = (candidates[k] > best) | (candidates[k] != candidates[k]);
        best = better ? candidates[k] : best;
        place = better ? k + (integers){} : place;
    }
    integers dead = best <= 0;
    best = IN_ORDER(dead ? (vector){} : best);
    place = IN_ORDER(dead ? NOBODY + (integers){} : place);
}

/* Two rows of COUNT channels over 8 columns, from input planes that are `plane` floats apart, then pooled. */
template <int COUNT>
static void convolve(const float *x, int in, size_t plane, size_t line, const float *weight, const float *bias,
                     float *y, uint8_t *winner, size_t windows, int valid)
{
    vector top[COUNT + 1], bottom[COUNT + 1];
    UNROLL for (int c = 0; c < COUNT; c++) top[c] = bottom[c] = spread(bias[c]);
    for (int i = 0; i < in; i++, x += plane)
        for (int ky = 0; ky < KERNEL; ky++) {
            const float *from = x + ky * line;
            UNROLL for (int kx = 0; kx < KERNEL; kx++, weight += COUNT) {
                vector upper = load(from + kx), lower = load(from + line + kx);
                UNROLL for (int c = 0; c < COUNT; c++) {
                    top[c] += weight[c] * upper;
                    bottom[c] += weight[c] * lower;
                }
            }
        }
    if (COUNT % 2) top[COUNT] = bottom[COUNT] = (vector){};
    UNROLL for (int c = 0; c < COUNT; c += 2, y += 2 * windows, winner += 2 * windows) {
        vector best;
        integers place;
        pool(top + c, bottom + c, best, place);
        bytes small = __builtin_convertvector(place, bytes);
        const int second = c + 1 < COUNT;
        if (valid == LANES / 2) {
            memcpy(y, &best, 16);
            memcpy(winner, &small, 4);
            if (second) memcpy(y + windows, (float *)&best + 4, 16), memcpy(winner + windows, (uint8_t *)&small + 4, 4);
        } else
            for (int p = 0; p < valid; p++) {
                y[p] = best[p];
                winner[p] = small[p];
                if (second) y[windows + p] = best[4 + p], winner[windows + p] = small[4 + p];
            }
    }
}

/* x [in][height][width] with its zero padding and `stride` floats a line. */
static void pad(const float *x, const shape *s, size_t stride, float *padded)
{
    int p = s->padding;
    for (int i = 0; i < s->in; i++)
        for (int row = 0; row < s->height; row++)
            memcpy(padded + (i * (size_t)(s->height + 2 * p) + row + p) * stride + p,
                   x + (i * (size_t)s->height + row) * s->width, sizeof(float) * s->width);
}

static int block_start(int out, int blocks, int block) { return (int)((long)out * block / blocks); }

/* One client's weights as [block of output channels][in][ky][kx][channel of the block]. */
static void pack_blocks(const float *weight, int taps, int out, int blocks, float *packed)
{
    for (int b = 0; b < blocks; b++) {
        int first = block_start(out, blocks, b), last = block_start(out, blocks, b + 1);
        for (int tap = 0; tap < taps; tap++)
            for (int o = first; o < last; o++) *packed++ = weight[(size_t)o * taps + tap];
    }
}

extern "C" int forward(const shape *s, const float *x, const float *weight, const float *bias, float *y, uint8_t *winner)
{
    int high = pooled(s->height, s->padding), wide = pooled(s->width, s->padding);
    int tiles = vectors(2 * wide), blocks = (s->out + MOST_CHANNELS - 1) / MOST_CHANNELS;
    int lines = s->height + 2 * s->padding, taps = s->in * KERNEL * KERNEL;
    size_t line = at_least(s->width + 2 * s->padding, tiles * LANES + KERNEL - 1);
    size_t plane = lines * line, image = (size_t)s->in * s->height * s->width;
    int as_it_is = line == (size_t)s->width && lines == s->height;
    float *packed = (float *)malloc(sizeof(float) * (size_t)taps * s->out);
    float *padded = (float *)calloc(as_it_is ? 1 : s->in * plane, sizeof(float));
    int failed = !packed || !padded;
    for (int c = 0; c < s->clients && !failed; c++, bias += s->out) {
        pack_blocks(weight + (size_t)c * taps * s->out, taps, s->out, blocks, packed);
        for (int r = 0; r < s->rows; r++, x += image) {
            if (!as_it_is) pad(x, s, line, padded);
            for (int b = 0; b < blocks; b++) {
                int first = block_start(s->out, blocks, b), count = block_start(s->out, blocks, b + 1) - first;
                for (int py = 0; py < high; py++) {
                    for (int t = 0; t < tiles; t++) {
                        const float *from = (as_it_is ? x : padded) + 2 * py * line + t * LANES;
                        const float *w = packed + (size_t)first * taps;
                        size_t to = ((size_t)first * high + py) * wide + t * 4;
                        int valid = wide - 4 * t < 4 ? wide - 4 * t : 4;
#define CASE(n) case n: convolve<n>(from, s->in, plane, line, w, bias + first, y + to, winner + to, (size_t)high * wide, valid); break;
                        switch (count) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
                    }
                }
            }
            y += (size_t)s->out * high * wide;
            winner += (size_t)s->out * high * wide;
        }
    }
    free(packed);
    free(padded);
    return failed;
}

/* --------------------------------------------------------------------------------------------- backward */

/* One image, padded, with the channels innermost: a patch's line is then one run of KERNEL * in floats. */
static void by_pixel(const float *x, const shape *s, float *pixels)
{
    int p = s->padding;
    size_t line = (size_t)(s->width + 2 * p) * s->in;
    for (int row = 0; row < s->height; row++)
        for (int i = 0; i < s->in; i++) {
            const float *from = x + ((size_t)i * s->height + row) * s->width;
            float *to = pixels + (row + p) * line + (size_t)p * s->in + i;
            for (int column = 0; column < s->width; column++) to[(size_t)column * s->in] = from[column];
        }
}

/* The other way, without the padding. */
static void by_channel(const float *pixels, const shape *s, float *x)
{
    int p = s->padding;
    size_t line = (size_t)(s->width + 2 * p) * s->in;
    for (int row = 0; row < s->height; row++)
        for (int i = 0; i < s->in; i++) {
            float *to = x + ((size_t)i * s->height + row) * s->width;
            const float *from = pixels + (row + p) * line + (size_t)p * s->in + i;
            for (int column = 0; column < s->width; column++) to[column] = from[(size_t)column * s->in];
        }
}

/* Add the windows of one channel of one image that pass gradient on; there are few after relu and dropout. */
static void collect(const float *gradient, const uint8_t *winner, int high, int wide, int base, int line, int in,
                    entries *found)
{
    const int step[NOBODY + 1] = {0, in, line, line + in, 0};
    int32_t *__restrict places = found->places;
    float *__restrict gradients = found->gradients;
    int count = found->count;
    for (int py = 0; py < high; py++, base += 2 * line)
        for (int px = 0; px < wide; px++) {
            unsigned who = *winner++;
            float value = *gradient++;
            uint32_t bits;
            memcpy(&bits, &value, 4);
            places[count] = base + 2 * px * in + step[who];
            gradients[count] = value;
            count += (who != NOBODY) & ((bits << 1) != 0);
        }
    found->count = count;
}

/* The sum of the gradients, in eight strands. */
static float total(const entries *found)
{
    vector strands = {};
    int e = 0;
    for (; e + LANES <= found->count; e += LANES) strands += load(found->gradients + e);
    float sum = 0;
    for (; e < found->count; e++) sum += found->gradients[e];
    for (int k = 0; k < LANES; k++) sum += strands[k];
    return sum;
}

/* Add gradient * patch to LINES lines of COUNT vectors of the weight gradient. Few sums would wait for each other:
   then two windows are taken at once. */
template <int LINES, int COUNT>
static void gather(const entries *found, const float *x, size_t line, float *sum, size_t sum_line)
{
    constexpr int STRANDS = LINES * COUNT < 8 ? 2 : 1;
    vector part[STRANDS][LINES][COUNT] = {};
    int e = 0;
    for (; e + STRANDS <= found->count; e += STRANDS)
        UNROLL for (int s = 0; s < STRANDS; s++) {
            const float *patch = x + found->places[e + s];
            vector g = spread(found->gradients[e + s]);
            UNROLL for (int l = 0; l < LINES; l++)
                UNROLL for (int v = 0; v < COUNT; v++) part[s][l][v] += g * load(patch + l * line + v * LANES);
        }
    if (e < found->count) {
        const float *patch = x + found->places[e];
        vector g = spread(found->gradients[e]);
        UNROLL for (int l = 0; l < LINES; l++)
            UNROLL for (int v = 0; v < COUNT; v++) part[0][l][v] += g * load(patch + l * line + v * LANES);
    }
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < COUNT; v++) {
            float *to = sum + l * sum_line + v * LANES;
            vector whole = part[0][l][v];
            if (STRANDS == 2) whole += part[STRANDS - 1][l][v];
            store(to, load(to) + whole);
        }
}

/* The weight gradient of one output channel, as many vectors at once as there are registers. */
static void gather_all(const entries *found, const float *x, size_t line, int count, float *sum)
{
    size_t sum_line = (size_t)count * LANES;
    if (count == 1) gather<KERNEL, 1>(found, x, line, sum, sum_line);
    else if (count == 2) gather<KERNEL, 2>(found, x, line, sum, sum_line);
    else
        for (int ky = 0; ky < KERNEL; ky++)
            for (int v = 0; v < count; v += MOST_VECTORS) {
                const float *from = x + ky * line + v * LANES;
                float *to = sum + ky * sum_line + v * LANES;
#define CASE(n) case n: gather<1, n>(found, from, line, to, 0); break;
                switch (count - v) {
                    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
                    default: gather<1, MOST_VECTORS>(found, from, line, to, 0);
                }
#undef CASE
            }
}

/* Add gradient * weight to the patches of the gradient of x. */
static void scatter(const entries *found, const float *weight, int count, float *x, size_t line)
{
    for (int e = 0; e < found->count; e++) {
        vector g = spread(found->gradients[e]);
        const float *w = weight;
        for (int ky = 0; ky < KERNEL; ky++) {
            float *to = x + found->places[e] + ky * line;
            for (int v = 0; v < count; v++, to += LANES, w += LANES) store(to, load(to) + g * load(w));
        }
    }
}

/* One client's weights as [out][ky][kx][in], each line filled up with zeros to whole vectors. */
static void pack_lines(const float *weight, const shape *s, size_t run, float *packed)
{
    for (int o = 0; o < s->out; o++)
        for (int i = 0; i < s->in; i++)
            for (int ky = 0; ky < KERNEL; ky++)
                for (int kx = 0; kx < KERNEL; kx++)
                    packed[(o * KERNEL + ky) * run + kx * s->in + i] = *weight++;
}

/* The other way. */
static void unpack_lines(const float *packed, const shape *s, size_t run, float *weight)
{
    for (int o = 0; o < s->out; o++)
        for (int i = 0; i < s->in; i++)
            for (int ky = 0; ky < KERNEL; ky++)
                for (int kx = 0; kx < KERNEL; kx++)
                    *weight++ = packed[(o * KERNEL + ky) * run + kx * s->in + i];
}

/* grad_x may be null: then it is not wanted. */
extern "C" int backward(const shape *s, const float *grad_y, const float *x, const float *weight, const uint8_t *winner,
             float *grad_x, float *grad_weight, float *grad_bias)
{
    int high = pooled(s->height, s->padding), wide = pooled(s->width, s->padding), windows = high * wide;
    int count = vectors(KERNEL * s->in);
    size_t run = (size_t)count * LANES, line = (size_t)(s->width + 2 * s->padding) * s->in;
    size_t pixels = line * (s->height + 2 * s->padding), image = (size_t)s->in * s->height * s->width;
    size_t taps = (size_t)s->out * s->in * KERNEL * KERNEL, lines = (size_t)s->out * KERNEL * run;
    int at_once = at_least(1, (int)(BLOCK_FLOATS / pixels));
    size_t block = at_once * pixels + run; /* the last patch's line may reach past the last pixel */
    float *from = (float *)calloc(block, sizeof(float)), *to = (float *)calloc(grad_x ? block : 1, sizeof(float));
    float *packed = (float *)calloc(grad_x ? lines : 1, sizeof(float)), *sum = (float *)malloc(lines * sizeof(float));
    size_t most = (size_t)at_once * windows + 1; /* a window is written before it is known whether it counts */
    entries found = {(int32_t *)malloc(most * sizeof(int32_t)), (float *)malloc(most * sizeof(float)), 0};
    int failed = !from || !to || !packed || !sum || !found.places || !found.gradients;
    for (int c = 0; c < s->clients && !failed; c++) {
        if (grad_x) pack_lines(weight + c * taps, s, run, packed);
        memset(sum, 0, lines * sizeof(float));
        float *bias = grad_bias + (size_t)c * s->out;
        memset(bias, 0, s->out * sizeof(float));
        for (int first = 0; first < s->rows; first += at_once) {
            int rows = s->rows - first < at_once ? s->rows - first : at_once;
            for (int r = 0; r < rows; r++, x += image) by_pixel(x, s, from + r * pixels);
            if (grad_x) memset(to, 0, block * sizeof(float));
            for (int o = 0; o < s->out; o++) {
                found.count = 0;
                for (int r = 0; r < rows; r++) {
                    size_t at = ((size_t)r * s->out + o) * windows;
                    collect(grad_y + at, winner + at, high, wide, (int)(r * pixels), (int)line, s->in, &found);
                }
                bias[o] += total(&found);
                gather_all(&found, from, line, count, sum + o * KERNEL * run);
                if (grad_x) scatter(&found, packed + o * KERNEL * run, count, to, line);
            }
            grad_y += (size_t)rows * s->out * windows;
            winner += (size_t)rows * s->out * windows;
            if (grad_x)
                for (int r = 0; r < rows; r++, grad_x += image) by_channel(to + r * pixels, s, grad_x);
        }
        unpack_lines(sum, s, run, grad_weight + c * taps);
    }
    free(from);
    free(to);
    free(packed);
    free(sum);
    free(found.places);
    free(found.gradients);
    return failed;
}
