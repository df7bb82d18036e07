/* Decode arrays of InputMetadataV41, one entry per token (spec/engine.md 6.3).
 *
 * A row is a few consecutive positions: remainders and block columns are computed once for its first one and counted on
 * from there. reference_pack.py computes each by itself.
 *
 * Loops write Q tokens of every row, also where lengths vary: what a row has fewer, the next one overwrites, and behind
 * the last row nobody reads; the arrays hold N * Q. A loop over the row's own number is guessed wrong every other time.
 * Block tables reach that far: growth reserves Q positions.
 */
#include <string.h>

#include "di_pack.h"
#include "di_view.h"

/* What tokens have from the place of their request, and keep as long as it stays there with as many tokens. */
static void pack_places(const di_core *c, const di_step *step, di_staging *s)
{
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        for (int32_t t = r->first; t < r->first + c->dim.q; t++) {
            s->query_indices[t] = i;
            s->state_slot_idx[t] = r->state_slot;
            s->swa_slot_idx[t] = r->swa_slot;
        }
        /* The row of the persistent table that the backend keeps from bt_delta. */
        for (int32_t t = r->first; t < r->first + c->dim.q && !c->cfg.csr_tables; t++) s->row_slot_idx[t] = r->row_slot;
    }
}

/* Whether the staging holds them: the step that was packed into it before had the same rows, in the same memory, and
 * neither step has a row of fewer tokens than there can be. */
static int are_places_kept(const di_core *c, const di_step *step, di_staging *s)
{
    int is_even = step->t == step->n * c->dim.q;
    int is_kept = is_even && step->n_placed == 0 && step->n <= s->n_kept &&
                  s->kept_step + (uint64_t)c->cfg.depth + 1 == step->id && s->kept_rows == step->rows;
    s->n_kept = is_even ? step->n : 0;
    s->kept_step = step->id;
    s->kept_rows = step->rows;
    return is_kept;
}

static void pack_tokens(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    if (!are_places_kept(c, step, s)) pack_places(c, step, s);
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t *lens = s->context_lens + r->first, start = r->start;
        for (int32_t j = 0; j < c->dim.q; j++) lens[j] = start + j + 1;
    }
    out->context_lens = di_view_1d(s->context_lens, DI_DTYPE_I32, step->t);
    out->query_indices = di_view_1d(s->query_indices, DI_DTYPE_I32, step->t);
    out->state_slot_idx = di_view_1d(s->state_slot_idx, DI_DTYPE_I32, step->t);
    out->swa_slot_idx = di_view_1d(s->swa_slot_idx, DI_DTYPE_I32, step->t);
}

/* The whole table of each token's request: O(all blocks). */
static void pack_tables(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    size_t width = (size_t)c->dim.max_blocks;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        /* Columns past the used blocks keep what they had: undefined by contract, always a valid id. */
        for (int32_t t = r->first; t < r->first + r->q; t++)
            memcpy(s->block_tables + (size_t)t * width, r->blocks, (size_t)r->n_blocks * sizeof(int32_t));
    }
    out->block_tables = di_view_2d(s->block_tables, DI_DTYPE_I32, step->t, c->dim.max_blocks);
}

static void show_row_slots(const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    out->row_slot_idx = di_view_1d(s->row_slot_idx, DI_DTYPE_I32, step->t);
}

static void pack_window(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    int32_t window = c->cfg.window, ring = c->dim.swa_ring;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t base = r->swa_slot * ring, at = r->start % ring;
        for (int32_t j = 0; j < c->dim.q; j++) {
            int32_t t = r->first + j, p = r->start + j;
            int32_t count = p + 1 < window ? p + 1 : window;
            int32_t begin = at - count + 1;          /* the window's first token; the ring is longer than a window */
            s->slot_swa[t] = base + at;
            s->swa_offset_len[2 * t] = base + (begin < 0 ? begin + ring : begin);
            s->swa_offset_len[2 * t + 1] = count;
            if (++at == ring) at = 0;
        }
    }
    out->slot_swa = di_view_1d(s->slot_swa, DI_DTYPE_I32, step->t);
    out->swa_offset_len = di_view_2d(s->swa_offset_len, DI_DTYPE_I32, step->t, 2);
}

static int is_listed(const int32_t *ratios, int32_t n, int32_t ratio)
{
    for (int32_t i = 0; i < n; i++)
        if (ratios[i] == ratio) return 1;
    return 0;
}

/* Division by a number that is nearly always a power of two: a shift then. */
typedef struct divisor {
    int32_t by, shift;        /* shift -1 = no power of two */
} divisor;

static divisor divisor_of(int32_t by)
{
    int32_t shift = 0;
    while (shift < 30 && (INT32_C(1) << shift) < by) shift++;
    return (divisor){.by = by, .shift = (INT32_C(1) << shift) == by ? shift : -1};
}

static inline int32_t divided(int32_t x, divisor d) { return d.shift >= 0 ? x >> d.shift : x / d.by; }

/* Where the compressed key of each token goes, -1 where a token ends no group; and how many keys it sees. */
static void pack_slots(const di_step *step, di_ratio_staging *s, int32_t q, int32_t ratio, int32_t per_block)
{
    const divisor by_ratio = divisor_of(ratio), by_block = divisor_of(per_block);
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t key = divided(r->start, by_ratio), within = r->start - key * ratio;
        int32_t column = divided(key, by_block), at = key - column * per_block;
        for (int32_t t = r->first; t < r->first + q; t++) {
            int is_end = within == ratio - 1;
            s->positions_c[t] = is_end ? key * ratio : 0;
            s->slot_main[t] = is_end ? r->blocks[column] * per_block + at : -1;
            s->klen[t] = key + is_end;
            within++;
            if (!is_end) continue;
            within = 0;
            key++;
            if (++at == per_block) at = 0, column++;
        }
    }
}

/* The same for ratio 1, where every token ends a group of its own. */
static void pack_own_slots(const di_step *step, di_ratio_staging *s, int32_t q, int32_t per_block)
{
    const divisor by_block = divisor_of(per_block);
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t start = r->start, column = divided(start, by_block), at = start - column * per_block;
        int32_t *positions = s->positions_c + r->first, *slots = s->slot_main + r->first, *klen = s->klen + r->first;
        int32_t base = r->blocks[column] * per_block;
        for (int32_t j = 0; j < q; j++) {
            if (at == per_block) at = 0, base = r->blocks[++column] * per_block;
            positions[j] = start + j;
            klen[j] = start + j + 1;
            slots[j] = base + at++;
        }
    }
}

static void pack_ratio(const di_core *c, const di_step *step, di_ratio_staging *s, int32_t at,
                       di_input_metadata_v41 *out)
{
    int32_t ratio = c->dim.ratios[at], per_block = c->cfg.block_size / ratio;
    if (ratio == 1) pack_own_slots(step, s, c->dim.q, per_block);
    else pack_slots(step, s, c->dim.q, ratio, per_block);
    out->positions_c[at] = di_view_1d(s->positions_c, DI_DTYPE_I32, step->t);
    out->slot_main[at] = di_view_1d(s->slot_main, DI_DTYPE_I32, step->t);
    if (is_listed(c->cfg.ratios_sparse, c->cfg.num_ratios_sparse, ratio))
        out->klen[at] = di_view_1d(s->klen, DI_DTYPE_I32, step->t);
    if (!is_listed(c->cfg.ratios_dense, c->cfg.num_ratios_dense, ratio)) return;
    int32_t table_rows = c->dim.max_blocks * per_block;
    for (int32_t t = 0; t < step->t; t++) {
        s->ca_offset_len[2 * t] = t * table_rows;     /* below 2**31: di_config_check */
        s->ca_offset_len[2 * t + 1] = s->klen[t];
    }
    out->ca_offset_len[at] = di_view_2d(s->ca_offset_len, DI_DTYPE_I32, step->t, 2);
}

void di_pack_decode(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    pack_tokens(c, step, s, out);
    if (c->cfg.csr_tables) pack_tables(c, step, s, out);
    else show_row_slots(step, s, out);
    if (c->cfg.window) pack_window(c, step, s, out);
    for (int32_t i = 0; i < c->dim.num_ratios; i++) pack_ratio(c, step, &s->ratio[i], i, out);
    if (c->cfg.depth > 1) di_pack_feed(c, step, s, out);
}
