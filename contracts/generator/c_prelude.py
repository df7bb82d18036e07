"""The hand-written start of `di_checks.c`: arithmetic, views, sets and the report of a violation."""

PRELUDE = """
/* Signed arithmetic that wraps: corrupt lengths must not be undefined behaviour. */
static inline int64_t di_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline int64_t di_sub(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static inline int64_t di_mul(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static inline int64_t di_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t di_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Rounds down as Python does; x // 0 and x % 0 are 0. */
static inline int64_t di_floordiv(int64_t a, int64_t b)
{
    if (b == 0) return 0;
    if (b == -1) return di_sub(0, a);
    const int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static inline int64_t di_mod(int64_t a, int64_t b) { return b == 0 ? 0 : di_sub(a, di_mul(di_floordiv(a, b), b)); }

static inline int64_t di_align(int64_t a, int64_t b) { return di_mul(di_floordiv(di_sub(di_add(a, b), 1), b), b); }

static inline int64_t di_index(int64_t i, int64_t n)
{
    const int64_t at = i < 0 ? i + n : i;
    return at >= 0 && at < n ? at : -1;
}

/* Compilers vectorise this only when told to, and it is most of the work of level BOUNDARY. */
#if defined(__GNUC__) && !defined(__clang__)
#define DI_VECTORISE __attribute__((optimize("O3")))
#else
#define DI_VECTORISE
#endif

/* A bound of 32-bit values: one outside of their range holds for all or for none of them. */
static inline int32_t di_narrow(int64_t x) { return (int32_t)di_max(INT32_MIN, di_min(INT32_MAX, x)); }

/* Whether every x is in [low, high]; the bounds may lie outside of the type. One function for each type, because lanes
 * as narrow as the values are what makes the loop fast. */
#define DI_IN_RANGE(name, type, least, most)                                                                    \\
    DI_VECTORISE static inline bool name(const type *x, int64_t n, int64_t low, int64_t high)                    \\
    {                                                                                                           \\
        if (n > 0 && (low > (most) || high < (least) || low > high)) return false;                              \\
        const type a = (type)di_max(low, (least)), b = (type)di_min(high, (most));                              \\
        type out = 0;                                                                                           \\
        for (int64_t i = 0; i < n; i++) out = (type)(out | ((x[i] < a) | (x[i] > b)));                           \\
        return out == 0;                                                                                        \\
    }
DI_IN_RANGE(di_in_range_u8, uint8_t, 0, UINT8_MAX)
DI_IN_RANGE(di_in_range_i8, int8_t, INT8_MIN, INT8_MAX)
DI_IN_RANGE(di_in_range_i16, int16_t, INT16_MIN, INT16_MAX)

/* The same for every width-th value from x on: a column of a table. */
DI_VECTORISE static bool di_in_range_column(const int32_t *x, int64_t n, int width, int64_t low, int64_t high)
{
    const int32_t a = di_narrow(low), b = di_narrow(high);
    if (n > 0 && (low > a || high < b || low > high)) return false;
    int32_t out = 0;
    for (int64_t i = 0; i < n; i++) out |= (x[i * width] < a ? 1 : 0) | (x[i * width] > b ? 1 : 0);
    return out == 0;
}

/* NaN is in no range. */
DI_CLONES DI_VECTORISE static bool di_in_range_f32(const float *x, int64_t n, float low, float high)
{
    int32_t out = 0;
    for (int64_t i = 0; i < n; i++) out |= (x[i] >= low ? 0 : 1) | (x[i] <= high ? 0 : 1);
    return out == 0;
}

/* Least and greatest value, 0 if there is none. */
DI_VECTORISE static inline int64_t di_least(const int32_t *x, int64_t n)
{
    int32_t out = n > 0 ? x[0] : 0;
    for (int64_t i = 1; i < n; i++) out = x[i] < out ? x[i] : out;
    return out;
}
DI_VECTORISE static inline int64_t di_greatest(const int32_t *x, int64_t n)
{
    int32_t out = n > 0 ? x[0] : 0;
    for (int64_t i = 1; i < n; i++) out = x[i] > out ? x[i] : out;
    return out;
}

/* Whether every x is in [low, high]; the bounds may lie outside of 32 bits. */
DI_CLONES DI_VECTORISE static bool di_in_range(const int32_t *x, int64_t n, int64_t low, int64_t high)
{
    if (n > 0 && (low > INT32_MAX || high < INT32_MIN || low > high)) return false;
    /* One comparison: x - low is at most high - low as unsigned, and, moved by 2^31, as signed. */
    const uint32_t a = (uint32_t)di_max(low, INT32_MIN), b = (uint32_t)di_min(high, INT32_MAX);
    const uint32_t base = a + UINT32_C(0x80000000);
    const int32_t top = (int32_t)(b - base);
    int32_t out = 0;
    for (int64_t i = 0; i < n; i++) out |= -((int32_t)((uint32_t)x[i] - base) > top);
    return out == 0;
}

/* The same, but that x may also be the number ``other``. */
DI_CLONES DI_VECTORISE static bool di_in_range_or(const int32_t *x, int64_t n, int64_t other, int64_t low, int64_t high)
{
    if (other != (int32_t)other) return di_in_range(x, n, low, high);
    const int is_empty = low > INT32_MAX || high < INT32_MIN || low > high;
    const uint32_t a = (uint32_t)di_max(low, INT32_MIN), b = (uint32_t)di_min(high, INT32_MAX);
    const uint32_t base = a + UINT32_C(0x80000000);
    const int32_t top = (int32_t)(b - base), same = (int32_t)other, none = is_empty ? -1 : 0;
    int32_t out = 0;
    for (int64_t i = 0; i < n; i++)
        out |= (-((int32_t)((uint32_t)x[i] - base) > top) | none) & -(x[i] != same);
    return out == 0;
}

static inline int64_t di_whole(double x) { return x >= -9e18 && x <= 9e18 ? (int64_t)x : 0; }

static bool di_present(const di_view *v) { return (v->flags & DI_VIEW_PRESENT) != 0; }

/* Values can be read only in host memory. */
static bool di_readable(const di_view *v) { return di_present(v) && v->space != DI_SPACE_DEVICE; }

static int64_t di_size(const di_view *v)
{
    int64_t n = 1;
    for (int32_t d = 0; d < v->ndim; d++) n = di_mul(n, v->shape[d]);
    return n;
}

static bool di_has_ratio(const int32_t *list, int32_t n, int32_t r)
{
    for (int32_t k = 0; k < n && k < DI_MAX_RATIOS; k++) {
        if (list[k] == r) return true;
    }
    return false;
}

/* A set of integers in caller memory for uniqueness; capacity 0 means none was given and pairs are compared. */
typedef struct di_set {
    int64_t *slots; /* value, used */
    uint64_t mask;
} di_set;

static di_set di_set_open(const di_limits *l, int64_t n)
{
    di_set s = {NULL, 0};
    uint64_t capacity = 4;
    while (capacity < 2 * (uint64_t)n) capacity *= 2;
    if (l->scratch == NULL || l->scratch_bytes / 16 < capacity) return s;
    s.slots = l->scratch;
    s.mask = capacity - 1;
    memset(s.slots, 0, (size_t)(16 * capacity));
    return s;
}

/* Whether x was there; adds it if asked. */
static bool di_set_find(di_set s, int64_t x, bool add)
{
    uint64_t at = ((uint64_t)x * UINT64_C(0x9E3779B97F4A7C15)) >> 20;
    for (;; at++) {
        int64_t *slot = &s.slots[2 * (at & s.mask)];
        if (slot[1] == 0) {
            if (add) {
                slot[0] = x;
                slot[1] = 1;
            }
            return false;
        }
        if (slot[0] == x) return true;
    }
}

typedef struct di_site { /* what is being checked, for the message */
    int32_t contract, field, check;
    int32_t key; /* ratio or draft step, -1 none */
    const char *name, *text;
    uint64_t step_id;
} di_site;

/* Cold: else what follows hundreds of possible returns counts as rare, and is made small instead of fast. */
#if defined(__GNUC__)
#define DI_COLD __attribute__((cold, noinline))
#else
#define DI_COLD
#endif

/* Fills *error and returns DI_E_CONTRACT. index -1: no element. */
DI_COLD static int di_violation(di_error *error, di_site at, int64_t index, double value, bool whole, int64_t exact)
{
    if (error == NULL) return DI_E_CONTRACT;
    char where[48] = "", what[48] = "", step[40] = "";
    memset(error, 0, sizeof *error);
    error->code = DI_E_CONTRACT;
    error->contract = at.contract;
    error->field = at.field;
    error->check = at.check;
    error->index = index;
    error->value = whole ? exact : di_whole(value);
    error->step_id = at.step_id;
    if (at.key >= 0) snprintf(where, sizeof where, "[%d]", (int)at.key);
    if (index >= 0) snprintf(where + strlen(where), sizeof where - strlen(where), "[%lld]", (long long)index);
    if (whole) snprintf(what, sizeof what, "%lld", (long long)exact);
    else snprintf(what, sizeof what, "%g", value);
    if (at.step_id != 0) snprintf(step, sizeof step, " in step %llu", (unsigned long long)at.step_id);
    snprintf(error->message, sizeof error->message, "%s%s = %s%s violates '%s'", at.name, where, what, step, at.text);
    return DI_E_CONTRACT;
}

/* The usual array: present, contiguous, with data. */
static inline bool di_is_plain(const di_view *v, int32_t dtype, int32_t ndim)
{
    if (!(v->flags & DI_VIEW_PRESENT) || v->dtype != dtype || v->ndim != ndim || v->data == NULL) return false;
    if (v->shape[0] < 0 || v->shape[0] > INT32_MAX) return false;
    if (ndim == 1) return v->stride[0] == 1;
    const int64_t width = v->shape[1];
    return ndim == 2 && width >= 0 && width <= INT32_MAX && v->stride[1] == 1 && v->stride[0] == width;
}

/* 0 = in order; else what is wrong: 1 presence, 2 dtype, 3 dimensions, 4 strides. */
static int di_view_fault(const di_view *v, bool allowed, bool required, int32_t dtype, int32_t ndim, int64_t *value)
{
    *value = 0;
    if (!di_present(v)) {
        *value = 0;
        return required || v->data != NULL ? 1 : 0;
    }
    *value = 1;
    if (!allowed) return 1;
    *value = v->dtype;
    if (v->dtype != dtype) return 2;
    *value = v->ndim;
    if (v->ndim != ndim) return 3;
    bool empty = false;
    for (int32_t d = 0; d < ndim; d++) {
        *value = v->shape[d];
        if (v->shape[d] < 0 || v->shape[d] > INT32_MAX) return 3;
        empty = empty || v->shape[d] == 0;
    }
    int64_t step = 1;
    for (int32_t d = ndim - 1; d >= 0 && !empty; d--) {
        *value = v->stride[d];
        if (v->shape[d] > 1 && v->stride[d] != step) return 4;
        step = di_mul(step, v->shape[d]);
    }
    *value = 0;
    return v->data == NULL && di_size(v) != 0 ? 1 : 0;
}
"""
