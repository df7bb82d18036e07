/* Decode arrays of InputMetadataV41, one entry per token (spec/engine.md 6.3). */
#include <string.h>

#include "di_pack.h"
#include "di_view.h"

static void pack_tokens(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    int32_t width = c->dim.max_blocks;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        for (int32_t j = 0; j < r->q; j++) {
            int32_t t = r->first + j;
            s->context_lens[t] = r->start + j + 1;
            s->query_indices[t] = i;
            s->state_slot_idx[t] = r->state_slot;
            s->swa_slot_idx[t] = r->swa_slot;
            /* Columns past the used blocks keep what they had: undefined by contract, always a valid id. */
            memcpy(s->block_tables + (size_t)t * (size_t)width, r->seq->blocks, (size_t)r->n_blocks * sizeof(int32_t));
        }
    }
    out->context_lens = di_view_1d(s->context_lens, DI_DTYPE_I32, step->t);
    out->query_indices = di_view_1d(s->query_indices, DI_DTYPE_I32, step->t);
    out->state_slot_idx = di_view_1d(s->state_slot_idx, DI_DTYPE_I32, step->t);
    out->swa_slot_idx = di_view_1d(s->swa_slot_idx, DI_DTYPE_I32, step->t);
    out->block_tables = di_view_2d(s->block_tables, DI_DTYPE_I32, step->t, width);
}

static void pack_window(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    int32_t window = c->cfg.window, ring = c->dim.swa_ring;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        for (int32_t j = 0; j < r->q; j++) {
            int32_t t = r->first + j, p = r->start + j;
            int32_t count = p + 1 < window ? p + 1 : window;
            s->slot_swa[t] = r->swa_slot * ring + p % ring;
            s->swa_offset_len[2 * t] = r->swa_slot * ring + (p - count + 1) % ring;
            s->swa_offset_len[2 * t + 1] = count;
        }
    }
    out->slot_swa = di_view_1d(s->slot_swa, DI_DTYPE_I32, step->t);
    out->swa_offset_len = di_view_2d(s->swa_offset_len, DI_DTYPE_I32, step->t, 2);
}

static void pack_ratio(const di_core *c, const di_step *step, di_ratio_staging *s, int32_t at,
                       di_input_metadata_v41 *out)
{
    int32_t ratio = c->dim.ratios[at], per_block = c->cfg.block_size / ratio;
    int32_t table_rows = c->dim.max_blocks * per_block;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        for (int32_t j = 0; j < r->q; j++) {
            int32_t t = r->first + j, p = r->start + j;
            int32_t key = p / ratio, ends_key = (p + 1) % ratio == 0;
            s->positions_c[t] = ends_key ? key * ratio : 0;
            s->slot_main[t] = ends_key ? r->seq->blocks[key / per_block] * per_block + key % per_block : -1;
            s->klen[t] = (p + 1) / ratio;
            s->ca_offset_len[2 * t] = (int32_t)((int64_t)t * table_rows);
            s->ca_offset_len[2 * t + 1] = (p + 1) / ratio;
        }
    }
    out->positions_c[at] = di_view_1d(s->positions_c, DI_DTYPE_I32, step->t);
    out->slot_main[at] = di_view_1d(s->slot_main, DI_DTYPE_I32, step->t);
    for (int32_t i = 0; i < c->cfg.num_ratios_sparse; i++)
        if (c->cfg.ratios_sparse[i] == ratio) out->klen[at] = di_view_1d(s->klen, DI_DTYPE_I32, step->t);
    for (int32_t i = 0; i < c->cfg.num_ratios_dense; i++)
        if (c->cfg.ratios_dense[i] == ratio)
            out->ca_offset_len[at] = di_view_2d(s->ca_offset_len, DI_DTYPE_I32, step->t, 2);
}

void di_pack_decode(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    pack_tokens(c, step, s, out);
    if (c->cfg.window) pack_window(c, step, s, out);
    for (int32_t i = 0; i < c->dim.num_ratios; i++) pack_ratio(c, step, &s->ratio[i], i, out);
    if (c->cfg.depth > 1) di_pack_feed(c, step, s, out);
}
