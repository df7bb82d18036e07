#include "di_append.h"

#include <string.h>

int di_append_is_possible(const di_core *c, const di_step *step, const di_tokens *t)
{
    /* An injected request owes the event of its first token, and alternatives have columns of their own. */
    return step->kind == DI_STEP_DECODE && !t->has_extras && t->sampled && c->cfg.engine_type == DI_ENGINE_NORMAL;
}

/* Bring the lines that rows ahead will touch: the request first, then, when that is there, the end of its tokens. */
void di_append_look_ahead(const di_step *step, int32_t i)
{
    if (i + DI_AHEAD >= step->n) return;
    const di_seq *far = step->rows[i + DI_AHEAD].seq, *near = step->rows[i + DI_AHEAD / 2].seq;
    DI_PREFETCH(far);
    DI_PREFETCH(&near->tokens[near->len]);
}

void di_append_keep_drafts(di_core *c, const di_row *r, di_seq *s, int32_t i, const di_tokens *t)
{
    int32_t k = c->cfg.num_draft, pad = c->cfg.vocab_size - 1;
    s->has_drafts = t->drafts != NULL && k > 0;
    if (k == 0) return;
    size_t at = (size_t)i * (size_t)k;
    const int32_t *from = t->drafts ? t->drafts + at : NULL;
    int32_t *drafts = di_core_drafts(c, r->row_slot);
    if (from && t->are_drafts_tokens)
        for (int32_t j = 0; j < k; j++) drafts[j] = from[j];     /* a few: a call of memcpy takes longer */
    else
        /* What is no token becomes a pad draft (5.8). */
        for (int32_t j = 0; from && j < k; j++) drafts[j] = (uint32_t)from[j] <= (uint32_t)pad ? from[j] : pad;
    if (c->varlen.is_on) di_varlen_keep(c, r, from, t->confidence ? t->confidence + at : NULL);
}

/* Of n rows from i on. */
static void copy_confidences(const di_core *c, di_event_arena *a, int32_t i, int32_t n, const di_tokens *t)
{
    size_t k = (size_t)c->cfg.num_draft;
    memcpy(a->confidences + a->n_conf, t->confidence + (size_t)i * k, (size_t)n * k * sizeof(float));
    a->n_conf += n * c->cfg.num_draft;
}

void di_append_step_end(const di_core *c, di_event_arena *a, int32_t e, int32_t i, int32_t drafted, int32_t accepted,
                        const di_tokens *t)
{
    a->drafted[e] = (int16_t)drafted;
    a->accepted[e] = (int16_t)accepted;
    if (!t->confidence || c->cfg.num_draft == 0) return;
    copy_confidences(c, a, i, 1, t);
    a->conf_offset[e] = a->n_conf - c->cfg.num_draft;
}

/* What the rows of a step are compared with, in one place that stays in registers. */
typedef struct bounds {
    int32_t max_model_len;
    int32_t registers;        /* a prefix cache waits for full blocks */
} bounds;

/* n more tokens neither end the request nor fill a block that a prefix cache waits for. */
static inline int goes_on(bounds b, const di_seq *s, int32_t n)
{
    int32_t len = s->len + n;
    return len - s->prompt_len < s->max_tokens && len <= b.max_model_len &&
           !(b.registers && s->cached + n >= s->register_at);
}

/* The row's request runs as it did when the step was made, and the row is OK. */
static inline int is_ordinary(const di_row *r, int8_t status)
{
    const di_seq *s = r->seq;
    return status == DI_ROW_OK && s->phase == DI_PHASE_RUNNING && s->generation == r->generation;
}

/* Whether the sampled token, or one of the accepted drafts before it, is a stop id. */
static int has_stop(const di_seq *s, const di_row *r, int32_t sampled, int32_t accepted, const di_tokens *t)
{
    for (int32_t j = 0; j < accepted; j++)
        if (di_seq_is_stop(s, t->verified[r->first + j])) return 1;
    return di_seq_is_stop(s, sampled);
}

static inline void count_out(di_row *r, int32_t n)
{
    di_seq *s = r->seq;
    s->len += n;
    s->cached += n;
    s->inflight--;
    s->inflight_all--;
    r->seq = NULL;
}

static inline void put_identity(di_event_arena *a, int32_t e, const di_seq *s, int32_t n_output)
{
    a->seq_uid[e] = s->uid;
    a->output_index[e] = n_output;
    a->prompt_len[e] = s->prompt_len;
}

/* Rows of one token each. What their events have from the sampler's arrays is copied when all of them are done. */
static int32_t append_one_each(di_step *step, int32_t i, bounds b, const di_tokens *t, di_event_arena *a)
{
    int32_t from = i, e = a->count;
    for (; i < step->n; i++, e++) {
        di_append_look_ahead(step, i);
        di_row *r = &step->rows[i];
        di_seq *s = r->seq;
        int32_t token = t->sampled[i];
        if (!is_ordinary(r, t->status[i]) || !goes_on(b, s, 1)) break;
        if (di_seq_may_stop(s, token) && di_seq_is_stop(s, token)) break;
        s->tokens[s->len] = token;
        put_identity(a, e, s, s->len - s->prompt_len + 1);
        count_out(r, 1);
    }
    int32_t n = i - from, *ids = a->token_id + a->count;
    float *logprobs = a->logprob + a->count;
    if (n > 0) memcpy(ids, t->sampled + from, (size_t)n * sizeof *ids);
    for (int32_t j = 0; j < n; j++) logprobs[j] = di_append_logprob(t->logprob, from + j);
    a->count = e;
    return i;
}

/* The events of row i: its accepted drafts and the sampled token, all appended. */
static void put(di_event_arena *a, di_seq *s, const di_row *r, int32_t i, int32_t accepted, const di_tokens *t)
{
    int32_t e = a->count, n_output = s->len - s->prompt_len, prompt_len = s->prompt_len;
    int32_t *tokens = s->tokens + s->len;
    uint64_t uid = s->uid;
    for (int32_t row = r->first; row < r->first + accepted; row++, e++) {
        a->token_id[e] = *tokens++ = t->verified[row];
        a->logprob[e] = di_append_logprob(t->verified_logprob, row);
        a->flags[e] = DI_EVENT_FLAG_FROM_DRAFT;
        a->seq_uid[e] = uid;
        a->output_index[e] = ++n_output;
        a->prompt_len[e] = prompt_len;
    }
    a->token_id[e] = *tokens = t->sampled[i];
    a->logprob[e] = di_append_logprob(t->logprob, i);
    put_identity(a, e, s, n_output + 1);
    a->count = e + 1;
}

/* Rows that verify drafts. */
static int32_t append_several_each(di_core *c, di_step *step, int32_t i, bounds b, const di_tokens *t,
                                   di_event_arena *a)
{
    int32_t from = i, k = c->cfg.num_draft, n_conf = a->n_conf, has_confidence = t->confidence && k > 0;
    for (; i < step->n; i++) {
        di_append_look_ahead(step, i);
        di_row *r = &step->rows[i];
        di_seq *s = r->seq;
        if (!is_ordinary(r, t->status[i])) break;
        int32_t accepted = di_output_accepted(step, i, t);
        uint32_t may_stop = di_seq_may_stop(s, t->sampled[i]);
        for (int32_t j = 0; j < accepted; j++) may_stop |= di_seq_may_stop(s, t->verified[r->first + j]);
        if (!goes_on(b, s, accepted + 1) || (may_stop && has_stop(s, r, t->sampled[i], accepted, t))) break;
        put(a, s, r, i, accepted, t);
        int32_t e = a->count - 1;
        if (r->q > 1 || t->confidence) {
            a->drafted[e] = (int16_t)(r->q - 1);
            a->accepted[e] = (int16_t)accepted;
        }
        if (has_confidence) a->conf_offset[e] = n_conf + (i - from) * k;
        /* Before has_drafts is written: the flags beside it are read with one load, which would wait for that byte. */
        count_out(r, accepted + 1);
        di_append_keep_drafts(c, r, s, i, t);
    }
    if (has_confidence && i > from) copy_confidences(c, a, from, i - from, t);
    return i;
}

int32_t di_append_run(di_core *c, di_step *step, int32_t i, const di_tokens *t, di_event_arena *a)
{
    int32_t from = i, before = a->count;
    bounds b = {.max_model_len = c->cfg.max_model_len, .registers = c->prefix.is_on};
    if (c->cfg.num_draft == 0 && !t->confidence) i = append_one_each(step, i, b, t, a);
    else i = append_several_each(c, step, i, b, t, a);
    c->count.tokens_output += (uint64_t)(a->count - before);
    c->count.tokens_accepted += (uint64_t)(a->count - before - (i - from));
    return i;
}
