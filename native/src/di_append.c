#include "di_append.h"

#include <string.h>

#include "di_append_put.h"

int di_append_is_possible(const di_core *c, const di_step *step, const di_tokens *t)
{
    /* An injected request owes the event of its first token, and alternatives have columns of their own. */
    return step->kind == DI_STEP_DECODE && !t->has_extras && t->sampled && c->cfg.engine_type == DI_ENGINE_NORMAL;
}

/* So many tokens ahead, a request's newest ones come to a line that no step has touched yet. */
enum { TOKENS_AHEAD = 8 };

/* Bring the lines that rows ahead will touch: the request first, then, when that is there, what its tokens grow into. */
void di_append_look_ahead(const di_step *step, int32_t i)
{
    if (i + DI_AHEAD >= step->n) return;
    const di_seq *far = step->rows[i + DI_AHEAD].seq, *near = step->rows[i + DI_AHEAD / 2].seq;
    DI_PREFETCH(far);
    DI_PREFETCH(near->tokens + near->len + TOKENS_AHEAD);
}

/* k numbers, 15 at most. From four on by fours, of which the last ones overlap: a call of memcpy takes longer. */
static inline void copy_few(int32_t *to, const int32_t *from, int32_t k)
{
    enum { FOUR = 4 * sizeof *to };
    if (k < 4) {
        for (int32_t j = 0; j < k; j++) to[j] = from[j];
        return;
    }
    for (int32_t j = 0; j + 4 < k; j += 4) memcpy(to + j, from + j, FOUR);
    memcpy(to + k - 4, from + k - 4, FOUR);
}

/* The drafts of rows [i, end), and what is known of them, to their place by row slot. */
static void keep_drafts(const di_core *c, const di_step *step, int32_t i, int32_t end, const di_tokens *tokens)
{
    const di_tokens t = *tokens;
    const di_known known = c->varlen.known;
    const int32_t k = c->cfg.num_draft, pad = c->cfg.vocab_size - 1, is_known = c->varlen.is_on;
    int32_t *const all = c->drafts;
    for (; i < end; i++) {
        const size_t at = (size_t)i * (size_t)k, slot = (size_t)step->rows[i].row_slot;
        const int32_t *from = t.drafts ? t.drafts + at : NULL;
        int32_t *to = all + slot * (size_t)k;
        if (from && t.are_drafts_tokens) copy_few(to, from, k);
        else    /* what is no token becomes a pad draft (5.8) */
            for (int32_t j = 0; from && j < k; j++) to[j] = (uint32_t)from[j] <= (uint32_t)pad ? from[j] : pad;
        if (!is_known) continue;
        const float *confidence = t.confidence ? t.confidence + at : NULL;
        if (from && t.are_drafts_tokens) di_varlen_keep(&known, slot, k, from, 1, confidence);
        else di_varlen_keep(&known, slot, k, from, 0, confidence);
    }
}

static inline uint8_t has_drafts(const di_core *c, const di_tokens *t)
{
    return t->drafts != NULL && c->cfg.num_draft > 0;
}

void di_append_keep_drafts(const di_core *c, const di_step *step, di_seq *s, int32_t i, const di_tokens *t)
{
    s->has_drafts = has_drafts(c, t);
    if (c->cfg.num_draft > 0) keep_drafts(c, step, i, i + 1, t);
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

/* Rows that verify drafts. */
static int32_t append_several_each(di_core *c, di_step *step, int32_t i, bounds b, const di_tokens *tokens,
                                   di_event_arena *a)
{
    const di_tokens t = *tokens;
    const di_columns o = di_columns_of(a);
    const int32_t from = i, n = step->n, k = c->cfg.num_draft;
    /* The verified ids end behind those of the last row. */
    const int32_t last_of_four = DI_HAS_FOUR && t.verified ? step->t - 4 : -1;
    const uint8_t drafts = has_drafts(c, &t);
    int32_t e = a->count, conf = t.confidence && k > 0 ? a->n_conf : -1;
    for (; i < n; i++) {
        di_append_look_ahead(step, i);
        di_row *r = &step->rows[i];
        di_seq *s = r->seq;
        if (!is_ordinary(r, t.status[i])) break;
        const int32_t first = r->first, q = r->q;
        const di_brought row = {
            .verified = t.verified ? t.verified + first : NULL,
            .verified_logprob = t.verified_logprob ? t.verified_logprob + first : NULL,
            .accepted = di_output_accepted(step, i, &t), .sampled = t.sampled[i],
            .logprob = di_append_logprob(t.logprob, i),
        };
        if (!goes_on(b, s, row.accepted + 1)) break;
        const int is_four = row.accepted < 4 && first <= last_of_four;
        if (!(is_four ? di_put_four(&o, e, s, &row) : di_put_each(&o, e, s, &row))) break;
        e += row.accepted;
        if (q > 1 || t.confidence) {
            o.drafted[e] = (int16_t)(q - 1);
            o.accepted[e] = (int16_t)row.accepted;
        }
        if (conf >= 0) {
            o.conf_offset[e] = conf;
            conf += k;
        }
        e++;
        /* Before has_drafts is written: the flags beside it are read with one load, which would wait for that byte. */
        count_out(r, row.accepted + 1);
        s->has_drafts = drafts;
    }
    a->count = e;
    if (last_of_four >= 0) memset(o.flags + e, 0, DI_EVENT_ROOM * sizeof *o.flags);
    if (k > 0) keep_drafts(c, step, from, i, &t);
    if (conf >= 0 && i > from) copy_confidences(c, a, from, i - from, &t);
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
