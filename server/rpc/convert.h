// Messages to the engine's types and back.
#pragma once

#include <grpcpp/support/status.h>

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/catalog/busy_trials.h"
#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/call.h"
#include "engine/execution/executor.h"
#include "engine/planning/model_store.h"
#include "server/telemetry/slow_requests.h"
#include "server/telemetry/stage_record.h"
#include "sparsed/v1/admin.pb.h"
#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/catalog.pb.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed::server {

/// Same codes; the sentence as clients may have it (sentence.h). A RetryDelay becomes a
/// google.rpc.RetryInfo among the details; kRedirectUrl and kInShardsUrl go along.
grpc::Status ToGrpc(const absl::Status& status);
void ToProto(const absl::Status& status, v1::Status& message);
void ToProto(const StageRecord& record, v1::Timings& message);
v1::SlowRequest ToSlowRequest(const EndedRequest& request);

/// `what` is the field's name, for the sentence.
absl::StatusOr<ElementType> ToElementType(std::string_view what, v1::ElementType type);
void ToProto(const engine::BusyTrials& trials, v1::BusyTrials& message);
v1::ElementType ToProto(ElementType type);

absl::StatusOr<engine::DenseShape> ToShape(std::string_view what, const v1::DenseShape& shape);
void ToProto(const engine::DenseShape& shape, v1::DenseShape& message);

/// What a client expects of a matrix whose values have that type.
absl::StatusOr<std::vector<ProblemSignature>> ToSignatures(
    ElementType type, const google::protobuf::RepeatedPtrField<v1::ProblemClass>& expected);
absl::StatusOr<engine::UploadHeader> ToUploadHeader(std::string tenant,
                                                    const v1::UploadHeader& header);
absl::StatusOr<engine::UpdateHeader> ToUpdateHeader(std::string tenant,
                                                    const v1::UpdateValuesHeader& header);
absl::StatusOr<engine::PutHeader> ToPutHeader(std::string tenant,
                                              const v1::PutBufferHeader& header);

/// As `tenant` calls it. How its plans are used is told to its owner alone, and only where no other
/// tenant's requests are among them: the pattern was never another's, too.
v1::MatrixInfo ToMatrixInfo(const engine::Matrix& matrix, std::string_view tenant,
                            const engine::Executor& executor);
/// Adds nothing if the pattern has none yet.
void AddFeatures(const engine::Matrix& matrix, v1::MatrixInfo& info);
/// With some of its measurements.
v1::PatternMeasurements ToPatternMeasurements(const engine::PatternMeasurements& of,
                                              std::span<const engine::Measurement> measurements,
                                              bool density_map, const engine::Executor& executor);
v1::Distribution ToProto(engine::Distribution distribution);
v1::MatrixState ToProto(engine::PreparationState state);
/// `now` by the catalog's clock.
v1::BufferInfo ToBufferInfo(const engine::HeldDense& held, engine::DenseClock::time_point now);
/// Without its manifest.
v1::ModelInfo ToModelInfo(const engine::ModelFacts& model);
void AddArrayHeader(std::string_view name, ElementType type, int64_t length,
                    google::protobuf::RepeatedPtrField<v1::ArrayHeader>& headers);

}  // namespace sparsed::server
