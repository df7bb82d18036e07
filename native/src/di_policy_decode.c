/* Decode and pressure (spec/engine.md 2.4, 2.5): grow, hold, then preempt. */
#include <string.h>

#include "di_policy.h"
#include "di_transfer.h"

int32_t di_policy_reserve(const di_core *c)
{
    int32_t n = 0;
    if (c->cfg.engine_type == DI_ENGINE_PROMPT) return 0;    /* nothing grows there */
    for (int32_t i = 0; i < c->n_running; i++) {
        const di_seq *s = c->running[i];
        if (!s) continue;
        /* A prompt whose last chunk is in flight fills its blocks up to its length. */
        int64_t used = s->awaits_first ? s->len : (int64_t)s->cached + (int64_t)s->inflight * c->dim.q;
        n += (int64_t)s->n_blocks * c->cfg.block_size - used < 2 * c->dim.q;
    }
    return n;
}

void di_policy_compact(di_core *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_running; i++) {
        di_seq *s = c->running[i];
        if (!s) continue;
        s->running_at = n;
        c->running[n++] = s;
    }
    c->n_running = n;
}

/* Blocks that the next step of s needs beyond those it has. */
static int32_t growth(const di_core *c, const di_seq *s)
{
    int64_t end = (int64_t)s->cached + (int64_t)(s->inflight + 1) * c->dim.q;
    if (end <= (int64_t)s->n_blocks * c->cfg.block_size) return 0;
    int64_t blocks = (end + c->cfg.block_size - 1) / c->cfg.block_size;
    return (int32_t)(blocks - s->n_blocks);
}

/* The next token must come from the host or from the step just before: nothing else can feed it. */
static int is_candidate(const di_core *c, const di_seq *s)
{
    if (s->awaits_first || di_seq_is_certain_to_finish(s, c->cfg.max_model_len)) return 0;
    return s->inflight == 0 || s->last_step == c->launched;
}

static int preempt(di_core *c, di_seq *s, di_outputs *o)
{
    c->count.preemptions++;
    if (c->cfg.stop_preempted) return di_core_finish(c, s, DI_FINISH_NO_RESOURCE, 1);
    di_core_leave_running(c, s);
    int code = di_core_release(c, s);
    if (code) return code;
    s->cached = s->store_from = s->swa_valid_start = 0;
    s->generation++;
    s->inflight = 0;      /* steps of the old generation stay in inflight_all and are discarded at commit */
    s->has_drafts = s->awaits_first = s->holds = s->is_counted = 0;
    s->queue_class = 1;
    di_core_set_phase(c, s, DI_PHASE_WAITING);
    di_queue_insert(&c->queue, s);
    o->preempted_uid[o->n_preempted++] = s->uid;
    return 0;
}

/* Most output tokens first: it holds the most cache. Ties: the larger uid. */
static int is_better_victim(const di_seq *a, const di_seq *b)
{
    int32_t x = di_seq_output_len(a), y = di_seq_output_len(b);
    return x != y ? x > y : a->uid > b->uid;
}

/* Blocks that come back without a decision: those in limbo, and those that a sequence which certainly ends with the
 * steps in flight has for itself. */
static int64_t blocks_on_their_way(const di_core *c)
{
    int64_t n = di_pool_limbo(&c->main);
    for (int32_t i = 0; i < c->n_running; i++) {
        const di_seq *s = c->running[i];
        if (!s || !di_seq_is_certain_to_finish(s, c->cfg.max_model_len)) continue;
        for (int32_t j = 0; j < s->n_blocks; j++) n += c->main.units[s->blocks[j]].ref == 1;
    }
    return n;
}

/* Victims in a heap of n, the best one first: move the entry at `at` down to its place. */
static void sift_down(di_seq **heap, int32_t n, int32_t at)
{
    di_seq *s = heap[at];
    for (int64_t child = 2 * (int64_t)at + 1; child < n; child = 2 * (int64_t)at + 1) {
        if (child + 1 < n && is_better_victim(heap[child + 1], heap[child])) child++;
        if (!is_better_victim(heap[child], s)) break;
        heap[at] = heap[child];
        at = (int32_t)child;
    }
    heap[at] = s;
}

/* Candidates that were not preempted, in their order. */
static void drop_preempted(di_core *c, int32_t *n)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < *n; i++)
        if (c->candidates[i]->phase == DI_PHASE_RUNNING) c->candidates[kept++] = c->candidates[i];
    *n = kept;
}

/* Preempt until what is free or on its way covers the need. Returns the candidates left in *n. */
static int relieve(di_core *c, int32_t *n, int64_t need, di_outputs *o)
{
    int64_t coming = blocks_on_their_way(c);
    if (need <= (int64_t)di_pool_available(&c->main) + coming) return 0;
    di_seq **heap = c->growers;     /* of no use any more: under pressure all candidates are looked at again */
    int32_t left = *n;
    memcpy(heap, c->candidates, (size_t)left * sizeof *heap);
    for (int32_t i = left / 2 - 1; i >= 0; i--) sift_down(heap, left, i);
    while (left > 0 && need > (int64_t)di_pool_available(&c->main) + coming) {
        di_seq *s = heap[0];
        heap[0] = heap[--left];
        if (left > 0) sift_down(heap, left, 0);
        need -= growth(c, s);
        int32_t limbo = di_pool_limbo(&c->main);
        int code = preempt(c, s, o);
        if (code) return code;
        coming += di_pool_limbo(&c->main) - limbo;
    }
    drop_preempted(c, n);
    return 0;
}

static int grow(di_core *c, di_seq *s, int32_t n, di_outputs *o)
{
    if (n == 0) return 0;
    int32_t from = s->n_blocks;
    if (from + n > s->cap_blocks)
        return di_fail(DI_E_INTERNAL, "", "block_table", "request %llu outgrows its %d entries",
                       (unsigned long long)s->uid, s->cap_blocks);
    if (di_pool_take(&c->main, n, s->blocks + from)) return DI_E_INTERNAL;
    s->n_blocks += n;
    if (s->last_step) di_policy_note_blocks(c, o, s, from);
    return 0;
}

/* Blocks to the sequences that were held, then in row order, as far as they go. */
static int grow_all(di_core *c, di_seq **list, int32_t n, di_outputs *o)
{
    for (int held_first = 1; held_first >= 0; held_first--) {
        for (int32_t i = 0; i < n; i++) {
            int32_t blocks = growth(c, list[i]);
            if ((list[i]->holds > 0) != held_first || blocks > di_pool_available(&c->main)) continue;
            int code = grow(c, list[i], blocks, o);
            if (code) return code;
        }
    }
    return 0;
}

/* Grow what can grow. One that must wait for blocks leaves the candidates. */
static int grow_or_hold(di_core *c, int32_t *n, di_outputs *o)
{
    int code = grow_all(c, c->candidates, *n, o);
    if (code) return code;
    int32_t kept = 0;
    for (int32_t i = 0; i < *n; i++) {
        di_seq *s = c->candidates[i];
        if (growth(c, s) == 0) {
            c->candidates[kept++] = s;
            continue;
        }
        if (s->holds < c->cfg.depth) {
            o->held_uid[o->n_held++] = s->uid;
            continue;
        }
        code = preempt(c, s, o);    /* held for long enough */
        if (code) return code;
    }
    *n = kept;
    return 0;
}

static int goes_first(const di_seq *a, const di_seq *b) { return a->len != b->len ? a->len > b->len : a->uid < b->uid; }

/* Shell sort: in place and without memory; the key is total, so the result does not depend on the method. */
static void sort_by_length(di_seq **s, int32_t n)
{
    for (int32_t gap = n / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < n; i++) {
            di_seq *x = s[i];
            int32_t j = i;
            for (; j >= gap && goes_first(x, s[j - gap]); j -= gap) s[j] = s[j - gap];
            s[j] = x;
        }
}

/* The running sequences that could run, and those of them that need blocks. Returns the blocks needed. */
static int64_t choose(di_core *c, int32_t *n_candidates, int32_t *n_growers)
{
    int32_t n = 0, growers = 0;
    int64_t need = 0;
    for (int32_t i = 0; i < c->n_running; i++) {
        di_seq *s = c->running[i];
        /* So little is done for each that memory is a long way off. */
        if (i + 4 * DI_AHEAD < c->n_running) DI_PREFETCH(c->running[i + 4 * DI_AHEAD]);
        if (!is_candidate(c, s)) continue;
        c->candidates[n++] = s;
        int32_t blocks = growth(c, s);
        if (blocks == 0) continue;
        c->growers[growers++] = s;
        need += blocks;
    }
    *n_candidates = n;
    *n_growers = growers;
    return need;
}

/* Blocks for everybody who needs some: from the free list if it has them all, else under pressure. */
static int provide(di_core *c, int32_t *n, int32_t growers, int64_t need, di_outputs *o)
{
    if (need <= di_pool_available(&c->main)) return grow_all(c, c->growers, growers, o);
    int code = relieve(c, n, need, o);
    return code ? code : grow_or_hold(c, n, o);
}

int di_policy_decode(di_core *c, di_step *step, di_outputs *o)
{
    int code = c->cfg.engine_type == DI_ENGINE_COMPLETION ? di_transfer_admit(c) : 0;
    if (code) return code;
    if (c->live_running != c->n_running) di_policy_compact(c);
    int32_t n = 0, growers = 0;
    int64_t need = choose(c, &n, &growers);
    if (need > 0) code = provide(c, &n, growers, need, o);
    if (code) return code;
    if (c->forks.head) code = di_fork_carry_out(c, step, &n);
    if (code) return code;
    if (c->cfg.row_order == 1) sort_by_length(c->candidates, n);
    const int32_t *lengths = NULL;
    code = di_varlen_lengths(c, n, &lengths);
    if (code) return code;
    di_policy_add_decode_rows(c, step, n, lengths);
    if (n > 0) {
        c->count.holds += (uint64_t)o->n_held;
        for (int32_t i = 0, h = 0; h < o->n_held && i < c->n_running; i++)
            if (c->running[i] && c->running[i]->uid == o->held_uid[h]) c->running[i]->holds++, h++;
    }
    return 0;
}
