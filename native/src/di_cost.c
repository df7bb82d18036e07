#include "di_cost.h"

#include "di_state.h"

enum { MAX_ROWS = 65535, MAX_UNIT = 1 << 16 };

/* Sums stop here: far beyond any budget, and g times it still fits. */
static const di_wide DI_COST_MOST = (di_wide)1 << 104;
static const int64_t MAX_COST = (int64_t)1 << 50, MAX_PAIR_COST = (int64_t)1 << 40;

/* sum over t = 1 .. n of min(floor(t / r), cap); cap 0 = none. n < 2**33, and n < 2**31 where r is 1. */
static int64_t keys_up_to(int64_t n, int64_t r, int64_t cap)
{
    int64_t b = n / r, rest = 0;
    if (cap > 0 && b > cap) {
        rest = (n - r * cap) * cap;
        n = r * cap;
        b = cap;
    }
    return b * (n + 1) - r * b * (b + 1) / 2 + rest;
}

/* Rows of the decoder half: of a long prompt the last keep, but at least one of each chunk (3.7). */
static int64_t kept_rows(const di_cost_model *m, const di_cost_row *row)
{
    if (m->keep == 0) return row->q;
    int64_t clip = (int64_t)row->full_len - m->keep - row->start;
    if (clip < 0) clip = 0;
    return clip < row->q ? row->q - clip : 1;
}

static int64_t pairs_of(const di_cost_model *m, const di_cost_kind *k, const di_cost_row *row)
{
    int64_t begin = row->start, end = begin + row->q;
    int64_t first = row->valid_start < row->start ? row->valid_start : row->start;
    if (k->kept && m->keep > 0) {
        int64_t floor = (int64_t)row->full_len - m->keep;
        begin = end - kept_rows(m, row);
        if (first < floor) first = floor;
        if (k->shift && end <= first) return 0;     /* the row that stays of a chunk in front of them sees no window */
    }
    if (k->shift) {
        begin -= first;
        end -= first;
    }
    int64_t r = (int64_t)k->ratio * k->block, up = (int64_t)k->ratio * (k->block - 1);
    return keys_up_to(end + up, r, k->cap) - keys_up_to(begin + up, r, k->cap);
}

static di_wide row_cost(const di_cost_model *m, const di_cost_row *row)
{
    di_wide cost = (di_wide)m->row * row->q + (di_wide)m->kept * kept_rows(m, row);
    cost += (di_wide)m->logit * row->logit_rows;
    for (int32_t i = 0; i < m->num_kinds; i++)
        cost += (di_wide)m->kind[i].pair * m->kind[i].block * pairs_of(m, &m->kind[i], row);
    return cost + m->seq;
}

static di_wide add(di_wide a, di_wide b) { return a + b < DI_COST_MOST ? a + b : DI_COST_MOST; }

static int64_t ns_of(di_wide cost, int64_t factor)
{
    di_wide ns = (cost * factor) >> (2 * DI_COST_FRACTION);
    return ns < INT64_MAX ? (int64_t)ns : INT64_MAX;
}

/* Largest q in [least, row.q] with batch + cost(q) within the budget; 0 if there is none. The cost grows with q. */
static int32_t largest_chunk(const di_cost_model *m, di_wide batch, int64_t factor, int64_t budget, di_cost_row row,
                             int32_t least)
{
    int32_t low = least - 1, high = row.q;      /* low fits, or is below what is allowed */
    while (low < high) {
        row.q = high == row.q ? high : low + (high - low + 1) / 2;
        if (ns_of(add(batch, row_cost(m, &row)), factor) <= budget) low = row.q;
        else high = row.q - 1;
    }
    return low >= least ? low : 0;
}

static int refuse(const char *field, int64_t value, const char *bound)
{
    return di_fail(DI_E_ARG, "", field, "is %lld, the bound is %s", (long long)value, bound);
}

static int is_weight(double flops) { return flops >= 0 && flops < 1e18; }

static int check_kind(const di_cost_kind *k)
{
    if (!is_weight(k->flops)) return di_fail(DI_E_ARG, "", "kind.flops", "is %g, the bound is 0 .. 1e18", k->flops);
    if (k->pair < 0 || k->pair > MAX_PAIR_COST) return refuse("kind.pair", k->pair, "0 .. 2**40");
    if (k->ratio < 1 || k->ratio > MAX_UNIT) return refuse("kind.ratio", k->ratio, "1 .. 65536");
    if (k->cap < 0) return refuse("kind.cap", k->cap, ">= 0");
    if (k->shift < 0 || k->shift > 1) return refuse("kind.shift", k->shift, "0 or 1");
    if (k->kept < 0 || k->kept > 1) return refuse("kind.kept", k->kept, "0 or 1");
    if (k->block < 1 || k->block > MAX_UNIT) return refuse("kind.block", k->block, "1 .. 65536");
    return 0;
}

static int check_model(const di_cost_model *m)
{
    if (!m) return di_fail(DI_E_ARG, "", "model", "NULL");
    if (m->struct_size != sizeof *m) return refuse("struct_size", m->struct_size, "size of di_cost_model");
    if (m->num_kinds < 0 || m->num_kinds > DI_COST_KINDS) return refuse("num_kinds", m->num_kinds, "0 .. 8");
    if (m->keep < 0) return refuse("keep", m->keep, ">= 0");
    if (m->base < 0 || m->base > MAX_COST) return refuse("base", m->base, "0 .. 2**50");
    if (m->seq < 0 || m->seq > MAX_COST) return refuse("seq", m->seq, "0 .. 2**50");
    if (m->row < 0 || m->row > MAX_COST) return refuse("row", m->row, "0 .. 2**50");
    if (m->kept < 0 || m->kept > MAX_COST) return refuse("kept", m->kept, "0 .. 2**50");
    if (m->logit < 0 || m->logit > MAX_COST) return refuse("logit", m->logit, "0 .. 2**50");
    if (!is_weight(m->row_flops) || !is_weight(m->kept_flops) || !is_weight(m->logit_flops))
        return di_fail(DI_E_ARG, "", "flops", "are %g, %g and %g, the bound is 0 .. 1e18", m->row_flops, m->kept_flops,
                       m->logit_flops);
    int code = 0;
    for (int32_t i = 0; i < m->num_kinds && !code; i++) code = check_kind(&m->kind[i]);
    return code;
}

static int check_row(const di_cost_row *r)
{
    if (r->start < 0) return refuse("start", r->start, ">= 0");
    if (r->q < 1 || r->q > INT32_MAX - r->start) return refuse("q", r->q, ">= 1, and start + q < 2**31");
    if (r->valid_start < 0) return refuse("valid_start", r->valid_start, ">= 0");
    if (r->logit_rows < 0) return refuse("logit_rows", r->logit_rows, ">= 0");
    return 0;
}

static int sum_rows(const di_cost_model *m, const di_cost_row *rows, int n, di_wide *sum)
{
    int code = check_model(m);
    if (code) return code;
    if (n < 0 || n > MAX_ROWS || (n > 0 && !rows)) return refuse("n", n, "0 .. 65535 rows");
    *sum = m->base;
    for (int i = 0; i < n && !code; i++) {
        code = check_row(&rows[i]);
        if (!code) *sum = add(*sum, row_cost(m, &rows[i]));
    }
    return code;
}

int di_cost_predict(const di_cost_model *model, const di_cost_row *rows, int n, int64_t *ns)
{
    di_wide sum = 0;
    if (!ns) return di_fail(DI_E_ARG, "", "ns", "NULL");
    int code = sum_rows(model, rows, n, &sum);
    if (!code) *ns = ns_of(sum, (int64_t)1 << DI_COST_FRACTION);
    return code;
}

static int32_t chunk_within(const di_cost_model *m, di_wide batch, int64_t factor, int64_t budget,
                            const di_cost_row *next, int32_t min_chunk, int is_first)
{
    int32_t least = min_chunk < next->q ? min_chunk : next->q;
    int32_t q = largest_chunk(m, batch, factor, budget, *next, least);
    return q == 0 && is_first ? least : q;
}

int di_cost_chunk(const di_cost_model *model, const di_cost_row *rows, int n, const di_cost_row *next,
                  int64_t budget_ns, int32_t min_chunk, int32_t *q)
{
    if (!next || !q) return di_fail(DI_E_ARG, "", next ? "q" : "next", "NULL");
    if (min_chunk < 1) return refuse("min_chunk", min_chunk, ">= 1");
    di_wide sum = 0;
    int code = sum_rows(model, rows, n, &sum);
    if (!code) code = check_row(next);
    if (!code) *q = chunk_within(model, sum, (int64_t)1 << DI_COST_FRACTION, budget_ns, next, min_chunk, n == 0);
    return code;
}

/* A request that is not admitted yet begins where its prefix hit does, and its window there too. */
static di_cost_row prefill_row(const di_core *c, const di_seq *s, int32_t start, int32_t q)
{
    /* Rows of the decoder half are left out in front of keep_from only, which no recomputation moves. */
    int32_t full_len = s->replay_mode == DI_REPLAY_COMPACT ? s->keep_from + c->cfg.replay_keep : 0;
    return (di_cost_row){.start = start, .q = q, .full_len = full_len, .logit_rows = 1,
                         .valid_start = s->row_slot ? s->swa_valid_start : start};
}

static di_cost_row decode_row(int32_t start, int32_t q)
{
    return (di_cost_row){.start = start, .q = q, .full_len = start + q, .logit_rows = q};
}

/* A decode step of everything that runs. */
static int64_t predicted_decode_ns(const di_core *c)
{
    const di_cost_model *m = &c->cost.model[DI_STEP_DECODE];
    di_wide sum = m->base;
    for (int32_t i = 0; i < c->n_running; i++) {
        const di_seq *s = c->running[i];
        if (!s) continue;
        di_cost_row row = decode_row(s->awaits_first ? s->len : s->cached + s->inflight * c->dim.q, c->dim.q);
        sum = add(sum, row_cost(m, &row));
    }
    return ns_of(sum, c->cost.fixed[DI_STEP_DECODE]);
}

void di_cost_begin(di_core *c)
{
    di_cost *k = &c->cost;
    k->counted = 0;
    k->batch = k->model[DI_STEP_PREFILL].base;
    k->budget_ns = 0;
    if (!k->is_set) return;
    if (c->live_running == 0) {
        k->budget_ns = c->cfg.prefill_step_ns;
    } else if (c->cfg.target_itl_ns > 0) {
        int64_t left = c->cfg.target_itl_ns - predicted_decode_ns(c);
        k->budget_ns = left > 1 ? left : 1;     /* 0 means no budget */
    }
}

int32_t di_cost_limit(di_core *c, const di_step *step, const di_seq *s, int32_t start, int32_t q)
{
    di_cost *k = &c->cost;
    if (k->budget_ns == 0 || q <= 0) return q;
    const di_cost_model *m = &k->model[DI_STEP_PREFILL];
    for (; k->counted < step->n; k->counted++) {
        const di_row *r = &step->rows[k->counted];
        di_cost_row row = prefill_row(c, r->seq, r->start, r->q);
        k->batch = add(k->batch, row_cost(m, &row));
    }
    di_cost_row next = prefill_row(c, s, start, q);
    int32_t least = c->cfg.chunked_prefill ? c->cfg.min_chunk : q;
    return chunk_within(m, k->batch, k->fixed[DI_STEP_PREFILL], k->budget_ns, &next, least, step->n == 0);
}

static di_cost_row row_of(const di_core *c, const di_step *step, int32_t i)
{
    const di_row *r = &step->rows[i];
    return step->kind == DI_STEP_DECODE ? decode_row(r->start, r->q) : prefill_row(c, r->seq, r->start, r->q);
}

/* Counts are summed as integers and weighted once, so that the result does not depend on the order of the rows. */
static void publish_flops(const di_core *c, const di_cost_model *m, const di_step *step, di_scheduler_outputs *out)
{
    int64_t rows = 0, kept = 0, logits = 0, pairs[DI_COST_KINDS] = {0};
    for (int32_t i = 0; i < step->n; i++) {
        di_cost_row row = row_of(c, step, i);
        rows += row.q;
        kept += kept_rows(m, &row);
        logits += row.logit_rows;
        for (int32_t k = 0; k < m->num_kinds; k++) pairs[k] += pairs_of(m, &m->kind[k], &row) * m->kind[k].block;
    }
    double attention = 0, others = (double)rows * m->row_flops;
    for (int32_t k = 0; k < m->num_kinds; k++) attention += (double)pairs[k] * m->kind[k].flops;
    others += (double)kept * m->kept_flops;
    others += (double)logits * m->logit_flops;
    out->flops_attn = attention / 1e12;
    out->flops_total = (attention + others) / 1e12;
}

static int has_flops(const di_cost_model *m)
{
    int has = m->row_flops > 0 || m->kept_flops > 0 || m->logit_flops > 0;
    for (int32_t k = 0; k < m->num_kinds; k++) has |= m->kind[k].flops > 0;
    return has;
}

void di_cost_publish(di_core *c, const di_step *step, di_scheduler_outputs *out)
{
    di_cost *k = &c->cost;
    out->flops_attn = out->flops_total = 0;
    if (!k->is_set || step->n == 0) return;
    const di_cost_model *m = &k->model[step->kind];
    di_wide sum = m->base;
    for (int32_t i = 0; i < step->n; i++) {
        di_cost_row row = row_of(c, step, i);
        sum = add(sum, row_cost(m, &row));
    }
    out->predicted_ns = ns_of(sum, k->fixed[step->kind]);
    if (has_flops(m)) publish_flops(c, m, step, out);
    if (step->kind == DI_STEP_DECODE || k->budget_ns == 0) return;
    out->budget_ns = k->budget_ns;
    if (out->predicted_ns <= k->budget_ns) return;
    out->flags |= (uint32_t)DI_STEP_FLAG_BUDGET_OVERRUN;
    k->overruns++;
}

int di_set_cost_model(di_core *c, const di_cost_model *prefill, const di_cost_model *decode)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = check_model(prefill);
    if (!code) code = check_model(decode);
    if (!code) {
        di_cost *k = &c->cost;
        k->model[DI_STEP_PREFILL] = *prefill;
        k->model[DI_STEP_DECODE] = *decode;
        for (int i = 0; i < 2; i++) {
            k->factor[i] = 1;
            k->fixed[i] = (int64_t)1 << DI_COST_FRACTION;
        }
        k->is_set = 1;
    }
    return di_core_leave(c, code);
}

/* x to the power 0.1 for x in [2**-10, 2**10], by Newton from above: only products and quotients, so that every
 * machine gets the same bits. Each iteration shrinks the excess by at least a tenth, near the root quadratically. */
static double tenth_root(double x)
{
    double y = 2;
    for (int i = 0; i < 32; i++) {
        double y3 = y * y * y, y9 = y3 * y3 * y3;
        y = y - (y9 * y - x) / (10 * y9);
    }
    return y;
}

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

int di_observe_step(di_core *c, uint64_t step, int64_t measured_ns)
{
    int code = di_core_enter(c);
    if (code) return code;
    const di_step *record = di_core_step(c, step);
    if (measured_ns <= 0)
        code = di_fail(DI_E_ARG, "", "measured_ns", "%lld, a time is above 0", (long long)measured_ns);
    else if (step == 0 || record->id != step || step > c->committed)
        code = di_fail(DI_E_ORDER, "", "step_id", "step %llu is not among the newest committed ones (up to %llu)",
                       (unsigned long long)step, (unsigned long long)c->committed);
    else if (c->cfg.cost_feedback && record->out->record.predicted_ns > 0) {
        di_cost *k = &c->cost;
        double ratio = clamp((double)measured_ns / (double)record->out->record.predicted_ns, 1.0 / 1024, 1024);
        double factor = clamp(k->factor[record->kind] * tenth_root(ratio), 0.5, 2);
        k->factor[record->kind] = factor;
        k->fixed[record->kind] = (int64_t)(factor * (double)(1 << DI_COST_FRACTION) + 0.5);
    }
    return di_core_leave(c, code);
}
