/* Tokens of rows whose request simply goes on: what a commit does for nearly every row of a decode step. */
#ifndef DI_APPEND_H
#define DI_APPEND_H

#include "di_output.h"

/* Lower bound of the log-probabilities that events show. */
enum { DI_LOGPROB_FLOOR = -9999 };

static inline float di_append_logprob(const float *values, int32_t at)
{
    float x = values ? values[at] : 0;
    return x > (float)DI_LOGPROB_FLOOR ? x : (float)DI_LOGPROB_FLOOR;
}

/* Whether rows of the step can be left to di_append_run at all. */
int di_append_is_possible(const di_core *c, const di_step *step, const di_tokens *t);
/* Commit rows from i on as long as nothing but appending happens to them; returns the first row that needs more, n for
 * none. commit_row of di_commit.c does the same for any row, and test_append.py compares both. */
int32_t di_append_run(di_core *c, di_step *step, int32_t i, const di_tokens *t, di_event_arena *a);

/* Bring the lines that rows ahead of i will touch. */
void di_append_look_ahead(const di_step *step, int32_t i);
/* The drafts that the sampler proposes for row i are the next ones of its request s. */
void di_append_keep_drafts(const di_core *c, const di_step *step, di_seq *s, int32_t i, const di_tokens *t);
/* Event e is the last of row i in its step: it says how the drafts did. */
void di_append_step_end(const di_core *c, di_event_arena *a, int32_t e, int32_t i, int32_t drafted, int32_t accepted,
                        const di_tokens *t);

#endif
