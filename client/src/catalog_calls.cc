#include "client/src/catalog_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "client/src/sharded.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed {
inline namespace client {
namespace {

class WatchCall final : public Exchange {
 public:
  WatchCall(Connection& connection, const CallOptions& options, const std::string& name,
            bool follow, ProgressCallback progress, std::shared_ptr<CallState<void>> state)
      : Exchange(connection, "/sparsed.v1.Catalog/Watch", options, Repeat::kSafe),
        progress_(std::move(progress)),
        state_(std::move(state)) {
    request_.set_name(name);
    request_.set_follow(follow);
  }

 private:
  void Open(Stream& stream) override {
    settled_ = false;
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) override {
    v1::WatchReply reply;
    if (absl::Status status = ParseReply(bytes, reply); !status.ok()) return status;
    MadeProgress();
    const Progress progress = FromProto(reply);
    settled_ = progress.state == MatrixState::kReady || progress.state == MatrixState::kFailed;
    if (!progress_) return Next::kRead;
    state_->Post([call = shared_from_this(), this, stream = stream.shared_from_this(), progress] {
      progress_(progress);
      stream->Resume();
    });
    return Next::kPause;
  }

  absl::Status Complete() override {
    return settled_ && !request_.follow()
               ? absl::OkStatus()
               : absl::InternalError("the server stopped reporting before the preparation ended");
  }
  void Deliver(absl::Status status) override { state_->Complete(std::move(status)); }

  v1::WatchRequest request_;
  const ProgressCallback progress_;
  const std::shared_ptr<CallState<void>> state_;
  bool settled_ = false;  // the last reply said READY or FAILED
};

class ListMeasurementsCall final : public Exchange {
 public:
  using Patterns = std::vector<PatternMeasurements>;

  ListMeasurementsCall(Connection& connection, const CallOptions& options, const std::string& name,
                       const MeasurementsOptions& which, std::shared_ptr<CallState<Patterns>> state)
      : Exchange(connection, "/sparsed.v1.Catalog/ListMeasurements", options, Repeat::kSafe),
        state_(std::move(state)) {
    request_.set_name(name);
    request_.set_all(which.all);
    request_.set_density_maps(which.density_maps);
  }

 private:
  void Open(Stream& stream) override {
    patterns_.clear();
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    v1::PatternMeasurements reply;
    if (absl::Status status = ParseReply(bytes, reply); !status.ok()) return status;
    PatternMeasurements next = FromProto(reply);
    if (patterns_.empty() || patterns_.back().pattern_hash != next.pattern_hash ||
        patterns_.back().past != next.past) {
      patterns_.push_back(std::move(next));
    } else {
      std::ranges::move(next.measurements, std::back_inserter(patterns_.back().measurements));
    }
    return Next::kRead;
  }

  absl::Status Complete() override { return absl::OkStatus(); }
  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(std::move(patterns_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::ListMeasurementsRequest request_;
  Patterns patterns_;
  const std::shared_ptr<CallState<Patterns>> state_;
};

}  // namespace

Call<void> Prepare(const std::shared_ptr<Connection>& connection, const std::string& name,
                   const PrepareOptions& prepare, const CallOptions& options) {
  v1::PrepareRequest request;
  request.set_name(name);
  for (const ProblemSignature& signature : prepare.expected) {
    *request.add_expected() = ToProto(signature);
  }
  request.set_again(prepare.again);
  request.set_recipe(prepare.pipeline);
  request.set_kernel(prepare.kernel);
  request.set_explore(prepare.explore);
  return LaunchUnary<v1::PrepareReply, void>(connection, "/sparsed.v1.Catalog/Prepare", options,
                                             true, request, nullptr);
}

Call<void> Watch(const std::shared_ptr<Connection>& connection, const std::string& name,
                 bool follow, ProgressCallback progress, const CallOptions& options,
                 InShards<void> in_shards) {
  auto state = std::make_shared<CallState<void>>();
  auto call =
      std::make_shared<WatchCall>(*connection, options, name, follow, std::move(progress), state);
  return Launch<void>(connection, call, std::move(state), std::move(in_shards));
}

Call<MatrixInfo> GetMatrix(const std::shared_ptr<Connection>& connection, const std::string& name,
                           const CallOptions& options) {
  v1::GetMatrixRequest request;
  request.set_name(name);
  return LaunchUnary<v1::MatrixInfo, MatrixInfo>(
      connection, "/sparsed.v1.Catalog/Get", options, true, request,
      [raw = connection.get(), name](const v1::MatrixInfo& reply) {
        MatrixInfo info = FromProto(reply);
        NoteShards(raw->nodes(), name, info);
        return info;
      });
}

Call<MatrixFeatures> GetFeatures(const std::shared_ptr<Connection>& connection,
                                 const std::string& name, const CallOptions& options) {
  v1::GetMatrixRequest request;
  request.set_name(name);
  request.set_features(true);
  return LaunchUnary<v1::MatrixInfo, MatrixFeatures>(
      connection, "/sparsed.v1.Catalog/Get", options, true, request,
      [](const v1::MatrixInfo& reply) { return FromProto(reply.features()); });
}

Call<std::vector<PatternMeasurements>> ListMeasurements(
    const std::shared_ptr<Connection>& connection, const std::string& name,
    const MeasurementsOptions& which, const CallOptions& options) {
  using Patterns = std::vector<PatternMeasurements>;
  auto state = std::make_shared<CallState<Patterns>>();
  auto call = std::make_shared<ListMeasurementsCall>(*connection, options, name, which, state);
  return Launch<Patterns>(connection, call, std::move(state));
}

Call<std::vector<MatrixShare>> ShareMatrix(const std::shared_ptr<Connection>& connection,
                                           const std::string& name, const MatrixShare& share,
                                           bool revoke, const CallOptions& options) {
  v1::ShareRequest request;
  request.set_name(name);
  request.mutable_share()->set_with(share.with);
  request.mutable_share()->set_write(share.write);
  request.set_revoke(revoke);
  // A share that is put twice is the same; one that was revoked is not there any more.
  return LaunchUnary<v1::ShareReply, std::vector<MatrixShare>>(
      connection, "/sparsed.v1.Catalog/Share", options, !revoke, request,
      [](const v1::ShareReply& reply) { return FromProto(reply.shares()); });
}

Call<MatrixInfo> RenameMatrix(const std::shared_ptr<Connection>& connection,
                              const std::string& name, const std::string& new_name,
                              const CallOptions& options) {
  v1::RenameMatrixRequest request;
  request.set_name(name);
  request.set_new_name(new_name);
  return LaunchUnary<v1::MatrixInfo, MatrixInfo>(
      connection, "/sparsed.v1.Catalog/Rename", options, false, request,
      [](const v1::MatrixInfo& reply) { return FromProto(reply); });
}

Call<MatrixInfo> CopyMatrix(const std::shared_ptr<Connection>& connection, const std::string& name,
                            const std::string& new_name, const CopyOptions& copy,
                            const CallOptions& options) {
  v1::CopyMatrixRequest request;
  request.set_name(name);
  request.set_new_name(new_name);
  request.set_replace(copy.replace);
  return LaunchUnary<v1::MatrixInfo, MatrixInfo>(
      connection, "/sparsed.v1.Catalog/Copy", options, false, request,
      [](const v1::MatrixInfo& reply) { return FromProto(reply); });
}

Call<void> DeleteMatrix(const std::shared_ptr<Connection>& connection, const std::string& name,
                        const CallOptions& options) {
  v1::DeleteMatrixRequest request;
  request.set_name(name);
  return LaunchUnary<v1::DeleteMatrixReply, void>(connection, "/sparsed.v1.Catalog/Delete", options,
                                                  false, request, nullptr);
}

}  // namespace client
}  // namespace sparsed
