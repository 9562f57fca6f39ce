/* Batch normalisation by the mean and variance of the real rows, and its gradient. What is normalised lies in memory as
   [rows][pixels][channels]. Sums are taken row by row, and rows of padding are passed over: they change no bit. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int32_t rows, pixels, channels;
} shape;

/* How many numbers each channel has in the real rows. */
static double counted(const shape *s, const uint8_t *real)
{
    double rows = 0;
    for (int r = 0; r < s->rows; r++) rows += real[r] != 0;
    return rows * s->pixels;
}

static inline float square(float v) { return v * v; }

/* Sums over a row's pixels, channel by channel, and these added to those of all rows. */
template <class Term> static void add_up(int pixels, int channels, float *__restrict row, double *totals, Term term)
{
    for (int c = 0; c < channels; c++) row[c] = 0;
    for (int p = 0; p < pixels; p++)
        for (int c = 0; c < channels; c++) row[c] += term((size_t)p * channels + c, c);
    for (int c = 0; c < channels; c++) totals[c] += row[c];
}

/* y = (x - mean) / sqrt(variance + eps) * weight + bias. `weight` and `bias` may be null. */
extern "C" int batch_norm_forward(const shape *s, const float *x, const uint8_t *real, const float *weight,
                                  const float *bias, float *__restrict y, float *__restrict mean,
                                  float *__restrict variance, float *__restrict inverse, float eps)
{
    const int channels = s->channels, pixels = s->pixels;
    const size_t size = (size_t)pixels * channels;
    const double count = counted(s, real), divisor = count ? count : 1;
    double *totals = (double *)calloc(2 * channels, sizeof(double));
    float *scale = (float *)malloc(2 * channels * sizeof(float)), *level = scale + channels;
    if (!totals || !scale) return free(totals), free(scale), 1;

    for (int r = 0; r < s->rows; r++) {
        const float *in = x + r * size;
        if (real[r]) add_up(pixels, channels, scale, totals, [=](size_t i, int) { return in[i]; });
    }
    for (int c = 0; c < channels; c++) mean[c] = (float)(totals[c] / divisor);
    double *squares = totals + channels;
    for (int r = 0; r < s->rows; r++) {
        const float *in = x + r * size;
        if (real[r]) add_up(pixels, channels, scale, squares, [=](size_t i, int c) { return square(in[i] - mean[c]); });
    }
    for (int c = 0; c < channels; c++) {
        variance[c] = count ? (float)(squares[c] / divisor) : 1;
        inverse[c] = 1 / sqrtf(variance[c] + eps);
        scale[c] = weight ? inverse[c] * weight[c] : inverse[c];
        level[c] = bias ? bias[c] : 0;
    }
    for (size_t p = 0; p < (size_t)s->rows * pixels; p++)
        for (int c = 0; c < channels; c++) y[p * channels + c] = (x[p * channels + c] - mean[c]) * scale[c] + level[c];
    return free(totals), free(scale), 0;
}

/* All rows pull at weight and bias, and through mean and variance at the real rows. `weight` may be null. */
extern "C" int batch_norm_backward(const shape *s, const float *grad, const float *x, const uint8_t *real,
                                   const float *weight, const float *mean, const float *inverse,
                                   float *__restrict grad_x, float *__restrict grad_weight, float *__restrict grad_bias)
{
    const int channels = s->channels, pixels = s->pixels;
    const size_t size = (size_t)pixels * channels;
    const double count = counted(s, real), divisor = count ? count : 1;
    double *totals = (double *)calloc(2 * channels, sizeof(double)), *products = totals + channels;
    float *scale = (float *)malloc(3 * channels * sizeof(float)), *level = scale + channels, *slope = level + channels;
    if (!totals || !scale) return free(totals), free(scale), 1;

    for (int r = 0; r < s->rows; r++) {
        const float *in = x + r * size, *pull = grad + r * size;
        add_up(pixels, channels, scale, totals, [=](size_t i, int) { return pull[i]; });
        add_up(pixels, channels, scale, products, [=](size_t i, int c) { return pull[i] * (in[i] - mean[c]); });
    }
    for (int c = 0; c < channels; c++) {
        grad_bias[c] = (float)totals[c];
        grad_weight[c] = (float)(products[c] * inverse[c]);
        scale[c] = weight ? inverse[c] * weight[c] : inverse[c];
        level[c] = scale[c] * (float)(totals[c] / divisor);
        slope[c] = scale[c] * inverse[c] * inverse[c] * (float)(products[c] / divisor);
    }
    for (int r = 0; r < s->rows; r++)
        for (int p = 0; p < pixels; p++) {
            const size_t at = r * size + (size_t)p * channels;
            for (int c = 0; c < channels; c++) {
                const float through = real[r] ? level[c] + slope[c] * (x[at + c] - mean[c]) : 0;
                grad_x[at + c] = scale[c] * grad[at + c] - through;
            }
        }
    return free(totals), free(scale), 0;
}
