#include "di_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = 64 };
static _Thread_local di_error last_error;
static _Thread_local char last_contract[NAME_SIZE], last_field[NAME_SIZE];

const di_error *di_last_error(void) { return &last_error; }
const char *di_last_contract(void) { return last_contract; }
const char *di_last_field(void) { return last_field; }

static void put(char *to, size_t size, const char *text)
{
    size_t n = strlen(text);
    if (n >= size) n = size - 1;
    memcpy(to, text, n);
    to[n] = 0;
}

int di_fail(int code, const char *contract, const char *field, const char *format, ...)
{
    va_list args;
    memset(&last_error, 0, sizeof last_error);
    last_error.code = code;
    last_error.contract = last_error.field = last_error.check = -1;
    put(last_contract, sizeof last_contract, contract);
    put(last_field, sizeof last_field, field);
    va_start(args, format);
    if (vsnprintf(last_error.message, sizeof last_error.message, format, args) < 0) last_error.message[0] = 0;
    va_end(args);
    return code;
}

int di_fail_with(int code, const di_error *error)
{
    int n = 0;
    const di_contract_info *table = di_contracts(&n);
    last_error = *error;
    last_error.code = code;
    last_contract[0] = last_field[0] = 0;
    if (error->contract >= 0 && error->contract < n) {
        const di_contract_info *record = &table[error->contract];
        put(last_contract, sizeof last_contract, record->name);
        if (error->field >= 0 && (uint32_t)error->field < record->field_count)
            put(last_field, sizeof last_field, record->fields[error->field]);
        char *type = strchr(last_field, ':');     /* the table says name:type */
        if (type) *type = 0;
    }
    return code;
}

void di_error_copy(di_error *out)
{
    if (out) *out = last_error;
}
