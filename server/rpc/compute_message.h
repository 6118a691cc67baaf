// Messages of the compute streams, parsed: the same three kinds for every operation.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/execution/call.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/shared_regions.h"
#include "server/telemetry/call_origin.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

using ComputeSpec =
    std::variant<engine::SpmmSpec, engine::SddmmSpec, engine::SpgemmSpec, engine::ChainSpec>;

struct ComputeStart {
  uint64_t request_id = 0;
  std::string subject;               ///< S's name; of a chain, the first that it names
  absl::StatusOr<ComputeSpec> spec;  ///< or what is wrong with this request
  std::vector<std::string> carriers;
  std::optional<TraceContext> trace = {};  ///< if it is in one by itself
};
struct ComputeCancel {
  uint64_t request_id = 0;
};
using ComputeMessage = std::variant<ComputeStart, ComputeCancel, wire::ChunkView>;

/// A message of the stream of `op` (kSpmm, kSddmm, kSpgemm, kChain), with the shared memory that it
/// names. INVALID_ARGUMENT if it is malformed, which ends the stream.
absl::StatusOr<ComputeMessage> DecodeComputeMessage(Op op, const std::string& tenant,
                                                    const SharedRegions& regions,
                                                    const grpc::ByteBuffer& bytes);

}  // namespace sparsed::server
