/* Generic handles: u64 = generation << 32 | index (spec/engine.md 4.6).
 *
 * What a client holds of something inside the core (an external pin, a reservation). Giving a handle back makes its
 * generation stale, so a second use is an error and never hits the slot's next owner. Index 0 is unused: 0 is no
 * handle.
 * The table grows by doubling when a handle is made, which no step does.
 */
#ifndef DI_HANDLE_H
#define DI_HANDLE_H

#include <stdint.h>

enum { DI_HANDLE_NONE = 0, DI_HANDLE_PIN = 1, DI_HANDLE_RESERVATION = 2 };
enum { DI_MAX_HANDLES = 1 << 24 };

typedef struct di_handle_slot {
    uint32_t generation;      /* of the handle that is out, or of the next one */
    uint32_t next_free;
    uint32_t kind;            /* DI_HANDLE_NONE while free */
    uint32_t pad;
    void *value;              /* the owner's; not freed here */
} di_handle_slot;

typedef struct di_handles {
    di_handle_slot *slots;
    uint32_t capacity;        /* slots, the unused 0 included */
    uint32_t used;            /* slots that were ever handed out, 0 included once there are any */
    uint32_t free_head;       /* given back, 0 = none */
    uint32_t live;
} di_handles;

/* Make a handle of a kind. DI_E_CAPACITY when memory or the number of handles is used up; nothing changed then. */
int di_handle_take(di_handles *h, uint32_t kind, void *value, uint64_t *handle);
/* What the handle names. DI_E_STALE_HANDLE if it was given back or never made, DI_E_ARG if it is of another kind. */
int di_handle_find(const di_handles *h, uint32_t kind, uint64_t handle, void **value);
/* Give it back; same errors. value may be NULL. */
int di_handle_give(di_handles *h, uint32_t kind, uint64_t handle, void **value);
/* The next live handle of a kind with an index above *at, 0 = start; NULL at the end. */
void *di_handle_next(const di_handles *h, uint32_t kind, uint32_t *at);
/* 0, or DI_E_INTERNAL if the free list and the counts contradict each other. */
int di_handle_check(const di_handles *h);
/* Free the table, not the values. */
void di_handle_free(di_handles *h);

#endif
