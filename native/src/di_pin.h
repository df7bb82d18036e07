/* External pins: a client holds units of live requests beyond their end, for example to export a cache (spec/engine.md
 * 3.6, 4.2). A pin is one reference to each of its units; nobody writes a block for it, but the request that owns the
 * unit may. Unpinning releases at the newest launched step, because a reader may have been queued behind it. */
#ifndef DI_PIN_H
#define DI_PIN_H

#include <stdint.h>

struct di_core;

typedef struct di_pin_record {
    int32_t pool;             /* DI_POOL_, INDEX as MAIN */
    int32_t n;
    int32_t units[];
} di_pin_record;

/* See every pinned unit once, for the census of owners. */
int di_pin_see_owners(struct di_core *c);
/* Give the memory of all pins back; the end of the core. */
void di_pin_free(struct di_core *c);

#endif
