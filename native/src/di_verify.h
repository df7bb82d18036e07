/* How many drafts a decode step verifies, and whose (spec/engine.md 7.3, 7.4). Pure functions over lists of N * K
 * cumulative acceptance values, row by row; each row does not increase. O(N * K).
 *
 * The budget: sorted values (LSD radix over the 30 bits of a float in [0, 1], 3 passes of 10), prefix sums in double.
 * Time depends on the graph size alone, so that within one size the largest total wins; the brute force over every
 * total takes the first of equals, so a winner walks back over totals of the same quotient. The distribution: the
 * smallest value taken, by radix selection or from the sorted budget where both go by the same values; ties by row. */
#ifndef DI_VERIFY_H
#define DI_VERIFY_H

#include <stddef.h>

#include "di_core.h"

/* Measured times of a forward by graph size, and what is added to them. */
typedef struct di_verify_curve {
    const int32_t *sizes;     /* [n_sizes], ascending; the last one is at least N * (K + 1) */
    const double *ms;         /* [n_sizes], above 0 */
    int32_t n_sizes;
    double slope;             /* ms for each token of the graph */
    double sampler_ms;
} di_verify_curve;

/* Bytes of scratch for n rows of k values. */
size_t di_verify_scratch_bytes(int32_t n, int32_t k);
/* The total T in [n, n * (k + 1)] with the most expected tokens per time. Values are in [0, 1]. */
int32_t di_verify_total(const di_verify_curve *curve, const float *values, int32_t n, int32_t k, void *scratch);
/* lengths[i] = 1 + how many of row i's values are among the total - n largest. scratch: NULL, or that of a
 * di_verify_total of the same values. */
void di_verify_share(const float *values, int32_t n, int32_t k, int32_t total, const void *scratch, int32_t *lengths);

#endif
