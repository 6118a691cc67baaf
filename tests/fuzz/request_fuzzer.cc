// Any message of a stream must become a typed request, or be refused in a sentence.
#include <google/protobuf/stubs/logging.h>

#include <iterator>

#include "server/rpc/compute_message.h"
#include "server/rpc/convert.h"
#include "server/rpc/shared_regions.h"
#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/catalog.pb.h"
#include "tests/fuzz/check.h"

namespace sparsed::server {
namespace {

using fuzz::Check;
using fuzz::CheckSentence;

/// One of 4096 bytes, which messages may name.
SharedRegions& Regions() {
  static SharedRegions* const regions = [] {
    auto* const made = new SharedRegions();
    auto memory = HeapMemory().Allocate(4096);
    Check(memory.ok());
    made->Add(std::string(16, 'r'), {*std::move(memory), {}});
    return made;
  }();
  return *regions;
}

void DecodeCompute(Op op, const grpc::ByteBuffer& bytes) {
  const auto message = DecodeComputeMessage(op, "tenant", Regions(), bytes);
  CheckSentence(message.status());
  if (!message.ok()) return;
  if (const auto* start = std::get_if<ComputeStart>(&*message)) CheckSentence(start->spec.status());
}

/// `convert` takes the header of a Request.
template <typename Request, typename Convert>
void DecodeHeader(const grpc::ByteBuffer& bytes, const Convert& convert) {
  const auto frame = wire::Decode<Request>(bytes);
  CheckSentence(frame.status());
  if (!frame.ok()) return;
  const auto* request = std::get_if<Request>(&*frame);
  if (request != nullptr && request->has_header()) {
    CheckSentence(convert("tenant", request->header()).status());
  }
}

void DecodePrepare(std::string_view bytes) {
  v1::PrepareRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16}) {
    CheckSentence(ToSignatures(type, request.expected()).status());
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
  constexpr server::Op kOps[] = {server::Op::kSpmm, server::Op::kSddmm, server::Op::kSpgemm,
                                 server::Op::kChain};
  switch (const size_t what = data[0] % 8; what) {
    case 4:
      server::DecodeHeader<v1::UploadRequest>(bytes, server::ToUploadHeader);
      break;
    case 5:
      server::DecodeHeader<v1::UpdateValuesRequest>(bytes, server::ToUpdateHeader);
      break;
    case 6:
      server::DecodeHeader<v1::PutBufferRequest>(bytes, server::ToPutHeader);
      break;
    case 7:
      server::DecodePrepare({reinterpret_cast<const char*>(data) + 1, size - 1});
      break;
    default:
      server::DecodeCompute(kOps[what], bytes);
  }
  return 0;
}
