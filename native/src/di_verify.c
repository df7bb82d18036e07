/* The rules of what callers give, and the entry points of the library. */
#include "di_verify.h"

#include <math.h>

#include "di_error.h"

enum { MAX_ROWS = 65535, MAX_DRAFTS = 15 };

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
        if (!(x >= 0 && x <= 1) || signbit(x))
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
