/* Backward: only the winners pass gradient on, a quarter of all places and often far fewer. */

#include "conv_pool_relu.h"

#define MOST_VECTORS 8    /* vectors of a weight line at once */
#define BLOCK_FLOATS 8192 /* rows are taken in blocks of about so many inputs, which stay in the cache */

/* The windows of one output channel that count: where the winner's patch starts in the images, and the gradient. */
typedef struct {
    int32_t *places;
    float *gradients;
    int count;
} winners;

/* How images lie in memory here, padded and with the channels innermost: a line of a patch is then one run of
   KERNEL * in floats, taken as `count` vectors. */
typedef struct {
    int in, count;
    size_t line, image;
} runs;

/* One image into that order. */
static void by_pixel(const float *x, const shape *s, const runs &to, float *pixels)
{
    pixels += s->padding * (to.line + s->in);
    for (int row = 0; row < s->height; row++)
        for (int i = 0; i < s->in; i++) {
            const float *from = x + ((size_t)i * s->height + row) * s->width;
            for (int column = 0; column < s->width; column++)
                pixels[row * to.line + (size_t)column * s->in + i] = from[column];
        }
}

/* And back, without the padding. */
static void by_channel(const float *pixels, const shape *s, const runs &from, float *x)
{
    pixels += s->padding * (from.line + s->in);
    for (int row = 0; row < s->height; row++)
        for (int i = 0; i < s->in; i++) {
            float *to = x + ((size_t)i * s->height + row) * s->width;
            for (int column = 0; column < s->width; column++)
                to[column] = pixels[row * from.line + (size_t)column * s->in + i];
        }
}

/* Add the windows of one channel of one image, which starts at `place`. Without a branch: each is written down, and
   the next one over it if it does not count. */
static void collect(const float *gradient, const uint8_t *winner, int high, int wide, int place, const runs &from,
                    winners *found)
{
    const int line = (int)from.line, step[NOBODY + 1] = {0, from.in, line, line + from.in, 0};
    int32_t *__restrict places = found->places;
    float *__restrict gradients = found->gradients;
    int count = found->count;
    for (int py = 0; py < high; py++, place += 2 * line)
        for (int px = 0; px < wide; px++) {
            unsigned who = *winner++;
            float value = *gradient++;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            places[count] = place + 2 * px * from.in + step[who];
            gradients[count] = value;
            count += (who != NOBODY) & (bits << 1 != 0); /* neither 0 nor -0 */
        }
    found->count = count;
}

/* The gradient of the bias, in eight strands. */
static float sum_gradients(const winners *found)
{
    vector strands = {};
    int w = 0;
    for (; w + LANES <= found->count; w += LANES) strands += load(found->gradients + w);
    float sum = 0;
    for (; w < found->count; w++) sum += found->gradients[w];
    for (int k = 0; k < LANES; k++) sum += strands[k];
    return sum;
}

/* Add gradient * patch to LINES lines of COUNT vectors of the weight's gradient. Where there are few sums, each would
   wait for its last addition: then two windows are taken at once. */
template <int LINES, int COUNT>
static void gather(const winners *found, const float *x, size_t line, float *sum, size_t sum_line)
{
    constexpr int STRANDS = LINES * COUNT < 8 ? 2 : 1;
    vector part[STRANDS][LINES][COUNT] = {};
    const auto add = [&](int w, vector (&to)[LINES][COUNT]) {
        const float *patch = x + found->places[w];
        vector g = spread(found->gradients[w]);
        UNROLL for (int l = 0; l < LINES; l++)
            UNROLL for (int v = 0; v < COUNT; v++)
                to[l][v] = add_product(g, load(patch + l * line + v * LANES), to[l][v]);
    };
    int w = 0;
    for (; w + STRANDS <= found->count; w += STRANDS)
        UNROLL for (int s = 0; s < STRANDS; s++) add(w + s, part[s]);
    for (; w < found->count; w++) add(w, part[0]);
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < COUNT; v++) {
            float *to = sum + l * sum_line + v * LANES;
            vector whole = part[0][l][v];
            if (STRANDS > 1) whole += part[STRANDS - 1][l][v];
            store(to, load(to) + whole);
        }
}

typedef void (*gathering)(const winners *, const float *, size_t, float *, size_t);
static const gathering GATHER_PATCH[3] = {NULL, gather<KERNEL, 1>, gather<KERNEL, 2>};
static const gathering GATHER_LINE[MOST_VECTORS + 1] = {NULL,         gather<1, 1>, gather<1, 2>,
                                                        gather<1, 3>, gather<1, 4>, gather<1, 5>,
                                                        gather<1, 6>, gather<1, 7>, gather<1, 8>};

/* The gradient of one output channel's weights, as many vectors at once as there are registers. */
static void gather_all(const winners *found, const float *x, const runs &from, float *sum)
{
    size_t sum_line = (size_t)from.count * LANES;
    if (from.count <= 2) {
        GATHER_PATCH[from.count](found, x, from.line, sum, sum_line);
        return;
    }
    for (int ky = 0; ky < KERNEL; ky++)
        for (int v = 0; v < from.count; v += MOST_VECTORS)
            GATHER_LINE[smaller(MOST_VECTORS, from.count - v)](found, x + ky * from.line + v * LANES, 0,
                                                               sum + ky * sum_line + v * LANES, 0);
}

/* Add gradient * weight to the patches in the gradient of x. */
static void scatter(const winners *found, const float *weight, const runs &to, float *x)
{
    const int count = to.count;
    const size_t line = to.line;
    for (int w = 0; w < found->count; w++) {
        vector g = spread(found->gradients[w]);
        const float *from = weight;
        for (int ky = 0; ky < KERNEL; ky++) {
            float *pixels = x + found->places[w] + ky * line;
            for (int v = 0; v < count; v++, pixels += LANES, from += LANES)
                store(pixels, add_product(g, load(from), load(pixels)));
        }
    }
}

/* One client's weights [out][in][ky][kx] to or from [out][ky][kx][in] with lines of whole vectors. */
template <bool BACK> static void pack_runs(float *weight, const shape *s, const runs &as, float *packed)
{
    const size_t line = (size_t)as.count * LANES;
    for (int o = 0; o < s->out; o++)
        for (int i = 0; i < s->in; i++)
            for (int ky = 0; ky < KERNEL; ky++)
                for (int kx = 0; kx < KERNEL; kx++, weight++) {
                    float *run = packed + (o * KERNEL + ky) * line + kx * s->in + i;
                    if (BACK) *weight = *run;
                    else *run = *weight;
                }
}

/* What a call to backward works in. */
typedef struct {
    runs order;
    float *x, *grad_x;           /* a block of rows in this order */
    float *weight, *grad_weight; /* one client's */
    winners found;
} workplace;

/* The gradients of one block of rows; those of weight and bias are added up. */
static void backward_block(const shape *s, int rows, const float *grad_y, const uint8_t *winner, workplace *at,
                           int wants_x, float *grad_bias)
{
    int high = pooled(s->height, s->padding), wide = pooled(s->width, s->padding);
    size_t channel = (size_t)KERNEL * at->order.count * LANES;
    for (int o = 0; o < s->out; o++) {
        at->found.count = 0;
        for (int r = 0; r < rows; r++) {
            size_t plane = ((size_t)r * s->out + o) * high * wide;
            collect(grad_y + plane, winner + plane, high, wide, (int)(r * at->order.image), at->order, &at->found);
        }
        grad_bias[o] += sum_gradients(&at->found);
        gather_all(&at->found, at->x, at->order, at->grad_weight + o * channel);
        if (wants_x) scatter(&at->found, at->weight + o * channel, at->order, at->grad_x);
    }
}

/* grad_x may be null: then it is not wanted. Returns 0, or 1 if there was no memory. */
extern "C" int conv_pool_relu_backward(const shape *s, const float *grad_y, const float *x, float *weight,
                                       const uint8_t *winner, float *grad_x, float *grad_weight, float *grad_bias)
{
    size_t windows = (size_t)s->out * pooled(s->height, s->padding) * pooled(s->width, s->padding);
    size_t image = (size_t)s->in * s->height * s->width, taps = (size_t)s->out * s->in * KERNEL * KERNEL;
    runs order = {s->in, vectors(KERNEL * s->in), (size_t)(s->width + 2 * s->padding) * s->in, 0};
    order.image = order.line * (s->height + 2 * s->padding);
    int at_once = larger(1, (int)(BLOCK_FLOATS / order.image));
    size_t block = at_once * order.image + LANES; /* the last vector of a run may reach past the last pixel */
    size_t lines = (size_t)s->out * KERNEL * order.count * LANES;
    size_t most = at_once * windows / s->out + 1; /* collect writes one more than it finds */
    winners found = {(int32_t *)zeros(most), zeros(most), 0};
    workplace at = {order, zeros(block), zeros(grad_x ? block : 0), zeros(grad_x ? lines : 0), zeros(lines), found};
    int failed = !at.x || !at.grad_x || !at.weight || !at.grad_weight || !found.places || !found.gradients;
    for (int c = 0; c < s->clients && !failed; c++) {
        if (grad_x) pack_runs<false>(weight + c * taps, s, order, at.weight);
        memset(at.grad_weight, 0, lines * sizeof(float));
        memset(grad_bias, 0, s->out * sizeof(float));
        for (int first = 0; first < s->rows; first += at_once) {
            int rows = smaller(at_once, s->rows - first);
            for (int r = 0; r < rows; r++, x += image) by_pixel(x, s, order, at.x + r * order.image);
            if (grad_x) memset(at.grad_x, 0, block * sizeof(float));
            backward_block(s, rows, grad_y, winner, &at, grad_x != NULL, grad_bias);
            for (int r = 0; r < rows && grad_x; r++, grad_x += image)
                by_channel(at.grad_x + r * order.image, s, order, grad_x);
            grad_y += rows * windows;
            winner += rows * windows;
        }
        pack_runs<true>(grad_weight + c * taps, s, order, at.grad_weight);
        grad_bias += s->out;
    }
    free(at.x), free(at.grad_x), free(at.weight), free(at.grad_weight);
    free(found.places), free(found.gradients);
    return failed;
}
