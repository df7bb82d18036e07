#include "di_prefix.h"

#include <limits.h>
#include <string.h>

#include "di_error.h"
#include "di_siphash.h"

static void evicted(void *owner, int32_t block)
{
    di_prefix *x = owner;
    di_prefix_index_remove(&x->index, block);
}

static void set_root(di_prefix *x)
{
    di_siphash h;
    di_siphash_start(&h, x->key);
    di_siphash_word(&h, x->salt);
    di_siphash_word(&h, x->epoch);
    di_siphash_end(&h, 0, 0, x->root);
}

int di_prefix_init(di_prefix *x, di_arena *a, const di_config *k, di_unit_pool *pool)
{
    x->pool = pool;
    x->is_on = k->prefix_cache;
    if (!x->is_on) return 0;
    for (int i = 0; i < 16; i++) x->key[i / 8] |= (uint64_t)k->prefix_key[i] << 8 * (i % 8);
    for (int i = 0; i < 2; i++) {
        int32_t bits = k->prefix_hash_bits - 64 * i;
        x->hash_mask[i] = bits >= 64 ? UINT64_MAX : bits <= 0 ? 0 : (1ULL << bits) - 1;
    }
    x->salt = k->prefix_salt;
    x->epoch = 1;
    set_root(x);
    x->replay_len[0] = di_prefix_replay_len(k, DI_REPLAY_OFF);
    x->replay_len[1] = di_prefix_replay_len(k, DI_REPLAY_COMPACT);
    x->replay_keep = k->replay_keep;
    x->replay_exact = k->replay_exact;
    pool->evict = evicted;
    pool->evict_owner = x;
    return di_prefix_index_init(&x->index, a, k->num_blocks, k->block_size);
}

/* Hash of the request's blocks up to and including block at. */
static const uint64_t *hash_of(const di_prefix *x, di_seq *s, int32_t at)
{
    int32_t size = x->index.block_size;
    if (s->hash_epoch != x->epoch) s->n_hashed = 0;
    s->hash_epoch = x->epoch;
    for (; s->n_hashed <= at; s->n_hashed++) {
        const uint64_t *before = s->n_hashed ? s->hashes + 2 * (s->n_hashed - 1) : x->root;
        const int32_t *t = s->tokens + (int64_t)s->n_hashed * size;
        uint64_t *out = s->hashes + 2 * s->n_hashed;
        di_siphash h;
        di_siphash_start(&h, x->key);
        di_siphash_word(&h, before[0]);
        di_siphash_word(&h, before[1]);
        int32_t i = 0;
        for (; i + 1 < size; i += 2) di_siphash_word(&h, (uint32_t)t[i] | (uint64_t)(uint32_t)t[i + 1] << 32);
        di_siphash_end(&h, i < size ? (uint32_t)t[i] : 0, i < size ? 4 : 0, out);
        out[0] &= x->hash_mask[0];
        out[1] &= x->hash_mask[1];
    }
    return s->hashes + 2 * at;
}

/* Where a request with the blocks of [0, hit) goes on. The decoder half must compute the rows that it keeps: its last
 * ones, or for an exact replay those of the prompt, with exact windows from the first of them on (2.10). */
static int32_t start_of(const di_prefix *x, const di_seq *s, int32_t hit)
{
    int is_kept = s->replay_mode != DI_REPLAY_OFF;
    int32_t start = hit - x->replay_len[is_kept];
    if (!is_kept) return start;
    int32_t most = x->replay_exact ? s->keep_from - x->replay_len[1] : s->len - x->replay_keep;
    return start < most ? start : most;
}

di_hit di_prefix_match(const di_prefix *x, di_seq *s)
{
    di_hit hit = {0};
    if (!x->is_on || !s->prefix_lookup) return hit;
    int32_t size = x->index.block_size, most = (s->len - 1) / size;
    if (most > s->cap_blocks) most = s->cap_blocks;
    di_prefix_link parent = {0};
    for (; hit.n_blocks < most; hit.n_blocks++) {
        int32_t at = hit.n_blocks;
        int32_t block = di_prefix_index_find(&x->index, hash_of(x, s, at), s->tokens + (int64_t)at * size, parent);
        if (!block) break;
        s->blocks[at] = block;
        parent = di_prefix_index_link(&x->index, block);
        hit.n_idle += x->pool->units[block].state == DI_UNIT_CACHED;
    }
    hit.start = start_of(x, s, hit.n_blocks * size);
    return hit.start > 0 ? hit : (di_hit){0};
}

int di_prefix_hold(di_prefix *x, di_seq *s, const di_hit *hit)
{
    s->store_from = s->swa_valid_start = 0;
    s->register_at = INT32_MAX;
    if (!x->is_on) return 0;
    int32_t size = x->index.block_size;
    for (int32_t i = 0; i < hit->n_blocks; i++) {
        int code = di_pool_share(x->pool, s->blocks[i]);
        if (code) return code;
    }
    s->store_from = hit->n_blocks * size;
    s->swa_valid_start = hit->start;
    s->chain_epoch = x->epoch;
    s->n_registered = hit->n_blocks;
    s->chain = (di_prefix_link){0};
    if (hit->n_blocks) s->chain = di_prefix_index_link(&x->index, s->blocks[hit->n_blocks - 1]);
    s->has_twins = 0;
    s->register_at = s->store_from + size;
    x->queries += s->prefix_lookup;
    x->hit_tokens += (uint64_t)hit->start;
    x->replayed_tokens += (uint64_t)(s->store_from - hit->start);
    return 0;
}

void di_prefix_inherit(const di_prefix *x, const di_seq *parent, di_seq *child)
{
    if (!x->is_on) return;
    int32_t full = child->len / x->index.block_size;
    child->n_hashed = parent->n_hashed < full ? parent->n_hashed : full;
    memcpy(child->hashes, parent->hashes, (size_t)child->n_hashed * 2 * sizeof(uint64_t));
    child->hash_epoch = parent->hash_epoch;
    child->chain_epoch = parent->chain_epoch;
    child->register_at = x->index.block_size;   /* the first offer finds the parent's blocks and joins them */
}

int di_prefix_register(di_prefix *x, di_seq *s)
{
    s->register_at = INT32_MAX;
    if (!x->is_on || s->chain_epoch != x->epoch) return 0;
    int32_t size = x->index.block_size;
    /* Some blocks before are other requests' equal ones, and one was evicted: build the chain again, on own blocks. */
    if (s->has_twins && !di_prefix_index_is_whole(&x->index, s->chain)) {
        s->n_registered = 0;
        s->chain = (di_prefix_link){0};
        s->has_twins = 0;
    }
    while ((int64_t)(s->n_registered + 1) * size <= s->cached) {
        int32_t at = s->n_registered++, own = s->blocks[at];
        const uint64_t *hash = hash_of(x, s, at);
        const int32_t *tokens = s->tokens + (int64_t)at * size;
        /* The first block with these tokens stays: tables are append-only, so a second one is never merged (3.5). */
        int32_t block = di_prefix_index_find(&x->index, hash, tokens, s->chain);
        if (!block) {
            block = own;
            if (di_prefix_index_has(&x->index, own)) {
                di_prefix_index_remove(&x->index, own);
                di_pool_unregister(x->pool, own);
            }
            int code = di_pool_register(x->pool, own);
            if (code) return code;
            di_prefix_index_add(&x->index, own, hash, tokens, s->chain);
        }
        s->has_twins |= block != own;
        s->chain = di_prefix_index_link(&x->index, block);
    }
    s->register_at = (s->n_registered + 1) * size;
    return 0;
}

void di_prefix_withdraw(di_prefix *x, di_seq *s)
{
    if (!x->is_on) return;
    for (int32_t i = s->store_from / x->index.block_size; i < s->n_blocks; i++) {
        if (!di_prefix_index_has(&x->index, s->blocks[i])) continue;
        di_prefix_index_remove(&x->index, s->blocks[i]);
        di_pool_unregister(x->pool, s->blocks[i]);
    }
    s->register_at = INT32_MAX;
}

int di_prefix_reset(di_prefix *x, const uint64_t *salt)
{
    if (!x->is_on) return di_fail(DI_E_CONFIG, "", "prefix_cache", "is off, there is nothing to reset");
    for (uint32_t i = 1; i < x->pool->size; i++)
        if (x->pool->units[i].ref > 1)
            return di_fail(DI_E_BUSY, "", "prefix_cache", "block %u has %u holders; reset when they have ended", i,
                           x->pool->units[i].ref);
    for (int32_t i = 1; i < x->index.num_blocks; i++) {
        if (!di_prefix_index_has(&x->index, i)) continue;
        x->index.nodes[i].life = 0;
        di_pool_unregister(x->pool, i);
    }
    memset(x->index.entries, 0, (size_t)(x->index.mask + 1) * sizeof *x->index.entries);
    x->index.count = 0;
    x->salt = salt ? *salt : x->salt;
    x->epoch++;
    set_root(x);
    return 0;
}

int di_prefix_check(const di_prefix *x)
{
    if (!x->is_on) return 0;
    for (int32_t i = 1; i < x->index.num_blocks; i++)
        if (x->pool->units[i].registered != di_prefix_index_has(&x->index, i))
            return di_fail(DI_E_INTERNAL, "", "prefix", "block %d: the pool and the index do not agree", i);
    return di_prefix_index_check(&x->index);
}
