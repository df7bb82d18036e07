/* Whether a record shows the same arrays as the one before it in its ring slot: a reader that keeps an array for each
 * view looks at one number instead of at all the views. */
#ifndef DI_LAYOUT_H
#define DI_LAYOUT_H

#include <stddef.h>

#include "di_arena.h"
#include "di_core.h"

/* A record of one ring slot as it was handed out last. */
typedef struct di_seen {
    char *bytes;
    uint32_t version;         /* 0 = never handed out */
} di_seen;

int di_seen_init(di_seen *seen, di_arena *arena, size_t bytes);
/* SchedulerOutputs of ring slot `slot`; scalars between its views do not count. */
void di_layout_steps(di_layout *layout, di_seen *seen, int32_t slot, const di_scheduler_outputs *record);
/* A record whose scalars are as constant as its views: all of it counts. */
void di_layout_whole(di_layout *layout, di_seen *seen, int32_t slot, const void *record, size_t bytes);

#endif
