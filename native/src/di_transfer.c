#include "di_transfer.h"

#include <math.h>
#include <string.h>

#include "di_policy.h"
#include "di_state.h"

static int is_reserved(const di_seq *s) { return s->phase == DI_PHASE_HANDOFF && s->handle != 0; }

int di_transfer_offer(di_core *c, di_seq *s)
{
    di_core_leave_running(c, s);
    size_t bytes = (size_t)c->cfg.num_draft * sizeof *s->handed_drafts;
    if (s->has_drafts) memcpy(s->handed_drafts, di_core_drafts(c, s->row_slot), bytes);
    /* No step will name its row again; what lies in blocks and slots stays for the transfer. */
    int code = di_pool_release(&c->row, s->row_slot, s->last_step);
    c->admitted--;
    s->row_slot = 0;
    di_core_set_phase(c, s, DI_PHASE_HANDOFF);
    return code;
}

int di_transfer_end(di_core *c, di_seq *s, uint8_t reason)
{
    if (s->phase != DI_PHASE_HANDOFF) return di_core_finish(c, s, reason, 1);
    if (s->ending == DI_FINISH_NONE) s->ending = reason;
    return 0;
}

int di_transfer_admit(di_core *c)
{
    for (di_seq *s = di_queue_head(&c->queue); s && c->live_running < c->cfg.max_num_seqs;
         s = di_queue_head(&c->queue)) {
        di_queue_remove(&c->queue, s);
        if (di_core_take_row(c, s)) return DI_E_INTERNAL;
        size_t bytes = (size_t)c->cfg.num_draft * sizeof *s->handed_drafts;
        if (s->has_drafts) memcpy(di_core_drafts(c, s->row_slot), s->handed_drafts, bytes);
        int code = di_policy_start_running(c, s);
        if (code) return code;
    }
    return 0;
}

void di_transfer_put_first(di_event_arena *a, di_seq *s)
{
    if (!s->first_waits) return;
    s->first_waits = 0;
    if (s->len == s->prompt_len) return;    /* an end that dropped it */
    int32_t e = a->count++;
    a->seq_uid[e] = s->uid;
    a->token_id[e] = s->tokens[s->prompt_len];
    a->logprob[e] = s->first_logprob;
    a->output_index[e] = 1;
    a->prompt_len[e] = s->prompt_len;
}

int di_transfer_check(const di_core *c)
{
    int64_t reserved = 0;
    uint32_t at = 0;
    int code = di_handle_check(&c->handles);
    for (const di_seq *s = di_handle_next(&c->handles, DI_HANDLE_RESERVATION, &at); s && !code;
         s = di_handle_next(&c->handles, DI_HANDLE_RESERVATION, &at)) {
        reserved++;
        if (!is_reserved(s) || (uint32_t)s->handle != at)
            code = di_fail(DI_E_INTERNAL, "", "handle", "reservation %u is not that of request %llu", at,
                           (unsigned long long)s->uid);
    }
    if (code) return code;
    if (c->cfg.engine_type == DI_ENGINE_COMPLETION && reserved != c->phase_count[DI_PHASE_HANDOFF])
        return di_fail(DI_E_INTERNAL, "", "handle", "%lld reservations have %lld handles",
                       (long long)c->phase_count[DI_PHASE_HANDOFF], (long long)reserved);
    return 0;
}

static int require_type(const di_core *c, int32_t type, const char *what)
{
    if (c->cfg.engine_type == type) return 0;
    return di_fail(DI_E_ARG, "", "engine_type", "is %d: only an engine of type %d %s", c->cfg.engine_type, type, what);
}

/* Blocks of the prompt, and those that running requests will ask for within two steps (2.5). */
static int has_room(const di_core *c, const di_request *r)
{
    int32_t blocks = di_ceil_div(r->num_prompt, c->cfg.block_size);
    if (r->num_prompt > c->dim.prompt_limit || blocks > di_pool_total(&c->main))
        return di_fail(DI_E_ARG, "Request", "prompt",
                       "%d tokens need %d blocks; at most %d tokens and %d blocks can ever be given", r->num_prompt,
                       blocks, c->dim.prompt_limit, di_pool_total(&c->main));
    int64_t need = (int64_t)blocks + di_policy_reserve(c);
    if (need > di_pool_available(&c->main))
        return di_fail(DI_E_CAPACITY, "", "main", "%lld blocks are needed now, %d are free", (long long)need,
                       di_pool_available(&c->main));
    const di_unit_pool *slots[] = {&c->swa, &c->state};
    for (int i = 0; i < 2; i++)
        if (slots[i]->size && di_pool_available(slots[i]) < 1)
            return di_fail(DI_E_CAPACITY, "", slots[i]->name, "no slot of %d is free", di_pool_total(slots[i]));
    return 0;
}

static int create(di_core *c, const di_request *r, di_seq **out)
{
    di_clients *cl = &c->clients;
    di_seq *s = NULL;
    uint64_t handle = 0;
    pthread_mutex_lock(&cl->lock);
    int code = cl->table.count < DI_MAX_LIVE ? di_client_create(c, r, &s) :
        di_fail(DI_E_CAPACITY, "Request", "", "%d requests are live, the most that a core keeps", DI_MAX_LIVE);
    if (!code) code = di_handle_take(&c->handles, DI_HANDLE_RESERVATION, s, &handle);
    if (!code) {
        s->uid = ++cl->next_uid;
        s->handle = handle;
        s->phase = DI_PHASE_HANDOFF;
        di_table_add(&cl->table, s);
        cl->unfinished++;
        *out = s;
    } else if (s) {
        di_seq_free(&cl->bins, s);
    }
    pthread_mutex_unlock(&cl->lock);
    return code;
}

static int take_units(di_core *c, di_seq *s)
{
    int32_t blocks = di_ceil_div(s->len, c->cfg.block_size);
    int code = di_pool_take(&c->main, blocks, s->blocks);
    if (!code && c->swa.size) code = di_pool_take(&c->swa, 1, &s->swa_slot);
    if (!code && c->state.size) code = di_pool_take(&c->state, 1, &s->state_slot);
    s->n_blocks = blocks;
    /* has_room saw all of them free. */
    return code ? DI_E_INTERNAL : 0;
}

static int reserve(di_core *c, const di_request *r, di_reservation *out)
{
    int code = require_type(c, DI_ENGINE_COMPLETION, "reserves");
    if (!code) code = di_request_check(r, c->cfg.vocab_size);
    if (!code && r->prompt_logprobs)
        code = di_fail(DI_E_ARG, "Request", "prompt_logprobs", "is 1, but the prompt is computed elsewhere");
    if (!code) code = di_command_check_replay(r, &c->cfg);
    if (!code) code = di_command_drain(c);
    if (!code) code = has_room(c, r);
    di_seq *s = NULL;
    if (!code) code = create(c, r, &s);
    if (code) return code;
    c->phase_count[DI_PHASE_HANDOFF]++;
    code = take_units(c, s);
    *out = (di_reservation){.handle = s->handle, .uid = s->uid, .block_ids = s->blocks, .num_blocks = s->n_blocks,
                            .swa_slot = s->swa_slot, .state_slot = s->state_slot};
    return code;
}

int di_reserve(di_core *c, const di_request *request, di_reservation *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = request && out ? reserve(c, request, out) : di_fail(DI_E_ARG, "Request", "", "a NULL argument");
    return di_core_leave(c, code);
}

static int check_inject(const di_core *c, const di_inject_args *a)
{
    int32_t vocab = c->cfg.vocab_size, k = c->cfg.num_draft;
    if (a->struct_size != sizeof *a)
        return di_fail(DI_E_ARG, "", "struct_size", "%u bytes is not the size of this library's di_inject_args",
                       a->struct_size);
    if (a->first_token < 0 || a->first_token >= vocab)
        return di_fail(DI_E_ARG, "", "first_token", "is %d, the range is 0 .. %d", a->first_token, vocab - 1);
    if (!(a->logprob <= 0) || isinf(a->logprob))
        return di_fail(DI_E_ARG, "", "logprob", "is %g, a finite value <= 0 is needed", (double)a->logprob);
    if (a->num_drafts != 0 && (a->num_drafts != k || !a->drafts))
        return di_fail(DI_E_ARG, "", "drafts", "%d of them, none or num_draft = %d are needed", a->num_drafts, k);
    for (int32_t i = 0; i < a->num_drafts; i++)
        if (a->drafts[i] < 0 || a->drafts[i] >= vocab)
            return di_fail(DI_E_ARG, "", "drafts", "entry %d is %d, the range is 0 .. %d", i, a->drafts[i], vocab - 1);
    return 0;
}

/* The cache is complete and nobody else touches it any more. */
static int make_runnable(di_core *c, di_seq *s, const di_inject_args *a)
{
    s->cached = s->len;
    s->tokens[s->len++] = a->first_token;
    s->first_logprob = a->logprob;
    s->first_waits = 1;
    c->count.tokens_output++;
    /* 2: ids that the host knows, and nothing of them on this device. */
    s->has_drafts = a->num_drafts > 0 ? 2 : 0;
    for (int32_t i = 0; i < a->num_drafts; i++) s->handed_drafts[i] = a->drafts[i];
    uint8_t reason = di_core_stop_reason(c, s, a->first_token);
    if (reason != DI_FINISH_NONE) return di_core_finish(c, s, reason, 1);
    s->ticket = ++c->clients.submissions;
    di_core_set_phase(c, s, DI_PHASE_PREFILL);
    di_queue_insert(&c->queue, s);
    return 0;
}

static int inject(di_core *c, uint64_t handle, const di_inject_args *a)
{
    void *value = NULL;
    int code = require_type(c, DI_ENGINE_COMPLETION, "injects");
    if (!code) code = check_inject(c, a);
    if (!code) code = di_command_drain(c);
    if (!code) code = di_handle_give(&c->handles, DI_HANDLE_RESERVATION, handle, &value);
    if (code) return code;
    di_seq *s = value;
    s->handle = 0;
    /* Ended meanwhile: this call says as well that the sender is done with it. */
    return s->ending != DI_FINISH_NONE ? di_core_finish(c, s, s->ending, 1) : make_runnable(c, s, a);
}

int di_inject(di_core *c, uint64_t handle, const di_inject_args *args)
{
    int code = di_core_enter(c);
    if (code) return code;
    code = args ? inject(c, handle, args) : di_fail(DI_E_ARG, "", "args", "NULL");
    return di_core_leave(c, code);
}

static int find_handed(di_core *c, uint64_t uid, di_seq **out)
{
    int code = di_command_drain(c);
    if (code) return code;
    pthread_mutex_lock(&c->clients.lock);
    di_seq *s = di_table_find(&c->clients.table, uid);
    pthread_mutex_unlock(&c->clients.lock);
    if (!s || s->phase != DI_PHASE_HANDOFF)
        return di_fail(DI_E_NOT_FOUND, "", "uid", "request %llu is not in a transfer", (unsigned long long)uid);
    *out = s;
    return 0;
}

static int handoff(di_core *c, uint64_t uid, di_handoff_out *out)
{
    di_seq *s = NULL;
    int code = require_type(c, DI_ENGINE_PROMPT, "hands off");
    if (!code) code = find_handed(c, uid, &s);
    if (code) return code;
    if (s->last_step > c->done)
        return di_fail(DI_E_ORDER, "", "uid", "step %llu must be reported done first (di_step_done)",
                       (unsigned long long)s->last_step);
    *out = (di_handoff_out){.block_ids = s->blocks, .drafts = s->handed_drafts, .num_blocks = s->n_blocks,
                            .num_drafts = s->has_drafts ? c->cfg.num_draft : 0, .swa_slot = s->swa_slot,
                            .state_slot = s->state_slot, .length = s->cached, .first_token = s->tokens[s->cached],
                            .is_ended = s->ending != DI_FINISH_NONE};
    return 0;
}

int di_handoff(di_core *c, uint64_t uid, di_handoff_out *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    return di_core_leave(c, out ? handoff(c, uid, out) : di_fail(DI_E_ARG, "", "out", "NULL"));
}

/* A prompt that was handed over has all the output that this engine makes; a reservation that was not is cancelled. */
static int acknowledge(di_core *c, uint64_t uid)
{
    di_seq *s = NULL;
    int code = find_handed(c, uid, &s);
    if (!code && s->handle) code = di_handle_give(&c->handles, DI_HANDLE_RESERVATION, s->handle, NULL);
    if (code) return code;
    uint8_t reason = s->handle ? DI_FINISH_ABORT : DI_FINISH_LENGTH;
    s->handle = 0;
    return di_core_finish(c, s, s->ending != DI_FINISH_NONE ? s->ending : reason, 1);
}

int di_acknowledge(di_core *c, uint64_t uid)
{
    int code = di_core_enter(c);
    return code ? code : di_core_leave(c, acknowledge(c, uid));
}
