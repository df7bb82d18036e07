/* Packing: the step record becomes the host arrays of InputMetadata and SamplerInputs (spec/engine.md 3.4, 6.2-6.5).
 * The meaning of every field is written out plainly in deepinfer_native/reference_pack.py. */
#ifndef DI_PACK_H
#define DI_PACK_H

#include "di_state.h"

/* Allocate the staging of one step. */
int di_pack_create_staging(di_core *c, di_staging *s);

/* Token at position x as far as the host knows it, a draft past the committed ones; -1 = still on the device. */
static inline int32_t di_pack_token(const di_core *c, const di_row *r, int32_t x)
{
    if (x < r->full_len) return r->seq->tokens[x];
    if (r->remap >= 0) return -1;
    return r->has_drafts ? di_core_drafts(c, r->row_slot)[x - r->full_len] : c->cfg.vocab_size - 1;
}

/* input_ids, positions, ngram_token_ids of all rows. */
void di_pack_common(const di_core *c, const di_step *step, di_staging *s, di_input_metadata *out);
void di_pack_prefill(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out);
/* What the decoder half of a prefill step reads where it keeps a part of the prompt rows; after di_pack_prefill. */
void di_pack_replay(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out);
void di_pack_decode(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out);

/* What the device needs to feed rows that continue a step in flight: fresh_ids, ngram_win. */
void di_pack_feed(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out);

/* Staging for requests with these DI_WANTS_ bits, if there is none yet. DI_E_CAPACITY. Client lock held. */
int di_pack_make_room(di_core *c, uint8_t wants);
/* Fields of SamplerInputs that only requests with these DI_WANTS_ bits have. After the rows of the staging. */
void di_pack_wants(const di_step *step, di_staging *s, uint8_t wants, di_sampler_inputs *out);

/* The newest launched step, if step names it and it is not committed; otherwise DI_E_ORDER. */
int di_pack_step(di_core *c, uint64_t step, di_step **out);

#endif
