#include "di_layout.h"

#include <string.h>

#include "di_state.h"

int di_seen_init(di_seen *seen, di_arena *arena, size_t bytes)
{
    seen->bytes = di_arena_take(arena, bytes, 1);
    return seen->bytes ? 0 : DI_E_CAPACITY;
}

static int is_changed(di_seen *seen, const void *record, size_t from, size_t to)
{
    const char *now = (const char *)record + from;
    if (to <= from || memcmp(seen->bytes + from, now, to - from) == 0) return 0;
    memcpy(seen->bytes + from, now, to - from);
    return 1;
}

static void note(di_layout *layout, di_seen *seen, int32_t slot, int changed)
{
    if (changed || seen->version == 0) seen->version++;
    if (seen->version == 0) seen->version = 1;
    layout->slot = slot;
    layout->version = seen->version;
}

void di_layout_steps(di_layout *layout, di_seen *seen, int32_t slot, const di_scheduler_outputs *record)
{
    /* Fields that are appended to the record come after its last scalar of today. */
    enum {
        VIEWS = offsetof(di_scheduler_outputs, seq_uid),
        SCALARS = offsetof(di_scheduler_outputs, sum_qk),
        APPENDED = offsetof(di_scheduler_outputs, flops_total) + sizeof(double)
    };
    int changed = is_changed(seen, record, VIEWS, SCALARS);
    note(layout, seen, slot, changed | is_changed(seen, record, APPENDED, sizeof *record));
}

void di_layout_whole(di_layout *layout, di_seen *seen, int32_t slot, const void *record, size_t bytes)
{
    note(layout, seen, slot, is_changed(seen, record, 0, bytes));
}

int di_core_layouts(di_core *c, const di_layouts **out)
{
    int code = di_core_enter_any(c);
    if (code) return code;
    if (out) *out = &c->layouts;
    return di_core_leave(c, out ? 0 : di_fail(DI_E_ARG, "", "out", "NULL"));
}
