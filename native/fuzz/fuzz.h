/* What both targets share: the input as a script of bytes, and a failure that says where it is. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "di_core.h"

typedef struct script {
    const uint8_t *data;
    size_t size;
} script;

/* What the scripts of a process did, so that a run can show that it reached the rare transitions. */
typedef struct fuzz_totals {
    uint64_t operations, refused;
    uint64_t holds, preemptions, aborts, overrun_rows, stale_rows, outputs;
} fuzz_totals;
extern fuzz_totals fuzz_total;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline uint8_t take(script *s)
{
    if (s->size == 0) return 0;
    s->size--;
    return *s->data++;
}

#define REQUIRE(ok) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, "%s:%d: %s\nlast error: %s %s\n", __FILE__, __LINE__, #ok, di_last_field(), \
                    di_last_error()->message); \
            abort(); \
        } \
    } while (0)

static inline void fuzz_add(const di_stats_out *s)
{
    fuzz_total.holds += s->holds;
    fuzz_total.preemptions += s->preemptions;
    fuzz_total.aborts += s->aborts;
    fuzz_total.overrun_rows += s->overrun_rows;
    fuzz_total.stale_rows += s->stale_rows;
    fuzz_total.outputs += s->tokens_output;
}

#endif
