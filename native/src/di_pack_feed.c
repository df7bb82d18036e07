/* The host's half of the tokens that a step in flight decides (spec/engine.md 5.4, 6.4). The device completes it: the
 * current token and the drafts of a mapped row are results of the step before. */
#include "di_pack.h"
#include "di_view.h"

/* The compressed id of a token; -1 for what ends the look-back: an image, or an id beyond the table. */
static int32_t compressed(const di_core *c, int32_t token)
{
    int32_t id = token >= 0 && token < c->cfg.ngram_table_size ? c->ngram_table[token] : -1;
    return id < 0 ? -1 : id;
}

/* Draft j of the request's last committed step: what the step in flight verifies. A pad draft where it had none
 * (5.8). */
static int32_t draft(const di_core *c, const di_row *r, int32_t j)
{
    return r->seq->has_drafts ? di_core_drafts(c, r->row_slot)[j] : c->cfg.vocab_size - 1;
}

/* History ends before the current token; that of a mapped row is on the device, so the last committed token counts. */
static void pack_history(const di_core *c, const di_row *r, int32_t *win)
{
    int32_t k = c->cfg.num_draft, g = c->cfg.ngram;
    int32_t end = r->remap >= 0 ? r->full_len : r->full_len - 1;
    for (int32_t x = end - (g - 1); x < end; x++) *win++ = x < 0 ? -1 : compressed(c, r->seq->tokens[x]);
    for (int32_t j = 0; j < k; j++) *win++ = compressed(c, draft(c, r, j));
}

void di_pack_feed(const di_core *c, const di_step *step, di_staging *s, di_input_metadata_v41 *out)
{
    int32_t q = c->dim.q, g = c->cfg.ngram, width = c->cfg.num_draft + g - 1, is_mapped = 0;
    for (int32_t i = 0; i < step->n && !is_mapped; i++) is_mapped = step->rows[i].remap >= 0;
    if (!is_mapped) return;   /* nothing is on the device: input_ids and ngram_token_ids are complete */
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t *ids = s->fresh_ids + (size_t)i * (size_t)q;
        ids[0] = r->seq->tokens[r->full_len - 1];
        for (int32_t j = 1; j < q; j++) ids[j] = draft(c, r, j - 1);
        if (g) pack_history(c, r, s->ngram_win + (size_t)i * (size_t)width);
    }
    out->fresh_ids = di_view_2d(s->fresh_ids, DI_DTYPE_I32, step->n, q);
    if (g) out->ngram_win = di_view_2d(s->ngram_win, DI_DTYPE_I32, step->n, width);
}
