// An array on its way out, cut into chunks that share its bytes.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "kernels/array.h"

namespace sparsed::server {

/// Bytes of a chunk that we send: large enough for the transport, small enough for streams to take
/// turns, and below what gRPC clients receive without being told to (4 MiB).
inline constexpr size_t kReplyChunkBytes = size_t{1} << 20;

class ArrayChunks {
 public:
  /// `offset`: where the array begins in the whole array `index` of the reply, in bytes.
  ArrayChunks(uint64_t request_id, uint32_t index, uint64_t offset, Array array)
      : request_id_(request_id), index_(index), offset_(offset), array_(std::move(array)) {}

  bool done() const { return sent_ == array_.bytes(); }
  /// The next chunk; `*bytes` receives the size of its data. Its slices keep the array alive.
  grpc::ByteBuffer Next(size_t* bytes);

 private:
  uint64_t request_id_;
  uint32_t index_;
  uint64_t offset_;
  Array array_;
  size_t sent_ = 0;
};

}  // namespace sparsed::server
