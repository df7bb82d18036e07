/* A row costs little when it is where it was depth + 1 steps ago: identity and slots stay in the arrays of the ring
 * slot, and only positions, lengths and the row map are written. The policy adds rows as it chooses them, so
 * that a request is touched once. */
#include "di_policy.h"

/* A request that comes to row i: everything that it keeps as long as it stays there. */
static void place_row(di_step *step, int32_t i, const di_seq *s)
{
    di_row *r = &step->rows[i];
    di_outputs *o = step->out;
    o->seq_uid[i] = r->uid = s->uid;
    o->generation[i] = r->generation = s->generation;
    o->row_slot[i] = r->row_slot = s->row_slot;
    o->state_slot[i] = r->state_slot = s->state_slot;
    o->swa_slot[i] = r->swa_slot = s->swa_slot;
    o->draft_write_slot[i] = r->draft_slot = s->draft_slot;
    /* A decoded position is a window or more behind the start of any replay: it sees no truncated window. */
    o->swa_valid_start[i] = step->kind == DI_STEP_PREFILL ? s->swa_valid_start : 0;
    o->hit_tokens[i] = o->replayed_tokens[i] = 0;
    r->blocks = s->blocks;
    r->kind = step->kind;
    step->n_placed++;
}

/* What few requests ask of the sampler beyond their parameters. A row that stays where it was has been through this. */
static void note_wants(di_step *step, int32_t i, di_seq *s, int32_t start, int32_t q, int is_last_chunk)
{
    di_row *r = &step->rows[i];
    int is_prefill = step->kind == DI_STEP_PREFILL;
    if (is_prefill) step->out->n_prompt_rows[i] = 0;
    if (!s->wants) return;
    if (s->wants & DI_WANTS_HISTORY && !s->is_counted && (!is_prefill || is_last_chunk)) {
        r->gets_history = s->is_counted = 1;
        step->n_history += s->len;
    }
    if (!is_prefill || !(s->wants & DI_WANTS_PROMPT) || s->prompt_told) return;
    /* Position p gives the log-probability of prompt token p + 1. */
    int32_t end = start + q < s->prompt_len ? start + q : s->prompt_len - 1, n = end > start ? end - start : 0;
    step->out->n_prompt_rows[i] = n;
    step->n_prompt_rows += n;
    if (is_last_chunk) step->n_prompt_told += s->prompt_len;
}

/* What every row of every step writes. Copies of the pointers, which the compiler need not read again after each store. */
typedef struct columns {
    int32_t *seqlens_q, *seqlens_k, *cached, *full_len, *remap, *draft_read_slot;
    uint8_t *inflight, *is_last_chunk;
} columns;

static inline columns columns_of(const di_outputs *o)
{
    return (columns){.seqlens_q = o->seqlens_q, .seqlens_k = o->seqlens_k, .cached = o->cached,
                     .full_len = o->full_len, .remap = o->remap, .draft_read_slot = o->draft_read_slot,
                     .inflight = o->inflight, .is_last_chunk = o->is_last_chunk};
}

/* Sums over the rows of a step. */
typedef struct sums {
    int64_t qk;
    int32_t n, t, min_k, max_k, n_identity;
} sums;

static inline sums sums_of(const di_step *step)
{
    return (sums){.qk = step->sum_qk, .n = step->n, .t = step->t, .min_k = step->min_k, .max_k = step->max_k,
                  .n_identity = step->n_identity};
}

static inline void keep_sums(di_step *step, const sums *x)
{
    step->sum_qk = x->qk;
    step->n = x->n;
    step->t = x->t;
    step->min_k = x->min_k;
    step->max_k = x->max_k;
    step->n_identity = x->n_identity;
}

static inline void add_row(di_step *step, uint64_t id, const columns *o, sums *x, di_seq *s, int32_t start, int32_t q,
                           int is_last_chunk)
{
    int32_t i = x->n++, k = start + q;
    di_row *r = &step->rows[i];
    int is_kept = r->uid == s->uid && r->generation == s->generation && r->kind == DI_STEP_DECODE;
    r->gets_history = 0;
    if (!is_kept || step->kind != DI_STEP_DECODE) {
        place_row(step, i, s);
        note_wants(step, i, s, start, q, is_last_chunk);
    }
    const int32_t len = s->len, remap = s->inflight > 0 ? s->last_row : -1;
    r->seq = s;
    r->start = start;
    r->q = o->seqlens_q[i] = q;
    r->first = x->t;
    r->full_len = o->full_len[i] = len;
    r->n_blocks = s->n_blocks;
    r->remap = o->remap[i] = remap;
    r->inflight = o->inflight[i] = s->inflight;
    r->is_last_chunk = o->is_last_chunk[i] = (uint8_t)is_last_chunk;
    r->has_drafts = s->has_drafts;
    o->seqlens_k[i] = k;
    o->cached[i] = s->cached;
    o->draft_read_slot[i] = di_row_draft_read(r);
    x->t += q;
    x->qk += (int64_t)q * k;
    x->min_k = i == 0 || k < x->min_k ? k : x->min_k;
    x->max_k = k > x->max_k ? k : x->max_k;
    x->n_identity += remap == i;
    s->last_step = id;
    s->last_row = i;
    s->inflight++;
    s->inflight_all++;
}

void di_policy_add_row(di_core *c, di_step *step, di_seq *s, int32_t start, int32_t q, int is_last_chunk)
{
    const columns o = columns_of(step->out);
    sums x = sums_of(step);
    add_row(step, c->launched + 1, &o, &x, s, start, q, is_last_chunk);
    keep_sums(step, &x);
}

void di_policy_add_decode_rows(di_core *c, di_step *step, int32_t n, const int32_t *lengths)
{
    const columns o = columns_of(step->out);
    sums x = sums_of(step);
    const int32_t most = c->dim.q;
    const uint64_t id = c->launched + 1;
    di_seq *const *candidates = c->candidates;
    for (int32_t i = 0; i < n; i++) {
        di_seq *s = candidates[i];
        /* No store where there is nothing to change: add_row reads the flags beside it. */
        if (s->holds) s->holds = 0;
        /* The table of an injected request or a clone comes with its first step: a call that makes none is not seen. */
        if (s->last_step == 0) di_policy_note_blocks(c, step->out, s, 0);
        add_row(step, id, &o, &x, s, s->cached + (int32_t)s->inflight * most, lengths ? lengths[i] : most, 0);
    }
    keep_sums(step, &x);
}

void di_policy_note_blocks(di_core *c, di_outputs *o, const di_seq *s, int32_t from)
{
    c->table_changes += (uint64_t)(s->n_blocks - from);
    for (int32_t column = from; column < s->n_blocks; column++) {
        int32_t *entry = &o->bt_delta[3 * o->n_delta++];
        entry[0] = s->row_slot;
        entry[1] = column;
        entry[2] = s->blocks[column];
    }
}
