/* Which blocks hold which tokens: the index of the prefix cache (spec/engine.md 3.5).
 *
 * An entry is a block whose positions were all computed. It is known by the chain hash of its tokens and of those
 * before it. Equal hashes prove nothing: the block's own tokens are kept and compared, and instead of its parents'
 * tokens the identity of its parent. Every registration gets a number that is never used again, its life; a child
 * remembers the life of its parent, so a chain of matching lives is a chain of equal tokens, whatever the hash does,
 * and a child of a block that was evicted is not found any more.
 *
 * Open addressing with linear probing, at most half full; removal shifts the entries behind back, so there are no
 * tombstones and a search ends at the first empty slot.
 */
#ifndef DI_PREFIX_INDEX_H
#define DI_PREFIX_INDEX_H

#include <stdint.h>

#include "di_arena.h"

typedef struct di_prefix_node {
    uint64_t hash[2];
    uint64_t life;            /* 0 = not registered */
    uint64_t parent_life;     /* of the block before; 0 = this is a first block */
    int32_t parent;           /* that block */
    int32_t pad;
} di_prefix_node;

/* A place in a chain: a block as long as it has this life. {0, 0} is the root. */
typedef struct di_prefix_link {
    uint64_t life;
    int32_t block;
} di_prefix_link;

typedef struct di_prefix_entry {
    uint32_t tag;             /* bits of the hash that the slot number does not use */
    uint32_t block;           /* 0 = empty */
} di_prefix_entry;

typedef struct di_prefix_index {
    di_prefix_entry *entries; /* [mask + 1] */
    di_prefix_node *nodes;    /* [num_blocks] */
    int32_t *tokens;          /* [num_blocks, block_size] of registered blocks */
    uint64_t mask;
    uint64_t lives;
    uint32_t count;
    int32_t block_size, num_blocks;
} di_prefix_index;

int di_prefix_index_init(di_prefix_index *x, di_arena *a, int32_t num_blocks, int32_t block_size);
/* The block with this hash, these tokens [block_size] and this parent; 0 = none. */
int32_t di_prefix_index_find(const di_prefix_index *x, const uint64_t hash[2], const int32_t *tokens,
                             di_prefix_link parent);
/* Enter a block that is not entered. */
void di_prefix_index_add(di_prefix_index *x, int32_t block, const uint64_t hash[2], const int32_t *tokens,
                         di_prefix_link parent);
/* Take a block out; one that is not entered is left alone. */
void di_prefix_index_remove(di_prefix_index *x, int32_t block);
static inline di_prefix_link di_prefix_index_link(const di_prefix_index *x, int32_t block)
{
    return (di_prefix_link){x->nodes[block].life, block};
}
static inline int di_prefix_index_has(const di_prefix_index *x, int32_t block) { return x->nodes[block].life != 0; }
/* The link and all of its parents are still registered. O(chain). */
int di_prefix_index_is_whole(const di_prefix_index *x, di_prefix_link link);
static inline const int32_t *di_prefix_index_tokens(const di_prefix_index *x, int32_t block)
{
    return x->tokens + (int64_t)block * x->block_size;
}
/* 0, or DI_E_INTERNAL: every entry is found by its search and counted once. */
int di_prefix_index_check(const di_prefix_index *x);

#endif
