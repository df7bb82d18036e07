/* Public C interface of the scheduler core (spec/engine.md appendix B).
 *
 * The declarations are in di_core_decl.h, which holds no preprocessor line so that cffi reads the same text that the
 * compiler does. Records and enums come from the generated di_contracts.h.
 */
#ifndef DI_CORE_H
#define DI_CORE_H

#include <stdint.h>

#include "di_contracts.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "di_core_decl.h"

#ifdef __cplusplus
}
#endif

#endif
