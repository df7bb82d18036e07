/* Units of the core that have no Python face: handles. */
#include <stdio.h>
#include <stdlib.h>

#include "di_core.h"
#include "di_handle.h"

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

int main(void)
{
    handles_given_back_are_stale();
    printf("ok\n");
    return 0;
}
