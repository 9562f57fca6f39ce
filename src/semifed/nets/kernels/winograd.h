/* Winograd's F(2x2, 3x3): a square of 2x2 results of a 3x3 convolution is made of a square of 4x4 pixels with 16 products
   for each pair of channels, where the plain way takes 36. In one dimension, of four pixels d, three weights g and two
   results y,
       y = A'(G g * B' d)    B' d = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)    A' m = (m0 + m1 + m2, m1 - m2 - m3)
                             G g = (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2)
   and in two dimensions the same along both; A and G themselves lead the gradient back. Here is all but the products.
   What is multiplied lies as [16 points][channels / BLOCK][squares][BLOCK], and channels are multiples of BLOCK. */

#pragma once

#include "vectors.h"

#define POINTS 16
#define BLOCK (2 * lanes<wide>)

typedef struct {
    int32_t rows, height, width, in, out;
} shape;

/* Squares of the results, `across` in a line of them. */
static inline int across(const shape *s) { return (s->width + 1) / 2; }
static inline int down(const shape *s) { return (s->height + 1) / 2; }
static inline int squares(const shape *s) { return s->rows * across(s) * down(s); }

/* The top left pixel of a square's results. */
typedef struct {
    int row, top, left;
} corner;
static inline corner corner_of(const shape *s, int square)
{
    int each = across(s) * down(s), inside = square % each;
    return {square / each, 2 * (inside / across(s)), 2 * (inside % across(s))};
}

/* A pixel's channels, or those of the border. */
static inline const float *pixel(const shape *s, const float *image, int channels, corner at, int lower, int further,
                                 const float *border)
{
    const int y = at.top + lower, x = at.left + further;
    if (y < 0 || y >= s->height || x < 0 || x >= s->width) return border;
    return image + (((size_t)at.row * s->height + y) * s->width + x) * channels;
}

/* Where the channels from c on of a square lie in a point's plane of `count` squares. */
static inline size_t place(int c, int square, int count) { return (size_t)c * count + square * BLOCK; }

/* B' d B of `count` squares from `first` on: all that the convolution reads of the image. */
static void read_pixels(const shape *s, const float *x, int channels, int first, int count, const float *border,
                        float *v)
{
    const size_t plane = (size_t)channels * count;
    for (int t = 0; t < count; t++) {
        const corner at = corner_of(s, first + t);
        const float *from[4][4];
        for (int i = 0; i < POINTS; i++) from[i / 4][i % 4] = pixel(s, x, channels, at, i / 4 - 1, i % 4 - 1, border);
        for (int c = 0; c < channels; c += lanes<wide>) {
            float *to = v + place(c / BLOCK * BLOCK, t, count) + c % BLOCK;
            wide d[4][4], half[4][4];
            UNROLL for (int i = 0; i < POINTS; i++) d[i / 4][i % 4] = load_as<wide>(from[i / 4][i % 4] + c);
            UNROLL for (int j = 0; j < 4; j++) {
                half[0][j] = d[0][j] - d[2][j], half[1][j] = d[1][j] + d[2][j];
                half[2][j] = d[2][j] - d[1][j], half[3][j] = d[1][j] - d[3][j];
            }
            UNROLL for (int i = 0; i < 4; i++) {
                store_as<wide>(to + (4 * i + 0) * plane, half[i][0] - half[i][2]);
                store_as<wide>(to + (4 * i + 1) * plane, half[i][1] + half[i][2]);
                store_as<wide>(to + (4 * i + 2) * plane, half[i][2] - half[i][1]);
                store_as<wide>(to + (4 * i + 3) * plane, half[i][1] - half[i][3]);
            }
        }
    }
}

/* A y A' of the gradient of `count` squares of results. */
static void read_results(const shape *s, const float *y, int first, int count, const float *border, float *z)
{
    const size_t plane = (size_t)s->out * count;
    for (int t = 0; t < count; t++) {
        const corner at = corner_of(s, first + t);
        const float *from[2][2];
        for (int i = 0; i < 4; i++) from[i / 2][i % 2] = pixel(s, y, s->out, at, i / 2, i % 2, border);
        for (int c = 0; c < s->out; c += lanes<wide>) {
            float *to = z + place(c / BLOCK * BLOCK, t, count) + c % BLOCK;
            wide half[4][2];
            UNROLL for (int j = 0; j < 2; j++) {
                const wide upper = load_as<wide>(from[0][j] + c), lower = load_as<wide>(from[1][j] + c);
                half[0][j] = upper, half[1][j] = upper + lower, half[2][j] = upper - lower, half[3][j] = -lower;
            }
            UNROLL for (int i = 0; i < 4; i++) {
                store_as<wide>(to + (4 * i + 0) * plane, half[i][0]);
                store_as<wide>(to + (4 * i + 1) * plane, half[i][0] + half[i][1]);
                store_as<wide>(to + (4 * i + 2) * plane, half[i][0] - half[i][1]);
                store_as<wide>(to + (4 * i + 3) * plane, -half[i][1]);
            }
        }
    }
}

/* A' m A + bias of one square for as many channels as a vector holds. m is [POINTS][count][BLOCK]. */
static inline void result_of(const float *m, size_t plane, wide bias, wide (&y)[2][2])
{
    wide half[2][4];
    UNROLL for (int j = 0; j < 4; j++) {
        wide p[4];
        UNROLL for (int i = 0; i < 4; i++) p[i] = load_as<wide>(m + (4 * i + j) * plane);
        half[0][j] = p[0] + p[1] + p[2], half[1][j] = p[1] - p[2] - p[3];
    }
    UNROLL for (int i = 0; i < 2; i++) {
        y[i][0] = half[i][0] + half[i][1] + half[i][2] + bias;
        y[i][1] = half[i][1] - half[i][2] - half[i][3] + bias;
    }
}

/* BLOCK channels of the results of `count` squares. */
static void write_results(const shape *s, const float *m, int first, int count, const float *bias, float *y,
                          int channels)
{
    for (int t = 0; t < count; t++) {
        const corner at = corner_of(s, first + t);
        float *to = (float *)pixel(s, y, channels, at, 0, 0, NULL);
        const bool right = at.left + 1 < s->width, below = at.top + 1 < s->height;
        for (int c = 0; c < BLOCK; c += lanes<wide>) {
            wide made[2][2];
            result_of(m + t * BLOCK + c, (size_t)count * BLOCK, bias ? load_as<wide>(bias + c) : wide{}, made);
            UNROLL for (int i = 0; i < 2; i++) {
                if (i && !below) break;
                float *line = to + i * (size_t)s->width * channels + c;
                store_as<wide>(line, made[i][0]);
                if (right) store_as<wide>(line + channels, made[i][1]);
            }
        }
    }
}

/* The largest result of each square, cut off at 0, where all squares are whole. Not-a-number wins, as in torch. */
static void write_pooled(const shape *, const float *m, int first, int count, const float *bias, float *y,
                         int channels)
{
    for (int t = 0; t < count; t++)
        for (int c = 0; c < BLOCK; c += lanes<wide>) {
            wide made[2][2], best;
            result_of(m + t * BLOCK + c, (size_t)count * BLOCK, bias ? load_as<wide>(bias + c) : wide{}, made);
            best = made[0][0];
            UNROLL for (int k = 1; k < 4; k++) {
                const wide one = made[k / 2][k % 2];
                best = (one > best) | (one != one) ? one : best;
            }
            store_as<wide>(y + (size_t)(first + t) * channels + c, best <= wide{} ? wide{} : best);
        }
}

/* G g G' of the nine weights of one pair of channels, or of many side by side. */
static inline void widen(const wide (&g)[9], wide (&u)[POINTS])
{
    const wide by_two = spread_as<wide>(0.5f);
    wide half[4][3];
    UNROLL for (int j = 0; j < 3; j++) {
        const wide outer = (g[j] + g[6 + j]) * by_two, middle = g[3 + j] * by_two;
        half[0][j] = g[j], half[1][j] = outer + middle, half[2][j] = outer - middle, half[3][j] = g[6 + j];
    }
    UNROLL for (int i = 0; i < 4; i++) {
        const wide outer = (half[i][0] + half[i][2]) * by_two, middle = half[i][1] * by_two;
        u[4 * i] = half[i][0], u[4 * i + 1] = outer + middle, u[4 * i + 2] = outer - middle, u[4 * i + 3] = half[i][2];
    }
}

/* The weights of the forward pass: [out / BLOCK][POINTS][in][BLOCK]. */
static void read_weights(const shape *s, const float *weight, float *u)
{
    const int L = lanes<wide>;
    for (int o = 0; o < s->out; o += L)
        for (int i = 0; i < s->in; i += L) {
            float turned[9][L][L]; /* [in][out] */
            for (int a = 0; a < L; a++)
                for (int k = 0; k < 9; k++)
                    for (int b = 0; b < L; b++) turned[k][b][a] = weight[((size_t)(o + a) * 9 + k) * s->in + i + b];
            float *to = u + (size_t)(o / BLOCK) * POINTS * s->in * BLOCK + o % BLOCK;
            for (int b = 0; b < L; b++) {
                wide g[9], points[POINTS];
                UNROLL for (int k = 0; k < 9; k++) g[k] = load_as<wide>(turned[k][b]);
                widen(g, points);
                UNROLL for (int p = 0; p < POINTS; p++)
                    store_as<wide>(to + ((size_t)p * s->in + i + b) * BLOCK, points[p]);
            }
        }
}

/* The weights of the way back, turned by half a circle: [in / BLOCK][POINTS][out][BLOCK]. */
static void read_weights_back(const shape *s, const float *weight, float *u)
{
    for (int o = 0; o < s->out; o++)
        for (int i = 0; i < s->in; i += lanes<wide>) {
            wide g[9], points[POINTS];
            UNROLL for (int k = 0; k < 9; k++) g[8 - k] = load_as<wide>(weight + ((size_t)o * 9 + k) * s->in + i);
            widen(g, points);
            float *to = u + ((size_t)(i / BLOCK) * POINTS * s->out + o) * BLOCK + i % BLOCK;
            UNROLL for (int p = 0; p < POINTS; p++) store_as<wide>(to + (size_t)p * s->out * BLOCK, points[p]);
        }
}

/* G' u G: the gradient of the weights. u is [POINTS][in / BLOCK][out][BLOCK]. */
static void write_weights(const shape *s, const float *u, float *weight)
{
    const wide by_two = spread_as<wide>(0.5f);
    const size_t plane = (size_t)s->in * s->out;
    for (int o = 0; o < s->out; o++)
        for (int i = 0; i < s->in; i += lanes<wide>) {
            const float *from = u + (size_t)(i / BLOCK * BLOCK) * s->out + o * BLOCK + i % BLOCK;
            wide half[3][4];
            UNROLL for (int j = 0; j < 4; j++) {
                wide p[4];
                UNROLL for (int k = 0; k < 4; k++) p[k] = load_as<wide>(from + (4 * k + j) * plane);
                const wide sum = (p[1] + p[2]) * by_two;
                half[0][j] = p[0] + sum, half[1][j] = (p[1] - p[2]) * by_two, half[2][j] = sum + p[3];
            }
            UNROLL for (int k = 0; k < 3; k++) {
                float *to = weight + ((size_t)o * 9 + 3 * k) * s->in + i;
                const wide sum = (half[k][1] + half[k][2]) * by_two;
                store_as<wide>(to, half[k][0] + sum);
                store_as<wide>(to + s->in, (half[k][1] - half[k][2]) * by_two);
                store_as<wide>(to + 2 * s->in, sum + half[k][3]);
            }
        }
}
