/* Units of one pool: MAIN blocks (INDEX shares them), SWA slots, STATE slots, draft slots, row slots.
 *
 * Every unit is in exactly one state (spec/engine.md 3.2):
 *
 *   NULL    id 0, never handed out
 *   FREE    ref 0, on the free list, a FIFO: release at the tail, take from the head
 *   CACHED  ref 0, registered by the prefix cache, on the list of least recent use: release at the tail, evict the head
 *   LIMBO   ref 0, in a limbo bucket, its epoch not done; may be registered
 *   HELD    ref > 0; may be registered
 *
 * CACHED and LIMBO units that are registered can be held again (di_pool_share). FREE and CACHED ones can be taken, FREE
 * first; taking a CACHED one evicts it, and the prefix cache is told so.
 */
#ifndef DI_POOL_H
#define DI_POOL_H

#include <stdint.h>

#include "di_arena.h"
#include "di_limbo.h"

enum { DI_UNIT_NULL = 0, DI_UNIT_FREE = 1, DI_UNIT_LIMBO = 2, DI_UNIT_HELD = 3, DI_UNIT_CACHED = 4 };

typedef struct di_unit {
    uint32_t ref;
    uint32_t next, prev;      /* in a list or a bucket, 0 = end */
    uint16_t state;
    uint16_t registered;      /* the prefix cache offers it */
    uint32_t seen;            /* owners that a check has found; scratch */
    uint64_t last_use;        /* newest step that uses it */
} di_unit;

/* Told of a unit that is evicted, before it is handed out. */
typedef void di_evict_hook(void *owner, int32_t unit);

typedef struct di_unit_pool {
    const char *name;
    di_unit *units;           /* [size] */
    uint32_t size;            /* units including the null unit 0; 0 = no such pool */
    di_unit_list free, cached;
    uint32_t held_count;
    uint64_t evictions;
    di_evict_hook *evict;
    void *evict_owner;
    int stream_ordered;       /* reuse at once: the device queue gives the order */
    uint64_t done;            /* every step up to this one is complete on the device */
    di_limbo limbo;
} di_unit_pool;

/* All units but 0 become FREE in ascending order. DI_E_CAPACITY when memory is short. */
int di_pool_init(di_unit_pool *p, di_arena *a, const char *name, int32_t size, int stream_ordered);
/* Units that can be taken now: FREE and CACHED. */
static inline int32_t di_pool_available(const di_unit_pool *p) { return (int32_t)(p->free.count + p->cached.count); }
static inline int32_t di_pool_limbo(const di_unit_pool *p) { return (int32_t)p->limbo.count; }
static inline int32_t di_pool_total(const di_unit_pool *p) { return p->size ? (int32_t)p->size - 1 : 0; }
/* Take n units into out[0..n). On DI_E_CAPACITY nothing changes. n may be 0. */
int di_pool_take(di_unit_pool *p, int32_t n, int32_t *out);
/* Drop one reference; epoch is the newest step that uses the unit. */
int di_pool_release(di_unit_pool *p, int32_t unit, uint64_t epoch);
/* Hold a unit once more: one that is HELD, or a registered one that nobody holds. */
int di_pool_share(di_unit_pool *p, int32_t unit);
/* Mark a HELD unit as offered by the prefix cache. */
int di_pool_register(di_unit_pool *p, int32_t unit);
/* The prefix cache offers it no more; a CACHED one becomes FREE. */
void di_pool_unregister(di_unit_pool *p, int32_t unit);
/* Steps up to done are complete: units of these epochs become FREE or CACHED, oldest epoch first. */
void di_pool_done(di_unit_pool *p, uint64_t done);
/* Count the owners of every unit: start, once for each handle, and compare with the references. */
void di_pool_begin_owners(di_unit_pool *p);
int di_pool_see_owner(di_unit_pool *p, int32_t unit);
int di_pool_check_owners(const di_unit_pool *p);
/* O(units): states partition the pool, lists and counts agree. */
int di_pool_check(const di_unit_pool *p);

#endif
