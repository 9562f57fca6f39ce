/* The operations of semifed/data/randaugment.py on one image, to the bit. Every rounding is that of torch, which means
   that products and sums are rounded one by one: build without contraction.

   An operation takes an image and a spare one of the same size and returns the one that holds the result. Around both
   lie SLACK bytes of no meaning, so that rows can be copied in whole chunks. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#define UNROLL _Pragma("GCC unroll 8") /* loops that look up, which no compiler turns into vectors */
#define STAY_HERE __asm__ volatile("") /* or a short loop becomes a call of memcpy, which takes longer */
#define SLACK 64
#define TOP_LEVEL 10
#define MAP 6 /* numbers of a map from output to source: column and row are (a x + b y + c) >> 16 */
#define MAPS (MAP * (2 * TOP_LEVEL + 1))

typedef uint8_t byte;

/* The sizes of an image, and a number for each of its pixels to work with. */
typedef struct {
    int channels, height, width, pixels;
    int32_t *places;
} image_form;

/* The order of OPERATIONS. */
enum {
    IDENTITY, AUTOCONTRAST, BRIGHTNESS, COLOR, CONTRAST, EQUALIZE, POSTERIZE, ROTATE, SHARPNESS, SHEAR_X, SHEAR_Y,
    SOLARIZE, TRANSLATE_X, TRANSLATE_Y
};

static inline byte blend_one(float base, float value, float factor)
{
    const int mixed = (int)((value - base) * factor + base); /* limits are faster for whole numbers, and the same */
    const int positive = mixed < 0 ? 0 : mixed;
    return (byte)(positive > 255 ? 255 : positive);
}

static void blend_from(float base, byte *values, int count, float factor)
{
    for (int i = 0; i < count; i++) values[i] = blend_one(base, values[i], factor);
}

static void blend(const byte *__restrict bases, byte *__restrict values, int count, float factor)
{
    for (int i = 0; i < count; i++) values[i] = blend_one(bases[i], values[i], factor);
}

/* The grey values of more than one channel. */
static void luminance(const image_form *form, const byte *__restrict image, byte *__restrict grey)
{
    const int pixels = form->pixels;
    if (form->channels == 3) {
        const byte *red = image, *green = image + pixels, *blue = green + pixels;
        for (int i = 0; i < pixels; i++)
            grey[i] = (byte)((red[i] * 19595 + green[i] * 38470 + blue[i] * 7471 + 0x8000) >> 16);
        return;
    }
    for (int i = 0; i < pixels; i++) {
        int total = 0;
        for (int channel = 0; channel < form->channels; channel++) total += image[channel * pixels + i];
        grey[i] = (byte)nearbyintf((float)total / (float)form->channels);
    }
}

static int mean_grey(const image_form *form, const byte *image, byte *spare)
{
    const byte *grey = image;
    if (form->channels > 1) luminance(form, image, spare), grey = spare;
    uint32_t sum = 0; /* of at most 2^24 pixels */
    for (int i = 0; i < form->pixels; i++) sum += grey[i];
    const int64_t pixels = form->pixels;
    return (int)((2 * (int64_t)sum + pixels) / (2 * pixels));
}

static void contrast(const image_form *form, byte *image, byte *spare, float factor)
{
    blend_from((float)mean_grey(form, image, spare), image, form->channels * form->pixels, factor);
}

static void color(const image_form *form, byte *image, byte *spare, float factor)
{
    if (form->channels == 1) return;
    luminance(form, image, spare);
    for (int channel = 0; channel < form->channels; channel++)
        blend(spare, image + channel * form->pixels, form->pixels, factor);
}

static void autocontrast(byte *values, int count)
{
    byte low = 255, high = 0;
    for (int i = 0; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    if (low == high) return;
    const float least = low, spread = (float)high - (float)low;
    for (int i = 0; i < count; i++) values[i] = (byte)(int)(((float)values[i] - least) * 255.0f / spread);
}

static void equalize(byte *values, int count)
{
    int32_t counts[4][256] = {}; /* four, since equal neighbours would wait for each other */
    UNROLL for (int i = 0; i < count; i++) counts[i & 3][values[i]]++;
    for (int value = 0; value < 256; value++)
        counts[0][value] += counts[1][value] + counts[2][value] + counts[3][value];
    int highest = 255;
    while (!counts[0][highest]) highest--;
    const int32_t step = (count - counts[0][highest]) / 255;
    if (!step) return;
    int32_t *below = counts[1], sum = step / 2;
    for (int value = 0; value < 256; value++) below[value] = sum, sum += counts[0][value];
    byte table[256];
    for (int value = 0; value < 256; value++) { /* exact: doubles hold these quotients apart from whole numbers */
        const int32_t wanted = (int32_t)((double)below[value] / (double)step);
        table[value] = (byte)(wanted > 255 ? 255 : wanted);
    }
    UNROLL for (int i = 0; i < count; i++) values[i] = table[values[i]];
}

static void posterize(byte *values, int count, int level)
{
    const byte kept = (byte)(256 - (1 << (4 - level * 4 / TOP_LEVEL)));
    for (int i = 0; i < count; i++) values[i] &= kept;
}

static void solarize(byte *values, int count, int level)
{
    const int threshold = 256 - level * 256 / TOP_LEVEL;
    for (int i = 0; i < count; i++) values[i] = values[i] >= threshold ? (byte)~values[i] : values[i];
}

/* A 3 x 3 mean whose centre counts five times, of the pixels that have all neighbours; the others stay. All rows of a
   channel are one run, which is faster for small images; what comes of it at the ends of the rows is put right. */
static void smooth(const image_form *form, const byte *__restrict image, byte *__restrict to)
{
    const int width = form->width, pixels = form->pixels;
    memcpy(to, image, (size_t)form->channels * pixels);
    if (width < 3) return;
    for (int channel = 0; channel < form->channels; channel++, image += pixels, to += pixels) {
        const byte *above = image - width, *under = image + width;
        for (int i = width; i < pixels - width; i++) {
            const uint16_t corners = (uint16_t)(above[i - 1] + above[i + 1] + under[i - 1] + under[i + 1]);
            const uint16_t cross = (uint16_t)(above[i] + image[i - 1] + image[i + 1] + under[i]);
            const uint16_t total = (uint16_t)(corners + cross + 5 * image[i] + 6);
            to[i] = (byte)(total / 13); /* what torch's quotient is cut to: none is near the next number */
        }
        for (int i = width; i < pixels; i += width) to[i] = image[i], to[i - 1] = image[i - 1];
    }
}

static void sharpness(const image_form *form, byte *image, byte *spare, float factor)
{
    smooth(form, image, spare);
    blend(spare, image, form->channels * form->pixels, factor);
}

/* Copies whole chunks: up to 15 bytes too many, for which both sides have slack or a row that is written later. */
static inline void copy_row(byte *to, const byte *from, int count)
{
    for (int i = 0; i < count; i += 16) {
        memcpy(to + i, from + i, 16);
        STAY_HERE;
    }
}

/* A map that moves each row as a whole. */
static void move_rows(const image_form *form, const byte *__restrict image, byte *__restrict to, const int32_t *map)
{
    const int height = form->height, width = form->width;
    for (int channel = 0; channel < form->channels; channel++, image += form->pixels)
        for (int y = 0; y < height; y++, to += width) {
            const int shift = (map[1] * y + map[2]) >> 16, row = (map[4] * y + map[5]) >> 16;
            int first = shift < 0 ? -shift : 0, end = shift > 0 ? width - shift : width;
            if (row < 0 || row >= height || first >= end) first = end = width;
            else copy_row(to + first, image + row * width + first + shift, end - first);
            for (int x = 0; x < first; x++) to[x] = 0;
            for (int x = end; x < width; x++) to[x] = 0;
        }
}

static byte *geometric(const image_form *form, byte *image, byte *spare, const int32_t *map)
{
    if (map[0] == 1 << 16 && !map[3]) return move_rows(form, image, spare, map), spare;
    const int height = form->height, width = form->width, pixels = form->pixels, a = map[0], d = map[3];
    int32_t *__restrict places = form->places;
    for (int y = 0; y < height; y++) {
        const int start_x = map[1] * y + map[2], start_y = map[4] * y + map[5];
        for (int x = 0; x < width; x++) {
            const int column = (a * x + start_x) >> 16, row = (d * x + start_y) >> 16;
            const bool within = ((uint32_t)column < (uint32_t)width) & ((uint32_t)row < (uint32_t)height);
            places[y * width + x] = within ? row * width + column : pixels;
        }
    }
    for (int channel = 0; channel < form->channels; channel++, image += pixels) {
        byte *to = spare + channel * pixels;
        const byte behind = image[pixels];
        image[pixels] = 0; /* what lies outside shows this one */
        UNROLL for (int i = 0; i < pixels; i++) to[i] = image[places[i]];
        image[pixels] = behind;
    }
    return spare;
}

/* `factors` are those of the levels 0 .. 10, `maps` [14][21][6] those of the levels -10 .. 10 of every operation. */
static byte *operate(const image_form *form, byte *image, byte *spare, int kind, int level, const float *factors,
                     const int32_t *maps)
{
    const int pixels = form->pixels, all = form->channels * pixels, size = level < 0 ? -level : level;
    switch (kind) {
    case IDENTITY: return image;
    case BRIGHTNESS: return blend_from(0.0f, image, all, factors[size]), image;
    case COLOR: return color(form, image, spare, factors[size]), image;
    case CONTRAST: return contrast(form, image, spare, factors[size]), image;
    case POSTERIZE: return posterize(image, all, size), image;
    case SOLARIZE: return solarize(image, all, size), image;
    case SHARPNESS: return sharpness(form, image, spare, factors[size]), image;
    case AUTOCONTRAST:
    case EQUALIZE:
        for (int channel = 0; channel < form->channels; channel++)
            (kind == EQUALIZE ? equalize : autocontrast)(image + channel * pixels, pixels);
        return image;
    default: return geometric(form, image, spare, maps + kind * MAPS + (level + TOP_LEVEL) * MAP);
    }
}
