/* Bounded replay of the decoder half: the rp_ arrays of InputMetadataV41 (spec/model.md 5.3, spec/engine.md 3.7).
 *
 * The layers behind the last global keys need the newest rows of a prompt only. floor is the first position that they
 * keep: no window reaches below it, and with COMPACT inputs rows below it are not there. Of a chunk that lies below it
 * the last row stays, so that every request has one; it sees no window and stores none.
 *
 * The mode is a request's own: MASK keeps all rows of it and OFF sees no floor, in inputs of the config's mode. */
#include "di_pack.h"
#include "di_view.h"

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

/* First position of the row's chunk that is kept. */
static int32_t first_kept(const di_row *r)
{
    if (r->seq->replay_mode != DI_REPLAY_COMPACT) return r->start;
    return max32(r->start, min32(r->seq->keep_from, r->start + r->q - 1));
}

/* Two runs of the window in [N * W history rows ; kept rows]: first_row is the buffer row of position first. */
static void put_window(const di_core *c, const di_row *r, int32_t p, int32_t i, int32_t first, int32_t first_row,
                       int32_t *at)
{
    int32_t window = c->cfg.window;
    int32_t low = max32(p - window + 1, max32(r->seq->swa_valid_start, r->seq->keep_from));
    int32_t old = max32(0, r->start - low), fresh = max32(low, first);
    int32_t count = max32(0, p - fresh + 1);
    at[0] = old ? (i + 1) * window - old : 0;
    at[1] = old;
    at[2] = count ? first_row + (fresh - first) : 0;
    at[3] = count;
}

static void pack_masked(const di_core *c, const di_step *step, di_staging *s)
{
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        for (int32_t j = 0; j < r->q; j++)
            put_window(c, r, r->start + j, i, r->start, step->n * c->cfg.window + r->first,
                       s->rp_swa_pivots + 4 * (size_t)(r->first + j));
    }
}

static int32_t pack_kept(const di_core *c, const di_step *step, di_staging *s, int32_t *live)
{
    int32_t ring = c->dim.swa_ring, n = 0;
    s->rp_cu_q[0] = 0;
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t first = first_kept(r), end = r->start + r->q, base = n;
        int32_t stored = max32(r->seq->keep_from, end - ring);
        *live += max32(0, end - max32(first, r->seq->keep_from));
        for (int32_t p = first; p < end; p++, n++) {
            s->rp_query_index[n] = r->first + p - r->start;
            s->rp_positions[n] = p;
            s->rp_slot_swa[n] = p >= stored ? r->swa_slot * ring + p % ring : -1;
            put_window(c, r, p, i, first, step->n * c->cfg.window + base, s->rp_swa_pivots + 4 * (size_t)n);
        }
        s->rp_cu_q[i + 1] = n;
    }
    return n;
}

static void pack_keys(di_staging *s, int32_t n, int32_t at, di_input_metadata_v41 *out)
{
    di_ratio_staging *ratio = &s->ratio[at];
    for (int32_t i = 0; i < n; i++) {
        int32_t t = s->rp_query_index[i];
        ratio->rp_ks[i] = ratio->ks[t];
        ratio->rp_ke[i] = ratio->ke[t];
        ratio->rp_ca_offset_len[2 * i] = ratio->ca_offset_len[2 * t];
        ratio->rp_ca_offset_len[2 * i + 1] = ratio->ca_offset_len[2 * t + 1];
    }
    if (out->ks[at].data) {
        out->rp_ks[at] = di_view_1d(ratio->rp_ks, DI_DTYPE_I32, n);
        out->rp_ke[at] = di_view_1d(ratio->rp_ke, DI_DTYPE_I32, n);
    }
    if (out->ca_offset_len[at].data) out->rp_ca_offset_len[at] = di_view_2d(ratio->rp_ca_offset_len, DI_DTYPE_I32, n, 2);
}

void di_pack_replay(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    for (int32_t i = 0; i < step->n; i++) s->rp_floor[i] = step->rows[i].seq->keep_from;
    out->rp_floor = di_view_1d(s->rp_floor, DI_DTYPE_I32, step->n);
    if (c->cfg.replay_mode == DI_REPLAY_MASK) {
        pack_masked(c, step, s);
        out->rp_swa_pivots = di_view_2d(s->rp_swa_pivots, DI_DTYPE_I32, step->t, 4);
        return;
    }
    int32_t n = pack_kept(c, step, s, &out->rp_num_live);
    out->rp_swa_pivots = di_view_2d(s->rp_swa_pivots, DI_DTYPE_I32, n, 4);
    out->rp_query_index = di_view_1d(s->rp_query_index, DI_DTYPE_I32, n);
    out->rp_cu_q = di_view_1d(s->rp_cu_q, DI_DTYPE_I32, step->n + 1);
    out->rp_positions = di_view_1d(s->rp_positions, DI_DTYPE_I32, n);
    out->rp_slot_swa = di_view_1d(s->rp_slot_swa, DI_DTYPE_I32, n);
    out->rp_total_q = n;
    for (int32_t i = 0; i < c->dim.num_ratios; i++) pack_keys(s, n, i, out);
}
