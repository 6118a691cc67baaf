#include "client/src/model_calls.h"

#include <optional>
#include <span>
#include <utility>

#include "client/src/arrays.h"
#include "client/src/exchange.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed {
inline namespace client {
namespace {

ModelInfo FromProto(const v1::ModelInfo& proto) {
  return {.name = proto.name(),
          .device = proto.device(),
          .device_model = proto.device_model(),
          .created = proto.created(),
          .patterns = proto.patterns(),
          .own = proto.own(),
          .used = proto.used(),
          .watched = proto.watched(),
          .held_out_share = proto.held_out_share(),
          .problem = proto.problem(),
          .manifest = proto.manifest()};
}

class PutModelCall final : public Exchange {
 public:
  PutModelCall(Connection& connection, const CallOptions& options, const std::string& name,
               std::vector<ModelFile> files, bool replace,
               std::shared_ptr<CallState<ModelInfo>> state)
      : Exchange(connection, "/sparsed.v1.Admin/PutModel", options, Repeat::kUntilSent),
        files_(std::move(files)),
        state_(std::move(state)) {
    v1::PutModelHeader& header = *request_.mutable_header();
    header.set_name(name);
    header.set_replace(replace);
    for (const ModelFile& file : files_) {
      v1::ModelFile& message = *header.add_files();
      message.set_name(file.name);
      message.set_bytes(file.contents.size());
    }
  }

 private:
  void Open(Stream& stream) override {
    reply_.reset();
    std::vector<OutgoingArray> arrays;
    for (size_t i = 0; i < files_.size(); ++i) {
      arrays.push_back({.array = static_cast<uint32_t>(i),
                        .bytes = BytesOf(std::span<const char>(files_[i].contents)),
                        .shared = std::nullopt,
                        .lease = Lease()});
    }
    stream.Send(wire::Encode(request_), 0, std::move(arrays));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    if (absl::Status status = ParseReply(bytes, reply_.emplace()); !status.ok()) return status;
    return Next::kRead;
  }

  absl::Status Complete() override {
    return reply_ ? absl::OkStatus() : absl::InternalError("the server sent no reply");
  }

  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(FromProto(*reply_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  v1::PutModelRequest request_;
  const std::vector<ModelFile> files_;
  const std::shared_ptr<CallState<ModelInfo>> state_;
  std::optional<v1::ModelInfo> reply_;
};

}  // namespace

Call<std::vector<ModelInfo>> ListModels(const std::shared_ptr<Connection>& connection,
                                        const CallOptions& options) {
  return LaunchList<v1::ListModelsRequest, v1::ListModelsReply, ModelInfo>(
      connection, "/sparsed.v1.Admin/ListModels", options, v1::ListModelsRequest(),
      [](const v1::ListModelsReply& reply) {
        std::vector<ModelInfo> models;
        for (const v1::ModelInfo& model : reply.models()) models.push_back(FromProto(model));
        return models;
      });
}

Call<ModelInfo> GetModel(const std::shared_ptr<Connection>& connection, const std::string& name,
                         const CallOptions& options) {
  if (name.empty()) {
    return Refused<ModelInfo>(absl::InvalidArgumentError("the model's name is empty"));
  }
  v1::ListModelsRequest request;
  request.set_name(name);
  return LaunchUnary<v1::ListModelsReply, ModelInfo>(
      connection, "/sparsed.v1.Admin/ListModels", options, true, request,
      [](const v1::ListModelsReply& reply) {
        return reply.models().empty() ? ModelInfo() : FromProto(reply.models(0));
      });
}

Call<ModelInfo> PutModel(const std::shared_ptr<Connection>& connection, const std::string& name,
                         std::vector<ModelFile> files, bool replace, const CallOptions& options) {
  auto state = std::make_shared<CallState<ModelInfo>>();
  auto call =
      std::make_shared<PutModelCall>(*connection, options, name, std::move(files), replace, state);
  return Launch<ModelInfo>(connection, call, std::move(state));
}

Call<std::string> ActivateModel(const std::shared_ptr<Connection>& connection,
                                const std::string& name, const std::string& device, bool watch,
                                const CallOptions& options) {
  v1::ActivateModelRequest request;
  request.set_name(name);
  request.set_device(device);
  request.set_watch(watch);
  return LaunchUnary<v1::ActivateModelReply, std::string>(
      connection, "/sparsed.v1.Admin/ActivateModel", options, /*safe_to_repeat=*/true, request,
      [](const v1::ActivateModelReply& reply) { return reply.device(); });
}

Call<std::string> RollbackModel(const std::shared_ptr<Connection>& connection,
                                const std::string& device, const CallOptions& options) {
  v1::RollbackModelRequest request;
  request.set_device(device);
  return LaunchUnary<v1::RollbackModelReply, std::string>(
      connection, "/sparsed.v1.Admin/RollbackModel", options, /*safe_to_repeat=*/false, request,
      [](const v1::RollbackModelReply& reply) { return reply.name(); });
}

Call<void> RemoveModel(const std::shared_ptr<Connection>& connection, const std::string& name,
                       const CallOptions& options) {
  v1::RemoveModelRequest request;
  request.set_name(name);
  return LaunchUnary<v1::RemoveModelReply, void>(connection, "/sparsed.v1.Admin/RemoveModel",
                                                 options, /*safe_to_repeat=*/false, request,
                                                 [](const v1::RemoveModelReply&) {});
}

}  // namespace client
}  // namespace sparsed
