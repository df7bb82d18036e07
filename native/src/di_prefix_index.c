#include "di_prefix_index.h"

#include <string.h>

#include "di_error.h"

int di_prefix_index_init(di_prefix_index *x, di_arena *a, int32_t num_blocks, int32_t block_size)
{
    uint64_t size = 2;
    while (size < 2 * (uint64_t)num_blocks) size *= 2;
    x->entries = di_arena_take(a, (size_t)size, sizeof *x->entries);
    x->nodes = di_arena_take(a, (size_t)num_blocks, sizeof *x->nodes);
    x->tokens = di_arena_take(a, (size_t)num_blocks * (size_t)block_size, sizeof *x->tokens);
    x->mask = size - 1;
    x->num_blocks = num_blocks;
    x->block_size = block_size;
    return x->entries && x->nodes && x->tokens ? 0 : DI_E_CAPACITY;
}

static uint32_t tag_of(const uint64_t hash[2]) { return (uint32_t)hash[1]; }
static uint64_t home_of(const di_prefix_index *x, const uint64_t hash[2]) { return hash[0] & x->mask; }
static uint64_t next_of(const di_prefix_index *x, uint64_t at) { return (at + 1) & x->mask; }

int32_t di_prefix_index_find(const di_prefix_index *x, const uint64_t hash[2], const int32_t *tokens,
                             di_prefix_link parent)
{
    uint32_t tag = tag_of(hash);
    for (uint64_t at = home_of(x, hash); x->entries[at].block; at = next_of(x, at)) {
        if (x->entries[at].tag != tag) continue;
        uint32_t block = x->entries[at].block;
        const di_prefix_node *n = &x->nodes[block];
        if (n->parent_life != parent.life || n->hash[0] != hash[0] || n->hash[1] != hash[1]) continue;
        if (memcmp(di_prefix_index_tokens(x, (int32_t)block), tokens, (size_t)x->block_size * sizeof *tokens) == 0)
            return (int32_t)block;
    }
    return 0;
}

void di_prefix_index_add(di_prefix_index *x, int32_t block, const uint64_t hash[2], const int32_t *tokens,
                         di_prefix_link parent)
{
    uint64_t at = home_of(x, hash);
    while (x->entries[at].block) at = next_of(x, at);
    x->entries[at] = (di_prefix_entry){tag_of(hash), (uint32_t)block};
    x->nodes[block] = (di_prefix_node){{hash[0], hash[1]}, ++x->lives, parent.life, parent.block, 0};
    memcpy(x->tokens + (int64_t)block * x->block_size, tokens, (size_t)x->block_size * sizeof *tokens);
    x->count++;
}

void di_prefix_index_remove(di_prefix_index *x, int32_t block)
{
    di_prefix_node *n = &x->nodes[block];
    if (n->life == 0) return;
    n->life = 0;
    x->count--;
    uint64_t hole = home_of(x, n->hash);
    while (x->entries[hole].block != (uint32_t)block) hole = next_of(x, hole);
    for (uint64_t at = next_of(x, hole); x->entries[at].block; at = next_of(x, at)) {
        /* An entry may fill the hole if its search passes it: its way from home is at least as long as from the
         * hole. */
        uint64_t home = home_of(x, x->nodes[x->entries[at].block].hash);
        if (((at - home) & x->mask) < ((at - hole) & x->mask)) continue;
        x->entries[hole] = x->entries[at];
        hole = at;
    }
    x->entries[hole] = (di_prefix_entry){0};
}

int di_prefix_index_is_whole(const di_prefix_index *x, di_prefix_link link)
{
    while (link.block) {
        const di_prefix_node *n = &x->nodes[link.block];
        if (n->life != link.life) return 0;
        link = (di_prefix_link){n->parent_life, n->parent};
    }
    return 1;
}

int di_prefix_index_check(const di_prefix_index *x)
{
    uint32_t entries = 0, lives = 0;
    for (uint64_t at = 0; at <= x->mask; at++) {
        uint32_t block = x->entries[at].block;
        if (!block) continue;
        entries++;
        if (block >= (uint32_t)x->num_blocks || !x->nodes[block].life || x->nodes[block].life > x->lives)
            return di_fail(DI_E_INTERNAL, "", "prefix", "entry %llu names block %u, which is not registered",
                           (unsigned long long)at, block);
        const di_prefix_node *n = &x->nodes[block];
        const int32_t *tokens = di_prefix_index_tokens(x, (int32_t)block);
        if (di_prefix_index_find(x, n->hash, tokens, (di_prefix_link){n->parent_life, n->parent}) != (int32_t)block)
            return di_fail(DI_E_INTERNAL, "", "prefix", "block %u is not found by its own tokens", block);
    }
    for (int32_t i = 0; i < x->num_blocks; i++) lives += x->nodes[i].life != 0;
    if (entries != x->count || lives != x->count)
        return di_fail(DI_E_INTERNAL, "", "prefix", "%u entries and %u blocks are not %u", entries, lives, x->count);
    return 0;
}
