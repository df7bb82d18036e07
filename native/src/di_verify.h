/* How many drafts a decode step verifies, and whose (spec/engine.md 7.3, 7.4). Pure functions over lists of N * K
 * cumulative acceptance values, row by row; each row does not increase. O(N * K).
 *
 * The budget counts every value in whole units of 1 / 2048, rounded: closer than anybody knows a chance, its sums are
 * exact in any order, and a histogram is all that it needs, no sort. Time depends on the graph size alone, so that within
 * one size the largest total wins; of totals with the same quotient it is the first, the one without values of no units.
 * The distribution goes by the values themselves: the smallest one taken, by radix selection, among those of its number of
 * units where there is a histogram; ties by row. */
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

enum { DI_VERIFY_UNITS = 2048 };   /* of the value 1 */

/* Bytes of scratch for n rows of k values; aligned for uint32_t. */
size_t di_verify_scratch_bytes(int32_t n, int32_t k);
/* The total T in [n, n * (k + 1)] with the most expected tokens per time. Values are in [0, 1]. */
int32_t di_verify_total(const di_verify_curve *curve, const float *values, int32_t n, int32_t k, void *scratch);
/* lengths[i] = 1 + how many of row i's values are among the total - n largest. scratch may be NULL, which takes longer;
 * is_counted: it is that of a di_verify_total of the same values. */
void di_verify_share(const float *values, int32_t n, int32_t k, int32_t total, void *scratch, int is_counted,
                     int32_t *lengths);

#endif
