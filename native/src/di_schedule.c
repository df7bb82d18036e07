/* di_probe and di_schedule: choose a pass, keep the step record, publish the contract record (engine.md 2.2, 6.1). */
#include <string.h>

#include "di_check.h"
#include "di_policy.h"
#include "di_state.h"
#include "di_view.h"

int di_policy_create_outputs(di_core *c, di_outputs *o)
{
    size_t n = (size_t)c->cfg.max_num_seqs, blocks = (size_t)c->cfg.num_blocks;
    int ok = 1;
#define TAKE(name, count) ok = ok && (o->name = di_arena_take(&c->arena, (count), sizeof *o->name)) != NULL
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
    TAKE(bt_offsets, n + 1);
    TAKE(bt_ids, blocks);
    TAKE(bt_delta, 3 * blocks);
    TAKE(zero_slots, 4 * n);
    TAKE(hit_tokens, n);
    TAKE(replayed_tokens, n);
    TAKE(inflight, n);
    TAKE(is_last_chunk, n);
    TAKE(finished_reason, n);
    TAKE(ignored_reason, n);
    TAKE(finished_uid, n);
    TAKE(ignored_uid, n);
    TAKE(held_uid, n);
    TAKE(preempted_uid, n);
#undef TAKE
    return ok ? 0 : DI_E_CAPACITY;
}

void di_policy_add_row(di_core *c, di_step *step, di_seq *s, int32_t start, int32_t q, int is_last_chunk)
{
    di_row *r = &step->rows[step->n];
    int is_mapped = s->inflight > 0;
    *r = (di_row){
        .seq = s, .generation = s->generation, .start = start, .q = q, .first = step->t, .full_len = s->len,
        .n_blocks = s->n_blocks, .remap = is_mapped ? s->last_row : -1, .row_slot = s->row_slot,
        .swa_slot = s->swa_slot, .state_slot = s->state_slot,
        .draft_read = s->has_drafts || is_mapped ? s->draft_slot : 0, .draft_write = s->draft_slot,
        .inflight = s->inflight, .is_last_chunk = (uint8_t)is_last_chunk, .has_drafts = s->has_drafts,
    };
    s->last_step = c->launched + 1;
    s->last_row = step->n;
    s->inflight++;
    s->inflight_all++;
    step->n++;
    step->t += q;
}

void di_policy_note_blocks(di_outputs *o, const di_seq *s, int32_t from)
{
    for (int32_t column = from; column < s->n_blocks; column++) {
        int32_t *entry = &o->bt_delta[3 * o->n_delta++];
        entry[0] = s->row_slot;
        entry[1] = column;
        entry[2] = s->blocks[column];
    }
}

/* Report requests that ended since the last call, as many as the lists hold; the rest waits. */
static void sweep(di_core *c, di_outputs *o)
{
    while (c->sweep_head && o->n_finished < c->cfg.max_num_seqs && o->n_ignored < c->cfg.max_num_seqs) {
        di_seq *s = c->sweep_head;
        c->sweep_head = s->sweep_next;
        if (!c->sweep_head) c->sweep_tail = NULL;
        if (s->reason == DI_FINISH_TOO_LONG) {
            o->ignored_uid[o->n_ignored] = s->uid;
            o->ignored_reason[o->n_ignored++] = s->reason;
        } else {
            o->finished_uid[o->n_finished] = s->uid;
            o->finished_reason[o->n_finished++] = s->reason;
        }
        s->keep &= (uint8_t)~DI_KEEP_SWEEP;
        di_core_drop(c, s);
    }
}

typedef struct totals {
    int64_t sum_qk;
    int32_t min_k, max_k, n_ids;
    int is_identity;
} totals;

static totals fill_rows(const di_step *step, di_outputs *o)
{
    totals t = {.is_identity = step->n > 0};
    o->bt_offsets[0] = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        const di_seq *s = r->seq;
        int32_t k = r->start + r->q;
        o->seq_uid[i] = s->uid;
        o->generation[i] = r->generation;
        o->row_slot[i] = r->row_slot;
        o->seqlens_q[i] = r->q;
        o->seqlens_k[i] = k;
        o->cached[i] = s->cached;
        o->inflight[i] = r->inflight;
        o->full_len[i] = r->full_len;
        o->is_last_chunk[i] = r->is_last_chunk;
        o->remap[i] = r->remap;
        o->state_slot[i] = r->state_slot;
        o->swa_slot[i] = r->swa_slot;
        o->draft_read_slot[i] = r->draft_read;
        o->draft_write_slot[i] = r->draft_write;
        memcpy(o->bt_ids + t.n_ids, s->blocks, (size_t)r->n_blocks * sizeof(int32_t));
        t.n_ids += r->n_blocks;
        o->bt_offsets[i + 1] = t.n_ids;
        t.sum_qk += (int64_t)r->q * k;
        t.min_k = i == 0 || k < t.min_k ? k : t.min_k;
        t.max_k = k > t.max_k ? k : t.max_k;
        t.is_identity &= r->remap == i;
    }
    return t;
}

static void publish(const di_step *step, di_outputs *o, di_scheduler_outputs *out)
{
    totals t = fill_rows(step, o);
    int32_t n = step->n;
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->chain = DI_HASH_SCHEDULER_OUTPUTS;
    out->step_id = step->id;
    out->kind = (uint8_t)step->kind;
    out->flags = (n ? 0u : (uint32_t)DI_STEP_FLAG_EMPTY) | (t.is_identity ? (uint32_t)DI_STEP_FLAG_REMAP_IDENTITY : 0u);
    out->num_reqs = n;
    out->num_decode_reqs = step->kind == DI_STEP_DECODE ? n : 0;
    out->num_batched_tokens = step->t;
    out->seq_uid = di_view_1d(o->seq_uid, DI_DTYPE_U64, n);
    out->generation = di_view_1d(o->generation, DI_DTYPE_U32, n);
    out->row_slot = di_view_1d(o->row_slot, DI_DTYPE_I32, n);
    out->seqlens_q = di_view_1d(o->seqlens_q, DI_DTYPE_I32, n);
    out->seqlens_k = di_view_1d(o->seqlens_k, DI_DTYPE_I32, n);
    out->cached = di_view_1d(o->cached, DI_DTYPE_I32, n);
    out->inflight = di_view_1d(o->inflight, DI_DTYPE_U8, n);
    out->full_len = di_view_1d(o->full_len, DI_DTYPE_I32, n);
    out->is_last_chunk = di_view_1d(o->is_last_chunk, DI_DTYPE_U8, n);
    out->remap = di_view_1d(o->remap, DI_DTYPE_I32, n);
    out->state_slot = di_view_1d(o->state_slot, DI_DTYPE_I32, n);
    out->swa_slot = di_view_1d(o->swa_slot, DI_DTYPE_I32, n);
    out->draft_read_slot = di_view_1d(o->draft_read_slot, DI_DTYPE_I32, n);
    out->draft_write_slot = di_view_1d(o->draft_write_slot, DI_DTYPE_I32, n);
    out->swa_valid_start = di_view_1d(o->swa_valid_start, DI_DTYPE_I32, n);
    out->bt_offsets = di_view_1d(o->bt_offsets, DI_DTYPE_I32, n + 1);
    out->bt_ids = di_view_1d(o->bt_ids, DI_DTYPE_I32, t.n_ids);
    out->bt_delta = di_view_2d(o->bt_delta, DI_DTYPE_I32, o->n_delta, 3);
    out->zero_slots = di_view_2d(o->zero_slots, DI_DTYPE_I32, o->n_zero, 2);
    out->clone_slots = di_view_2d(o->zero_slots, DI_DTYPE_I32, 0, 3);
    out->clone_blocks = di_view_2d(o->zero_slots, DI_DTYPE_I32, 0, 2);
    out->finished_uid = di_view_1d(o->finished_uid, DI_DTYPE_U64, o->n_finished);
    out->finished_reason = di_view_1d(o->finished_reason, DI_DTYPE_U8, o->n_finished);
    out->ignored_uid = di_view_1d(o->ignored_uid, DI_DTYPE_U64, o->n_ignored);
    out->ignored_reason = di_view_1d(o->ignored_reason, DI_DTYPE_U8, o->n_ignored);
    out->held_uid = di_view_1d(o->held_uid, DI_DTYPE_U64, o->n_held);
    out->preempted_uid = di_view_1d(o->preempted_uid, DI_DTYPE_U64, o->n_preempted);
    out->hit_tokens = di_view_1d(o->hit_tokens, DI_DTYPE_I32, n);
    out->replayed_tokens = di_view_1d(o->replayed_tokens, DI_DTYPE_I32, n);
    out->sum_qk = t.sum_qk;
    out->min_k = t.min_k;
    out->max_k = t.max_k;
}

static void count_step(di_core *c, const di_step *step, int mode)
{
    if (mode == DI_MODE_EMPTY_PREFILL || (step->kind == DI_STEP_PREFILL && step->n > 0)) {
        c->decode_since_prefill = 0;
        c->prefill_burst++;
    }
    /* A rank of a group that has nothing to decode runs a placeholder while the others decode (5.9): the counters that
     * choose the next kind of step must go on as theirs do. */
    int is_group_decode = mode == DI_MODE_DECODE && c->cfg.dp_size > 1;
    if (is_group_decode || (step->kind == DI_STEP_DECODE && step->n > 0)) {
        c->decode_since_prefill++;
        c->prefill_burst = 0;
    }
    if (step->n == 0) return;
    if (step->kind == DI_STEP_PREFILL) {
        c->count.steps_prefill++;
        c->count.tokens_prefill += (uint64_t)step->t;
        return;
    }
    c->count.steps_decode++;
    c->count.tokens_decode += (uint64_t)step->t;
    c->count.tokens_drafted += (uint64_t)(step->t - step->n);
}

static int run_pass(di_core *c, int mode, di_scheduler_outputs *out)
{
    int code = di_command_drain(c);
    if (!code) code = di_policy_drop_too_long(c);
    if (code) return code;
    di_step *step = di_core_step(c, c->launched + 1);
    di_outputs *o = &c->outputs[(c->launched + 1) % (uint64_t)(c->cfg.depth + 1)];
    step->id = c->launched + 1;
    step->n = step->t = 0;
    step->kind = mode == DI_MODE_DECODE ? DI_STEP_DECODE : DI_STEP_PREFILL;
    o->n_delta = o->n_zero = o->n_finished = o->n_ignored = o->n_held = o->n_preempted = 0;
    if (mode == DI_MODE_TRY_PREFILL) code = di_policy_prefill(c, step, o);
    if (mode == DI_MODE_DECODE) code = di_policy_decode(c, step, o);
    if (code) return code;
    /* An attempt that finds nothing is followed by a decode call: that one reports. */
    if (step->n > 0 || mode != DI_MODE_TRY_PREFILL) sweep(c, o);
    publish(step, o, out);
    di_cost_publish(c, step, out);
    count_step(c, step, mode);
    if (step->n == 0) {
        /* Not a step: its arrays change place with a spare set, so that the next step does not overwrite them. */
        di_outputs *spare = &c->spare_outputs[c->empty_calls++ % (uint64_t)(c->cfg.depth + 1)];
        di_outputs used = *o;
        *o = *spare;
        *spare = used;
    } else {
        step->is_open = 1;
        step->record = *out;
        c->launched++;
    }
    return di_check_schedule(c, out);
}

int di_schedule(di_core *c, int mode, di_scheduler_outputs *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!out || mode < DI_MODE_TRY_PREFILL || mode > DI_MODE_EMPTY_PREFILL)
        code = di_fail(DI_E_ARG, "", out ? "mode" : "out", "mode %d", mode);
    else if (c->launched - c->committed >= (uint64_t)c->cfg.depth)
        code = di_fail(DI_E_ORDER, "", "step_id", "step %llu must be committed first: %d in flight is the depth",
                       (unsigned long long)(c->committed + 1), c->cfg.depth);
    else if (c->launched - c->done > (uint64_t)c->cfg.depth)
        code = di_fail(DI_E_ORDER, "", "step_id", "step %llu must be reported done first (di_step_done)",
                       (unsigned long long)(c->done + 1));
    if (!code) code = run_pass(c, mode, out);
    return di_core_leave(c, code);
}

int di_probe(di_core *c, di_probe_out *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!out) return di_core_leave(c, di_fail(DI_E_ARG, "", "out", "NULL"));
    /* Queued submissions must be seen; carrying them out here is what the next schedule would do first. */
    code = di_command_drain(c);
    if (code) return di_core_leave(c, code);
    uint64_t d = c->decode_since_prefill;
    uint64_t any = (uint64_t)c->cfg.prefill_interval_any, all = (uint64_t)c->cfg.prefill_interval_all;
    int64_t unfinished = 0;
    di_unfinished(c, &unfinished);
    *out = (di_probe_out){
        .point = d != 0 && d % any == 0 ? 1 : d % all == 0 ? 2 : 0,
        .want = di_policy_wants_prefill(c),
        .has_running = c->live_running > 0,
        .has_unfinished = unfinished > 0,
        .burst_reached = c->cfg.max_prefill_burst > 0 && c->prefill_burst >= (uint64_t)c->cfg.max_prefill_burst,
        .in_flight = (int32_t)(c->launched - c->committed),
        .decode_since_prefill = (int64_t)d,
    };
    return di_core_leave(c, 0);
}
