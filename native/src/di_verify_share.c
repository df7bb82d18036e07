/* The distribution: whose drafts the budget goes to (spec/engine.md 7.4). */
#include <string.h>

#include "di_verify_units.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { DIGIT = 10, BUCKETS = 1 << DIGIT, MASK = BUCKETS - 1, PASSES = 3, FEW = 32, BLOCK = 32 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The value of rank taken (1 = the largest), and how many of its equals are among the taken ones. */
static uint32_t threshold_of(const float *values, size_t m, uint32_t taken, uint32_t *equals)
{
    static const int shift[PASSES] = {2 * DIGIT, DIGIT, 0};
    uint32_t prefix = 0, known = 0, rank = taken;
    for (int p = 0; p < PASSES; p++) {
        uint32_t count[BUCKETS] = {0};
        for (size_t i = 0; i < m; i++) {
            uint32_t key = bits_of(values[i]);
            if ((key & known) == prefix) count[key >> shift[p] & MASK]++;
        }
        uint32_t digit = MASK;
        while (count[digit] < rank) rank -= count[digit--];
        prefix |= digit << shift[p];
        known |= (uint32_t)MASK << shift[p];
    }
    *equals = rank;
    return prefix;
}

/* The same of a few values. */
static uint32_t threshold_of_few(float *values, uint32_t m, uint32_t taken, uint32_t *equals)
{
    for (uint32_t i = 1; i < m; i++) {
        float x = values[i];
        uint32_t j = i;
        for (; j > 0 && values[j - 1] < x; j--) values[j] = values[j - 1];
        values[j] = x;
    }
    uint32_t first = taken - 1;
    while (first > 0 && bits_of(values[first - 1]) == bits_of(values[taken - 1])) first--;
    *equals = taken - first;
    return bits_of(values[taken - 1]);
}

/* Any of a block has that number of units: all are compared at once. */
static inline int has_unit(const uint16_t *units, uint16_t unit)
{
    uint16_t found = 0;
    for (int32_t j = 0; j < BLOCK; j++) found |= units[j] == unit;
    return found;
}

/* Among the values of the same number of units as the one of rank taken. */
static uint32_t threshold_in(di_histogram h, const float *values, size_t m, uint32_t taken, uint32_t *equals)
{
    uint32_t rank = taken, found = 0;
    uint16_t unit = DI_VERIFY_UNITS;
    while (h.count[unit] < rank) rank -= h.count[unit--];
    for (size_t from = 0; from < m; from += BLOCK) {
        size_t end = from + BLOCK < m ? from + BLOCK : m;
        if (end == from + BLOCK && !has_unit(h.units + from, unit)) continue;
        for (size_t i = from; i < end; i++)
            if (h.units[i] == unit) h.some[found++] = values[i];
    }
    return found <= FEW ? threshold_of_few(h.some, found, rank, equals) : threshold_of(h.some, found, rank, equals);
}

#if defined(__SSE2__)
/* Bit j: values[j] is at least `least`, of eight. None is negative, so that they compare as their bits do. */
static inline uint32_t at_least(const float *values, uint32_t least)
{
    __m128i below = _mm_set1_epi32((int32_t)least - 1);
    __m128i low = _mm_loadu_si128((const void *)values), high = _mm_loadu_si128((const void *)(values + 4));
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(low, below))) |
           (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(high, below))) << 4;
}
#endif

/* How many of a request's K values are at least `least`: the first ones, since they do not increase. `there` are in the
 * array from the first of them on. */
static inline uint32_t count_from(const float *values, int32_t k, size_t there, uint32_t least)
{
#if defined(__SSE2__)
    if (k <= 8 && there >= 8) return (uint32_t)__builtin_ctz(~(at_least(values, least) & ((UINT32_C(1) << k) - 1)));
#endif
    (void)there;
    uint32_t found = 0;
    for (int32_t j = 0; j < k; j++) found += bits_of(values[j]) >= least;
    return found;
}

/* Rows of each request if all values of at least `least` are taken; returns how many those are. */
static uint32_t take_all(const float *values, int32_t n, int32_t k, uint32_t least, int32_t *lengths)
{
    uint32_t sum = 0;
    size_t left = (size_t)n * (size_t)k;
    for (int32_t i = 0; i < n; i++, values += k, left -= (size_t)k) {
        uint32_t found = count_from(values, k, left, least);
        lengths[i] = 1 + (int32_t)found;
        sum += found;
    }
    return sum;
}

/* ... if of those equal to it only the first few are. */
static void take_some(const float *values, int32_t n, int32_t k, uint32_t least, uint32_t equals, int32_t *lengths)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t above = 0, same = 0;
        for (int32_t j = 0; j < k; j++) {
            uint32_t key = bits_of(*values++);
            above += key > least;
            same += key == least;
        }
        if (same > equals) same = equals;
        equals -= same;
        lengths[i] = 1 + (int32_t)(above + same);
    }
}

void di_verify_share(const float *values, int32_t n, int32_t k, int32_t total, void *scratch, int is_counted,
                     int32_t *lengths)
{
    uint32_t taken = (uint32_t)(total - n), equals = 0;
    size_t m = (size_t)n * (size_t)k;
    if (taken == 0 || taken == m) {
        for (int32_t i = 0; i < n; i++) lengths[i] = taken ? k + 1 : 1;
        return;
    }
    uint32_t least;
    if (!scratch) least = threshold_of(values, m, taken, &equals);
    else if (is_counted) least = threshold_in(di_histogram_in(scratch, m), values, m, taken, &equals);
    else least = threshold_in(di_histogram_of(values, m, scratch), values, m, taken, &equals);
    if (take_all(values, n, k, least, lengths) != taken) take_some(values, n, k, least, equals, lengths);
}
