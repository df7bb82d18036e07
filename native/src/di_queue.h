/* The admission queue. First the half-run prompts, then by priority; one list for each priority and class, in the order
 * of tickets.
 *
 *   class 0  continuation of a half-run prompt      in front of every priority: it holds blocks that others wait for
 *   class 1  preempted, to be computed again; forks that could not be cloned
 *   class 2  never scheduled
 *
 * A newer ticket than the last goes behind it at once, which is every new request and every fork. The others are
 * requests that come back, not more than max_num_seqs; they walk over older tickets. Removal is O(1).
 */
#ifndef DI_QUEUE_H
#define DI_QUEUE_H

#include "di_seq.h"

enum { DI_QUEUE_LEVELS = 2 * (DI_PRIORITY_HIGH - DI_PRIORITY_LOW + 1) + 1 };
typedef struct di_queue {
    di_seq *head[DI_QUEUE_LEVELS];
    di_seq *tail[DI_QUEUE_LEVELS];
    int64_t count;
} di_queue;

di_seq *di_queue_head(const di_queue *q);
void di_queue_insert(di_queue *q, di_seq *s);
void di_queue_remove(di_queue *q, di_seq *s);
/* 0, or DI_E_INTERNAL if links, order or count are wrong. */
int di_queue_check(const di_queue *q);

#endif
