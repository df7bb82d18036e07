/* Admission (spec/engine.md 2.3): strict order, no skipping, whole-prompt blocks, all or nothing.
 *
 * A prefix hit is looked up, and held only when every rule lets the request go: until then it changes nothing, so there
 * is nothing to give back when a later rule stops it. */
#include "di_policy.h"

static int is_first_admission(const di_seq *s) { return s->row_slot == 0; }

static int is_too_long(const di_core *c, const di_seq *s)
{
    return s->len > c->dim.prompt_limit || di_ceil_div(s->len, c->cfg.block_size) > di_pool_total(&c->main);
}

static int has_slot(const di_unit_pool *p) { return p->size == 0 || di_pool_available(p) > 0; }

/* The blocks of a hit need not be taken; those that nobody holds can then not be taken for others. */
static int has_resources(const di_core *c, const di_seq *s, const di_hit *hit, int32_t reserve)
{
    int64_t blocks = (int64_t)di_ceil_div(s->len, c->cfg.block_size) + reserve - hit->n_blocks;
    return blocks <= di_pool_available(&c->main) - hit->n_idle && has_slot(&c->swa) && has_slot(&c->state);
}

static int is_above_watermark(const di_core *c)
{
    return c->main.held_count > c->cfg.prefill_watermark * di_pool_total(&c->main);
}

int di_policy_wants_prefill(const di_core *c)
{
    di_seq *s = di_queue_head(&c->queue);
    if (!s || c->cfg.engine_type == DI_ENGINE_COMPLETION) return 0;
    /* A continuation has its blocks already: the watermark must not stop it, nor a prompt that will only be refused. */
    if (!is_first_admission(s) || is_too_long(c, s)) return 1;
    if (is_above_watermark(c) || c->admitted >= c->cfg.max_num_seqs) return 0;
    di_hit hit = {0};
    int32_t reserve = di_policy_reserve(c);
    if (has_resources(c, s, &hit, reserve)) return 1;
    hit = di_prefix_match(&c->prefix, s);
    return hit.n_blocks && has_resources(c, s, &hit, reserve);
}

int di_policy_drop_too_long(di_core *c)
{
    if (c->cfg.engine_type == DI_ENGINE_COMPLETION) return 0;    /* di_reserve looked at the length */
    for (di_seq *s = di_queue_head(&c->queue); s && is_first_admission(s) && is_too_long(c, s);
         s = di_queue_head(&c->queue)) {
        int code = di_core_finish(c, s, DI_FINISH_TOO_LONG, 1);
        if (code) return code;
    }
    return 0;
}

/* Largest chunk of s from position start on that the step takes now; 0 = none (rules 6 to 9). */
static int32_t chunk_of(di_core *c, const di_step *step, const di_seq *s, int32_t start, int32_t room)
{
    int32_t rest = s->len - start;
    int32_t q = rest < room ? rest : room;
    if (q > c->dim.max_chunk) q = c->dim.max_chunk;
    q = di_cost_limit(c, step, s, start, q);
    if (q == rest) return q;
    if (!c->cfg.chunked_prefill || q < c->cfg.min_chunk) return 0;
    int32_t aligned = q - q % c->cfg.chunk_align;
    return aligned >= c->cfg.min_chunk ? aligned : q;
}

static int take_slot(di_unit_pool *p, int32_t *slot) { return p->size ? di_pool_take(p, 1, slot) : 0; }

static void note_zero(di_outputs *o, int32_t pool, int32_t slot)
{
    o->zero_slots[2 * o->n_zero] = pool;
    o->zero_slots[2 * o->n_zero + 1] = slot;
    o->n_zero++;
}

static int admit(di_core *c, di_seq *s, const di_hit *hit, di_outputs *o)
{
    int32_t blocks = di_ceil_div(s->len, c->cfg.block_size);
    /* Held first, so that taking the others cannot evict them. */
    int code = di_prefix_hold(&c->prefix, s, hit);
    if (!code) code = di_pool_take(&c->main, blocks - hit->n_blocks, s->blocks + hit->n_blocks);
    if (!code) code = take_slot(&c->swa, &s->swa_slot);
    if (!code) code = take_slot(&c->state, &s->state_slot);
    if (!code) code = di_core_take_row(c, s);
    /* has_resources was true, so a refusal here means that the pools contradict themselves. */
    if (code) return DI_E_INTERNAL;
    s->n_blocks = blocks;
    s->cached = hit->start;
    di_policy_note_blocks(c, o, s, 0);
    if (s->state_slot) note_zero(o, DI_POOL_STATE, s->state_slot);
    if (s->swa_slot && c->cfg.zero_swa_on_alloc) note_zero(o, DI_POOL_SWA, s->swa_slot);
    return 0;
}

int di_policy_start_running(di_core *c, di_seq *s)
{
    /* A PROMPT engine hands the request over before it would draft. */
    int drafts = c->cfg.num_draft > 0 && c->cfg.engine_type != DI_ENGINE_PROMPT;
    if (drafts && di_pool_take(&c->draft, 1, &s->draft_slot)) return DI_E_INTERNAL;
    if (c->n_running == c->cfg.max_num_seqs) di_policy_compact(c);
    s->running_at = c->n_running;
    c->running[c->n_running++] = s;
    c->live_running++;
    s->listed = 1;
    s->holds = 0;
    di_core_set_phase(c, s, DI_PHASE_RUNNING);
    return 0;
}

/* What the hit of the row just added saved and repeats; said once, with its first chunk. */
static void note_prefix(di_step *step, const di_seq *s, int is_first)
{
    int32_t i = step->n - 1;
    step->flags |= step->rows[i].start < s->store_from ? DI_STEP_FLAG_HAS_REPLAY : 0;
    if (!is_first) return;
    step->out->hit_tokens[i] = s->swa_valid_start;
    step->out->replayed_tokens[i] = s->store_from - s->swa_valid_start;
}

static int end_prompt(di_core *c, di_seq *s)
{
    s->awaits_first = 1;
    s->has_drafts = 0;
    return di_policy_start_running(c, s);
}

int di_policy_prefill(di_core *c, di_step *step, di_outputs *o)
{
    int32_t reserve = di_policy_reserve(c);
    di_cost_begin(c);
    /* Of the step's start: what this step admits does not count against it (2.2). */
    int may_admit = !is_above_watermark(c);
    int64_t sum_k = 0;
    /* Whoever had its turn has left the queue, and a prompt that ends here may have sent its forks to it. */
    for (di_seq *s = di_queue_head(&c->queue); s && step->n < c->cfg.max_num_seqs; s = di_queue_head(&c->queue)) {
        int is_first = is_first_admission(s);
        int code = 0;
        if (is_first && is_too_long(c, s)) {
            code = di_core_finish(c, s, DI_FINISH_TOO_LONG, 1);
            if (code) return code;
            continue;
        }
        if (is_first && (!may_admit || c->admitted >= c->cfg.max_num_seqs)) break;
        if (sum_k + s->len > c->dim.prefill_sum_k_limit) break;
        di_hit hit = {.start = s->cached};
        if (is_first) hit = di_prefix_match(&c->prefix, s);
        int32_t q = chunk_of(c, step, s, hit.start, c->cfg.max_num_batched_tokens - step->t);
        if (q == 0) {
            if (step->n == 0)
                return di_fail(DI_E_INTERNAL, "", "prefill",
                               "request %llu gets no token of an empty step: len %d, cached %d",
                               (unsigned long long)s->uid, s->len, s->cached);
            break;
        }
        if (is_first) {
            if (!has_resources(c, s, &hit, reserve)) break;
            code = admit(c, s, &hit, o);
        }
        if (code) return code;
        int is_last = s->cached + q == s->len;
        di_queue_remove(&c->queue, s);
        if (is_last) code = end_prompt(c, s);
        else if (s->phase != DI_PHASE_PREFILL) di_core_set_phase(c, s, DI_PHASE_PREFILL);
        if (code) return code;
        di_policy_add_row(c, step, s, s->cached, q, is_last);
        if (s->store_from) note_prefix(step, s, is_first);
        sum_k += s->len;
        int is_normal = c->cfg.engine_type == DI_ENGINE_NORMAL;
        if (!is_last && is_normal) break;    /* a NORMAL engine stops after the first chunked prompt (rule 13) */
        if (is_normal && s->n_blocks * (int64_t)c->cfg.block_size - s->len < 2 * c->dim.q) reserve++;
    }
    return 0;
}
