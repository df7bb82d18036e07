/* Rules of a configuration (spec/engine.md 2.1) and what follows from it. */
#ifndef DI_CONFIG_H
#define DI_CONFIG_H

#include "di_core.h"

/* The dimensions that contract checks refer to. */
void di_config_limits(const di_config *k, const di_derived *d, di_limits *out);

#endif
