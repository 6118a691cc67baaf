// A chunk's bytes straight into the memory that they belong to.
#pragma once

#include <fmt/format.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/shared_regions.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// For the record: bytes came, by the stream or in shared memory.
inline void CountChunk(const wire::ChunkView& chunk, StageRecord& record, bool carried = false) {
  record.received_bytes += chunk.bytes();
  if (carried) record.carried_bytes_in += chunk.size;
  (chunk.shared ? record.shared_bytes_in : record.stream_bytes_in) += chunk.bytes();
}

/// `target` has Claim(array, offset, size), which gives memory to write to, or
/// engine::ClaimedBytes: an upload, an update, a put, a call.
template <typename Target>
absl::Status ReceiveChunk(const wire::ChunkView& chunk, int64_t max_chunk_bytes,
                          const SharedRegions& regions, Target& target) {
  if (chunk.shared && chunk.size > 0) {
    return absl::InvalidArgumentError(
        fmt::format("a chunk of array {} has both data and shared memory", chunk.array));
  }
  if (chunk.bytes() > static_cast<uint64_t>(max_chunk_bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("a chunk of array {} has {} bytes, at most {} are taken", chunk.array,
                    chunk.bytes(), max_chunk_bytes));
  }
  Buffer shared;
  if (chunk.shared && chunk.bytes() > 0) {
    absl::StatusOr<SharedRegion> found =
        regions.Find(chunk.shared->region(), chunk.shared->offset());
    if (!found.ok()) return found.status();
    if (found->device.kind != DeviceKind::kCpu) {
      return absl::InvalidArgumentError(fmt::format(
          "a chunk of array {} is in memory of a GPU; chunks are taken from host memory",
          chunk.array));
    }
    shared = std::move(found->memory);
    if (chunk.bytes() > shared.size()) {
      return absl::InvalidArgumentError(fmt::format(
          "a chunk of array {} has {} bytes of shared memory, {} are left there from its offset on",
          chunk.array, chunk.bytes(), shared.size()));
    }
  }
  const auto copy_to = [&](std::byte* destination) {
    if (!chunk.shared) return wire::CopyTo(chunk, destination);
    if (chunk.bytes() > 0) std::memcpy(destination, shared.data(), chunk.bytes());
  };
  auto claimed = target.Claim(chunk.array, chunk.offset, chunk.bytes());
  if (!claimed.ok()) return claimed.status();
  if constexpr (requires { claimed->Commit(); }) {
    copy_to(claimed->data());
    return claimed->Commit();
  } else {
    copy_to(*claimed);
    return absl::OkStatus();
  }
}

}  // namespace sparsed::server
