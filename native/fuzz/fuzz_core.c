/* Target over encoded operations, for libFuzzer or for fuzz/standalone.c.
 *
 *   clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc -DDI_VERSION='"fuzz"' \
 *       fuzz/fuzz_core.c src/di_*.c -pthread -lm -o fuzz_core && ./fuzz_core -max_total_time=60
 *
 * The first bytes choose a small configuration, each further byte one operation with the bytes it needs. After every
 * operation the core compares all of its structures; at the end everything is drained and the leak audit must pass.
 */
#include "fuzz.h"

#include <string.h>

enum { MAX_SEQS = 4, MAX_Q = 4, MAX_TOKENS = 64, VOCAB = 40, MAX_UID = 4096, MAX_HANDLES = 8 };

typedef struct fuzzed {
    di_core *core;
    di_config config;
    uint64_t launched, committed, done, last_uid;
    int32_t n[3], t[3], kind[3];        /* shape of open steps, by step id modulo 3 */
    int32_t n_prompt[3];                /* prompt log-probabilities that they ask for */
    uint64_t pin;                       /* the one external pin, 0 = none */
    int32_t tokens[MAX_UID], ends[MAX_UID];
    uint64_t handles[MAX_HANDLES];      /* the newest reservations, by turns; used ones must be stale */
    uint32_t n_handles;
} fuzzed;

fuzz_totals fuzz_total;

/* Small and odd sizes: one block, one sequence, one token, chunks of one, blocks of one. */
static di_config make_config(script *s)
{
    uint8_t a = take(s), b = take(s), c = take(s), d = take(s), e = take(s), p = take(s);
    /* One time in eight each, for what those engines do alone. */
    int32_t type = e >> 5 == 6 ? DI_ENGINE_PROMPT : e >> 5 == 7 ? DI_ENGINE_COMPLETION : DI_ENGINE_NORMAL;
    int32_t k = a & 3, block_size = 1 << (c & 3), chunked = (c & 16) == 0, min_chunk = 1 + (c >> 5 & 1);
    return (di_config){
        .struct_size = sizeof(di_config), .block_size = block_size, .num_blocks = 2 + (b & 31),
        .num_swa_slots = (a & 4) ? 6 : 2, .num_state_slots = (a & 8) ? 6 : 0, .max_num_seqs = 1 + (c >> 2 & 3),
        .max_num_batched_tokens = chunked ? 16 + (d >> 6) * 8 : MAX_TOKENS, .max_model_len = 1 + (d & 63) % 60,
        .vocab_size = VOCAB, .max_chunk = chunked && (a & 16) ? min_chunk + (e & 7) : 0, .min_chunk = min_chunk,
        .chunk_align = 4, .chunked_prefill = chunked, .num_draft = k, .depth = (a & 32) ? 2 : 1,
        .prefill_interval_all = 2, .prefill_interval_any = 3, .max_prefill_burst = e >> 3 & 3,
        .stop_preempted = (b & 64) != 0 || type == DI_ENGINE_COMPLETION, .engine_type = type, .window = 6,
        .backtrack = 1, .num_ratios_sparse = block_size > 1 ? 2 : 1,
        .ratios_sparse = {1, 2}, .num_ratios_dense = block_size > 1, .ratios_dense = {2}, .inputs = 1,
        .validation = DI_LEVEL_FULL, .stream_ordered_reuse = (a & 64) != 0, .row_order = (a & 128) != 0,
        .zero_swa_on_alloc = (b & 32) != 0, .prefill_watermark = (b & 128) ? 0.5 : 0.9,
        .prefix_cache = p & 1, .replay_len = (p & 2) ? 6 + (p >> 2 & 3) : 0, .replay_keep = (p & 16) ? 10 : 0,
        .replay_mode = (p & 16) ? 1 + (p >> 5 & 1) : 0, .replay_exact = p >> 3 & 1, .replay_len_kept = (p & 4) ? 7 : 0,
        .prefix_hash_bits = (p & 32) ? p >> 6 : 128};
}

static void reserve(fuzzed *f, const di_request *r)
{
    di_reservation out;
    di_stats_out before, after;
    REQUIRE(di_stats(f->core, &before) == 0);
    int code = di_reserve(f->core, r, &out);
    REQUIRE(code == 0 || code == DI_E_CAPACITY || code == DI_E_ARG);
    REQUIRE(di_stats(f->core, &after) == 0);
    if (code) {
        REQUIRE(before.main.held + before.main.limbo >= after.main.held);    /* queued aborts may have been carried out */
        return;
    }
    REQUIRE(out.uid == f->last_uid + 1 && out.num_blocks >= 1 && out.block_ids[0] > 0);
    f->last_uid = out.uid;
    f->handles[f->n_handles++ % MAX_HANDLES] = out.handle;
}

static void submit(fuzzed *f, script *s)
{
    uint8_t a = take(s), b = take(s);
    int32_t prompt[64], stop = b & 31;
    /* Few different beginnings, so that prompts share prefixes. */
    for (int32_t i = 0; i < 64; i++) prompt[i] = ((i < 24 ? a % 2 : a) * 7 + i) % VOCAB;
    di_request r = {.struct_size = sizeof r, .num_prompt = 1 + (a & 63) % 62, .prompt = prompt,
                    .max_tokens = 1 + 2 * (b & 31), .min_tokens = b >> 6, .num_stop = (a & b & 32) != 0, .stop_ids = &stop,
                    .priority = (a >> 6) - 1, .top_k = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1,
                    .prefix_lookup = a % 8 != 0};
    /* What only some requests ask of the sampler, from bytes that were read already. */
    int32_t biased[] = {stop, VOCAB - 1}, wants = a ^ b * 5;
    float bias[] = {-100, 0.5F};
    if (wants & 1) r.frequency_penalty = 1;
    if (wants & 2) r.bias_ids = biased, r.bias_values = bias, r.num_bias = 2;
    if (wants & 4) r.top_logprobs = 3, r.logprobs_raw = 1;
    if (f->config.replay_mode) r.replay_mode = -1 + (wants >> 4 & 3);
    if (r.replay_mode > f->config.replay_mode) r.replay_mode = -1;
    if (wants & 8 && r.replay_mode == 0 && f->config.engine_type != DI_ENGINE_COMPLETION)
        r.prompt_logprobs = 1, r.prefix_lookup = 0;
    int64_t live = 0;
    REQUIRE(di_unfinished(f->core, &live) == 0);
    if (f->last_uid + 1 >= MAX_UID || live >= 2 * MAX_SEQS) return;
    uint64_t uid = 0;
    if (f->config.engine_type == DI_ENGINE_COMPLETION) {
        REQUIRE(di_submit(f->core, &r, &uid) == DI_E_ARG);
        reserve(f, &r);
        return;
    }
    int code = di_submit(f->core, &r, &uid);
    REQUIRE(code == (r.num_prompt > 0 ? 0 : DI_E_ARG));
    REQUIRE(uid == f->last_uid + 1);
    f->last_uid = uid;
}

static void schedule(fuzzed *f, script *s)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs in;
    int mode = take(s) % 4;
    uint64_t depth = (uint64_t)f->config.depth;
    int may = f->launched - f->committed < depth && f->launched - f->done <= depth;
    if (mode == 3) mode = DI_MODE_DECODE;
    int other = f->config.engine_type == (mode == DI_MODE_DECODE ? DI_ENGINE_PROMPT : DI_ENGINE_COMPLETION);
    if (other) {
        REQUIRE(di_schedule(f->core, mode, &o) == DI_E_ARG);
        mode = mode == DI_MODE_DECODE ? DI_MODE_TRY_PREFILL : DI_MODE_DECODE;
    }
    int code = di_schedule(f->core, mode, &o);
    REQUIRE(code == (may ? 0 : DI_E_ORDER));
    if (code || o.num_reqs == 0) return;
    f->launched++;
    REQUIRE(o.step_id == f->launched);
    f->n[f->launched % 3] = o.num_reqs;
    f->t[f->launched % 3] = o.num_batched_tokens;
    f->kind[f->launched % 3] = o.kind;
    f->n_prompt[f->launched % 3] = 0;
    REQUIRE(di_pack(f->core, o.step_id, &m.base) == 0);
    code = di_pack_sampler(f->core, o.step_id, &in);
    REQUIRE(code == 0 || (code == DI_E_ORDER && f->config.num_draft > 0 && f->launched - f->committed == 2));
    if (!code && in.prompt_tokens.data) f->n_prompt[f->launched % 3] = (int32_t)in.prompt_tokens.shape[0];
}

static void follow(fuzzed *f, const di_event_batch *e)
{
    const uint64_t *uid = e->seq_uid.data;
    const uint16_t *flags = e->flags.data;
    const int32_t *index = e->output_index.data, *token = e->token_id.data;
    for (int64_t i = 0; i < e->seq_uid.shape[0]; i++) {
        REQUIRE(uid[i] <= f->last_uid && f->ends[uid[i]] == 0);
        if (token[i] >= 0) REQUIRE(index[i] == ++f->tokens[uid[i]]);
        if (flags[i] & DI_EVENT_FLAG_LAST) f->ends[uid[i]] = 1;
    }
}

static di_view view(void *data, int32_t dtype, int64_t n, int64_t m)
{
    di_view v = {.data = data, .dtype = dtype, .ndim = m ? 2 : 1, .shape = {n, m}, .stride = {m ? m : 1, m ? 1 : 0},
                 .flags = DI_VIEW_PRESENT};
    return v;
}

/* An array of another shape or type is refused by name, and nothing changes. */
static void refuse_wrong(fuzzed *f, uint64_t step, di_sampler_output out, uint8_t how)
{
    static di_event_batch e;
    di_stats_out before, after;
    di_view *views[] = {&out.sampled_ids, &out.sampled_logprob, &out.row_status};
    di_view *v = views[how % 3];
    if (how & 4) v->shape[0]++;
    else if (how & 8) v->dtype = DI_DTYPE_F64;
    else if (how & 16) v->ndim = 2;
    else if (how & 32) v->data = NULL;
    else v->flags = 0;
    REQUIRE(di_stats(f->core, &before) == 0);
    int code = di_commit(f->core, step, &out, &e);
    REQUIRE(code == DI_E_CONTRACT);
    REQUIRE(di_stats(f->core, &after) == 0 && memcmp(&before, &after, sizeof before) == 0);
}

static void commit(fuzzed *f, script *s)
{
    static di_event_batch e;
    int32_t ids[MAX_SEQS], verified[MAX_TOKENS], drafts[MAX_SEQS * MAX_Q], accepted[MAX_SEQS];
    float logprob[MAX_SEQS] = {0}, prompt[MAX_TOKENS] = {0};
    int8_t status[MAX_SEQS] = {0};
    uint64_t step = f->committed + 1;
    int32_t n = f->n[step % 3], t = f->t[step % 3], k = f->config.num_draft, q = k + 1;
    uint8_t a = take(s);
    if (f->committed == f->launched) {
        di_sampler_output none = {.struct_size = sizeof none, .chain = DI_HASH_SAMPLER_OUTPUT};
        REQUIRE(di_commit(f->core, step, &none, &e) == DI_E_ORDER);
        return;
    }
    int is_decode = f->kind[step % 3] == DI_STEP_DECODE;
    memset(verified, 0xff, sizeof verified);
    for (int32_t i = 0; i < n; i++) {
        ids[i] = (a + i) % VOCAB;
        status[i] = a == 255 ? 1 : 0;
        accepted[i] = is_decode && q > 1 ? (a + i) % q : 0;
        for (int32_t j = 0; j < accepted[i]; j++) verified[i * q + j] = (a + j) % VOCAB;
        for (int32_t j = 0; j < k; j++) drafts[i * k + j] = (a * 3 + j) % VOCAB;
    }
    di_sampler_output out = {.struct_size = sizeof out, .chain = DI_HASH_SAMPLER_OUTPUT,
                             .sampled_ids = view(ids, DI_DTYPE_I32, n, 0),
                             .sampled_logprob = view(logprob, DI_DTYPE_F32, n, 0),
                             .row_status = view(status, DI_DTYPE_I8, n, 0)};
    if (f->n_prompt[step % 3]) out.prompt_logprobs = view(prompt, DI_DTYPE_F32, f->n_prompt[step % 3], 0);
    if (k) out.draft_ids = view(drafts, DI_DTYPE_I32, n, k);
    if (k && is_decode) {
        out.verified_ids = view(verified, DI_DTYPE_I32, t, 0);
        out.accepted = view(accepted, DI_DTYPE_I32, n, 0);
    }
    refuse_wrong(f, step, out, a);
    REQUIRE(di_commit(f->core, step, &out, &e) == 0);
    f->committed++;
    follow(f, &e);
}

/* A device may be done with a step that is not committed; a report may skip steps. */
static void done(fuzzed *f, uint8_t how)
{
    if (how & 1 && f->done < f->launched) f->done = f->launched;
    else if (f->done < f->committed) f->done++;
    REQUIRE(di_step_done(f->core, f->done) == 0);
}

static void end_one(fuzzed *f, script *s)
{
    uint64_t uid = 1 + take(s) % (f->last_uid + 2);
    uint8_t status = 9;
    if (take(s) & 1) {
        REQUIRE(di_abort(f->core, &uid, 1, &status) == 0 && status <= DI_ABORT_UNKNOWN);
    } else {
        int code = di_finish(f->core, uid, DI_FINISH_STOP, 0);
        REQUIRE(code == 0 || code == DI_E_NOT_FOUND);
    }
}

/* The other half of a transfer: inject a reservation, old or new, or acknowledge any request. */
static void transfer(fuzzed *f, script *s)
{
    uint8_t a = take(s), b = take(s);
    uint64_t uid = 1 + a % (f->last_uid + 2);
    int32_t drafts[MAX_Q] = {b % VOCAB, 1, 2, 3};
    di_inject_args args = {.struct_size = sizeof args, .first_token = b % VOCAB, .drafts = drafts,
                           .num_drafts = b & 1 ? f->config.num_draft : 0};
    di_handoff_out out;
    if (f->config.engine_type == DI_ENGINE_COMPLETION && b & 2) {
        int code = di_inject(f->core, f->handles[a % MAX_HANDLES], &args);
        REQUIRE(code == 0 || code == DI_E_STALE_HANDLE);
        REQUIRE(di_inject(f->core, f->handles[a % MAX_HANDLES], &args) == DI_E_STALE_HANDLE);
        return;
    }
    int code = di_handoff(f->core, uid, &out);
    REQUIRE(code == 0 || code == DI_E_NOT_FOUND || code == DI_E_ORDER || code == DI_E_ARG);
    code = di_acknowledge(f->core, uid);
    REQUIRE(code == 0 || code == DI_E_NOT_FOUND);
}

static void poll(fuzzed *f)
{
    static di_event_batch e;
    REQUIRE(di_poll_events(f->core, &e) == 0);
    follow(f, &e);
}

static void probe(fuzzed *f)
{
    di_probe_out out;
    REQUIRE(di_probe(f->core, &out) == 0);
    REQUIRE(out.in_flight == (int32_t)(f->launched - f->committed));
}

static void fork_one(fuzzed *f, script *s)
{
    uint8_t a = take(s);
    di_fork_args args = {.struct_size = sizeof args, .at_prompt = a & 1, .max_tokens = a >> 1 & 7, .seed = a};
    int64_t live = 0;
    REQUIRE(di_unfinished(f->core, &live) == 0);
    if (f->last_uid + 1 >= MAX_UID || live >= 2 * MAX_SEQS) return;
    uint64_t uid = 0;
    int code = di_fork(f->core, 1 + (a >> 4) % (f->last_uid + 1), &args, &uid);
    REQUIRE(f->config.engine_type == DI_ENGINE_NORMAL ? code == 0 || code == DI_E_NOT_FOUND : code == DI_E_ARG);
    if (code == 0) f->last_uid = uid;
}

static void pin_or_unpin(fuzzed *f, script *s)
{
    if (f->pin) {
        REQUIRE(di_unpin(f->core, f->pin) == 0 && di_unpin(f->core, f->pin) == DI_E_STALE_HANDLE);
        f->pin = 0;
        return;
    }
    int32_t units[2] = {1 + take(s) % 32, 1 + take(s) % 8};
    int code = di_pin(f->core, units[1] % 4, units, 1 + units[0] % 2, &f->pin);
    REQUIRE(code == 0 || code == DI_E_ARG);
}

static void reset(fuzzed *f)
{
    int code = di_reset_prefix_cache(f->core, NULL);
    REQUIRE(f->config.prefix_cache ? code == 0 || code == DI_E_BUSY : code == DI_E_CONFIG);
}

static void other(fuzzed *f, script *s)
{
    switch (take(s) % 8) {
    case 0: case 1: fork_one(f, s); break;
    case 2: case 3: pin_or_unpin(f, s); break;
    case 4: if (take(s) < 64) reset(f); break;
    default: probe(f); break;
    }
}

static void apply(fuzzed *f, script *s)
{
    switch (take(s) % 17) {
    case 0: case 1: submit(f, s); break;
    case 2: case 3: case 4: case 5: schedule(f, s); break;
    case 6: case 7: case 8: case 9: commit(f, s); break;
    case 10: case 11: case 12: done(f, take(s)); break;
    case 13: if (take(s) < 48) end_one(f, s); break;
    case 14: other(f, s); break;
    case 15: transfer(f, s); break;
    default: poll(f); break;
    }
    fuzz_total.operations++;
    REQUIRE(di_core_check(f->core, NULL) == 0);
}

static void drain(fuzzed *f)
{
    script none = {NULL, 0};
    for (uint64_t uid = 1; uid <= f->last_uid; uid++) {
        uint8_t status;
        REQUIRE(di_abort(f->core, &uid, 1, &status) == 0);
    }
    if (f->pin) pin_or_unpin(f, &none);
    poll(f);
    for (uint64_t uid = 1; uid <= f->last_uid; uid++) {
        int code = di_acknowledge(f->core, uid);
        REQUIRE(code == 0 || code == DI_E_NOT_FOUND);
    }
    while (f->committed < f->launched) commit(f, &none);
    while (f->done < f->committed) done(f, 0);
    for (int i = 0; i < 64; i++) poll(f);
    REQUIRE(di_core_check(f->core, NULL) == 0 && di_audit(f->core, NULL) == 0);
    for (uint64_t uid = 1; uid <= f->last_uid; uid++) REQUIRE(f->ends[uid] == 1);
    di_stats_out stats;
    REQUIRE(di_stats(f->core, &stats) == 0);
    fuzz_add(&stats);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzzed f;
    script s = {data, size};
    memset(&f, 0, sizeof f);
    f.config = make_config(&s);
    if (di_core_create(&f.config, &f.core, NULL) != 0) return 0;
    while (s.size) apply(&f, &s);
    drain(&f);
    di_core_destroy(f.core);
    return 0;
}
