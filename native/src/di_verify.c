#include "di_verify.h"

#include <string.h>

#include "di_error.h"

enum { DIGIT = 10, BUCKETS = 1 << DIGIT, MASK = BUCKETS - 1, PASSES = 3, MAX_ROWS = 65535, MAX_DRAFTS = 15 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float value_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

size_t di_verify_scratch_bytes(int32_t n, int32_t k)
{
    size_t m = (size_t)n * (size_t)k;
    return (m + 1) * sizeof(double) + 2 * m * sizeof(uint32_t);
}

/* Sort m keys, largest first. Returns the array that holds the result: a or b. */
static uint32_t *sort_descending(uint32_t *a, uint32_t *b, size_t m)
{
    uint32_t count[PASSES][BUCKETS];
    memset(count, 0, sizeof count);
    for (size_t i = 0; i < m; i++)
        for (int p = 0; p < PASSES; p++) count[p][a[i] >> (p * DIGIT) & MASK]++;
    for (int p = 0; p < PASSES; p++) {
        uint32_t at = 0, *c = count[p];
        if (m == 0 || c[a[0] >> (p * DIGIT) & MASK] == m) continue;   /* all keys have the same digit */
        for (int d = BUCKETS - 1; d >= 0; d--) {
            uint32_t here = c[d];
            c[d] = at;
            at += here;
        }
        for (size_t i = 0; i < m; i++) b[c[a[i] >> (p * DIGIT) & MASK]++] = a[i];
        uint32_t *done = b;
        b = a;
        a = done;
    }
    return a;
}

/* Scratch of m values: the sums of the t largest, t = 0 .. m, and the keys in descending order in the first of two
 * arrays. */
static double *sums_in(void *scratch) { return scratch; }
static uint32_t *keys_in(void *scratch, size_t m) { return (uint32_t *)(void *)((double *)scratch + m + 1); }
static const uint32_t *sorted_in(const void *scratch, size_t m)
{
    return (const uint32_t *)(const void *)((const double *)scratch + m + 1);
}

static void sum_largest(const float *values, size_t m, void *scratch)
{
    double *sum = sums_in(scratch), all = 0;
    uint32_t *keys = keys_in(scratch, m);
    memcpy(keys, values, m * sizeof *keys);
    uint32_t *sorted = sort_descending(keys, keys + m, m);
    if (sorted != keys) memcpy(keys, sorted, m * sizeof *keys);
    sum[0] = 0;
    for (size_t t = 0; t < m; t++) sum[t + 1] = all += (double)value_of(keys[t]);
}

int32_t di_verify_total(const di_verify_curve *curve, const float *values, int32_t n, int32_t k, void *scratch)
{
    size_t m = (size_t)n * (size_t)k;
    const double *sum = sums_in(scratch);
    sum_largest(values, m, scratch);
    int32_t most = n + (int32_t)m, begin = n, best_total = n;
    double best = -1;
    for (int32_t i = 0; i < curve->n_sizes && begin <= most; i++) {
        int32_t size = curve->sizes[i], end = size < most ? size : most;
        if (end < begin) continue;
        double slope = curve->slope * size;
        double time = curve->ms[i] + slope;
        time += curve->sampler_ms;
        double quotient = (n + sum[end - n]) / time;
        if (quotient > best) {
            best = quotient;
            best_total = end;
            while (best_total > begin && (n + sum[best_total - 1 - n]) / time == best) best_total--;
        }
        begin = end + 1;
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

static uint32_t sorted_threshold(const void *scratch, size_t m, uint32_t taken, uint32_t *equals)
{
    const uint32_t *sorted = sorted_in(scratch, m);
    uint32_t least = sorted[taken - 1], first = taken - 1;
    while (first > 0 && sorted[first - 1] == least) first--;
    *equals = taken - first;
    return least;
}

void di_verify_share(const float *values, int32_t n, int32_t k, int32_t total, const void *scratch, int32_t *lengths)
{
    uint32_t taken = (uint32_t)(total - n), equals = 0;
    size_t m = (size_t)n * (size_t)k;
    if (taken == 0 || taken == m) {
        for (int32_t i = 0; i < n; i++) lengths[i] = taken ? k + 1 : 1;
        return;
    }
    uint32_t least = scratch ? sorted_threshold(scratch, m, taken, &equals) : threshold_of(values, m, taken, &equals);
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
        return refuse("scratch_bytes", (int64_t)scratch_bytes, "16 * n * k + 8");
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
    di_verify_share(values, n, k, total, NULL, lengths);
    return 0;
}
