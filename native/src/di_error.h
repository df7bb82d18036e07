/* Status codes become texts here: one thread-local di_error, filled by the call that fails. */
#ifndef DI_ERROR_H
#define DI_ERROR_H

#include "di_core.h"

#if defined(__GNUC__)
#define DI_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define DI_PRINTF(a, b)
#endif

/* Record a failure and return its code. contract and field may be "". The text is cut at the buffer's end. */
int di_fail(int code, const char *contract, const char *field, const char *format, ...) DI_PRINTF(4, 5);
/* Take over an error that a validator filled; returns code. */
int di_fail_with(int code, const di_error *error);
/* Copy the thread's error to a caller's, if it wants one. */
void di_error_copy(di_error *out);

#endif
