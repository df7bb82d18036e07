#include "di_command.h"

#include "di_pack.h"
#include "di_state.h"
#include "di_transfer.h"

void di_command_push(di_clients *cl, di_seq *s, uint8_t command)
{
    if (s->command == 0) {
        s->command_prev = cl->tail;
        s->command_next = NULL;
        if (cl->tail) cl->tail->command_next = s; else cl->head = s;
        cl->tail = s;
    }
    s->command |= command;
}

void di_command_remove(di_clients *cl, di_seq *s)
{
    if (s->command == 0) return;
    if (s->command_prev) s->command_prev->command_next = s->command_next; else cl->head = s->command_next;
    if (s->command_next) s->command_next->command_prev = s->command_prev; else cl->tail = s->command_prev;
    s->command_prev = s->command_next = NULL;
    s->command = 0;
}

di_seq *di_command_pop(di_clients *cl, uint8_t *commands)
{
    di_seq *s = cl->head;
    if (!s) return NULL;
    *commands = s->command;
    di_command_remove(cl, s);
    return s;
}

int di_command_drain(di_core *c)
{
    for (;;) {
        uint8_t commands = 0;
        pthread_mutex_lock(&c->clients.lock);
        di_seq *s = di_command_pop(&c->clients, &commands);
        pthread_mutex_unlock(&c->clients.lock);
        if (!s) return 0;
        if (commands & DI_COMMAND_SUBMIT) {
            s->ticket = ++c->clients.submissions;
            c->phase_count[DI_PHASE_WAITING]++;
            di_queue_insert(&c->queue, s);
        }
        if ((commands & DI_COMMAND_ABORT) && !di_seq_is_terminal(s)) {
            c->count.aborts += s->ending == DI_FINISH_NONE;    /* a transfer that ends already is not ended again */
            int code = di_transfer_end(c, s, DI_FINISH_ABORT);
            if (code) return code;
        }
    }
}

int di_client_create(di_core *c, const di_request *r, di_seq **out)
{
    int code = di_pack_make_room(c, di_request_wants(r));
    return code ? code : di_seq_create(&c->clients.bins, r, &c->cfg, (c->cfg.depth + 1) * c->dim.q, out);
}

int di_command_check_replay(const di_request *r, const di_config *k)
{
    if (r->replay_mode < -1 || r->replay_mode > k->replay_mode)
        return di_fail(DI_E_ARG, "Request", "replay_mode", "is %d, the range is -1 .. %d, the mode of the config",
                       r->replay_mode, k->replay_mode);
    int32_t mode = r->replay_mode < 0 ? k->replay_mode : r->replay_mode;
    if (r->prompt_logprobs && mode != DI_REPLAY_OFF)
        return di_fail(DI_E_ARG, "Request", "prompt_logprobs",
                       "is 1: with replay_mode %d and replay_keep %d some prompt positions have no logits", mode,
                       k->replay_keep);
    return 0;
}

int di_submit(di_core *c, const di_request *r, uint64_t *uid)
{
    if (!c || !r || !uid) return di_fail(DI_E_ARG, "Request", "", "a NULL argument");
    if (atomic_load(&c->poisoned)) return di_core_refuse();
    if (c->cfg.engine_type == DI_ENGINE_COMPLETION)
        return di_fail(DI_E_ARG, "Request", "engine_type",
                       "is 2 (COMPLETION): it computes no prompt, di_reserve is its way in");
    int code = di_request_check(r, c->cfg.vocab_size);
    if (!code) code = di_command_check_replay(r, &c->cfg);
    if (code) return code;
    di_clients *cl = &c->clients;
    di_seq *s = NULL;
    pthread_mutex_lock(&cl->lock);
    if (cl->table.count >= DI_MAX_LIVE)
        code = di_fail(DI_E_CAPACITY, "Request", "", "%d requests are live, the most that a core keeps", DI_MAX_LIVE);
    else
        code = di_client_create(c, r, &s);
    if (!code) {
        s->uid = ++cl->next_uid;
        di_table_add(&cl->table, s);
        di_command_push(cl, s, DI_COMMAND_SUBMIT);
        cl->unfinished++;
        *uid = s->uid;
    }
    pthread_mutex_unlock(&cl->lock);
    return code;
}

int di_abort(di_core *c, const uint64_t *uids, int n, uint8_t *status)
{
    if (!c || n < 0 || (n > 0 && (!uids || !status))) return di_fail(DI_E_ARG, "", "uids", "a NULL argument");
    if (atomic_load(&c->poisoned)) return di_core_refuse();
    di_clients *cl = &c->clients;
    pthread_mutex_lock(&cl->lock);
    for (int i = 0; i < n; i++) {
        di_seq *s = di_table_find(&cl->table, uids[i]);
        if (s && !di_seq_is_terminal(s)) {
            di_command_push(cl, s, DI_COMMAND_ABORT);
            status[i] = DI_ABORT_ACCEPTED;
        } else {
            status[i] = uids[i] > 0 && uids[i] <= cl->next_uid ? DI_ABORT_ALREADY_FINISHED : DI_ABORT_UNKNOWN;
        }
    }
    pthread_mutex_unlock(&cl->lock);
    return 0;
}

int di_unfinished(di_core *c, int64_t *count)
{
    if (!c || !count) return di_fail(DI_E_ARG, "", "count", "a NULL argument");
    pthread_mutex_lock(&c->clients.lock);
    *count = c->clients.unfinished;
    pthread_mutex_unlock(&c->clients.lock);
    return 0;
}
