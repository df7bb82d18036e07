/* One request inside the core, and the table that finds it by uid.
 *
 * Life (spec/engine.md 1.3). Phases are DI_PHASE_; PENDING lives in Python only, HANDOFF belongs to PROMPT and
 * COMPLETION engines (di_transfer.h).
 *
 *   submit -> WAITING -> PREFILL <-> PREFILL -> RUNNING -> RETIRED
 *                ^  \________________________/ |  \-> ZOMBIE -> RETIRED     (terminal while steps are in flight)
 *                '--------- preempted ---------'
 *
 * The struct lies in a slab, dense, so that the hot lines of neighbours do not compete for the same sets of a cache;
 * one buffer holds all its arrays, made by submit at their final size: nothing grows in a step. Both are given back
 * when the request is RETIRED, no step refers to it, its terminal event was handed out and a schedule call reported it.
 */
#ifndef DI_SEQ_H
#define DI_SEQ_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "di_arena.h"
#include "di_core.h"
#include "di_prefix_index.h"

enum { DI_MAX_STOP_IDS = 64, DI_MAX_BIAS = 1024, DI_MAX_TOP_LOGPROBS = 1000 };
/* Entries behind the last token, and behind the last event of a column, that a commit may write before they count. */
enum { DI_EVENT_ROOM = 4 };
enum { DI_PRIORITY_LOW = -8, DI_PRIORITY_HIGH = 7 };

typedef struct di_seq di_seq;
/* Why a buffer is still needed after the end; a set of bits. */
enum { DI_KEEP_EVENT = 1, DI_KEEP_SWEEP = 2 };

/* What only some requests ask of the sampler; a set of bits. */
enum {
    DI_WANTS_HISTORY = 1,     /* a penalty: the sampler counts its tokens */
    DI_WANTS_BIAS = 2,
    DI_WANTS_TOP = 4,
    DI_WANTS_RAW = 8,
    DI_WANTS_PROMPT = 16      /* log-probabilities of its prompt */
};

typedef struct di_sampling {
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int32_t top_k;
    int32_t min_tokens;
    uint64_t seed;
} di_sampling;

struct di_seq {
    /* hot: all that a decode step and its commit read and write, one cache line */
    int32_t len;              /* committed tokens, prompt and output */
    int32_t cached;           /* committed positions whose cache rows were computed */
    int32_t n_blocks;         /* used entries of blocks; 0 after release */
    int32_t prompt_len;
    int32_t max_tokens;
    int32_t last_row;         /* row in last_step */
    uint64_t last_step;       /* newest step that uses this request's units; epoch of their release */
    uint64_t uid;
    uint32_t generation;      /* recomputations */
    uint32_t stop_mask;       /* di_seq_stop_bits of every stop id: nearly all tokens are no stop id at one look */
    int32_t *tokens;          /* [cap_tokens], and DI_EVENT_ROOM behind */
    uint8_t phase;            /* changed under the client lock, read anywhere on the engine thread */
    uint8_t inflight;         /* launched, uncommitted steps of this generation */
    uint8_t inflight_all;     /* ... of every generation */
    uint8_t holds;            /* consecutive steps held */
    uint8_t has_drafts;       /* 1: and their probabilities lie in its draft slot; 2: the host's ids are all there is */
    uint8_t awaits_first;     /* the step that ends its prompt is in flight */
    uint8_t listed;           /* in a queue or the running set */
    uint8_t reason;
    /* read when something changes */
    int32_t *blocks;          /* [cap_blocks] */
    int32_t *handed_drafts;   /* [K] of a request in a transfer; one with a row has them in di_core_drafts */
    int32_t swa_slot, state_slot, draft_slot, row_slot; /* 0 = none */
    int32_t running_at;       /* index in the running set while listed there */
    int32_t register_at;      /* cached positions at which the next block can be offered; INT32_MAX = never */
    int32_t store_from;       /* positions below lie in shared blocks of a prefix hit: they are never stored */
    int32_t swa_valid_start;  /* first position with window history: the start of a prefix hit */
    int32_t keep_from;        /* first prompt position of the decoder half, 0 = all: it does not change with preemption */
    uint8_t replay_mode;      /* enum di_replay_mode; keep_from is 0 with OFF */
    uint8_t keep;
    /* cold */
    void *arrays;             /* the buffer of all arrays */
    int32_t cap_tokens, cap_blocks;
    uint64_t ticket;
    int32_t priority;
    int32_t n_stop;           /* stop ids, EOS included unless ignored */
    int32_t n_forced;
    uint8_t prefix_lookup;
    uint8_t is_ready;               /* a parent: in the list of di_forks */
    di_seq *parent;                 /* of a fork that waits for it; NULL = none */
    di_seq *child_head, *child_tail;
    di_seq *ready_prev, *ready_next;
    uint8_t queue_class;      /* 0 continuation of a prompt, 1 preempted, 2 new */
    int32_t *stop_ids;
    int32_t *forced;
    di_sampling sampling;
    uint8_t wants;            /* DI_WANTS_ */
    uint8_t is_counted;       /* the sampler's state has its tokens since it holds its row */
    uint8_t prompt_told;      /* the event with its prompt's log-probabilities is out */
    int32_t n_bias, top_logprobs;
    int32_t *bias_ids;
    float *bias_values;
    float *prompt_logprobs;   /* [prompt_len] with DI_WANTS_PROMPT; the first is 0 */
    uint64_t *hashes;         /* [cap_blocks, 2] of full blocks, with a prefix cache */
    uint64_t hash_epoch, chain_epoch;
    int32_t n_hashed, n_registered;
    di_prefix_link chain;     /* the registered block equal to the last of n_registered */
    uint8_t has_twins;        /* some of the chain are other requests' blocks, which this one does not hold */
    di_seq *prev, *next;            /* admission queue */
    di_seq *map_next;               /* bucket of the table */
    di_seq *event_next;             /* terminal events not handed out */
    di_seq *sweep_next;             /* ends not reported by schedule */
    di_seq *command_prev, *command_next;
    uint8_t command;                /* DI_COMMAND_ bits waiting in the command list */
    uint64_t event_step;            /* step of the terminal event, 0 = outside a commit */
    int32_t event_output;           /* output tokens of the terminal event */
    uint64_t handle;                /* of a reservation, until it is injected; 0 = none */
    float first_logprob;            /* of an injected request */
    uint8_t first_waits;            /* the event of its first token is not out */
    uint8_t ending;                 /* a reason that waits for the acknowledgement of a transfer */
};

_Static_assert(offsetof(di_seq, blocks) == 64, "the hot fields fill one cache line");

/* Copy a request into a buffer of its final size; slack_tokens is the reserve of block-table entries past the last
 * token for steps in flight. DI_E_CAPACITY when memory is short. Lock held. */
int di_seq_create(di_bins *bins, const di_request *r, const di_config *k, int32_t slack_tokens, di_seq **out);
/* Give the memory of a request back. Lock held. */
void di_seq_free(di_bins *bins, di_seq *s);
/* Check a request's values; names the field. Needs no lock. */
int di_request_check(const di_request *r, int32_t vocab_size);
/* Its DI_WANTS_ bits. */
uint8_t di_request_wants(const di_request *r);

/* Two bits that stand for a token, by its lowest 8 bits. */
static inline uint32_t di_seq_stop_bits(int32_t token)
{
    return UINT32_C(1) << (token & 15) | UINT32_C(1) << (16 + (token >> 4 & 15));
}
/* Whether the token may be a stop id: of one that is none and a request with one stop id, 1 in 256 seems to be. */
static inline uint32_t di_seq_may_stop(const di_seq *s, int32_t token)
{
    return (~s->stop_mask & di_seq_stop_bits(token)) == 0;
}
/* Whether it is one. The ids lie far from the hot fields: to be asked only of those that may be. */
int di_seq_is_stop(const di_seq *s, int32_t token);

static inline int32_t di_seq_output_len(const di_seq *s) { return s->len - s->prompt_len; }
static inline int di_seq_is_terminal(const di_seq *s)
{
    return s->phase == DI_PHASE_ZOMBIE || s->phase == DI_PHASE_RETIRED;
}
/* Launched steps certainly end the request, each of them adds at least one token (spec/engine.md 5.6). */
static inline int di_seq_is_certain_to_finish(const di_seq *s, int32_t max_model_len)
{
    int64_t f = s->inflight;
    return f > 0 && (s->len - s->prompt_len + f >= s->max_tokens || s->len + f > max_model_len);
}

/* uid -> request. Fixed buckets; uids are consecutive, so chains are even and short. */
typedef struct di_table {
    di_seq **buckets;
    uint64_t mask;
    int64_t count;
} di_table;
int di_table_init(di_table *t, di_arena *a, int32_t max_num_seqs);
di_seq *di_table_find(const di_table *t, uint64_t uid);
void di_table_add(di_table *t, di_seq *s);
void di_table_remove(di_table *t, di_seq *s);

#endif
