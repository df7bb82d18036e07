/* The range tests of the generated validators against loops without any trick. Compiled twice, with the versions that the
 * loader chooses from and with -DDI_NO_CLONES: both print the same sum of what they found. */
#include "di_checks.c"

#include <stdlib.h>

enum { MOST = 150 };

static uint64_t state = 20251129, found, tests;

static uint32_t draw(void)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(state >> 32);
}

/* Numbers near each other and near the ends of the type, so that bounds are met, missed and passed by one. */
static int64_t near_bound(void)
{
    static const int64_t middle[] = {0, 7, -1, INT32_MIN, INT32_MAX, 998244353, INT64_C(1) << 40, -(INT64_C(1) << 40)};
    return middle[draw() % 8] + (int64_t)(draw() % 7) - 3;
}

static void require(bool ok, const char *what, int64_t n, int64_t low, int64_t high)
{
    if (ok) return;
    fprintf(stderr, "%s differs: n %lld, low %lld, high %lld\n", what, (long long)n, (long long)low, (long long)high);
    exit(1);
}

static void note(bool is_in) { found = (found * 31 + (is_in ? 1 : 2)) % UINT64_C(1000000007), tests++; }

static void integers(void)
{
    int32_t x[MOST + 8];
    int64_t low = near_bound(), high = draw() % 4 ? low + (int64_t)(draw() % 5) : near_bound(), other = near_bound();
    int64_t n = draw() % MOST, at = draw() % 8;
    for (int64_t i = 0; i < MOST + 8; i++) x[i] = (int32_t)(draw() % 3 ? low + (int64_t)(draw() % 3) : other);
    if (n > 0 && draw() % 2)
        for (int64_t i = 0; i < n; i++) x[at + i] = (int32_t)di_max(INT32_MIN, di_min(INT32_MAX, low));
    if (n > 0 && draw() % 3 == 0) x[at + draw() % n] = (int32_t)near_bound();
    bool in = true, in_or = true;
    for (int64_t i = at; i < at + n; i++) {
        bool is_in = x[i] >= low && x[i] <= high;
        in &= is_in;
        in_or &= is_in || x[i] == other;
    }
    require(di_in_range(x + at, n, low, high) == in, "di_in_range", n, low, high);
    require(di_in_range_or(x + at, n, other, low, high) == in_or, "di_in_range_or", n, low, high);
    note(in);
    note(in_or);
}

static void floats(void)
{
    static const float values[] = {0, -0.0f, 1, -1, 0.5f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-42f};
    float x[MOST + 8], low = values[draw() % 11], high = values[draw() % 11];
    int64_t n = draw() % MOST, at = draw() % 8;
    for (int64_t i = 0; i < MOST + 8; i++) x[i] = draw() % 5 ? high : values[draw() % 11];
    bool in = true;
    for (int64_t i = at; i < at + n; i++) in &= x[i] >= low && x[i] <= high;
    require(di_in_range_f32(x + at, n, low, high) == in, "di_in_range_f32", n, (int64_t)(low > high), 0);
    note(in);
}

int main(void)
{
    for (int i = 0; i < 40000; i++) integers();
    for (int i = 0; i < 20000; i++) floats();
    printf("%llu tests, %llu\n", (unsigned long long)tests, (unsigned long long)found);
    return 0;
}
