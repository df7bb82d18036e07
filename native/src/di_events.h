/* Event batches: struct-of-arrays in a ring of arenas (spec/engine.md 4.6).
 *
 * A batch stays valid until its arena is recycled, depth + 1 batches later. An arena that a consumer marked
 * (di_event_pin) is passed over, and if every old one is marked the ring grows: a slow consumer costs memory, never
 * correctness.
 * Terminal events that belong to no row wait on a list that runs through the requests themselves.
 */
#ifndef DI_EVENTS_H
#define DI_EVENTS_H

#include "di_arena.h"
#include "di_seq.h"

/* Columns that differ from event to event only where something special happens, by what writes them. */
#define DI_EVENT_EXTRAS \
    (DI_KEPT_EVENT_BATCH_DRAFT_LOGPROB | DI_KEPT_EVENT_BATCH_SUM_SMALLER | DI_KEPT_EVENT_BATCH_TOP_OFFSET | \
     DI_KEPT_EVENT_BATCH_TOP_COUNT)
#define DI_EVENT_DRAFTS (DI_KEPT_EVENT_BATCH_FLAGS | DI_KEPT_EVENT_BATCH_DRAFTED | DI_KEPT_EVENT_BATCH_ACCEPTED)
#define DI_EVENT_ENDS (DI_KEPT_EVENT_BATCH_FLAGS | DI_KEPT_EVENT_BATCH_KIND | DI_KEPT_EVENT_BATCH_FINISH_REASON)
#define DI_EVENT_DEFAULTS \
    (DI_EVENT_EXTRAS | DI_EVENT_DRAFTS | DI_EVENT_ENDS | DI_KEPT_EVENT_BATCH_CONF_OFFSET | \
     DI_KEPT_EVENT_BATCH_PROMPT_LP_OFFSET)

/* What needs no check of its own in a batch that di_append_run alone wrote, because it follows from what was checked before:
 *
 *   seq_uid, prompt_len           of the request, above 0 since di_submit; the step's record was checked with that uid
 *   output_index                  1 more than the tokens behind the prompt
 *   token_id                      di_output_read found every token of an OK row in the vocabulary
 *   logprob, confidences          copies of values that di_check_output found in the ranges that events have; the lower
 *                                 bound of di_append_logprob leaves them there
 *   kind, finish_reason           an event is a token with no reason as long as nobody notes another (DI_EVENT_ENDS)
 *   flags                         FROM_DRAFT or nothing: LAST is for rows that go to commit_row
 *   drafted, accepted             q - 1 of a row, and a number in 0 .. q - 1, which di_output_read asked for
 *
 * test_kept_checks.py damages the values of a sampler, and compares batches with all checks. */
#define DI_EVENT_PLAIN \
    (DI_KEPT_EVENT_BATCH_SEQ_UID | DI_KEPT_EVENT_BATCH_OUTPUT_INDEX | DI_KEPT_EVENT_BATCH_PROMPT_LEN | \
     DI_KEPT_EVENT_BATCH_TOKEN_ID | DI_KEPT_EVENT_BATCH_LOGPROB | DI_KEPT_EVENT_BATCH_CONFIDENCES | \
     DI_KEPT_EVENT_BATCH_KIND | DI_KEPT_EVENT_BATCH_FINISH_REASON | DI_KEPT_EVENT_BATCH_FLAGS | \
     DI_KEPT_EVENT_BATCH_DRAFTED | DI_KEPT_EVENT_BATCH_ACCEPTED)

typedef struct di_event_arena {
    uint64_t generation;      /* batches written here */
    uint64_t step_id;         /* of the batch */
    uint64_t serial;          /* order of the last batch over all arenas; 0 = never used */
    int32_t pinned;
    int32_t count, n_conf, n_top, n_prompt;
    uint64_t written;         /* columns of DI_EVENT_DEFAULTS that the batch may have written */
    uint64_t known;           /* columns of DI_EVENT_DEFAULTS whose first n_known values passed their checks and stay */
    int32_t n_known;
    uint64_t plain;           /* columns of the batch that follow from what was checked: DI_EVENT_PLAIN or none */
    uint64_t *seq_uid;
    float *logprob, *draft_logprob, *sum_smaller, *confidences, *top_logprobs;
    int32_t *token_id, *output_index, *prompt_len, *conf_offset, *top_offset, *prompt_lp_offset, *top_ids;
    int16_t *drafted, *accepted, *top_count;
    uint16_t *flags;
    uint8_t *kind, *finish_reason;
    void *memory;
    uint64_t bytes;           /* from seq_uid to the end of confidences */
    int32_t cap_top;          /* alternatives; grown when a sampler returns more */
    int32_t cap_prompt;       /* prompt log-probabilities; grown when a step has more */
    float *prompt_logprobs;
} di_event_arena;

typedef struct di_events {
    di_event_arena **arenas;
    int32_t n_arenas, cap_arenas;
    int32_t ring;             /* arenas made at create */
    int32_t capacity;         /* events of one batch */
    int32_t num_draft;
    uint64_t serial, grown;
    int32_t last;             /* arena of the last batch, -1 = it was empty */
    di_seq *head, *tail;      /* terminal events that wait */
    int64_t waiting;
} di_events;

int di_events_init(di_events *e, int32_t ring, int32_t capacity, int32_t num_draft);
void di_events_free(di_events *e);
/* The arena for the next batch with room for n_top alternatives and n_prompt prompt log-probabilities; *out is untouched
 * until di_events_begin.
 * DI_E_CAPACITY when the ring has to grow and memory is short. */
int di_events_reserve(di_events *e, int32_t n_top, int32_t n_prompt, di_event_arena **out);
/* Start a batch in a reserved arena: all columns but seq_uid, token_id, logprob, output_index and prompt_len say what a
 * token without anything special needs. Who writes something else there says so with di_events_note. */
void di_events_begin(di_events *e, di_event_arena *a);
static inline void di_events_note(di_event_arena *a, uint64_t columns) { a->written |= columns; }
/* Columns that need no check again: they hold the defaults that an earlier batch of the arena was checked with, or
 * follow from what was checked. */
uint64_t di_events_kept(const di_event_arena *a);
/* The batch was checked, but for those columns. */
void di_events_checked(di_event_arena *a, uint64_t kept);
/* Queue the terminal event of a request. */
void di_events_wait(di_events *e, di_seq *s);
/* Point the contract record at an arena; a NULL arena makes an empty batch. */
void di_events_publish(di_events *e, di_event_arena *a, uint64_t step, di_event_batch *out);

/* Where the last batch lies. */
void di_events_info(const di_events *e, di_event_info *out);

struct di_core;
/* Write waiting terminal events behind the batch's rows, as many as fit. */
void di_events_flush(struct di_core *c, di_event_arena *a);

#endif
