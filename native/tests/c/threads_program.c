/* Client threads submit and abort while one thread steps and another one looks; meant for ThreadSanitizer.
 *
 * Every accepted request ends exactly once, and a call that meets the engine's gate gets DI_E_BUSY and nothing else.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "di_core.h"

enum { CLIENTS = 3, REQUESTS = 400, MAX_SEQS = 6, MOST = CLIENTS * REQUESTS + 1 };

static di_core *core;
static atomic_int clients_left = CLIENTS, is_over;
static int ends[MOST];

static void require(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "FAILED: %s: %s %s\n", what, di_last_field(), di_last_error()->message);
    exit(1);
}

static void *client(void *argument)
{
    unsigned state = *(unsigned *)argument;
    int32_t prompt[20];
    for (int i = 0; i < 20; i++) prompt[i] = i;
    uint64_t mine[REQUESTS];
    for (int n = 0; n < REQUESTS; n++) {
        state = state * 1664525u + 1013904223u;
        di_request r = {.struct_size = sizeof r, .num_prompt = 1 + (int32_t)(state >> 16) % 20, .prompt = prompt,
                        .max_tokens = 1 + (int32_t)(state >> 24) % 12, .top_k = -1, .temperature = 1, .top_p = 1,
                        .repetition_penalty = 1};
        require(di_submit(core, &r, &mine[n]) == 0, "submit");
        int64_t left = 0;
        require(di_unfinished(core, &left) == 0 && left >= 0, "unfinished");
        if (state & 4096) {
            uint8_t status[2];
            uint64_t uids[2] = {mine[n], mine[(state >> 8) % (unsigned)(n + 1)]};
            require(di_abort(core, uids, 2, status) == 0 && status[0] <= DI_ABORT_ALREADY_FINISHED, "abort");
        }
    }
    atomic_fetch_sub(&clients_left, 1);
    return NULL;
}

static void *watcher(void *unused)
{
    di_stats_out stats;
    di_probe_out probe;
    while (!atomic_load(&is_over)) {
        int code = di_stats(core, &stats);
        require(code == 0 || code == DI_E_BUSY, "stats from another thread");
        code = di_probe(core, &probe);
        require(code == 0 || code == DI_E_BUSY, "probe from another thread");
        code = di_core_check(core, NULL);
        require(code == 0 || code == DI_E_BUSY, "check from another thread");
    }
    return unused;
}

static void follow(const di_event_batch *e)
{
    const uint64_t *uid = e->seq_uid.data;
    const uint16_t *flags = e->flags.data;
    for (int64_t i = 0; i < e->seq_uid.shape[0]; i++) {
        require(uid[i] > 0 && uid[i] < MOST && ends[uid[i]] == 0, "nothing follows the end");
        ends[uid[i]] += (flags[i] & DI_EVENT_FLAG_LAST) != 0;
    }
}

/* The engine's own calls may meet the watcher. */
#define ENGINE(call) \
    do { \
        int code_; \
        do code_ = (call); while (code_ == DI_E_BUSY); \
        require(code_ == 0, #call); \
    } while (0)

static di_view view(void *data, int32_t dtype, int64_t n)
{
    return (di_view){.data = data, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}, .flags = DI_VIEW_PRESENT};
}

static void step(int mode)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs s;
    static di_event_batch e;
    static int32_t ids[MAX_SEQS];
    static float logprobs[MAX_SEQS];
    static int8_t status[MAX_SEQS];
    ENGINE(di_schedule(core, mode, &o));
    if (o.num_reqs) {
        ENGINE(di_pack(core, o.step_id, &m.base));
        ENGINE(di_pack_sampler(core, o.step_id, &s));
        di_sampler_output out = {.struct_size = sizeof out, .chain = DI_HASH_SAMPLER_OUTPUT,
                                 .sampled_ids = view(ids, DI_DTYPE_I32, o.num_reqs),
                                 .sampled_logprob = view(logprobs, DI_DTYPE_F32, o.num_reqs),
                                 .row_status = view(status, DI_DTYPE_I8, o.num_reqs)};
        ENGINE(di_commit(core, o.step_id, &out, &e));
        follow(&e);
        ENGINE(di_step_done(core, o.step_id));
    }
    ENGINE(di_poll_events(core, &e));
    follow(&e);
}

int main(void)
{
    di_config k = {
        .struct_size = sizeof k, .block_size = 4, .num_blocks = 20, .num_swa_slots = 8, .num_state_slots = 8,
        .max_num_seqs = MAX_SEQS, .max_num_batched_tokens = 32, .max_model_len = 64, .vocab_size = 50, .min_chunk = 1,
        .max_chunk = 8, .chunk_align = 4, .chunked_prefill = 1, .depth = 2, .prefill_interval_all = 2,
        .prefill_interval_any = 3, .window = 8, .backtrack = 1, .num_ratios_sparse = 2, .ratios_sparse = {1, 2},
        .num_ratios_dense = 1, .ratios_dense = {2}, .inputs = 1, .validation = DI_LEVEL_BOUNDARY,
        .prefill_watermark = 0.9};
    require(di_core_create(&k, &core, NULL) == 0, "create");
    pthread_t threads[CLIENTS + 1];
    unsigned seeds[CLIENTS] = {1, 2, 3};
    for (int i = 0; i < CLIENTS; i++) require(pthread_create(&threads[i], NULL, client, &seeds[i]) == 0, "thread");
    require(pthread_create(&threads[CLIENTS], NULL, watcher, NULL) == 0, "thread");
    int64_t left = 1;
    for (int n = 0; atomic_load(&clients_left) > 0 || left > 0; n++) {
        step(n % 3 ? DI_MODE_DECODE : DI_MODE_TRY_PREFILL);
        require(di_unfinished(core, &left) == 0, "unfinished");
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i <= CLIENTS; i++) require(pthread_join(threads[i], NULL) == 0, "join");
    for (int i = 0; i < 64; i++) step(DI_MODE_DECODE);
    for (int uid = 1; uid < MOST; uid++) require(ends[uid] == 1, "one end for each request");
    require(di_core_check(core, NULL) == 0 && di_audit(core, NULL) == 0, "check");
    di_core_destroy(core);
    printf("ok\n");
    return 0;
}
