#include "di_events.h"

#include <stdlib.h>
#include <string.h>

#include "di_state.h"
#include "di_transfer.h"

enum { LINE = 64 };

static size_t padded(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

/* Lay the arrays of an arena out in one buffer; with memory NULL only the size is computed. */
static size_t lay_out(di_event_arena *a, size_t n, size_t n_conf, char *memory)
{
    size_t at = 0;
#define FIELD(name, count) \
    do { if (memory) a->name = (void *)(memory + at); at += padded((count) * sizeof *a->name); } while (0)
    FIELD(seq_uid, n);
    FIELD(token_id, n);
    FIELD(logprob, n);
    FIELD(draft_logprob, n);
    FIELD(sum_smaller, n);
    FIELD(output_index, n);
    FIELD(prompt_len, n);
    FIELD(conf_offset, n);
    FIELD(top_offset, n);
    FIELD(prompt_lp_offset, n);
    FIELD(drafted, n);
    FIELD(accepted, n);
    FIELD(top_count, n);
    FIELD(flags, n);
    FIELD(kind, n);
    FIELD(finish_reason, n);
    FIELD(confidences, n_conf);
#undef FIELD
    return at;
}

static void free_arena(di_event_arena *a)
{
    if (!a) return;
    free(a->memory);
    free(a->top_ids);
    free(a->top_logprobs);
    free(a->prompt_logprobs);
    free(a);
}

/* Give the first n values of columns (DI_EVENT_DEFAULTS) what every ordinary token has there. */
static void restore_defaults(di_event_arena *a, size_t n, uint64_t columns)
{
#define RESTORE(name, field, byte) \
    do { if (columns & DI_KEPT_EVENT_BATCH_##name) memset(a->field, (byte), n * sizeof *a->field); } while (0)
    RESTORE(DRAFT_LOGPROB, draft_logprob, 0);
    RESTORE(SUM_SMALLER, sum_smaller, 0);
    RESTORE(CONF_OFFSET, conf_offset, -1);
    RESTORE(TOP_OFFSET, top_offset, -1);
    RESTORE(PROMPT_LP_OFFSET, prompt_lp_offset, -1);
    RESTORE(DRAFTED, drafted, 0);
    RESTORE(ACCEPTED, accepted, 0);
    RESTORE(TOP_COUNT, top_count, 0);
    RESTORE(FLAGS, flags, 0);
    RESTORE(KIND, kind, DI_EVENT_TOKEN);
    RESTORE(FINISH_REASON, finish_reason, DI_FINISH_NONE);
#undef RESTORE
}

uint64_t di_events_kept(const di_event_arena *a)
{
    return a->plain | (a->count <= a->n_known ? a->known & ~a->written : 0);
}

void di_events_checked(di_event_arena *a, uint64_t kept)
{
    a->known = DI_EVENT_DEFAULTS & ~a->written;
    /* What was checked now counts for as many events as there are now. */
    if (a->known & ~kept) a->n_known = a->count;
}

static di_event_arena *make_arena(const di_events *e)
{
    di_event_arena *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    size_t n = (size_t)e->capacity + DI_EVENT_ROOM, n_conf = (size_t)e->capacity * (size_t)e->num_draft;
    size_t bytes = lay_out(a, n, n_conf, NULL);
    a->memory = calloc(1, bytes + LINE);
    if (!a->memory) {
        free_arena(a);
        return NULL;
    }
    uintptr_t at = ((uintptr_t)a->memory + LINE - 1) / LINE * LINE;
    lay_out(a, n, n_conf, (char *)at);
    a->bytes = bytes;
    restore_defaults(a, n, DI_EVENT_DEFAULTS);
    return a;
}

static int grow_ring(di_events *e, di_event_arena **out)
{
    if (e->n_arenas == e->cap_arenas) {
        int32_t cap = e->cap_arenas * 2 + 4;
        di_event_arena **more = realloc(e->arenas, (size_t)cap * sizeof(di_event_arena *));
        if (!more) return di_fail(DI_E_CAPACITY, "EventBatch", "", "no memory for %d event arenas", cap);
        e->arenas = more;
        e->cap_arenas = cap;
    }
    di_event_arena *a = make_arena(e);
    if (!a) return di_fail(DI_E_CAPACITY, "EventBatch", "", "no memory for event arena %d", e->n_arenas);
    e->arenas[e->n_arenas++] = a;
    *out = a;
    return 0;
}

int di_events_init(di_events *e, int32_t ring, int32_t capacity, int32_t num_draft)
{
    e->capacity = capacity;
    e->num_draft = num_draft;
    e->ring = ring;
    e->last = -1;
    for (int32_t i = 0; i < ring; i++) {
        di_event_arena *unused = NULL;
        if (grow_ring(e, &unused)) return DI_E_CAPACITY;
    }
    return 0;
}

void di_events_free(di_events *e)
{
    for (int32_t i = 0; i < e->n_arenas; i++) free_arena(e->arenas[i]);
    free(e->arenas);
    e->arenas = NULL;
    e->n_arenas = e->cap_arenas = 0;
}

static int has_top(di_event_arena *a, int32_t n_top)
{
    if (n_top <= a->cap_top) return 0;
    int32_t cap = n_top;
    int32_t *ids = realloc(a->top_ids, (size_t)cap * sizeof *ids);
    if (ids) a->top_ids = ids;
    float *logprobs = realloc(a->top_logprobs, (size_t)cap * sizeof *logprobs);
    if (logprobs) a->top_logprobs = logprobs;
    if (!ids || !logprobs)
        return di_fail(DI_E_CAPACITY, "EventBatch", "top_ids", "no memory for %d alternatives", n_top);
    a->cap_top = cap;
    return 0;
}

static int has_prompt(di_event_arena *a, int32_t n)
{
    if (n <= a->cap_prompt) return 0;
    float *values = realloc(a->prompt_logprobs, (size_t)n * sizeof *values);
    if (!values) return di_fail(DI_E_CAPACITY, "EventBatch", "prompt_logprobs", "no memory for %d values", n);
    a->prompt_logprobs = values;
    a->cap_prompt = n;
    return 0;
}

/* The arena that was written longest ago, of those that nobody reads; -1 = all are pinned. */
static int32_t oldest(const di_events *e)
{
    int32_t best = -1;
    for (int32_t i = 0; i < e->n_arenas; i++)
        if (!e->arenas[i]->pinned && (best < 0 || e->arenas[i]->serial < e->arenas[best]->serial)) best = i;
    return best;
}

int di_events_reserve(di_events *e, int32_t n_top, int32_t n_prompt, di_event_arena **out)
{
    int32_t at = oldest(e);
    di_event_arena *best = at < 0 ? NULL : e->arenas[at];
    /* The newest ring - 1 batches stay readable: only an arena older than those may be recycled. */
    int is_fresh = best && best->serial != 0 && best->serial + (uint64_t)e->ring > e->serial + 1;
    if (!best || is_fresh) {
        int code = grow_ring(e, &best);
        if (code) return code;
        e->grown++;
    }
    int code = has_top(best, n_top);
    if (!code) code = has_prompt(best, n_prompt);
    if (!code) *out = best;
    return code;
}

void di_events_info(const di_events *e, di_event_info *out)
{
    *out = (di_event_info){.arena = e->last, .next = oldest(e)};
    if (e->last < 0) return;
    const di_event_arena *a = e->arenas[e->last];
    out->capacity = e->capacity;
    out->generation = a->generation;
    out->data = a->seq_uid;
    out->bytes = a->bytes;
    out->step_id = a->step_id;
    out->count = a->count;
    out->has_more = a->n_conf > 0 || a->n_top > 0 || a->n_prompt > 0;
}

void di_events_begin(di_events *e, di_event_arena *a)
{
    a->generation++;
    a->serial = ++e->serial;
    if (a->written) restore_defaults(a, (size_t)a->count, a->written);
    a->known &= ~a->written;
    a->written = a->plain = 0;
    a->count = a->n_conf = a->n_top = a->n_prompt = 0;
    for (int32_t i = 0; i < e->n_arenas; i++)
        if (e->arenas[i] == a) e->last = i;
}

void di_events_wait(di_events *e, di_seq *s)
{
    s->keep |= DI_KEEP_EVENT;
    s->event_next = NULL;
    if (e->tail) e->tail->event_next = s; else e->head = s;
    e->tail = s;
    e->waiting++;
}

void di_events_flush(di_core *c, di_event_arena *a)
{
    di_events *e = &c->events;
    if (e->head) {
        di_events_note(a, DI_EVENT_ENDS);
        a->plain = 0;
    }
    while (e->head && a->count + e->head->first_waits < e->capacity) {
        di_seq *s = e->head;
        di_transfer_put_first(a, s);
        e->head = s->event_next;
        if (!e->head) e->tail = NULL;
        e->waiting--;
        int32_t i = a->count++;
        a->seq_uid[i] = s->uid;
        a->kind[i] = DI_EVENT_FINISH;
        a->flags[i] = DI_EVENT_FLAG_LAST;
        a->token_id[i] = -1;
        a->logprob[i] = 0;
        a->output_index[i] = s->event_output;
        a->prompt_len[i] = s->prompt_len;
        a->finish_reason[i] = s->reason;
        s->keep &= (uint8_t)~DI_KEEP_EVENT;
        di_core_drop(c, s);
    }
}

static di_view view(const void *data, int32_t dtype, int32_t n)
{
    return (di_view){.data = (void *)(uintptr_t)data, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1},
                     .space = DI_SPACE_HOST, .flags = data ? DI_VIEW_PRESENT : 0};
}

void di_events_publish(di_events *e, di_event_arena *a, uint64_t step, di_event_batch *out)
{
    static const di_event_arena none = {0};
    /* An empty batch points at the first arena with length 0: present, and nothing to read. */
    if (a) a->step_id = step; else e->last = -1;
    const di_event_arena *from = a ? a : e->arenas[0];
    int32_t n = a ? a->count : none.count, n_conf = a ? a->n_conf : 0, n_top = a ? a->n_top : 0;
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->chain = DI_HASH_EVENT_BATCH;
    out->seq_uid = view(from->seq_uid, DI_DTYPE_U64, n);
    out->kind = view(from->kind, DI_DTYPE_U8, n);
    out->flags = view(from->flags, DI_DTYPE_U16, n);
    out->token_id = view(from->token_id, DI_DTYPE_I32, n);
    out->logprob = view(from->logprob, DI_DTYPE_F32, n);
    out->draft_logprob = view(from->draft_logprob, DI_DTYPE_F32, n);
    out->sum_smaller = view(from->sum_smaller, DI_DTYPE_F32, n);
    out->output_index = view(from->output_index, DI_DTYPE_I32, n);
    out->prompt_len = view(from->prompt_len, DI_DTYPE_I32, n);
    out->finish_reason = view(from->finish_reason, DI_DTYPE_U8, n);
    out->drafted = view(from->drafted, DI_DTYPE_I16, n);
    out->accepted = view(from->accepted, DI_DTYPE_I16, n);
    out->conf_offset = view(from->conf_offset, DI_DTYPE_I32, n);
    out->top_offset = view(from->top_offset, DI_DTYPE_I32, n);
    out->top_count = view(from->top_count, DI_DTYPE_I16, n);
    out->prompt_lp_offset = view(from->prompt_lp_offset, DI_DTYPE_I32, n);
    out->step_id = step;
    if (n_conf) out->confidences = view(from->confidences, DI_DTYPE_F32, n_conf);
    if (a && a->n_prompt) out->prompt_logprobs = view(a->prompt_logprobs, DI_DTYPE_F32, a->n_prompt);
    if (n_top) {
        out->top_ids = view(from->top_ids, DI_DTYPE_I32, n_top);
        out->top_logprobs = view(from->top_logprobs, DI_DTYPE_F32, n_top);
    }
}
