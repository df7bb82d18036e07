/* Prefill arrays of InputMetadataV41: stores, load segments, key ranges, window runs (spec/engine.md 6.3). */
#include "di_pack.h"
#include "di_view.h"

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t *put4(int32_t *at, int32_t a, int32_t b, int32_t c, int32_t d)
{
    at[0] = a;
    at[1] = b;
    at[2] = c;
    at[3] = d;
    return at + 4;
}

/* History [start - W, start) goes to buffer rows [i*W, (i+1)*W); absent positions are zero rows in front. What lies in
 * front of the replay of a prefix hit is absent: the ring holds another request's rows there (2.10). */
static int32_t *load_history(const di_core *c, const di_row *r, int32_t dst, int32_t *at)
{
    int32_t window = c->cfg.window, ring = c->dim.swa_ring;
    int32_t first = max32(r->start - window, r->seq->swa_valid_start);
    int32_t absent = window - (r->start - first);
    if (absent) at = put4(at, -1, 0, absent, dst);
    dst += absent;
    for (int32_t p = first; p < r->start;) {
        int32_t begin = p % ring;
        int32_t run = min32(r->start - p, ring - begin);
        at = put4(at, r->swa_slot, begin, begin + run, dst);
        dst += run;
        p += run;
    }
    return at;
}

static void pack_window(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    int32_t window = c->cfg.window, ring = c->dim.swa_ring;
    int32_t *segment = s->load_swa, *pivot = s->swa_pivots;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t end = r->start + r->q;
        segment = load_history(c, r, i * window, segment);
        for (int32_t p = r->start; p < end; p++) {
            /* Only the last SW tokens of a chunk are stored; earlier ones would be overwritten. */
            s->slot_swa[r->first + p - r->start] = p >= end - ring ? r->swa_slot * ring + p % ring : -1;
            int32_t low = max32(p - window + 1, r->seq->swa_valid_start);
            int32_t old = max32(0, r->start - low);
            int32_t fresh = max32(low, r->start);
            pivot = put4(pivot, old ? (i + 1) * window - old : 0, old,
                         step->n * window + r->first + (fresh - r->start), p - fresh + 1);
        }
    }
    out->slot_swa = di_view_1d(s->slot_swa, DI_DTYPE_I32, step->t);
    out->load_swa = di_view_2d(s->load_swa, DI_DTYPE_I32, (segment - s->load_swa) / 4, 4);
    out->swa_pivots = di_view_2d(s->swa_pivots, DI_DTYPE_I32, step->t, 4);
    out->total_k_swa = step->n * window;
}

static int has_ratio(const int32_t *ratios, int32_t n, int32_t ratio)
{
    for (int32_t i = 0; i < n; i++)
        if (ratios[i] == ratio) return 1;
    return 0;
}

static void pack_ratio(const di_core *c, const di_step *step, di_ratio_staging *s, int32_t at,
                       di_input_metadata_v41 *out)
{
    int32_t ratio = c->dim.ratios[at], per_block = c->cfg.block_size / ratio;
    int32_t n_keys = 0, base = 0;
    int32_t *segment = s->load_main;
    s->cu_compressed_q[0] = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        const int32_t *table = r->seq->blocks;
        int32_t end = r->start + r->q, visible = end / ratio, old = r->start / ratio;
        for (int32_t j = old; j < visible; j++, n_keys++) {
            s->positions_c[n_keys] = j * ratio;
            /* A key of a reused block is there already, and others read it: replay does not store. */
            s->slot_main[n_keys] =
                j * ratio < r->seq->store_from ? -1 : table[j / per_block] * per_block + j % per_block;
        }
        if (old == visible) {     /* every request has a row, so that prefix sums are strictly increasing */
            s->positions_c[n_keys] = 0;
            s->slot_main[n_keys++] = -1;
        }
        s->cu_compressed_q[i + 1] = n_keys;
        if (visible == 0) segment = put4(segment, -1, 0, 1, base);
        for (int32_t j = 0; j < visible; j += per_block)
            segment = put4(segment, table[j / per_block], 0, min32(per_block, visible - j), base + j);
        for (int32_t j = 0; j < r->q; j++) {
            int32_t t = r->first + j, count = (r->start + j + 1) / ratio;
            s->ks[t] = base;
            s->ke[t] = base + count;
            s->ca_offset_len[2 * t] = base;
            s->ca_offset_len[2 * t + 1] = count;
        }
        base += max32(1, visible);
    }
    out->positions_c[at] = di_view_1d(s->positions_c, DI_DTYPE_I32, n_keys);
    out->slot_main[at] = di_view_1d(s->slot_main, DI_DTYPE_I32, n_keys);
    out->cu_compressed_q[at] = di_view_1d(s->cu_compressed_q, DI_DTYPE_I32, step->n + 1);
    out->load_main[at] = di_view_2d(s->load_main, DI_DTYPE_I32, (segment - s->load_main) / 4, 4);
    out->total_k_main[at] = base;
    if (has_ratio(c->cfg.ratios_sparse, c->cfg.num_ratios_sparse, ratio)) {
        out->ks[at] = di_view_1d(s->ks, DI_DTYPE_I32, step->t);
        out->ke[at] = di_view_1d(s->ke, DI_DTYPE_I32, step->t);
    }
    if (has_ratio(c->cfg.ratios_dense, c->cfg.num_ratios_dense, ratio))
        out->ca_offset_len[at] = di_view_2d(s->ca_offset_len, DI_DTYPE_I32, step->t, 2);
}

void di_pack_prefill(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    for (int32_t i = 0; i < step->n; i++) {
        s->state_slot_idx[i] = step->rows[i].state_slot;
        s->swa_slot_idx[i] = step->rows[i].swa_slot;
    }
    out->state_slot_idx = di_view_1d(s->state_slot_idx, DI_DTYPE_I32, step->n);
    out->swa_slot_idx = di_view_1d(s->swa_slot_idx, DI_DTYPE_I32, step->n);
    if (c->cfg.window) pack_window(c, step, s, out);
    for (int32_t i = 0; i < c->dim.num_ratios; i++) pack_ratio(c, step, &s->ratio[i], i, out);
    if (c->cfg.replay_mode != DI_REPLAY_OFF) di_pack_replay(c, step, s, out);
}
