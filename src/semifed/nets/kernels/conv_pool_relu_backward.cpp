/* Backward: only the winners pass gradient on, a quarter of all places and often far fewer. */

#include "conv_pool_relu.h"

#define MOST_VECTORS 8                     /* vectors of a weight line at once */
#define MOST_SUMS (REGISTERS > 16 ? 20 : 10) /* vectors of a whole patch at once */
#define BLOCK_FLOATS 8192                  /* rows are taken in blocks of about so many inputs, which stay in the cache */
#define SLACK 16                           /* floats that may be read or written past the last one that counts */

/* The windows of one output channel that count: where the winner's patch starts in the images, and the gradient.
   Those of the image `r` of a block stand from first[r] to first[r + 1]. */
typedef struct {
    int32_t *places;
    float *gradients;
    int32_t *first;
    int count;
} winners;

/* How images lie in memory here, padded and with the channels innermost: a line of a patch is then one run of
   KERNEL * in floats, filled up to `run`. `corners` says where the windows of an image start. */
typedef struct {
    int in, windows;
    size_t line, image, run;
    int32_t *corners;
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

/* Add the windows of one channel of one image, which starts at `image`. Without a branch: each is written down, and
   the next one over it if it does not count. */
static void collect(const float *gradient, const uint8_t *winner, int image, const runs &from, winners *found)
{
    const int line = (int)from.line, step[SLACK] = {0, from.in, line, line + from.in};
    int32_t *__restrict places = found->places;
    float *__restrict gradients = found->gradients;
    int count = found->count, w = 0;
#if defined(__AVX512F__)
    const __m512i steps = _mm512_loadu_si512(step), start = _mm512_set1_epi32(image);
    for (; w + 16 <= from.windows; w += 16) {
        __m512i who = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(winner + w)));
        __m512i place = _mm512_add_epi32(_mm512_add_epi32(start, _mm512_loadu_si512(from.corners + w)),
                                         _mm512_permutexvar_epi32(who, steps));
        __m512 value = _mm512_loadu_ps(gradient + w);
        __mmask16 lives = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        lives &= _mm512_cmpneq_epi32_mask(who, _mm512_set1_epi32(NOBODY));
        _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(lives, place));
        _mm512_storeu_ps(gradients + count, _mm512_maskz_compress_ps(lives, value));
        count += __builtin_popcount(lives);
    }
#endif
    for (; w < from.windows; w++) {
        uint32_t bits;
        memcpy(&bits, gradient + w, sizeof bits);
        places[count] = image + from.corners[w] + step[winner[w]];
        gradients[count] = gradient[w];
        count += (winner[w] != NOBODY) & (bits << 1 != 0); /* neither 0 nor -0 */
    }
    found->count = count;
}

/* The gradient of the bias, in eight strands. */
static float sum_gradients(const winners &found)
{
    vector strands = {};
    int w = 0;
    for (; w + LANES <= found.count; w += LANES) strands += load(found.gradients + w);
    float sum = 0;
    for (; w < found.count; w++) sum += found.gradients[w];
    for (int k = 0; k < LANES; k++) sum += strands[k];
    return sum;
}

/* What a call to backward works in: a block of images and their gradient, one client's weights and their gradient,
   all in this order; `grad_x` is null if it is not wanted. */
typedef struct {
    runs order;
    float *x, *grad_x, *weight, *grad_weight;
    winners found;
} workplace;

/* Add gradient * patch to LINES lines of COUNT vectors of the weight's gradient, `at` floats into it and into the
   patches. Where there are few sums, each would wait for its last addition: then two windows are taken at once. */
template <class V, int LINES, int COUNT> static void gather(const workplace &in, const float *x, float *sum)
{
    constexpr int STRANDS = LINES * COUNT < 8 ? 2 : 1;
    const winners &found = in.found;
    V part[STRANDS][LINES][COUNT] = {};
    const auto add = [&](int w, V(&to)[LINES][COUNT]) {
        const float *patch = x + found.places[w];
        V g = spread_as<V>(found.gradients[w]);
        UNROLL for (int l = 0; l < LINES; l++)
            UNROLL for (int v = 0; v < COUNT; v++)
                to[l][v] = add_product(g, load_as<V>(patch + l * in.order.line + v * lanes<V>), to[l][v]);
    };
    int w = 0;
    for (; w + STRANDS <= found.count; w += STRANDS)
        UNROLL for (int s = 0; s < STRANDS; s++) add(w + s, part[s]);
    for (; w < found.count; w++) add(w, part[0]);
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < COUNT; v++) {
            float *to = sum + l * in.order.run + v * lanes<V>;
            V whole = part[0][l][v];
            if (STRANDS > 1) whole += part[STRANDS - 1][l][v];
            store_as<V>(to, load_as<V>(to) + whole);
        }
}

/* Add gradient * weight to LINES lines of COUNT vectors of the patches in the gradient of x. The images take turns:
   neighbouring patches overlap, and a read would have to wait for the write just before it. */
template <class V, int LINES, int COUNT> static void scatter(const workplace &in, int images, const float *weight, float *x)
{
    const winners &found = in.found;
    V from[LINES][COUNT];
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < COUNT; v++) from[l][v] = load_as<V>(weight + l * in.order.run + v * lanes<V>);
    for (int turn = 0, left = 1; left; turn++) {
        left = 0;
        for (int image = 0; image < images; image++) {
            int w = found.first[image] + turn;
            if (w >= found.first[image + 1]) continue;
            left = 1;
            V g = spread_as<V>(found.gradients[w]);
            float *patch = x + found.places[w];
            UNROLL for (int l = 0; l < LINES; l++)
                UNROLL for (int v = 0; v < COUNT; v++) {
                    float *to = patch + l * in.order.line + v * lanes<V>;
                    store_as<V>(to, add_product(g, from[l][v], load_as<V>(to)));
                }
        }
    }
}

/* Both for LINES lines of `count` vectors, from a line and a vector of the patch on. */
template <class V, int LINES, int COUNT = MOST_VECTORS>
static void pass_on(const workplace &in, int images, int channel, int line, int first, int count)
{
    if (count < COUNT) {
        if constexpr (COUNT > 1) pass_on<V, LINES, COUNT - 1>(in, images, channel, line, first, count);
    } else if constexpr (LINES * COUNT <= MOST_SUMS) {
        size_t of_weight = ((size_t)channel * KERNEL + line) * in.order.run + first * lanes<V>;
        size_t of_image = line * in.order.line + first * lanes<V>;
        gather<V, LINES, COUNT>(in, in.x + of_image, in.grad_weight + of_weight);
        if (in.grad_x) scatter<V, LINES, COUNT>(in, images, in.weight + of_weight, in.grad_x + of_image);
    }
}

/* The gradients of one output channel: of whole patches where their sums have room in the registers. */
template <class V> static void pass_all(const workplace &in, int images, int channel)
{
    int count = (int)in.order.run / lanes<V>;
    if (KERNEL * count <= MOST_SUMS && count <= MOST_VECTORS) {
        pass_on<V, KERNEL>(in, images, channel, 0, 0, count);
        return;
    }
    for (int line = 0; line < KERNEL; line++)
        for (int v = 0; v < count; v += MOST_VECTORS)
            pass_on<V, 1>(in, images, channel, line, v, smaller(MOST_VECTORS, count - v));
}

/* One client's weights [out][in][ky][kx] to or from [out][ky][kx][in] with lines of whole vectors. */
template <bool BACK> static void pack_runs(float *weight, const shape *s, const runs &as, float *packed)
{
    for (int o = 0; o < s->out; o++)
        for (int i = 0; i < s->in; i++)
            for (int ky = 0; ky < KERNEL; ky++)
                for (int kx = 0; kx < KERNEL; kx++, weight++) {
                    float *run = packed + (o * KERNEL + ky) * as.run + kx * s->in + i;
                    if (BACK) *weight = *run;
                    else *run = *weight;
                }
}

/* The gradients of one block of images; those of weight and bias are added up. */
static void backward_block(const shape *s, int images, const float *grad_y, const uint8_t *winner, workplace *at,
                           float *grad_bias)
{
    winners &found = at->found;
    for (int o = 0; o < s->out; o++) {
        found.count = 0;
        for (int r = 0; r < images; r++) {
            size_t plane = ((size_t)r * s->out + o) * at->order.windows;
            found.first[r] = found.count;
            collect(grad_y + plane, winner + plane, (int)(r * at->order.image), at->order, &found);
        }
        found.first[images] = found.count;
        grad_bias[o] += sum_gradients(found);
        if (at->order.run == LANES) pass_all<vector>(*at, images, o);
        else pass_all<wide>(*at, images, o);
    }
}

/* How the images of this shape lie. */
static runs arrange(const shape *s)
{
    int high = pooled(s->height, s->padding), wide_ = pooled(s->width, s->padding), floats = KERNEL * s->in;
    int lanes_ = floats <= LANES ? LANES : lanes<wide>;
    runs order = {s->in, high * wide_, (size_t)(s->width + 2 * s->padding) * s->in, 0,
                  (size_t)vectors(floats, lanes_) * lanes_, (int32_t *)zeros((size_t)high * wide_)};
    order.image = order.line * (s->height + 2 * s->padding);
    for (int w = 0; w < order.windows && order.corners; w++)
        order.corners[w] = (int32_t)(w / wide_ * 2 * order.line + w % wide_ * 2 * s->in);
    return order;
}

/* grad_x may be null: then it is not wanted. Returns 0, or 1 if there was no memory. */
extern "C" int conv_pool_relu_backward(const shape *s, const float *grad_y, const float *x, float *weight,
                                       const uint8_t *winner, float *grad_x, float *grad_weight, float *grad_bias)
{
    runs order = arrange(s);
    size_t windows = (size_t)s->out * order.windows, image = (size_t)s->in * s->height * s->width;
    size_t taps = (size_t)s->out * s->in * KERNEL * KERNEL, lines = (size_t)s->out * KERNEL * order.run;
    int at_once = larger(1, (int)(BLOCK_FLOATS / order.image));
    size_t block = at_once * order.image + SLACK, most = (size_t)at_once * order.windows + SLACK;
    winners found = {(int32_t *)zeros(most), zeros(most), (int32_t *)zeros(at_once + 1), 0};
    workplace at = {order, zeros(block), grad_x ? zeros(block) : NULL, zeros(lines), zeros(lines), found};
    int failed = !order.corners || !at.x || (grad_x && !at.grad_x) || !at.weight || !at.grad_weight || !found.places ||
                 !found.gradients || !found.first;
    for (int c = 0; c < s->clients && !failed; c++) {
        if (grad_x) pack_runs<false>(weight + c * taps, s, order, at.weight);
        memset(at.grad_weight, 0, lines * sizeof(float));
        memset(grad_bias, 0, s->out * sizeof(float));
        for (int first = 0; first < s->rows; first += at_once) {
            int rows = smaller(at_once, s->rows - first);
            for (int r = 0; r < rows; r++, x += image) by_pixel(x, s, order, at.x + r * order.image);
            if (grad_x) memset(at.grad_x, 0, block * sizeof(float));
            backward_block(s, rows, grad_y, winner, &at, grad_bias);
            for (int r = 0; r < rows && grad_x; r++, grad_x += image)
                by_channel(at.grad_x + r * order.image, s, order, grad_x);
            grad_y += rows * windows;
            winner += rows * windows;
        }
        pack_runs<true>(grad_weight + c * taps, s, order, at.grad_weight);
        grad_bias += s->out;
    }
    free(order.corners), free(at.x), free(at.grad_x), free(at.weight), free(at.grad_weight);
    free(found.places), free(found.gradients), free(found.first);
    return failed;
}
