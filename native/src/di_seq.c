#include "di_seq.h"

#include <math.h>
#include <string.h>

#include "di_error.h"

static int bad(const char *field, const char *format, double value)
{
    return di_fail(DI_E_ARG, "Request", field, format, value);
}

static int check_ids(const char *field, const int32_t *ids, int32_t n, int32_t low, int32_t vocab_size)
{
    if (n < 0 || (n > 0 && !ids)) return bad(field, "%.0f values without an array", n);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < low || ids[i] >= vocab_size)
            return di_fail(DI_E_ARG, "Request", field, "entry %d is %d, the range is %d .. %d", i, ids[i], low,
                           vocab_size - 1);
    return 0;
}

static int is_switch(int32_t x) { return x == 0 || x == 1; }

static int check_bias(const di_request *r, int32_t vocab_size)
{
    if (r->num_bias > DI_MAX_BIAS)
        return di_fail(DI_E_ARG, "Request", "bias", "has %d entries, at most %d are possible", r->num_bias,
                       DI_MAX_BIAS);
    int code = check_ids("bias", r->bias_ids, r->num_bias, 0, vocab_size);
    if (code) return code;
    if (r->num_bias > 0 && !r->bias_values) return bad("bias", "%.0f tokens without values", r->num_bias);
    for (int32_t i = 0; i < r->num_bias; i++)
        if (!(fabsf(r->bias_values[i]) <= 100))
            return di_fail(DI_E_ARG, "Request", "bias", "of token %d is %g, the range is [-100, 100]", r->bias_ids[i],
                           (double)r->bias_values[i]);
    return 0;
}

static int check_logprobs(const di_request *r)
{
    if (r->top_logprobs < 0 || r->top_logprobs > DI_MAX_TOP_LOGPROBS)
        return bad("top_logprobs", "is %.0f, the range is 0 .. 1000", r->top_logprobs);
    if (!is_switch(r->logprobs_raw)) return bad("logprobs_raw", "is %.0f, 0 or 1 is needed", r->logprobs_raw);
    if (!is_switch(r->prompt_logprobs)) return bad("prompt_logprobs", "is %.0f, 0 or 1 is needed", r->prompt_logprobs);
    if (r->prompt_logprobs && r->prefix_lookup)
        return bad("prompt_logprobs", "is %.0f: cached blocks skip positions, prefix_lookup 0 is needed", 1);
    return 0;
}

int di_request_check(const di_request *r, int32_t vocab_size)
{
    if (r->struct_size != sizeof *r)
        return bad("struct_size", "%.0f bytes is not the size of this library's di_request", r->struct_size);
    if (r->num_prompt < 1) return bad("prompt", "has %.0f tokens, at least 1 is needed", r->num_prompt);
    /* Before the arrays are read: a count that is too large may be longer than its array. */
    if (r->num_eos > DI_MAX_STOP_IDS || (r->num_eos >= 0 && r->num_stop > DI_MAX_STOP_IDS - r->num_eos))
        return di_fail(DI_E_ARG, "Request", "stop_ids", "%d eos_ids and %d stop_ids, together at most %d", r->num_eos,
                       r->num_stop, DI_MAX_STOP_IDS);
    int code = check_ids("prompt", r->prompt, r->num_prompt, 0, vocab_size);
    if (!code) code = check_ids("eos_ids", r->eos_ids, r->num_eos, 0, vocab_size);
    if (!code) code = check_ids("stop_ids", r->stop_ids, r->num_stop, 0, vocab_size);
    if (!code) code = check_ids("forced", r->forced, r->num_forced, -1, vocab_size);
    if (code) return code;
    if (r->max_tokens < 1) return bad("max_tokens", "is %.0f, at least 1 is needed", r->max_tokens);
    if (r->min_tokens < 0) return bad("min_tokens", "is %.0f, at least 0 is needed", r->min_tokens);
    if (r->priority < DI_PRIORITY_LOW || r->priority > DI_PRIORITY_HIGH)
        return bad("priority", "is %.0f, the range is -8 .. 7", r->priority);
    if (!is_switch(r->ignore_eos)) return bad("ignore_eos", "is %.0f, 0 or 1 is needed", r->ignore_eos);
    if (!is_switch(r->prefix_lookup))
        return bad("prefix_lookup", "is %.0f, 0 or 1 is needed", r->prefix_lookup);
    if (r->top_k < -1) return bad("top_k", "is %.0f, -1 or 0 (off) or a count is needed", r->top_k);
    if (!(r->temperature >= 0) || isinf(r->temperature))
        return bad("temperature", "is %g, a finite value >= 0 is needed", (double)r->temperature);
    if (!(r->top_p > 0 && r->top_p <= 1)) return bad("top_p", "is %g, the range is (0, 1]", (double)r->top_p);
    if (!(r->min_p >= 0 && r->min_p < 1)) return bad("min_p", "is %g, the range is [0, 1)", (double)r->min_p);
    if (!(r->repetition_penalty > 0) || isinf(r->repetition_penalty))
        return bad("repetition_penalty", "is %g, a finite value > 0 is needed", (double)r->repetition_penalty);
    if (!(fabsf(r->presence_penalty) <= 2))
        return bad("presence_penalty", "is %g, the range is [-2, 2]", (double)r->presence_penalty);
    if (!(fabsf(r->frequency_penalty) <= 2))
        return bad("frequency_penalty", "is %g, the range is [-2, 2]", (double)r->frequency_penalty);
    code = check_bias(r, vocab_size);
    return code ? code : check_logprobs(r);
}

uint8_t di_request_wants(const di_request *r)
{
    int counts = r->repetition_penalty != 1 || r->presence_penalty != 0 || r->frequency_penalty != 0;
    return (uint8_t)((counts ? DI_WANTS_HISTORY : 0) | (r->num_bias ? DI_WANTS_BIAS : 0) |
                     (r->top_logprobs ? DI_WANTS_TOP : 0) | (r->logprobs_raw ? DI_WANTS_RAW : 0) |
                     (r->prompt_logprobs ? DI_WANTS_PROMPT : 0));
}

static int32_t min64(int64_t a, int64_t b) { return (int32_t)(a < b ? a : b); }

int di_seq_create(di_bins *bins, const di_request *r, const di_config *k, int32_t slack_tokens, di_seq **out)
{
    int32_t max_model_len = k->max_model_len, num_draft = k->num_draft, block_size = k->block_size;
    /* The last token may lie one past max_model_len: the stop test follows the append. A longer prompt never runs. */
    int64_t most = r->num_prompt > max_model_len ? r->num_prompt : (int64_t)max_model_len + 1;
    int32_t cap_tokens = min64((int64_t)r->num_prompt + r->max_tokens, most);
    int32_t cap_blocks = min64(((int64_t)cap_tokens + slack_tokens + block_size - 1) / block_size + 1, k->num_blocks);
    int32_t n_stop = (r->ignore_eos ? 0 : r->num_eos) + r->num_stop;
    int32_t n_forced = min64(r->num_forced, r->max_tokens);
    int32_t n_prompt = r->prompt_logprobs ? r->num_prompt : 0;
    size_t ints = (size_t)cap_tokens + DI_EVENT_ROOM + (size_t)cap_blocks + (size_t)num_draft + (size_t)n_stop +
                  (size_t)n_forced + 2 * (size_t)r->num_bias + (size_t)n_prompt;
    size_t hashes = k->prefix_cache ? 2 * (size_t)cap_blocks * sizeof(uint64_t) : 0;
    if (ints > SIZE_MAX / 16 / sizeof(int32_t))
        return di_fail(DI_E_CAPACITY, "Request", "max_tokens", "%d tokens do not fit in memory", cap_tokens);
    di_seq *s = di_slab_take(bins, sizeof *s);
    void *arrays = s ? di_bins_take(bins, hashes + ints * sizeof(int32_t)) : NULL;
    if (!arrays) {
        di_slab_give(bins, s);
        return di_fail(DI_E_CAPACITY, "Request", "max_tokens", "no memory for %d tokens", cap_tokens);
    }
    memset(s, 0, sizeof *s);
    s->arrays = arrays;
    s->hashes = arrays;
    s->tokens = (int32_t *)(void *)((char *)arrays + hashes);
    s->blocks = s->tokens + cap_tokens + DI_EVENT_ROOM;
    s->handed_drafts = s->blocks + cap_blocks;
    s->stop_ids = s->handed_drafts + num_draft;
    s->forced = s->stop_ids + n_stop;
    s->bias_ids = s->forced + n_forced;
    s->bias_values = (float *)(void *)(s->bias_ids + r->num_bias);
    s->prompt_logprobs = s->bias_values + r->num_bias;
    s->cap_tokens = cap_tokens;
    s->cap_blocks = cap_blocks;
    s->len = s->prompt_len = r->num_prompt;
    s->max_tokens = r->max_tokens;
    s->priority = r->priority;
    s->n_stop = n_stop;
    s->n_forced = n_forced;
    s->phase = DI_PHASE_WAITING;
    s->last_row = -1;
    s->queue_class = 2;
    s->prefix_lookup = (uint8_t)r->prefix_lookup;
    s->replay_mode = (uint8_t)(r->replay_mode < 0 ? k->replay_mode : r->replay_mode);
    if (s->replay_mode != DI_REPLAY_OFF && r->num_prompt > k->replay_keep)
        s->keep_from = r->num_prompt - k->replay_keep;
    s->register_at = INT32_MAX;
    memcpy(s->tokens, r->prompt, (size_t)r->num_prompt * sizeof(int32_t));
    int32_t n_eos = n_stop - r->num_stop;
    if (n_eos) memcpy(s->stop_ids, r->eos_ids, (size_t)n_eos * sizeof(int32_t));
    if (r->num_stop) memcpy(s->stop_ids + n_eos, r->stop_ids, (size_t)r->num_stop * sizeof(int32_t));
    if (n_forced) memcpy(s->forced, r->forced, (size_t)n_forced * sizeof(int32_t));
    if (r->num_bias) {
        memcpy(s->bias_ids, r->bias_ids, (size_t)r->num_bias * sizeof(int32_t));
        memcpy(s->bias_values, r->bias_values, (size_t)r->num_bias * sizeof(float));
    }
    if (n_prompt) memset(s->prompt_logprobs, 0, (size_t)n_prompt * sizeof(float));
    s->n_bias = r->num_bias;
    s->top_logprobs = r->top_logprobs;
    s->wants = di_request_wants(r);
    s->sampling = (di_sampling){
        .temperature = r->temperature, .top_p = r->top_p, .min_p = r->min_p,
        .repetition_penalty = r->repetition_penalty, .presence_penalty = r->presence_penalty,
        .frequency_penalty = r->frequency_penalty, .top_k = r->top_k == 0 ? -1 : r->top_k,
        .min_tokens = r->min_tokens, .seed = r->seed,
    };
    for (int32_t i = 0; i < n_stop; i++) s->stop_mask |= di_seq_stop_bits(s->stop_ids[i]);
    *out = s;
    return 0;
}

void di_seq_free(di_bins *bins, di_seq *s)
{
    di_bins_give(bins, s->arrays);
    di_slab_give(bins, s);
}

int di_table_init(di_table *t, di_arena *a, int32_t max_num_seqs)
{
    uint64_t n = 4096;
    while (n < 16 * (uint64_t)max_num_seqs) n *= 2;
    t->buckets = di_arena_take(a, (size_t)n, sizeof *t->buckets);
    if (!t->buckets) return DI_E_CAPACITY;
    t->mask = n - 1;
    t->count = 0;
    return 0;
}

di_seq *di_table_find(const di_table *t, uint64_t uid)
{
    di_seq *s = t->buckets[uid & t->mask];
    while (s && s->uid != uid) s = s->map_next;
    return s;
}

void di_table_add(di_table *t, di_seq *s)
{
    di_seq **bucket = &t->buckets[s->uid & t->mask];
    s->map_next = *bucket;
    *bucket = s;
    t->count++;
}

void di_table_remove(di_table *t, di_seq *s)
{
    di_seq **at = &t->buckets[s->uid & t->mask];
    while (*at && *at != s) at = &(*at)->map_next;
    if (!*at) return;
    *at = s->map_next;
    s->map_next = NULL;
    t->count--;
}

int di_seq_is_stop(const di_seq *s, int32_t token)
{
    for (int32_t i = 0; i < s->n_stop; i++)
        if (s->stop_ids[i] == token) return 1;
    return 0;
}
