/* Create, destroy, the gate, and the transitions that every module shares (spec/engine.md 1.3). */
#include "di_core.h"

#include <stdlib.h>
#include <string.h>

#include "di_check.h"
#include "di_config.h"
#include "di_pack.h"
#include "di_pin.h"
#include "di_policy.h"
#include "di_publish.h"
#include "di_state.h"
#include "di_transfer.h"

#ifndef DI_VERSION
#error "DI_VERSION must name the distribution's version"
#endif

const char *di_version(void) { return DI_VERSION; }

int di_core_enter_any(di_core *c)
{
    if (!c) return di_fail(DI_E_ARG, "", "core", "NULL");
    if (atomic_flag_test_and_set_explicit(&c->gate, memory_order_acquire))
        return di_fail(DI_E_BUSY, "", "core", "another thread is inside an engine call of this core");
    return 0;
}

int di_core_refuse(void)
{
    return di_fail(DI_E_INTERNAL, "", "core", "an earlier internal error made this core unusable");
}

int di_core_enter(di_core *c)
{
    int code = di_core_enter_any(c);
    if (code || !atomic_load(&c->poisoned)) return code;
    atomic_flag_clear_explicit(&c->gate, memory_order_release);
    return di_core_refuse();
}

int di_core_leave(di_core *c, int code)
{
    if (code == DI_E_INTERNAL) atomic_store(&c->poisoned, 1);
    atomic_flag_clear_explicit(&c->gate, memory_order_release);
    return code;
}

void di_core_set_phase(di_core *c, di_seq *s, uint8_t phase)
{
    c->phase_count[s->phase]--;
    c->phase_count[phase]++;
    pthread_mutex_lock(&c->clients.lock);
    s->phase = phase;
    pthread_mutex_unlock(&c->clients.lock);
}

int di_core_take_row(di_core *c, di_seq *s)
{
    int code = di_pool_take(&c->row, 1, &s->row_slot);
    if (code) return code;
    c->admitted++;
    di_varlen_forget_row(&c->varlen, s->row_slot);
    return 0;
}

int di_core_release(di_core *c, di_seq *s)
{
    int code = 0;
    /* The tail block goes first, so that heads of prompts stay unused longer (3.2). */
    while (s->n_blocks > 0 && !code) code = di_pool_release(&c->main, s->blocks[--s->n_blocks], s->last_step);
    struct { di_unit_pool *pool; int32_t *slot; } handle[] = {
        {&c->swa, &s->swa_slot}, {&c->state, &s->state_slot}, {&c->draft, &s->draft_slot}, {&c->row, &s->row_slot}};
    for (size_t i = 0; i < sizeof handle / sizeof *handle && !code; i++) {
        if (*handle[i].slot == 0) continue;
        code = di_pool_release(handle[i].pool, *handle[i].slot, s->last_step);
        if (handle[i].pool == &c->row) c->admitted--;
        *handle[i].slot = 0;
    }
    return code;
}

void di_core_leave_running(di_core *c, di_seq *s)
{
    c->running[s->running_at] = NULL;
    c->live_running--;
    s->listed = 0;
}

static void sweep(di_core *c, di_seq *s)
{
    s->keep |= DI_KEEP_SWEEP;
    s->sweep_next = NULL;
    if (c->sweep_tail) c->sweep_tail->sweep_next = s; else c->sweep_head = s;
    c->sweep_tail = s;
}

int di_core_finish(di_core *c, di_seq *s, uint8_t reason, int with_event)
{
    if (c->forks.waiting) di_fork_end(c, s);
    if (s->listed && s->phase == DI_PHASE_RUNNING) di_core_leave_running(c, s);
    else if (s->listed) di_queue_remove(&c->queue, s);
    int code = di_core_release(c, s);
    if (code) return code;
    s->reason = reason;
    s->inflight = 0;
    s->event_output = di_seq_output_len(s);
    c->count.finished[reason]++;
    sweep(c, s);
    if (with_event) di_events_wait(&c->events, s);
    pthread_mutex_lock(&c->clients.lock);
    c->clients.unfinished--;
    pthread_mutex_unlock(&c->clients.lock);
    if (s->inflight_all > 0) {
        di_core_set_phase(c, s, DI_PHASE_ZOMBIE);
        return 0;
    }
    di_core_set_phase(c, s, DI_PHASE_RETIRED);
    di_core_drop(c, s);
    return 0;
}

void di_core_settle(di_core *c, di_seq *s)
{
    s->inflight_all--;
    if (s->phase != DI_PHASE_ZOMBIE || s->inflight_all > 0) return;
    di_core_set_phase(c, s, DI_PHASE_RETIRED);
    di_core_drop(c, s);
}

/* A RETIRED request leaves the table at once; its buffer goes when its event and its sweep were handed out. */
void di_core_drop(di_core *c, di_seq *s)
{
    if (s->phase != DI_PHASE_RETIRED) return;
    pthread_mutex_lock(&c->clients.lock);
    di_command_remove(&c->clients, s);
    di_table_remove(&c->clients.table, s);
    if (s->keep == 0) {
        c->phase_count[DI_PHASE_RETIRED]--;
        di_seq_free(&c->clients.bins, s);
    }
    pthread_mutex_unlock(&c->clients.lock);
}

static int create_pools(di_core *c)
{
    const di_config *k = &c->cfg;
    /* Who writes into a reservation does not wait for this device's queue. */
    int ordered = k->stream_ordered_reuse && k->engine_type != DI_ENGINE_COMPLETION;
    int code = di_pool_init(&c->main, &c->arena, "main", k->num_blocks, ordered);
    if (!code) code = di_pool_init(&c->swa, &c->arena, "swa", k->num_swa_slots, ordered);
    if (!code) code = di_pool_init(&c->state, &c->arena, "state", k->num_state_slots, ordered);
    /* Draft and row slots are ordered by the device queue itself (5.5.6, 5.6): they may be reused at once. */
    if (!code && k->num_draft) code = di_pool_init(&c->draft, &c->arena, "draft", k->max_num_seqs + 1, 1);
    if (!code) code = di_pool_init(&c->row, &c->arena, "row", k->max_num_seqs + 1, 1);
    if (!code) code = di_prefix_init(&c->prefix, &c->arena, k, &c->main);
    return code;
}

static int create_rings(di_core *c)
{
    size_t n = (size_t)c->cfg.max_num_seqs;
    c->running = di_arena_take(&c->arena, n, sizeof *c->running);
    c->candidates = di_arena_take(&c->arena, n, sizeof *c->candidates);
    c->growers = di_arena_take(&c->arena, n, sizeof *c->growers);
    c->drafts = di_arena_take(&c->arena, (n + 1) * (size_t)c->cfg.num_draft, sizeof *c->drafts);
    if (!c->running || !c->candidates || !c->growers || !c->drafts) return DI_E_CAPACITY;
    for (int i = 0; i <= c->cfg.depth; i++) {
        if (di_publish_create(c, &c->outputs[i], 2 * i) || di_publish_create(c, &c->spare_outputs[i], 2 * i + 1))
            return DI_E_CAPACITY;
        if (di_pack_create_staging(c, &c->staging[i])) return DI_E_CAPACITY;
    }
    return 0;
}

static int create(di_core *c, const di_config *config)
{
    c->cfg = *config;
    c->cfg.ngram_table = NULL;
    size_t table = (size_t)config->ngram_table_size;
    c->ngram_table = di_arena_take(&c->arena, table, sizeof(int32_t));
    if (!c->ngram_table) return DI_E_CAPACITY;
    if (table) memcpy(c->ngram_table, config->ngram_table, table * sizeof(int32_t));
    di_config_limits(&c->cfg, &c->dim, &c->limits);
    if (di_check_init(c) || create_pools(c) || create_rings(c) || di_varlen_create(c)) return DI_E_CAPACITY;
    if (di_table_init(&c->clients.table, &c->arena, c->cfg.max_num_seqs)) return DI_E_CAPACITY;
    int64_t events = (int64_t)c->cfg.max_num_seqs * (c->dim.q + 1) + 64;
    if (di_events_init(&c->events, c->cfg.depth + 1, (int32_t)events, c->cfg.num_draft)) return DI_E_CAPACITY;
    if (pthread_mutex_init(&c->clients.lock, NULL)) return DI_E_CAPACITY;
    c->clients.has_lock = 1;
    return 0;
}

int di_core_create(const di_config *config, di_core **out, di_error *error)
{
    if (!config || !out) {
        di_fail(DI_E_ARG, "", "config", "a NULL argument");
        di_error_copy(error);
        return DI_E_ARG;
    }
    di_derived dim;
    int code = di_config_check(config, &dim);
    di_core *c = code ? NULL : calloc(1, sizeof *c);
    if (!code && !c) code = di_fail(DI_E_CAPACITY, "", "core", "no memory");
    if (!code) {
        c->dim = dim;
        atomic_flag_clear(&c->gate);
        code = create(c, config);
        if (code) {
            di_core_destroy(c);
            code = di_fail(DI_E_CAPACITY, "", "core", "no memory for pools of %d blocks and %d requests",
                           config->num_blocks, config->max_num_seqs);
        }
    }
    if (code) {
        di_error_copy(error);
        return code;
    }
    *out = c;
    return 0;
}

void di_core_destroy(di_core *c)
{
    if (!c) return;
    /* Live requests: the table has what is not RETIRED, the event and sweep lists have the rest. */
    for (uint64_t i = 0; c->clients.table.buckets && i <= c->clients.table.mask; i++)
        while (c->clients.table.buckets[i]) {
            di_seq *s = c->clients.table.buckets[i];
            di_table_remove(&c->clients.table, s);
            if (s->keep == 0) di_seq_free(&c->clients.bins, s);
        }
    while (c->events.head) {
        di_seq *s = c->events.head;
        c->events.head = s->event_next;
        s->keep &= (uint8_t)~DI_KEEP_EVENT;
        if (!s->keep) di_seq_free(&c->clients.bins, s);
    }
    while (c->sweep_head) {
        di_seq *s = c->sweep_head;
        c->sweep_head = s->sweep_next;
        s->keep &= (uint8_t)~DI_KEEP_SWEEP;
        if (!s->keep) di_seq_free(&c->clients.bins, s);
    }
    di_pin_free(c);
    di_bins_free(&c->clients.bins);
    di_events_free(&c->events);
    di_handle_free(&c->handles);
    if (c->clients.has_lock) pthread_mutex_destroy(&c->clients.lock);
    di_arena_free(&c->arena);
    free(c);
}

int di_step_done(di_core *c, uint64_t step)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (step > c->launched)
        code = di_fail(DI_E_ORDER, "", "step_id", "step %llu is not launched; the newest is %llu",
                       (unsigned long long)step, (unsigned long long)c->launched);
    if (!code && step > c->done) {
        c->done = step;
        di_unit_pool *pools[] = {&c->main, &c->swa, &c->state, &c->draft, &c->row};
        for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) di_pool_done(pools[i], step);
    }
    return di_core_leave(c, code);
}

int di_reset_prefix_cache(di_core *c, const uint64_t *salt)
{
    int code = di_core_enter(c);
    return code ? code : di_core_leave(c, di_prefix_reset(&c->prefix, salt));
}

int di_finish(di_core *c, uint64_t uid, int reason, int n_output)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = di_command_drain(c);
    if (code) return di_core_leave(c, code);
    pthread_mutex_lock(&c->clients.lock);
    di_seq *s = di_table_find(&c->clients.table, uid);
    pthread_mutex_unlock(&c->clients.lock);
    if (!s || di_seq_is_terminal(s))
        code = di_fail(DI_E_NOT_FOUND, "", "uid", "request %llu is unknown or already finished",
                       (unsigned long long)uid);
    else if (reason <= DI_FINISH_NONE || reason > DI_FINISH_ENGINE)
        code = di_fail(DI_E_ARG, "", "reason", "%d is no finish reason", reason);
    else if (n_output < 0 || n_output > di_seq_output_len(s))
        code = di_fail(DI_E_ARG, "", "n_output", "%d, request %llu has %d output tokens", n_output,
                       (unsigned long long)uid, di_seq_output_len(s));
    if (!code) {
        s->len = s->prompt_len + n_output;
        if (s->cached > s->len) s->cached = s->len;
        code = di_transfer_end(c, s, (uint8_t)reason);
    }
    return di_core_leave(c, code);
}
