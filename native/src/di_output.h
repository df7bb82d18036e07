/* Reading a sampler's output: presence, shapes and values that commit relies on, whatever the validation level. */
#ifndef DI_OUTPUT_H
#define DI_OUTPUT_H

#include "di_state.h"

/* The sampler's arrays, NULL where absent. */
typedef struct di_tokens {
    const int32_t *sampled, *verified, *accepted, *drafts, *top_ids, *verified_top_ids;
    const float *logprob, *verified_logprob, *draft_logprob, *confidence, *sum_smaller, *verified_sum_smaller;
    const float *top_logprobs, *verified_top_logprobs;
    const float *prompt_logprobs;   /* [n_prompt_rows of the step] */
    const int8_t *status;
    int32_t n_top;            /* M */
    int are_drafts_tokens;    /* every draft id is one of the vocabulary */
    int is_plain;             /* every row is ok and has a token of the vocabulary */
    int is_verified_plain;    /* and every verified id is -1 or one of the vocabulary, accepted ones first */
    int has_extras;           /* events get more than the token and its log-probability */
} di_tokens;

/* The row's request gets a token from this step: neither ended nor recomputed since, and not in mid-prompt. */
static inline int di_output_is_live(const di_row *r)
{
    return r->seq->generation == r->generation && !di_seq_is_terminal(r->seq);
}
static inline int di_output_wants_token(const di_step *step, const di_row *r)
{
    return di_output_is_live(r) && (step->kind == DI_STEP_DECODE || r->is_last_chunk);
}

/* Drafts of row i that were accepted: verified ids up to the first rejection. */
static inline int32_t di_output_accepted(const di_step *step, int32_t i, const di_tokens *t)
{
    const di_row *r = &step->rows[i];
    if (step->kind == DI_STEP_PREFILL) return 0;
    if (t->accepted) {
        int32_t said = t->accepted[i];       /* read in any case: how many rows there are is not to be guessed */
        return r->q > 1 ? said : 0;
    }
    int32_t n = 0;
    while (n < r->q - 1 && t->verified[r->first + n] >= 0) n++;
    return n;
}
/* Fill t from the record. DI_E_CONTRACT names the field. output may be NULL when no row wants a token. */
int di_output_read(const di_core *c, const di_step *step, const di_sampler_output *output, di_tokens *t);

#endif
