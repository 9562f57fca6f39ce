/* Whole views, one image after the other, each from its bytes to its floats while it is in the cache. What is drawn,
   and how, is that of semifed/data/views.py and semifed/keys.py.
       images [count][channels][height][width]    keys [count]    results as images
       scales, offsets [channels]    factors [11]    maps [14][21][6] */

#include "randaugment.h"

#include <stdlib.h>

/* A view: what it does besides normalising. A range below zero: no such step. */
typedef struct {
    int64_t number, crop, shift, flips, contrasts, greys, operations, magnitude, cutout;
    float contrast, grey, probability;
} recipe;

typedef struct {
    int64_t count;
    int32_t channels, height, width, kinds, for_randaugment, for_cutout, cutout_grey;
} shape;

/* The draws that views.py names. */
enum { CROP_Y, CROP_X, SHIFT_Y, SHIFT_X, FLIP, CONTRASTS, GREY };

static inline uint64_t scramble(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint64_t fold(uint64_t key, uint64_t more) { return scramble(key + 0x9E3779B97F4A7C15u * (more + 1)); }

static inline float uniform(uint64_t key, uint64_t number)
{
    return (float)(int32_t)(fold(key, number) >> 40) * 0x1p-24f;
}

static inline int64_t whole(float draw, int64_t low, int64_t high)
{
    return low + (int64_t)(draw * (float)(high - low + 1));
}

/* Where places along an axis come from: a mirror's picture repeats itself, and the table holds it for a period and one
   length more, so that a shifted axis is a piece of it. */
typedef struct {
    int size, period;
    int32_t *table;
} mirror;

static void make_mirror(mirror *axis, int size, int32_t *table)
{
    const int last = size - 1;
    axis->size = size, axis->period = last ? 2 * last : 1, axis->table = table;
    for (int place = 0; place < axis->period + size; place++) table[place] = last - abs(place % axis->period - last);
}

/* The sources of an axis after another step back, by a drawn shift. */
static void follow(const mirror *axis, int32_t *sources, float draw, int64_t most)
{
    const int64_t shift = whole(draw, -most, most) % axis->period;
    const int32_t *from = axis->table + (shift < 0 ? shift + axis->period : shift);
    for (int place = 0; place < axis->size; place++) sources[place] = from[sources[place]];
}

/* Columns [first, first + count) of a row that come from `source` and its neighbours on one side. */
typedef struct {
    int first, count, source, step;
} run;

/* The runs that the columns consist of, and how many these are. */
static int find_runs(const int32_t *columns, int width, run *runs)
{
    int count = 0;
    for (int first = 0; first < width; count++) {
        const int step = first + 1 < width && columns[first + 1] < columns[first] ? -1 : 1;
        int end = first + 1;
        while (end < width && columns[end] == columns[end - 1] + step) end++;
        runs[count] = {first, end - first, columns[first], step};
        first = end;
    }
    return count;
}

static inline uint64_t mirrored(uint64_t bytes) { return __builtin_bswap64(bytes); }
static inline uint32_t mirrored(uint32_t bytes) { return __builtin_bswap32(bytes); }
static inline uint16_t mirrored(uint16_t bytes) { return __builtin_bswap16(bytes); }
static inline byte mirrored(byte bytes) { return bytes; }

typedef uint64_t sixteen __attribute__((vector_size(16)));
static inline sixteen mirrored(sixteen bytes) { return sixteen{mirrored(bytes[1]), mirrored(bytes[0])}; }

template <class Chunk, bool MIRRORED> static inline void copy_chunk(byte *to, const byte *from, int at)
{
    Chunk chunk;
    memcpy(&chunk, MIRRORED ? from - at - (int)sizeof chunk + 1 : from + at, sizeof chunk);
    if (MIRRORED) chunk = mirrored(chunk);
    memcpy(to + at, &chunk, sizeof chunk);
    STAY_HERE;
}

/* One run in all rows, in chunks that are not longer than it; the last may overlap with the one before. */
template <class Chunk, bool MIRRORED>
static void copy_run(const image_form *form, const int32_t *rows, const run one, const byte *__restrict image,
                     byte *__restrict to)
{
    const int width = form->width, height = form->height, last = one.count - (int)sizeof(Chunk);
    image += one.source, to += one.first;
    for (int channel = 0; channel < form->channels; channel++, image += form->pixels)
        for (int y = 0; y < height; y++, to += width) {
            const byte *from = image + rows[y] * width;
            for (int at = 0; at < last; at += sizeof(Chunk)) copy_chunk<Chunk, MIRRORED>(to, from, at);
            copy_chunk<Chunk, MIRRORED>(to, from, last);
        }
}

template <class Chunk>
static void copy_in(const image_form *form, const int32_t *rows, const run one, const byte *image, byte *to)
{
    (one.step < 0 ? copy_run<Chunk, true> : copy_run<Chunk, false>)(form, rows, one, image, to);
}

/* Look every pixel up in its row and column, run by run. */
static void look_up(const image_form *form, const int32_t *rows, const run *runs, int count, const byte *image,
                    byte *to)
{
    for (int number = 0; number < count; number++) {
        const run one = runs[number];
        auto copy = copy_in<byte>;
        if (one.count >= 16) copy = copy_in<sixteen>;
        else if (one.count >= 8) copy = copy_in<uint64_t>;
        else if (one.count >= 4) copy = copy_in<uint32_t>;
        else if (one.count >= 2) copy = copy_in<uint16_t>;
        copy(form, rows, one, image, to);
    }
}

static void cut_out(const image_form *form, byte *image, uint64_t key, int64_t side, int grey)
{
    const int64_t y = whole(uniform(key, 0), 0, form->height - 1) - side / 2;
    const int64_t x = whole(uniform(key, 1), 0, form->width - 1) - side / 2;
    const int top = y > 0 ? (int)y : 0, left = x > 0 ? (int)x : 0;
    const int bottom = side < form->height - top ? top + (int)side : form->height;
    const int wide = side < form->width - left ? (int)side : form->width - left;
    for (int channel = 0; channel < form->channels; channel++, image += form->pixels)
        for (int row = top; row < bottom; row++) memset(image + row * form->width + left, grey, wide);
}

static void normalise(const byte *__restrict values, float *__restrict result, int count, float scale, float offset)
{
    for (int i = 0; i < count; i++) result[i] = (float)values[i] * scale + offset;
}

/* What a call works with. */
typedef struct {
    image_form form;
    mirror down, across;
    int32_t *rows, *columns;
    run *runs;
    byte *image, *spare;
} bench;

static byte *move(const bench *b, const recipe *r, uint64_t key, const byte *image)
{
    const size_t size = (size_t)b->form.channels * b->form.pixels;
    if (r->crop < 0 && r->shift < 0 && !r->flips) return (byte *)memcpy(b->image, image, size);
    const bool flipped = r->flips && uniform(key, FLIP) >= 0.5f;
    const int width = b->form.width;
    for (int y = 0; y < b->form.height; y++) b->rows[y] = y;
    for (int x = 0; x < width; x++) b->columns[x] = flipped ? width - 1 - x : x;
    if (r->shift >= 0) {
        follow(&b->down, b->rows, uniform(key, SHIFT_Y), r->shift);
        follow(&b->across, b->columns, uniform(key, SHIFT_X), r->shift);
    }
    if (r->crop >= 0) {
        follow(&b->down, b->rows, uniform(key, CROP_Y), r->crop);
        follow(&b->across, b->columns, uniform(key, CROP_X), r->crop);
    }
    look_up(&b->form, b->rows, b->runs, find_runs(b->columns, width, b->runs), image, b->image);
    return b->image;
}

static void recolour(const bench *b, const recipe *r, uint64_t key, byte *image, byte *spare)
{
    if (r->contrasts) contrast(&b->form, image, spare, 1.0f + r->contrast * (2.0f * uniform(key, CONTRASTS) - 1.0f));
    if (r->greys && uniform(key, GREY) < r->grey) color(&b->form, image, spare, 0.0f);
}

/* One image, changed; in one of the two on the bench. */
static byte *change(const bench *b, const recipe *r, const shape *s, uint64_t key, const byte *original,
                    const float *factors, const int32_t *maps)
{
    byte *image = move(b, r, key, original), *spare = b->spare;
    recolour(b, r, key, image, spare);
    const uint64_t own = fold(key, s->for_randaugment);
    for (int64_t turn = 0; turn < r->operations; turn++) {
        if (!(uniform(own, 4 * turn + 1) < r->probability)) continue;
        const int kind = (int)whole(uniform(own, 4 * turn), 0, s->kinds - 1);
        const int level = (int)whole(uniform(own, 4 * turn + 2), 1, r->magnitude - 1);
        const bool up = uniform(own, 4 * turn + 3) >= 0.5f;
        byte *changed = operate(&b->form, image, spare, kind, up ? level : -level, factors, maps);
        if (changed != image) spare = image, image = changed;
    }
    if (r->cutout) cut_out(&b->form, image, fold(key, s->for_cutout), r->cutout, s->cutout_grey);
    return image;
}

extern "C" int see(const shape *s, const recipe *r, const byte *images, const uint64_t *keys, const float *scales,
                   const float *offsets, const float *factors, const int32_t *maps, float *results)
{
    const int height = s->height, width = s->width, pixels = height * width;
    const size_t size = (size_t)s->channels * pixels, padded = size + 2 * SLACK;
    const size_t places = 4 * (size_t)(height + 2 * width) + pixels;
    const bool changes = r->crop >= 0 || r->shift >= 0 || r->flips || r->contrasts || r->greys || r->operations ||
                         r->cutout;
    int32_t *memory = (int32_t *)calloc(places + padded / 2 + 1, 4);
    if (!memory) return 1;
    byte *bytes = (byte *)(memory + places);
    int32_t *columns = memory + height, *mirrors = columns + width, *runs = mirrors + 3 * (height + width);
    bench b = {{s->channels, height, width, pixels, runs + 4 * width}, {}, {}, memory, columns, (run *)runs,
               bytes + SLACK, bytes + padded + SLACK};
    make_mirror(&b.down, height, mirrors);
    make_mirror(&b.across, width, mirrors + 3 * height);
    for (int64_t at = 0; at < s->count; at++, images += size) {
        const byte *changed = changes ? change(&b, r, s, fold(keys[at], r->number), images, factors, maps) : images;
        for (int channel = 0; channel < s->channels; channel++, results += pixels)
            normalise(changed + channel * pixels, results, pixels, scales[channel], offsets[channel]);
    }
    free(memory);
    return 0;
}
