// Details of a status that sends a client elsewhere.
#pragma once

#include "absl/status/status.h"

namespace sparsed::wire {

/// sparsed.v1.Redirect: the nodes that have the matrix.
inline constexpr char kRedirectUrl[] = "type.googleapis.com/sparsed.v1.Redirect";
/// sparsed.v1.MatrixInfo: the matrix is in shards, of which the client asks each.
inline constexpr char kInShardsUrl[] = "type.googleapis.com/sparsed.v1.MatrixInfo";

/// Whether the status says no more than whom to ask instead.
inline bool IsElsewhere(const absl::Status& status) {
  return status.GetPayload(kRedirectUrl).has_value() || status.GetPayload(kInShardsUrl).has_value();
}

}  // namespace sparsed::wire
