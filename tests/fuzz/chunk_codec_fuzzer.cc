// Any bytes, cut anywhere, must read as protobuf reads them, or be refused by both.
#include <google/protobuf/stubs/logging.h>

#include <string>
#include <vector>

#include "proto/wire/chunk_codec.h"
#include "sparsed/v1/compute.pb.h"
#include "tests/fuzz/check.h"

namespace sparsed::wire {
namespace {

using fuzz::Check;

void CompareWithProtobuf(const uint8_t* data, size_t size, size_t cut) {
  const std::vector<grpc::Slice> slices = {grpc::Slice(data, cut),
                                           grpc::Slice(data + cut, size - cut)};
  const auto frame = Decode<v1::SpmmRequest>(grpc::ByteBuffer(slices.data(), slices.size()));
  v1::SpmmRequest expected;
  Check(frame.ok() == expected.ParseFromArray(data, static_cast<int>(size)));
  if (!frame.ok()) return;
  if (const auto* chunk = std::get_if<ChunkView>(&*frame)) {
    std::string bytes(chunk->size, '\0');
    CopyTo(*chunk, reinterpret_cast<std::byte*>(bytes.data()));
    Check(expected.has_chunk() && expected.chunk().request_id() == chunk->request_id &&
          expected.chunk().array() == chunk->array && expected.chunk().offset() == chunk->offset &&
          expected.chunk().data() == bytes);
  } else {
    Check(std::get<v1::SpmmRequest>(*frame).SerializeAsString() == expected.SerializeAsString());
  }
}

}  // namespace
}  // namespace sparsed::wire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer silence;
  if (size == 0) return 0;
  sparsed::wire::CompareWithProtobuf(data + 1, size - 1, data[0] % size);
  return 0;
}
