/* From the rows of a step to the contract record SchedulerOutputs (spec/engine.md 6.1). */
#ifndef DI_PUBLISH_H
#define DI_PUBLISH_H

#include "di_state.h"

/* Allocate the arrays of one SchedulerOutputs and describe them. */
int di_publish_create(di_core *c, di_outputs *o, int32_t slot);
/* Start a step in the arrays of a ring slot. */
void di_publish_begin(di_core *c, di_step *step, di_outputs *o, int32_t kind);
/* Fill o->record from the step. */
void di_publish_step(const di_core *c, const di_step *step, di_outputs *o);

#endif
