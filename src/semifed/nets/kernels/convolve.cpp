/* A 3x3 convolution with stride 1 and a border of zeros, and its gradient:
       x [rows][height][width][in]    weight [out][3][3][in]    y [rows][height][width][out]
   Each number is summed in the same order wherever its square stands, so rows of padding change nothing. One thread. */

#include "winograd.h"

#define LINES (REGISTERS == 32 ? 12 : 6) /* squares multiplied at a time; the other registers hold the factors */
#define GROUP (REGISTERS / 4) /* outputs at a time where weights get their gradient; a divisor of BLOCK */

/* COUNT squares of one point times its weights: sums over all channels of v, for BLOCK results. */
template <int COUNT> static void multiply(const float *v, int channels, int count, const float *u, float *m)
{
    wide total[COUNT][2] = {};
    for (int c = 0; c < channels; c += BLOCK, v += (size_t)count * BLOCK)
        ROLL for (int k = 0; k < BLOCK; k++, u += BLOCK) {
            const wide one = load_as<wide>(u), two = load_as<wide>(u + lanes<wide>);
            UNROLL for (int t = 0; t < COUNT; t++) {
                const wide scale = spread_as<wide>(v[t * BLOCK + k]);
                total[t][0] = add_product(scale, one, total[t][0]), total[t][1] = add_product(scale, two, total[t][1]);
            }
        }
    UNROLL for (int t = 0; t < COUNT; t++)
        UNROLL for (int h = 0; h < 2; h++) store_as<wide>(m + t * BLOCK + h * lanes<wide>, total[t][h]);
}

/* One point's gradient of GROUP outputs and BLOCK inputs: sums over squares, added to what is there. */
static void gather(const float *z, const float *v, int count, float *u)
{
    wide total[GROUP][2];
    UNROLL for (int o = 0; o < GROUP; o++)
        UNROLL for (int h = 0; h < 2; h++) total[o][h] = load_as<wide>(u + o * BLOCK + h * lanes<wide>);
    ROLL for (int t = 0; t < count; t++) {
        const wide one = load_as<wide>(v + t * BLOCK), two = load_as<wide>(v + t * BLOCK + lanes<wide>);
        UNROLL for (int o = 0; o < GROUP; o++) {
            const wide scale = spread_as<wide>(z[t * BLOCK + o]);
            total[o][0] = add_product(scale, one, total[o][0]), total[o][1] = add_product(scale, two, total[o][1]);
        }
    }
    UNROLL for (int o = 0; o < GROUP; o++)
        UNROLL for (int h = 0; h < 2; h++) store_as<wide>(u + o * BLOCK + h * lanes<wide>, total[o][h]);
}

static inline float *room(size_t floats) { return (float *)malloc(floats * sizeof(float)); }

/* How many squares are worked on at a time: what is read of them should stay in the cache near the core, beside what is
   made of them. */
static inline int at_a_time(const shape *s, int channels)
{
    const int near = 1 << 18, most = smaller(near / (POINTS * channels), 16 * LINES) / LINES * LINES;
    return smaller(squares(s), larger(most, LINES));
}

/* How a block of channels of some squares is written: whole, or pooled. */
typedef void (*writer)(const shape *, const float *, int, int, const float *, float *, int);

/* Results of `out` channels from `in` channels with weights that have been read. */
static int convolve(const shape *s, const float *x, int in, const float *u, int out, const float *bias, float *y,
                    writer write = write_results)
{
    const int step = at_a_time(s, in);
    float *v = room((size_t)POINTS * in * step), *m = room((size_t)POINTS * BLOCK * step), *border = zeros(in);
    const int failed = !v || !m || !border;
    for (int first = 0, count; first < squares(s) && !failed; first += count) {
        count = smaller(step, squares(s) - first);
        read_pixels(s, x, in, first, count, border, v);
        for (int o = 0; o < out; o += BLOCK) {
            for (int p = 0; p < POINTS; p++) {
                const float *from = v + (size_t)p * in * count, *w = u + ((size_t)o * POINTS + p * BLOCK) * in;
                float *to = m + (size_t)p * BLOCK * count;
                int t = 0;
                for (; t + LINES <= count; t += LINES)
                    multiply<LINES>(from + t * BLOCK, in, count, w, to + t * BLOCK);
                for (; t + 4 <= count; t += 4) multiply<4>(from + t * BLOCK, in, count, w, to + t * BLOCK);
                for (; t < count; t++) multiply<1>(from + t * BLOCK, in, count, w, to + t * BLOCK);
            }
            write(s, m, first, count, bias ? bias + o : NULL, y + o, out);
        }
    }
    free(v), free(m), free(border);
    return failed;
}

static int forward(const shape *s, const float *x, const float *weight, const float *bias, float *y, writer write)
{
    float *u = room((size_t)POINTS * s->in * s->out);
    if (!u) return 1;
    read_weights(s, weight, u);
    const int failed = convolve(s, x, s->in, u, s->out, bias, y, write);
    free(u);
    return failed;
}

/* `bias` may be null. */
extern "C" int convolve_forward(const shape *s, const float *x, const float *weight, const float *bias, float *y)
{
    return forward(s, x, weight, bias, y, write_results);
}

/* The same with 2x2 max-pooling and relu, of images with even sides: y [rows][height / 2][width / 2][out]. */
extern "C" int convolve_pool_relu(const shape *s, const float *x, const float *weight, const float *bias, float *y)
{
    return forward(s, x, weight, bias, y, write_pooled);
}

/* The gradient of the image: the convolution of the results' with the weights turned by half a circle. */
extern "C" int convolve_back(const shape *s, const float *grad_y, const float *weight, float *grad_x)
{
    float *u = room((size_t)POINTS * s->in * s->out);
    if (!u) return 1;
    read_weights_back(s, weight, u);
    const int failed = convolve(s, grad_y, s->out, u, s->in, NULL, grad_x);
    free(u);
    return failed;
}

/* The gradient of weights and bias. In the middle of A y A', at point 5, stand the sums over the squares. */
extern "C" int convolve_weights(const shape *s, const float *grad_y, const float *x, float *grad_weight,
                                float *grad_bias)
{
    const int step = at_a_time(s, s->in + s->out);
    float *v = room((size_t)POINTS * s->in * step), *z = room((size_t)POINTS * s->out * step);
    float *u = zeros((size_t)POINTS * s->in * s->out), *border = zeros(larger(s->in, s->out));
    const int failed = !v || !z || !u || !border;
    if (!failed) memset(grad_bias, 0, s->out * sizeof(float));
    for (int first = 0, count; first < squares(s) && !failed; first += count) {
        count = smaller(step, squares(s) - first);
        read_pixels(s, x, s->in, first, count, border, v);
        read_results(s, grad_y, first, count, border, z);
        for (int p = 0; p < POINTS; p++)
            for (int i = 0; i < s->in; i += BLOCK)
                for (int o = 0; o < s->out; o += GROUP) {
                    const float *from = z + (size_t)p * s->out * count + place(o / BLOCK * BLOCK, 0, count) + o % BLOCK;
                    const float *with = v + (size_t)p * s->in * count + place(i, 0, count);
                    gather(from, with, count, u + ((size_t)p * s->in + i) * s->out + o * BLOCK);
                }
        const float *sums = z + (size_t)5 * s->out * count;
        for (int o = 0; o < s->out; o += BLOCK)
            for (int t = 0; t < count; t++)
                for (int k = 0; k < BLOCK; k++) grad_bias[o + k] += sums[place(o, t, count) + k];
    }
    if (!failed) write_weights(s, u, grad_weight);
    free(v), free(z), free(u), free(border);
    return failed;
}
