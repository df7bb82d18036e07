/* di_commit: append tokens, stop checks, events (spec/engine.md 1.2, 1.3, 7.5). Everything that can be refused is
 * looked at before anything changes. */
#include <string.h>

#include "di_append.h"
#include "di_check.h"
#include "di_transfer.h"

uint8_t di_core_stop_reason(const di_core *c, const di_seq *s, int32_t token)
{
    int32_t n_output = di_seq_output_len(s);
    if (di_seq_may_stop(s, token) && n_output > s->sampling.min_tokens && di_seq_is_stop(s, token))
        return DI_FINISH_STOP;
    if (s->len > c->cfg.max_model_len || n_output >= s->max_tokens) return DI_FINISH_LENGTH;
    return DI_FINISH_NONE;
}

static void put_alternatives(di_event_arena *a, int32_t e, const int32_t *ids, const float *logprobs, int32_t row,
                             int32_t m)
{
    if (!ids) return;
    int32_t n = 0;
    for (int32_t j = 0; j < m; j++) {
        int32_t id = ids[row * m + j];
        if (id < 0) break;
        a->top_ids[a->n_top + n] = id;
        a->top_logprobs[a->n_top + n] = di_append_logprob(logprobs, row * m + j);
        n++;
    }
    a->top_offset[e] = n ? a->n_top : -1;
    a->top_count[e] = (int16_t)n;
    a->n_top += n;
}

/* What a token's event says beyond the token itself. */
static void put_extras(di_event_arena *a, int32_t e, const di_row *r, int32_t i, int32_t j, int is_draft,
                       const di_tokens *t)
{
    int32_t row = r->first + j;
    const float *smaller = is_draft ? t->verified_sum_smaller : t->sum_smaller;
    a->draft_logprob[e] = is_draft ? di_append_logprob(t->draft_logprob, row) : 0;
    a->sum_smaller[e] = smaller ? smaller[is_draft ? row : i] : 0;
    if (is_draft) put_alternatives(a, e, t->verified_top_ids, t->verified_top_logprobs, row, t->n_top);
    else put_alternatives(a, e, t->top_ids, t->top_logprobs, i, t->n_top);
}

/* The newest token of row i: draft j of it, or (j = accepted) the sampled one. */
static int32_t put_token(di_event_arena *a, const di_row *r, int32_t i, int32_t j, int is_draft, int32_t token,
                         const di_tokens *t)
{
    const di_seq *s = r->seq;
    int32_t e = a->count++;
    a->seq_uid[e] = s->uid;
    a->token_id[e] = token;
    a->logprob[e] = is_draft ? di_append_logprob(t->verified_logprob, r->first + j) : di_append_logprob(t->logprob, i);
    a->output_index[e] = di_seq_output_len(s);
    a->prompt_len[e] = s->prompt_len;
    if (is_draft) a->flags[e] = DI_EVENT_FLAG_FROM_DRAFT;
    if (t->has_extras) put_extras(a, e, r, i, j, is_draft, t);
    return e;
}

/* Full blocks of committed and computed positions go to the prefix cache, before an end gives them back. */
static int offer(di_core *c, di_seq *s)
{
    return c->prefix.is_on && s->cached >= s->register_at ? di_prefix_register(&c->prefix, s) : 0;
}

/* The prompt's end in a PROMPT engine: its first token tells that the cache can be fetched. */
static int hand_off(di_core *c, di_seq *s, int32_t e, di_event_arena *a)
{
    di_events_note(a, DI_EVENT_ENDS);
    a->kind[e] = DI_EVENT_PREFILLED;
    return di_transfer_offer(c, s);
}

/* What this chunk says about its prompt. A step without values (one that failed) leaves a gap: then nothing is told. */
static void keep_prompt(di_seq *s, const di_row *r, int32_t n, const float *values, int32_t at)
{
    if (n && !values) s->prompt_told = 1;
    const float *from = values ? values + at : NULL;
    for (int32_t j = 0; j < n && from; j++) s->prompt_logprobs[r->start + j + 1] = di_append_logprob(from, j);
}

/* The request's first token tells how likely its prompt was. */
static void put_prompt(di_event_arena *a, int32_t e, di_seq *s)
{
    memcpy(a->prompt_logprobs + a->n_prompt, s->prompt_logprobs, (size_t)s->prompt_len * sizeof(float));
    a->prompt_lp_offset[e] = a->n_prompt;
    a->n_prompt += s->prompt_len;
    s->prompt_told = 1;
}

/* The model or the sampler failed at the request's next token. */
static int fail_row(di_core *c, di_seq *s)
{
    di_prefix_withdraw(&c->prefix, s);
    return di_core_finish(c, s, DI_FINISH_ENGINE, 1);
}

/* Append the accepted drafts and the sampled token until one stops the request; later ones are dropped. The drafts
 * before a row that failed hold all the same: the answer is what it is without drafts, and may end before that row. */
static int append_tokens(di_core *c, di_step *step, int32_t i, const di_tokens *t, di_event_arena *a)
{
    const di_row *r = &step->rows[i];
    di_seq *s = r->seq;
    int32_t accepted = di_output_accepted(step, i, t), is_ok = t->status[i] == DI_ROW_OK;
    if (!is_ok && accepted == 0) return fail_row(c, s);
    int32_t start_len = s->len, e = -1;
    uint8_t reason = DI_FINISH_NONE;
    /* The buffer holds what these bounds allow (di_seq_create), and one more step is never begun at a bound. */
    if (di_seq_output_len(s) >= s->max_tokens || s->len > c->cfg.max_model_len)
        return di_fail(DI_E_INTERNAL, "", "tokens", "request %llu outgrows its buffer at %d tokens",
                       (unsigned long long)s->uid, s->len);
    if (s->first_waits) di_transfer_put_first(a, s);
    for (int32_t j = 0; j < accepted + is_ok && reason == DI_FINISH_NONE; j++) {
        int is_draft = j < accepted;
        int32_t token = is_draft ? t->verified[r->first + j] : t->sampled[i];
        s->tokens[s->len++] = token;
        e = put_token(a, r, i, j, is_draft, token, t);
        if (s->wants & DI_WANTS_PROMPT && !s->prompt_told) put_prompt(a, e, s);
        reason = di_core_stop_reason(c, s, token);
    }
    if (r->q > 1 || t->confidence)
        di_append_step_end(c, a, e, i, step->kind == DI_STEP_DECODE ? r->q - 1 : 0, accepted, t);
    int32_t appended = s->len - start_len;
    c->count.tokens_output += (uint64_t)appended;
    c->count.tokens_accepted += (uint64_t)accepted;
    if (step->kind == DI_STEP_DECODE) s->cached += appended;
    if (!is_ok && reason == DI_FINISH_NONE) return fail_row(c, s);
    int code = offer(c, s);
    if (code) return code;
    if (reason == DI_FINISH_NONE) {
        if (c->cfg.num_draft > 0) di_append_keep_drafts(c, step, s, i, t);
        return c->cfg.engine_type == DI_ENGINE_PROMPT ? hand_off(c, s, e, a) : 0;
    }
    di_events_note(a, DI_EVENT_ENDS);
    a->flags[e] |= DI_EVENT_FLAG_LAST;
    a->finish_reason[e] = reason;
    return di_core_finish(c, s, reason, 0);
}

static int requeue(di_core *c, di_seq *s)
{
    s->queue_class = 0;
    di_queue_insert(&c->queue, s);
    return offer(c, s);
}

/* The step ends for row i. The request may be given back in here: its fields are not read afterwards. */
static int commit_row(di_core *c, di_step *step, int32_t i, const di_tokens *t, const int32_t *at_prompt,
                      di_event_arena *a)
{
    di_row *r = &step->rows[i];
    di_seq *s = r->seq;
    int code = 0;
    if (!di_output_is_live(r)) {
        if (di_seq_is_terminal(s)) c->count.overrun_rows++;
        else c->count.stale_rows++;
    } else {
        s->inflight--;
        if (step->kind == DI_STEP_PREFILL) {
            s->cached = r->start + r->q;
            if (step->n_prompt_rows) keep_prompt(s, r, step->out->n_prompt_rows[i], t->prompt_logprobs, *at_prompt);
            if (r->is_last_chunk) s->awaits_first = 0;
            else code = requeue(c, s);
            if (r->is_last_chunk && s->child_head) di_fork_ready(c, s);
            if (code) return code;
        }
        /* Counted out of the step first: a request that ends here with nothing else in flight is RETIRED at once. */
        s->inflight_all--;
        if (di_output_wants_token(step, r)) code = append_tokens(c, step, i, t, a);
        r->seq = NULL;
        return code;
    }
    di_core_settle(c, s);
    r->seq = NULL;
    return code;
}

static int apply(di_core *c, di_step *step, const di_tokens *t, di_event_arena *a)
{
    uint64_t overrun = c->count.overrun_rows;
    if (t->has_extras) di_events_note(a, DI_EVENT_EXTRAS);
    if (t->confidence) di_events_note(a, DI_EVENT_DRAFTS | DI_KEPT_EVENT_BATCH_CONF_OFFSET);
    if (step->t > step->n) di_events_note(a, DI_EVENT_DRAFTS);
    if (step->n_prompt_told) di_events_note(a, DI_KEPT_EVENT_BATCH_PROMPT_LP_OFFSET);
    int is_quick = di_append_is_possible(c, step, t);
    a->plain = is_quick ? DI_EVENT_PLAIN : 0;
    int32_t at_prompt = 0;    /* among the prompt log-probabilities of the step */
    for (int32_t i = 0; i < step->n; i++) {
        if (is_quick) i = di_append_run(c, step, i, t, a);
        if (i == step->n) break;
        di_append_look_ahead(step, i);
        a->plain = 0;
        int code = commit_row(c, step, i, t, &at_prompt, a);
        if (code) return code;
        if (step->n_prompt_rows) at_prompt += step->out->n_prompt_rows[i];
    }
    c->count.overrun_steps += c->count.overrun_rows > overrun;
    step->is_open = 0;
    c->committed = step->id;
    return 0;
}

/* Room for alternatives of every token that the step may emit. */
static int64_t alternatives(const di_step *step, const di_tokens *t)
{
    return t->n_top == 0 ? 0 : ((int64_t)step->n + step->t) * t->n_top;
}

static int commit(di_core *c, uint64_t id, const di_sampler_output *output, di_event_batch *events)
{
    di_step *step = di_core_step(c, id);
    if (id != c->committed + 1 || step->id != id || !step->is_open)
        return di_fail(DI_E_ORDER, "", "step_id",
                       "step %llu cannot be committed: the next one is %llu, launched up to %llu",
                       (unsigned long long)id, (unsigned long long)(c->committed + 1),
                       (unsigned long long)c->launched);
    di_tokens t;
    int code = di_output_read(c, step, output, &t);
    if (!code && output) code = di_check_output(c, step, output, &t);
    int64_t n_top = alternatives(step, &t);
    if (!code && n_top > INT32_MAX)
        code = di_fail(DI_E_CAPACITY, "EventBatch", "top_ids", "%lld alternatives in one step", (long long)n_top);
    di_event_arena *a = NULL;
    if (!code && step->n_prompt_told > INT32_MAX)
        code = di_fail(DI_E_CAPACITY, "EventBatch", "prompt_logprobs", "%lld prompt tokens in one step",
                       (long long)step->n_prompt_told);
    if (!code) code = di_events_reserve(&c->events, (int32_t)n_top, (int32_t)step->n_prompt_told, &a);
    if (!code) code = di_command_drain(c);
    if (code) return code;
    di_events_begin(&c->events, a);
    code = apply(c, step, &t, a);
    if (code) return code;
    di_events_flush(c, a);
    di_events_publish(&c->events, a, id, events);
    return di_check_events(c, id, a, events);
}

int di_commit(di_core *c, uint64_t step, const di_sampler_output *output, di_event_batch *events)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = events ? commit(c, step, output, events) : di_fail(DI_E_ARG, "", "events", "NULL");
    return di_core_leave(c, code);
}

int di_commit_info(di_core *c, uint64_t step, const di_sampler_output *output, di_event_batch *events,
                   di_event_info *info)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = events && info ? commit(c, step, output, events)
                          : di_fail(DI_E_ARG, "", events ? "info" : "events", "NULL");
    if (!code) di_events_info(&c->events, info);
    return di_core_leave(c, code);
}

int di_poll_events(di_core *c, di_event_batch *events)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!events) return di_core_leave(c, di_fail(DI_E_ARG, "", "events", "NULL"));
    di_event_arena *a = NULL;
    code = di_command_drain(c);
    if (!code && c->events.waiting > 0) code = di_events_reserve(&c->events, 0, 0, &a);
    if (code) return di_core_leave(c, code);
    if (a) {
        di_events_begin(&c->events, a);
        di_events_flush(c, a);
    }
    di_events_publish(&c->events, a, 0, events);
    return di_core_leave(c, di_check_events(c, 0, a, events));
}

int di_event_pin(di_core *c, int arena, int pinned)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (arena < 0 || arena >= c->events.n_arenas)
        code = di_fail(DI_E_ARG, "", "arena", "%d of %d", arena, c->events.n_arenas);
    else
        c->events.arenas[arena]->pinned = pinned != 0;
    return di_core_leave(c, code);
}

int di_event_last(di_core *c, di_event_info *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!out) return di_core_leave(c, di_fail(DI_E_ARG, "", "out", "NULL"));
    di_events_info(&c->events, out);
    return di_core_leave(c, 0);
}
