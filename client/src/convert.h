// Between the wire's messages and the library's types.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/wire/chunk_codec.h"
#include "sparsed/types.h"
#include "sparsed/v1/admin.pb.h"
#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/catalog.pb.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed {
inline namespace client {

constexpr size_t SizeOf(ValueType type) {
  switch (type) {
    case ValueType::kF32:
      return 4;
    case ValueType::kF64:
    case ValueType::kI64:
      return 8;
    case ValueType::kF16:
    case ValueType::kBF16:
      break;
  }
  return 2;
}
v1::ElementType ToProto(ValueType type);
/// Anything that is not a type of values is f32.
ValueType FromProto(v1::ElementType type);
v1::ProblemClass ToProto(const ProblemSignature& signature);

/// Details become payloads, by their type URL.
absl::Status FromProto(const v1::Status& proto);
/// Where a status has RequestId().
inline constexpr char kRequestIdPayload[] = "sparsed.request_id";
/// A failure with the id, if there is one.
absl::Status WithRequestId(absl::Status status, std::string_view id);
/// Nanoseconds since the epoch.
std::chrono::system_clock::time_point FromUnixNs(int64_t ns);
Timings FromProto(const v1::Timings& timings);
Measurement FromProto(const v1::Measurement& measurement);
BusyTrials FromProto(const v1::BusyTrials& trials);
PatternMeasurements FromProto(const v1::PatternMeasurements& pattern);
MatrixInfo FromProto(const v1::MatrixInfo& info);
MatrixFeatures FromProto(const v1::Features& features);
Progress FromProto(const v1::WatchReply& reply);
Distribution FromProto(v1::Distribution distribution);
DenseInfo FromProto(const v1::BufferInfo& info);
DeviceInfo FromProto(const v1::DeviceInfo& device);
ServerInfo FromProto(const v1::ServerInfo& info);
Stats FromProto(const v1::Stats& stats);
SlowRequest FromProto(const v1::SlowRequest& proto);
QuotaInfo FromProto(const v1::QuotaInfo& proto);
TenantInfo FromProto(const v1::TenantInfo& info);
std::vector<MatrixShare> FromProto(
    const google::protobuf::RepeatedPtrField<v1::MatrixShare>& shares);

/// Which request a reply belongs to; none for kinds of replies that are not known yet.
std::optional<uint64_t> RequestIdOf(const wire::Frame<v1::ComputeReply>& frame);

}  // namespace client
}  // namespace sparsed
