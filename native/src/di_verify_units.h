/* Acceptance values counted in whole units, which the budget needs and the distribution can use. */
#ifndef DI_VERIFY_UNITS_H
#define DI_VERIFY_UNITS_H

#include "di_verify.h"

/* Scratch of m values. */
typedef struct di_histogram {
    uint32_t *count;          /* [DI_VERIFY_UNITS + 1] values of each number of units */
    float *some;              /* [m] the values of one number */
    uint16_t *units;          /* [m] of each value */
    uint32_t sum;             /* of all units, where they are counted by the call that returns this */
} di_histogram;

/* That of a scratch that was counted, and of one that is counted now. */
di_histogram di_histogram_in(void *scratch, size_t m);
di_histogram di_histogram_of(const float *values, size_t m, void *scratch);

#endif
