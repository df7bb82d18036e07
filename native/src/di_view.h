/* Making di_view descriptors of host arrays that the core owns, and reading those of a consumer. */
#ifndef DI_VIEW_H
#define DI_VIEW_H

#include "di_core.h"

static inline di_view di_view_1d(void *data, int32_t dtype, int64_t n)
{
    return (di_view){.data = data, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}, .space = DI_SPACE_HOST,
                     .flags = DI_VIEW_PRESENT};
}

static inline di_view di_view_2d(void *data, int32_t dtype, int64_t n, int64_t m)
{
    return (di_view){.data = data, .dtype = dtype, .ndim = 2, .shape = {n, m}, .stride = {m, 1},
                     .space = DI_SPACE_HOST, .flags = DI_VIEW_PRESENT};
}

static inline int di_view_is_present(const di_view *v) { return (v->flags & DI_VIEW_PRESENT) != 0; }
/* A contiguous host array [n] or, with m >= 0, [n, m]. */
static inline int di_view_is_host(const di_view *v, int32_t dtype, int64_t n, int64_t m)
{
    if (v->dtype != dtype || v->space == DI_SPACE_DEVICE || v->ndim != (m < 0 ? 1 : 2) || v->shape[0] != n) return 0;
    if (n > 0 && m != 0 && !v->data) return 0;
    if (m < 0) return n <= 1 || v->stride[0] == 1;
    return v->shape[1] == m && (m <= 1 || v->stride[1] == 1) && (n <= 1 || v->stride[0] == m);
}

#endif
