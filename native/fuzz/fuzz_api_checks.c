/* The checks of records, which anyone may call: records of right steps with one thing wrong, and any limits, level and
 * kept arrays. A check writes neither record nor step; to leave arrays out finds less and never more; level FULL leaves
 * none out; a refusal says what and where.
 */
#include <string.h>

#include "di_config.h"
#include "fuzz_api.h"

/* Runs of views in the records, as offsets of the first and the last. */
typedef struct run {
    size_t first, last;
} run;
#define RUN(type, first, last) {offsetof(type, first), offsetof(type, last)}
static const run STEP_RUNS[] = {RUN(di_scheduler_outputs, seq_uid, replayed_tokens)};
static const run INPUT_RUNS[] = {RUN(di_input_metadata, input_ids, cu_seqlens_q_incl),
                                 RUN(di_input_metadata, mirror_index, mirror_reverse)};
static const run V41_RUNS[] = {RUN(di_input_metadata_v41, base.input_ids, base.cu_seqlens_q_incl),
                               RUN(di_input_metadata_v41, positions_c, load_swa),
                               RUN(di_input_metadata_v41, ks, rp_slot_swa),
                               RUN(di_input_metadata_v41, draft_slot_swa, row_slot_idx)};
static const run WISH_RUNS[] = {RUN(di_sampler_inputs, selected_rows, grammar_rows[15]),
                                RUN(di_sampler_inputs, row_slot, logprobs_raw)};
static const run OUTPUT_RUNS[] = {RUN(di_sampler_output, sampled_ids, accepted_per_step),
                                  RUN(di_sampler_output, moe_balance, moe_balance),
                                  RUN(di_sampler_output, row_status, row_status)};
static const run EVENT_RUNS[] = {RUN(di_event_batch, seq_uid, prompt_lp_offset),
                                 RUN(di_event_batch, confidences, prompt_logprobs)};

enum { SCRATCH_WORDS = 4096, COPY_BYTES = 16384 };

static di_view *some_view(script *s, void *record, const run *runs, size_t n)
{
    const run *r = &runs[take(s) % n];
    size_t count = (r->last - r->first) / sizeof(di_view) + 1;
    return (di_view *)(void *)((char *)record + r->first) + take(s) % count;
}

static size_t element_bytes(int32_t dtype)
{
    static const size_t bytes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
    return (size_t)dtype < sizeof bytes / sizeof *bytes ? bytes[dtype] : 0;
}

/* One wrong value, in a copy, since the arrays of the core are its own. */
static void damage_values(script *s, di_view *v, char *copy)
{
    int64_t n = v->shape[0] * (v->ndim == 2 ? v->shape[1] : 1), x = api_wild(s);
    size_t bytes = element_bytes(v->dtype);
    if (v->data == NULL || v->ndim > 2 || n <= 0 || (size_t)n * bytes > COPY_BYTES) return;
    memcpy(copy, v->data, (size_t)n * bytes);
    memcpy(copy + bytes * (size_t)(take(s) % n), &x, bytes);
    v->data = copy;
}

/* Lengths only shrink: data of the length that a view states is all that anyone can ask for. */
static void damage_view(script *s, di_view *v, char *copy)
{
    int64_t x = api_wild(s);
    int d = take(s) & 1;
    switch (take(s) % 14) {
    case 0: v->data = NULL; break;
    case 1: v->dtype = (int32_t)x; break;
    case 2: v->ndim = (int32_t)x; break;
    case 3: v->shape[d] = x < v->shape[d] ? x : v->shape[d] / 2; break;
    case 4: v->stride[d] = x; break;
    case 5: v->space = (int32_t)x; break;
    case 6: v->flags = (v->flags & DI_VIEW_PRESENT) ? 0 : (uint32_t)x; break;
    default: damage_values(s, v, copy); break;
    }
}

/* Whether anything is damaged: one record of four stays as it is. */
static int damage_record(script *s, void *record, const run *runs, size_t n, char *copy)
{
    uint8_t how = take(s) % 20;
    uint32_t word = (uint32_t)api_wild(s);
    if (how < 12) damage_view(s, some_view(s, record, runs, n), copy);
    else if (how == 12) memcpy(record, &word, sizeof word);                  /* struct_size, which may be too large */
    else if (how == 13) ((char *)record)[8 + word % 8] ^= 1;                 /* chain */
    else if (how == 14 && runs->first > 16)
        memcpy((char *)record + 16 + 4 * (take(s) % (runs->first / 4 - 4)), &word, sizeof word);
    return how < 15;
}

static di_limits some_limits(api *a, script *s, int *is_right)
{
    static int64_t scratch[SCRATCH_WORDS];
    di_derived derived;
    di_limits l;
    REQUIRE(di_config_check(&a->config, &derived) == 0);
    memset(&l, 0, sizeof l);
    di_config_limits(&a->config, &derived, &l);
    *is_right = take(s) % 4 != 0;
    if (!*is_right) {
        int32_t value = (int32_t)api_wild(s);
        memcpy((char *)&l + 4 * (take(s) % (offsetof(di_limits, step_id) / 4)), &value, sizeof value);
    }
    l.scratch = (take(s) & 1) ? scratch : NULL;
    l.scratch_bytes = (take(s) & 1) ? sizeof scratch : take(s);
    return l;
}

static uint64_t some_bits(script *s)
{
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++) bits = bits << 8 | take(s);
    return (take(s) & 3) ? bits : ~UINT64_C(0);
}

/* What a check was asked, and what it found with nothing left out and with some arrays left out. */
typedef struct asked {
    di_limits limits;
    int is_right;       /* record and limits are as the core made them */
    int level;
    uint64_t kept;
    int whole, left_out;
    di_error whole_error, error;
} asked;

static asked ask(api *a, script *s, int is_damaged)
{
    asked q = {.is_right = 0};
    q.limits = some_limits(a, s, &q.is_right);
    q.is_right = q.is_right && !is_damaged;
    q.level = take(s) % 4;
    q.kept = some_bits(s);
    return q;
}

static void answer(const asked *q, int32_t contract)
{
    REQUIRE(q->whole == 0 || q->whole == DI_E_CONTRACT);
    REQUIRE(q->left_out == 0 || q->left_out == DI_E_CONTRACT);
    if (q->level <= DI_LEVEL_OFF) REQUIRE(q->whole == 0 && q->left_out == 0);
    if (q->is_right) REQUIRE(q->whole == 0);
    if (q->whole == 0) REQUIRE(q->left_out == 0);
    if (q->level >= DI_LEVEL_FULL) REQUIRE(q->left_out == q->whole);
    if (q->left_out == 0) return;
    fuzz_total.refused++;
    REQUIRE(q->error.contract == contract && q->error.field >= 0 && q->error.message[0] != 0);
    REQUIRE(memchr(q->error.message, 0, sizeof q->error.message) != NULL);
    if (q->level >= DI_LEVEL_FULL) REQUIRE(memcmp(&q->error, &q->whole_error, sizeof q->error) == 0);
}

void api_check_step(api *a, script *s, const di_scheduler_outputs *o)
{
    static char copy[COPY_BYTES];
    di_scheduler_outputs r = *o, before;
    int is_damaged = damage_record(s, &r, STEP_RUNS, 1, copy);
    before = r;
    asked q = ask(a, s, is_damaged);
    q.whole = di_check_scheduler_outputs(&r, &q.limits, q.level, &q.whole_error);
    q.left_out = di_check_scheduler_outputs_kept(&r, &q.limits, q.level, q.kept, &q.error);
    REQUIRE(memcmp(&r, &before, sizeof r) == 0);
    answer(&q, DI_CONTRACT_SCHEDULER_OUTPUTS);
}

void api_check_inputs(api *a, script *s, const di_scheduler_outputs *o, const di_input_metadata_v41 *m)
{
    static char copy[COPY_BYTES];
    di_input_metadata_v41 r, before;
    memset(&r, 0, sizeof r);
    int is_v41 = a->config.inputs != 0 && take(s) & 1;
    memcpy(&r, m, a->config.inputs ? sizeof r : sizeof r.base);
    if (a->config.inputs && !is_v41) r.base.chain = DI_HASH_INPUT_METADATA;   /* the record that it begins with */
    int is_damaged = is_v41 ? damage_record(s, &r, V41_RUNS, sizeof V41_RUNS / sizeof *V41_RUNS, copy)
                            : damage_record(s, &r, INPUT_RUNS, sizeof INPUT_RUNS / sizeof *INPUT_RUNS, copy);
    before = r;
    const di_scheduler_outputs *step = take(s) & 3 ? o : NULL;
    asked q = ask(a, s, is_damaged);
    if (is_v41) {
        q.whole = di_check_input_metadata_v41_in(&r, step, &q.limits, q.level, &q.whole_error);
        q.left_out = di_check_input_metadata_v41_in(&r, step, &q.limits, q.level, &q.error);
    } else {
        q.whole = di_check_input_metadata_in(&r.base, step, &q.limits, q.level, &q.whole_error);
        q.left_out = di_check_input_metadata_in_kept(&r.base, step, &q.limits, q.level, q.kept, &q.error);
        REQUIRE(di_check_input_metadata_in_kept(&r.base, step, &q.limits, q.level, q.kept, NULL) == q.left_out);
    }
    REQUIRE(memcmp(&r, &before, sizeof r) == 0);
    answer(&q, is_v41 ? DI_CONTRACT_INPUT_METADATA_V41 : DI_CONTRACT_INPUT_METADATA);
}

void api_check_wishes(api *a, script *s, const di_scheduler_outputs *o, const di_sampler_inputs *in)
{
    static char copy[COPY_BYTES];
    di_sampler_inputs r = *in;
    int is_damaged = damage_record(s, &r, WISH_RUNS, sizeof WISH_RUNS / sizeof *WISH_RUNS, copy);
    const di_scheduler_outputs *step = take(s) & 3 ? o : NULL;
    asked q = ask(a, s, is_damaged);
    q.whole = di_check_sampler_inputs_in(&r, step, &q.limits, q.level, &q.whole_error);
    q.left_out = di_check_sampler_inputs_in(&r, step, &q.limits, q.level, &q.error);
    answer(&q, DI_CONTRACT_SAMPLER_INPUTS);
}

void api_check_output(api *a, script *s, const di_scheduler_outputs *o, const di_sampler_output *out)
{
    static char copy[COPY_BYTES];
    di_sampler_output r = *out, before;
    int is_damaged = damage_record(s, &r, OUTPUT_RUNS, sizeof OUTPUT_RUNS / sizeof *OUTPUT_RUNS, copy);
    before = r;
    const di_scheduler_outputs *step = take(s) & 3 ? o : NULL;
    asked q = ask(a, s, is_damaged);
    q.whole = di_check_sampler_output_in(&r, step, &q.limits, q.level, &q.whole_error);
    q.left_out = di_check_sampler_output_in_kept(&r, step, &q.limits, q.level, q.kept, &q.error);
    REQUIRE(di_check_sampler_output_in_kept(&r, step, &q.limits, q.level, q.kept, NULL) == q.left_out);
    REQUIRE(memcmp(&r, &before, sizeof r) == 0);
    answer(&q, DI_CONTRACT_SAMPLER_OUTPUT);
}

void api_check_events(api *a, script *s, const di_event_batch *e)
{
    static char copy[COPY_BYTES];
    di_event_batch r = *e;
    int is_damaged = damage_record(s, &r, EVENT_RUNS, sizeof EVENT_RUNS / sizeof *EVENT_RUNS, copy);
    asked q = ask(a, s, is_damaged);
    q.whole = di_check_event_batch(&r, &q.limits, q.level, &q.whole_error);
    q.left_out = di_check_event_batch_kept(&r, &q.limits, q.level, q.kept, &q.error);
    answer(&q, DI_CONTRACT_EVENT_BATCH);
}
