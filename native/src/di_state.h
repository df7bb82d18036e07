/* The core's own state, shared by its modules and by nobody else.
 *
 *   client lock    uid counter, table, command list, buffers, phases (written), bins. Short sections, any thread.
 *   engine gate    everything else. One engine call at a time; a second one gets DI_E_BUSY.
 */
#ifndef DI_STATE_H
#define DI_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "di_arena.h"
#include "di_command.h"
#include "di_cost.h"
#include "di_error.h"
#include "di_events.h"
#include "di_fork.h"
#include "di_handle.h"
#include "di_layout.h"
#include "di_pool.h"
#include "di_prefix.h"
#include "di_queue.h"
#include "di_seq.h"
#include "di_varlen.h"

/* One row of a launched step: what pack and commit need when the request may have moved on. The first group stays as it
 * is while the same request keeps the same row from one use of the ring slot to the next. */
typedef struct di_row {
    uint64_t uid;
    uint32_t generation;
    int32_t row_slot, swa_slot, state_slot, draft_slot;
    int32_t kind;             /* DI_STEP_ of the step that wrote this group */
    const int32_t *blocks;

    di_seq *seq;              /* NULL once the row is committed */
    int32_t start, q;         /* positions [start, start + q); an upper bound of start while a step is in flight */
    int32_t first;            /* row of its first token among the step's T rows */
    int32_t full_len;         /* committed tokens at schedule */
    int32_t n_blocks;
    int32_t remap;
    uint8_t inflight, is_last_chunk, has_drafts;
    uint8_t gets_history;     /* the sampler gets its tokens in this step */
} di_row;

/* Draft slot whose drafts the row verifies, 0 = none yet. */
static inline int32_t di_row_draft_read(const di_row *r)
{
    return r->has_drafts == 1 || r->remap >= 0 ? r->draft_slot : 0;
}

struct di_outputs;
typedef struct di_step {
    uint64_t id;              /* 0 = never used */
    int32_t kind;             /* DI_STEP_ */
    int32_t n, t;
    int32_t is_open;          /* launched, not committed */
    int32_t is_sampled;       /* its sampler inputs were packed: its lengths are final */
    di_row *rows;             /* [max_num_seqs]; those of out */
    struct di_outputs *out;   /* as published; lives as long as the step */
    int64_t sum_qk;
    int32_t min_k, max_k;
    uint32_t flags;           /* DI_STEP_FLAG_ of what the policy chose */
    int32_t n_identity;       /* rows whose remap is the row itself */
    int32_t n_placed;         /* rows that are not where they were when the ring slot was last used */
    int32_t n_prompt_rows;    /* rows whose log-probability of the next prompt token is wanted */
    int64_t n_prompt_told;    /* prompt tokens whose log-probabilities its commit gives out */
    int64_t n_history;        /* tokens of all rows that get their history */
} di_step;

/* Host arrays of one SchedulerOutputs; depth + 1 of them in a ring by step, and as many for empty calls. */
typedef struct di_outputs {
    di_scheduler_outputs record;  /* its views are made once; a call changes lengths and scalars */
    di_row *rows;
    uint64_t *seq_uid;
    uint32_t *generation;
    int32_t *row_slot, *seqlens_q, *seqlens_k, *cached, *full_len, *remap;
    int32_t *corrected_q, *corrected_k;           /* di_correct's, where lengths vary */
    int32_t *state_slot, *swa_slot, *draft_read_slot, *draft_write_slot, *swa_valid_start;
    int32_t *bt_offsets, *bt_ids, *bt_delta, *zero_slots, *clone_slots, *clone_blocks;
    int32_t *hit_tokens, *replayed_tokens;
    int32_t *n_prompt_rows;       /* of each row of a prefill step */
    uint8_t *inflight, *is_last_chunk, *finished_reason, *ignored_reason;
    uint64_t *finished_uid, *ignored_uid, *held_uid, *preempted_uid;
    int32_t n_delta, n_zero, n_finished, n_ignored, n_held, n_preempted, n_clone_slots, n_clone_blocks;
    int32_t n_checked;            /* rows whose identity and slots passed their checks as they are */
    int32_t csr_rows;             /* rows whose tables are in bt_ids */
    uint64_t csr_changes;         /* table entries made in this core when they were copied */
    int32_t slot;                 /* of all sets, spare ones included */
    di_seen seen;
} di_outputs;

/* Staging of one InputMetadata and SamplerInputs; depth + 1 in a ring, by step. */
typedef struct di_ratio_staging {
    int32_t *positions_c, *slot_main, *cu_compressed_q, *load_main, *ks, *ke, *ca_offset_len, *klen;
    int32_t *rp_ks, *rp_ke, *rp_ca_offset_len;
} di_ratio_staging;

typedef struct di_staging {
    di_seen seen_inputs, seen_sampler;
    int32_t *input_ids, *positions, *ngram_token_ids, *seqlens_q, *seqlens_k;
    int32_t *cu_seqlens_q, *cu_seqlens_k, *cu_seqlens_q_incl;
    uint8_t *valid_token_mask;
    int32_t *slot_swa, *state_slot_idx, *swa_slot_idx, *load_swa, *swa_pivots;
    int32_t *block_tables, *row_slot_idx, *context_lens, *swa_offset_len, *query_indices;
    int32_t *fresh_ids, *ngram_win;
    int32_t *rp_floor, *rp_cu_q, *rp_query_index, *rp_positions, *rp_swa_pivots, *rp_slot_swa;
    di_ratio_staging ratio[4];
    int32_t *selected_rows, *top_k, *sample_pos, *first_row, *row_count, *draft_rows, *draft_write;
    int32_t *stop_ids, *forced, *eos_suppress;
    int32_t *row_slot, *top_logprobs, *selected_prompt_rows, *prompt_tokens, *prompt_counts;
    int32_t *history_ids, *history_counts, *history_outputs, *bias;   /* of the first and the last: di_pack_make_room */
    float *bias_value;
    uint8_t *logprobs_raw;
    float *temperature, *top_p, *min_p, *repetition_penalty, *presence_penalty, *frequency_penalty;
    uint64_t *seed;
    int32_t n_selected_all;   /* entries of selected_rows that are their own index */
    int32_t n_kept;           /* rows of one decode step whose constant arrays stay (pack_tokens), 0 = none */
    uint64_t kept_step;       /* that step */
    const di_row *kept_rows;  /* and its rows: a call that scheduled nothing leaves the ring slot those of another step */
} di_staging;

typedef struct di_counters {
    uint64_t steps_prefill, steps_decode, tokens_prefill, tokens_decode, tokens_drafted, tokens_accepted;
    uint64_t tokens_output, holds, preemptions, aborts, overrun_rows, overrun_steps, stale_rows;
    uint64_t finished[16];
} di_counters;

struct di_core {
    di_config cfg;
    di_derived dim;
    di_limits limits;
    di_arena arena;
    atomic_flag gate;
    atomic_int poisoned;      /* an internal error happened */
    di_clients clients;       /* client lock and what it guards */

    di_unit_pool main, swa, state, draft, row;
    di_prefix prefix;
    di_forks forks;
    int64_t pinned_units;     /* references that external pins hold */
    di_queue queue;
    di_seq **running;         /* [max_num_seqs] in admission order; NULL where a request left since the last sweep */
    int32_t n_running;        /* entries, holes included */
    int32_t live_running;     /* entries that are requests */
    int32_t admitted;         /* requests that hold a row slot */
    int64_t phase_count[16];

    uint64_t launched, committed, done;
    uint64_t decode_since_prefill;        /* d of 2.2 */
    uint64_t prefill_burst;               /* consecutive prefill steps */
    di_step steps[DI_MAX_DEPTH + 1];
    di_outputs outputs[DI_MAX_DEPTH + 1];
    di_outputs spare_outputs[DI_MAX_DEPTH + 1];   /* of calls that scheduled nothing */
    uint64_t empty_calls;
    di_staging staging[DI_MAX_DEPTH + 1];
    int32_t *ngram_table;
    int32_t *drafts;          /* [max_num_seqs + 1, K] to verify next, by row slot: rows of a step are neighbours */
    uint8_t has_room;                     /* DI_WANTS_ bits whose staging was made. Client lock */

    di_layouts layouts;       /* of the records handed out last */
    uint64_t table_changes;   /* block-table entries made so far */

    di_seq **candidates, **growers;   /* [max_num_seqs] scratch of the decode pass */
    di_seq *sweep_head, *sweep_tail;      /* ended, not reported by schedule */
    di_events events;
    di_handles handles;       /* external pins and reservations */
    di_counters count;
    di_cost cost;             /* time budget of prefill steps */
    di_varlen varlen;         /* verification lengths of decode steps */
};

/* Take the gate. 0, or DI_E_BUSY, or DI_E_INTERNAL when the core is poisoned. */
int di_core_enter(di_core *c);
/* The same for calls that may look at a poisoned core. */
int di_core_enter_any(di_core *c);
/* The refusal of a poisoned core. */
int di_core_refuse(void);
/* Leave the gate. An internal error poisons the core. Returns code. */
int di_core_leave(di_core *c, int code);

/* Move a request to another phase and keep the counts. Takes the client lock. */
void di_core_set_phase(di_core *c, di_seq *s, uint8_t phase);
/* A row slot for a request that is admitted. What di_pool_take returns. */
int di_core_take_row(di_core *c, di_seq *s);
/* Consume all handles of a request: its units go back at epoch last_step. */
int di_core_release(di_core *c, di_seq *s);
/* Take a request out of the running set; the hole is closed by the next decode pass. */
void di_core_leave_running(di_core *c, di_seq *s);
/* The terminal transition: leaves queue and running set, releases, becomes RETIRED or ZOMBIE. with_event: queue a bare
 * FINISH event (0 when the last token carries it). */
int di_core_finish(di_core *c, di_seq *s, uint8_t reason, int with_event);
/* Why a request ends with its newest token, NONE if it goes on. Order: stop ids, model length, max_tokens. */
uint8_t di_core_stop_reason(const di_core *c, const di_seq *s, int32_t token);
/* One launched step of a request was committed: the last one retires a zombie. */
void di_core_settle(di_core *c, di_seq *s);
/* Give the buffer back if nothing refers to the request any more. */
void di_core_drop(di_core *c, di_seq *s);

/* Loops over requests look this many ahead: their hot lines are read before they are needed. */
enum { DI_AHEAD = 8 };
#if defined(__GNUC__)
/* The empty statement counts as an effect. gcc takes a function that only fetches ahead for one that does nothing, and
 * drops the calls of it. */
#define DI_PREFETCH(p) do { __builtin_prefetch(p); __asm__ volatile(""); } while (0)
#else
#define DI_PREFETCH(p) ((void)(p))
#endif

static inline di_step *di_core_step(di_core *c, uint64_t id) { return &c->steps[id % (uint64_t)(c->cfg.depth + 1)]; }
static inline di_staging *di_core_staging(di_core *c, uint64_t id)
{
    return &c->staging[id % (uint64_t)(c->cfg.depth + 1)];
}
/* Drafts that the request of a row slot verifies next. */
static inline int32_t *di_core_drafts(const di_core *c, int32_t row_slot)
{
    return c->drafts + (size_t)row_slot * (size_t)c->cfg.num_draft;
}
static inline int32_t di_ceil_div(int32_t a, int32_t b) { return (int32_t)(((int64_t)a + b - 1) / b); }
/* Entries of the tables of a whole step at most. Requests share blocks, so they may be more than the pool has. */
static inline size_t di_core_step_blocks(const di_core *c)
{
    int32_t one = di_ceil_div(c->dim.max_pos, c->cfg.block_size) + 1;
    return (size_t)c->cfg.max_num_seqs * (size_t)(one < c->cfg.num_blocks ? one : c->cfg.num_blocks);
}

#endif
