/* Commands of client threads: submit and abort, carried out by the engine thread in arrival order.
 *
 * A command is a link inside the request that it concerns, so the list needs no memory of its own and cannot be full
 * before memory is: the bound is the number of live requests (DI_MAX_LIVE).
 */
#ifndef DI_COMMAND_H
#define DI_COMMAND_H

#include <pthread.h>

#include "di_seq.h"

enum { DI_COMMAND_SUBMIT = 1, DI_COMMAND_ABORT = 2 };
enum { DI_MAX_LIVE = 1 << 22 };

typedef struct di_clients {
    pthread_mutex_t lock;
    int has_lock;             /* the mutex was made */
    uint64_t next_uid;
    di_table table;           /* requests that are not RETIRED */
    di_bins bins;
    di_seq *head, *tail;      /* requests with commands, in order of their oldest one */
    int64_t unfinished;       /* not terminal */
    uint64_t submissions;
} di_clients;

/* Append the request to the list, or add the command to its entry. Lock held. A submit that is followed by its abort
 * before the engine looks is one entry with both bits: it ends without ever being queued. */
void di_command_push(di_clients *cl, di_seq *s, uint8_t command);
/* Take the oldest entry and its bits; NULL when the list is empty. Lock held. */
di_seq *di_command_pop(di_clients *cl, uint8_t *commands);
/* Forget the commands of a request that ended. Lock held. */
void di_command_remove(di_clients *cl, di_seq *s);

/* Refuse a replay mode that the inputs of this core cannot carry: COMPACT inputs say every row's windows, MASK inputs
 * those of all rows. And log-probabilities of a prompt of which rows are left out. */
int di_command_check_replay(const di_request *r, const di_config *k);

struct di_core;
/* di_seq_create with this core's sizes. Client lock held. */
int di_client_create(struct di_core *c, const di_request *r, di_seq **out);
/* Carry out everything that was queued before this call. Engine thread. */
int di_command_drain(struct di_core *c);

#endif
