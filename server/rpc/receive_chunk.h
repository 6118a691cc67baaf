// A chunk's bytes straight into the memory that they belong to.
#pragma once

#include <fmt/format.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/chunk_codec.h"

namespace sparsed::server {

/// `target` has Claim(array, offset, size), and perhaps Commit(): an upload, an update, a put, a
/// call.
template <typename Target>
absl::Status ReceiveChunk(const wire::ChunkView& chunk, int64_t max_chunk_bytes, Target& target) {
  if (chunk.size > static_cast<size_t>(max_chunk_bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("a chunk of array {} has {} bytes, at most {} are taken", chunk.array,
                    chunk.size, max_chunk_bytes));
  }
  const absl::StatusOr<std::byte*> destination =
      target.Claim(chunk.array, chunk.offset, chunk.size);
  if (!destination.ok()) return destination.status();
  wire::CopyTo(chunk, *destination);
  if constexpr (requires { target.Commit(); }) {
    return target.Commit();
  } else {
    return absl::OkStatus();
  }
}

}  // namespace sparsed::server
