/* Forks, pins, the prefix cache, transfers and verification lengths of fuzz_api.c, with arguments of every kind. */
#include <math.h>
#include <string.h>

#include "fuzz_api.h"

#define CALL(a, call) \
    do { \
        di_stats_out before_ = api_look(a); \
        api_call(a, &before_, call); \
    } while (0)

/* A handle that may be right, used up, of another kind, or never made. */
static uint64_t some_handle(api *a, script *s)
{
    uint8_t b = take(s);
    return b < 160 ? a->handle[b % API_HANDLES] : (uint64_t)api_wild(s);
}

static uint64_t some_uid(api *a, script *s)
{
    uint8_t b = take(s);
    return b < 200 ? 1 + b % (a->uid + 1) : (uint64_t)api_wild(s);
}

static void keep(api *a, uint64_t handle) { a->handle[a->n_handles++ % API_HANDLES] = handle; }

static void fork_one(api *a, script *s)
{
    uint8_t how = take(s);
    di_fork_args args = {.struct_size = (how & 1) ? (uint32_t)api_wild(s) : sizeof args, .seed = how,
                         .max_tokens = (how & 2) ? (int32_t)api_wild(s) : 1 + (how >> 4),
                         .at_prompt = (how & 4) ? (int32_t)api_wild(s) : how >> 7};
    uint64_t uid = 0;
    int64_t live = 0;
    REQUIRE(di_unfinished(a->core, &live) == 0);
    if (live > 2 * MAX_SEQS) return;
    int is_null = (how & 24) == 24 ? take(s) & 3 : 3;
    di_stats_out before = api_look(a);
    int code = di_fork(is_null == 0 ? NULL : a->core, some_uid(a, s), is_null == 1 ? NULL : &args,
                       is_null == 2 ? NULL : &uid);
    if (api_call(a, &before, code) == 0) a->uid = uid;
    else REQUIRE(uid == 0);
}

static void pin_some(api *a, script *s)
{
    int32_t units[3];
    for (int i = 0; i < 3; i++) units[i] = (take(s) & 3) ? 1 + take(s) % 12 : (int32_t)api_wild(s);
    uint8_t how = take(s);
    uint64_t handle = 0;
    int64_t n = (how & 1) ? api_wild(s) : 1 + (how >> 6) % 3;
    if (n > 3) n = -n;
    if (a->pinned >= 2) how |= 32;    /* two pins at a time, or the pool is soon full of them */
    di_stats_out before = api_look(a);
    if (how & 32) {
        if (api_call(a, &before, di_unpin((how & 2) ? NULL : a->core, some_handle(a, s))) == 0) a->pinned--;
        return;
    }
    int code = di_pin((how & 2) ? NULL : a->core, (how & 4) ? (int)api_wild(s) : (how >> 3) % 4,
                      (how & 8) ? NULL : units, (int)n, (how & 16) ? NULL : &handle);
    if (api_call(a, &before, code)) return;
    a->pinned++;
    keep(a, handle);
}

static void transfer(api *a, script *s)
{
    uint8_t how = take(s);
    int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, (how & 1) ? (int32_t)api_wild(s) : 8}, drafts[MAX_K] = {1, 2, 3};
    di_request r = {.struct_size = sizeof r, .num_prompt = 1 + (how >> 5), .prompt = prompt, .max_tokens = 4,
                    .top_k = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    di_inject_args args = {.struct_size = sizeof args, .first_token = (how & 2) ? (int32_t)api_wild(s) : 1,
                           .logprob = (how & 4) ? NAN : 0, .num_drafts = (how & 8) ? (int32_t)(int8_t)take(s) : 0,
                           .drafts = (how & 16) ? NULL : drafts};
    di_reservation given = {0};
    di_handoff_out out;
    di_stats_out before = api_look(a);
    switch (take(s) % 4) {
    case 0:
        if (before.unfinished > 2 * MAX_SEQS) return;
        if (api_call(a, &before, di_reserve(a->core, (how & 4) ? NULL : &r, (how & 8) ? NULL : &given))) return;
        a->uid = given.uid;
        keep(a, given.handle);
        break;
    case 1:
        api_call(a, &before, di_inject((how & 32) ? NULL : a->core, some_handle(a, s), (how & 64) ? NULL : &args));
        break;
    case 2: api_call(a, &before, di_handoff(a->core, some_uid(a, s), (how & 64) ? NULL : &out)); break;
    default: api_call(a, &before, di_acknowledge((how & 32) ? NULL : a->core, some_uid(a, s))); break;
    }
}

/* The budget and its distribution as functions of their own. */
static void pure_verification(script *s)
{
    enum { ROWS = 3, DRAFTS = 2, VALUES = ROWS * DRAFTS, SCRATCH = 6 * VALUES + 8196 };
    static uint32_t scratch[SCRATCH / 4 + 1];
    int32_t sizes[2] = {5, 9}, lengths[ROWS] = {0, 0, 0}, total = -1;
    double ms[2] = {1, 1.5}, odd[] = {NAN, INFINITY, -1, 0, 2};
    float values[VALUES] = {1, 0.5F, 0.75F, 0.75F, 0.25F, 0};
    uint8_t how = take(s);
    for (int i = 0; i < VALUES; i++) values[i] *= (float)(take(s) & 1);
    if (how & 1) values[take(s) % VALUES] = (float)odd[take(s) % 5];
    if (how & 2) sizes[take(s) & 1] = (int32_t)api_wild(s);
    if (how & 4) ms[take(s) & 1] = odd[take(s) % 5];
    int n = ROWS, k = DRAFTS;
    int64_t x = api_wild(s);
    if (how & 8) n = x < ROWS ? (int)x : INT32_MAX;     /* no more than there are, or more than there may be */
    if (how & 16) k = x < DRAFTS ? (int)x : INT32_MAX;
    double slope = (how & 32) ? odd[take(s) % 5] : 0.01;
    int code = di_verify_budget(sizes, ms, 2, slope, 0.1, (how & 64) ? NULL : values, n, k, (how & 128) ? NULL : scratch,
                                take(s) % 8 ? SCRATCH : (uint64_t)api_wild(s) % SCRATCH, take(s) % 8 ? &total : NULL);
    REQUIRE(code == 0 || code == DI_E_ARG);
    REQUIRE(code != 0 || total == -1 || (total >= n && total <= n * (k + 1)));
    if (code != 0 || take(s) % 4 == 0) total = (int32_t)api_wild(s);
    code = di_verify_distribute((how & 64) ? NULL : values, n, k, total, take(s) % 8 ? lengths : NULL);
    REQUIRE(code == 0 || code == DI_E_ARG);
    for (int i = 0; code == 0 && i < n; i++) {
        REQUIRE(lengths[i] >= 1 && lengths[i] <= k + 1);
        total -= lengths[i];
    }
    REQUIRE(code != 0 || total == 0);
}

static void verification(api *a, script *s)
{
    int32_t sizes[3] = {4, 8, 16}, lengths[MAX_SEQS] = {1, 1, 1, 1};
    double ms[3] = {1, 2, 3};
    uint8_t how = take(s);
    if (how & 1) sizes[take(s) % 3] = (int32_t)api_wild(s);
    if (how & 2) ms[take(s) % 3] = (take(s) & 1) ? NAN : -1;
    if (how & 4) lengths[take(s) % MAX_SEQS] = (int32_t)api_wild(s);
    int n = (how & 8) ? (int)(int8_t)take(s) : 3;
    di_core *c = (how & 16) ? NULL : a->core;
    if (n > 3) n = -n;
    CALL(a, di_varlen_curve(c, (how & 32) ? NULL : sizes, (how & 64) ? NULL : ms, n));
    di_timing timing = {(how & 1) ? (int32_t)api_wild(s) : 8, (int32_t)(how >> 5), (how & 2) ? -NAN : 2.5, 0.5};
    CALL(a, di_varlen_observe(c, (how & 128) ? NULL : &timing));
    int rows = (int)(int8_t)take(s);
    if (rows > MAX_SEQS) rows = -rows;
    CALL(a, di_correct(c, (how & 8) ? (uint64_t)api_wild(s) : a->launched, (how & 64) ? NULL : lengths, rows));
}

void api_hostile_sharing(api *a, script *s)
{
    uint64_t salt = take(s);
    switch (take(s) % 8) {
    case 0: case 1: fork_one(a, s); break;
    case 2: case 3: pin_some(a, s); break;
    case 4: case 5: transfer(a, s); break;
    case 6: verification(a, s); pure_verification(s); break;
    default: CALL(a, di_reset_prefix_cache((salt & 1) ? NULL : a->core, (salt & 2) ? NULL : &salt)); break;
    }
}

void api_end_sharing(api *a)
{
    for (int i = 0; i < API_HANDLES; i++) (void)di_unpin(a->core, a->handle[i]);
    for (uint64_t uid = 1; uid <= a->uid; uid++) {
        int code = di_acknowledge(a->core, uid);
        REQUIRE(code == 0 || code == DI_E_NOT_FOUND);
    }
}
