/* A whole scenario over the public API in which allocation k fails, for every k until it runs through.
 *
 * The failing call gives DI_E_CAPACITY, changes nothing and is made again; the core is whole after every call; after
 * the destroy nothing is left. Linked with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "di_core.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static long calls, fail_at = -1, live, refusals;

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

enum { SEQS = 4, BLOCK = 4, TOP = 3, PROMPT = 16 };

static di_core *core;

static void require(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "FAILED at allocation %ld: %s: %s %s\n", fail_at, what, di_last_field(), di_last_error()->message);
    exit(1);
}

static di_stats_out stats(void)
{
    di_stats_out s;
    memset(&s, 0, sizeof s);
    require(di_stats(core, &s) == 0, "stats");
    return s;
}

/* Make a call; one that lacks memory changed nothing, and succeeds when it is made again. An event arena that was made
 * before the memory ran out stays for the next try. */
#define DO(call) \
    do { \
        di_probe_out probe_; \
        require(di_probe(core, &probe_) == 0, "probe"); \
        di_stats_out before_ = stats(); \
        int code_ = (call); \
        if (code_ == DI_E_CAPACITY) { \
            di_stats_out after_ = stats(); \
            refusals++; \
            after_.event_arenas = before_.event_arenas; \
            after_.event_ring_grown = before_.event_ring_grown; \
            require(di_core_check(core, NULL) == 0, "whole after " #call); \
            require(memcmp(&before_, &after_, sizeof before_) == 0, "unchanged by " #call); \
            code_ = (call); \
        } \
        require(code_ == 0, #call); \
        require(di_core_check(core, NULL) == 0, "whole after " #call); \
    } while (0)

static di_config config(void)
{
    return (di_config){
        .struct_size = sizeof(di_config), .block_size = BLOCK, .num_blocks = 40, .num_swa_slots = 9,
        .num_state_slots = 9, .max_num_seqs = SEQS, .max_num_batched_tokens = 32, .max_model_len = 64,
        .vocab_size = 50, .min_chunk = 1, .chunk_align = 4, .chunked_prefill = 1, .depth = 2, .num_draft = 1,
        .prefill_interval_all = 3, .prefill_interval_any = 5, .window = 4, .backtrack = 1, .num_ratios_sparse = 2,
        .ratios_sparse = {1, 2}, .num_ratios_dense = 1, .ratios_dense = {2}, .inputs = 1,
        .validation = DI_LEVEL_FULL, .prefix_cache = 1, .prefix_hash_bits = 128, .prefill_watermark = 0.9};
}

static void submit(int32_t n, uint64_t *uid)
{
    int32_t prompt[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) prompt[i] = i;
    di_request r = {.struct_size = sizeof r, .num_prompt = n, .prompt = prompt, .max_tokens = 9, .top_k = -1,
                    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .prefix_lookup = 1};
    float bias = 1;
    /* The first of these makes the staging of histories and biases, the other a larger buffer and event arena. */
    if (n == PROMPT - 1) r.presence_penalty = 1, r.num_bias = 1, r.bias_ids = prompt, r.bias_values = &bias;
    if (n == PROMPT) r.prompt_logprobs = 1, r.prefix_lookup = 0;
    DO(di_submit(core, &r, uid));
}

static di_view view(void *data, int32_t dtype, int64_t n, int64_t m)
{
    return (di_view){.data = data, .dtype = dtype, .ndim = m ? 2 : 1, .shape = {n, m},
                     .stride = {m ? m : 1, m ? 1 : 0}, .flags = DI_VIEW_PRESENT};
}

typedef struct open_step {
    uint64_t id;
    int32_t n, t, kind, n_prompt;
} open_step;

static open_step launch(int mode)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs in;
    DO(di_schedule(core, mode, &o));
    if (o.num_reqs) DO(di_pack(core, o.step_id, &m.base));
    if (o.num_reqs && o.kind == DI_STEP_PREFILL) DO(di_pack_sampler(core, o.step_id, &in));
    int has_prompt = o.num_reqs && o.kind == DI_STEP_PREFILL && in.prompt_tokens.data;
    return (open_step){o.step_id, o.num_reqs, o.num_batched_tokens, o.kind,
                       has_prompt ? (int32_t)in.prompt_tokens.shape[0] : 0};
}

/* Alternatives for every token make the event arena grow; a batch that somebody reads makes the ring grow. */
static void commit(open_step s, int is_read)
{
    static di_event_batch e;
    static int32_t ids[SEQS] = {1, 2, 3, 4}, verified[32], accepted[SEQS], drafts[SEQS], top[SEQS * TOP];
    static float logprob[SEQS], top_logprob[SEQS * TOP];
    static int8_t status[SEQS];
    memset(verified, 0xff, sizeof verified);
    di_sampler_output out = {.struct_size = sizeof out, .chain = DI_HASH_SAMPLER_OUTPUT,
                             .sampled_ids = view(ids, DI_DTYPE_I32, s.n, 0),
                             .sampled_logprob = view(logprob, DI_DTYPE_F32, s.n, 0),
                             .draft_ids = view(drafts, DI_DTYPE_I32, s.n, 1),
                             .top_ids = view(top, DI_DTYPE_I32, s.n, TOP),
                             .top_logprobs = view(top_logprob, DI_DTYPE_F32, s.n, TOP),
                             .row_status = view(status, DI_DTYPE_I8, s.n, 0)};
    if (s.kind == DI_STEP_DECODE) {
        out.verified_ids = view(verified, DI_DTYPE_I32, s.t, 0);
        out.accepted = view(accepted, DI_DTYPE_I32, s.n, 0);
    }
    static float prompt[32];
    if (s.n_prompt) out.prompt_logprobs = view(prompt, DI_DTYPE_F32, s.n_prompt, 0);
    DO(di_commit(core, s.id, &out, &e));
    if (is_read) {
        di_event_info info;
        require(di_event_last(core, &info) == 0, "last batch");
        DO(di_event_pin(core, info.arena, 1));
    }
    DO(di_step_done(core, s.id));
}

static void unpin_events(void)
{
    for (int i = 0; i < stats().event_arenas; i++) DO(di_event_pin(core, i, 0));
}

/* A child that clones, a child that is computed, and a pin that outlives its request. */
static void share(uint64_t parent, uint64_t *pin)
{
    di_fork_args args = {.struct_size = sizeof args, .seed = 7, .max_tokens = 5};
    uint64_t child = 0;
    di_request none = {0};
    di_reservation reservation;
    DO(di_fork(core, parent, &args, &child));
    args.at_prompt = 1;
    DO(di_fork(core, parent, &args, &child));
    int32_t block = 1;
    while (di_pin(core, DI_POOL_MAIN, &block, 1, pin) == DI_E_ARG) block++;    /* the first one that is held */
    if (*pin == 0) {
        refusals++;
        require(di_core_check(core, NULL) == 0, "whole after a pin");
        require(di_pin(core, DI_POOL_MAIN, &block, 1, pin) == 0, "pin");
    }
    require(di_reserve(core, &none, &reservation) == DI_E_ARG, "only a COMPLETION engine reserves");
}

/* A COMPLETION engine: reservations, one of them given up. */
static void receive(void)
{
    di_config k = config();
    k.engine_type = DI_ENGINE_COMPLETION;
    k.stop_preempted = 1;
    int code = di_core_create(&k, &core, NULL);
    if (code) {
        refusals++;
        require(code == DI_E_CAPACITY && di_core_create(&k, &core, NULL) == 0, "create");
    }
    int32_t prompt[PROMPT] = {0};
    di_request r = {.struct_size = sizeof r, .num_prompt = PROMPT, .prompt = prompt, .max_tokens = 3, .top_k = -1,
                    .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    di_inject_args args = {.struct_size = sizeof args, .first_token = 1};
    di_reservation given[3];
    for (int i = 0; i < 3; i++) DO(di_reserve(core, &r, &given[i]));
    DO(di_inject(core, given[0].handle, &args));
    DO(di_inject(core, given[1].handle, &args));
    DO(di_acknowledge(core, given[2].uid));
    for (int i = 0; i < 8; i++) {
        open_step s = launch(DI_MODE_DECODE);
        if (s.n) commit(s, 0);
    }
    static di_event_batch e;
    DO(di_poll_events(core, &e));
    require(stats().unfinished == 0, "everything ended");
    require(di_audit(core, NULL) == 0, "audit");
    di_core_destroy(core);
}

/* Returns 0 when create was refused. */
static int scenario(void)
{
    di_config k = config();
    di_error error;
    di_cost_model cost = {.struct_size = sizeof cost, .base = 1000, .row = 10};
    core = NULL;
    int code = di_core_create(&k, &core, &error);
    if (code) {
        require(code == DI_E_CAPACITY && core == NULL && error.code == DI_E_CAPACITY, "create refuses with a status");
        refusals++;
        return 0;
    }
    uint64_t uid[8] = {0};
    uint8_t status = 9;
    DO(di_set_cost_model(core, &cost, &cost));
    for (int32_t i = 0; i < 6; i++) submit(PROMPT - i, &uid[i]);
    open_step s = launch(DI_MODE_TRY_PREFILL);
    commit(s, 1);
    DO(di_abort(core, &uid[5], 1, &status));
    uint64_t pin = 0;
    share(uid[0], &pin);
    for (int i = 0; i < 6; i++) {
        open_step next = launch(i == 2 ? DI_MODE_TRY_PREFILL : DI_MODE_DECODE);
        if (next.n) commit(next, i < 4);
    }
    unpin_events();
    DO(di_finish(core, uid[0], DI_FINISH_STOP, 1));
    for (int i = 0; i < 60; i++) {
        open_step next = launch(i % 2 ? DI_MODE_DECODE : DI_MODE_TRY_PREFILL);
        if (next.n) commit(next, 0);
    }
    static di_event_batch e;
    DO(di_poll_events(core, &e));
    DO(di_unpin(core, pin));
    require(stats().unfinished == 0, "everything ended");
    require(stats().prefix_hit_tokens > 0, "prefixes were shared");
    require(di_audit(core, NULL) == 0, "audit");
    di_core_destroy(core);
    receive();
    return 1;
}

int main(void)
{
    long before = calls;
    require(scenario(), "an undisturbed scenario");
    long n = calls - before;
    require(live == 0, "nothing is left after destroy");
    for (long k = 0; k < n; k++) {
        fail_at = calls + k;
        scenario();
        require(live == 0, "nothing is left after a failure");
        require(refusals == k + 1, "the failure was seen as a refusal");
    }
    printf("allocations: %ld\nok\n", n);
    return 0;
}
