/* A linear layer and its gradient, stacked over clients, each with weights of its own:
       x [clients][rows][in]    weight [clients][out][in]    bias [clients][out]    y [clients][rows][out]
   Each number is summed in the same order whatever the tile it falls into, so it depends neither on the other clients
   nor on how many rows there are. One thread. */

#include "vectors.h"

typedef struct {
    int32_t clients, rows, in, out;
} shape;

/* Lines of `from` floats copied to lines of `to` floats; what is longer is left as it is or left out. */
static void copy_lines(const float *source, int lines, int from, float *target, int to)
{
    for (int line = 0; line < lines; line++)
        memcpy(target + (size_t)line * to, source + (size_t)line * from, sizeof(float) * smaller(from, to));
}

/* The sums of four vectors. */
static inline void sums(const vector *v, float *four)
{
    vector ab = EVEN(v[0], v[1]) + ODD(v[0], v[1]), cd = EVEN(v[2], v[3]) + ODD(v[2], v[3]);
    vector abcd = EVEN(ab, cd) + ODD(ab, cd);
    for (int k = 0; k < 4; k++) four[k] = abcd[k] + abcd[k + 4];
}

/* y = x weight' + bias for ROWS rows and OUTS outputs; lines are `line` floats, a multiple of 8, long. */
template <int ROWS, int OUTS>
static void products(const float *x, const float *weight, const float *bias, int line, float *y, int out)
{
    vector total[ROWS][4] = {};
    for (int i = 0; i < line; i += LANES) {
        vector w[OUTS];
        UNROLL for (int o = 0; o < OUTS; o++) w[o] = load(weight + (size_t)o * line + i);
        UNROLL for (int r = 0; r < ROWS; r++) {
            vector from = load(x + (size_t)r * line + i);
            UNROLL for (int o = 0; o < OUTS; o++) total[r][o] = add_product(from, w[o], total[r][o]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
        float four[4];
        sums(total[r], four);
        UNROLL for (int o = 0; o < OUTS; o++) y[(size_t)r * out + o] = four[o] + bias[o];
    }
}

template <int OUTS>
static void products_of_rows(const float *x, int rows, const float *weight, const float *bias, int line, float *y,
                             int out)
{
    int r = 0;
    for (; r + 3 <= rows; r += 3)
        products<3, OUTS>(x + (size_t)r * line, weight, bias, line, y + (size_t)r * out, out);
    for (; r < rows; r++) products<1, OUTS>(x + (size_t)r * line, weight, bias, line, y + (size_t)r * out, out);
}

extern "C" int linear_forward(const shape *s, const float *x, const float *weight, const float *bias, float *y)
{
    int line = vectors(s->in) * LANES, whole = line == s->in;
    float *own_x = zeros(whole ? 0 : (size_t)s->rows * line), *own_weight = zeros(whole ? 0 : (size_t)s->out * line);
    int failed = !own_x || !own_weight;
    for (int c = 0; c < s->clients && !failed; c++) {
        if (!whole) {
            copy_lines(x, s->rows, s->in, own_x, line);
            copy_lines(weight, s->out, s->in, own_weight, line);
        }
        const float *from = whole ? x : own_x, *w = whole ? weight : own_weight;
        int o = 0;
        for (; o + 4 <= s->out; o += 4)
            products_of_rows<4>(from, s->rows, w + (size_t)o * line, bias + o, line, y + o, s->out);
        for (; o < s->out; o++)
            products_of_rows<1>(from, s->rows, w + (size_t)o * line, bias + o, line, y + o, s->out);
        x += (size_t)s->rows * s->in;
        weight += (size_t)s->out * s->in;
        bias += s->out;
        y += (size_t)s->rows * s->out;
    }
    free(own_x);
    free(own_weight);
    return failed;
}

/* Where a factor stands in memory: from one line of the result to the next, and from one summand to the next. */
typedef struct {
    const float *start;
    int line, summand;
} factor;

/* LINES lines of 8 * COUNT columns of the product a b, with `depth` summands. */
template <int LINES, int COUNT>
static void combine(factor a, const float *b, int b_line, int depth, float *result, int result_line)
{
    vector total[LINES][COUNT] = {};
    for (int d = 0; d < depth; d++, b += b_line) {
        vector from[COUNT];
        UNROLL for (int v = 0; v < COUNT; v++) from[v] = load(b + v * LANES);
        UNROLL for (int l = 0; l < LINES; l++) {
            vector scale = spread(a.start[(size_t)l * a.line + (size_t)d * a.summand]);
            UNROLL for (int v = 0; v < COUNT; v++) total[l][v] = add_product(scale, from[v], total[l][v]);
        }
    }
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < COUNT; v++) store(result + (size_t)l * result_line + v * LANES, total[l][v]);
}

template <int COUNT>
static void combine_lines(factor a, int lines, const float *b, int b_line, int depth, float *result)
{
    for (; lines >= 4; lines -= 4, a.start += 4 * (size_t)a.line, result += 4 * (size_t)b_line)
        combine<4, COUNT>(a, b, b_line, depth, result, b_line);
    for (; lines > 0; lines--, a.start += a.line, result += b_line)
        combine<1, COUNT>(a, b, b_line, depth, result, b_line);
}

/* The product a b, where b and the result have `width` columns, a multiple of 8. */
static void multiply(factor a, int lines, const float *b, int width, int depth, float *result)
{
    int v = 0;
    for (; v + 3 * LANES <= width; v += 3 * LANES) combine_lines<3>(a, lines, b + v, width, depth, result + v);
    for (; v < width; v += LANES) combine_lines<1>(a, lines, b + v, width, depth, result + v);
}

/* grad_x may be null: then it is not wanted. */
extern "C" int linear_backward(const shape *s, const float *grad_y, const float *x, const float *weight, float *grad_x,
                               float *grad_weight, float *grad_bias)
{
    int line = vectors(s->in) * LANES, whole = line == s->in, most = larger(s->rows, s->out);
    float *own = zeros(whole ? 0 : (size_t)most * line), *result = zeros(whole ? 0 : (size_t)most * line);
    int failed = !own || !result;
    for (int c = 0; c < s->clients && !failed; c++) {
        size_t rows_in = (size_t)s->rows * s->in, out_in = (size_t)s->out * s->in;
        if (!whole) copy_lines(x, s->rows, s->in, own, line);
        multiply({grad_y, 1, s->out}, s->out, whole ? x : own, line, s->rows, whole ? grad_weight : result);
        if (!whole) copy_lines(result, s->out, line, grad_weight, s->in);
        if (grad_x) {
            if (!whole) copy_lines(weight, s->out, s->in, own, line);
            multiply({grad_y, s->out, 1}, s->rows, whole ? weight : own, line, s->out, whole ? grad_x : result);
            if (!whole) copy_lines(result, s->rows, line, grad_x, s->in);
            grad_x += rows_in;
        }
        memset(grad_bias, 0, s->out * sizeof(float));
        for (int r = 0; r < s->rows; r++, grad_y += s->out)
            for (int o = 0; o < s->out; o++) grad_bias[o] += grad_y[o];
        x += rows_in;
        weight += out_in;
        grad_weight += out_in;
        grad_bias += s->out;
    }
    free(own);
    free(result);
    return failed;
}
