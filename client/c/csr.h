// Sparse matrices in the caller's memory.
#pragma once

#include <vector>

#include "client/c/arguments.h"
#include "sparsed/c.h"
#include "sparsed/types.h"

namespace sparsed::c {

/// `ones`: it has no values.
CsrView ToView(const sparsed_csr_view* csr, Arguments& in, bool& ones);
/// `count` values of the type.
ConstValues ToValues(const void* values, int64_t count, ValueType type);
/// Nothing of it is copied.
const void* DataOf(const ConstValues& values);

}  // namespace sparsed::c
