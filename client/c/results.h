// How products were done.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/c.h"
#include "sparsed/types.h"

namespace sparsed::c {

/// `to` may be null: not wanted.
void Set(const ComputeResult& result, sparsed_result* to);
void Set(const SpgemmResult& result, sparsed_result* to);

/// Sets `to`, unless it is an error.
template <typename T>
absl::Status Deliver(const absl::StatusOr<T>& result, sparsed_result* to) {
  if (result.ok()) Set(*result, to);
  return result.status();
}

}  // namespace sparsed::c
