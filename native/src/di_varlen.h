/* Verification lengths of a core (spec/engine.md 7): what is known of each request's drafts, and the curve.
 *
 * Cumulative acceptance values of two rounds are kept by row slot, with the uid and generation that they belong to. A
 * round is what one commit brought. Rows verify the drafts of the newest round: on the host when nothing is in flight
 * (f = 0), still on the device otherwise (f = 1). The budget always goes by the round before that one, so that whether a
 * draft is verified does not depend on its own confidence.
 *
 *   f = 0    distribution: newest    budget: the one before
 *   f = 1    distribution: newest    budget: newest            the device distributes again by what is in flight
 */
#ifndef DI_VARLEN_H
#define DI_VARLEN_H

#include <stdint.h>

#include "di_core.h"

enum { DI_TIMING_WINDOW = 5000, DI_TIMING_LEAST = 10, DI_SAMPLER_WINDOW = 9, DI_SAMPLER_LEAST = 5,
       DI_MAX_GRAPH_SIZES = 4096 };

/* The last sampler times of steps with the same number of requests. */
typedef struct di_sampler_times {
    double ms[DI_SAMPLER_WINDOW];
    uint8_t count, next;
} di_sampler_times;

/* What is known of the drafts of the request that has a row slot: one cache line where K is at most 6. */
typedef struct di_known {
    uint64_t uid;
    uint32_t generation;
    uint8_t rounds;                   /* NEWEST, BEFORE: that round brought values; FLIP: the newest is the second;
                                       * NONE: the newest brought no draft */
    float values[];                   /* [2, K] */
} di_known;

typedef struct di_varlen {
    int32_t is_on;
    int32_t n_sizes;                  /* 0 = no curve: everything is verified */
    int32_t *sizes;                   /* [DI_MAX_GRAPH_SIZES] */
    double *ms;
    double slope;
    char *known;                      /* [max_num_seqs + 1, stride] di_known by row slot, room for a longer row behind */
    size_t stride;                    /* bytes, whole cache lines */
    /* of one step */
    float *budget, *share;            /* [max_num_seqs, K], room for a longer row behind them */
    int32_t *lengths;                 /* [max_num_seqs] */
    void *scratch;
    /* corrections (7.2) */
    int32_t *timed_size;              /* [DI_TIMING_WINDOW] index of the graph size */
    double *timed;                    /* [DI_TIMING_WINDOW] ms per token beyond the curve */
    int32_t n_timed, next_timed;
    int32_t *count;                   /* [DI_MAX_GRAPH_SIZES] samples of each size */
    double *median;                   /* [DI_MAX_GRAPH_SIZES] of a size with enough samples */
    double *sorting;                  /* [DI_TIMING_WINDOW] */
    di_sampler_times *sampler;        /* [max_num_seqs + 1] by number of requests; 0 = all steps */
} di_varlen;

struct di_seq;
struct di_row;

/* Memory, if the configuration asks for it. */
int di_varlen_create(di_core *c);
/* Lengths of the first n candidates of a decode pass, or NULL where every row verifies K drafts. A row with more than
 * one step in flight is an internal error. */
int di_varlen_lengths(di_core *c, int32_t n, const int32_t **lengths);
/* A commit brought K drafts of a live row (NULL: none), with their confidences or without (NULL: they count as certain).
 * A draft of -1 is none and counts 0. */
void di_varlen_keep(di_core *c, const struct di_row *r, const int32_t *drafts, const float *confidence);
/* Time that the sampler adds to a step of n requests. */
double di_varlen_sampler_ms(const di_varlen *v, int32_t n);
/* Forget what was observed. */
void di_varlen_forget(di_core *c);
/* The rules of a curve; least = tokens of the largest step. */
int di_verify_check_curve(const int32_t *sizes, const double *ms, int n, int64_t least);

#endif
