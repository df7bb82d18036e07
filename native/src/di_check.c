#include "di_check.h"

#include <string.h>

#include "di_pin.h"
#include "di_transfer.h"

static int level(const di_core *c) { return c->cfg.validation; }

int di_check_init(di_core *c)
{
    if (level(c) < DI_LEVEL_FULL) return 0;
    size_t most = (size_t)c->cfg.num_blocks + (size_t)c->cfg.max_num_batched_tokens + (size_t)c->cfg.max_num_seqs * 2;
    c->limits.scratch = di_arena_take(&c->arena, 2 * most, 16);
    c->limits.scratch_bytes = 2 * most * 16;
    return c->limits.scratch ? 0 : DI_E_CAPACITY;
}

/* The core made this record, so a violation is its own mistake. */
static int own(int code, const di_error *error) { return code ? di_fail_with(DI_E_INTERNAL, error) : 0; }

/* What place_row writes: the arrays of a ring slot keep it as long as the rows are where they were. */
#define KEPT_WITH_ROWS \
    (DI_KEPT_SCHEDULER_OUTPUTS_SEQ_UID | DI_KEPT_SCHEDULER_OUTPUTS_ROW_SLOT | DI_KEPT_SCHEDULER_OUTPUTS_STATE_SLOT | \
     DI_KEPT_SCHEDULER_OUTPUTS_SWA_SLOT | DI_KEPT_SCHEDULER_OUTPUTS_DRAFT_WRITE_SLOT | \
     DI_KEPT_SCHEDULER_OUTPUTS_SWA_VALID_START | DI_KEPT_SCHEDULER_OUTPUTS_HIT_TOKENS | \
     DI_KEPT_SCHEDULER_OUTPUTS_REPLAYED_TOKENS)

int di_check_schedule(di_core *c, const di_step *step, di_outputs *o, const di_scheduler_outputs *record)
{
    di_error error;
    if (level(c) == DI_LEVEL_OFF) return 0;
    c->limits.step_id = record->step_id;
    uint64_t kept = step->n_placed == 0 && step->n <= o->n_checked ? KEPT_WITH_ROWS : 0;
    int code = own(di_check_scheduler_outputs_kept(record, &c->limits, level(c), kept, &error), &error);
    /* Rows behind the step's are as they were checked. */
    if (!code && step->n > o->n_checked) o->n_checked = step->n;
    return code;
}

int di_check_inputs(di_core *c, const di_step *step, const di_input_metadata *record)
{
    di_error error;
    if (level(c) == DI_LEVEL_OFF) return 0;
    c->limits.step_id = step->id;
    int code = c->cfg.inputs
        ? di_check_input_metadata_v41_in((const di_input_metadata_v41 *)(const void *)record, &step->out->record,
                                         &c->limits, level(c), &error)
        : di_check_input_metadata_in(record, &step->out->record, &c->limits, level(c), &error);
    return own(code, &error);
}

int di_check_sampler(di_core *c, const di_step *step, const di_sampler_inputs *record)
{
    di_error error;
    if (level(c) == DI_LEVEL_OFF) return 0;
    c->limits.step_id = step->id;
    return own(di_check_sampler_inputs(record, &c->limits, level(c), &error), &error);
}

int di_check_events(di_core *c, uint64_t step, di_event_arena *a, const di_event_batch *record)
{
    di_error error;
    if (level(c) == DI_LEVEL_OFF) return 0;
    c->limits.step_id = step;
    uint64_t kept = a ? di_events_kept(a) : 0;
    int code = own(di_check_event_batch_kept(record, &c->limits, level(c), kept, &error), &error);
    if (a && !code) di_events_checked(a, kept);
    return code;
}

/* Arrays of which di_output_read showed what the rules about their elements ask, and where:
 *
 *   sampled_ids, row_status    is_plain: every status is OK, every id in [0, V)
 *   verified_ids               are_ids: every id in [-1, V); only of a step that verifies, others are not read
 *   draft_ids                  are_tokens: every id in [0, V)
 *
 * The views were taken by then with the lengths that the shapes ask for, so that whole arrays were seen. */
static uint64_t read_already(const di_tokens *t)
{
    uint64_t kept = 0;
    if (t->is_plain) kept |= DI_KEPT_SAMPLER_OUTPUT_SAMPLED_IDS | DI_KEPT_SAMPLER_OUTPUT_ROW_STATUS;
    if (t->is_verified_plain) kept |= DI_KEPT_SAMPLER_OUTPUT_VERIFIED_IDS;
    if (t->drafts && t->are_drafts_tokens) kept |= DI_KEPT_SAMPLER_OUTPUT_DRAFT_IDS;
    return kept;
}

int di_check_output(di_core *c, const di_step *step, const di_sampler_output *record, const di_tokens *t)
{
    di_error error;
    if (level(c) == DI_LEVEL_OFF) return 0;
    c->limits.step_id = step->id;
    int code = di_check_sampler_output_in_kept(record, &step->out->record, &c->limits, level(c), read_already(t),
                                               &error);
    return code ? di_fail_with(DI_E_CONTRACT, &error) : 0;
}

static int wrong(const char *field, const di_seq *s, const char *what)
{
    return di_fail(DI_E_INTERNAL, "", field, "request %llu: %s", s ? (unsigned long long)s->uid : 0ULL, what);
}

typedef struct census {
    int64_t admitted, children, ready, phase[16];
} census;

static int see_slot(di_unit_pool *p, int32_t slot) { return slot ? di_pool_see_owner(p, slot) : 0; }

static int see_units(di_core *c, const di_seq *s)
{
    int code = 0;
    for (int32_t i = 0; i < s->n_blocks && !code; i++) code = di_pool_see_owner(&c->main, s->blocks[i]);
    if (!code) code = see_slot(&c->swa, s->swa_slot);
    if (!code) code = see_slot(&c->state, s->state_slot);
    if (!code) code = see_slot(&c->draft, s->draft_slot);
    return code ? code : see_slot(&c->row, s->row_slot);
}

static int check_seq(di_core *c, const di_seq *s, census *n)
{
    n->phase[s->phase]++;
    n->admitted += s->row_slot != 0;
    int code = di_fork_count(s, &n->children, &n->ready);
    if (code) return code;
    if (s->n_blocks > s->cap_blocks || s->len > s->cap_tokens) return wrong("blocks", s, "an array is too small");
    if (s->cached > s->len || s->cached < 0) return wrong("cached", s, "more positions than tokens");
    if (s->inflight > c->cfg.depth || s->inflight > s->inflight_all) return wrong("inflight", s, "too many steps");
    int holds = s->n_blocks || s->swa_slot || s->state_slot || s->draft_slot || s->row_slot;
    if (holds && s->phase != DI_PHASE_PREFILL && s->phase != DI_PHASE_RUNNING &&
        s->phase != DI_PHASE_HANDOFF)
        return wrong("phase", s, "holds units in a phase that has none");
    if (s->phase == DI_PHASE_RUNNING && s->inflight == 0 && s->cached != s->len - 1)
        return wrong("cached", s, "a running request must have computed all but its last token");
    if (s->swa_valid_start > s->store_from || s->store_from % c->cfg.block_size ||
        s->store_from > s->n_blocks * (int64_t)c->cfg.block_size)
        return holds ? wrong("store_from", s, "a prefix hit is no row of whole blocks") : 0;
    if (s->phase == DI_PHASE_HANDOFF && (s->row_slot || s->draft_slot || s->inflight_all || s->listed))
        return wrong("phase", s, "is in a transfer and in a step, a row or a queue as well");
    return see_units(c, s);
}

/* What a request may write is its own, and what others may read holds the tokens that it is registered for (3.5). */
static int check_blocks(const di_core *c, const di_seq *s)
{
    int32_t size = c->cfg.block_size, from = s->cached > s->store_from ? s->cached : s->store_from;
    for (int32_t i = 0; i < s->n_blocks; i++) {
        const di_unit *u = &c->main.units[s->blocks[i]];
        int may_write = (int64_t)(i + 1) * size > from;
        if (may_write && (u->registered || u->seen != 1))
            return wrong("blocks", s, "a block that it may write is shared or registered");
        if (u->registered && memcmp(di_prefix_index_tokens(&c->prefix.index, s->blocks[i]),
                                    s->tokens + (int64_t)i * size, (size_t)size * sizeof(int32_t)) != 0)
            return wrong("blocks", s, "a registered block has other tokens");
    }
    return 0;
}

static int check_running(const di_core *c)
{
    int32_t live = 0;
    for (int32_t i = 0; i < c->n_running; i++) {
        const di_seq *s = c->running[i];
        if (!s) continue;
        live++;
        if (s->phase != DI_PHASE_RUNNING || s->running_at != i || !s->listed)
            return wrong("running", s, "is misplaced");
    }
    if (live != c->live_running || live != c->phase_count[DI_PHASE_RUNNING])
        return wrong("running", NULL, "the count differs from the set");
    return 0;
}

static int check_steps(const di_core *c)
{
    if (c->done > c->launched || c->committed > c->launched || c->launched - c->committed > (uint64_t)c->cfg.depth)
        return wrong("step_id", NULL, "committed, done and launched contradict each other");
    for (int i = 0; i <= c->cfg.depth; i++) {
        const di_step *step = &c->steps[i];
        if (step->is_open != (step->id > c->committed && step->id <= c->launched && step->id != 0))
            return wrong("step_id", NULL, "a step record is open that should not be, or the reverse");
    }
    return 0;
}

static int check_pool(const di_core *c, const di_unit_pool *p)
{
    int code = di_pool_check(p);
    if (!code) code = di_pool_check_owners(p);
    if (code || !p->size || p->done == c->done) return code;
    return di_fail(DI_E_INTERNAL, "", p->name, "does not know of the last completed step");
}

static int check_census(di_core *c, const census *n)
{
    int code = check_pool(c, &c->main);
    if (!code) code = di_prefix_check(&c->prefix);
    if (!code) code = check_pool(c, &c->swa);
    if (!code) code = check_pool(c, &c->state);
    if (!code) code = check_pool(c, &c->draft);
    if (!code) code = check_pool(c, &c->row);
    if (code) return code;
    if (n->admitted != c->admitted) return wrong("row_slot", NULL, "the number of admitted requests is wrong");
    for (int p = DI_PHASE_PREFILL; p < DI_PHASE_RETIRED; p++)
        if (n->phase[p] != c->phase_count[p]) return wrong("phase", NULL, "a phase count is wrong");
    return 0;
}

static int check_all(di_core *c)
{
    census n = {0};
    int code = 0;
    int64_t live = 0, found = 0;
    di_unit_pool *pools[] = {&c->main, &c->swa, &c->state, &c->draft, &c->row};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) di_pool_begin_owners(pools[i]);
    pthread_mutex_lock(&c->clients.lock);
    for (uint64_t i = 0; i <= c->clients.table.mask && !code; i++)
        for (const di_seq *s = c->clients.table.buckets[i]; s && !code; s = s->map_next) {
            found++;
            live += !di_seq_is_terminal(s);
            code = check_seq(c, s, &n);
        }
    for (uint64_t i = 0; i <= c->clients.table.mask && !code; i++)
        for (const di_seq *s = c->clients.table.buckets[i]; s && !code; s = s->map_next) code = check_blocks(c, s);
    if (!code) code = di_pin_see_owners(c);
    if (!code && (found != c->clients.table.count || live != c->clients.unfinished))
        code = wrong("table", NULL, "the number of requests is wrong");
    pthread_mutex_unlock(&c->clients.lock);
    if (!code) code = di_queue_check(&c->queue);
    if (!code) code = di_transfer_check(c);
    if (!code) code = di_fork_check(c, n.children, n.ready);
    if (!code) code = check_running(c);
    if (!code) code = check_steps(c);
    return code ? code : check_census(c, &n);
}

int di_core_check(di_core *c, di_error *error)
{
    int code = di_core_enter_any(c);
    if (!code) code = di_core_leave(c, check_all(c));
    if (code) di_error_copy(error);
    return code;
}

static int audit(di_core *c)
{
    int64_t unfinished = 0;
    di_unfinished(c, &unfinished);
    if (unfinished > 0 || c->launched != c->committed || c->launched != c->done) return 0;
    di_unit_pool *pools[] = {&c->main, &c->swa, &c->state, &c->draft, &c->row};
    enum { N_POOLS = sizeof pools / sizeof *pools };
    for (size_t i = 0; i < N_POOLS; i++) di_pool_begin_owners(pools[i]);
    int code = di_pin_see_owners(c);
    for (size_t i = 0; i < N_POOLS && !code; i++) {
        const di_unit_pool *p = pools[i];
        if (p->size && (di_pool_check_owners(p) || p->limbo.count > 0))
            return di_fail(DI_E_INTERNAL, "", p->name,
                           "leak: nothing is live, %u of %d units are free, %u cached, %u held, %u in limbo; pins hold "
                           "%lld",
                           p->free.count, di_pool_total(p), p->cached.count, p->held_count, p->limbo.count,
                           (long long)c->pinned_units);
    }
    return code;
}

int di_audit(di_core *c, di_error *error)
{
    int code = di_core_enter_any(c);
    if (!code) code = di_core_leave(c, audit(c));
    if (code) di_error_copy(error);
    return code;
}
