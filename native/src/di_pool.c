#include "di_pool.h"

#include "di_error.h"

int di_pool_init(di_unit_pool *p, di_arena *a, const char *name, int32_t size, int stream_ordered)
{
    p->name = name;
    p->stream_ordered = stream_ordered;
    if (size == 0) return 0;
    p->units = di_arena_take(a, (size_t)size, sizeof *p->units);
    if (!p->units) return DI_E_CAPACITY;
    p->size = (uint32_t)size;
    for (uint32_t i = 1; i < p->size; i++) {
        p->units[i].state = DI_UNIT_FREE;
        p->units[i].next = i + 1 < p->size ? i + 1 : 0;
    }
    p->free_count = p->size - 1;
    p->free_head = p->free_count ? 1 : 0;
    p->free_tail = p->free_count ? p->size - 1 : 0;
    return 0;
}

int di_pool_take(di_unit_pool *p, int32_t n, int32_t *out)
{
    if (n < 0 || (uint32_t)n > p->free_count)
        return di_fail(DI_E_CAPACITY, "", p->name, "%d units wanted, %u of %d are free", n, p->free_count,
                       di_pool_total(p));
    uint32_t unit = p->free_head;
    for (int32_t i = 0; i < n; i++) {
        di_unit *u = &p->units[unit];
        out[i] = (int32_t)unit;
        unit = u->next;
        u->ref = 1;
        u->state = DI_UNIT_HELD;
        u->next = 0;
    }
    p->free_head = unit;
    if (!unit) p->free_tail = 0;
    p->free_count -= (uint32_t)n;
    p->held_count += (uint32_t)n;
    return 0;
}

static void append(di_unit_pool *p, uint32_t *head, uint32_t *tail, uint32_t unit)
{
    p->units[unit].next = 0;
    if (*tail) p->units[*tail].next = unit; else *head = unit;
    *tail = unit;
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
        u->state = DI_UNIT_FREE;
        append(p, &p->free_head, &p->free_tail, (uint32_t)unit);
        p->free_count++;
        return 0;
    }
    di_limbo_bucket *b = di_limbo_bucket_of(&p->limbo, u->last_use);
    if (!b)
        return di_fail(DI_E_INTERNAL, "", p->name, "more open epochs than limbo buckets at step %llu",
                       (unsigned long long)u->last_use);
    u->state = DI_UNIT_LIMBO;
    append(p, &b->head, &b->tail, (uint32_t)unit);
    b->count++;
    p->limbo.count++;
    return 0;
}

void di_pool_done(di_unit_pool *p, uint64_t done)
{
    p->done = done;
    for (di_limbo_bucket *b = di_limbo_oldest(&p->limbo, done); b; b = di_limbo_oldest(&p->limbo, done)) {
        for (uint32_t unit = b->head; unit; unit = p->units[unit].next) p->units[unit].state = DI_UNIT_FREE;
        if (p->free_tail) p->units[p->free_tail].next = b->head; else p->free_head = b->head;
        p->free_tail = b->tail;
        p->free_count += b->count;
        p->limbo.count -= b->count;
        *b = (di_limbo_bucket){0};
    }
}

static int walk(const di_unit_pool *p, uint32_t head, uint32_t tail, uint32_t count, uint32_t state, uint64_t epoch)
{
    uint32_t n = 0, last = 0;
    for (uint32_t unit = head; unit; last = unit, unit = p->units[unit].next) {
        const di_unit *u = &p->units[unit];
        if (unit >= p->size || u->state != state || u->ref != 0 || ++n > count || (epoch && u->last_use != epoch))
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u is on a list it does not belong to", unit);
        if (state == DI_UNIT_FREE && !p->stream_ordered && u->last_use > p->done)
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u is free before step %llu is done", unit,
                           (unsigned long long)u->last_use);
    }
    if (n != count || last != tail) return di_fail(DI_E_INTERNAL, "", p->name, "list of %u units counts %u", n, count);
    return 0;
}

int di_pool_check(const di_unit_pool *p)
{
    if (!p->size) return 0;
    if (p->units[0].state != DI_UNIT_NULL || p->units[0].ref != 0)
        return di_fail(DI_E_INTERNAL, "", p->name, "the null unit was handed out");
    int code = walk(p, p->free_head, p->free_tail, p->free_count, DI_UNIT_FREE, 0);
    uint32_t limbo = 0;
    for (int i = 0; !code && i < DI_LIMBO_BUCKETS; i++) {
        const di_limbo_bucket *b = &p->limbo.bucket[i];
        if (b->count && b->epoch <= p->done)
            return di_fail(DI_E_INTERNAL, "", p->name, "limbo keeps a step that is done");
        code = walk(p, b->head, b->tail, b->count, DI_UNIT_LIMBO, b->count ? b->epoch : 0);
        limbo += b->count;
    }
    if (code) return code;
    uint32_t held = 0;
    for (uint32_t i = 1; i < p->size; i++) {
        if ((p->units[i].state == DI_UNIT_HELD) != (p->units[i].ref > 0))
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u has %u references in state %u", i, p->units[i].ref,
                           p->units[i].state);
        held += p->units[i].ref > 0;
    }
    if (limbo != p->limbo.count || held != p->held_count || held + limbo + p->free_count != p->size - 1)
        return di_fail(DI_E_INTERNAL, "", p->name, "%u held, %u limbo, %u free are not %u", held, limbo,
                       p->free_count, p->size - 1);
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
            return di_fail(DI_E_INTERNAL, "", p->name, "unit %u has %u references, requests have it %u times", i,
                           p->units[i].ref, p->units[i].seen);
    return 0;
}
