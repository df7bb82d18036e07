#include "di_publish.h"

#include <string.h>

#include "di_policy.h"
#include "di_view.h"

static int take_arrays(di_core *c, di_outputs *o)
{
    size_t n = (size_t)c->cfg.max_num_seqs, blocks = di_core_step_blocks(c);
    int ok = 1;
#define TAKE(name, count) ok = ok && (o->name = di_arena_take(&c->arena, (count), sizeof *o->name)) != NULL
    TAKE(rows, n);
    TAKE(seq_uid, n);
    TAKE(generation, n);
    TAKE(row_slot, n);
    TAKE(seqlens_q, n);
    TAKE(seqlens_k, n);
    TAKE(cached, n);
    TAKE(full_len, n);
    TAKE(remap, n);
    TAKE(state_slot, n);
    TAKE(swa_slot, n);
    TAKE(draft_read_slot, n);
    TAKE(draft_write_slot, n);
    TAKE(swa_valid_start, n);
    if (c->cfg.csr_tables) {
        TAKE(bt_offsets, n + 1);
        TAKE(bt_ids, blocks);
    }
    TAKE(bt_delta, 3 * blocks);
    TAKE(zero_slots, 4 * n);
    TAKE(clone_slots, 6 * n);
    TAKE(clone_blocks, 2 * n);
    TAKE(hit_tokens, n);
    TAKE(replayed_tokens, n);
    TAKE(n_prompt_rows, n);
    TAKE(inflight, n);
    TAKE(is_last_chunk, n);
    TAKE(finished_reason, n);
    TAKE(ignored_reason, n);
    TAKE(finished_uid, n);
    TAKE(ignored_uid, n);
    TAKE(held_uid, n);
    TAKE(preempted_uid, n);
    if (c->cfg.verify_lengths) {
        TAKE(corrected_q, n);
        TAKE(corrected_k, n);
    }
#undef TAKE
    return ok ? 0 : DI_E_CAPACITY;
}

int di_publish_create(di_core *c, di_outputs *o, int32_t slot)
{
    o->slot = slot;
    if (take_arrays(c, o) || di_seen_init(&o->seen, &c->arena, sizeof o->record)) return DI_E_CAPACITY;
    for (int32_t i = 0; i < c->cfg.max_num_seqs; i++) o->rows[i].kind = -1;
    o->csr_rows = -1;
    di_scheduler_outputs *r = &o->record;
    r->struct_size = sizeof *r;
    r->chain = DI_HASH_SCHEDULER_OUTPUTS;
    r->seq_uid = di_view_1d(o->seq_uid, DI_DTYPE_U64, 0);
    r->generation = di_view_1d(o->generation, DI_DTYPE_U32, 0);
    r->row_slot = di_view_1d(o->row_slot, DI_DTYPE_I32, 0);
    r->seqlens_q = di_view_1d(o->seqlens_q, DI_DTYPE_I32, 0);
    r->seqlens_k = di_view_1d(o->seqlens_k, DI_DTYPE_I32, 0);
    r->cached = di_view_1d(o->cached, DI_DTYPE_I32, 0);
    r->inflight = di_view_1d(o->inflight, DI_DTYPE_U8, 0);
    r->full_len = di_view_1d(o->full_len, DI_DTYPE_I32, 0);
    r->is_last_chunk = di_view_1d(o->is_last_chunk, DI_DTYPE_U8, 0);
    r->remap = di_view_1d(o->remap, DI_DTYPE_I32, 0);
    r->state_slot = di_view_1d(o->state_slot, DI_DTYPE_I32, 0);
    r->swa_slot = di_view_1d(o->swa_slot, DI_DTYPE_I32, 0);
    r->draft_read_slot = di_view_1d(o->draft_read_slot, DI_DTYPE_I32, 0);
    r->draft_write_slot = di_view_1d(o->draft_write_slot, DI_DTYPE_I32, 0);
    r->swa_valid_start = di_view_1d(o->swa_valid_start, DI_DTYPE_I32, 0);
    if (c->cfg.csr_tables) {
        r->bt_offsets = di_view_1d(o->bt_offsets, DI_DTYPE_I32, 1);
        r->bt_ids = di_view_1d(o->bt_ids, DI_DTYPE_I32, 0);
    }
    r->bt_delta = di_view_2d(o->bt_delta, DI_DTYPE_I32, 0, 3);
    r->zero_slots = di_view_2d(o->zero_slots, DI_DTYPE_I32, 0, 2);
    r->clone_slots = di_view_2d(o->clone_slots, DI_DTYPE_I32, 0, 3);
    r->clone_blocks = di_view_2d(o->clone_blocks, DI_DTYPE_I32, 0, 2);
    r->finished_uid = di_view_1d(o->finished_uid, DI_DTYPE_U64, 0);
    r->finished_reason = di_view_1d(o->finished_reason, DI_DTYPE_U8, 0);
    r->ignored_uid = di_view_1d(o->ignored_uid, DI_DTYPE_U64, 0);
    r->ignored_reason = di_view_1d(o->ignored_reason, DI_DTYPE_U8, 0);
    r->held_uid = di_view_1d(o->held_uid, DI_DTYPE_U64, 0);
    r->preempted_uid = di_view_1d(o->preempted_uid, DI_DTYPE_U64, 0);
    r->hit_tokens = di_view_1d(o->hit_tokens, DI_DTYPE_I32, 0);
    r->replayed_tokens = di_view_1d(o->replayed_tokens, DI_DTYPE_I32, 0);
    return 0;
}

void di_publish_begin(di_core *c, di_step *step, di_outputs *o, int32_t kind)
{
    step->id = c->launched + 1;
    step->kind = kind;
    step->n = step->t = step->n_identity = step->n_placed = 0;
    step->is_sampled = 0;
    step->sum_qk = 0;
    step->flags = 0;
    step->min_k = step->max_k = 0;
    step->n_prompt_rows = 0;
    step->n_prompt_told = step->n_history = 0;
    step->out = o;
    step->rows = o->rows;
    o->record.seqlens_q.data = o->seqlens_q;
    o->record.seqlens_k.data = o->seqlens_k;
    o->n_delta = o->n_zero = o->n_finished = o->n_ignored = o->n_held = o->n_preempted = 0;
    o->n_clone_slots = o->n_clone_blocks = 0;
}

/* CSR tables: copied unless the ring slot holds those of the same rows and no table has grown since. */
static void copy_tables(const di_step *step, di_outputs *o, uint64_t changes)
{
    if (step->n_placed == 0 && step->n == o->csr_rows && changes == o->csr_changes) return;
    int32_t at = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        o->bt_offsets[i] = at;
        memcpy(o->bt_ids + at, r->blocks, (size_t)r->n_blocks * sizeof(int32_t));
        at += r->n_blocks;
    }
    o->bt_offsets[step->n] = at;
    o->csr_rows = step->n;
    o->csr_changes = changes;
    o->record.bt_offsets.shape[0] = step->n + 1;
    o->record.bt_ids.shape[0] = at;
}

static void resize_rows(di_scheduler_outputs *r, int32_t n)
{
    r->num_reqs = n;
    r->seq_uid.shape[0] = r->generation.shape[0] = r->row_slot.shape[0] = n;
    r->seqlens_q.shape[0] = r->seqlens_k.shape[0] = r->cached.shape[0] = r->inflight.shape[0] = n;
    r->full_len.shape[0] = r->is_last_chunk.shape[0] = r->remap.shape[0] = n;
    r->state_slot.shape[0] = r->swa_slot.shape[0] = r->swa_valid_start.shape[0] = n;
    r->draft_read_slot.shape[0] = r->draft_write_slot.shape[0] = n;
    r->hit_tokens.shape[0] = r->replayed_tokens.shape[0] = n;
}

void di_publish_step(const di_core *c, const di_step *step, di_outputs *o)
{
    di_scheduler_outputs *r = &o->record;
    int32_t n = step->n;
    if (c->cfg.csr_tables) copy_tables(step, o, c->table_changes);
    if (r->num_reqs != n) resize_rows(r, n);
    r->step_id = step->id;
    r->kind = (uint8_t)step->kind;
    r->flags = step->flags | (n == 0 ? (uint32_t)DI_STEP_FLAG_EMPTY : 0) |
               (n > 0 && step->n_identity == n ? (uint32_t)DI_STEP_FLAG_REMAP_IDENTITY : 0);
    r->num_decode_reqs = step->kind == DI_STEP_DECODE ? n : 0;
    r->num_batched_tokens = step->t;
    r->bt_delta.shape[0] = o->n_delta;
    r->zero_slots.shape[0] = o->n_zero;
    r->clone_slots.shape[0] = o->n_clone_slots;
    r->clone_blocks.shape[0] = o->n_clone_blocks;
    r->finished_uid.shape[0] = r->finished_reason.shape[0] = o->n_finished;
    r->ignored_uid.shape[0] = r->ignored_reason.shape[0] = o->n_ignored;
    r->held_uid.shape[0] = o->n_held;
    r->preempted_uid.shape[0] = o->n_preempted;
    r->sum_qk = step->sum_qk;
    r->min_k = step->min_k;
    r->max_k = step->max_k;
    r->predicted_ns = r->budget_ns = 0;     /* the cost model's, where there is one */
}
