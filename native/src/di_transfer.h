/* Requests that begin in a PROMPT engine and go on in a COMPLETION engine (spec/engine.md 1.3 rows 21-23, 1.4, 4.4).
 *
 *   PROMPT      RUNNING* --commit of the last chunk--> HANDOFF --acknowledge--> RETIRED
 *   COMPLETION  reserve --> HANDOFF --inject--> PREFILL (waits for a row, in the admission queue) --decode--> RUNNING
 *                             '--acknowledge--> RETIRED       (the sender gave up, or answers a cancel)
 *
 * In HANDOFF somebody outside reads or writes the request's blocks and slots, so nothing gives them back but the
 * acknowledgement: an abort meanwhile only notes its reason. PREFILL means here what it means elsewhere: it holds blocks
 * and slots, and no row yet.
 */
#ifndef DI_TRANSFER_H
#define DI_TRANSFER_H

#include "di_state.h"

/* The prompt is computed and its first token appended: give it out. Leaves the running set and the row. */
int di_transfer_offer(di_core *c, di_seq *s);
/* End a request with a reason: at once, or in HANDOFF when the acknowledgement comes. */
int di_transfer_end(di_core *c, di_seq *s, uint8_t reason);
/* Decode pass of a COMPLETION engine: injected requests take free rows, in queue order. */
int di_transfer_admit(di_core *c);
/* The event of an injected request's first token, if it is not out yet. */
void di_transfer_put_first(di_event_arena *a, di_seq *s);
/* 0, or DI_E_INTERNAL: reservations and their handles contradict each other. */
int di_transfer_check(const di_core *c);

#endif
