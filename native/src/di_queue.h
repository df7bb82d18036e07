/* The admission queue. First the half-run prompts, then one list per priority, each in the order (class, ticket).
 *
 *   class 0  continuation of a half-run prompt      in front of every priority: it holds blocks that others wait for
 *   class 1  preempted, to be computed again
 *   class 2  never scheduled                        at the tail
 *
 * Insertion walks over classes 0 and 1 only, whose number is bounded by max_num_seqs; removal is O(1).
 */
#ifndef DI_QUEUE_H
#define DI_QUEUE_H

#include "di_seq.h"

enum { DI_QUEUE_LEVELS = DI_PRIORITY_HIGH - DI_PRIORITY_LOW + 2 };
typedef struct di_queue {
    di_seq *head[DI_QUEUE_LEVELS];
    di_seq *tail[DI_QUEUE_LEVELS];
    int64_t count;
} di_queue;

di_seq *di_queue_head(const di_queue *q);
/* The next after s in queue order, NULL at the end. */
di_seq *di_queue_after(const di_queue *q, const di_seq *s);
void di_queue_insert(di_queue *q, di_seq *s);
void di_queue_remove(di_queue *q, di_seq *s);
/* 0, or DI_E_INTERNAL if links, order or count are wrong. */
int di_queue_check(const di_queue *q);

#endif
