/* Steps of fuzz_api.c: right ones, and those with one wrong argument. */
#include <string.h>

#include "fuzz_api.h"

static di_view view(void *data, int32_t dtype, int64_t n, int64_t m)
{
    di_view v = {.data = data, .dtype = dtype, .ndim = m ? 2 : 1, .shape = {n, m}, .stride = {m ? m : 1, m ? 1 : 0},
                 .flags = DI_VIEW_PRESENT};
    return v;
}

static di_sampler_output good_output(api *a, script *s)
{
    uint64_t step = a->committed + 1;
    int32_t n = a->n[step % 3], t = a->t[step % 3], k = a->config.num_draft, q = k + 1;
    int is_decode = a->kind[step % 3] == DI_STEP_DECODE;
    memset(a->verified, 0xff, sizeof a->verified);
    memset(a->status, 0, sizeof a->status);
    for (int32_t i = 0; i < n; i++) {
        a->ids[i] = take(s) % VOCAB;
        /* Rows of any length accept nothing. */
        a->accepted[i] = is_decode && q > 1 && !a->config.verify_lengths ? take(s) % q : 0;
        for (int32_t j = 0; j < a->accepted[i]; j++) a->verified[i * q + j] = j;
        for (int32_t j = 0; j < k; j++) a->drafts[i * k + j] = j;
    }
    di_sampler_output out = {.struct_size = sizeof out, .chain = DI_HASH_SAMPLER_OUTPUT,
                             .sampled_ids = view(a->ids, DI_DTYPE_I32, n, 0),
                             .sampled_logprob = view(a->logprob, DI_DTYPE_F32, n, 0),
                             .row_status = view(a->status, DI_DTYPE_I8, n, 0)};
    if (k) out.draft_ids = view(a->drafts, DI_DTYPE_I32, n, k);
    if (k && is_decode) {
        out.verified_ids = view(a->verified, DI_DTYPE_I32, t, 0);
        out.accepted = view(a->accepted, DI_DTYPE_I32, n, 0);
    }
    return out;
}

static void note(api *a, const di_scheduler_outputs *o)
{
    if (o->num_reqs == 0) return;
    a->launched++;
    REQUIRE(o->step_id == a->launched);
    a->n[a->launched % 3] = o->num_reqs;
    a->t[a->launched % 3] = o->num_batched_tokens;
    a->kind[a->launched % 3] = o->kind;
    a->outputs[a->launched % 3] = *o;
}

static void good_commit(api *a, script *s)
{
    static di_event_batch e;
    di_sampler_output out = good_output(a, s);
    int looks = (take(s) & 3) == 3;
    if (looks) api_check_output(a, s, &a->outputs[(a->committed + 1) % 3], &out);
    REQUIRE(di_commit(a->core, a->committed + 1, &out, &e) == 0);
    a->committed++;
    if (looks) api_check_events(a, s, &e);
    REQUIRE(di_step_done(a->core, a->committed) == 0);
}

void api_good_step(api *a, script *s)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs in;
    if (a->launched - a->committed >= (uint64_t)a->config.depth) good_commit(a, s);
    int mode = (take(s) & 3) ? DI_MODE_DECODE : DI_MODE_TRY_PREFILL;
    if (a->config.engine_type == DI_ENGINE_PROMPT) mode = DI_MODE_TRY_PREFILL;
    if (a->config.engine_type == DI_ENGINE_COMPLETION) mode = DI_MODE_DECODE;
    REQUIRE(di_schedule(a->core, mode, &o) == 0);
    note(a, &o);
    if (o.num_reqs == 0) return;
    REQUIRE(di_pack(a->core, o.step_id, &m.base) == 0);
    int code = di_pack_sampler(a->core, o.step_id, &in);
    REQUIRE(code == 0 || (code == DI_E_ORDER && a->launched - a->committed == 2));
    switch (take(s) % 8) {
    case 5: api_check_step(a, s, &o); break;
    case 6: api_check_inputs(a, s, &o, &m); break;
    case 7: if (code == 0) api_check_wishes(a, s, &o, &in); break;
    default: break;
    }
}

void api_finish(api *a)
{
    static di_event_batch e;
    script none = {NULL, 0};
    REQUIRE(di_poll_events(a->core, &e) == 0);
    while (a->committed < a->launched) good_commit(a, &none);
    REQUIRE(di_step_done(a->core, a->launched) == 0);
    for (int i = 0; i < 64; i++) REQUIRE(di_poll_events(a->core, &e) == 0);
}

/* Views of a SamplerOutput; shape is not touched where a dimension is free, since its data would be too short. */
static const struct {
    size_t at;
    int is_free;
} VIEWS[] = {
    {offsetof(di_sampler_output, sampled_ids), 0},       {offsetof(di_sampler_output, sampled_ids_device), 0},
    {offsetof(di_sampler_output, sampled_logprob), 0},   {offsetof(di_sampler_output, verified_ids), 0},
    {offsetof(di_sampler_output, verified_logprob), 0},  {offsetof(di_sampler_output, draft_logprob), 0},
    {offsetof(di_sampler_output, accepted), 0},          {offsetof(di_sampler_output, draft_ids), 0},
    {offsetof(di_sampler_output, confidence), 0},        {offsetof(di_sampler_output, top_ids), 1},
    {offsetof(di_sampler_output, top_logprobs), 1},      {offsetof(di_sampler_output, verified_top_ids), 1},
    {offsetof(di_sampler_output, sum_smaller), 0},       {offsetof(di_sampler_output, prompt_logprobs), 1},
    {offsetof(di_sampler_output, grammar_status), 0},    {offsetof(di_sampler_output, row_status), 0},
    {offsetof(di_sampler_output, verified_per_step), 0}, {offsetof(di_sampler_output, moe_balance), 0},
};

static void damage(script *s, di_view *v, int is_free)
{
    int64_t x = api_wild(s);
    switch (take(s) % 8) {
    case 0: v->data = NULL; break;
    case 1: v->dtype = (int32_t)x; break;
    case 2: v->ndim = (int32_t)x; break;
    case 3: if (!is_free) v->shape[0] = x; break;
    case 4: if (!is_free) v->shape[1] = x; break;
    case 5: if (!is_free) v->stride[take(s) & 1] = x; break;
    case 6: v->space = (int32_t)x; break;
    default: v->flags = (uint32_t)x; break;
    }
}

static void hostile_commit(api *a, script *s)
{
    static di_event_batch e;
    uint8_t how = take(s);
    uint64_t step = a->committed + 1;
    di_sampler_output out = {.struct_size = sizeof out, .chain = DI_HASH_SAMPLER_OUTPUT};
    if (a->committed < a->launched) out = good_output(a, s);
    size_t at = take(s) % (sizeof VIEWS / sizeof *VIEWS);
    if (how & 1) damage(s, (di_view *)(void *)((char *)&out + VIEWS[at].at), VIEWS[at].is_free);
    if (how & 2) out.struct_size = (uint32_t)api_wild(s);
    if (how & 4) out.chain ^= take(s);
    if (how & 8) step = (uint64_t)api_wild(s);
    if (how & 16) a->ids[take(s) % MAX_SEQS] = (int32_t)api_wild(s);
    if (how & 32) a->verified[take(s) % MAX_TOKENS] = (int32_t)api_wild(s);
    if (how & 64) a->accepted[take(s) % MAX_SEQS] = (int32_t)api_wild(s);
    int is_null = how >> 7 ? take(s) % 8 : 7;
    di_stats_out before = api_look(a);
    int code = di_commit(is_null == 0 ? NULL : a->core, step, is_null == 1 ? NULL : &out, is_null == 2 ? NULL : &e);
    if (api_call(a, &before, code) == 0) {
        REQUIRE(step == a->committed + 1);
        a->committed++;
        REQUIRE(di_step_done(a->core, a->committed) == 0);
    }
}

void api_hostile_step(api *a, script *s)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs in;
    static di_event_batch e;
    uint8_t how = take(s);
    int64_t x = api_wild(s);
    di_core *c = (how & 8) ? NULL : a->core;
    di_stats_out before = api_look(a);
    uint64_t step = (how & 16) ? a->launched : (uint64_t)x;
    switch (how % 8) {
    case 0:
        if (api_call(a, &before, di_schedule(c, (int)x, (how & 16) ? NULL : &o)) == 0) note(a, &o);
        break;
    case 1: api_call(a, &before, di_pack(c, step, (how & 32) ? NULL : &m.base)); break;
    case 2: api_call(a, &before, di_pack_sampler(c, step, (how & 32) ? NULL : &in)); break;
    case 3: api_call(a, &before, di_poll_events(c, (how & 16) ? NULL : &e)); break;
    default: hostile_commit(a, s); break;
    }
}

static di_cost_model cost_model(script *s)
{
    di_cost_model m = {.struct_size = sizeof m, .num_kinds = 2, .base = 1000, .seq = 10, .row = 100, .kept = 1,
                       .logit = 1, .kind = {{5, 1, 6, 1, 1}, {7, 2, 0, 0, 1}}};
    size_t words = sizeof m / sizeof(int32_t);
    for (uint8_t n = take(s) % 3; n; n--) {
        int32_t value = (int32_t)api_wild(s);
        memcpy((char *)&m + 4 * (((size_t)take(s) + 256 * (size_t)(take(s) & 3)) % words), &value, sizeof value);
    }
    return m;
}

void api_hostile_cost(api *a, script *s)
{
    uint8_t how = take(s);
    di_cost_model prefill = cost_model(s), decode = cost_model(s);
    di_cost_row rows[2] = {{0, 4, 4, 0, 1}, {(int32_t)api_wild(s), (int32_t)api_wild(s), (int32_t)api_wild(s),
                                             (int32_t)api_wild(s), (int32_t)api_wild(s)}};
    int64_t ns = 0;
    int32_t q = 0;
    di_core *c = (how & 1) ? NULL : a->core;
    di_stats_out before = api_look(a);
    api_call(a, &before, di_set_cost_model(c, (how & 2) ? NULL : &prefill, (how & 4) ? NULL : &decode));
    before = api_look(a);
    api_call(a, &before, di_observe_step(c, (how & 8) ? a->committed : (uint64_t)api_wild(s), api_wild(s)));
    int code = di_cost_predict((how & 16) ? NULL : &prefill, (how & 32) ? NULL : rows, 1 + (how >> 6 & 1),
                               (how & 128) ? NULL : &ns);
    REQUIRE(code == 0 || code == DI_E_ARG || code == DI_E_CONFIG);
    REQUIRE(code != 0 || ns >= 0);
    code = di_cost_chunk(&prefill, rows, 1, (how & 16) ? NULL : &rows[how >> 7], api_wild(s), (int32_t)api_wild(s),
                         (how & 32) ? NULL : &q);
    REQUIRE(code == 0 || code == DI_E_ARG || code == DI_E_CONFIG);
}
