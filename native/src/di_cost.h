/* Predicted time of a step, and the chunk that fits a time budget (spec/engine.md 2.8).
 *
 *   ns = g * (base + seq * N + sum over rows of (row * q + kept * kept_rows + logit * logit_rows + attention pairs))
 *
 * Costs are integers with DI_COST_FRACTION bits of fraction, sums are 128 bits wide and end at DI_COST_MOST. */
#ifndef DI_COST_H
#define DI_COST_H

#include <stdint.h>

#include "di_core.h"

enum { DI_COST_FRACTION = 20, DI_COST_KINDS = 8 };

__extension__ typedef __int128 di_wide;

typedef struct di_cost {
    int32_t is_set;
    int32_t counted;          /* rows of the step being built that are in batch */
    di_cost_model model[2];   /* by step kind: DI_STEP_DECODE, DI_STEP_PREFILL */
    double factor[2];         /* g */
    int64_t fixed[2];         /* the same with DI_COST_FRACTION bits */
    di_wide batch;            /* cost of the prefill step being built, without g */
    int64_t budget_ns;        /* of that step, 0 = none */
    uint64_t overruns;
} di_cost;

struct di_step;
struct di_seq;

/* The prefill step that begins: its budget. */
void di_cost_begin(di_core *c);
/* q from position start on, or the largest smaller chunk that the budget allows; 0 = the request waits for the next
 * step. */
int32_t di_cost_limit(di_core *c, const struct di_step *step, const struct di_seq *s, int32_t start, int32_t q);
/* predicted_ns, budget_ns, the overrun flag and the FLOPs of a step's record. */
void di_cost_publish(di_core *c, const struct di_step *step, di_scheduler_outputs *out);

#endif
