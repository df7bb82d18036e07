#include "di_layout.h"

#include <string.h>

#include "di_state.h"

/* Records hold pointers and 64-bit numbers: they consist of whole words, and offsets fit the list of changes. */
_Static_assert(sizeof(di_scheduler_outputs) % 8 == 0 && offsetof(di_scheduler_outputs, seq_uid) % 8 == 0 &&
               offsetof(di_scheduler_outputs, sum_qk) % 8 == 0 && offsetof(di_scheduler_outputs, flops_total) % 8 == 0,
               "SchedulerOutputs is compared word by word");
_Static_assert(sizeof(di_input_metadata) % 8 == 0 && sizeof(di_sampler_inputs) % 8 == 0 &&
               sizeof(di_input_metadata_v41) % 8 == 0 && sizeof(di_input_metadata_v41) < UINT16_MAX,
               "inputs are compared word by word");

int di_seen_init(di_seen *seen, di_arena *arena, size_t bytes)
{
    seen->bytes = di_arena_take(arena, bytes, 1);
    return seen->bytes ? 0 : DI_E_CAPACITY;
}

/* Keep what differs in [from, to), whole words, and note where. */
static void see(di_layout *layout, di_seen *seen, const void *record, size_t from, size_t to)
{
    enum { WORD = sizeof(uint64_t), MOST = sizeof layout->changed / sizeof *layout->changed };
    const char *now = (const char *)record;
    if (to <= from || memcmp(seen->bytes + from, now + from, to - from) == 0) return;
    for (size_t at = from; at < to; at += WORD) {
        if (memcmp(seen->bytes + at, now + at, WORD) == 0) continue;
        memcpy(seen->bytes + at, now + at, WORD);
        if (layout->n_changed == MOST) layout->n_changed = -1;
        if (layout->n_changed >= 0) layout->changed[layout->n_changed++] = (uint16_t)at;
        layout->version = 0;
    }
}

/* Before the words of a record are looked at, and after: `version` is 0 in between if some differ. */
static void begin(di_layout *layout, const di_seen *seen, int32_t slot)
{
    layout->slot = slot;
    layout->version = seen->version;
    layout->n_changed = seen->version == 0 ? -1 : 0;
}

static void end(di_layout *layout, di_seen *seen)
{
    if (layout->version == 0) seen->version++;
    else layout->n_changed = -1;    /* what brought this version about may not have been read: a call can make two records */
    if (seen->version == 0) seen->version = 1;
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
    begin(layout, seen, slot);
    see(layout, seen, record, VIEWS, SCALARS);
    see(layout, seen, record, APPENDED, sizeof *record);
    end(layout, seen);
}

void di_layout_whole(di_layout *layout, di_seen *seen, int32_t slot, const void *record, size_t bytes)
{
    begin(layout, seen, slot);
    see(layout, seen, record, 0, bytes);
    end(layout, seen);
}

int di_core_layouts(di_core *c, const di_layouts **out)
{
    int code = di_core_enter_any(c);
    if (code) return code;
    if (out) *out = &c->layouts;
    return di_core_leave(c, out ? 0 : di_fail(DI_E_ARG, "", "out", "NULL"));
}
