/* The least that a scheduler can do: for each sequence of a decode step, test whether it needs a block, note a row,
 * append the tokens of the step before with a stop test, and write an event for each. Struct of arrays, no queue, no
 * records, no checks. Arguments: sequences, tokens a step, steps, runs. Prints nanoseconds a step, one line a run. */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BLOCK = 128, PROMPT = 512, EOS = 2 };

typedef struct loop {
    int32_t *len, *cached, *n_blocks, *max_tokens;          /* [n] */
    int32_t *tokens, *blocks;                               /* [n, stride], [n, stride / BLOCK + 1] */
    int32_t *free_blocks, n_free, stride;
    int32_t *row_q, *row_k, *row_block;                     /* [n] the step */
    int32_t *event_token, *event_index, n_events;           /* [n * tokens a step] */
    uint64_t *uid, *event_uid;
    uint8_t *event_last;
} loop;

static void *take(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (p) return p;
    fprintf(stderr, "c_loop: out of memory\n");
    exit(1);
}

static void schedule(loop *l, int32_t n, int32_t q)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t end = l->cached[i] + 2 * q;
        if (end > l->n_blocks[i] * BLOCK && l->n_free > 0)
            l->blocks[(size_t)i * (size_t)(l->stride / BLOCK + 1) + (size_t)l->n_blocks[i]++] =
                l->free_blocks[--l->n_free];
        l->row_q[i] = q;
        l->row_k[i] = end;
        l->row_block[i] = l->n_blocks[i];
    }
}

static void commit(loop *l, int32_t n, int32_t q, const int32_t *sampled)
{
    l->n_events = 0;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < q; j++) {
            int32_t token = sampled[i * q + j], e = l->n_events++;
            l->tokens[(size_t)i * (size_t)l->stride + (size_t)l->len[i]++] = token;
            l->event_uid[e] = l->uid[i];
            l->event_token[e] = token;
            l->event_index[e] = l->len[i] - PROMPT;
            l->event_last[e] = token == EOS || l->len[i] - PROMPT >= l->max_tokens[i];
            if (l->event_last[e]) break;
        }
        l->cached[i] = l->len[i] - 1;
    }
}

static double run(int32_t n, int32_t q, int32_t steps)
{
    size_t count = (size_t)n, tokens = count * (size_t)q;
    loop l = {.stride = PROMPT + (steps + 1) * q + 1};
    size_t width = (size_t)(l.stride / BLOCK + 1);
    l.len = take(count, 4), l.cached = take(count, 4), l.n_blocks = take(count, 4), l.max_tokens = take(count, 4);
    l.tokens = take(count * (size_t)l.stride, 4), l.blocks = take(count * width + 1, 4);
    l.free_blocks = take(count * width, 4), l.n_free = (int32_t)(count * width);
    l.row_q = take(count, 4), l.row_k = take(count, 4), l.row_block = take(count, 4);
    l.event_token = take(tokens, 4), l.event_index = take(tokens, 4), l.event_last = take(tokens, 1);
    l.uid = take(count, 8), l.event_uid = take(tokens, 8);
    int32_t *sampled = take(tokens, 4);
    for (size_t i = 0; i < tokens; i++) sampled[i] = 3 + (int32_t)(i % 1000);
    for (int32_t i = 0; i < n; i++) {
        l.uid[i] = (uint64_t)i + 1;
        l.len[i] = PROMPT, l.cached[i] = PROMPT - 1, l.n_blocks[i] = PROMPT / BLOCK, l.max_tokens[i] = 1 << 30;
    }
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int32_t s = 0; s < steps; s++) {
        schedule(&l, n, q);
        commit(&l, n, q, sampled);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    void *all[] = {l.len, l.cached, l.n_blocks, l.max_tokens, l.tokens, l.blocks, l.free_blocks, l.row_q, l.row_k,
                   l.row_block, l.event_token, l.event_index, l.event_last, l.uid, l.event_uid, sampled};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / steps;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: c_loop sequences tokens_a_step steps runs\n");
        return 2;
    }
    int32_t n = atoi(argv[1]), q = atoi(argv[2]), steps = atoi(argv[3]), runs = atoi(argv[4]);
    if (n < 1 || q < 1 || q > 64 || steps < 1 || n > 1 << 20 || steps > 1 << 20) {
        fprintf(stderr, "c_loop: a number is out of range\n");
        return 2;
    }
    for (int32_t r = 0; r < runs; r++) printf("%.1f\n", run(n, q, steps));
    return 0;
}
