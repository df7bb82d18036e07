#include "di_varlen.h"

#include <string.h>

#include "di_state.h"
#include "di_verify.h"

int di_varlen_create(di_core *c)
{
    di_varlen *v = &c->varlen;
    v->is_on = c->cfg.verify_lengths == 1 && c->cfg.num_draft > 0;
    if (!v->is_on) return 0;
    size_t n = (size_t)c->cfg.max_num_seqs, k = (size_t)c->cfg.num_draft;
    int ok = 1;
#define TAKE(name, count) ok = ok && (v->name = di_arena_take(&c->arena, (count), sizeof *v->name)) != NULL
    TAKE(sizes, DI_MAX_GRAPH_SIZES);
    TAKE(ms, DI_MAX_GRAPH_SIZES);
    TAKE(known.rounds, n + 1);
    for (int i = 0; i < 2; i++) TAKE(known.values[i], (n + 1) * k + DI_MAX_DRAFT_STEPS);
    TAKE(budget, n * k + DI_MAX_DRAFT_STEPS);
    TAKE(share, n * k + DI_MAX_DRAFT_STEPS);
    TAKE(lengths, n);
    TAKE(timed_size, DI_TIMING_WINDOW);
    TAKE(timed, DI_TIMING_WINDOW);
    TAKE(count, DI_MAX_GRAPH_SIZES);
    TAKE(median, DI_MAX_GRAPH_SIZES);
    TAKE(sorting, DI_TIMING_WINDOW);
    TAKE(sampler, n + 1);
#undef TAKE
    v->scratch = di_arena_take(&c->arena, di_verify_scratch_bytes((int32_t)n, (int32_t)k), 1);
    return ok && v->scratch ? 0 : DI_E_CAPACITY;
}

/* The newest values of a row slot, and those before, where they were brought. */
static inline const float *newest_of(const di_varlen *v, int32_t slot, int32_t k)
{
    uint8_t rounds = v->known.rounds[slot];
    return rounds & DI_ROUND_NEWEST ? v->known.values[rounds & DI_ROUND_FLIP] + (size_t)slot * (size_t)k : NULL;
}
static inline const float *before_of(const di_varlen *v, int32_t slot, int32_t k)
{
    uint8_t rounds = v->known.rounds[slot];
    return rounds & DI_ROUND_BEFORE ? v->known.values[~rounds & DI_ROUND_FLIP] + (size_t)slot * (size_t)k : NULL;
}

/* A row of values, and what lies behind it up to a number that is known when this is compiled: the next row overwrites
 * that. It takes a few instructions, K rounds of a loop many. */
static inline void put(float *to, int32_t k, const float *from, float otherwise)
{
    enum { HALF = DI_MAX_DRAFT_STEPS / 2 };
    if (from) {
        memcpy(to, from, HALF * sizeof *to);
        if (k > HALF) memcpy(to + HALF, from + HALF, HALF * sizeof *to);
    } else {
        for (int32_t j = 0; j < k; j++) to[j] = otherwise;
    }
}

/* Rows that continue the step in flight: one list, since both go by the newest round. The device knows nothing of a row
 * that was not in the step before, and verifies none of its drafts. *mapped counts those that were; without one the list
 * means nothing. */
static int gather_mapped(di_core *c, int32_t n, int32_t *mapped)
{
    di_varlen *v = &c->varlen;
    const di_row *before = di_core_step(c, c->launched)->rows;
    int32_t k = c->cfg.num_draft, most = 0, rounds = 0;
    for (int32_t i = 0; i < n; i++) {
        const di_seq *s = c->candidates[i];
        /* The row slot of the row in flight lies nearer than the request's own. */
        const float *newest = s->inflight ? newest_of(v, before[s->last_row].row_slot, k) : NULL;
        put(v->budget + (size_t)i * (size_t)k, k, newest, s->inflight ? 1 : 0);
        rounds += s->inflight;
        most = s->inflight > most ? s->inflight : most;
    }
    *mapped = rounds;
    return most <= 1 ? 0 : di_fail(DI_E_INTERNAL, "", "inflight", "a request's rounds of %d steps are unknown", most);
}

/* Rows of which the host knows everything: both lists. */
static void gather_fresh(di_core *c, int32_t n)
{
    di_varlen *v = &c->varlen;
    int32_t k = c->cfg.num_draft;
    for (int32_t i = 0; i < n; i++) {
        const di_seq *s = c->candidates[i];
        int has_drafts = s->has_drafts && !(v->known.rounds[s->row_slot] & DI_ROUND_NONE);
        const float *newest = newest_of(v, s->row_slot, k), *before = before_of(v, s->row_slot, k);
        put(v->share + (size_t)i * (size_t)k, k, has_drafts ? newest : NULL, has_drafts ? 1 : 0);
        put(v->budget + (size_t)i * (size_t)k, k, has_drafts ? before : NULL, has_drafts ? 1 : 0);
    }
}

int di_varlen_lengths(di_core *c, int32_t n, const int32_t **lengths)
{
    di_varlen *v = &c->varlen;
    *lengths = NULL;
    if (!v->is_on || v->n_sizes == 0 || n == 0) return 0;
    int32_t mapped = 0;
    int code = c->launched > c->committed ? gather_mapped(c, n, &mapped) : 0;
    if (code) return code;
    if (!mapped) gather_fresh(c, n);
    di_verify_curve curve = {.sizes = v->sizes, .ms = v->ms, .n_sizes = v->n_sizes, .slope = v->slope,
                             .sampler_ms = di_varlen_sampler_ms(v, n)};
    int32_t total = di_verify_total(&curve, v->budget, n, c->cfg.num_draft, v->scratch);
    const float *share = mapped ? v->budget : v->share;
    di_verify_share(share, n, c->cfg.num_draft, total, v->scratch, mapped > 0, v->lengths);
    *lengths = v->lengths;
    return 0;
}

int di_varlen_curve(di_core *c, const int32_t *sizes, const double *ms, int n)
{
    int code = di_core_enter(c);
    if (code) return code;
    di_varlen *v = &c->varlen;
    if (!v->is_on)
        code = di_fail(DI_E_ARG, "", "verify_lengths", "needs confidence and drafts; this core verifies fixed lengths");
    else if (n > DI_MAX_GRAPH_SIZES)
        code = di_fail(DI_E_ARG, "", "sizes", "%d graph sizes, at most %d", n, DI_MAX_GRAPH_SIZES);
    else if (n != 0)
        code = di_verify_check_curve(sizes, ms, n, (int64_t)c->cfg.max_num_seqs * c->dim.q);
    if (!code) {
        v->n_sizes = n;
        if (n) memcpy(v->sizes, sizes, (size_t)n * sizeof *sizes);
        if (n) memcpy(v->ms, ms, (size_t)n * sizeof *ms);
        di_varlen_forget(c);
    }
    return di_core_leave(c, code);
}

/* The lengths are kept beside the published ones, which a reader may still look at. */
static void set_lengths(di_step *step, const int32_t *seqlens_q)
{
    di_outputs *o = step->out;
    int32_t first = 0;
    for (int32_t i = 0; i < step->n; i++) {
        di_row *r = &step->rows[i];
        r->q = o->corrected_q[i] = seqlens_q[i];
        r->first = first;
        o->corrected_k[i] = r->start + r->q;
        first += r->q;
    }
    o->record.seqlens_q.data = o->corrected_q;
    o->record.seqlens_k.data = o->corrected_k;
}

static int check_lengths(const di_core *c, const di_step *step, const int32_t *seqlens_q, int n)
{
    if (step->kind != DI_STEP_DECODE)
        return di_fail(DI_E_ORDER, "", "step_id", "step %llu decodes nothing", (unsigned long long)step->id);
    if (step->is_sampled)
        return di_fail(DI_E_ORDER, "", "step_id", "sampler inputs of step %llu are packed",
                       (unsigned long long)step->id);
    if (!seqlens_q || n != step->n)
        return di_fail(DI_E_ARG, "", "seqlens_q", "%d lengths, step %llu has %d requests", n,
                       (unsigned long long)step->id, step->n);
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (seqlens_q[i] < 1 || seqlens_q[i] > c->dim.q)
            return di_fail(DI_E_ARG, "", "seqlens_q", "row %d is %d, the bound is 1 .. %d", i, seqlens_q[i], c->dim.q);
        sum += seqlens_q[i];
    }
    if (sum != step->t)
        return di_fail(DI_E_ARG, "", "seqlens_q", "sum to %lld, step %llu has %d tokens", (long long)sum,
                       (unsigned long long)step->id, step->t);
    return 0;
}

int di_correct(di_core *c, uint64_t id, const int32_t *seqlens_q, int n)
{
    int code = di_core_enter(c);
    if (code) return code;
    di_step *step = di_core_step(c, id);
    if (!c->varlen.is_on)
        code = di_fail(DI_E_ARG, "", "verify_lengths", "needs confidence and drafts; this core verifies fixed lengths");
    else if (id != c->launched || step->id != id || !step->is_open)
        code = di_fail(DI_E_ORDER, "", "step_id", "step %llu is not the newest uncommitted one (%llu)",
                       (unsigned long long)id, (unsigned long long)c->launched);
    if (!code) code = check_lengths(c, step, seqlens_q, n);
    if (!code) set_lengths(step, seqlens_q);
    return di_core_leave(c, code);
}
