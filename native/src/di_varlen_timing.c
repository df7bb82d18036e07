/* Corrections of the measured curve by what steps take (spec/engine.md 7.2): medians, because a few steps of a window
 * always waited for something else. */
#include "di_state.h"

static void swap(double *a, double *b)
{
    double x = *a;
    *a = *b;
    *b = x;
}

/* Put the k-th smallest of v[0 .. n) at k, nothing larger before it. Expected O(n). */
static void select_rank(double *v, int32_t n, int32_t k)
{
    int32_t low = 0, high = n - 1;
    while (low < high) {
        int32_t middle = low + (high - low) / 2, i = low, j = high;
        if (v[middle] < v[low]) swap(&v[middle], &v[low]);
        if (v[high] < v[low]) swap(&v[high], &v[low]);
        if (v[high] < v[middle]) swap(&v[high], &v[middle]);
        double pivot = v[middle];
        while (i <= j) {
            while (v[i] < pivot) i++;
            while (pivot < v[j]) j--;
            if (i <= j) swap(&v[i++], &v[j--]);
        }
        if (k <= j) high = j;
        else if (k >= i) low = i;
        else return;
    }
}

/* The middle value, or the mean of both; v is reordered. n >= 1. */
static double median_of(double *v, int32_t n)
{
    select_rank(v, n, n / 2);
    if (n % 2) return v[n / 2];
    double below = v[0];
    for (int32_t i = 1; i < n / 2; i++) below = v[i] > below ? v[i] : below;
    return (below + v[n / 2]) / 2;
}

static void update_size(di_varlen *v, int32_t size)
{
    int32_t n = 0;
    if (v->count[size] < DI_TIMING_LEAST) return;
    for (int32_t i = 0; i < v->n_timed; i++)
        if (v->timed_size[i] == size) v->sorting[n++] = v->timed[i];
    v->median[size] = median_of(v->sorting, n);
}

static void note_forward(di_varlen *v, int32_t size, double forward_ms)
{
    int32_t at = v->next_timed, gone = -1;
    if (v->n_timed == DI_TIMING_WINDOW) v->count[gone = v->timed_size[at]]--;
    else v->n_timed++;
    v->timed_size[at] = size;
    v->timed[at] = (forward_ms - v->ms[size]) / v->sizes[size];
    v->count[size]++;
    v->next_timed = (at + 1) % DI_TIMING_WINDOW;
    if (gone >= 0 && gone != size) update_size(v, gone);
    update_size(v, size);
    int32_t n = 0;
    for (int32_t i = 0; i < v->n_sizes; i++)
        if (v->count[i] >= DI_TIMING_LEAST) v->sorting[n++] = v->median[i];
    double slope = n ? median_of(v->sorting, n) : 0;
    v->slope = slope > 0 ? slope : 0;
}

static void note_sampler(di_sampler_times *t, double ms)
{
    t->ms[t->next] = ms;
    t->next = (uint8_t)((t->next + 1) % DI_SAMPLER_WINDOW);
    if (t->count < DI_SAMPLER_WINDOW) t->count++;
}

double di_varlen_sampler_ms(const di_varlen *v, int32_t n)
{
    const di_sampler_times *t = &v->sampler[n];
    if (t->count < DI_SAMPLER_LEAST) t = &v->sampler[0];
    if (t->count < DI_SAMPLER_LEAST) return 0;
    double values[DI_SAMPLER_WINDOW];
    for (int32_t i = 0; i < t->count; i++) values[i] = t->ms[i];
    return median_of(values, t->count);
}

void di_varlen_forget(di_core *c)
{
    di_varlen *v = &c->varlen;
    v->n_timed = v->next_timed = 0;
    v->slope = 0;
    for (int32_t i = 0; i < DI_MAX_GRAPH_SIZES; i++) v->count[i] = 0;
    for (int32_t i = 0; i <= c->cfg.max_num_seqs; i++) v->sampler[i] = (di_sampler_times){.count = 0};
}

static int is_time(double ms) { return ms >= 0 && ms < 1e12; }

int di_varlen_observe(di_core *c, const di_timing *timing)
{
    int code = di_core_enter(c);
    if (code) return code;
    di_varlen *v = &c->varlen;
    int32_t size = 0;
    if (!timing) code = di_fail(DI_E_ARG, "", "timing", "NULL");
    else if (!v->is_on || v->n_sizes == 0) code = di_fail(DI_E_ORDER, "", "curve", "there is none to correct");
    else if (!is_time(timing->forward_ms) || !is_time(timing->sampler_ms))
        code = di_fail(DI_E_ARG, "", is_time(timing->forward_ms) ? "sampler_ms" : "forward_ms", "is no time in ms");
    else if (timing->num_reqs < 1 || timing->num_reqs > c->cfg.max_num_seqs)
        code = di_fail(DI_E_ARG, "", "num_reqs", "is %d, the bound is 1 .. %d", timing->num_reqs, c->cfg.max_num_seqs);
    if (code) return di_core_leave(c, code);
    while (size < v->n_sizes && v->sizes[size] != timing->graph) size++;
    if (size == v->n_sizes)
        return di_core_leave(c, di_fail(DI_E_ARG, "", "graph", "%d is no size of the curve", timing->graph));
    note_forward(v, size, timing->forward_ms);
    note_sampler(&v->sampler[timing->num_reqs], timing->sampler_ms);
    note_sampler(&v->sampler[0], timing->sampler_ms);
    return di_core_leave(c, 0);
}
