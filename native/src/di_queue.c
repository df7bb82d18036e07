#include "di_queue.h"

#include "di_error.h"

static int level_of(const di_seq *s)
{
    return s->queue_class == 0 ? 0 : 2 * (s->priority - DI_PRIORITY_LOW) + s->queue_class;
}

di_seq *di_queue_head(const di_queue *q)
{
    for (int level = 0; q->count && level < DI_QUEUE_LEVELS; level++)
        if (q->head[level]) return q->head[level];
    return NULL;
}

void di_queue_insert(di_queue *q, di_seq *s)
{
    int level = level_of(s);
    di_seq *after = q->tail[level];   /* s goes behind this one */
    if (after && s->ticket < after->ticket) {
        di_seq *at = q->head[level];
        while (at->ticket < s->ticket) at = at->next;
        after = at->prev;
    }
    s->prev = after;
    s->next = after ? after->next : q->head[level];
    if (s->prev) s->prev->next = s; else q->head[level] = s;
    if (s->next) s->next->prev = s; else q->tail[level] = s;
    s->listed = 1;
    q->count++;
}

void di_queue_remove(di_queue *q, di_seq *s)
{
    int level = level_of(s);
    if (s->prev) s->prev->next = s->next; else q->head[level] = s->next;
    if (s->next) s->next->prev = s->prev; else q->tail[level] = s->prev;
    s->prev = s->next = NULL;
    s->listed = 0;
    q->count--;
}

int di_queue_check(const di_queue *q)
{
    int64_t n = 0;
    for (int level = 0; level < DI_QUEUE_LEVELS; level++) {
        const di_seq *before = NULL;
        for (const di_seq *s = q->head[level]; s; before = s, s = s->next) {
            int is_behind = !before || before->ticket < s->ticket;
            int ok = s->prev == before && level_of(s) == level && s->listed && is_behind &&
                     (s->phase == DI_PHASE_WAITING || s->phase == DI_PHASE_PREFILL);
            if (!ok)
                return di_fail(DI_E_INTERNAL, "", "queue", "request %llu is out of place", (unsigned long long)s->uid);
            n++;
        }
        if (q->tail[level] != before) return di_fail(DI_E_INTERNAL, "", "queue", "tail of level %d is wrong", level);
    }
    if (n != q->count)
        return di_fail(DI_E_INTERNAL, "", "queue", "counts %lld, holds %lld", (long long)q->count, (long long)n);
    return 0;
}
