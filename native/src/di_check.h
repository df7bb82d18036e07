/* Validation at the producer's exit and the walk over every structure. */
#ifndef DI_CHECK_H
#define DI_CHECK_H

#include "di_output.h"

/* Memory for the uniqueness checks of level FULL. */
int di_check_init(di_core *c);
/* Records that the core made: a violation is an internal error. At BOUNDARY, values that passed and were not written
 * since are not looked at again. a is NULL for a batch without events. */
int di_check_schedule(di_core *c, const di_step *step, di_outputs *o, const di_scheduler_outputs *record);
int di_check_inputs(di_core *c, const di_step *step, const di_input_metadata *record);
int di_check_sampler(di_core *c, const di_step *step, const di_sampler_inputs *record);
int di_check_events(di_core *c, uint64_t step, di_event_arena *a, const di_event_batch *record);
/* A record that came from a sampler: DI_E_CONTRACT, nothing changed. t: what di_output_read found in it, which is not
 * looked for again at BOUNDARY. */
int di_check_output(di_core *c, const di_step *step, const di_sampler_output *record, const di_tokens *t);

#endif
