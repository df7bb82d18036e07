/* What only C can show of the core: memory, linked with counting wrappers (-Wl,--wrap=malloc,--wrap=calloc,
 * --wrap=realloc,--wrap=free), and damage to its own state.
 *
 *   every allocation fails once       the call says DI_E_CAPACITY, nothing is lost, the core goes on
 *   steady decode steps               allocate nothing
 *   churn of short requests           reuses buffers
 *   a damaged structure               is found by the check, and the core refuses everything else from then on
 *   checks of events                  are left out only for batches in which nothing but ordinary rows is
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "di_core.h"
#include "di_state.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static long calls, fail_at = -1, live;

static int fails(void) { return calls++ == fail_at; }

void *__wrap_malloc(size_t n)
{
    void *p = fails() ? NULL : __real_malloc(n);
    live += p != NULL;
    return p;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = fails() ? NULL : __real_calloc(n, size);
    live += p != NULL;
    return p;
}

void *__wrap_realloc(void *old, size_t n)
{
    void *p = fails() ? NULL : __real_realloc(old, n);
    live += p != NULL && old == NULL;
    return p;
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}

static void require(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "FAILED: %s: %s %s\n", what, di_last_field(), di_last_error()->message);
    exit(1);
}

static di_config config(void)
{
    return (di_config){
        .struct_size = sizeof(di_config), .block_size = 4, .num_blocks = 64, .num_swa_slots = 9, .num_state_slots = 9,
        .max_num_seqs = 4, .max_num_batched_tokens = 32, .max_model_len = 2000, .vocab_size = 50, .min_chunk = 1,
        .chunk_align = 4, .chunked_prefill = 1, .depth = 2, .prefill_interval_all = 3, .prefill_interval_any = 5,
        .window = 8, .backtrack = 1, .num_ratios_sparse = 2, .ratios_sparse = {1, 2}, .num_ratios_dense = 1,
        .ratios_dense = {2}, .inputs = 1, .validation = DI_LEVEL_BOUNDARY, .prefill_watermark = 0.9,
        .prefix_cache = 1, .prefix_hash_bits = 128};
}

static int submit(di_core *core, int n, int max_tokens, uint64_t *uid)
{
    int32_t prompt[16];
    for (int i = 0; i < 16; i++) prompt[i] = (n + i) % 50;
    di_request r = {.struct_size = sizeof r, .num_prompt = 1 + n % 16, .prompt = prompt, .max_tokens = max_tokens,
                    .top_k = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .prefix_lookup = 1};
    return di_submit(core, &r, uid);
}

static di_view view(void *data, int32_t dtype, int64_t n)
{
    return (di_view){.data = data, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}, .flags = DI_VIEW_PRESENT};
}

/* One step at a time: schedule, pack, commit, done. Returns the rows of the step, or a status. */
static int step(di_core *core)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs s;
    static di_event_batch e;
    static int32_t ids[4] = {1, 2, 3, 4};
    static float logprobs[4];
    static int8_t status[4];
    di_probe_out probe;
    int code = di_probe(core, &probe);
    if (code) return code;
    int mode = probe.want && (probe.point || !probe.has_running) ? DI_MODE_TRY_PREFILL : DI_MODE_DECODE;
    code = di_schedule(core, mode, &o);
    if (!code && o.num_reqs == 0 && mode == DI_MODE_TRY_PREFILL) code = di_schedule(core, DI_MODE_DECODE, &o);
    if (code || o.num_reqs == 0) return code;
    code = di_pack(core, o.step_id, &m.base);
    if (!code) code = di_pack_sampler(core, o.step_id, &s);
    if (code) return code;
    di_sampler_output out = {.struct_size = sizeof out, .chain = DI_HASH_SAMPLER_OUTPUT,
                             .sampled_ids = view(ids, DI_DTYPE_I32, o.num_reqs),
                             .sampled_logprob = view(logprobs, DI_DTYPE_F32, o.num_reqs),
                             .row_status = view(status, DI_DTYPE_I8, o.num_reqs)};
    do code = di_commit(core, o.step_id, &out, &e); while (code == DI_E_CAPACITY);
    if (!code) code = di_step_done(core, o.step_id);
    return code ? code : o.num_reqs;
}

static int64_t unfinished(di_core *core)
{
    int64_t n = 0;
    require(di_unfinished(core, &n) == 0, "unfinished");
    return n;
}

/* A call that needs memory is made again where it was refused for lack of it. */
#define RETRY(is_faulty, code, call) \
    do { (code) = (call); if ((is_faulty) && (code) == DI_E_CAPACITY) (code) = (call); } while (0)

/* A child of the newest request, and a pin of the blocks that the first one has. */
static void share(di_core *core, int is_faulty, uint64_t parent, uint64_t *pin)
{
    di_fork_args args = {.struct_size = sizeof args, .at_prompt = 1, .max_tokens = 3};
    uint64_t uid = 0;
    int code = 0;
    RETRY(is_faulty, code, di_fork(core, parent, &args, &uid));
    require(code == 0, "fork");
    RETRY(is_faulty, code, di_pin(core, DI_POOL_MAIN, core->running[0]->blocks, core->running[0]->n_blocks, pin));
    require(code == 0, "pin");
    require(di_core_check(core, NULL) == 0, "check after sharing");
}

/* A whole life of a core; returns the allocations that it made. */
static long life(int is_faulty)
{
    di_config k = config();
    di_core *core = NULL;
    long before = calls;
    int code = di_core_create(&k, &core, NULL);
    if (is_faulty && code) {
        require(code == DI_E_CAPACITY && core == NULL, "create refuses with a status");
        return calls - before;
    }
    require(code == 0, "create");
    uint64_t uid = 0, pin = 0;
    for (int n = 0; n < 8; n++) {
        RETRY(is_faulty, code, submit(core, n, 6, &uid));
        require(code == 0, "submit");
        require(di_core_check(core, NULL) == 0, "check after submit");
    }
    require(step(core) > 0, "first step");
    share(core, is_faulty, uid, &pin);
    while (unfinished(core)) require(step(core) >= 0, "step");
    require(di_core_check(core, NULL) == 0, "check");
    require(di_audit(core, NULL) == 0, "audit with a pin");
    require(di_unpin(core, pin) == 0, "unpin");
    require(di_audit(core, NULL) == 0, "audit");
    di_core_destroy(core);
    return calls - before;
}

static void test_every_allocation_fails_once(void)
{
    long n = life(0);
    require(live == 0, "nothing is left after destroy");
    for (long k = 0; k < n + 2; k++) {
        fail_at = calls + k;
        life(1);
        require(live == 0, "nothing is left after a failure");
    }
    fail_at = -1;
    printf("allocations of a life: %ld\n", n);
}

static void test_steady_steps_allocate_nothing(void)
{
    di_config k = config();
    di_core *core = NULL;
    uint64_t uid = 0;
    k.num_blocks = 2100;
    require(di_core_create(&k, &core, NULL) == 0, "create");
    for (int n = 0; n < 4; n++) require(submit(core, n, 1900, &uid) == 0, "submit");
    for (int i = 0; i < 8; i++) require(step(core) > 0, "warm-up step");
    long before = calls;
    for (int i = 0; i < 1500; i++) require(step(core) == 4, "steady step");
    require(calls == before, "a steady step allocates");
    di_core_destroy(core);
}

static void test_churn_reuses_buffers(void)
{
    di_config k = config();
    di_core *core = NULL;
    require(di_core_create(&k, &core, NULL) == 0, "create");
    long before = 0;
    for (int round = 0; round < 200; round++) {
        if (round == 20) before = calls;
        for (int n = 0; n < 12; n++) {
            uint64_t uid = 0;
            require(submit(core, n, 3, &uid) == 0, "submit");
            if (n % 4 == 3) {
                uint8_t status = 9;
                require(di_abort(core, &uid, 1, &status) == 0 && status == DI_ABORT_ACCEPTED, "abort");
            }
        }
        while (unfinished(core)) require(step(core) >= 0, "step");
        di_event_batch e;
        require(di_poll_events(core, &e) == 0, "poll");
    }
    require(calls == before, "churn allocates");
    di_core_destroy(core);
    require(live == 0, "nothing is left");
}

/* An abort finds its request by uid and takes it out of the queue by its own links, so its work is the length of one
 * bucket's chain: with consecutive uids that is the share of a bucket, however long the queue. */
static void test_abort_looks_at_the_chain_of_one_bucket(void)
{
    enum { QUEUED = 20000 };
    di_config k = config();
    di_core *core = NULL;
    di_probe_out probe;
    uint64_t uid = 0, longest = 0;
    require(di_core_create(&k, &core, NULL) == 0, "create");
    for (int n = 0; n < QUEUED; n++) require(submit(core, 3, 4, &uid) == 0, "submit");
    require(di_probe(core, &probe) == 0, "probe");
    const di_table *t = &core->clients.table;
    for (uint64_t i = 0; i <= t->mask; i++) {
        uint64_t n = 0;
        for (const di_seq *s = t->buckets[i]; s; s = s->map_next) n++;
        longest = n > longest ? n : longest;
    }
    require(longest <= QUEUED / (t->mask + 1) + 1, "chains are even");
    di_core_destroy(core);
}

typedef void damage(di_core *core);

static void damage_held_count(di_core *c) { c->main.held_count++; }
static void damage_free_list(di_core *c) { c->swa.units[c->swa.free.head].next = 0; }
static void damage_reference(di_core *c) { c->main.units[c->running[0]->blocks[0]].ref++; }
static void damage_table_entry(di_core *c) { c->running[0]->blocks[0] = c->running[1]->blocks[0]; }
static void damage_cached(di_core *c) { c->running[0]->cached--; }
static void damage_running(di_core *c) { c->live_running--; }
static void damage_queue(di_core *c) { c->queue.count++; }
static void damage_ticket(di_core *c) { di_queue_head(&c->queue)->ticket += 1000; }
static void damage_phase_count(di_core *c) { c->phase_count[DI_PHASE_PREFILL]++; }
static void damage_admitted(di_core *c) { c->admitted++; }
static void damage_null_unit(di_core *c) { c->state.units[0].ref = 1; }
static void damage_done(di_core *c) { c->done = c->launched + 1; }
static void damage_unfinished(di_core *c) { c->clients.unfinished++; }

static void damage_registered(di_core *c) { c->main.units[c->running[0]->blocks[0]].registered ^= 1; }
static void damage_index_tokens(di_core *c) { c->prefix.index.tokens[4 * c->running[3]->blocks[0]]++; }
static void damage_index_entry(di_core *c)
{
    for (uint64_t i = 0; i <= c->prefix.index.mask; i++) c->prefix.index.entries[i].block = 0;
}
static void damage_store_from(di_core *c) { c->running[0]->store_from = 3; }
static void damage_shared_tail(di_core *c)
{
    di_seq *s = c->running[0];
    if (di_pool_share(&c->main, s->blocks[s->n_blocks - 1])) exit(1);
    c->running[1]->blocks[c->running[1]->n_blocks++] = s->blocks[s->n_blocks - 1];
}
static void damage_forks(di_core *c) { c->forks.waiting++; }
static void damage_handles(di_core *c) { c->handles.live++; }

static void test_damage_is_found_and_poisons(void)
{
    damage *all[] = {damage_held_count, damage_free_list, damage_reference, damage_table_entry, damage_cached,
                     damage_running, damage_queue, damage_ticket, damage_phase_count, damage_admitted,
                     damage_null_unit, damage_done, damage_unfinished, damage_registered, damage_index_tokens,
                     damage_index_entry, damage_store_from, damage_shared_tail, damage_forks, damage_handles};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        di_config k = config();
        di_core *core = NULL;
        uint64_t uid = 0;
        uint8_t status = 0;
        di_scheduler_outputs o;
        di_stats_out stats;
        require(di_core_create(&k, &core, NULL) == 0, "create");
        for (int n = 0; n < 7; n++) require(submit(core, n, 60, &uid) == 0, "submit");
        for (int s = 0; s < 3; s++) require(step(core) > 0, "step");
        require(di_core_check(core, NULL) == 0, "check before the damage");
        all[i](core);
        di_error error;
        require(di_core_check(core, &error) == DI_E_INTERNAL && error.code == DI_E_INTERNAL, "damage is found");
        require(di_schedule(core, DI_MODE_DECODE, &o) == DI_E_INTERNAL, "schedule is refused");
        require(submit(core, 1, 1, &uid) == DI_E_INTERNAL, "submit is refused");
        require(di_abort(core, &uid, 1, &status) == DI_E_INTERNAL, "abort is refused");
        require(di_stats(core, &stats) == 0 && stats.poisoned == 1, "stats are allowed");
        di_core_destroy(core);
    }
    require(live == 0, "nothing is left of damaged cores");
}

/* The columns of the newest batch whose checks are left out because they follow from others. */
static uint64_t left_out(const di_core *core) { return core->events.arenas[core->events.last]->plain; }

static void test_checks_of_events_are_left_out_for_ordinary_rows_alone(void)
{
    di_config k = config();
    di_core *core = NULL;
    di_event_batch e;
    uint64_t uid = 0;
    uint8_t status = 9;
    k.prefix_cache = 0;     /* no row stops to register a block */
    require(di_core_create(&k, &core, NULL) == 0, "create");
    require(submit(core, 3, 6, &uid) == 0 && submit(core, 3, 4, &uid) == 0, "submit");
    require(step(core) == 2 && left_out(core) == 0, "a first token is no ordinary row");
    require(step(core) == 2 && left_out(core) == DI_EVENT_PLAIN, "ordinary rows");
    require(submit(core, 3, 6, &uid) == 0 && di_abort(core, &uid, 1, &status) == 0, "abort of a queued request");
    require(di_poll_events(core, &e) == 0 && e.seq_uid.shape[0] == 1 && left_out(core) == 0, "polled ends");
    require(submit(core, 3, 6, &uid) == 0 && di_abort(core, &uid, 1, &status) == 0, "abort of a queued request");
    require(step(core) == 2 && left_out(core) == 0, "rows and the end of a queued request");
    require(step(core) == 2 && left_out(core) == 0, "a row that ends its request, behind an ordinary one");
    require(step(core) == 1 && left_out(core) == DI_EVENT_PLAIN, "the row that is left");
    di_core_destroy(core);
}

int main(void)
{
    test_checks_of_events_are_left_out_for_ordinary_rows_alone();
    test_damage_is_found_and_poisons();
    test_every_allocation_fails_once();
    test_abort_looks_at_the_chain_of_one_bucket();
    test_steady_steps_allocate_nothing();
    test_churn_reuses_buffers();
    printf("ok\n");
    return 0;
}
