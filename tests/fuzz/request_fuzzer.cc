// Any message of a stream must become a typed request, or be refused in a sentence.
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdlib>

#include "server/rpc/compute_message.h"
#include "server/rpc/convert.h"
#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed::server {
namespace {

void Check(const absl::Status& status) {
  if (!status.ok() && status.message().empty()) std::abort();
}

void DecodeCompute(Op op, const grpc::ByteBuffer& bytes) {
  const auto message = DecodeComputeMessage(op, "tenant", bytes);
  Check(message.status());
  if (!message.ok()) return;
  if (const auto* start = std::get_if<ComputeStart>(&*message)) Check(start->spec.status());
}

/// `convert` takes the header of a Request.
template <typename Request, typename Convert>
void DecodeHeader(const grpc::ByteBuffer& bytes, const Convert& convert) {
  const auto frame = wire::Decode<Request>(bytes);
  Check(frame.status());
  if (!frame.ok()) return;
  const auto* request = std::get_if<Request>(&*frame);
  if (request != nullptr && request->has_header()) {
    Check(convert("tenant", request->header()).status());
  }
}

}  // namespace
}  // namespace sparsed::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed;  // NOLINT(google-build-using-namespace)
  static const google::protobuf::LogSilencer silence;
  if (size == 0) return 0;
  const grpc::Slice slice(data + 1, size - 1);
  const grpc::ByteBuffer bytes(&slice, 1);
  switch (data[0] % 6) {
    case 0:
      server::DecodeCompute(server::Op::kSpmm, bytes);
      break;
    case 1:
      server::DecodeCompute(server::Op::kSddmm, bytes);
      break;
    case 2:
      server::DecodeCompute(server::Op::kSpgemm, bytes);
      break;
    case 3:
      server::DecodeHeader<v1::UploadRequest>(bytes, server::ToUploadHeader);
      break;
    case 4:
      server::DecodeHeader<v1::UpdateValuesRequest>(bytes, server::ToUpdateHeader);
      break;
    default:
      server::DecodeHeader<v1::PutBufferRequest>(bytes, server::ToPutHeader);
  }
  return 0;
}
