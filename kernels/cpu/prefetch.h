// When software should fetch rows of a dense operand ahead of their use.
#pragma once

#include <cstdint>

#include "kernels/formats/csr.h"

namespace sparsed::cpu {

/// True if the operand, whose rows of `row_bytes` are gathered by S's columns, exceeds the private
/// caches and the columns jump further than the processor's own prefetchers follow. Looks at a
/// sample of the columns.
bool ShouldPrefetch(const CsrView& s, int64_t row_bytes);

}  // namespace sparsed::cpu
