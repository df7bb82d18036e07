/* Prefix cache: requests find, hold and offer full blocks (spec/engine.md 2.10, 3.5).
 *
 *   key     h_0 = H(salt), h_i = H(h_{i-1}, token ids of block i as little-endian int32); H = SipHash-2-4-128, keyed
 *   offer   at commit, of blocks whose positions are all committed and computed: never of a draft or a position in
 *           flight
 *   match   at admission, of as many full blocks as leave one token to run; H = their tokens
 *   replay  sliding windows and compressor states are not kept in blocks, so the last replay_len positions of a hit
 *           run again without storing to the shared blocks: start = max(0, min(H - replay_len, len - replay_keep)),
 *           and start = max(0, min(H, prompt - replay_keep) - replay_len) where windows are to be those of a cold
 *           run. A hit with start 0 saves nothing and is none.
 *
 * A request keeps the hashes of its full blocks, so a search that is repeated costs table look-ups only.
 */
#ifndef DI_PREFIX_H
#define DI_PREFIX_H

#include "di_pool.h"
#include "di_prefix_index.h"
#include "di_seq.h"

typedef struct di_prefix {
    int is_on;
    uint64_t key[2], hash_mask[2];
    uint64_t salt, epoch;     /* epoch: resets so far + 1; blocks computed before a reset are never offered after it */
    uint64_t root[2];         /* h_0 */
    int32_t replay_len[2];    /* of requests whose decoder half runs all rows, and of those that keep a part */
    int32_t replay_keep, replay_exact;
    di_prefix_index index;
    di_unit_pool *pool;       /* MAIN */
    uint64_t queries, hit_tokens, replayed_tokens;
} di_prefix;

/* What admission may reuse; the blocks' ids stand in the request's table, which is not in use yet. */
typedef struct di_hit {
    int32_t n_blocks;
    int32_t n_idle;           /* of them CACHED: holding them leaves so many fewer to take */
    int32_t start;            /* first position to run; 0 = no hit */
} di_hit;

/* Positions of a hit that a request of this replay mode runs again. */
static inline int32_t di_prefix_replay_len(const di_config *k, int32_t mode)
{
    int32_t len = mode != DI_REPLAY_OFF && k->replay_len_kept ? k->replay_len_kept : k->replay_len;
    return len ? len : k->window;
}

int di_prefix_init(di_prefix *x, di_arena *a, const di_config *k, di_unit_pool *pool);
/* Search; changes nothing that anybody can see. */
di_hit di_prefix_match(const di_prefix *x, di_seq *s);
/* Hold the blocks of a hit, before others are taken; sets what follows for the request. A hit of 0 blocks only starts
 * the request's chain. */
int di_prefix_hold(di_prefix *x, di_seq *s, const di_hit *hit);
/* A fork goes on in its parent's chain: the same hashes, offers and reset. */
void di_prefix_inherit(const di_prefix *x, const di_seq *parent, di_seq *child);
/* Offer every block that is full and computed; to be called when cached reaches s->register_at. */
int di_prefix_register(di_prefix *x, di_seq *s);
/* Offer none of what the request computed itself any more: the device reported it as bad. */
void di_prefix_withdraw(di_prefix *x, di_seq *s);
/* Forget everything. DI_E_BUSY while a block has more than one holder. salt NULL = the next one. */
int di_prefix_reset(di_prefix *x, const uint64_t *salt);
/* The index agrees with the pool. */
int di_prefix_check(const di_prefix *x);

#endif
