/* Forks: a child starts with its parent's tokens and, where possible, with its caches (spec/engine.md 2.11).
 *
 * A child waits in a list of its own, holding nothing, until its parent's prompt is computed. The next decode call
 * decides. Either it clones: the child shares the parent's full blocks below its first position to be written, gets
 * copies of the block that contains that position and of the window and state slots, and decodes in this very step. Or,
 * if units are short, or the parent ended, or ran on so far that its rings lost what the child needs, the child joins
 * the admission queue and is computed from its tokens. A later clone would copy rings that the parent has overwritten.
 *
 * The sources of a clone are held up to the step that copies them, by setting its id as their last use.
 */
#ifndef DI_FORK_H
#define DI_FORK_H

#include "di_seq.h"

struct di_core;
struct di_step;

/* A child that waits is linked to its parent, by prev and next, and in no queue. */
typedef struct di_forks {
    di_seq *head, *tail;      /* parents whose prompt is computed and whose children wait, by ready_next */
    int64_t waiting;          /* children of all parents */
} di_forks;

/* Decide for every child whose parent is computed. Clones become candidates [*n ..) of the step, after all others had
 * their blocks. */
int di_fork_carry_out(struct di_core *c, struct di_step *step, int32_t *n);
/* The prompt of p is computed: the next decode call decides about its children, if it has any. */
void di_fork_ready(struct di_core *c, di_seq *p);
/* A request ends: forget it if it is a child that waits, and queue the children that wait for it. */
void di_fork_end(struct di_core *c, di_seq *s);
/* Add the children that wait for p, and p if it is ready; DI_E_INTERNAL if their list contradicts itself. */
int di_fork_count(const di_seq *p, int64_t *children, int64_t *ready);
/* Compare the sums over all requests with the list of parents. */
int di_fork_check(const struct di_core *c, int64_t children, int64_t ready);

#endif
