/* SamplerInputs of what only some requests ask for (spec/engine.md 6.5): biases, alternatives, histories for penalties,
 * log-probabilities of prompts. A step in which nobody asks costs one test for each request. */
#include <string.h>

#include "di_pack.h"
#include "di_view.h"

/* Room for what the worst step packs, made when the first request asks, in all buffers of the ring: a step allocates
 * nothing. Bounds: every row with a history of max_model_len + 1 tokens, every logit row with DI_MAX_BIAS entries.
 * Pages that no step writes are address space only. */
int di_pack_make_room(di_core *c, uint8_t wants)
{
    size_t n = (size_t)c->cfg.max_num_seqs, rows = n * (size_t)c->dim.q;
    uint8_t missing = wants & (DI_WANTS_HISTORY | DI_WANTS_BIAS) & (uint8_t)~c->has_room;
    for (int i = 0; i <= c->cfg.depth && missing; i++) {
        di_staging *s = &c->staging[i];
        /* What was made before memory ran out stays for the next try. */
        if (missing & DI_WANTS_HISTORY && !s->history_ids)
            s->history_ids = di_arena_take(&c->arena, n * ((size_t)c->cfg.max_model_len + 1), sizeof *s->history_ids);
        if (missing & DI_WANTS_BIAS && !s->bias)
            s->bias = di_arena_take(&c->arena, rows * DI_MAX_BIAS, 2 * sizeof *s->bias);
        if (missing & DI_WANTS_BIAS && !s->bias_value)
            s->bias_value = di_arena_take(&c->arena, rows * DI_MAX_BIAS, sizeof *s->bias_value);
        if (missing & DI_WANTS_HISTORY && !s->history_ids)
            return di_fail(DI_E_CAPACITY, "Request", "repetition_penalty", "no memory for the histories of %d requests",
                           c->cfg.max_num_seqs);
        if (missing & DI_WANTS_BIAS && (!s->bias || !s->bias_value))
            return di_fail(DI_E_CAPACITY, "Request", "bias", "no memory for the biases of %d requests",
                           c->cfg.max_num_seqs);
    }
    c->has_room |= missing;
    return 0;
}

static void pack_histories(const di_step *step, di_staging *s, di_sampler_inputs *out)
{
    int32_t *ids = s->history_ids;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        /* Nothing of it is in flight, so the tokens at schedule are all that come before the ones sampled now. */
        int32_t n = r->gets_history ? r->full_len : 0;
        if (n) memcpy(ids, r->seq->tokens, (size_t)n * sizeof *ids);
        ids += n;
        s->history_counts[i] = n;
        s->history_outputs[i] = n > 0 ? n - r->seq->prompt_len : 0;
    }
    out->history_ids = di_view_1d(s->history_ids, DI_DTYPE_I32, step->n_history);
    out->history_counts = di_view_1d(s->history_counts, DI_DTYPE_I32, step->n);
    out->history_outputs = di_view_1d(s->history_outputs, DI_DTYPE_I32, step->n);
}

static void pack_biases(const di_step *step, di_staging *s, di_sampler_inputs *out)
{
    int64_t n = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_seq *q = step->rows[i].seq;
        for (int32_t row = s->first_row[i]; row < s->first_row[i] + s->row_count[i] && q->n_bias; row++) {
            for (int32_t x = 0; x < q->n_bias; x++) {
                s->bias[2 * (n + x)] = row;
                s->bias[2 * (n + x) + 1] = q->bias_ids[x];
            }
            memcpy(s->bias_value + n, q->bias_values, (size_t)q->n_bias * sizeof(float));
            n += q->n_bias;
        }
    }
    out->bias = di_view_2d(s->bias, DI_DTYPE_I32, n, 2);
    out->bias_value = di_view_1d(s->bias_value, DI_DTYPE_F32, n);
}

static void pack_alternatives(const di_step *step, di_staging *s, di_sampler_inputs *out)
{
    for (int32_t i = 0; i < step->n; i++) {
        s->top_logprobs[i] = step->rows[i].seq->top_logprobs;
        if (s->top_logprobs[i] > out->max_top_logprobs) out->max_top_logprobs = s->top_logprobs[i];
    }
    out->top_logprobs = di_view_1d(s->top_logprobs, DI_DTYPE_I32, step->n);
}

static void pack_prompts(const di_step *step, di_staging *s, di_sampler_inputs *out)
{
    int32_t at = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        s->prompt_counts[i] = step->out->n_prompt_rows[i];
        for (int32_t j = 0; j < s->prompt_counts[i]; j++, at++) {
            s->selected_prompt_rows[at] = r->first + j;
            s->prompt_tokens[at] = r->seq->tokens[r->start + j + 1];
        }
    }
    out->selected_prompt_rows = di_view_1d(s->selected_prompt_rows, DI_DTYPE_I32, at);
    out->prompt_tokens = di_view_1d(s->prompt_tokens, DI_DTYPE_I32, at);
    out->prompt_counts = di_view_1d(s->prompt_counts, DI_DTYPE_I32, step->n);
}

/* The token behind a chunk that does not end its prompt is dropped, and the sampler has no counts for it. */
static void leave_chunks_alone(const di_step *step, di_staging *s)
{
    for (int32_t i = 0; i < step->n && step->kind == DI_STEP_PREFILL; i++) {
        if (step->rows[i].is_last_chunk) continue;
        s->repetition_penalty[i] = 1;
        s->presence_penalty[i] = s->frequency_penalty[i] = 0;
    }
}

void di_pack_wants(const di_step *step, di_staging *s, uint8_t wants, di_sampler_inputs *out)
{
    if (wants & DI_WANTS_BIAS) pack_biases(step, s, out);
    if (wants & DI_WANTS_TOP) pack_alternatives(step, s, out);
    if (wants & DI_WANTS_RAW) {
        for (int32_t i = 0; i < step->n; i++) s->logprobs_raw[i] = (step->rows[i].seq->wants & DI_WANTS_RAW) != 0;
        out->logprobs_raw = di_view_1d(s->logprobs_raw, DI_DTYPE_U8, step->n);
    }
    if (wants & DI_WANTS_HISTORY) leave_chunks_alone(step, s);
    if (step->n_history) pack_histories(step, s, out);
    if (step->n_prompt_rows) pack_prompts(step, s, out);
}
