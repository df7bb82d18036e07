#include "di_output.h"

#include <string.h>

#include "di_clones.h"
#include "di_view.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static int take_array(const di_view *v, int32_t dtype, int64_t n, int64_t m, int is_needed, const char *name,
                      const void **out)
{
    *out = NULL;
    if (!di_view_is_present(v)) {
        if (!is_needed) return 0;
        return di_fail(DI_E_CONTRACT, "SamplerOutput", name, "is absent");
    }
    if (!di_view_is_host(v, dtype, n, m))
        return di_fail(DI_E_CONTRACT, "SamplerOutput", name,
                       "has shape [%lld, %lld] and dtype %d, not a contiguous host array [%lld, %lld] of dtype %d",
                       (long long)v->shape[0], (long long)(v->ndim > 1 ? v->shape[1] : -1), v->dtype, (long long)n,
                       (long long)m, dtype);
    *out = v->data;
    return 0;
}

static int take_output(const di_core *c, const di_step *step, const di_sampler_output *o, di_tokens *t)
{
    int64_t n = step->n, rows = step->t, k = c->cfg.num_draft;
    int is_decode = step->kind == DI_STEP_DECODE, drafted = is_decode && k > 0;
    int64_t m = di_view_is_present(&o->top_ids) && o->top_ids.ndim == 2 ? o->top_ids.shape[1] : 0;
    if (m < 0 || m > INT16_MAX)
        return di_fail(DI_E_CONTRACT, "SamplerOutput", "top_ids", "%lld alternatives", (long long)m);
    t->n_top = (int32_t)m;
    int code = 0;
    /* A prefill step verifies nothing: what a sampler says about drafts there has no meaning and is not read. */
#define TAKE_VERIFIED(field, view, dtype, m, needed) \
    do { if (is_decode) TAKE(field, view, dtype, rows, m, needed); } while (0)
#define TAKE(field, view, dtype, n, m, needed) \
    do { const void *p = NULL; \
         if (!code) code = take_array(&o->view, dtype, n, m, needed, #view, &p); \
         t->field = p; } while (0)
    TAKE(sampled, sampled_ids, DI_DTYPE_I32, n, -1, 1);
    TAKE(logprob, sampled_logprob, DI_DTYPE_F32, n, -1, 1);
    TAKE(status, row_status, DI_DTYPE_I8, n, -1, 1);
    TAKE_VERIFIED(verified, verified_ids, DI_DTYPE_I32, -1, drafted);
    TAKE_VERIFIED(verified_logprob, verified_logprob, DI_DTYPE_F32, -1, 0);
    TAKE_VERIFIED(draft_logprob, draft_logprob, DI_DTYPE_F32, -1, 0);
    if (is_decode) TAKE(accepted, accepted, DI_DTYPE_I32, n, -1, 0);
    TAKE(drafts, draft_ids, DI_DTYPE_I32, n, k, 0);
    TAKE(confidence, confidence, DI_DTYPE_F32, n, k, 0);
    TAKE(sum_smaller, sum_smaller, DI_DTYPE_F32, n, -1, 0);
    TAKE_VERIFIED(verified_sum_smaller, verified_sum_smaller, DI_DTYPE_F32, -1, 0);
    TAKE(top_ids, top_ids, DI_DTYPE_I32, n, m, 0);
    TAKE(top_logprobs, top_logprobs, DI_DTYPE_F32, n, m, t->top_ids != NULL);
    TAKE_VERIFIED(verified_top_ids, verified_top_ids, DI_DTYPE_I32, m, 0);
    TAKE_VERIFIED(verified_top_logprobs, verified_top_logprobs, DI_DTYPE_F32, m, t->verified_top_ids != NULL);
    if (step->n_prompt_rows) TAKE(prompt_logprobs, prompt_logprobs, DI_DTYPE_F32, step->n_prompt_rows, -1, 0);
#undef TAKE_VERIFIED
#undef TAKE
    t->has_extras = t->draft_logprob || t->sum_smaller || t->verified_sum_smaller || t->top_ids || t->verified_top_ids;
    return code;
}

static int bad(const char *field, const di_row *r, int64_t value, const char *rule)
{
    return di_fail(DI_E_CONTRACT, "SamplerOutput", field, "request %llu: %lld, %s", (unsigned long long)r->seq->uid,
                   (long long)value, rule);
}

static int check_row(const di_core *c, const di_step *step, int32_t i, const di_tokens *t)
{
    const di_row *r = &step->rows[i];
    int32_t vocab = c->cfg.vocab_size;
    if (t->status[i] == DI_ROW_OK && (t->sampled[i] < 0 || t->sampled[i] >= vocab))
        return bad("sampled_ids", r, t->sampled[i], "a row that is ok needs a token of the vocabulary");
    if (step->kind == DI_STEP_PREFILL || r->q <= 1) return 0;
    int32_t n = di_output_accepted(step, i, t);
    if (n < 0 || n > r->q - 1) return bad("accepted", r, n, "more than the drafts that were verified");
    for (int32_t j = 0; j < r->q - 1; j++) {
        int32_t id = t->verified[r->first + j];
        if ((j < n) != (id >= 0))
            return bad("verified_ids", r, id, "accepted drafts first, -1 from the first rejection on");
        if (id >= vocab) return bad("verified_ids", r, id, "outside the vocabulary");
    }
    return 0;
}

DI_CLONES static int are_tokens(const int32_t *ids, int64_t n, int32_t vocab_size)
{
    uint32_t vocab = (uint32_t)vocab_size;
    int others = 0;
    for (int64_t i = 0; ids && i < n; i++) others |= (uint32_t)ids[i] >= vocab;
    return !others;
}

/* Each is a token or -1. */
DI_CLONES static int are_ids(const int32_t *ids, int32_t n, int32_t vocab)
{
    int others = 0;
    for (int32_t x = 0; x < n; x++) others |= (ids[x] < -1) | (ids[x] >= vocab);
    return !others;
}

/* Bit j of the lowest n: ids[j] is a token. Eight are looked at together where the array has them. */
static inline uint32_t token_bits(const int32_t *ids, int32_t n, int32_t there)
{
#if defined(__SSE2__)
    if (n <= 8 && there >= 8) {
        __m128i low = _mm_loadu_si128((const void *)ids), high = _mm_loadu_si128((const void *)(ids + 4));
        int others = _mm_movemask_ps(_mm_castsi128_ps(low)) | _mm_movemask_ps(_mm_castsi128_ps(high)) << 4;
        return ~(uint32_t)others;
    }
#endif
    if (n > there) n = there;
    uint32_t bits = 0;
    for (int32_t j = 0; j < n; j++) bits |= (uint32_t)(ids[j] >= 0) << j;
    return bits;
}

/* The verified ids of every row are its accepted drafts, then -1. A row looks at K ids, however many are its own: a loop
 * whose end depends on the row is guessed wrong every other time. The array ends behind the last rows. */
static int is_verified_plain(const di_core *c, const di_step *step, const di_tokens *t)
{
    int32_t k = c->cfg.num_draft, is_odd = !are_ids(t->verified, step->t, c->cfg.vocab_size);
    for (int32_t i = 0; i < step->n; i++) {
        const di_row *r = &step->rows[i];
        int32_t drafts = r->q - 1, accepted = di_output_accepted(step, i, t);
        uint32_t bits = token_bits(t->verified + r->first, k, step->t - r->first);
        is_odd |= accepted < 0 || accepted > drafts;
        is_odd |= (bits & ((UINT32_C(1) << drafts) - 1)) != (UINT32_C(1) << (accepted & 31)) - 1;
    }
    return !is_odd;
}

/* Every row is OK and has a token: none needs a look of its own, nor a look at its request. */
static int is_plain(const di_core *c, const di_step *step, const di_tokens *t)
{
    uint32_t vocab = (uint32_t)c->cfg.vocab_size;
    int bad_rows = 0;
    for (int32_t i = 0; i < step->n; i++) bad_rows |= t->status[i] != DI_ROW_OK;
    for (int32_t i = 0; i < step->n; i++) bad_rows |= (uint32_t)t->sampled[i] >= vocab;
    return !bad_rows;
}

int di_output_read(const di_core *c, const di_step *step, const di_sampler_output *output, di_tokens *t)
{
    memset(t, 0, sizeof *t);
    if (!output) {
        for (int32_t i = 0; i < step->n; i++)
            if (di_output_wants_token(step, &step->rows[i]))
                return di_fail(DI_E_ARG, "SamplerOutput", "output", "NULL, but step %llu has rows that need a token",
                               (unsigned long long)step->id);
        return 0;
    }
    if (output->struct_size < sizeof *output)
        return di_fail(DI_E_CONTRACT, "SamplerOutput", "struct_size", "%u bytes, at least %zu are needed",
                       output->struct_size, sizeof *output);
    int code = take_output(c, step, output, t);
    if (code) return code;
    t->are_drafts_tokens = are_tokens(t->drafts, (int64_t)step->n * c->cfg.num_draft, c->cfg.vocab_size);
    int verifies = step->kind == DI_STEP_DECODE && step->t > step->n;
    t->is_plain = is_plain(c, step, t);
    t->is_verified_plain = t->is_plain && verifies && is_verified_plain(c, step, t);
    if (t->is_verified_plain || (t->is_plain && !verifies)) return code;
    for (int32_t i = 0; i < step->n && !code; i++) {
        if (i + DI_AHEAD < step->n) DI_PREFETCH(step->rows[i + DI_AHEAD].seq);
        if (di_output_wants_token(step, &step->rows[i])) code = check_row(c, step, i, t);
    }
    return code;
}
