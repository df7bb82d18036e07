/* What a step runs: admission (2.3), decode (2.4), pressure (2.5). Each pass adds rows to a step and entries to the
 * lists of its outputs; di_publish.c makes the contract record of both. */
#ifndef DI_POLICY_H
#define DI_POLICY_H

#include "di_state.h"

/* The used share is below the watermark and the queue's head could be admitted now. Pure. */
int di_policy_wants_prefill(const di_core *c);
/* End prompts at the queue's head that can never run. */
int di_policy_drop_too_long(di_core *c);
int di_policy_prefill(di_core *c, di_step *step, di_outputs *o);
int di_policy_decode(di_core *c, di_step *step, di_outputs *o);

/* Running sequences that cross a block boundary within the next two steps: blocks that admission leaves free. */
int32_t di_policy_reserve(const di_core *c);
/* Put a request at the end of the running set, with a draft slot where its engine decodes with drafts. */
int di_policy_start_running(di_core *c, di_seq *s);
/* Close the holes in the running set, keeping its order. */
void di_policy_compact(di_core *c);
/* Append a row to the step. */
void di_policy_add_row(di_core *c, di_step *step, di_seq *s, int32_t start, int32_t q, int is_last_chunk);
/* Append a row for each of the first n candidates of a decode pass; lengths NULL: K + 1 tokens each. */
void di_policy_add_decode_rows(di_core *c, di_step *step, int32_t n, const int32_t *lengths);
/* Note new table entries [from, n_blocks) of a request. */
void di_policy_note_blocks(di_core *c, di_outputs *o, const di_seq *s, int32_t from);

#endif
