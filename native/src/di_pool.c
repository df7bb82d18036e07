#include "di_pool.h"

#include "di_error.h"

static void append(di_unit_pool *p, di_unit_list *l, uint32_t unit)
{
    p->units[unit].next = 0;
    p->units[unit].prev = l->tail;
    if (l->tail) p->units[l->tail].next = unit; else l->head = unit;
    l->tail = unit;
    l->count++;
}

static void unlink_unit(di_unit_pool *p, di_unit_list *l, uint32_t unit)
{
    di_unit *u = &p->units[unit];
    if (u->prev) p->units[u->prev].next = u->next; else l->head = u->next;
    if (u->next) p->units[u->next].prev = u->prev; else l->tail = u->prev;
    u->next = u->prev = 0;
    l->count--;
}

/* No step in flight uses the unit any more. */
static void retire(di_unit_pool *p, uint32_t unit)
{
    di_unit *u = &p->units[unit];
    u->state = u->registered ? DI_UNIT_CACHED : DI_UNIT_FREE;
    append(p, u->registered ? &p->cached : &p->free, unit);
}

int di_pool_init(di_unit_pool *p, di_arena *a, const char *name, int32_t size, int stream_ordered)
{
    p->name = name;
    p->stream_ordered = stream_ordered;
    if (size == 0) return 0;
    p->units = di_arena_take(a, (size_t)size, sizeof *p->units);
    if (!p->units) return DI_E_CAPACITY;
    p->size = (uint32_t)size;
    for (uint32_t i = 1; i < p->size; i++) retire(p, i);
    return 0;
}

int di_pool_take(di_unit_pool *p, int32_t n, int32_t *out)
{
    if (n < 0 || n > di_pool_available(p))
        return di_fail(DI_E_CAPACITY, "", p->name, "%d units wanted, %d of %d can be taken", n, di_pool_available(p),
                       di_pool_total(p));
    for (int32_t i = 0; i < n; i++) {
        uint32_t unit = p->free.head;
        if (unit) {
            unlink_unit(p, &p->free, unit);
        } else {
            unit = p->cached.head;
            unlink_unit(p, &p->cached, unit);
            p->units[unit].registered = 0;
            p->evictions++;
            if (p->evict) p->evict(p->evict_owner, (int32_t)unit);
        }
        p->units[unit].ref = 1;
        p->units[unit].state = DI_UNIT_HELD;
        out[i] = (int32_t)unit;
    }
    p->held_count += (uint32_t)n;
    return 0;
}

int di_pool_share(di_unit_pool *p, int32_t unit)
{
    di_unit *u = unit > 0 && (uint32_t)unit < p->size ? &p->units[unit] : &p->units[0];
    if (u->state == DI_UNIT_HELD) {
        u->ref++;
        return 0;
    }
    if (!u->registered)
        return di_fail(DI_E_INTERNAL, "", p->name, "unit %d is shared, but nobody holds or offers it", unit);
    if (u->state == DI_UNIT_CACHED) {
        unlink_unit(p, &p->cached, (uint32_t)unit);
    } else {
        di_limbo_bucket *b = di_limbo_bucket_of(&p->limbo, u->last_use);
        if (!b || b->units.count == 0) return di_fail(DI_E_INTERNAL, "", p->name, "unit %d is in no limbo", unit);
        unlink_unit(p, &b->units, (uint32_t)unit);
        p->limbo.count--;
    }
    u->ref = 1;
    u->state = DI_UNIT_HELD;
    p->held_count++;
    return 0;
}

int di_pool_register(di_unit_pool *p, int32_t unit)
{
    if (unit < 1 || (uint32_t)unit >= p->size || p->units[unit].state != DI_UNIT_HELD || p->units[unit].registered)
        return di_fail(DI_E_INTERNAL, "", p->name, "unit %d cannot be offered", unit);
    p->units[unit].registered = 1;
    return 0;
}

void di_pool_unregister(di_unit_pool *p, int32_t unit)
{
    di_unit *u = &p->units[unit];
    u->registered = 0;
    if (u->state != DI_UNIT_CACHED) return;
    unlink_unit(p, &p->cached, (uint32_t)unit);
    retire(p, (uint32_t)unit);
}

int di_pool_release(di_unit_pool *p, int32_t unit, uint64_t epoch)
{
    if (unit < 1 || (uint32_t)unit >= p->size || p->units[unit].ref == 0)
        return di_fail(DI_E_INTERNAL, "", p->name, "unit %d is released but not held", unit);
    di_unit *u = &p->units[unit];
    if (epoch > u->last_use) u->last_use = epoch;
    if (--u->ref > 0) return 0;
    p->held_count--;
    if (p->stream_ordered || u->last_use <= p->done) {
        retire(p, (uint32_t)unit);
        return 0;
    }
    di_limbo_bucket *b = di_limbo_bucket_of(&p->limbo, u->last_use);
    if (!b)
        return di_fail(DI_E_INTERNAL, "", p->name, "more open epochs than limbo buckets at step %llu",
                       (unsigned long long)u->last_use);
    u->state = DI_UNIT_LIMBO;
    append(p, &b->units, (uint32_t)unit);
    p->limbo.count++;
    return 0;
}

void di_pool_done(di_unit_pool *p, uint64_t done)
{
    p->done = done;
    for (di_limbo_bucket *b = di_limbo_oldest(&p->limbo, done); b; b = di_limbo_oldest(&p->limbo, done)) {
        for (uint32_t unit = b->units.head, next = 0; unit; unit = next) {
            next = p->units[unit].next;
            retire(p, unit);
        }
        p->limbo.count -= b->units.count;
        *b = (di_limbo_bucket){0};
    }
}

static int walk(const di_unit_pool *p, const di_unit_list *l, uint32_t state, uint64_t epoch)
{
    uint32_t n = 0, last = 0;
    for (uint32_t unit = l->head; unit; last = unit, unit = p->units[unit].next) {
        const di_unit *u = &p->units[unit];
        if (unit >= p->size || u->state != state || u->ref != 0 || u->prev != last || ++n > l->count ||
            (epoch && u->last_use != epoch) || (state != DI_UNIT_LIMBO && u->registered != (state == DI_UNIT_CACHED)))
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u is on a list it does not belong to", unit);
        if (state != DI_UNIT_LIMBO && !p->stream_ordered && u->last_use > p->done)
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u is free before step %llu is done", unit,
                           (unsigned long long)u->last_use);
    }
    if (n != l->count || last != l->tail)
        return di_fail(DI_E_INTERNAL, "", p->name, "list of %u units counts %u", n, l->count);
    return 0;
}

int di_pool_check(const di_unit_pool *p)
{
    if (!p->size) return 0;
    if (p->units[0].state != DI_UNIT_NULL || p->units[0].ref != 0 || p->units[0].registered)
        return di_fail(DI_E_INTERNAL, "", p->name, "the null unit was handed out");
    int code = walk(p, &p->free, DI_UNIT_FREE, 0);
    if (!code) code = walk(p, &p->cached, DI_UNIT_CACHED, 0);
    uint32_t limbo = 0;
    for (int i = 0; !code && i < DI_LIMBO_BUCKETS; i++) {
        const di_limbo_bucket *b = &p->limbo.bucket[i];
        if (b->units.count && b->epoch <= p->done)
            return di_fail(DI_E_INTERNAL, "", p->name, "limbo keeps a step that is done");
        code = walk(p, &b->units, DI_UNIT_LIMBO, b->units.count ? b->epoch : 0);
        limbo += b->units.count;
    }
    if (code) return code;
    uint32_t held = 0;
    for (uint32_t i = 1; i < p->size; i++) {
        if ((p->units[i].state == DI_UNIT_HELD) != (p->units[i].ref > 0))
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u has %u references in state %u", i, p->units[i].ref,
                           p->units[i].state);
        held += p->units[i].ref > 0;
    }
    if (limbo != p->limbo.count || held != p->held_count ||
        held + limbo + p->free.count + p->cached.count != p->size - 1)
        return di_fail(DI_E_INTERNAL, "", p->name, "%u held, %u limbo, %u cached, %u free are not %u", held, limbo,
                       p->cached.count, p->free.count, p->size - 1);
    return 0;
}

void di_pool_begin_owners(di_unit_pool *p)
{
    for (uint32_t i = 0; i < p->size; i++) p->units[i].seen = 0;
}

int di_pool_see_owner(di_unit_pool *p, int32_t unit)
{
    if (unit < 1 || (uint32_t)unit >= p->size)
        return di_fail(DI_E_INTERNAL, "", p->name, "a request has unit %d, outside the pool", unit);
    p->units[unit].seen++;
    return 0;
}

int di_pool_check_owners(const di_unit_pool *p)
{
    for (uint32_t i = 1; i < p->size; i++)
        if (p->units[i].seen != p->units[i].ref)
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u has %u references, owners have it %u times", i,
                           p->units[i].ref, p->units[i].seen);
    return 0;
}
