// The chunk codec: streamed envelopes to and from gRPC's byte buffers, without copying bulk bytes.
//
// A streamed envelope is `oneof part { ...control messages...; Chunk chunk = 15; }`. Chunks of the
// usual encoding (what `EncodeChunk` and every protobuf library write) are taken apart by hand and
// their data handed on as reference-counted slices. Everything else goes through protobuf, so that
// any legal encoding reads as protobuf would read it.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed::wire {

/// Largest control message, in bytes; more than that outside a chunk is INVALID_ARGUMENT.
inline constexpr size_t kMaxControlBytes = size_t{1} << 20;
/// Largest request that is a message of its own. Parsed, it may take twenty times as much.
inline constexpr size_t kMaxRequestBytes = size_t{64} << 10;

/// A `Chunk` whose data are still the slices that the transport brought.
struct ChunkView {
  uint64_t request_id = 0;
  uint32_t array = 0;
  uint64_t offset = 0;  ///< in bytes, unchecked
  std::vector<grpc::Slice> data;
  size_t size = 0;  ///< bytes in `data` altogether
  /// Where its bytes are if they are not in `data`; unchecked.
  std::optional<v1::SharedMemory> shared;
  uint64_t shared_bytes = 0;

  /// Bytes that it brings.
  uint64_t bytes() const { return shared ? shared_bytes : size; }
};

/// Either a chunk, or an envelope with a control part (or none: PART_NOT_SET).
template <typename Envelope>
using Frame = std::variant<Envelope, ChunkView>;

/// A slice over the caller's bytes. `keepalive` (a shared_ptr, a Buffer, ...) is destroyed when the
/// transport no longer needs them, on a thread of the transport.
template <typename Keepalive>
grpc::Slice Borrow(const void* data, size_t size, Keepalive keepalive) {
  return grpc::Slice(
      const_cast<void*>(data), size, [](void* held) { delete static_cast<Keepalive*>(held); },
      new Keepalive(std::move(keepalive)));
}

/// The bytes of an envelope with this chunk; `data` is referenced, not copied.
grpc::ByteBuffer EncodeChunk(uint64_t request_id, uint32_t array, uint64_t offset,
                             grpc::Slice data);

/// Likewise of one whose bytes lie in shared memory.
grpc::ByteBuffer EncodeSharedChunk(uint64_t request_id, uint32_t array, uint64_t offset,
                                   v1::SharedMemory place, size_t size);

/// Copies the bytes of the chunk's `data` to `destination`.
void CopyTo(const ChunkView& chunk, std::byte* destination);

/// Serializes any message.
grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message);

/// Parses a message that stands alone (a unary request or reply). INVALID_ARGUMENT if malformed.
absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message);
/// Likewise the one request of a call; INVALID_ARGUMENT also if it is larger than kMaxRequestBytes.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message);

namespace internal {

/// The chunk if `bytes` is one in the usual encoding.
std::optional<ChunkView> ReadUsualChunk(const grpc::ByteBuffer& bytes);
/// Parses an envelope by protobuf after bounding what stands outside its chunk.
absl::Status ParseEnvelope(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& envelope);
/// Takes the data out of `chunk`.
ChunkView TakeChunk(v1::Chunk& chunk);

}  // namespace internal

/// Reads one streamed envelope. INVALID_ARGUMENT if it is malformed or a control message is larger
/// than kMaxControlBytes.
template <typename Envelope>
absl::StatusOr<Frame<Envelope>> Decode(const grpc::ByteBuffer& bytes) {
  static_assert(Envelope::kChunkFieldNumber == 15);
  if (std::optional<ChunkView> chunk = internal::ReadUsualChunk(bytes)) {
    return Frame<Envelope>(*std::move(chunk));
  }
  Envelope envelope;
  if (absl::Status status = internal::ParseEnvelope(bytes, envelope); !status.ok()) return status;
  if (envelope.has_chunk()) return Frame<Envelope>(internal::TakeChunk(*envelope.mutable_chunk()));
  return Frame<Envelope>(std::move(envelope));
}

}  // namespace sparsed::wire
