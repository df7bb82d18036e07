#include "di_handle.h"

#include <stdlib.h>
#include <string.h>

#include "di_error.h"

enum { FIRST_CAPACITY = 64 };

static int grow(di_handles *h)
{
    if (h->used < h->capacity) return 0;
    uint32_t capacity = h->capacity ? 2 * h->capacity : FIRST_CAPACITY;
    if (capacity > DI_MAX_HANDLES)
        return di_fail(DI_E_CAPACITY, "", "handle", "%u handles are out, the most that a core keeps", h->live);
    di_handle_slot *slots = realloc(h->slots, capacity * sizeof *slots);
    if (!slots) return di_fail(DI_E_CAPACITY, "", "handle", "no memory for %u handles", capacity);
    memset(slots + h->capacity, 0, (capacity - h->capacity) * sizeof *slots);
    h->slots = slots;
    h->capacity = capacity;
    if (h->used == 0) h->used = 1;
    return 0;
}

int di_handle_take(di_handles *h, uint32_t kind, void *value, uint64_t *handle)
{
    uint32_t index = h->free_head;
    if (index) {
        h->free_head = h->slots[index].next_free;
    } else {
        int code = grow(h);
        if (code) return code;
        index = h->used++;
        h->slots[index].generation = 1;
    }
    di_handle_slot *slot = &h->slots[index];
    slot->kind = kind;
    slot->value = value;
    slot->next_free = 0;
    h->live++;
    *handle = (uint64_t)slot->generation << 32 | index;
    return 0;
}

static int find(const di_handles *h, uint32_t kind, uint64_t handle, uint32_t *index)
{
    uint32_t at = (uint32_t)handle, generation = (uint32_t)(handle >> 32);
    if (at == 0 || at >= h->used || h->slots[at].kind == DI_HANDLE_NONE || h->slots[at].generation != generation)
        return di_fail(DI_E_STALE_HANDLE, "", "handle", "%u of generation %u was given back or never made", at,
                       generation);
    if (h->slots[at].kind != kind)
        return di_fail(DI_E_ARG, "", "handle", "%u is of kind %u, not %u", at, h->slots[at].kind, kind);
    *index = at;
    return 0;
}

int di_handle_find(const di_handles *h, uint32_t kind, uint64_t handle, void **value)
{
    uint32_t at = 0;
    int code = find(h, kind, handle, &at);
    if (!code) *value = h->slots[at].value;
    return code;
}

int di_handle_give(di_handles *h, uint32_t kind, uint64_t handle, void **value)
{
    uint32_t at = 0;
    int code = find(h, kind, handle, &at);
    if (code) return code;
    di_handle_slot *slot = &h->slots[at];
    if (value) *value = slot->value;
    slot->kind = DI_HANDLE_NONE;
    slot->value = NULL;
    h->live--;
    /* A slot whose generations are used up is never handed out again: no handle may come back to life. */
    if (++slot->generation == 0) return 0;
    slot->next_free = h->free_head;
    h->free_head = at;
    return 0;
}

void *di_handle_next(const di_handles *h, uint32_t kind, uint32_t *at)
{
    for (uint32_t i = *at + 1; i < h->used; i++) {
        if (h->slots[i].kind != kind) continue;
        *at = i;
        return h->slots[i].value;
    }
    return NULL;
}

int di_handle_check(const di_handles *h)
{
    uint32_t live = 0, free_slots = 0, exhausted = 0;
    for (uint32_t i = 1; i < h->used; i++) {
        live += h->slots[i].kind != DI_HANDLE_NONE;
        exhausted += h->slots[i].generation == 0;
    }
    for (uint32_t i = h->free_head; i; i = h->slots[i].next_free)
        if (i >= h->used || h->slots[i].kind != DI_HANDLE_NONE || ++free_slots >= h->used)
            return di_fail(DI_E_INTERNAL, "", "handle", "slot %u is on the free list and should not be", i);
    if (live != h->live || (h->used && live + free_slots + exhausted != h->used - 1))
        return di_fail(DI_E_INTERNAL, "", "handle", "%u live and %u free handles are not %u", live, free_slots,
                       h->used);
    return 0;
}

void di_handle_free(di_handles *h)
{
    free(h->slots);
    *h = (di_handles){0};
}
