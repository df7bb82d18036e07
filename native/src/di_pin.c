#include "di_pin.h"

#include <string.h>

#include "di_state.h"

static di_unit_pool *pool_of(di_core *c, int pool)
{
    switch (pool) {
    case DI_POOL_MAIN: case DI_POOL_INDEX: return &c->main;
    case DI_POOL_SWA: return &c->swa;
    case DI_POOL_STATE: return &c->state;
    default: return NULL;
    }
}

static int check_units(const di_unit_pool *p, const int32_t *units, int n)
{
    for (int i = 0; i < n; i++) {
        if (units[i] < 1 || (uint32_t)units[i] >= p->size)
            return di_fail(DI_E_ARG, "", "units", "%d is outside the pool %s of %d units", units[i], p->name,
                           di_pool_total(p));
        if (p->units[units[i]].state != DI_UNIT_HELD)
            return di_fail(DI_E_ARG, "", "units", "unit %d of %s is not held: pin what a live request has", units[i],
                           p->name);
    }
    return 0;
}

static int pin(di_core *c, int pool, const int32_t *units, int n, uint64_t *handle)
{
    di_unit_pool *p = pool_of(c, pool);
    if (!p) return di_fail(DI_E_ARG, "", "pool", "%d has no units to pin", pool);
    int code = check_units(p, units, n);
    if (code) return code;
    pthread_mutex_lock(&c->clients.lock);
    di_pin_record *record = di_bins_take(&c->clients.bins, sizeof *record + (size_t)n * sizeof *units);
    pthread_mutex_unlock(&c->clients.lock);
    if (!record) return di_fail(DI_E_CAPACITY, "", "units", "no memory for %d units", n);
    record->pool = pool == DI_POOL_INDEX ? DI_POOL_MAIN : pool;
    record->n = n;
    if (n) memcpy(record->units, units, (size_t)n * sizeof *units);
    code = di_handle_take(&c->handles, DI_HANDLE_PIN, record, handle);
    for (int i = 0; i < n && !code; i++) code = di_pool_share(p, units[i]);
    if (!code) {
        c->pinned_units += n;
        return 0;
    }
    pthread_mutex_lock(&c->clients.lock);
    di_bins_give(&c->clients.bins, record);
    pthread_mutex_unlock(&c->clients.lock);
    return code;
}

int di_pin(di_core *c, int pool, const int32_t *units, int n, uint64_t *handle)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = !handle || n < 0 || (n > 0 && !units) ? di_fail(DI_E_ARG, "", "units", "a NULL argument")
                                                  : pin(c, pool, units, n, handle);
    return di_core_leave(c, code);
}

int di_unpin(di_core *c, uint64_t handle)
{
    int code = di_core_enter(c);
    if (code) return code;
    void *value = NULL;
    code = di_handle_give(&c->handles, DI_HANDLE_PIN, handle, &value);
    if (code) return di_core_leave(c, code);
    di_pin_record *record = value;
    di_unit_pool *p = pool_of(c, record->pool);
    for (int32_t i = 0; i < record->n && !code; i++) code = di_pool_release(p, record->units[i], c->launched);
    c->pinned_units -= record->n;
    pthread_mutex_lock(&c->clients.lock);
    di_bins_give(&c->clients.bins, record);
    pthread_mutex_unlock(&c->clients.lock);
    return di_core_leave(c, code);
}

int di_pin_see_owners(di_core *c)
{
    uint32_t at = 0;
    int code = 0;
    for (di_pin_record *r = di_handle_next(&c->handles, DI_HANDLE_PIN, &at); r && !code;
         r = di_handle_next(&c->handles, DI_HANDLE_PIN, &at))
        for (int32_t i = 0; i < r->n && !code; i++) code = di_pool_see_owner(pool_of(c, r->pool), r->units[i]);
    return code;
}

void di_pin_free(di_core *c)
{
    uint32_t at = 0;
    for (void *r; (r = di_handle_next(&c->handles, DI_HANDLE_PIN, &at)) != NULL;)
        di_bins_give(&c->clients.bins, r);
    di_handle_free(&c->handles);
}
