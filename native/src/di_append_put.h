/* The tokens of one row that goes on, and their events: one by one, or four at once however many there are.
 *
 * How many drafts a row accepts is not to be guessed: a loop over them ends where the processor did not expect it for
 * nearly every other row, which costs as much as the loop. What four stores leave behind the row's own events, the next
 * row overwrites; columns and tokens have DI_EVENT_ROOM entries behind their last one. */
#ifndef DI_APPEND_PUT_H
#define DI_APPEND_PUT_H

#include "di_append.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Where the events of a step are written. Copies of the arena's pointers, which the compiler need not read again after
 * each store. */
typedef struct di_columns {
    uint64_t *seq_uid;
    int32_t *token_id, *output_index, *prompt_len, *conf_offset;
    float *logprob;
    uint16_t *flags;
    int16_t *drafted, *accepted;
} di_columns;

static inline di_columns di_columns_of(const di_event_arena *a)
{
    return (di_columns){.seq_uid = a->seq_uid, .token_id = a->token_id, .output_index = a->output_index,
                        .prompt_len = a->prompt_len, .conf_offset = a->conf_offset, .logprob = a->logprob,
                        .flags = a->flags, .drafted = a->drafted, .accepted = a->accepted};
}

/* The tokens that a row brings: its accepted drafts and the sampled one. */
typedef struct di_brought {
    const int32_t *verified;            /* from the row's first on */
    const float *verified_logprob;      /* NULL: their events say 0 */
    int32_t accepted, sampled;
    float logprob;
} di_brought;

/* Whether one of them is a stop id. */
static inline int di_brings_stop(const di_seq *s, const di_brought *b)
{
    for (int32_t j = 0; j < b->accepted; j++)
        if (di_seq_is_stop(s, b->verified[j])) return 1;
    return di_seq_is_stop(s, b->sampled);
}

/* Append them to the tokens of the request, and put their events from e on. 0, and nothing counts as written, where one of
 * them ends the request. */
static inline int di_put_each(const di_columns *o, int32_t e, const di_seq *s, const di_brought *b)
{
    uint32_t may_stop = di_seq_may_stop(s, b->sampled);
    for (int32_t j = 0; j < b->accepted; j++) may_stop |= di_seq_may_stop(s, b->verified[j]);
    if (may_stop && di_brings_stop(s, b)) return 0;
    int32_t *to = s->tokens + s->len, index = di_seq_output_len(s);
    for (int32_t j = 0; j < b->accepted; j++, e++) {
        o->token_id[e] = *to++ = b->verified[j];
        o->logprob[e] = di_append_logprob(b->verified_logprob, j);
        o->flags[e] = DI_EVENT_FLAG_FROM_DRAFT;
        o->seq_uid[e] = s->uid;
        o->output_index[e] = ++index;
        o->prompt_len[e] = s->prompt_len;
    }
    o->token_id[e] = *to = b->sampled;
    o->logprob[e] = b->logprob;
    o->flags[e] = 0;        /* di_put_four of the row before may have been here */
    o->seq_uid[e] = s->uid;
    o->output_index[e] = index + 1;
    o->prompt_len[e] = s->prompt_len;
    return 1;
}

#if defined(__SSE2__)
enum { DI_HAS_FOUR = 1 };

/* yes where the mask says so, else no */
static inline __m128i di_choose4(__m128i mask, __m128i yes, __m128i no)
{
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

/* 2 to the power of x, 0 .. 15: a float's exponent. Of 31 the conversion would give the right bit, and with it the
 * floating-point exception of a number that is none of an int32_t: the caller's program may have enabled its trap. */
static inline __m128i di_bit4(__m128i x)
{
    return _mm_cvttps_epi32(_mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(x, _mm_set1_epi32(127)), 23)));
}

/* di_seq_may_stop of four tokens, a bit for each. */
static inline uint32_t di_may_stop4(const di_seq *s, __m128i token)
{
    const __m128i low = _mm_set1_epi32(15);
    __m128i bits = _mm_or_si128(
        di_bit4(_mm_and_si128(token, low)),
        _mm_slli_epi32(di_bit4(_mm_and_si128(_mm_srli_epi32(token, 4), low)), 16));
    __m128i missing = _mm_andnot_si128(_mm_set1_epi32((int32_t)s->stop_mask), bits);
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(missing, _mm_setzero_si128())));
}

/* The same as di_put_each of a row of at most three accepted drafts, where four entries of `verified` can be read. Flags
 * behind the row's events are not what an event without a flag has. */
static inline int di_put_four(const di_columns *o, int32_t e, const di_seq *s, const di_brought *b)
{
    const __m128i lane = _mm_set_epi32(3, 2, 1, 0);
    const __m128i is_last = _mm_cmpeq_epi32(lane, _mm_set1_epi32(b->accepted));
    const __m128i token = di_choose4(is_last, _mm_set1_epi32(b->sampled), _mm_loadu_si128((const void *)b->verified));
    const uint32_t may_stop = di_may_stop4(s, token) & ((UINT32_C(2) << b->accepted) - 1);
    if (may_stop && di_brings_stop(s, b)) return 0;
    __m128i said = _mm_setzero_si128();
    /* Of what is no number, the second operand. */
    if (b->verified_logprob)
        said = _mm_castps_si128(_mm_max_ps(_mm_loadu_ps(b->verified_logprob), _mm_set1_ps((float)DI_LOGPROB_FLOOR)));
    const __m128i uid = _mm_set1_epi64x((int64_t)s->uid);
    _mm_storeu_si128((void *)(s->tokens + s->len), token);
    _mm_storeu_si128((void *)(o->token_id + e), token);
    _mm_storeu_si128((void *)(o->logprob + e), di_choose4(is_last, _mm_castps_si128(_mm_set1_ps(b->logprob)), said));
    _mm_storeu_si128((void *)(o->output_index + e), _mm_add_epi32(_mm_set1_epi32(di_seq_output_len(s) + 1), lane));
    _mm_storeu_si128((void *)(o->prompt_len + e), _mm_set1_epi32(s->prompt_len));
    _mm_storeu_si128((void *)(o->seq_uid + e), uid);
    _mm_storeu_si128((void *)(o->seq_uid + e + 2), uid);
    _mm_storel_epi64((void *)(o->flags + e), _mm_andnot_si128(_mm_packs_epi32(is_last, is_last),
                                                             _mm_set1_epi16(DI_EVENT_FLAG_FROM_DRAFT)));
    return 1;
}
#else
enum { DI_HAS_FOUR = 0 };
static inline int di_put_four(const di_columns *o, int32_t e, const di_seq *s, const di_brought *b)
{
    return di_put_each(o, e, s, b);
}
#endif

#endif
