// Results that come in blocks of rows, put together.
#pragma once

#include "absl/status/status.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

/// Adds a block to those before it; `matrix` begins with a single row offset, and its size is set
/// at the end. RESOURCE_EXHAUSTED.
absl::Status Append(const RowBlock& block, CsrMatrix& matrix);

}  // namespace client
}  // namespace sparsed
