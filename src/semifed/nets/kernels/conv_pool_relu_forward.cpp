/* Forward: 8 columns of two lines at a time make 4 windows. */

#include "conv_pool_relu.h"

/* A tile has up to so many output channels, and as many lines of windows as leave some registers for what is read. */
#define MOST_CHANNELS (REGISTERS > 16 ? 12 : 6)
#define MOST_LINES (REGISTERS > 16 ? 2 : 1)

/* How images lie in memory for the forward pass: from line to line and from channel to channel. */
typedef struct {
    int in;
    size_t line, plane;
} layout;

/* Where the windows of a tile go: how many of the 4 are real, and how far apart two channels are. */
typedef struct {
    float *y;
    uint8_t *winner;
    int count;
    size_t channel, line;
} target;

/* Four windows of each of two channels: the largest value, cut off at 0, and its place, the first of equals.
   Not-a-number wins, as in torch. */
static inline void pool(pair one, pair other, vector &best, integers &place)
{
    const vector candidates[4] = {EVEN(top(one), top(other)), ODD(top(one), top(other)),
                                  EVEN(bottom(one), bottom(other)), ODD(bottom(one), bottom(other))};
    best = candidates[0];
    place = integers{};
    UNROLL for (int k = 1; k < 4; k++) {
        integers better = (candidates[k] > best) | (candidates[k] != candidates[k]);
        best = better ? candidates[k] : best;
        place = better ? k + integers{} : place;
    }
    integers dead = best <= vector{};
    best = IN_ORDER(dead ? vector{} : best);
    place = IN_ORDER(dead ? NOBODY + integers{} : place);
}

static inline void keep(const target &to, size_t offset, const float *best, const uint8_t *place)
{
    if (to.count == 4) { /* sizes that the compiler knows become single instructions */
        memcpy(to.y + offset, best, 4 * sizeof(float));
        memcpy(to.winner + offset, place, 4);
    } else {
        memcpy(to.y + offset, best, to.count * sizeof(float));
        memcpy(to.winner + offset, place, to.count);
    }
}

/* One tile: LINES lines of windows of COUNT channels over 8 columns, pooled. */
template <int COUNT, int LINES>
static void convolve(const float *x, const layout &from, const float *weight, const float *bias, const target &to)
{
    pair sum[LINES][COUNT + 1] = {}; /* an odd channel is pooled together with an empty one */
    UNROLL for (int c = 0; c < COUNT; c++)
        UNROLL for (int l = 0; l < LINES; l++) sum[l][c] = spread_both(bias[c]);
    for (int i = 0; i < from.in; i++)
        for (int ky = 0; ky < KERNEL; ky++) {
            const float *line = x + i * from.plane + ky * from.line;
            ROLL for (int kx = 0; kx < KERNEL; kx++, weight += COUNT) {
                pair pixels[LINES];
                UNROLL for (int l = 0; l < LINES; l++)
                    pixels[l] = both(load(line + 2 * l * from.line + kx), load(line + (2 * l + 1) * from.line + kx));
                UNROLL for (int c = 0; c < COUNT; c++) {
                    pair w = spread_both(weight[c]);
                    UNROLL for (int l = 0; l < LINES; l++) sum[l][c] = add_product(w, pixels[l], sum[l][c]);
                }
            }
        }
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int c = 0; c < COUNT; c += 2) {
            vector best;
            integers place;
            pool(sum[l][c], sum[l][c + 1], best, place);
            bytes small = narrow(place);
            size_t at = l * to.line + c * to.channel;
            keep(to, at, (const float *)&best, (const uint8_t *)&small);
            if (c + 1 < COUNT) keep(to, at + to.channel, (const float *)&best + 4, (const uint8_t *)&small + 4);
        }
}

typedef void (*convolution)(const float *, const layout &, const float *, const float *, const target &);
#define BOTH(COUNT) {convolve<COUNT, 1>, convolve<COUNT, MOST_LINES>}
static const convolution CONVOLVE[MOST_CHANNELS + 1][2] = {
    {},       BOTH(1), BOTH(2), BOTH(3), BOTH(4),  BOTH(5),  BOTH(6),
#if REGISTERS > 16
    BOTH(7),  BOTH(8), BOTH(9), BOTH(10), BOTH(11), BOTH(12),
#endif
};

/* Output channels are taken in blocks of nearly the same size, none larger than MOST_CHANNELS. */
static int blocks(int out) { return (out + MOST_CHANNELS - 1) / MOST_CHANNELS; }
static int block_start(int out, int block) { return (int)((int64_t)out * block / blocks(out)); }

/* One client's weights as [block][in][ky][kx][channel of the block]: in the order in which they are used. */
static void pack_blocks(const float *weight, int out, int taps, float *packed)
{
    for (int b = 0; b < blocks(out); b++)
        for (int tap = 0; tap < taps; tap++)
            for (int o = block_start(out, b); o < block_start(out, b + 1); o++)
                *packed++ = weight[(size_t)o * taps + tap];
}

/* One image with its padding, and lines so long that the last tile reads nothing else. */
static void pad(const float *x, const shape *s, const layout &to, float *padded)
{
    for (int i = 0; i < s->in; i++)
        for (int row = 0; row < s->height; row++, x += s->width)
            memcpy(padded + i * to.plane + (row + s->padding) * to.line + s->padding, x, s->width * sizeof(float));
}

static void forward_image(const shape *s, const layout &from, const float *x, const float *packed, const float *bias,
                          float *y, uint8_t *winner)
{
    int high = pooled(s->height, s->padding), wide = pooled(s->width, s->padding), taps = s->in * KERNEL * KERNEL;
    for (int b = 0; b < blocks(s->out); b++) {
        int first = block_start(s->out, b), count = block_start(s->out, b + 1) - first;
        for (int py = 0, lines; py < high; py += lines) {
            lines = py + MOST_LINES <= high ? MOST_LINES : 1;
            for (int px = 0; px < wide; px += 4) {
                size_t at = ((size_t)first * high + py) * wide + px;
                target to = {y + at, winner + at, smaller(4, wide - px), (size_t)high * wide, (size_t)wide};
                CONVOLVE[count][lines == MOST_LINES](x + 2 * py * from.line + 2 * px, from,
                                                     packed + (size_t)first * taps, bias + first, to);
            }
        }
    }
}

/* Returns 0, or 1 if there was no memory. */
extern "C" int conv_pool_relu_forward(const shape *s, const float *x, const float *weight, const float *bias, float *y,
                                      uint8_t *winner)
{
    int high = pooled(s->height, s->padding), wide = pooled(s->width, s->padding), taps = s->in * KERNEL * KERNEL;
    layout from = {s->in, (size_t)larger(s->width + 2 * s->padding, vectors(2 * wide) * LANES + KERNEL - 1), 0};
    from.plane = (s->height + 2 * s->padding) * from.line;
    int as_it_is = s->padding == 0 && from.line == (size_t)s->width;
    float *packed = zeros((size_t)taps * s->out), *padded = zeros(as_it_is ? 0 : s->in * from.plane);
    int failed = !packed || !padded;
    for (int c = 0; c < s->clients && !failed; c++) {
        pack_blocks(weight + (size_t)c * taps * s->out, s->out, taps, packed);
        for (int r = 0; r < s->rows; r++) {
            if (!as_it_is) pad(x, s, from, padded);
            forward_image(s, from, as_it_is ? x : padded, packed, bias + (size_t)c * s->out, y, winner);
            x += (size_t)s->in * s->height * s->width;
            y += (size_t)s->out * high * wide;
            winner += (size_t)s->out * high * wide;
        }
    }
    free(packed);
    free(padded);
    return failed;
}

/* Windows of VECTORS * lanes<wide> channels side by side: the same sums in the same order, and no winners. */
template <int VECTORS>
static void convolve_innermost(const shape *s, const float *x, const float *packed, const float *bias, float *y)
{
    const size_t plane = (size_t)s->height * s->width;
    wide sum[4][VECTORS];
    UNROLL for (int k = 0; k < 4; k++)
        UNROLL for (int v = 0; v < VECTORS; v++) sum[k][v] = load_as<wide>(bias + v * lanes<wide>);
    for (int i = 0; i < s->in; i++)
        for (int ky = 0; ky < KERNEL; ky++)
            ROLL for (int kx = 0; kx < KERNEL; kx++, packed += s->out) {
                const float *at = x + i * plane + ky * s->width + kx;
                UNROLL for (int k = 0; k < 4; k++) {
                    const wide pixel = spread_as<wide>(at[k / 2 * s->width + k % 2]);
                    UNROLL for (int v = 0; v < VECTORS; v++)
                        sum[k][v] = add_product(load_as<wide>(packed + v * lanes<wide>), pixel, sum[k][v]);
                }
            }
    UNROLL for (int v = 0; v < VECTORS; v++) {
        wide best = sum[0][v];
        UNROLL for (int k = 1; k < 4; k++)
            best = (sum[k][v] > best) | (sum[k][v] != sum[k][v]) ? sum[k][v] : best;
        store_as<wide>(y + v * lanes<wide>, best <= wide{} ? wide{} : best);
    }
}

/* One client's result without what its gradient would need, channels innermost: y [rows][high][wide][out]. There is no
   padding, and channels are a multiple of what a vector holds. */
extern "C" int conv_pool_relu_innermost(const shape *s, const float *x, const float *weight, const float *bias, float *y)
{
    const int high = pooled(s->height, 0), across = pooled(s->width, 0), taps = s->in * KERNEL * KERNEL;
    const int most = (REGISTERS > 16 ? 4 : 2), lot = most * lanes<wide>;
    float *packed = zeros((size_t)taps * s->out);
    if (!packed) return 1;
    for (int o = 0; o < s->out; o++)
        for (int tap = 0; tap < taps; tap++) packed[(size_t)tap * s->out + o] = weight[(size_t)o * taps + tap];
    for (int r = 0; r < s->rows; r++, x += (size_t)s->in * s->height * s->width)
        for (int py = 0; py < high; py++)
            for (int px = 0; px < across; px++, y += s->out) {
                const float *at = x + 2 * (py * s->width + px);
                int o = 0;
                for (; o + lot <= s->out; o += lot) convolve_innermost<most>(s, at, packed + o, bias + o, y + o);
                for (; o < s->out; o += lanes<wide>) convolve_innermost<1>(s, at, packed + o, bias + o, y + o);
            }
    free(packed);
    return 0;
}
