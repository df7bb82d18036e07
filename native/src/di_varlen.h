/* Verification lengths of a core (spec/engine.md 7): what is known of each request's drafts, and the curve.
 *
 * Cumulative acceptance values of two rounds are kept by row slot, and forgotten when a request gets the slot. A round is
 * what one commit brought. Rows verify the drafts of the newest round: on the host when nothing is in flight
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

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { DI_TIMING_WINDOW = 5000, DI_TIMING_LEAST = 10, DI_SAMPLER_WINDOW = 9, DI_SAMPLER_LEAST = 5,
       DI_MAX_GRAPH_SIZES = 4096 };

/* The last sampler times of steps with the same number of requests. */
typedef struct di_sampler_times {
    double ms[DI_SAMPLER_WINDOW];
    uint8_t count, next;
} di_sampler_times;

/* What is known of the drafts of the request that has a row slot; a set of bits. */
enum {
    DI_ROUND_FLIP = 1,                /* the newest values are those of the second array */
    DI_ROUND_NEWEST = 2,              /* the newest round brought values */
    DI_ROUND_BEFORE = 4,              /* and so did the one before */
    DI_ROUND_NONE = 8                 /* the newest brought no draft */
};

typedef struct di_known {
    uint8_t *rounds;                  /* [max_num_seqs + 1] DI_ROUND_ by row slot */
    float *values[2];                 /* [max_num_seqs + 1, K] by row slot, room for a longer row behind */
} di_known;

typedef struct di_varlen {
    int32_t is_on;
    int32_t n_sizes;                  /* 0 = no curve: everything is verified */
    int32_t *sizes;                   /* [DI_MAX_GRAPH_SIZES] */
    double *ms;
    double slope;
    di_known known;
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

/* Memory, if the configuration asks for it. */
int di_varlen_create(di_core *c);
/* Lengths of the first n candidates of a decode pass, or NULL where every row verifies K drafts. A row with more than
 * one step in flight is an internal error. */
int di_varlen_lengths(di_core *c, int32_t n, const int32_t **lengths);
/* A confidence in 0 .. 1; NaN counts as 0. Two instructions that choose the second operand where one is NaN: the compiler
 * makes branches of comparisons, four a number. */
static inline float di_clipped(float x)
{
#if defined(__SSE2__)
    return _mm_cvtss_f32(_mm_min_ss(_mm_max_ss(_mm_set_ss(x), _mm_setzero_ps()), _mm_set_ss(1)));
#else
    x = x > 0 ? x : 0;
    return x < 1 ? x : 1;
#endif
}

/* A commit brought K drafts of the live row that has a slot (NULL: none), with their confidences or without (NULL: they
 * count as certain). A draft of -1 is none and counts 0; with are_tokens there is none of those. Here, because a commit
 * does it for every row. */
static inline void di_varlen_keep(const di_known *known, size_t slot, int32_t k, const int32_t *drafts, int are_tokens,
                                  const float *confidence)
{
    uint8_t old = known->rounds[slot];
    uint8_t now = (uint8_t)((~old & DI_ROUND_FLIP) | (old & DI_ROUND_NEWEST ? DI_ROUND_BEFORE : 0));
    known->rounds[slot] = now | (uint8_t)(drafts ? DI_ROUND_NEWEST : 0) |
                      (uint8_t)(!drafts || drafts[0] < 0 ? DI_ROUND_NONE : 0);
    if (!drafts) return;
    float *to = known->values[now & DI_ROUND_FLIP] + slot * (size_t)k, all = 1;
    for (int32_t j = 0; j < k; j++) {
        float x = confidence ? di_clipped(confidence[j]) : 1;
        to[j] = all *= are_tokens || drafts[j] >= 0 ? x : 0;
    }
}
/* The row slot goes to another request, or to the same one that starts anew. */
static inline void di_varlen_forget_row(const di_varlen *v, int32_t slot)
{
    if (v->is_on) v->known.rounds[slot] = 0;
}
/* Time that the sampler adds to a step of n requests. */
double di_varlen_sampler_ms(const di_varlen *v, int32_t n);
/* Forget what was observed. */
void di_varlen_forget(di_core *c);
/* The rules of a curve; least = tokens of the largest step. */
int di_verify_check_curve(const int32_t *sizes, const double *ms, int n, int64_t least);

#endif
