/* Declarations of the core: plain C without preprocessor lines, read by compilers (through di_core.h) and by cffi.
 *
 * Every function returns 0 or a negative DI_E_ status and fills the thread's di_error (di_last_error). A failed call
 * leaves the core as it was, except DI_E_INTERNAL: after it only di_audit, di_core_check, di_stats and
 * di_core_destroy are allowed. Nothing here aborts, prints, or calls back.
 *
 * Threads: di_submit and di_abort may be called from any thread at any time; they queue a command which the next
 * di_schedule, di_commit or di_poll_events carries out in arrival order. All other calls belong to one engine thread
 * at a time; a second one entering meanwhile gets DI_E_BUSY and never waits.
 */

typedef struct di_core di_core;

/* Sizes and policy, fixed for the life of a core (spec/engine.md 2.1). The arrays are copied. */
typedef struct di_config {
    uint32_t struct_size;
    int32_t block_size;             /* BS, tokens in a block */
    int32_t num_blocks;             /* NB, blocks of MAIN and INDEX including the null block 0 */
    int32_t num_swa_slots;          /* slots of SWA including slot 0; 0 = no such pool */
    int32_t num_state_slots;        /* slots of STATE including slot 0; 0 = no such pool */
    int32_t max_num_seqs;
    int32_t max_num_batched_tokens;
    int32_t max_model_len;
    int32_t vocab_size;
    int32_t max_chunk;              /* 0 = max_num_batched_tokens */
    int32_t min_chunk;
    int32_t chunk_align;
    int32_t chunked_prefill;        /* 0 or 1 */
    int32_t num_draft;              /* K */
    int32_t depth;                  /* steps in flight: 1, or 2 pipelined */
    int32_t prefill_interval_all;   /* decode steps between two attempts that need every rank */
    int32_t prefill_interval_any;   /* ... that need one rank */
    int32_t prefill_sum_k_limit;    /* 0 = derived */
    int32_t max_prefill_burst;      /* 0 = unlimited */
    int32_t stop_preempted;         /* 1: a preempted request ends with NO_RESOURCE, 0: it is computed again */
    int32_t engine_type;            /* enum di_engine_type; COMPLETION needs stop_preempted (spec/engine.md 1.4) */
    int32_t window;                 /* W, 0 = no sliding-window layers */
    int32_t backtrack;              /* at least K + 1 is used */
    int32_t swa_ring;               /* SW, 0 = window + backtrack */
    int32_t num_ratios_sparse;
    int32_t num_ratios_dense;
    int32_t ratios_sparse[4];
    int32_t ratios_dense[4];
    int32_t ngram;                  /* G, 0 = no engram window */
    int32_t ngram_table_size;
    int32_t ngram_pad;              /* a compressed id */
    int32_t inputs;                 /* richest record packed: 0 InputMetadata, 1 InputMetadataV41 */
    int32_t validation;             /* a DI_LEVEL_ value */
    int32_t stream_ordered_reuse;   /* 0 or 1 (spec/engine.md 4.2) */
    int32_t row_order;              /* 0 stable, 1 by length, longest first */
    int32_t zero_swa_on_alloc;      /* 0 or 1 */
    int32_t csr_tables;             /* 1: steps carry bt_offsets and bt_ids, decode inputs block_tables; 0: the backend
                                       keeps tables by row slot from bt_delta, decode inputs carry row_slot_idx */
    int32_t dp_size;                /* ranks that step together, 0 and 1: no group. In a group a decode call that finds
                                     * nothing to run is a step of the others and counts in d (spec/engine.md 2.2) */
    double prefill_watermark;       /* (0, 1] */
    const int32_t *ngram_table;     /* [ngram_table_size] compressed id of a token id; negative = image sentinel */
    int64_t target_itl_ns;          /* with a cost model: time between two decode steps, 0 = no bound */
    int64_t prefill_step_ns;        /* with a cost model: time of a prefill step while nothing decodes, 0 = no bound */
    int32_t cost_feedback;          /* 1: di_observe_step corrects the cost model */
    int32_t verify_lengths;         /* rows of a decode request: 0 fixed at K + 1, 1 by confidence (7) */
    int32_t prefix_cache;           /* 0 or 1 (spec/engine.md 3.5) */
    int32_t replay_len;             /* positions of a hit that run again: >= window, or 0 = window */
    int32_t replay_mode;            /* of requests that name none; an enum di_replay_mode value (spec/engine.md 3.7) */
    int32_t replay_keep;            /* prompt rows that the decoder half keeps, >= window + backtrack; 0 with mode OFF */
    int32_t replay_exact;           /* 1: a replay is so long that windows behind it are those of a cold run */
    int32_t replay_len_kept;        /* replay_len of requests whose decoder half keeps a part of its rows; 0 = the same */
    int32_t prefix_hash_bits;       /* bits of a key that count: 128; fewer make keys collide, for tests */
    uint64_t prefix_salt;           /* fingerprint of model and cache layout */
    uint8_t prefix_key[16];         /* of the keyed hash */
} di_config;

/* Values that follow from a configuration. */
typedef struct di_derived {
    int32_t q;                      /* K + 1 */
    int32_t max_pos;                /* exclusive bound of positions */
    int32_t max_blocks;             /* MB */
    int32_t prompt_limit;
    int32_t prefill_sum_k_limit;
    int32_t max_chunk;
    int32_t backtrack;
    int32_t swa_ring;
    int32_t num_ratios;
    int32_t ratios[4];              /* ascending union of both lists */
} di_derived;

/* One request; every array is copied. Unset sampling values have the defaults given here. */
typedef struct di_request {
    uint32_t struct_size;
    int32_t num_prompt;             /* >= 1 */
    const int32_t *prompt;
    int32_t max_tokens;             /* >= 1 */
    int32_t min_tokens;             /* stop ids are suppressed in the first min_tokens tokens */
    int32_t num_eos;
    int32_t num_stop;               /* num_eos + num_stop <= 64 */
    const int32_t *eos_ids;
    const int32_t *stop_ids;
    int32_t num_forced;
    int32_t ignore_eos;             /* 0 or 1 */
    const int32_t *forced;          /* the i-th output token is forced to forced[i]; -1 = free */
    int32_t priority;               /* -8 .. 7, smaller goes first; 0 */
    int32_t top_k;                  /* -1 or 0 = off */
    float temperature;              /* >= 0; 1 */
    float top_p;                    /* (0, 1]; 1 */
    float min_p;                    /* [0, 1); 0 */
    float repetition_penalty;       /* > 0; 1 */
    float presence_penalty;         /* [-2, 2]; 0 */
    float frequency_penalty;        /* [-2, 2]; 0 */
    uint64_t seed;
    int32_t prefix_lookup;          /* 1: use cached blocks of an equal prefix, 0: compute everything */
    int32_t num_bias;               /* <= 1024 */
    const int32_t *bias_ids;        /* tokens whose logits change */
    const float *bias_values;       /* [-100, 100], added */
    int32_t top_logprobs;           /* 0 .. 1000 alternatives of each output token */
    int32_t logprobs_raw;           /* 1: of the model's own distribution, 0: of the processed one */
    int32_t prompt_logprobs;        /* 1: log-probabilities of the prompt, with the first token's event. Every position
                                       is computed: needs prefix_lookup 0, and replay mode OFF */
    int32_t replay_mode;            /* an enum di_replay_mode value, at most that of the config; -1 = that of the config */
} di_request;

/* A request that goes on from another one's tokens; it inherits all that is not here but forced tokens. */
typedef struct di_fork_args {
    uint32_t struct_size;
    int32_t at_prompt;              /* 1: from the parent's prompt, 0: from all of its committed tokens */
    int32_t max_tokens;             /* of its own; 0 = what the parent has left at that place */
    int32_t pad;
    uint64_t seed;
} di_fork_args;

/* Whether a prefill step is due, wanted and allowed (spec/engine.md 2.2, steps 1 and 2). */
typedef struct di_probe_out {
    int32_t point;                  /* 0 none, 1 ANY, 2 ALL */
    int32_t want;                   /* the queue has an admissible head and the pool is below the watermark */
    int32_t has_running;            /* a sequence can be decoded */
    int32_t has_unfinished;         /* anything is not terminal */
    int32_t burst_reached;          /* max_prefill_burst consecutive prefill steps were made */
    int32_t in_flight;              /* launched steps that are not committed */
    int64_t decode_since_prefill;   /* d: decode steps since the last prefill step; equal on all ranks of a group */
} di_probe_out;

typedef struct di_pool_stats {
    int64_t total;                  /* allocatable units; the null unit is not counted */
    int64_t free;
    int64_t cached;
    int64_t held;
    int64_t limbo;
} di_pool_stats;

typedef struct di_stats_out {
    di_pool_stats main;
    di_pool_stats swa;
    di_pool_stats state;
    di_pool_stats draft;
    int64_t waiting;
    int64_t prefill;
    int64_t running;
    int64_t zombie;
    int64_t handoff;                /* in a transfer: computed prompts, or reservations */
    int64_t unfinished;             /* not terminal, submissions still queued included */
    int64_t queued_events;          /* terminal events not handed out yet */
    uint64_t steps_prefill;
    uint64_t steps_decode;
    uint64_t tokens_prefill;
    uint64_t tokens_decode;
    uint64_t tokens_drafted;
    uint64_t tokens_accepted;
    uint64_t tokens_output;
    uint64_t holds;
    uint64_t preemptions;
    uint64_t aborts;
    uint64_t overrun_rows;
    uint64_t overrun_steps;
    uint64_t stale_rows;            /* rows of a preempted generation, discarded */
    uint64_t finished[16];          /* by finish reason */
    uint64_t event_ring_grown;
    uint64_t last_step;             /* newest launched step */
    uint64_t committed;
    uint64_t done;
    int32_t event_arenas;
    int32_t poisoned;               /* 1 after DI_E_INTERNAL */
    uint64_t budget_overruns;       /* prefill steps whose smallest chunk was above the time budget */
    uint64_t prefix_queries;        /* admissions that looked for a prefix */
    uint64_t prefix_hit_tokens;     /* positions that were not computed */
    uint64_t prefix_replayed_tokens; /* positions of hits that ran again */
    uint64_t prefix_evictions;      /* cached blocks that were taken for other tokens */
    int64_t pins;                   /* external handles that are out */
    int64_t pinned_units;           /* references that external pins hold */
} di_stats_out;

/* Which arrays the newest record of a kind shows. Records of one slot with one version have the same views. */
typedef struct di_layout {
    int32_t slot;
    uint32_t version;               /* from 1; 0 = no record yet */
    int32_t n_changed;              /* words of 8 bytes that differ from the version before; -1 = any may */
    uint16_t changed[62];           /* their offsets in the record, in bytes */
} di_layout;

typedef struct di_layouts {
    di_layout steps;                /* SchedulerOutputs */
    di_layout inputs;               /* InputMetadata or InputMetadataV41; its scalars are the same, too */
    di_layout sampler;              /* SamplerInputs */
} di_layouts;

/* Units that a request was given in a COMPLETION engine, to be filled from outside (spec/engine.md 1.4). */
typedef struct di_reservation {
    uint64_t handle;
    uint64_t uid;                   /* the request's, as in events and for di_abort */
    const int32_t *block_ids;       /* in order of positions; valid until the next call that may end the request */
    int32_t num_blocks;
    int32_t swa_slot;               /* 0 = no such pool */
    int32_t state_slot;
} di_reservation;

/* What came with the filled units. */
typedef struct di_inject_args {
    uint32_t struct_size;
    int32_t first_token;
    float logprob;                  /* of the first token, <= 0 */
    int32_t num_drafts;             /* 0, or num_draft */
    const int32_t *drafts;          /* to verify in the first step; their probabilities are not on this device */
} di_inject_args;

/* A computed prompt in a PROMPT engine. */
typedef struct di_handoff_out {
    const int32_t *block_ids;       /* in order of positions; valid until di_acknowledge */
    const int32_t *drafts;          /* [num_drafts] */
    int32_t num_blocks;
    int32_t num_drafts;
    int32_t swa_slot;
    int32_t state_slot;
    int32_t length;                 /* positions in the cache */
    int32_t first_token;
    int32_t is_ended;               /* 1: aborted meanwhile; the transfer may stop, and must still acknowledge */
} di_handoff_out;

/* Where a batch lies: one block of memory that starts with seq_uid holds all of its arrays but the alternatives. */
typedef struct di_event_info {
    int32_t arena;                  /* -1 = the batch was empty and took none */
    int32_t capacity;               /* events that the arena holds */
    uint64_t generation;            /* batches that were written to this arena so far */
    void *data;
    uint64_t bytes;
    uint64_t step_id;
    int32_t count;                  /* events of the batch */
    int32_t has_more;               /* 1: it has confidences or alternatives too */
    int32_t next;                   /* arena that the next batch goes to, unless it is pinned until then */
} di_event_info;

/* Predicted time of a step (spec/engine.md 2.8): integers throughout, times in ns with DI_COST_FRACTION = 20 bits of
 * fraction, so that every host computes the same. The query at position p reads min(floor((p + 1) / ratio), cap) keys;
 * with block > 1 it reads whole blocks of that many keys and cap counts blocks. */
typedef struct di_cost_kind {
    int64_t pair;                   /* of one (query, key) pair, 0 .. 2**40 */
    int32_t ratio;                  /* positions of one key, 1 .. 65536 */
    int32_t cap;                    /* 0 = none */
    int32_t shift;                  /* 1: positions count from the row's valid_start (sliding window) */
    int32_t block;                  /* 1 .. 65536 */
    int32_t kept;                   /* 1: of rows that the decoder half runs; a window then begins where these do */
    int32_t pad_kept;
    double flops;                   /* of one pair, >= 0; for the record only */
} di_cost_kind;

typedef struct di_cost_model {
    uint32_t struct_size;
    int32_t num_kinds;              /* 0 .. 8 */
    int32_t keep;                   /* rows of a prompt that the decoder half runs (3.7), 0 = all */
    int32_t pad_keep;
    int64_t base;                   /* of a step, 0 .. 2**50 */
    int64_t seq;                    /* of a request, 0 .. 2**50 */
    int64_t row;                    /* of a query token, 0 .. 2**50 */
    int64_t kept;                   /* of a row of the decoder half, 0 .. 2**50 */
    int64_t logit;                  /* of a row that gets logits, 0 .. 2**50 */
    double row_flops;               /* of a query token, and so on: for the record only */
    double kept_flops;
    double logit_flops;
    di_cost_kind kind[8];
} di_cost_model;

/* One request of a step, as far as its cost goes. */
typedef struct di_cost_row {
    int32_t start;                  /* first position */
    int32_t q;                      /* positions, >= 1 */
    int32_t full_len;               /* tokens of the prompt, of which the decoder half runs the last keep; 0 = all
                                       rows, start + q in decode */
    int32_t valid_start;            /* first position with valid sliding-window history */
    int32_t logit_rows;             /* 1 in prefill, q in decode */
} di_cost_row;

/* How long a decode step took (spec/engine.md 7.2). */
typedef struct di_timing {
    int32_t graph;                  /* graph size, one of the curve */
    int32_t num_reqs;
    double forward_ms;
    double sampler_ms;
} di_timing;

/* Version of the distribution that this library was built from. */
const char *di_version(void);
/* The calling thread's last failure, and the names of the record and field that it is about ("" if none). */
const di_error *di_last_error(void);
const char *di_last_contract(void);
const char *di_last_field(void);

/* Check a configuration and compute what follows from it. out may be NULL. */
int di_config_check(const di_config *config, di_derived *out);
int di_core_create(const di_config *config, di_core **out, di_error *error);
void di_core_destroy(di_core *core);

/* Queue one request. *uid is set on success and never reused. DI_E_ARG names the field, DI_E_CAPACITY: no memory. */
int di_submit(di_core *core, const di_request *request, uint64_t *uid);
/* Ask for the end of n requests; status[i] is an enum di_abort_status. Idempotent. */
int di_abort(di_core *core, const uint64_t *uids, int n, uint8_t *status);
/* Make a child of a live request. Its prompt is what it takes over. It runs once the parent's prompt is computed:
 * with copies of the parent's caches where units allow, else computed from its tokens. Engine thread. */
int di_fork(di_core *core, uint64_t parent, const di_fork_args *args, uint64_t *uid);
/* End a request whose text contains a stop string after n_output tokens; later tokens are dropped. */
int di_finish(di_core *core, uint64_t uid, int reason, int n_output);

/* Decides nothing and schedules nothing; queued submits and aborts are carried out first, so that they are seen. */
int di_probe(di_core *core, di_probe_out *out);
/* Make a step; mode is an enum di_step_mode. Flag EMPTY: nothing was scheduled, there is nothing to commit, and
 * the next step gets the same step_id.
 * Requests that ended since the last call are listed, except by a TRY_PREFILL that finds nothing. */
int di_schedule(di_core *core, int mode, di_scheduler_outputs *out);
/* The step of an engine with one rank: di_probe, a prefill step where one is due, wanted and not empty, else a decode
 * step. */
int di_schedule_local(di_core *core, di_scheduler_outputs *out);
/* Fill the input record of the newest step; base must be the first member of a di_input_metadata_v41 when
 * config.inputs is 1. Only for the newest launched, uncommitted step. */
int di_pack(di_core *core, uint64_t step, di_input_metadata *base);
/* Same lifetime as di_pack. With drafts in a pipelined core: after the commit of the step before. */
int di_pack_sampler(di_core *core, uint64_t step, di_sampler_inputs *out);
/* Append tokens, stop checks, events. output may be NULL if no row of the step ends its prompt. Without the prompt
 * log-probabilities that the step asked for, those prompts get none. */
int di_commit(di_core *core, uint64_t step, const di_sampler_output *output, di_event_batch *events);
/* di_commit and di_event_last in one call: *info is filled on success. */
int di_commit_info(di_core *core, uint64_t step, const di_sampler_output *output, di_event_batch *events,
                   di_event_info *info);
/* Take units for a request whose prompt was computed elsewhere: all or nothing. DI_E_CAPACITY: not now; DI_E_ARG:
 * never. Nothing but di_inject and di_acknowledge gives them back or lets them run; an abort in between waits for either. */
int di_reserve(di_core *core, const di_request *request, di_reservation *out);
/* The units are filled, nobody else touches them: the request runs from the next decode step with a free row on.
 * Consumes the handle. A request that was aborted meanwhile ends here. */
int di_inject(di_core *core, uint64_t handle, const di_inject_args *args);
/* What to send of a request whose PREFILLED event was seen. After di_step_done of its last step. */
int di_handoff(di_core *core, uint64_t uid, di_handoff_out *out);
/* PROMPT: the receiver has everything (or gave up). COMPLETION: the sender will write no more, though nothing was
 * injected. The units go back, and the terminal event follows. */
int di_acknowledge(di_core *core, uint64_t uid);
/* The device has finished every access of every step up to this one. */
int di_step_done(di_core *core, uint64_t step);
/* Terminal events that were decided outside a commit. An empty batch takes no arena. */
int di_poll_events(di_core *core, di_event_batch *events);
/* Mark an event arena as read by someone: it is not recycled until unmarked. */
int di_event_pin(di_core *core, int arena, int pinned);
/* Where the last batch lies. */
int di_event_last(di_core *core, di_event_info *out);
/* Where the core says which arrays its newest records show: written by each successful call that makes one, and valid
 * as long as the core. Belongs to the engine thread. */
int di_core_layouts(di_core *core, const di_layouts **out);

/* Hold n units of a pool (an enum di_pool; INDEX is MAIN) that live requests hold, until di_unpin. */
int di_pin(di_core *core, int pool, const int32_t *units, int n, uint64_t *handle);
/* DI_E_STALE_HANDLE for a handle that was given back. */
int di_unpin(di_core *core, uint64_t handle);
/* Forget every cached prefix (the weights changed); requests go on, and what they computed before is not offered
 * later. salt NULL = keep. DI_E_BUSY while requests share a block. */
int di_reset_prefix_cache(di_core *core, const uint64_t *salt);

int di_unfinished(di_core *core, int64_t *count);
int di_stats(di_core *core, di_stats_out *out);
/* Leak audit: when nothing is live and every launched step is done, every unit must be free. */
int di_audit(di_core *core, di_error *error);
/* Walk every structure and compare it with every other. O(everything). */
int di_core_check(di_core *core, di_error *error);

/* Time of a step of n rows, in ns, rounded down; INT64_MAX where it does not fit. */
int di_cost_predict(const di_cost_model *model, const di_cost_row *rows, int n, int64_t *ns);
/* Largest chunk of next, at most next->q, with which the step stays within budget_ns. If not even min_chunk does: 0
 * when the step has rows, else min_chunk, since progress beats the budget. */
int di_cost_chunk(const di_cost_model *model, const di_cost_row *rows, int n, const di_cost_row *next,
                  int64_t budget_ns, int32_t min_chunk, int32_t *q);
/* From the next schedule call on. The models are copied; prefill and decode steps have their own. */
int di_set_cost_model(di_core *core, const di_cost_model *prefill, const di_cost_model *decode);
/* How long a step took. Corrects the predictions of its kind if the configuration says so. DI_E_ORDER for a step that
 * is not committed, or not among the depth + 1 newest. */
int di_observe_step(di_core *core, uint64_t step, int64_t measured_ns);

/* The best total of a decode step (7.3): values [n, k] cumulative acceptance of each draft, each row not increasing;
 * each counts in units of 1 / 2048, rounded; scratch of at least 6 * n * k + 8196 bytes, aligned for uint32_t. */
int di_verify_budget(const int32_t *sizes, const double *ms, int n_sizes, double slope, double sampler_ms,
                     const float *values, int n, int k, void *scratch, uint64_t scratch_bytes, int32_t *total);
/* lengths[i] = 1 + drafts of row i among the total - n best, ties by row and draft (7.4). */
int di_verify_distribute(const float *values, int n, int k, int32_t total, int32_t *lengths);
/* Times of a forward by graph size, ascending and up to max_num_seqs * (K + 1) at least; n = 0: verify everything.
 * Corrections start again. */
int di_varlen_curve(di_core *core, const int32_t *sizes, const double *ms, int n);
int di_varlen_observe(di_core *core, const di_timing *timing);
/* The device's own lengths of the newest step: they sum to its tokens. Before di_pack_sampler, which follows them. */
int di_correct(di_core *core, uint64_t step, const int32_t *seqlens_q, int n);
