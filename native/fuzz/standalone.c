/* Drives a target without libFuzzer: seeded random scripts, or the files that are named.
 *
 *   fuzz_core <seed> <operations>       scripts from the seed until so many operations were carried out
 *   fuzz_core <file> ...                each file is one script: how a failure is repeated
 *
 * A failing script is left in fuzz-failure.bin in the working directory.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { LONGEST = 3000 };

static uint8_t bytes[LONGEST];
static size_t length;

static void keep(int signal_number)
{
    FILE *f = fopen("fuzz-failure.bin", "wb");
    if (f) {
        fwrite(bytes, 1, length, f);
        fclose(f);
    }
    fprintf(stderr, "the script of %zu bytes is in fuzz-failure.bin\n", length);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;    /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void run_seeded(uint64_t seed, uint64_t operations)
{
    uint64_t state = seed, scripts = 0;
    for (; fuzz_total.operations < operations; scripts++) {
        length = 16 + next(&state) % (LONGEST - 16);
        for (size_t i = 0; i < length; i++) bytes[i] = (uint8_t)(next(&state) >> 32);
        LLVMFuzzerTestOneInput(bytes, length);
    }
    printf("seed=%llu scripts=%llu operations=%llu refused=%llu holds=%llu preemptions=%llu aborts=%llu "
           "overrun_rows=%llu stale_rows=%llu outputs=%llu\n",
           (unsigned long long)seed, (unsigned long long)scripts, (unsigned long long)fuzz_total.operations,
           (unsigned long long)fuzz_total.refused, (unsigned long long)fuzz_total.holds,
           (unsigned long long)fuzz_total.preemptions, (unsigned long long)fuzz_total.aborts,
           (unsigned long long)fuzz_total.overrun_rows, (unsigned long long)fuzz_total.stale_rows,
           (unsigned long long)fuzz_total.outputs);
}

static int run_file(const char *name)
{
    FILE *f = fopen(name, "rb");
    if (!f) {
        fprintf(stderr, "cannot read %s\n", name);
        return 2;
    }
    length = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    LLVMFuzzerTestOneInput(bytes, length);
    return 0;
}

int main(int n, char **arguments)
{
    if (n < 2) {
        fprintf(stderr, "usage: %s <seed> <operations> | <file> ...\n", arguments[0]);
        return 2;
    }
    signal(SIGABRT, keep);
    signal(SIGSEGV, keep);
    char *end = NULL;
    uint64_t seed = strtoull(arguments[1], &end, 10);
    if (n == 3 && *end == 0) {
        run_seeded(seed, strtoull(arguments[2], NULL, 10));
        return 0;
    }
    for (int i = 1; i < n; i++) {
        int code = run_file(arguments[i]);
        if (code) return code;
    }
    printf("files=%d\n", n - 1);
    return 0;
}
