/* Loops that run twice as fast in 256-bit registers, in one build for every x86-64 processor: a function marked DI_CLONES
 * is compiled for AVX2 as well, and the loader takes the version that the processor has.
 *
 * The loader chooses with an indirect function, which gcc makes for glibc; elsewhere there is the portable version only.
 * So there is with -DDI_NO_CLONES, and under the sanitizers, which the loader's choice comes before. */
#ifndef DI_CLONES_H
#define DI_CLONES_H

#include <stdint.h>     /* says whether the C library is glibc */

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(DI_NO_CLONES)
#define DI_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define DI_CLONES
#endif

#endif
