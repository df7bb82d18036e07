/* di_probe and di_schedule: choose a pass, sweep, keep the step record (spec/engine.md 2.2). */
#include "di_check.h"
#include "di_policy.h"
#include "di_publish.h"

/* Report requests that ended since the last call, as many as the lists hold; the rest waits. */
static void sweep(di_core *c, di_outputs *o)
{
    while (c->sweep_head && o->n_finished < c->cfg.max_num_seqs && o->n_ignored < c->cfg.max_num_seqs) {
        di_seq *s = c->sweep_head;
        c->sweep_head = s->sweep_next;
        if (!c->sweep_head) c->sweep_tail = NULL;
        if (s->reason == DI_FINISH_TOO_LONG) {
            o->ignored_uid[o->n_ignored] = s->uid;
            o->ignored_reason[o->n_ignored++] = s->reason;
        } else {
            o->finished_uid[o->n_finished] = s->uid;
            o->finished_reason[o->n_finished++] = s->reason;
        }
        s->keep &= (uint8_t)~DI_KEEP_SWEEP;
        di_core_drop(c, s);
    }
}

static void count_step(di_core *c, const di_step *step, int mode)
{
    if (mode == DI_MODE_EMPTY_PREFILL || (step->kind == DI_STEP_PREFILL && step->n > 0)) {
        c->decode_since_prefill = 0;
        c->prefill_burst++;
    }
    /* A rank of a group that has nothing to decode runs a placeholder while the others decode (5.9): the counters that
     * choose the next kind of step must go on as theirs do. */
    int is_group_decode = mode == DI_MODE_DECODE && c->cfg.dp_size > 1;
    if (is_group_decode || (step->kind == DI_STEP_DECODE && step->n > 0)) {
        c->decode_since_prefill++;
        c->prefill_burst = 0;
    }
    if (step->n == 0) return;
    if (step->kind == DI_STEP_PREFILL) {
        c->count.steps_prefill++;
        c->count.tokens_prefill += (uint64_t)step->t;
        return;
    }
    c->count.steps_decode++;
    c->count.tokens_decode += (uint64_t)step->t;
    c->count.tokens_drafted += (uint64_t)(step->t - step->n);
}

static int run_pass(di_core *c, int mode, di_scheduler_outputs *out)
{
    int code = di_command_drain(c);
    if (!code) code = di_policy_drop_too_long(c);
    if (code) return code;
    di_step *step = di_core_step(c, c->launched + 1);
    di_outputs *o = &c->outputs[(c->launched + 1) % (uint64_t)(c->cfg.depth + 1)];
    di_publish_begin(c, step, o, mode == DI_MODE_DECODE ? DI_STEP_DECODE : DI_STEP_PREFILL);
    if (mode == DI_MODE_TRY_PREFILL) code = di_policy_prefill(c, step, o);
    if (mode == DI_MODE_DECODE) code = di_policy_decode(c, step, o);
    if (code) return code;
    /* An attempt that finds nothing is followed by a decode call: that one reports. */
    if (step->n > 0 || mode != DI_MODE_TRY_PREFILL) sweep(c, o);
    di_publish_step(c, step, o);
    di_cost_publish(c, step, &o->record);
    *out = o->record;
    di_layout_steps(&c->layouts.steps, &o->seen, o->slot, out);
    count_step(c, step, mode);
    if (step->n == 0) {
        /* Not a step: its arrays change place with a spare set, so that the next step does not overwrite them. */
        di_outputs *spare = &c->spare_outputs[c->empty_calls++ % (uint64_t)(c->cfg.depth + 1)];
        di_outputs used = *o;
        *o = *spare;
        *spare = used;
    } else {
        step->is_open = 1;
        c->launched++;
    }
    return di_check_schedule(c, step, o, out);
}

static int check_mode(const di_core *c, int mode)
{
    int type = c->cfg.engine_type;
    if (mode == DI_MODE_DECODE ? type != DI_ENGINE_PROMPT : type != DI_ENGINE_COMPLETION) return 0;
    return di_fail(DI_E_ARG, "", "mode", "mode %d: an engine of type %d makes %s steps only", mode, type,
                   mode == DI_MODE_DECODE ? "prefill" : "decode");
}

/* A step may be launched now. */
static int check_room(const di_core *c)
{
    if (c->launched - c->committed >= (uint64_t)c->cfg.depth)
        return di_fail(DI_E_ORDER, "", "step_id", "step %llu must be committed first: %d in flight is the depth",
                       (unsigned long long)(c->committed + 1), c->cfg.depth);
    if (c->launched - c->done > (uint64_t)c->cfg.depth)
        return di_fail(DI_E_ORDER, "", "step_id", "step %llu must be reported done first (di_step_done)",
                       (unsigned long long)(c->done + 1));
    return 0;
}

int di_schedule(di_core *c, int mode, di_scheduler_outputs *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!out || mode < DI_MODE_TRY_PREFILL || mode > DI_MODE_EMPTY_PREFILL)
        code = di_fail(DI_E_ARG, "", out ? "mode" : "out", "mode %d", mode);
    if (!code) code = check_mode(c, mode);
    if (!code) code = check_room(c);
    if (!code) code = run_pass(c, mode, out);
    return di_core_leave(c, code);
}

/* The vote point of 2.2: 0 none, 1 ANY, 2 ALL. */
static int32_t point_of(const di_core *c)
{
    uint64_t d = c->decode_since_prefill;
    if (d != 0 && d % (uint64_t)c->cfg.prefill_interval_any == 0) return 1;
    return d % (uint64_t)c->cfg.prefill_interval_all == 0 ? 2 : 0;
}

static int is_burst_reached(const di_core *c)
{
    return c->cfg.max_prefill_burst > 0 && c->prefill_burst >= (uint64_t)c->cfg.max_prefill_burst;
}

static int schedule_local(di_core *c, di_scheduler_outputs *out)
{
    int code = check_room(c);
    if (!code) code = di_command_drain(c);
    if (code) return code;
    if (c->cfg.engine_type == DI_ENGINE_PROMPT) {
        code = run_pass(c, DI_MODE_TRY_PREFILL, out);
        return code || out->num_reqs > 0 ? code : run_pass(c, DI_MODE_EMPTY_PREFILL, out);
    }
    if (c->cfg.engine_type == DI_ENGINE_COMPLETION) return run_pass(c, DI_MODE_DECODE, out);
    int has_running = c->live_running > 0;
    int is_due = !has_running || (point_of(c) != 0 && !is_burst_reached(c));
    if (is_due && di_policy_wants_prefill(c)) {
        code = run_pass(c, DI_MODE_TRY_PREFILL, out);
        if (code || out->num_reqs > 0) return code;
    }
    return run_pass(c, DI_MODE_DECODE, out);
}

int di_schedule_local(di_core *c, di_scheduler_outputs *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    return di_core_leave(c, out ? schedule_local(c, out) : di_fail(DI_E_ARG, "", "out", "NULL"));
}

int di_probe(di_core *c, di_probe_out *out)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!out) return di_core_leave(c, di_fail(DI_E_ARG, "", "out", "NULL"));
    /* Queued submissions must be seen; carrying them out here is what the next schedule would do first. */
    code = di_command_drain(c);
    if (code) return di_core_leave(c, code);
    int64_t unfinished = 0;
    di_unfinished(c, &unfinished);
    *out = (di_probe_out){
        .point = point_of(c),
        .want = di_policy_wants_prefill(c),
        .has_running = c->live_running > 0 || (c->cfg.engine_type == DI_ENGINE_COMPLETION && c->queue.count > 0),
        .has_unfinished = unfinished > 0,
        .burst_reached = is_burst_reached(c),
        .in_flight = (int32_t)(c->launched - c->committed),
        .decode_since_prefill = (int64_t)c->decode_since_prefill,
    };
    return di_core_leave(c, 0);
}
