#include "di_limbo.h"

#include <stddef.h>

di_limbo_bucket *di_limbo_bucket_of(di_limbo *l, uint64_t epoch)
{
    di_limbo_bucket *b = &l->bucket[epoch % DI_LIMBO_BUCKETS];
    if (b->units.count > 0 && b->epoch != epoch) return NULL;
    b->epoch = epoch;
    return b;
}

di_limbo_bucket *di_limbo_oldest(di_limbo *l, uint64_t done)
{
    di_limbo_bucket *best = NULL;
    for (int i = 0; i < DI_LIMBO_BUCKETS; i++) {
        di_limbo_bucket *b = &l->bucket[i];
        if (b->units.count > 0 && b->epoch <= done && (!best || b->epoch < best->epoch)) best = b;
    }
    return best;
}
