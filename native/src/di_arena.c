#include "di_arena.h"

#include <stdlib.h>

enum { ALIGN = 64, SLAB_ITEMS = 64 };

struct di_arena_block {
    di_arena_block *next;
};

/* calloc leaves pages of large blocks untouched, so a generous ring costs address space and not memory. */
static void *take_large(di_arena *a, size_t bytes)
{
    di_arena_block *block = calloc(1, bytes + 2 * ALIGN);
    if (!block) return NULL;
    block->next = a->blocks;
    a->blocks = block;
    uintptr_t at = (uintptr_t)(block + 1);
    return (void *)((at + ALIGN - 1) / ALIGN * ALIGN);
}

void *di_arena_take(di_arena *a, size_t n, size_t size)
{
    if (size != 0 && n > (SIZE_MAX - 2 * ALIGN) / size) return NULL;
    size_t bytes = n * size;
    /* A line between two arrays: those of 1,024 entries would all lie on the same few sets of a cache otherwise. */
    void *taken = bytes > DI_ARENA_LARGE ? take_large(a, bytes) : di_pages_take(&a->pages, bytes + ALIGN);
    if (taken) a->bytes += bytes;
    return taken;
}

void di_arena_free(di_arena *a)
{
    while (a->blocks) {
        di_arena_block *next = a->blocks->next;
        free(a->blocks);
        a->blocks = next;
    }
    di_pages_free(&a->pages);
    a->bytes = 0;
}

struct di_slab_item {
    di_slab_item *next;
};

void *di_slab_take(di_bins *b, size_t size)
{
    if (!b->items) {
        size_t each = (size + ALIGN - 1) / ALIGN * ALIGN;
        char *items = di_pages_take(&b->pages, SLAB_ITEMS * each);
        if (!items) return NULL;
        /* Linked backwards, so that items are handed out in the order of their addresses. */
        for (size_t i = SLAB_ITEMS; i-- > 0;) di_slab_give(b, items + i * each);
    }
    di_slab_item *item = b->items;
    b->items = item->next;
    return item;
}

void di_slab_give(di_bins *b, void *item)
{
    if (!item) return;
    di_slab_item *free_item = item;
    free_item->next = b->items;
    b->items = free_item;
}

/* One cache line before the caller's bytes. */
struct di_bin_head {
    di_bin_head *next;
    void *base;               /* of a buffer that goes back to the system by itself */
    size_t size;
    uint32_t bin;
};
_Static_assert(sizeof(di_bin_head) <= ALIGN, "the head fits the line before the buffer");

/* Classes grow by a quarter of a power of two: 256, 320, 384, 448, 512, 640, ... */
static uint32_t bin_of(size_t size, size_t *rounded)
{
    uint32_t bin = 0;
    size_t base = 256;
    while (bin + 4 < DI_BIN_COUNT && size > 2 * base) {
        base *= 2;
        bin += 4;
    }
    size_t step = base / 4;
    size_t extra = size <= base ? 0 : (size - base + step - 1) / step;
    *rounded = base + extra * step;
    return bin + (uint32_t)(extra > 3 ? 4 : extra);
}

void *di_bins_take(di_bins *b, size_t size)
{
    if (size > SIZE_MAX / 4) return NULL;
    size_t rounded = 0;
    uint32_t bin = bin_of(size, &rounded);
    if (rounded <= DI_BIN_KEEP && b->free[bin]) {
        di_bin_head *head = b->free[bin];
        b->free[bin] = head->next;
        b->kept_bytes -= head->size;
        return (char *)head + ALIGN;
    }
    int is_kept = rounded <= DI_BIN_KEEP;
    void *base = is_kept ? di_pages_take(&b->pages, rounded + ALIGN) : malloc(rounded + 2 * ALIGN);
    if (!base) return NULL;
    uintptr_t at = ((uintptr_t)base + ALIGN - 1) / ALIGN * ALIGN;
    di_bin_head *head = (di_bin_head *)at;
    head->next = NULL;
    head->base = base;
    head->size = rounded;
    head->bin = bin;
    return (char *)head + ALIGN;
}

void di_bins_give(di_bins *b, void *buffer)
{
    if (!buffer) return;
    di_bin_head *head = (di_bin_head *)(void *)((char *)buffer - ALIGN);
    if (head->size > DI_BIN_KEEP) {
        free(head->base);
        return;
    }
    head->next = b->free[head->bin];
    b->free[head->bin] = head;
    b->kept_bytes += head->size;
}

void di_bins_free(di_bins *b)
{
    di_pages_free(&b->pages);
    *b = (di_bins){.items = NULL};
}
