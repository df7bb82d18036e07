/* Memory of steps in the call order of the pipelined engine, linked with counting wrappers (-Wl,--wrap=malloc,
 * --wrap=calloc,--wrap=realloc,--wrap=free).
 *
 *   steady_program STEPS
 *
 *   decode at depth 1 and 2, with and without drafts, each input record, each validation level:
 *                         no allocation and no release in any step, blocks of the pool included
 *   STEPS steps of churn  requests come, end, and are aborted all the time: after a tenth of the steps the number of
 *                         allocations that are alive stays, and so does the resident memory
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "di_core.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static long calls, live;

void *__wrap_malloc(size_t n)
{
    calls++;
    live++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    calls++;
    live++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t n)
{
    calls++;
    live += old == NULL;
    return __real_realloc(old, n);
}

void __wrap_free(void *p)
{
    calls += p != NULL;
    live -= p != NULL;
    __real_free(p);
}

enum { SEQS = 6, VOCAB = 97, MAX_K = 5, TOP = 4 };

static void require(int ok, const char *what, const char *where)
{
    if (ok) return;
    fprintf(stderr, "FAILED: %s (%s): %s %s\n", what, where, di_last_field(), di_last_error()->message);
    exit(1);
}

/* One engine: a core, and the answers of a device for the steps in flight. */
typedef struct engine {
    di_core *core;
    int k, depth;
    int is_wishful;           /* requests ask for penalties, biases and alternatives */
    int n_open;
    struct { uint64_t id; int n, kind; int32_t q[SEQS]; } open[2];
    int32_t sampled[SEQS], draft[SEQS * MAX_K], verified[SEQS * (MAX_K + 1)], accepted[SEQS];
    float logprob[SEQS], confidence[SEQS * MAX_K];
    int32_t top[SEQS * (MAX_K + 1) * TOP];
    float top_logprob[SEQS * (MAX_K + 1) * TOP];
    int8_t status[SEQS];
} engine;

static di_view view(void *data, int32_t dtype, int64_t n, int64_t width)
{
    return (di_view){.data = data, .dtype = dtype, .ndim = width ? 2 : 1, .shape = {n, width},
                     .stride = {width ? width : 1, width ? 1 : 0}, .flags = DI_VIEW_PRESENT};
}

/* Every second draft of a row is right. */
static void answer(engine *e, int n, int kind, di_sampler_output *out)
{
    *out = (di_sampler_output){.struct_size = sizeof *out, .chain = DI_HASH_SAMPLER_OUTPUT};
    out->sampled_ids = view(e->sampled, DI_DTYPE_I32, n, 0);
    out->sampled_logprob = view(e->logprob, DI_DTYPE_F32, n, 0);
    out->row_status = view(e->status, DI_DTYPE_I8, n, 0);
    if (e->is_wishful) {
        out->top_ids = view(e->top, DI_DTYPE_I32, n, TOP);
        out->top_logprobs = view(e->top_logprob, DI_DTYPE_F32, n, TOP);
    }
    if (e->k == 0) return;
    out->draft_ids = view(e->draft, DI_DTYPE_I32, n, e->k);
    out->confidence = view(e->confidence, DI_DTYPE_F32, n, e->k);
    if (kind != DI_STEP_DECODE) return;
    int t = 0;
    for (int i = 0; i < n; i++) {
        int q = e->open[0].q[i];
        e->accepted[i] = (i + 1) % q;
        for (int j = 0; j < q; j++) e->verified[t++] = j < e->accepted[i] ? 3 + j : -1;
    }
    out->accepted = view(e->accepted, DI_DTYPE_I32, n, 0);
    out->verified_ids = view(e->verified, DI_DTYPE_I32, t, 0);
    if (!e->is_wishful) return;
    out->verified_top_ids = view(e->top, DI_DTYPE_I32, t, TOP);
    out->verified_top_logprobs = view(e->top_logprob, DI_DTYPE_F32, t, TOP);
}

static int retire(engine *e)
{
    static di_event_batch events;
    di_sampler_output out;
    answer(e, e->open[0].n, e->open[0].kind, &out);
    uint64_t id = e->open[0].id;
    int code = di_commit(e->core, id, &out, &events);
    e->open[0] = e->open[1];
    e->n_open--;
    return code ? code : di_step_done(e->core, id);
}

/* One engine call. Returns the rows of the step it made, or a status. */
static int step(engine *e)
{
    static di_scheduler_outputs o;
    static di_input_metadata_v41 m;
    static di_sampler_inputs s;
    static di_event_batch events;
    di_probe_out probe;
    int code = di_probe(e->core, &probe);
    if (code) return code;
    int mode = probe.want && (probe.point || !probe.has_running) ? DI_MODE_TRY_PREFILL : DI_MODE_DECODE;
    code = di_schedule(e->core, mode, &o);
    if (!code && o.num_reqs == 0 && mode == DI_MODE_TRY_PREFILL) code = di_schedule(e->core, DI_MODE_DECODE, &o);
    if (code) return code;
    int n = o.num_reqs, kind = o.kind;
    int32_t q[SEQS] = {0};
    if (n > 0) memcpy(q, o.seqlens_q.data, (size_t)n * sizeof *q);
    if (n > 0) code = di_pack(e->core, o.step_id, &m.base);
    while (!code && e->n_open > 0 && (n == 0 || e->n_open + 1 >= e->depth)) code = retire(e);
    if (!code && n == 0) code = di_poll_events(e->core, &events);
    if (code || n == 0) return code;
    code = di_pack_sampler(e->core, o.step_id, &s);
    e->open[e->n_open].id = o.step_id;
    e->open[e->n_open].n = n;
    memcpy(e->open[e->n_open].q, q, sizeof q);
    e->open[e->n_open++].kind = kind;
    while (!code && e->n_open > 0 && (kind == DI_STEP_PREFILL || e->depth == 1)) code = retire(e);
    return code ? code : n;
}

static int submit(engine *e, int prompt_len, int max_tokens, uint64_t *uid)
{
    int32_t prompt[64], eos = 1;
    for (int i = 0; i < prompt_len; i++) prompt[i] = 2 + (prompt_len + i) % (VOCAB - 2);
    di_request r = {.struct_size = sizeof r, .num_prompt = prompt_len, .prompt = prompt, .max_tokens = max_tokens,
                    .num_eos = 1, .eos_ids = &eos, .top_k = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1,
                    .prefix_lookup = 1};
    int32_t biased[] = {1, 5, 7};
    float bias[] = {-100, 0.5f, 1};
    if (e->is_wishful) {
        r.frequency_penalty = 0.5f, r.top_logprobs = TOP, r.logprobs_raw = 1;
        r.num_bias = 3, r.bias_ids = biased, r.bias_values = bias;
    }
    return di_submit(e->core, &r, uid);
}

static void open_engine(engine *e, const di_config *k)
{
    *e = (engine){.k = k->num_draft, .depth = k->depth};
    for (int i = 0; i < SEQS; i++) e->sampled[i] = 3 + i;
    for (int i = 0; i < SEQS * MAX_K; i++) e->draft[i] = 3 + i % MAX_K;
    for (int i = 0; i < SEQS * MAX_K; i++) e->confidence[i] = 0.3f + 0.1f * (float)(i % 7);
    require(di_core_create(k, &e->core, NULL) == 0, "create", "open");
    if (!k->verify_lengths) return;
    static const int32_t sizes[] = {1, 8, 16, 24, 64};
    static const double ms[] = {5, 5.5, 6.5, 8, 20};
    require(di_varlen_curve(e->core, sizes, ms, 5) == 0, "curve", "open");
}

static di_config config(int k, int depth)
{
    return (di_config){
        .struct_size = sizeof(di_config), .block_size = 4, .num_blocks = 240, .num_swa_slots = 2 * SEQS,
        .num_state_slots = 2 * SEQS, .max_num_seqs = SEQS, .max_num_batched_tokens = 64, .max_model_len = 8000,
        .vocab_size = VOCAB, .min_chunk = 1, .chunk_align = 4, .chunked_prefill = 1, .num_draft = k, .depth = depth,
        .prefill_interval_all = 3, .prefill_interval_any = 5, .window = 8, .backtrack = 1, .num_ratios_sparse = 2,
        .ratios_sparse = {1, 2}, .num_ratios_dense = 1, .ratios_dense = {2}, .inputs = 1,
        .validation = DI_LEVEL_BOUNDARY, .prefill_watermark = 1.0};
}

/* Every request grows for the whole run: its blocks come from the pool, nothing comes from the C library. */
static void steady(const di_config *base, int is_wishful, const char *name)
{
    enum { STEPS = 1000, WARM = 24 };
    di_config k = *base;
    uint64_t uid = 0;
    engine e;
    k.num_blocks = SEQS * ((STEPS + WARM + 80) * (k.num_draft + 1) / k.block_size + 8);
    open_engine(&e, &k);
    e.is_wishful = is_wishful;
    for (int n = 0; n < SEQS; n++) require(submit(&e, 3 + n, 7900, &uid) == 0, "submit", name);
    for (int i = 0; i < WARM; i++) require(step(&e) > 0, "warm-up step", name);
    long before = calls;
    for (int i = 0; i < STEPS; i++) require(step(&e) == SEQS, "a step with every request", name);
    require(calls == before, "a steady step allocates or frees", name);
    require(di_core_check(e.core, NULL) == 0, "check", name);
    di_core_destroy(e.core);
    require(live == 0, "nothing is left", name);
    printf("steady: %s\n", name);
}

static void steady_steps(void)
{
    static int32_t table[VOCAB];
    for (int i = 0; i < VOCAB; i++) table[i] = i / 2;
    di_config k = config(0, 2);
    steady(&k, 0, "depth 2");
    k.validation = DI_LEVEL_FULL;
    steady(&k, 0, "depth 2, full validation");
    k.validation = DI_LEVEL_OFF;
    steady(&k, 0, "depth 2, no validation");
    k = config(5, 2);
    steady(&k, 0, "depth 2, 5 drafts");
    k.ngram = 3, k.ngram_table = table, k.ngram_table_size = VOCAB;
    steady(&k, 0, "depth 2, 5 drafts, n-grams");
    k = config(5, 2);
    k.verify_lengths = 1;
    steady(&k, 0, "depth 2, 5 drafts by confidence");
    k = config(0, 2);
    k.prefix_cache = 1, k.replay_len = 8, k.prefix_hash_bits = 128;
    steady(&k, 0, "depth 2, prefix cache");
    k = config(0, 2);
    k.inputs = 0;
    steady(&k, 0, "depth 2, common inputs");
    k = config(0, 2);
    k.stream_ordered_reuse = 1, k.row_order = 1;
    steady(&k, 0, "depth 2, stream order, by length");
    k = config(3, 1);
    steady(&k, 0, "depth 1, 3 drafts");
    k = config(3, 2);
    steady(&k, 1, "depth 2, 3 drafts, penalties, biases and alternatives");
}

static long resident_pages(void)
{
    long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &total, &resident) != 2) resident = 0;
    fclose(f);
    return resident;
}

static uint32_t state = 12345;
static int draw(int n)
{
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

/* Between 4 and 12 requests; outputs of 1 to 40 tokens; one step in twenty aborts one. */
static void churn(long steps)
{
    di_config k = config(2, 2);
    engine e;
    uint64_t recent[8] = {0}, submitted = 0;
    long alive = 0, pages = 0, peak_alive = 0;
    k.num_blocks = 60;
    open_engine(&e, &k);
    for (long i = 0; i < steps; i++) {
        int64_t unfinished = 0;
        require(di_unfinished(e.core, &unfinished) == 0, "unfinished", "churn");
        for (int n = 0; n < 3 && unfinished + n < 12; n++)
            require(submit(&e, 1 + draw(40), 1 + draw(40), &recent[submitted++ % 8]) == 0, "submit", "churn");
        if (draw(20) == 0) {
            uint8_t status = 0;
            require(di_abort(e.core, &recent[draw((int)(submitted < 8 ? submitted : 8))], 1, &status) == 0, "abort",
                    "churn");
        }
        require(step(&e) >= 0, "step", "churn");
        if (i == steps / 10) alive = peak_alive = live, pages = resident_pages();
        if (i > steps / 10 && live > peak_alive) peak_alive = live;
    }
    long grown = resident_pages() - pages;
    /* Requests in every state keep buffers of every size class; a rare mixture may add one more of a class. */
    require(peak_alive - alive <= 32, "allocations that stay alive grow", "churn");
    require(grown * sysconf(_SC_PAGESIZE) <= 128 * 1024, "resident memory grows", "churn");
    require(di_core_check(e.core, NULL) == 0, "check", "churn");
    di_core_destroy(e.core);
    require(live == 0, "nothing is left", "churn");
    printf("churn: %ld steps, %llu requests, %ld allocations alive (+%ld), %ld pages grown\n", steps,
           (unsigned long long)submitted, alive, peak_alive - alive, grown);
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 100000;
    require(steps >= 1000, "at least 1000 steps", "arguments");
    steady_steps();
    churn(steps);
    printf("ok\n");
    return 0;
}
