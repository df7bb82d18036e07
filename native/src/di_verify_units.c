#include "di_verify_units.h"

#include <string.h>

#include "di_clones.h"

di_histogram di_histogram_in(void *scratch, size_t m)
{
    uint32_t *count = scratch;
    float *some = (float *)(void *)(count + DI_VERIFY_UNITS + 1);
    return (di_histogram){.count = count, .some = some, .units = (uint16_t *)(void *)(some + m)};
}

size_t di_verify_scratch_bytes(int32_t n, int32_t k)
{
    size_t m = (size_t)n * (size_t)k;
    return (DI_VERIFY_UNITS + 1) * sizeof(uint32_t) + m * (sizeof(float) + sizeof(uint16_t));
}

/* Returns their sum. That of 65,535 rows of 15 values is below 2^31. */
DI_CLONES static uint32_t to_units(const float *values, size_t m, uint16_t *units)
{
    uint32_t sum = 0;
    /* The product is exact, so that only the sum rounds, and the cast cuts. */
    for (size_t i = 0; i < m; i++) {
        int32_t unit = (int32_t)(values[i] * (float)DI_VERIFY_UNITS + 0.5F);
        units[i] = (uint16_t)unit;
        sum += (uint32_t)unit;
    }
    return sum;
}

di_histogram di_histogram_of(const float *values, size_t m, void *scratch)
{
    di_histogram h = di_histogram_in(scratch, m);
    memset(h.count, 0, (DI_VERIFY_UNITS + 1) * sizeof *h.count);
    h.sum = to_units(values, m, h.units);
    for (size_t i = 0; i < m; i++) h.count[h.units[i]]++;
    return h;
}
