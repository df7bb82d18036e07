/* Units of the core that have no Python face: handles, the keyed hash, pages. */
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "di_core.h"
#include "di_handle.h"
#include "di_pages.h"
#include "di_siphash.h"

/* The generated table is large and not used here. */
const di_contract_info *di_contracts(int *n)
{
    *n = 0;
    return NULL;
}

static void require(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "FAILED: %s: %s %s\n", what, di_last_field(), di_last_error()->message);
    exit(1);
}

static void handles_given_back_are_stale(void)
{
    static di_handles h;
    int values[200];
    uint64_t handle[200], again = 0;
    void *value = NULL;
    require(di_handle_find(&h, DI_HANDLE_PIN, 0, &value) == DI_E_STALE_HANDLE, "0 is no handle");
    for (int i = 0; i < 200; i++) {
        require(di_handle_take(&h, i % 2 ? DI_HANDLE_PIN : DI_HANDLE_RESERVATION, &values[i], &handle[i]) == 0, "take");
        require(handle[i] == (1ULL << 32 | (uint32_t)(i + 1)), "handle = generation << 32 | index");
    }
    for (int i = 0; i < 200; i++) {
        uint32_t kind = i % 2 ? DI_HANDLE_PIN : DI_HANDLE_RESERVATION, other = i % 2 ? DI_HANDLE_RESERVATION : DI_HANDLE_PIN;
        require(di_handle_find(&h, kind, handle[i], &value) == 0 && value == &values[i], "find");
        require(di_handle_give(&h, other, handle[i], NULL) == DI_E_ARG && h.live == 200, "another kind is refused");
    }
    require(di_handle_give(&h, DI_HANDLE_PIN, handle[7], &value) == 0 && value == &values[7], "give");
    require(di_handle_give(&h, DI_HANDLE_PIN, handle[7], NULL) == DI_E_STALE_HANDLE && h.live == 199, "give twice");
    require(di_handle_take(&h, DI_HANDLE_PIN, &values[0], &again) == 0 && again == (2ULL << 32 | 8), "slot is reused");
    require(di_handle_find(&h, DI_HANDLE_PIN, handle[7], &value) == DI_E_STALE_HANDLE, "the old one stays stale");
    uint32_t at = 0;
    int n = 0;
    while (di_handle_next(&h, DI_HANDLE_PIN, &at)) n++;
    require(n == 100, "iteration sees one kind");
    require(di_handle_check(&h) == 0, "check");
    h.slots[8].generation = UINT32_MAX;
    require(di_handle_give(&h, DI_HANDLE_PIN, (uint64_t)UINT32_MAX << 32 | 8, NULL) == 0, "last generation");
    require(di_handle_take(&h, DI_HANDLE_PIN, &values[0], &again) == 0 && (uint32_t)again == 201, "slot is retired");
    require(di_handle_check(&h) == 0, "check with a retired slot");
    di_handle_free(&h);
}

static uint64_t little(const unsigned char *bytes, unsigned n)
{
    uint64_t x = 0;
    for (unsigned i = 0; i < n; i++) x |= (uint64_t)bytes[i] << 8 * i;
    return x;
}

/* The vectors that the authors of SipHash publish for key 00 01 .. 0f and input 00 01 .. n - 1. */
static void hash_has_the_published_values(void)
{
    static const struct { unsigned n; unsigned char out[16]; } vectors[] = {
        {0, {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}},
        {1, {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}},
        {4, {0xf8, 0x81, 0x64, 0xc1, 0x2d, 0x9c, 0x8f, 0xaf, 0x7d, 0x0f, 0x6e, 0x7c, 0x7b, 0xcd, 0x55, 0x79}},
        {7, {0xa1, 0xf1, 0xeb, 0xbe, 0xd8, 0xdb, 0xc1, 0x53, 0xc0, 0xb8, 0x4a, 0xa6, 0x1f, 0xf0, 0x82, 0x39}},
        {8, {0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4}},
        {15, {0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3, 0xd9}},
        {16, {0x6e, 0xe2, 0xa4, 0xca, 0x67, 0xb0, 0x54, 0xbb, 0xfd, 0x33, 0x15, 0xbf, 0x85, 0x23, 0x05, 0x77}},
        {63, {0x51, 0x50, 0xd1, 0x77, 0x2f, 0x50, 0x83, 0x4a, 0x50, 0x3e, 0x06, 0x9a, 0x97, 0x3f, 0xbd, 0x7c}},
    };
    unsigned char input[64];
    for (unsigned i = 0; i < sizeof input; i++) input[i] = (unsigned char)i;
    const uint64_t key[2] = {little(input, 8), little(input + 8, 8)};
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        unsigned n = vectors[v].n, whole = n / 8 * 8;
        di_siphash h;
        uint64_t out[2];
        di_siphash_start(&h, key);
        for (unsigned at = 0; at < whole; at += 8) di_siphash_word(&h, little(input + at, 8));
        di_siphash_end(&h, little(input + whole, n - whole), n - whole, out);
        require(out[0] == little(vectors[v].out, 8) && out[1] == little(vectors[v].out + 8, 8), "SipHash-2-4-128");
    }
}

/* Pieces are zero, aligned, apart from each other, and as many as the memory holds: of no bytes, of a few, of more than
 * the largest chunk. */
static void pieces_of_pages_are_zeroed_and_apart(void)
{
    static const size_t sizes[] = {0, 1, 64, 65, 5000, 70000, 1 << 20, (9 << 20) + 3, 100, 3 << 20};
    enum { ROUNDS = 12, KINDS = sizeof sizes / sizeof *sizes, PIECES = ROUNDS * KINDS };
    static unsigned char *piece[PIECES];
    di_pages p = {0};
    for (int i = 0; i < PIECES; i++) {
        size_t size = sizes[i % KINDS];
        piece[i] = di_pages_take(&p, size);
        require(piece[i] != NULL && (uintptr_t)piece[i] % 64 == 0, "a piece is aligned");
        for (size_t x = 0; x < size; x++) require(piece[i][x] == 0, "a piece is zeroed");
        memset(piece[i], i + 1, size);
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t x = 0; x < sizes[i % KINDS]; x++)
            require(piece[i][x] == (unsigned char)(i + 1), "a piece is nobody else's");
    require(di_pages_take(&p, SIZE_MAX) == NULL && di_pages_take(&p, SIZE_MAX - 100) == NULL, "too large");
    di_pages_free(&p);
    require(p.chunks == NULL && di_pages_take(&p, 10) != NULL, "free and take again");
    di_pages_free(&p);
}

int main(void)
{
    pieces_of_pages_are_zeroed_and_apart();
    hash_has_the_published_values();
    handles_given_back_are_stale();
    printf("ok\n");
    return 0;
}
