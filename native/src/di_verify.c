#include "di_verify.h"

#include <float.h>
#include <string.h>

#include "di_clones.h"
#include "di_error.h"

enum { DIGIT = 10, BUCKETS = 1 << DIGIT, MASK = BUCKETS - 1, PASSES = 3, MAX_ROWS = 65535, MAX_DRAFTS = 15, FEW = 32,
       LEAST_STRETCH = 16, MAX_STRETCHES = 256, BLOCK = 32 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Scratch of m values. */
typedef struct histogram {
    uint32_t *count;          /* [DI_VERIFY_UNITS + 1] values of each number of units */
    float *some;              /* [m] the values of one number */
    uint16_t *units;          /* [m] of each value */
} histogram;

static histogram histogram_in(void *scratch, size_t m)
{
    uint32_t *count = scratch;
    float *some = (float *)(void *)(count + DI_VERIFY_UNITS + 1);
    return (histogram){.count = count, .some = some, .units = (uint16_t *)(void *)(some + m)};
}

size_t di_verify_scratch_bytes(int32_t n, int32_t k)
{
    size_t m = (size_t)n * (size_t)k;
    return (DI_VERIFY_UNITS + 1) * sizeof(uint32_t) + m * (sizeof(float) + sizeof(uint16_t));
}

DI_CLONES static void to_units(const float *values, size_t m, uint16_t *units)
{
    /* The product is exact, so that only the sum rounds, and the cast cuts. */
    for (size_t i = 0; i < m; i++) units[i] = (uint16_t)(int32_t)(values[i] * DI_VERIFY_UNITS + 0.5F);
}

static histogram count_values(const float *values, size_t m, void *scratch)
{
    histogram h = histogram_in(scratch, m);
    memset(h.count, 0, (DI_VERIFY_UNITS + 1) * sizeof *h.count);
    to_units(values, m, h.units);
    for (size_t i = 0; i < m; i++) h.count[h.units[i]]++;
    return h;
}

/* Taken: `above` values of more than `unit` units, which sum to `sum` with the N certain tokens, and then as many of
 * `unit` as are wanted. */
typedef struct taking {
    const uint32_t *count;
    uint64_t above, sum;
    int32_t unit;
} taking;

/* Expected tokens, in units, of the `wanted` largest values. `wanted` does not decrease from call to call. */
static inline uint64_t take(taking *t, uint64_t wanted)
{
    while (t->above + t->count[t->unit] < wanted) {
        t->above += t->count[t->unit];
        t->sum += (uint64_t)t->count[t->unit] * (uint64_t)t->unit;
        t->unit--;
    }
    return t->sum + (wanted - t->above) * (uint64_t)t->unit;
}

static double time_of(const di_verify_curve *curve, double ms, int32_t size)
{
    double slope = curve->slope * size;
    double time = ms + slope;
    return time + curve->sampler_ms;
}

/* The sizes [first, end) of the curve, and no quotient of theirs is above `bound`. */
typedef struct stretch {
    int32_t first, end;
    double bound;
    taking before;            /* what the largest total in front of it takes */
} stretch;

/* The largest total of a size. */
static int32_t end_of(const di_verify_curve *curve, int32_t i, int32_t most)
{
    return curve->sizes[i] < most ? curve->sizes[i] : most;
}

/* Cut the sizes of at least n, up to the first of at least `most`, into stretches. Expected tokens increase, so that those
 * of a stretch's last size over its least time bound all its quotients, rounding included: that never turns two numbers
 * round. *good is a quotient that one of the sizes has. */
static int32_t cut(const di_verify_curve *curve, int32_t n, int32_t most, taking t, stretch *out, double *good)
{
    int32_t i = 0, found = 0, length = curve->n_sizes / MAX_STRETCHES + 1;
    if (length < LEAST_STRETCH) length = LEAST_STRETCH;
    while (curve->sizes[i] < n) i++;
    *good = -1;
    int32_t last = i;
    while (curve->sizes[last] < most) last++;
    if (last - i < 2 * LEAST_STRETCH) {      /* not worth it */
        out[0] = (stretch){.first = i, .end = last + 1, .bound = DBL_MAX, .before = t};
        return 1;
    }
    for (; i <= last; found++) {
        stretch *s = &out[found];
        *s = (stretch){.first = i, .before = t};
        double least = curve->ms[i];
        s->end = i = last + 1 - i < length ? last + 1 : i + length;
        for (int32_t x = s->first; x < i; x++) least = curve->ms[x] < least ? curve->ms[x] : least;
        double tokens = (double)take(&t, (uint64_t)(end_of(curve, i - 1, most) - n));
        double quotient = tokens / time_of(curve, curve->ms[i - 1], curve->sizes[i - 1]);
        s->bound = tokens / time_of(curve, least, curve->sizes[s->first]);
        *good = quotient > *good ? quotient : *good;
    }
    return found;
}

int32_t di_verify_total(const di_verify_curve *curve, const float *values, int32_t n, int32_t k, void *scratch)
{
    size_t m = (size_t)n * (size_t)k;
    const uint32_t *count = count_values(values, m, scratch).count;
    int32_t most = n + (int32_t)m, best_total = n;
    int32_t end_of_worth = most - (int32_t)count[0];     /* what lies behind adds nothing */
    stretch stretches[MAX_STRETCHES];
    double good, best = -1;
    taking nothing = {.count = count, .sum = (uint64_t)n * DI_VERIFY_UNITS, .unit = DI_VERIFY_UNITS};
    int32_t found = cut(curve, n, most, nothing, stretches, &good);
    for (int32_t x = 0; x < found; x++) {
        stretch *s = &stretches[x];
        if (s->bound < good || s->bound <= best) continue;
        for (int32_t i = s->first; i < s->end; i++) {
            int32_t begin = i > 0 && curve->sizes[i - 1] >= n ? curve->sizes[i - 1] + 1 : n;
            int32_t end = end_of(curve, i, most);
            double quotient = (double)take(&s->before, (uint64_t)(end - n)) /
                              time_of(curve, curve->ms[i], curve->sizes[i]);
            if (quotient <= best) continue;
            best = quotient;
            best_total = end > end_of_worth ? (begin > end_of_worth ? begin : end_of_worth) : end;
        }
    }
    return best_total;
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
static uint32_t threshold_in(histogram h, const float *values, size_t m, uint32_t taken, uint32_t *equals)
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

/* Rows of each request if all values of at least `least` are taken; returns how many those are. */
static uint32_t take_all(const float *values, int32_t n, int32_t k, uint32_t least, int32_t *lengths)
{
    uint32_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t found = 0;
        for (int32_t j = 0; j < k; j++) found += bits_of(*values++) >= least;
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
    else if (is_counted) least = threshold_in(histogram_in(scratch, m), values, m, taken, &equals);
    else least = threshold_in(count_values(values, m, scratch), values, m, taken, &equals);
    if (take_all(values, n, k, least, lengths) != taken) take_some(values, n, k, least, equals, lengths);
}

static int refuse(const char *field, int64_t value, const char *bound)
{
    return di_fail(DI_E_ARG, "", field, "is %lld, the bound is %s", (long long)value, bound);
}

static int check_values(const float *values, int n, int k)
{
    if (n < 1 || n > MAX_ROWS) return refuse("n", n, "1 .. 65535");
    if (k < 1 || k > MAX_DRAFTS) return refuse("k", k, "1 .. 15");
    if (!values) return di_fail(DI_E_ARG, "", "values", "NULL");
    for (int64_t i = 0; i < (int64_t)n * k; i++) {
        float x = values[i];
        if (!(x >= 0 && x <= 1) || bits_of(x) == 0x80000000u)
            return di_fail(DI_E_ARG, "", "values", "value %lld is %g, the bound is 0 .. 1", (long long)i, (double)x);
        if (i % k != 0 && x > values[i - 1])
            return di_fail(DI_E_ARG, "", "values", "value %lld is above the one before it", (long long)i);
    }
    return 0;
}

int di_verify_check_curve(const int32_t *sizes, const double *ms, int n, int64_t least)
{
    if (n < 1) return refuse("sizes", n, ">= 1 graph sizes");
    if (!sizes || !ms) return di_fail(DI_E_ARG, "", sizes ? "ms" : "sizes", "NULL");
    for (int i = 0; i < n; i++) {
        if (sizes[i] < 1 || (i > 0 && sizes[i] <= sizes[i - 1])) return refuse("sizes", sizes[i], "ascending, from 1");
        if (!(ms[i] > 0 && ms[i] < 1e12)) return di_fail(DI_E_ARG, "", "ms", "is %g, a time is above 0", ms[i]);
    }
    if (sizes[n - 1] < least)
        return di_fail(DI_E_ARG, "", "sizes", "ends at %d, the largest step has %lld tokens", sizes[n - 1],
                       (long long)least);
    return 0;
}

int di_verify_budget(const int32_t *sizes, const double *ms, int n_sizes, double slope, double sampler_ms,
                     const float *values, int n, int k, void *scratch, uint64_t scratch_bytes, int32_t *total)
{
    int code = check_values(values, n, k);
    if (!code) code = di_verify_check_curve(sizes, ms, n_sizes, (int64_t)n * (k + 1));
    if (code) return code;
    if (!(slope >= 0 && slope < 1e12)) return di_fail(DI_E_ARG, "", "slope", "is %g", slope);
    if (!(sampler_ms >= 0 && sampler_ms < 1e12)) return di_fail(DI_E_ARG, "", "sampler_ms", "is %g", sampler_ms);
    if (!scratch || !total) return di_fail(DI_E_ARG, "", scratch ? "total" : "scratch", "NULL");
    if (scratch_bytes < di_verify_scratch_bytes(n, k))
        return refuse("scratch_bytes", (int64_t)scratch_bytes, "6 * n * k + 8196");
    di_verify_curve curve = {.sizes = sizes, .ms = ms, .n_sizes = n_sizes, .slope = slope, .sampler_ms = sampler_ms};
    *total = di_verify_total(&curve, values, n, k, scratch);
    return 0;
}

int di_verify_distribute(const float *values, int n, int k, int32_t total, int32_t *lengths)
{
    int code = check_values(values, n, k);
    if (code) return code;
    if (total < n || total > n * (k + 1)) return refuse("total", total, "n .. n * (k + 1)");
    if (!lengths) return di_fail(DI_E_ARG, "", "lengths", "NULL");
    di_verify_share(values, n, k, total, NULL, 0, lengths);
    return 0;
}
