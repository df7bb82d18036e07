#include "di_fork.h"

#include "di_policy.h"
#include "di_state.h"

static void unlink_ready(di_core *c, di_seq *p)
{
    di_forks *f = &c->forks;
    if (!p->is_ready) return;
    if (p->ready_prev) p->ready_prev->ready_next = p->ready_next; else f->head = p->ready_next;
    if (p->ready_next) p->ready_next->ready_prev = p->ready_prev; else f->tail = p->ready_prev;
    p->ready_prev = p->ready_next = NULL;
    p->is_ready = 0;
}

static void unlink_child(di_core *c, di_seq *s)
{
    di_seq *p = s->parent;
    if (s->prev) s->prev->next = s->next; else p->child_head = s->next;
    if (s->next) s->next->prev = s->prev; else p->child_tail = s->prev;
    s->prev = s->next = s->parent = NULL;
    c->forks.waiting--;
    if (!p->child_head) unlink_ready(c, p);
}

static void link_child(di_core *c, di_seq *p, di_seq *s)
{
    s->parent = p;
    s->prev = p->child_tail;
    if (p->child_tail) p->child_tail->next = s; else p->child_head = s;
    p->child_tail = s;
    c->forks.waiting++;
}

void di_fork_ready(di_core *c, di_seq *p)
{
    di_forks *f = &c->forks;
    if (p->is_ready || !p->child_head) return;
    p->is_ready = 1;
    p->ready_prev = f->tail;
    if (f->tail) f->tail->ready_next = p; else f->head = p;
    f->tail = p;
}

/* Before requests that never ran: its parent had its turn, and the child is a part of that. */
static void queue_child(di_core *c, di_seq *s)
{
    unlink_child(c, s);
    s->queue_class = 1;
    di_queue_insert(&c->queue, s);
}

void di_fork_end(di_core *c, di_seq *s)
{
    if (s->parent) unlink_child(c, s);
    while (s->child_head) queue_child(c, s->child_head);
}

/* The parent's rings still have what the child's first position reads: the window before it, and the positions of its
 * compressed group. A ring keeps the newest positions that were written, and none before the start of a prefix hit: a
 * parent that was preempted may have been computed again from a place behind its prompt. */
static int rings_reach(const di_core *c, const di_seq *parent, const di_seq *child)
{
    int64_t first = child->len - 1, q = c->dim.q, f = parent->inflight;
    /* The last committed step may have written drafts behind the token that was kept. */
    int64_t newest = parent->cached + (f ? f * q - 1 : q - 2);
    int64_t needed = first - (c->cfg.window - 1);
    if (needed < 0) needed = 0;
    int64_t oldest = parent->swa_valid_start;
    if (c->cfg.window && needed < first && (newest - c->dim.swa_ring >= needed || needed < oldest)) return 0;
    for (int32_t i = 0; i < c->dim.num_ratios && c->state.size; i++) {
        int32_t r = c->dim.ratios[i];
        int64_t group = first - first % r;
        if (group < first && (newest - (r + c->dim.backtrack - 1) >= group || group < oldest)) return 0;
    }
    return 1;
}

static int has_unit(const di_unit_pool *p) { return p->size == 0 || di_pool_available(p) > 0; }

static int can_clone(const di_core *c, const di_seq *parent, const di_seq *child, int32_t fresh)
{
    return c->admitted < c->cfg.max_num_seqs && fresh <= di_pool_available(&c->main) && has_unit(&c->swa) &&
           has_unit(&c->state) && rings_reach(c, parent, child);
}

/* The source is not handed out before the step that reads it is done, whoever lets go of it. */
static int hold_source(di_unit_pool *p, int32_t unit, uint64_t step)
{
    int code = di_pool_share(p, unit);
    return code ? code : di_pool_release(p, unit, step);
}

static int clone_slot(di_unit_pool *p, int32_t pool, int32_t source, int32_t *slot, uint64_t step, di_outputs *o)
{
    if (!p->size) return 0;
    int code = di_pool_take(p, 1, slot);
    if (!code) code = hold_source(p, source, step);
    int32_t *entry = &o->clone_slots[3 * o->n_clone_slots++];
    entry[0] = pool;
    entry[1] = source;
    entry[2] = *slot;
    return code;
}

static int clone_blocks(di_core *c, const di_seq *parent, di_seq *child, int32_t shared, int32_t fresh, uint64_t step,
                        di_outputs *o)
{
    int code = 0;
    for (int32_t i = 0; i < shared && !code; i++) {
        child->blocks[i] = parent->blocks[i];
        code = di_pool_share(&c->main, parent->blocks[i]);
    }
    if (!code) code = di_pool_take(&c->main, fresh, child->blocks + shared);
    child->n_blocks = shared + fresh;
    /* A first position at the start of a block has nothing in front of it there. */
    if (code || (child->len - 1) % c->cfg.block_size == 0) return code;
    o->clone_blocks[2 * o->n_clone_blocks] = parent->blocks[shared];
    o->clone_blocks[2 * o->n_clone_blocks++ + 1] = child->blocks[shared];
    return hold_source(&c->main, parent->blocks[shared], step);
}

static int clone(di_core *c, di_step *step, const di_seq *parent, di_seq *child, int32_t shared, int32_t fresh)
{
    di_outputs *o = step->out;
    int code = clone_blocks(c, parent, child, shared, fresh, step->id, o);
    if (!code) code = clone_slot(&c->swa, DI_POOL_SWA, parent->swa_slot, &child->swa_slot, step->id, o);
    if (!code) code = clone_slot(&c->state, DI_POOL_STATE, parent->state_slot, &child->state_slot, step->id, o);
    if (!code) code = di_core_take_row(c, child);
    if (code) return DI_E_INTERNAL;     /* can_clone was true */
    unlink_child(c, child);
    code = di_policy_start_running(c, child);
    /* All but its last token is computed: its first one comes from this decode step. */
    child->cached = child->len - 1;
    di_prefix_inherit(&c->prefix, parent, child);
    di_fork_ready(c, child);
    step->flags |= DI_STEP_FLAG_HAS_FORKS;
    return code;
}

static int decide(di_core *c, di_step *step, const di_seq *parent, di_seq *child, int32_t *n)
{
    int32_t size = c->cfg.block_size, shared = (child->len - 1) / size;
    int32_t fresh = di_ceil_div(child->len - 1 + c->dim.q, size) - shared;
    if (!can_clone(c, parent, child, fresh)) {
        queue_child(c, child);
        return 0;
    }
    c->candidates[(*n)++] = child;
    return clone(c, step, parent, child, shared, fresh);
}

int di_fork_carry_out(di_core *c, di_step *step, int32_t *n)
{
    /* Children of a clone made here wait for the next step: what this step copies is no source of this step. */
    const di_seq *last = c->forks.tail;
    for (int is_last = 0; c->forks.head && !is_last;) {
        di_seq *parent = c->forks.head;
        int code = 0;
        is_last = parent == last;
        unlink_ready(c, parent);
        /* Preempted since: its children wait for it again. */
        if (parent->phase != DI_PHASE_RUNNING || parent->awaits_first) continue;
        while (parent->child_head && !code) code = decide(c, step, parent, parent->child_head, n);
        if (code) return code;
    }
    return 0;
}

int di_fork_count(const di_seq *p, int64_t *children, int64_t *ready)
{
    const di_seq *before = NULL;
    for (const di_seq *s = p->child_head; s; before = s, s = s->next, ++*children)
        if (s->prev != before || s->listed || s->parent != p || s->phase != DI_PHASE_WAITING)
            return di_fail(DI_E_INTERNAL, "", "fork", "request %llu waits in the wrong list",
                           (unsigned long long)s->uid);
    *ready += p->is_ready;
    if (p->child_tail == before && (before || !p->is_ready)) return 0;
    return di_fail(DI_E_INTERNAL, "", "fork", "the children of %llu are in disorder", (unsigned long long)p->uid);
}

int di_fork_check(const di_core *c, int64_t children, int64_t ready)
{
    int64_t n = 0;
    const di_seq *before = NULL;
    for (const di_seq *p = c->forks.head; p && n <= ready; before = p, p = p->ready_next, n++)
        if (p->ready_prev != before || !p->is_ready) break;
    if (n == ready && c->forks.tail == before && children == c->forks.waiting) return 0;
    return di_fail(DI_E_INTERNAL, "", "fork", "%lld children of %lld parents are counted as %lld", (long long)children,
                   (long long)ready, (long long)c->forks.waiting);
}

/* The parent's request again, with its tokens so far as the prompt. */
static di_request request_of(const di_seq *p, const di_fork_args *args)
{
    int32_t n = args->at_prompt ? p->prompt_len : p->len, n_output = n - p->prompt_len;
    int32_t min_tokens = p->sampling.min_tokens - n_output;
    return (di_request){
        .struct_size = sizeof(di_request), .num_prompt = n, .prompt = p->tokens,
        .max_tokens = args->max_tokens ? args->max_tokens : p->max_tokens - n_output,
        .min_tokens = min_tokens > 0 ? min_tokens : 0, .num_stop = p->n_stop, .stop_ids = p->stop_ids,
        .priority = p->priority, .top_k = p->sampling.top_k, .temperature = p->sampling.temperature,
        .top_p = p->sampling.top_p, .min_p = p->sampling.min_p,
        .repetition_penalty = p->sampling.repetition_penalty, .presence_penalty = p->sampling.presence_penalty,
        .frequency_penalty = p->sampling.frequency_penalty, .seed = args->seed, .prefix_lookup = p->prefix_lookup,
        .num_bias = p->n_bias, .bias_ids = p->bias_ids, .bias_values = p->bias_values,
        .top_logprobs = p->top_logprobs, .logprobs_raw = (p->wants & DI_WANTS_RAW) != 0,
        .replay_mode = p->replay_mode};
}

/* A live request that is in no list yet. */
static int create(di_core *c, const di_request *r, di_seq **out)
{
    di_clients *cl = &c->clients;
    pthread_mutex_lock(&cl->lock);
    int code = cl->table.count < DI_MAX_LIVE ? di_client_create(c, r, out) :
        di_fail(DI_E_CAPACITY, "Request", "", "%d requests are live, the most that a core keeps", DI_MAX_LIVE);
    if (!code) {
        (*out)->uid = ++cl->next_uid;
        di_table_add(&cl->table, *out);
        cl->unfinished++;
    }
    pthread_mutex_unlock(&cl->lock);
    return code;
}

static int fork_request(di_core *c, uint64_t parent, const di_fork_args *args, uint64_t *uid)
{
    if (c->cfg.engine_type != DI_ENGINE_NORMAL)
        return di_fail(DI_E_ARG, "", "fork", "only an engine that runs prompts and decodes (NORMAL) can fork");
    pthread_mutex_lock(&c->clients.lock);
    di_seq *p = di_table_find(&c->clients.table, parent);
    pthread_mutex_unlock(&c->clients.lock);
    if (!p || di_seq_is_terminal(p))
        return di_fail(DI_E_NOT_FOUND, "", "parent", "request %llu is unknown or already finished",
                       (unsigned long long)parent);
    if (args->max_tokens < 0)
        return di_fail(DI_E_ARG, "", "max_tokens", "is %d, at least 1 is needed", args->max_tokens);
    if (args->at_prompt != 0 && args->at_prompt != 1)
        return di_fail(DI_E_ARG, "", "at_prompt", "is %d, 0 or 1 is needed", args->at_prompt);
    di_request r = request_of(p, args);
    di_seq *s = NULL;
    int code = create(c, &r, &s);
    if (code) return code;
    s->ticket = ++c->clients.submissions;
    s->keep_from = p->keep_from;    /* of the prompt that was computed, however many tokens the child starts with */
    link_child(c, p, s);
    if (p->phase == DI_PHASE_RUNNING && !p->awaits_first) di_fork_ready(c, p);
    c->phase_count[DI_PHASE_WAITING]++;
    *uid = s->uid;
    return 0;
}

int di_fork(di_core *c, uint64_t parent, const di_fork_args *args, uint64_t *uid)
{
    int code = di_core_enter(c);
    if (code) return code;
    if (!args || !uid) return di_core_leave(c, di_fail(DI_E_ARG, "", "args", "a NULL argument"));
    if (args->struct_size != sizeof *args)
        return di_core_leave(c, di_fail(DI_E_ARG, "", "struct_size", "%u bytes is not the size of di_fork_args",
                                        args->struct_size));
    code = di_command_drain(c);     /* the parent may have been submitted just now */
    if (!code) code = fork_request(c, parent, args, uid);
    return di_core_leave(c, code);
}
