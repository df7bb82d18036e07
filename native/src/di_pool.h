/* Units of one pool: MAIN blocks (INDEX shares them), SWA slots, STATE slots, draft slots, row slots.
 *
 * Every unit is in exactly one state (spec/engine.md 3.2; CACHED comes with the prefix cache):
 *
 *   NULL   id 0, never handed out
 *   FREE   ref 0, on the free list, a FIFO: release at the tail, take from the head
 *   LIMBO  ref 0, in a limbo bucket, its epoch not done
 *   HELD   ref > 0
 */
#ifndef DI_POOL_H
#define DI_POOL_H

#include <stdint.h>

#include "di_arena.h"
#include "di_limbo.h"

enum { DI_UNIT_NULL = 0, DI_UNIT_FREE = 1, DI_UNIT_LIMBO = 2, DI_UNIT_HELD = 3 };

typedef struct di_unit {
    uint32_t ref;
    uint32_t next;            /* in the free list or a bucket, 0 = end */
    uint32_t state;
    uint32_t seen;            /* owners that a check has found; scratch */
    uint64_t last_use;        /* newest step that uses it */
} di_unit;

typedef struct di_unit_pool {
    const char *name;
    di_unit *units;           /* [size] */
    uint32_t size;            /* units including the null unit 0; 0 = no such pool */
    uint32_t free_head, free_tail, free_count;
    uint32_t held_count;
    int stream_ordered;       /* reuse at once: the device queue gives the order */
    uint64_t done;            /* every step up to this one is complete on the device */
    di_limbo limbo;
} di_unit_pool;

/* All units but 0 become FREE in ascending order. DI_E_CAPACITY when memory is short. */
int di_pool_init(di_unit_pool *p, di_arena *a, const char *name, int32_t size, int stream_ordered);
static inline int32_t di_pool_free(const di_unit_pool *p) { return (int32_t)p->free_count; }
static inline int32_t di_pool_limbo(const di_unit_pool *p) { return (int32_t)p->limbo.count; }
static inline int32_t di_pool_total(const di_unit_pool *p) { return p->size ? (int32_t)p->size - 1 : 0; }
/* Take n units into out[0..n). On DI_E_CAPACITY nothing changes. n may be 0. */
int di_pool_take(di_unit_pool *p, int32_t n, int32_t *out);
/* Drop one reference; epoch is the newest step that uses the unit. */
int di_pool_release(di_unit_pool *p, int32_t unit, uint64_t epoch);
/* Steps up to done are complete: units of these epochs become FREE, oldest epoch first. */
void di_pool_done(di_unit_pool *p, uint64_t done);
/* Count the owners of every unit: start, once for each handle, and compare with the references. */
void di_pool_begin_owners(di_unit_pool *p);
int di_pool_see_owner(di_unit_pool *p, int32_t unit);
int di_pool_check_owners(const di_unit_pool *p);
/* O(units): states partition the pool, lists and counts agree. */
int di_pool_check(const di_unit_pool *p);

#endif
