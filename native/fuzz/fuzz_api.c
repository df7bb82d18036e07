/* Target over the public C API with hostile arguments: NULL, wild integers, wrong sizes, wrong views, stale names, calls
 * in any order. A refused call gives a status other than DI_E_INTERNAL and changes nothing: the structures agree and
 * the counters are equal. Pointers are NULL or valid: nobody can tell a wild one.
 */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "fuzz_api.h"

fuzz_totals fuzz_total;

enum { PROMPT = 24 };

di_stats_out api_look(api *a)
{
    di_stats_out s;
    di_probe_out p;
    memset(&s, 0, sizeof s);
    REQUIRE(di_probe(a->core, &p) == 0);
    REQUIRE(di_stats(a->core, &s) == 0);
    return s;
}

int api_call(api *a, const di_stats_out *before, int code)
{
    REQUIRE(code <= 0 && code >= DI_E_NOT_FOUND);
    REQUIRE(di_core_check(a->core, NULL) == 0);
    if (code == 0) return 0;
    fuzz_total.refused++;
    di_stats_out after;
    memset(&after, 0, sizeof after);
    REQUIRE(di_stats(a->core, &after) == 0);
    REQUIRE(memcmp(before, &after, sizeof after) == 0);
    return code;
}

#define CALL(a, call) \
    do { \
        di_stats_out before_ = api_look(a); \
        api_call(a, &before_, call); \
    } while (0)

int64_t api_wild(script *s)
{
    static const int64_t odd[] = {0, 1, -1, 2, 3, 63, 64, 65, 255, 256, 65535, 65536, INT32_MAX, INT32_MIN, INT64_MAX,
                                  INT64_MIN, UINT32_MAX, (int64_t)1 << 32, ((int64_t)1 << 32) + 1, 1 << 28};
    uint8_t b = take(s);
    if (b < 128) return odd[b % (sizeof odd / sizeof *odd)];
    return (int64_t)(int8_t)take(s) * ((b & 1) ? 1 : 1000003);
}

static di_config good_config(script *s)
{
    uint8_t a = take(s), b = take(s);
    int32_t k = a & 3;
    int32_t type = b % 8 == 6 ? DI_ENGINE_PROMPT : b % 8 == 7 ? DI_ENGINE_COMPLETION : DI_ENGINE_NORMAL;
    return (di_config){
        .struct_size = sizeof(di_config), .block_size = 4, .num_blocks = 24, .num_swa_slots = 6, .num_state_slots = 6,
        .max_num_seqs = MAX_SEQS, .max_num_batched_tokens = MAX_TOKENS, .max_model_len = 60, .vocab_size = VOCAB,
        .min_chunk = 1, .chunk_align = 4, .chunked_prefill = 1, .num_draft = k, .depth = (a & 4) ? 2 : 1,
        .prefill_interval_all = 2, .prefill_interval_any = 3, .window = 6, .backtrack = 1, .num_ratios_sparse = 2,
        .ratios_sparse = {1, 2}, .num_ratios_dense = 1, .ratios_dense = {2}, .inputs = (a & 8) != 0,
        .validation = (a >> 4) % 3, .prefill_watermark = 0.9,
        .engine_type = type, .stop_preempted = type == DI_ENGINE_COMPLETION, .prefix_cache = b >> 6 & 1,
        .prefix_hash_bits = 128, .verify_lengths = k > 0 && b >> 7};
}

/* One 32-bit word of a good configuration is wild. What the check accepts may be large, so only the check is called. */
static void hostile_config(script *s)
{
    di_config k = good_config(s);
    size_t words = sizeof k / sizeof(int32_t);
    size_t at = take(s) % words;
    int is_pointer = at == offsetof(di_config, ngram_table) / 4 || at == offsetof(di_config, ngram_table) / 4 + 1;
    int32_t value = (int32_t)api_wild(s);
    if (!is_pointer) memcpy((char *)&k + 4 * at, &value, sizeof value);
    if (take(s) & 1) k.prefill_watermark = (take(s) & 1) ? NAN : -1;
    di_derived derived;
    int code = di_config_check(take(s) & 1 ? &k : NULL, take(s) & 1 ? &derived : NULL);
    REQUIRE(code == 0 || code == DI_E_CONFIG || code == DI_E_ARG);
    di_core *core = NULL;
    di_error error;
    if (di_config_check(&k, NULL) != 0) REQUIRE(di_core_create(&k, &core, take(s) & 1 ? &error : NULL) != 0 && !core);
    REQUIRE(di_core_create(NULL, &core, &error) == DI_E_ARG && di_core_create(&k, NULL, NULL) == DI_E_ARG);
}

static void submit(api *a, script *s)
{
    int32_t prompt[PROMPT], few[4] = {1, 2, 3, 4};
    for (int32_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)((a->uid + (uint64_t)i) % VOCAB);
    di_request r = {.struct_size = sizeof r, .num_prompt = 1 + take(s) % PROMPT, .prompt = prompt,
                    .max_tokens = 1 + take(s) % 40, .eos_ids = few, .stop_ids = few, .forced = few, .num_stop = 1,
                    .top_k = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .prefix_lookup = 1};
    uint64_t uid = 0;
    int64_t x = api_wild(s);
    float odd[] = {NAN, INFINITY, -1, 0, 3};
    float f = odd[take(s) % 5];
    float bias[4] = {1, -1, 100, f};
    int is_null = 0;
    switch (take(s) % 32) {
    case 0: r.struct_size = (uint32_t)x; break;
    case 1: r.num_prompt = x > 0 ? 0 : (int32_t)x; break;
    case 2: r.prompt = NULL; break;
    case 3: r.max_tokens = (int32_t)x; break;
    case 4: r.min_tokens = (int32_t)x; break;
    case 5: r.num_eos = x > 0 && x < 5 ? (int32_t)x : x > 64 && x <= INT32_MAX ? (int32_t)x : -1; break;
    case 6: r.num_stop = x > 0 && x < 5 ? (int32_t)x : x > 64 && x <= INT32_MAX ? (int32_t)x : -1; break;
    case 7: r.eos_ids = NULL; r.num_eos = 1; break;
    case 8: r.num_forced = x > 4 || x < INT32_MIN ? -1 : (int32_t)x; break;
    case 9: r.forced = NULL; r.num_forced = 2; break;
    case 10: r.ignore_eos = (int32_t)x; break;
    case 11: r.priority = (int32_t)x; break;
    case 12: r.top_k = (int32_t)x; break;
    case 13: r.temperature = f; break;
    case 14: r.top_p = f; break;
    case 15: r.min_p = f; break;
    case 16: r.repetition_penalty = f; break;
    case 17: r.presence_penalty = f; break;
    case 18: r.frequency_penalty = f; break;
    case 19: prompt[0] = (int32_t)x; break;
    case 20: few[0] = (int32_t)x; break;
    case 21: is_null = 1 + take(s) % 3; break;
    case 22: r.num_bias = x > 4 && x <= 1024 ? -1 : (int32_t)x; r.bias_ids = few; r.bias_values = bias; break;
    case 23: r.num_bias = 2; r.bias_ids = take(s) & 1 ? few : NULL; break;
    case 24: r.num_bias = 2; r.bias_ids = few; r.bias_values = bias; few[1] = (int32_t)x; break;
    case 25: r.top_logprobs = (int32_t)x; break;
    case 26: r.logprobs_raw = (int32_t)x; break;
    case 27: r.prompt_logprobs = (int32_t)x; break;
    default: break;
    }
    int64_t live = 0;
    REQUIRE(di_unfinished(a->core, &live) == 0);
    if (live > 2 * MAX_SEQS) return;
    di_stats_out before = api_look(a);
    int code = di_submit(is_null == 1 ? NULL : a->core, is_null == 2 ? NULL : &r, is_null == 3 ? NULL : &uid);
    if (api_call(a, &before, code) == 0) {
        REQUIRE(uid == a->uid + 1);
        a->uid = uid;
    } else {
        REQUIRE(uid == 0);
    }
}

static uint64_t some_uid(api *a, script *s)
{
    uint8_t b = take(s);
    return b < 160 ? 1 + b % (a->uid + 1) : (uint64_t)api_wild(s);
}

static void end_requests(api *a, script *s)
{
    uint64_t uids[4];
    uint8_t status[4] = {9, 9, 9, 9}, how = take(s);
    for (int i = 0; i < 4; i++) uids[i] = some_uid(a, s);
    if (how & 1) {
        CALL(a, di_finish((how & 2) ? NULL : a->core, uids[0], (int)api_wild(s), (int)api_wild(s)));
        return;
    }
    if (how & 2) CALL(a, di_abort(a->core, NULL, 1 + (how >> 2 & 1), status));
    else if (how & 4) CALL(a, di_abort(a->core, uids, 1, NULL));
    else if (how & 8) CALL(a, di_abort(a->core, uids, -1 - (how >> 4), status));
    else if (how & 16) CALL(a, di_abort(NULL, uids, 1, status));
    else if (how & 32) CALL(a, di_abort(a->core, NULL, 0, NULL));
    else if (how & 64) {
        CALL(a, di_abort(a->core, uids, how >> 7 ? 1 : 4, status));
        REQUIRE(status[0] <= DI_ABORT_UNKNOWN);
    }
}

static void look_inside(api *a, script *s)
{
    int is_null = take(s) & 1;
    di_core *c = take(s) & 1 ? NULL : a->core;
    di_stats_out stats;
    di_probe_out probe;
    di_event_info info;
    const di_layouts *layouts;
    int64_t n;
    CALL(a, di_probe(c, is_null ? NULL : &probe));
    CALL(a, di_unfinished(c, is_null ? NULL : &n));
    CALL(a, di_event_last(c, is_null ? NULL : &info));
    CALL(a, di_core_layouts(c, is_null ? NULL : &layouts));
    CALL(a, di_stats(c, is_null ? NULL : &stats));
    CALL(a, di_event_pin(c, (int)api_wild(s), (int)api_wild(s)));
    CALL(a, di_step_done(c, (uint64_t)api_wild(s)));
    CALL(a, di_audit(c, NULL));
    REQUIRE(di_core_check(NULL, NULL) == DI_E_ARG);
    di_core_destroy(NULL);
    REQUIRE(di_last_error() && di_last_contract() && di_last_field() && di_version());
}

static void operation(api *a, script *s)
{
    switch (take(s) % 8) {
    case 0: submit(a, s); break;
    case 1: end_requests(a, s); break;
    case 2: look_inside(a, s); break;
    case 3: hostile_config(s); break;
    case 4: api_hostile_step(a, s); break;
    case 5: if (take(s) & 3) api_hostile_sharing(a, s); else api_hostile_cost(a, s); break;
    default: api_good_step(a, s); break;
    }
    fuzz_total.operations++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static api a;
    script s = {data, size};
    memset(&a, 0, sizeof a);
    a.config = good_config(&s);
    REQUIRE(di_core_create(&a.config, &a.core, NULL) == 0);
    while (s.size) operation(&a, &s);
    for (uint64_t uid = 1; uid <= a.uid; uid++) {
        uint8_t status;
        REQUIRE(di_abort(a.core, &uid, 1, &status) == 0);
    }
    api_end_sharing(&a);
    api_finish(&a);
    di_stats_out stats;
    REQUIRE(di_core_check(a.core, NULL) == 0 && di_audit(a.core, NULL) == 0 && di_stats(a.core, &stats) == 0);
    REQUIRE(stats.unfinished == 0 && stats.main.free + stats.main.cached == stats.main.total);
    fuzz_add(&stats);
    di_core_destroy(a.core);
    return 0;
}
