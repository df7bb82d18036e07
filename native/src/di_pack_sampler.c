/* SamplerInputs (spec/engine.md 6.5). Row j of a request samples the token at position start + j + 1. */
#include <string.h>

#include "di_check.h"
#include "di_pack.h"
#include "di_view.h"

/* First position that the row's step feeds. Exact: with drafts in flight it is known after the commit before, without
 * drafts every step in flight adds one token and the bound is the position. */
static int32_t start_of(const di_core *c, const di_row *r)
{
    return r->remap >= 0 && c->cfg.num_draft > 0 ? r->seq->cached : r->start;
}

static int lengths_are_known(const di_core *c, const di_step *step)
{
    if (c->cfg.num_draft == 0 || c->committed + 1 == step->id) return 1;
    for (int32_t i = 0; i < step->n; i++)
        if (step->rows[i].remap >= 0) return 0;
    return 1;
}

static int is_same_life(const di_row *r) { return r->seq->generation == r->generation && !di_seq_is_terminal(r->seq); }

typedef struct lists {
    int32_t n_suppress, width, has_forced;
    int32_t most_forced;      /* forced tokens of the request that has most */
    uint8_t wants;            /* DI_WANTS_ of any request */
} lists;

static void pack_stops(const di_seq *q, int32_t i, di_staging *s, const lists *l)
{
    int32_t *stop = s->stop_ids + (size_t)i * (size_t)l->width;
    for (int32_t x = 0; x < l->width; x++) stop[x] = x < q->n_stop ? q->stop_ids[x] : -1;
}

/* Forced tokens of the logit rows [first, first + n); the first of them samples output token ``ordinal``, from 1. */
static void pack_forced(const di_seq *q, int32_t first, int32_t n, int32_t ordinal, di_staging *s, lists *l)
{
    for (int32_t j = 0; j < n; j++) {
        int32_t at = ordinal + j;
        int is_forced = at >= 1 && at <= q->n_forced && q->forced[at - 1] >= 0;
        s->forced[first + j] = is_forced ? q->forced[at - 1] : -1;
        l->has_forced |= is_forced;
    }
}

/* Stop ids are suppressed in the rows of the first min_tokens tokens. */
static void pack_suppressed(const di_seq *q, int32_t first, int32_t n, int32_t ordinal, di_staging *s, lists *l)
{
    for (int32_t j = 0; j < n && ordinal + j <= q->sampling.min_tokens; j++)
        for (int32_t x = 0; x < q->n_stop; x++) {
            s->eos_suppress[2 * l->n_suppress] = first + j;
            s->eos_suppress[2 * l->n_suppress + 1] = q->stop_ids[x];
            l->n_suppress++;
        }
}

/* Every row of a decode step is sampled: entry t is t, and stays that until a prefill step writes others. */
static void select_all(const di_step *step, di_staging *s)
{
    for (int32_t t = s->n_selected_all; t < step->t; t++) s->selected_rows[t] = t;
    if (step->t > s->n_selected_all) s->n_selected_all = step->t;
}

/* Where the drafts that row r verifies lie in the pool; the row behind the last one verifies none. */
static void pack_draft_rows(const di_core *c, const di_row *r, di_staging *s)
{
    int32_t *at = s->draft_rows + r->first, from = di_row_draft_read(r) * c->cfg.num_draft;
    for (int32_t j = 0; j < c->cfg.num_draft; j++) at[j] = from + j;
    at[r->q - 1] = 0;
}

static void pack_parameters(const di_seq *q, int32_t i, di_staging *s)
{
    s->temperature[i] = q->sampling.temperature;
    s->top_p[i] = q->sampling.top_p;
    s->min_p[i] = q->sampling.min_p;
    s->repetition_penalty[i] = q->sampling.repetition_penalty;
    s->presence_penalty[i] = q->sampling.presence_penalty;
    s->frequency_penalty[i] = q->sampling.frequency_penalty;
    s->top_k[i] = q->sampling.top_k;
    s->seed[i] = q->sampling.seed;
}

static lists pack_rows(const di_core *c, const di_step *step, di_staging *s)
{
    lists l = {0};
    int is_prefill = step->kind == DI_STEP_PREFILL;
    for (int32_t i = 0; i < step->n; i++) {
        const di_seq *q = step->rows[i].seq;
        if (q->n_stop > l.width) l.width = q->n_stop;
        if (q->n_forced > l.most_forced) l.most_forced = q->n_forced;
    }
    if (is_prefill) s->n_selected_all = 0;
    else select_all(step, s);
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        /* Prefill samples after the last row of the chunk. A request that ended meanwhile keeps harmless values. */
        int32_t start = is_prefill ? r->start + r->q - 1 : is_same_life(r) ? start_of(c, r) : r->start;
        int32_t first = is_prefill ? i : r->first, n = is_prefill ? 1 : r->q;
        pack_parameters(r->seq, i, s);
        l.wants |= r->seq->wants;
        s->row_slot[i] = r->row_slot - 1;
        s->sample_pos[i] = start + 1;
        s->first_row[i] = first;
        s->row_count[i] = n;
        s->draft_write[i] = r->draft_slot;
        if (is_prefill) s->selected_rows[i] = r->first + r->q - 1;
        else if (c->cfg.num_draft) pack_draft_rows(c, r, s);
        int32_t ordinal = start + 2 - r->seq->prompt_len;
        pack_stops(r->seq, i, s, &l);
        if (l.most_forced) pack_forced(r->seq, first, n, ordinal, s, &l);
        pack_suppressed(r->seq, first, n, ordinal, s, &l);
    }
    return l;
}

static void publish(const di_core *c, const di_step *step, di_staging *s, const lists *l, di_sampler_inputs *out)
{
    int is_decode = step->kind == DI_STEP_DECODE;
    int32_t n = step->n, rows = is_decode ? step->t : n;
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->chain = DI_HASH_SAMPLER_INPUTS;
    out->selected_rows = di_view_1d(s->selected_rows, DI_DTYPE_I32, rows);
    out->temperature = di_view_1d(s->temperature, DI_DTYPE_F32, n);
    out->top_p = di_view_1d(s->top_p, DI_DTYPE_F32, n);
    out->min_p = di_view_1d(s->min_p, DI_DTYPE_F32, n);
    out->repetition_penalty = di_view_1d(s->repetition_penalty, DI_DTYPE_F32, n);
    out->presence_penalty = di_view_1d(s->presence_penalty, DI_DTYPE_F32, n);
    out->frequency_penalty = di_view_1d(s->frequency_penalty, DI_DTYPE_F32, n);
    out->top_k = di_view_1d(s->top_k, DI_DTYPE_I32, n);
    out->seed = di_view_1d(s->seed, DI_DTYPE_U64, n);
    out->sample_pos = di_view_1d(s->sample_pos, DI_DTYPE_I32, n);
    out->stop_ids = di_view_2d(s->stop_ids, DI_DTYPE_I32, n, l->width);
    if (is_decode) {
        out->first_row = di_view_1d(s->first_row, DI_DTYPE_I32, n);
        out->row_count = di_view_1d(s->row_count, DI_DTYPE_I32, n);
        if (c->cfg.num_draft) out->draft_rows = di_view_1d(s->draft_rows, DI_DTYPE_I32, rows);
    }
    if (c->cfg.num_draft) out->draft_write_slot = di_view_1d(s->draft_write, DI_DTYPE_I32, n);
    if (l->has_forced) out->forced = di_view_1d(s->forced, DI_DTYPE_I32, rows);
    out->row_slot = di_view_1d(s->row_slot, DI_DTYPE_I32, n);
    if (l->n_suppress) out->eos_suppress = di_view_2d(s->eos_suppress, DI_DTYPE_I32, l->n_suppress, 2);
}

int di_pack_sampler(di_core *c, uint64_t step, di_sampler_inputs *out)
{
    di_step *record = NULL;
    int code = di_core_enter(c);
    if (code) return code;
    code = out ? di_pack_step(c, step, &record) : di_fail(DI_E_ARG, "", "out", "NULL");
    if (!code && !lengths_are_known(c, record))
        code = di_fail(DI_E_ORDER, "", "step_id",
                       "step %llu has rows whose start is known after the commit of step %llu",
                       (unsigned long long)step, (unsigned long long)(step - 1));
    if (code) return di_core_leave(c, code);
    di_staging *s = di_core_staging(c, step);
    lists l = pack_rows(c, record, s);
    record->is_sampled = 1;
    publish(c, record, s, &l, out);
    if (l.wants) di_pack_wants(record, s, l.wants, out);
    di_layout_whole(&c->layouts.sampler, &s->seen_sampler, (int32_t)(step % (uint64_t)(c->cfg.depth + 1)), out,
                    sizeof *out);
    return di_core_leave(c, di_check_sampler(c, record, out));
}
