#include "di_config.h"

#include <string.h>

#include "di_error.h"
#include "di_limbo.h"
#include "di_prefix.h"

enum { MAX_SEQS = 65535, TABLE_ALIGN = 64, MAX_NGRAM = 16 };
static const int64_t MAX_TIME_NS = (int64_t)1 << 50;

static int outside(const char *field, int64_t value, const char *bound)
{
    return di_fail(DI_E_CONFIG, "", field, "is %lld, the bound is %s", (long long)value, bound);
}

static int outside_at(const char *field, int64_t value, const char *bound, int64_t limit)
{
    return di_fail(DI_E_CONFIG, "", field, "is %lld, the bound is %s = %lld", (long long)value, bound,
                   (long long)limit);
}

#define REQUIRE(field, ok, bound) \
    do { if (!(ok)) return outside(#field, k->field, bound); } while (0)

static int check_ranges(const di_config *k)
{
    REQUIRE(block_size, k->block_size > 0 && k->block_size <= 1 << 16, "1 .. 65536");
    REQUIRE(num_blocks, k->num_blocks >= 2, ">= 2 (block 0 is the null block)");
    REQUIRE(num_swa_slots, k->num_swa_slots == 0 || k->num_swa_slots >= 2, "0, or >= 2 (slot 0 is the null slot)");
    REQUIRE(num_state_slots, k->num_state_slots == 0 || k->num_state_slots >= 2,
            "0, or >= 2 (slot 0 is the null slot)");
    REQUIRE(max_num_seqs, k->max_num_seqs >= 1 && k->max_num_seqs <= MAX_SEQS, "1 .. 65535");
    REQUIRE(max_model_len, k->max_model_len >= 1 && k->max_model_len <= 1 << 28, "1 .. 2**28");
    REQUIRE(vocab_size, k->vocab_size >= 1, ">= 1");
    REQUIRE(num_draft, k->num_draft >= 0 && k->num_draft <= DI_MAX_DRAFT_STEPS - 1, "0 .. 15");
    REQUIRE(depth, k->depth >= 1 && k->depth <= DI_MAX_DEPTH, "1 or 2");
    REQUIRE(max_num_batched_tokens, k->max_num_batched_tokens <= 1 << 28, "<= 2**28");
    REQUIRE(min_chunk, k->min_chunk >= 1, ">= 1");
    REQUIRE(chunk_align, k->chunk_align >= 1, ">= 1");
    REQUIRE(max_chunk, k->max_chunk >= 0, ">= min_chunk, or 0 for max_num_batched_tokens");
    REQUIRE(chunked_prefill, k->chunked_prefill == 0 || k->chunked_prefill == 1, "0 or 1");
    REQUIRE(prefill_interval_all, k->prefill_interval_all >= 1, ">= 1");
    REQUIRE(prefill_interval_any, k->prefill_interval_any >= 1, ">= 1");
    REQUIRE(prefill_sum_k_limit, k->prefill_sum_k_limit >= 0 && k->prefill_sum_k_limit <= 1 << 30,
            "prompt_limit .. 2**30, or 0 for the larger of prompt_limit and max_num_batched_tokens");
    REQUIRE(swa_ring, k->swa_ring >= 0 && k->swa_ring <= 1 << 28, "0 .. 2**28");
    REQUIRE(max_prefill_burst, k->max_prefill_burst >= 0, ">= 0");
    REQUIRE(stop_preempted, k->stop_preempted == 0 || k->stop_preempted == 1, "0 or 1");
    REQUIRE(engine_type, k->engine_type >= DI_ENGINE_NORMAL && k->engine_type <= DI_ENGINE_COMPLETION,
            "0 (NORMAL), 1 (PROMPT) or 2 (COMPLETION)");
    REQUIRE(stop_preempted, k->stop_preempted == 1 || k->engine_type != DI_ENGINE_COMPLETION,
            "1 with engine_type 2 (COMPLETION): it cannot compute a preempted request again");
    REQUIRE(window, k->window >= 0 && k->window <= 1 << 28, "0 .. 2**28");
    REQUIRE(backtrack, k->backtrack >= 1 && k->backtrack <= 1 << 28, "1 .. 2**28");
    REQUIRE(ngram, k->ngram >= 0 && k->ngram <= MAX_NGRAM, "0 .. 16");
    REQUIRE(ngram_pad, k->ngram_pad >= 0, ">= 0");
    REQUIRE(inputs, k->inputs == 0 || k->inputs == 1, "0 (InputMetadata) or 1 (InputMetadataV41)");
    REQUIRE(validation, k->validation >= DI_LEVEL_OFF && k->validation <= DI_LEVEL_FULL, "0 .. 2");
    REQUIRE(stream_ordered_reuse, k->stream_ordered_reuse == 0 || k->stream_ordered_reuse == 1, "0 or 1");
    REQUIRE(row_order, k->row_order == 0 || k->row_order == 1, "0 (stable) or 1 (length_desc)");
    REQUIRE(dp_size, k->dp_size >= 0 && k->dp_size <= MAX_SEQS, "0 .. 65535");
    REQUIRE(zero_swa_on_alloc, k->zero_swa_on_alloc == 0 || k->zero_swa_on_alloc == 1, "0 or 1");
    REQUIRE(csr_tables, k->csr_tables == 0 || k->csr_tables == 1, "0 or 1");
    REQUIRE(target_itl_ns, k->target_itl_ns >= 0 && k->target_itl_ns <= MAX_TIME_NS, "0 .. 2**50");
    REQUIRE(prefill_step_ns, k->prefill_step_ns >= 0 && k->prefill_step_ns <= MAX_TIME_NS, "0 .. 2**50");
    REQUIRE(cost_feedback, k->cost_feedback == 0 || k->cost_feedback == 1, "0 or 1");
    REQUIRE(verify_lengths, k->verify_lengths == 0 || k->verify_lengths == 1, "0 (fixed) or 1 (confidence)");
    REQUIRE(prefix_cache, k->prefix_cache == 0 || k->prefix_cache == 1, "0 or 1");
    REQUIRE(replay_len, k->replay_len >= 0 && k->replay_len <= 1 << 28, "0 .. 2**28");
    REQUIRE(replay_mode, k->replay_mode >= DI_REPLAY_OFF && k->replay_mode <= DI_REPLAY_COMPACT,
            "0 (off), 1 (mask) or 2 (compact)");
    REQUIRE(replay_keep, k->replay_keep >= 0 && k->replay_keep <= 1 << 28, "0 .. 2**28");
    REQUIRE(replay_exact, k->replay_exact == 0 || k->replay_exact == 1, "0 or 1");
    REQUIRE(replay_len_kept, k->replay_len_kept >= 0 && k->replay_len_kept <= 1 << 28, "0 .. 2**28");
    REQUIRE(prefix_hash_bits, k->prefix_hash_bits >= 0 && k->prefix_hash_bits <= 128, "0 .. 128");
    if (!(k->prefill_watermark > 0 && k->prefill_watermark <= 1))
        return di_fail(DI_E_CONFIG, "", "prefill_watermark", "is %g, the bound is (0, 1]", k->prefill_watermark);
    return 0;
}

static int add_ratios(const char *field, const int32_t *ratios, int32_t n, int32_t block_size, di_derived *d)
{
    if (n < 0 || n > DI_MAX_RATIOS) return outside(field, n, "at most 4 ratios");
    for (int32_t i = 0; i < n; i++) {
        int32_t r = ratios[i];
        if (r < 1 || block_size % r != 0) return outside_at(field, r, "a divisor of block_size", block_size);
        if (i > 0 && ratios[i - 1] >= r) return outside(field, r, "ascending, without repetition");
        int32_t at = 0;
        while (at < d->num_ratios && d->ratios[at] < r) at++;
        if (at < d->num_ratios && d->ratios[at] == r) continue;
        if (d->num_ratios == DI_MAX_RATIOS) return outside(field, r, "at most 4 different ratios");
        memmove(&d->ratios[at + 1], &d->ratios[at], (size_t)(d->num_ratios - at) * sizeof(int32_t));
        d->ratios[at] = r;
        d->num_ratios++;
    }
    return 0;
}

static int check_relations(const di_config *k, di_derived *d)
{
    int64_t rows = (int64_t)k->max_num_seqs * d->q;
    REQUIRE(max_num_batched_tokens, k->max_num_batched_tokens >= 1, ">= 1");
    if (k->max_num_batched_tokens < k->block_size)
        return outside_at("max_num_batched_tokens", k->max_num_batched_tokens, ">= block_size", k->block_size);
    if (k->max_num_batched_tokens < rows)
        return outside_at("max_num_batched_tokens", k->max_num_batched_tokens, ">= max_num_seqs * (num_draft + 1)",
                          rows);
    if (!k->chunked_prefill && k->max_num_batched_tokens < k->max_model_len)
        return outside_at("max_num_batched_tokens", k->max_num_batched_tokens,
                          ">= max_model_len without chunked_prefill", k->max_model_len);
    if (!k->chunked_prefill && d->max_chunk < d->prompt_limit)
        return outside_at("max_chunk", d->max_chunk, ">= max_model_len without chunked_prefill", d->prompt_limit);
    if (d->max_chunk < k->min_chunk) return outside_at("max_chunk", d->max_chunk, ">= min_chunk", k->min_chunk);
    if (d->max_chunk > k->max_num_batched_tokens)
        return outside_at("max_chunk", d->max_chunk, "<= max_num_batched_tokens", k->max_num_batched_tokens);
    if (d->prefill_sum_k_limit < d->prompt_limit)
        return outside_at("prefill_sum_k_limit", d->prefill_sum_k_limit, ">= prompt_limit", d->prompt_limit);
    if (k->window > 0 && k->num_swa_slots < 2) return outside("num_swa_slots", k->num_swa_slots, ">= 2 with a window");
    if (k->window > 0 && d->swa_ring < k->window + d->q)
        return outside_at("swa_ring", d->swa_ring, ">= window + num_draft + 1", k->window + d->q);
    if (k->ngram > 0 && (k->ngram_table_size < 1 || !k->ngram_table))
        return outside("ngram_table", k->ngram_table_size, "at least 1 entry with ngram > 0");
    if (k->ngram_table_size < 0) return outside("ngram_table", k->ngram_table_size, ">= 0 entries");
    int64_t table_rows = rows * d->max_blocks;
    if (table_rows * k->block_size >= INT32_MAX && k->num_ratios_dense > 0)
        return outside_at("max_num_seqs", k->max_num_seqs, "rows * max_blocks * block_size < 2**31, here",
                          table_rows * k->block_size);
    if (k->num_swa_slots > 0 && (int64_t)k->num_swa_slots * (d->swa_ring > 0 ? d->swa_ring : 1) > INT32_MAX)
        return outside("num_swa_slots", k->num_swa_slots, "num_swa_slots * swa_ring < 2**31");
    if ((int64_t)k->num_blocks * k->block_size > INT32_MAX)
        return outside("num_blocks", k->num_blocks, "num_blocks * block_size < 2**31");
    if ((int64_t)k->max_num_seqs * (k->window > 0 ? k->window : 1) + k->max_num_batched_tokens > INT32_MAX)
        return outside("max_num_seqs", k->max_num_seqs, "max_num_seqs * window + max_num_batched_tokens < 2**31");
    return 0;
}

/* The shortest prompt that can hit: whole blocks that leave something to skip in front of the replay, and one token to
 * run behind. */
static int check_prefix(const di_config *k, const di_derived *d)
{
    if (k->replay_len && k->replay_len < k->window)
        return outside_at("replay_len", k->replay_len, "0, or >= window", k->window);
    if (k->replay_len_kept && k->replay_len_kept < k->window)
        return outside_at("replay_len_kept", k->replay_len_kept, "0, or >= window", k->window);
    if (k->replay_mode == DI_REPLAY_OFF && k->replay_keep)
        return outside("replay_keep", k->replay_keep, "0 with replay_mode 0 (off)");
    if (k->replay_mode != DI_REPLAY_OFF && k->window == 0)
        return outside("replay_mode", k->replay_mode, "0 (off) without a window");
    if (k->replay_mode != DI_REPLAY_OFF && k->replay_keep < k->window + d->backtrack)
        return outside_at("replay_keep", k->replay_keep, ">= window + backtrack", (int64_t)k->window + d->backtrack);
    if (!k->prefix_cache) return 0;
    int32_t replay = di_prefix_replay_len(k, k->replay_mode);
    int64_t blocks = (replay + (int64_t)k->block_size) / k->block_size, shortest = blocks * k->block_size + 1;
    int64_t kept = k->replay_keep ? (int64_t)k->replay_keep + (k->replay_exact ? replay : 0) + 1 : 0;
    if (shortest < kept) shortest = kept;
    int64_t longest = (int64_t)(k->num_blocks - 1) * k->block_size;
    if (longest > d->prompt_limit) longest = d->prompt_limit;
    if (shortest <= longest) return 0;
    return di_fail(DI_E_CONFIG, "", "prefix_cache",
                   "is 1, but no prompt can ever hit: with block_size %d, replay_len %d and replay_keep %d a hit "
                   "needs %lld tokens, the longest prompt has %lld", k->block_size, replay, k->replay_keep,
                   (long long)shortest, (long long)longest);
}

int di_config_check(const di_config *k, di_derived *out)
{
    if (!k) return di_fail(DI_E_ARG, "", "config", "NULL");
    if (k->struct_size != sizeof *k)
        return outside_at("struct_size", k->struct_size, "size of this library's di_config", (int64_t)sizeof *k);
    int code = check_ranges(k);
    if (code) return code;
    di_derived d = {.q = k->num_draft + 1};
    d.max_pos = k->max_model_len + 2 * k->num_draft + (k->depth > 1 ? k->num_draft + 1 : 0);
    d.max_blocks = ((d.max_pos + k->block_size - 1) / k->block_size + TABLE_ALIGN - 1) / TABLE_ALIGN * TABLE_ALIGN;
    d.prompt_limit = k->max_model_len;
    if (!k->chunked_prefill && k->max_num_batched_tokens < d.prompt_limit) d.prompt_limit = k->max_num_batched_tokens;
    int32_t derived_sum = d.prompt_limit > k->max_num_batched_tokens ? d.prompt_limit : k->max_num_batched_tokens;
    d.prefill_sum_k_limit = k->prefill_sum_k_limit ? k->prefill_sum_k_limit : derived_sum;
    d.max_chunk = k->max_chunk ? k->max_chunk : k->max_num_batched_tokens;
    d.backtrack = k->backtrack > d.q ? k->backtrack : d.q;
    d.swa_ring = k->swa_ring ? k->swa_ring : (k->window ? k->window + d.backtrack : 0);
    code = add_ratios("ratios_sparse", k->ratios_sparse, k->num_ratios_sparse, k->block_size, &d);
    if (!code) code = add_ratios("ratios_dense", k->ratios_dense, k->num_ratios_dense, k->block_size, &d);
    if (!code) code = check_relations(k, &d);
    if (!code) code = check_prefix(k, &d);
    if (!code && out) *out = d;
    return code;
}

void di_config_limits(const di_config *k, const di_derived *d, di_limits *out)
{
    *out = (di_limits){
        .block_size = k->block_size, .num_blocks = k->num_blocks, .num_swa_slots = k->num_swa_slots,
        .num_state_slots = k->num_state_slots, .max_num_seqs = k->max_num_seqs,
        .max_num_batched_tokens = k->max_num_batched_tokens, .num_draft = k->num_draft, .max_pos = d->max_pos,
        .vocab_size = k->vocab_size, .window = k->window, .swa_ring = d->swa_ring, .backtrack = d->backtrack,
        .num_ratios = d->num_ratios, .num_ratios_sparse = k->num_ratios_sparse,
        .num_ratios_dense = k->num_ratios_dense, .ngram = k->ngram, .max_blocks = d->max_blocks, .cp = 1,
        .persistent_tables = 1, .csr_tables = k->csr_tables, .replay_mode = k->replay_mode,
    };
    memcpy(out->ratios, d->ratios, sizeof out->ratios);
    memcpy(out->ratios_sparse, k->ratios_sparse, sizeof out->ratios_sparse);
    memcpy(out->ratios_dense, k->ratios_dense, sizeof out->ratios_dense);
}
