#include "di_pack.h"

#include <string.h>

#include "di_check.h"
#include "di_view.h"

static int create_v41(di_core *c, di_staging *s, size_t n, size_t t, size_t decode_t)
{
    int ok = 1;
#define TAKE(field, count) ok = ok && (s->field = di_arena_take(&c->arena, (count), sizeof *s->field)) != NULL
    TAKE(state_slot_idx, t);
    TAKE(swa_slot_idx, t);
    TAKE(context_lens, decode_t);
    TAKE(query_indices, decode_t);
    if (c->cfg.csr_tables) TAKE(block_tables, decode_t * (size_t)c->dim.max_blocks);
    else TAKE(row_slot_idx, decode_t);
    if (c->cfg.depth > 1) {
        TAKE(fresh_ids, decode_t);
        if (c->cfg.ngram) TAKE(ngram_win, n * (size_t)(c->cfg.num_draft + c->cfg.ngram - 1));
    }
    if (c->cfg.window) {
        TAKE(slot_swa, t);
        TAKE(load_swa, 4 * 3 * n);
        TAKE(swa_pivots, 4 * t);
        TAKE(swa_offset_len, 2 * decode_t);
    }
    int is_compact = c->cfg.replay_mode == DI_REPLAY_COMPACT;
    if (c->cfg.replay_mode != DI_REPLAY_OFF) {
        TAKE(rp_floor, n);
        TAKE(rp_swa_pivots, 4 * t);
    }
    if (is_compact) {
        TAKE(rp_cu_q, n + 1);
        TAKE(rp_query_index, t);
        TAKE(rp_positions, t);
        TAKE(rp_slot_swa, t);
    }
    for (int32_t i = 0; i < c->dim.num_ratios; i++) {
        if (is_compact) {
            TAKE(ratio[i].rp_ks, t);
            TAKE(ratio[i].rp_ke, t);
            TAKE(ratio[i].rp_ca_offset_len, 2 * t);
        }
        TAKE(ratio[i].positions_c, t + n);
        TAKE(ratio[i].slot_main, t + n);
        TAKE(ratio[i].cu_compressed_q, n + 1);
        TAKE(ratio[i].load_main, 4 * (di_core_step_blocks(c) + n));
        TAKE(ratio[i].ks, t);
        TAKE(ratio[i].ke, t);
        TAKE(ratio[i].ca_offset_len, 2 * t);
        TAKE(ratio[i].klen, decode_t);
    }
    return ok ? 0 : DI_E_CAPACITY;
}

static int create_sampler(di_core *c, di_staging *s, size_t n, size_t t, size_t prefill_t)
{
    int ok = 1;
    TAKE(row_slot, n);
    TAKE(top_logprobs, n);
    TAKE(logprobs_raw, n);
    TAKE(history_counts, n);
    TAKE(history_outputs, n);
    TAKE(selected_prompt_rows, prefill_t);
    TAKE(prompt_tokens, prefill_t);
    TAKE(prompt_counts, n);
    TAKE(selected_rows, t);
    TAKE(temperature, n);
    TAKE(top_p, n);
    TAKE(min_p, n);
    TAKE(repetition_penalty, n);
    TAKE(presence_penalty, n);
    TAKE(frequency_penalty, n);
    TAKE(top_k, n);
    TAKE(seed, n);
    TAKE(sample_pos, n);
    TAKE(first_row, n);
    TAKE(row_count, n);
    TAKE(draft_rows, t);
    TAKE(draft_write, n);
    TAKE(stop_ids, n * DI_MAX_STOP_IDS);
    TAKE(forced, t);
    TAKE(eos_suppress, 2 * t * DI_MAX_STOP_IDS);
    return ok ? 0 : DI_E_CAPACITY;
}

int di_pack_create_staging(di_core *c, di_staging *s)
{
    size_t n = (size_t)c->cfg.max_num_seqs, t = (size_t)c->cfg.max_num_batched_tokens;
    size_t decode_t = n * (size_t)c->dim.q;
    int ok = 1;
    TAKE(input_ids, t);
    TAKE(positions, t);
    TAKE(seqlens_q, n);
    TAKE(seqlens_k, n);
    TAKE(cu_seqlens_q, n + 1);
    TAKE(cu_seqlens_k, n + 1);
    TAKE(cu_seqlens_q_incl, n);
    TAKE(valid_token_mask, decode_t);
    if (c->cfg.ngram) TAKE(ngram_token_ids, t * (size_t)c->cfg.ngram);
#undef TAKE
    if (!ok || create_sampler(c, s, n, decode_t, t)) return DI_E_CAPACITY;
    size_t record = c->cfg.inputs ? sizeof(di_input_metadata_v41) : sizeof(di_input_metadata);
    if (di_seen_init(&s->seen_inputs, &c->arena, record) ||
        di_seen_init(&s->seen_sampler, &c->arena, sizeof(di_sampler_inputs)))
        return DI_E_CAPACITY;
    return c->cfg.inputs ? create_v41(c, s, n, t, decode_t) : 0;
}

/* Column r = compressed token at p - r; a negative table entry (image) or the start makes the rest pad (6.4). */
static void pack_ngrams(const di_core *c, const di_row *r, int32_t *at)
{
    for (int32_t p = r->start; p < r->start + r->q; p++) {
        int is_dead = 0;
        for (int32_t back = 0; back < c->cfg.ngram; back++) {
            int32_t x = p - back;
            int32_t token = x >= 0 && !is_dead ? di_pack_token(c, r, x) : -1;
            int32_t id = token >= 0 && token < c->cfg.ngram_table_size ? c->ngram_table[token] : -1;
            is_dead |= id < 0;
            *at++ = is_dead ? c->cfg.ngram_pad : id;
        }
    }
}

/* Tokens past the committed ones: drafts that the host knows, 0 for what the device gathers by remap. */
static void pack_uncommitted(const di_core *c, const di_row *r, int32_t *ids)
{
    if (r->remap >= 0 && r->start >= r->full_len) {
        for (int32_t j = 0; j < c->dim.q; j++) ids[j] = 0;     /* Q of them: di_pack_decode.c says why */
        return;
    }
    for (int32_t j = 0; j < r->q; j++) {
        int32_t token = di_pack_token(c, r, r->start + j);
        ids[j] = token < 0 ? 0 : token;
    }
}

static void pack_lengths(const di_step *step, di_staging *s, di_input_metadata *out)
{
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        s->seqlens_q[i] = r->q;
        s->seqlens_k[i] = r->start + r->q;
        s->cu_seqlens_q_incl[i] = r->first + r->q;
    }
    memset(s->valid_token_mask, 1, (size_t)step->t);
    out->valid_token_mask = di_view_1d(s->valid_token_mask, DI_DTYPE_BOOL, step->t);
    out->seqlens_q = di_view_1d(s->seqlens_q, DI_DTYPE_I32, step->n);
    out->seqlens_k = di_view_1d(s->seqlens_k, DI_DTYPE_I32, step->n);
    out->cu_seqlens_q_incl = di_view_1d(s->cu_seqlens_q_incl, DI_DTYPE_I32, step->n);
}

static void pack_sums(const di_step *step, di_staging *s, di_input_metadata *out)
{
    s->cu_seqlens_q[0] = s->cu_seqlens_k[0] = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        s->cu_seqlens_q[i + 1] = r->first + r->q;
        s->cu_seqlens_k[i + 1] = s->cu_seqlens_k[i] + r->start + r->q;
    }
    out->cu_seqlens_q = di_view_1d(s->cu_seqlens_q, DI_DTYPE_I32, step->n + 1);
    out->cu_seqlens_k = di_view_1d(s->cu_seqlens_k, DI_DTYPE_I32, step->n + 1);
}

void di_pack_common(const di_core *c, const di_step *step, di_staging *s, di_input_metadata *out)
{
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t *ids = s->input_ids + r->first, *positions = s->positions + r->first;
        if (r->start + r->q <= r->full_len)
            memcpy(ids, r->seq->tokens + r->start, (size_t)r->q * sizeof(int32_t));
        else
            pack_uncommitted(c, r, ids);
        int32_t n = step->kind == DI_STEP_DECODE ? c->dim.q : r->q;
        for (int32_t j = 0; j < n; j++) positions[j] = r->start + j;
        if (c->cfg.ngram) pack_ngrams(c, r, s->ngram_token_ids + (size_t)r->first * (size_t)c->cfg.ngram);
    }
    out->is_prompt = step->kind == DI_STEP_PREFILL;
    out->num_reqs = step->n;
    out->total_q = step->t;
    out->input_ids = di_view_1d(s->input_ids, DI_DTYPE_I32, step->t);
    out->positions = di_view_1d(s->positions, DI_DTYPE_I32, step->t);
    if (c->cfg.ngram) out->ngram_token_ids = di_view_2d(s->ngram_token_ids, DI_DTYPE_I32, step->t, c->cfg.ngram);
    if (out->is_prompt) pack_sums(step, s, out);
    else pack_lengths(step, s, out);
}

int di_pack_step(di_core *c, uint64_t step, di_step **out)
{
    di_step *record = di_core_step(c, step);
    if (step != c->launched || record->id != step || !record->is_open)
        return di_fail(DI_E_ORDER, "", "step_id", "step %llu is not the newest uncommitted one (%llu)",
                       (unsigned long long)step, (unsigned long long)c->launched);
    *out = record;
    return 0;
}

/* Rows behind a step in flight carry the drafts that it verifies; its commit puts the next ones in their place. */
static int has_lost_drafts(const di_core *c, const di_step *step)
{
    if (!c->cfg.inputs || c->cfg.num_draft == 0 || c->committed + 1 < step->id) return 0;
    for (int32_t i = 0; i < step->n; i++)
        if (step->rows[i].remap >= 0) return 1;
    return 0;
}

int di_pack(di_core *c, uint64_t step, di_input_metadata *base)
{
    di_step *record = NULL;
    int code = di_core_enter(c);
    if (code) return code;
    code = base ? di_pack_step(c, step, &record) : di_fail(DI_E_ARG, "", "base", "NULL");
    if (!code && has_lost_drafts(c, record))
        code = di_fail(DI_E_ORDER, "", "step_id", "step %llu follows drafts of step %llu: pack it before that commit",
                       (unsigned long long)step, (unsigned long long)(step - 1));
    if (code) return di_core_leave(c, code);
    di_staging *s = di_core_staging(c, step);
    if (c->cfg.inputs == 0) {
        memset(base, 0, sizeof *base);
        base->struct_size = sizeof *base;
        base->chain = DI_HASH_INPUT_METADATA;
        di_pack_common(c, record, s, base);
    } else {
        di_input_metadata_v41 *out = (di_input_metadata_v41 *)(void *)base;
        memset(out, 0, sizeof *out);
        out->base.struct_size = sizeof *out;
        out->base.chain = DI_HASH_INPUT_METADATA_V41;
        di_pack_common(c, record, s, &out->base);
        if (record->kind == DI_STEP_PREFILL) di_pack_prefill(c, record, s, out);
        else di_pack_decode(c, record, s, out);
    }
    di_layout_whole(&c->layouts.inputs, &s->seen_inputs, (int32_t)(step % (uint64_t)(c->cfg.depth + 1)), base,
                    base->struct_size);
    return di_core_leave(c, di_check_inputs(c, record, base));
}
