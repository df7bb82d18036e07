/* A copy of the counters and pool levels (spec/engine.md 9.1). */
#include <string.h>

#include "di_state.h"

static di_pool_stats levels(const di_unit_pool *p)
{
    return (di_pool_stats){.total = di_pool_total(p), .free = p->free.count, .cached = p->cached.count,
                           .held = p->held_count, .limbo = p->limbo.count};
}

int di_stats(di_core *c, di_stats_out *out)
{
    if (!c || !out) return di_fail(DI_E_ARG, "", "out", "a NULL argument");
    int code = di_core_enter_any(c);
    if (code) return code;
    *out = (di_stats_out){
        .main = levels(&c->main), .swa = levels(&c->swa), .state = levels(&c->state), .draft = levels(&c->draft),
        .waiting = c->phase_count[DI_PHASE_WAITING], .prefill = c->phase_count[DI_PHASE_PREFILL],
        .running = c->phase_count[DI_PHASE_RUNNING], .zombie = c->phase_count[DI_PHASE_ZOMBIE],
        .handoff = c->phase_count[DI_PHASE_HANDOFF],
        .queued_events = c->events.waiting,
        .steps_prefill = c->count.steps_prefill, .steps_decode = c->count.steps_decode,
        .tokens_prefill = c->count.tokens_prefill, .tokens_decode = c->count.tokens_decode,
        .tokens_drafted = c->count.tokens_drafted, .tokens_accepted = c->count.tokens_accepted,
        .tokens_output = c->count.tokens_output, .holds = c->count.holds, .preemptions = c->count.preemptions,
        .aborts = c->count.aborts, .overrun_rows = c->count.overrun_rows, .overrun_steps = c->count.overrun_steps,
        .stale_rows = c->count.stale_rows, .event_ring_grown = c->events.grown, .last_step = c->launched,
        .committed = c->committed, .done = c->done, .event_arenas = c->events.n_arenas,
        .poisoned = atomic_load(&c->poisoned), .budget_overruns = c->cost.overruns,
        .prefix_queries = c->prefix.queries, .prefix_hit_tokens = c->prefix.hit_tokens,
        .prefix_replayed_tokens = c->prefix.replayed_tokens, .prefix_evictions = c->main.evictions,
        .pins = c->handles.live, .pinned_units = c->pinned_units,
    };
    memcpy(out->finished, c->count.finished, sizeof out->finished);
    pthread_mutex_lock(&c->clients.lock);
    out->unfinished = c->clients.unfinished;
    pthread_mutex_unlock(&c->clients.lock);
    return di_core_leave(c, 0);
}
