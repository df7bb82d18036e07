/* A row costs little when it is where it was depth + 1 steps ago: identity and slots stay in the arrays of the ring
 * slot, and only positions, lengths and the row map are written. di_policy_add_row does it as the policy chooses rows,
 * so that a request is touched once. */
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

/* A request that comes to row i: everything that it keeps as long as it stays there. */
static void place_row(di_step *step, int32_t i, const di_seq *s)
{
    di_row *r = &step->rows[i];
    di_outputs *o = step->out;
    o->seq_uid[i] = r->uid = s->uid;
    o->generation[i] = r->generation = s->generation;
    o->row_slot[i] = r->row_slot = s->row_slot;
    o->state_slot[i] = r->state_slot = s->state_slot;
    o->swa_slot[i] = r->swa_slot = s->swa_slot;
    o->draft_write_slot[i] = r->draft_slot = s->draft_slot;
    /* A decoded position is a window or more behind the start of any replay: it sees no truncated window. */
    o->swa_valid_start[i] = step->kind == DI_STEP_PREFILL ? s->swa_valid_start : 0;
    o->hit_tokens[i] = o->replayed_tokens[i] = 0;
    r->blocks = s->blocks;
    r->kind = step->kind;
    step->n_placed++;
}

/* What few requests ask of the sampler beyond their parameters. A row that stays where it was has been through this. */
static void note_wants(di_step *step, int32_t i, di_seq *s, int32_t start, int32_t q, int is_last_chunk)
{
    di_row *r = &step->rows[i];
    int is_prefill = step->kind == DI_STEP_PREFILL;
    if (is_prefill) step->out->n_prompt_rows[i] = 0;
    if (!s->wants) return;
    if (s->wants & DI_WANTS_HISTORY && !s->is_counted && (!is_prefill || is_last_chunk)) {
        r->gets_history = s->is_counted = 1;
        step->n_history += s->len;
    }
    if (!is_prefill || !(s->wants & DI_WANTS_PROMPT) || s->prompt_told) return;
    /* Position p gives the log-probability of prompt token p + 1. */
    int32_t end = start + q < s->prompt_len ? start + q : s->prompt_len - 1, n = end > start ? end - start : 0;
    step->out->n_prompt_rows[i] = n;
    step->n_prompt_rows += n;
    if (is_last_chunk) step->n_prompt_told += s->prompt_len;
}

void di_policy_add_row(di_core *c, di_step *step, di_seq *s, int32_t start, int32_t q, int is_last_chunk)
{
    di_outputs *o = step->out;
    int32_t i = step->n++, k = start + q;
    di_row *r = &step->rows[i];
    int is_kept = r->uid == s->uid && r->generation == s->generation && r->kind == DI_STEP_DECODE;
    r->gets_history = 0;
    if (!is_kept || step->kind != DI_STEP_DECODE) {
        place_row(step, i, s);
        note_wants(step, i, s, start, q, is_last_chunk);
    }
    int is_mapped = s->inflight > 0;
    r->seq = s;
    r->start = start;
    r->q = o->seqlens_q[i] = q;
    r->first = step->t;
    r->full_len = o->full_len[i] = s->len;
    r->n_blocks = s->n_blocks;
    r->remap = o->remap[i] = is_mapped ? s->last_row : -1;
    r->inflight = o->inflight[i] = s->inflight;
    r->is_last_chunk = o->is_last_chunk[i] = (uint8_t)is_last_chunk;
    r->has_drafts = s->has_drafts;
    o->seqlens_k[i] = k;
    o->cached[i] = s->cached;
    o->draft_read_slot[i] = di_row_draft_read(r);
    step->t += q;
    step->sum_qk += (int64_t)q * k;
    step->min_k = i == 0 || k < step->min_k ? k : step->min_k;
    step->max_k = k > step->max_k ? k : step->max_k;
    step->n_identity += r->remap == i;
    s->last_step = c->launched + 1;
    s->last_row = i;
    s->inflight++;
    s->inflight_all++;
}

void di_policy_note_blocks(di_core *c, di_outputs *o, const di_seq *s, int32_t from)
{
    c->table_changes += (uint64_t)(s->n_blocks - from);
    for (int32_t column = from; column < s->n_blocks; column++) {
        int32_t *entry = &o->bt_delta[3 * o->n_delta++];
        entry[0] = s->row_slot;
        entry[1] = column;
        entry[2] = s->blocks[column];
    }
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
