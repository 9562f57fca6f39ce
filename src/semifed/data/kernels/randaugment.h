/* The operations of semifed/data/randaugment.py on one image, to the bit. Every rounding is that of torch, which means
   that products and sums are rounded one by one: build without contraction.

   An operation takes an image and a spare one of the same size and returns the one that holds the result. Around both
   lie SLACK bytes of no meaning, so that rows can be copied in whole chunks. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SLACK 64
#define TOP_LEVEL 10
#define MAP 6 /* numbers of a map from output to source: column and row are (a x + b y + c) >> 16 */
#define MAPS (MAP * (2 * TOP_LEVEL + 1))

typedef uint8_t byte;

/* The sizes of an image, and a number for each of its columns to work with. */
typedef struct {
    int channels, height, width, pixels;
    int32_t *places;
    byte *inside;
} image_form;

/* The order of OPERATIONS. */
enum {
    IDENTITY, AUTOCONTRAST, BRIGHTNESS, COLOR, CONTRAST, EQUALIZE, POSTERIZE, ROTATE, SHARPNESS, SHEAR_X, SHEAR_Y,
    SOLARIZE, TRANSLATE_X, TRANSLATE_Y
};

static inline byte blend_one(float base, float value, float factor)
{
    float mixed = (value - base) * factor + base;
    mixed = mixed < 0.0f ? 0.0f : mixed;
    mixed = mixed > 255.0f ? 255.0f : mixed;
    return (byte)(int)mixed;
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
    for (int i = 0; i < count; i++) counts[i & 3][values[i]]++;
    int32_t below[256], sum = 0, brightest = 0;
    for (int value = 0; value < 256; value++) {
        const int32_t own = counts[0][value] + counts[1][value] + counts[2][value] + counts[3][value];
        below[value] = sum;
        sum += own;
        brightest = own ? own : brightest;
    }
    const int32_t step = (count - brightest) / 255;
    if (!step) return;
    byte table[256];
    for (int value = 0; value < 256; value++) { /* exact: doubles hold these quotients apart from whole numbers */
        const int32_t wanted = (int32_t)((double)(step / 2 + below[value]) / (double)step);
        table[value] = (byte)(wanted > 255 ? 255 : wanted);
    }
    for (int i = 0; i < count; i++) values[i] = table[values[i]];
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

static byte *sharpness(const image_form *form, byte *__restrict image, byte *__restrict spare, float factor)
{
    const int width = form->width;
    memcpy(spare, image, (size_t)form->channels * form->pixels);
    for (int channel = 0; channel < form->channels; channel++)
        for (int y = 1; y < form->height - 1; y++) {
            const byte *row = image + channel * form->pixels + y * width, *above = row - width, *under = row + width;
            byte *to = spare + (row - image);
            for (int x = 1; x < width - 1; x++) {
                const uint16_t total = (uint16_t)(above[x - 1] + above[x] + above[x + 1] + row[x - 1] + 5 * row[x] +
                                                  row[x + 1] + under[x - 1] + under[x] + under[x + 1] + 6);
                to[x] = blend_one((byte)(total / 13), row[x], factor); /* as torch's quotient, cut: it is never near */
            }
        }
    return spare;
}

/* Copies whole chunks: up to 15 bytes too many, for which both sides have slack or a row that is written later. */
static inline void copy_row(byte *to, const byte *from, int count)
{
    for (int i = 0; i < count; i += 16) memcpy(to + i, from + i, 16);
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

static byte *geometric(const image_form *form, const byte *__restrict image, byte *__restrict spare, const int32_t *map)
{
    if (map[0] == 1 << 16 && !map[3]) return move_rows(form, image, spare, map), spare;
    const int height = form->height, width = form->width;
    int32_t *__restrict places = form->places;
    byte *__restrict inside = form->inside;
    for (int y = 0; y < height; y++) {
        const int start_x = map[1] * y + map[2], start_y = map[4] * y + map[5];
        for (int x = 0; x < width; x++) {
            const int column = (map[0] * x + start_x) >> 16, row = (map[3] * x + start_y) >> 16;
            const bool within = ((uint32_t)column < (uint32_t)width) & ((uint32_t)row < (uint32_t)height);
            places[x] = within ? row * width + column : 0;
            inside[x] = within ? 255 : 0;
        }
        for (int channel = 0; channel < form->channels; channel++) {
            const byte *from = image + channel * form->pixels;
            byte *to = spare + channel * form->pixels + y * width;
            for (int x = 0; x < width; x++) to[x] = from[places[x]] & inside[x];
        }
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
    case SHARPNESS: return sharpness(form, image, spare, factors[size]);
    case AUTOCONTRAST:
    case EQUALIZE:
        for (int channel = 0; channel < form->channels; channel++)
            (kind == EQUALIZE ? equalize : autocontrast)(image + channel * pixels, pixels);
        return image;
    default: return geometric(form, image, spare, maps + kind * MAPS + (level + TOP_LEVEL) * MAP);
    }
}
