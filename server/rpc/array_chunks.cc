#include "server/rpc/array_chunks.h"

#include <algorithm>

#include "proto/wire/chunk_codec.h"

namespace sparsed::server {

grpc::ByteBuffer ArrayChunks::Next(size_t* bytes) {
  *bytes = std::min(array_.bytes() - sent_, kReplyChunkBytes);
  grpc::ByteBuffer chunk =
      wire::EncodeChunk(request_id_, index_, offset_ + sent_,
                        wire::Borrow(array_.buffer.data() + sent_, *bytes, array_.buffer));
  sent_ += *bytes;
  return chunk;
}

}  // namespace sparsed::server
