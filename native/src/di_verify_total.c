/* The budget of a step: how many drafts are worth their time (spec/engine.md 7.3). */
#include <float.h>

#include "di_verify_units.h"

enum { LEAST_STRETCH = 16, MAX_STRETCHES = 256 };

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
    uint64_t wanted, tokens;  /* that total without the certain tokens, and what it is expected to bring */
} stretch;

/* Fewer tokens than this much of a quotient times the time have a smaller quotient, however products and quotients are
 * rounded. */
static const double SURELY = 1 - 1e-9;

/* At most so many tokens are expected of a total in the stretch: every further one counts as the first. */
static inline double most_tokens(const stretch *s, uint64_t wanted)
{
    return (double)(s->tokens + (wanted - s->wanted) * (uint64_t)s->before.unit);
}

/* The largest total of a size. */
static int32_t end_of(const di_verify_curve *curve, int32_t i, int32_t most)
{
    return curve->sizes[i] < most ? curve->sizes[i] : most;
}

/* Cut the sizes of at least n, up to the first of at least `most`, into stretches. Expected tokens increase, so that those
 * of a stretch's last size over its least time bound all its quotients, rounding included: that never turns two numbers
 * round. *good is a quotient that one of the sizes has. Sizes that all tokens together, `everything` units, could not
 * bring there even in the least time of all that follow are left out. */
static int32_t cut(const di_verify_curve *curve, int32_t n, int32_t most, uint64_t everything, taking t, stretch *out,
                   double *good)
{
    int32_t i = 0, found = 0, length = curve->n_sizes / MAX_STRETCHES + 1;
    if (length < LEAST_STRETCH) length = LEAST_STRETCH;
    while (curve->sizes[i] < n) i++;
    *good = -1;
    int32_t last = i;
    while (curve->sizes[last] < most) last++;
    if (last - i < 2 * LEAST_STRETCH) {      /* not worth it */
        out[0] = (stretch){.first = i, .end = last + 1, .bound = DBL_MAX, .before = t, .tokens = t.sum};
        return 1;
    }
    double least[MAX_STRETCHES], rest = DBL_MAX, ahead[MAX_STRETCHES];
    for (; i <= last; found++) {
        stretch *s = &out[found];
        *s = (stretch){.first = i, .end = last + 1 - i < length ? last + 1 : i + length};
        least[found] = curve->ms[i];
        for (i++; i < s->end; i++) least[found] = curve->ms[i] < least[found] ? curve->ms[i] : least[found];
    }
    for (int32_t x = found; x-- > 0;) ahead[x] = rest = least[x] < rest ? least[x] : rest;
    uint64_t wanted = 0, tokens = t.sum;
    for (int32_t x = 0; x < found; x++) {
        stretch *s = &out[x];
        if ((double)everything / time_of(curve, ahead[x], curve->sizes[s->first]) < *good) return x;
        s->before = t;
        s->wanted = wanted;
        s->tokens = tokens;
        wanted = (uint64_t)(end_of(curve, s->end - 1, most) - n);
        tokens = take(&t, wanted);
        double quotient = (double)tokens / time_of(curve, curve->ms[s->end - 1], curve->sizes[s->end - 1]);
        s->bound = (double)tokens / time_of(curve, least[x], curve->sizes[s->first]);
        *good = quotient > *good ? quotient : *good;
    }
    return found;
}

int32_t di_verify_total(const di_verify_curve *curve, const float *values, int32_t n, int32_t k, void *scratch)
{
    size_t m = (size_t)n * (size_t)k;
    const di_histogram h = di_histogram_of(values, m, scratch);
    const uint32_t *count = h.count;
    int32_t most = n + (int32_t)m, best_total = n;
    int32_t end_of_worth = most - (int32_t)count[0];     /* what lies behind adds nothing */
    stretch stretches[MAX_STRETCHES];
    double good, best = -1;
    taking nothing = {.count = count, .sum = (uint64_t)n * DI_VERIFY_UNITS, .unit = DI_VERIFY_UNITS};
    int32_t found = cut(curve, n, most, nothing.sum + h.sum, nothing, stretches, &good);
    for (int32_t x = 0; x < found; x++) {
        const stretch *s = &stretches[x];
        if (s->bound < good || s->bound <= best) continue;
        taking t = s->before;
        for (int32_t i = s->first; i < s->end; i++) {
            int32_t end = end_of(curve, i, most);
            double time = time_of(curve, curve->ms[i], curve->sizes[i]);
            if (most_tokens(s, (uint64_t)(end - n)) < (best > good ? best : good) * time * SURELY) continue;
            double quotient = (double)take(&t, (uint64_t)(end - n)) / time;
            if (quotient <= best) continue;
            int32_t begin = i > 0 && curve->sizes[i - 1] >= n ? curve->sizes[i - 1] + 1 : n;
            best = quotient;
            best_total = end > end_of_worth ? (begin > end_of_worth ? begin : end_of_worth) : end;
        }
    }
    return best_total;
}
