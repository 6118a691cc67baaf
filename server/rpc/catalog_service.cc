#include <atomic>
#include <optional>
#include <utility>

#include "engine/engine.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/page.h"
#include "server/rpc/reactors.h"
#include "server/rpc/unary.h"
#include "server/security/access.h"
#include "server/telemetry/call_origin.h"
#include "sparsed/v1/catalog.grpc.pb.h"

namespace sparsed::server {
namespace {

using Streams =
    v1::Catalog::WithRawCallbackMethod_Upload<v1::Catalog::WithRawCallbackMethod_UpdateValues<
        v1::Catalog::WithRawCallbackMethod_Download<v1::Catalog::WithRawCallbackMethod_Watch<
            v1::Catalog::WithRawCallbackMethod_ListMeasurements<v1::Catalog::Service>>>>>;
using Service = v1::Catalog::WithRawCallbackMethod_Get<
    v1::Catalog::WithRawCallbackMethod_List<v1::Catalog::WithRawCallbackMethod_Prepare<
        v1::Catalog::WithRawCallbackMethod_Delete<v1::Catalog::WithRawCallbackMethod_Share<
            v1::Catalog::WithRawCallbackMethod_Rename<v1::Catalog::WithRawCallbackMethod_Copy<
                v1::Catalog::WithRawCallbackMethod_Explain<Streams>>>>>>>>;

engine::Requester RequesterOf(const Caller& caller, const std::string& matrix) {
  return {caller.tenant, caller.name, caller.origin == nullptr ? "" : caller.origin->request_id,
          matrix};
}

class CatalogService final : public Service {
 public:
  explicit CatalogService(const ServiceContext& service) : service_(service) {}

  BytesBidiReactor* Upload(grpc::CallbackServerContext* context) override {
    return StartUpload(service_, context);
  }
  BytesReadReactor* UpdateValues(grpc::CallbackServerContext* context,
                                 grpc::ByteBuffer* response) override {
    return StartUpdateValues(service_, context, response);
  }
  BytesWriteReactor* Download(grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer* request) override {
    return StartDownload(service_, context, *request);
  }
  BytesWriteReactor* Watch(grpc::CallbackServerContext* context,
                           const grpc::ByteBuffer* request) override {
    return StartWatch(service_, context, *request);
  }
  BytesWriteReactor* ListMeasurements(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request) override {
    return StartListMeasurements(service_, context, *request);
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                grpc::ByteBuffer* response) override {
    return Answer<v1::GetMatrixRequest, v1::MatrixInfo>(
        Op::kGet, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::MatrixInfo& reply) {
          const auto matrix = service_.engine.catalog().Find(caller.tenant, request.name());
          if (!matrix.ok()) return matrix.status();
          reply = ToMatrixInfo(**matrix, caller.tenant, service_.engine.executor());
          if (request.features()) AddFeatures(**matrix, reply);
          if ((*matrix)->tenant() == caller.tenant) AddShares(**matrix, *reply.mutable_shares());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return Answer<v1::ListMatricesRequest, v1::ListMatricesReply>(
        Op::kList, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ListMatricesReply& reply) {
          if (request.all()) {
            absl::Status allowed = service_.access.Require(caller, Role::kOperator,
                                                           "the list of all tenants' matrices");
            if (!allowed.ok()) return allowed;
            if (request.shared()) {
              return absl::Status(
                  absl::InvalidArgumentError("shared: `all` has those that are shared, too"));
            }
          }
          Page page(request.page_size());
          const engine::Catalog& catalog = service_.engine.catalog();
          // Nobody's own are those of all tenants.
          const std::string_view looks = request.all() ? std::string_view() : caller.tenant;
          for (const auto& matrix :
               request.all() ? catalog.ListAll(request.prefix(), request.page_token())
               : request.shared()
                   ? catalog.ListShared(caller.tenant, request.prefix(), request.page_token())
                   : catalog.List(caller.tenant, request.prefix(), request.page_token())) {
            v1::MatrixInfo info = ToMatrixInfo(*matrix, looks, service_.engine.executor());
            info.clear_detail();
            info.clear_measurements();
            info.clear_decisions();
            if (!page.Take(info)) {
              reply.set_next_page_token(reply.matrices().rbegin()->name());
              break;
            }
            *reply.add_matrices() = std::move(info);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Prepare(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* bytes,
                                    grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::PrepareRequest, v1::PrepareReply>(
        Op::kPrepare, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::PrepareReply&) {
          const auto matrix =
              service_.engine.catalog().Find(caller.tenant, request.name(), engine::Right::kWrite);
          if (!matrix.ok()) return matrix.status();
          auto classes = ToClasses((*matrix)->type(), request.expected());
          if (!classes.ok()) return classes.status();
          std::optional<engine::Asked> asked;
          const bool names_one = !request.recipe().empty() || !request.kernel().empty();
          if (request.explore() && names_one) {
            return absl::Status(absl::InvalidArgumentError(
                "explore: it times every candidate, and goes with neither recipe nor kernel"));
          }
          if (request.explore()) asked.emplace();
          if (names_one) {
            auto parsed = engine::ParseAsked(request.recipe(), request.kernel());
            if (!parsed.ok()) return parsed.status();
            asked = *std::move(parsed);
          }
          return service_.engine.preparation().Request(*matrix, *std::move(classes),
                                                       request.again(), asked,
                                                       RequesterOf(caller, request.name()));
        });
  }

  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::DeleteMatrixRequest, v1::DeleteMatrixReply>(
        Op::kDelete, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::DeleteMatrixReply&) {
          absl::Status status = service_.engine.catalog().Delete(caller.tenant, request.name());
          if (status.ok()) service_.live_streams.MatrixChanged(caller.tenant, request.name());
          return status;
        });
  }

  grpc::ServerUnaryReactor* Rename(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::RenameMatrixRequest, v1::MatrixInfo>(
        Op::kRename, service_, context, bytes, response,
        [this](const v1::RenameMatrixRequest& request, const Caller& caller, v1::MatrixInfo& reply,
               engine::Store::Stop stop) {
          const auto renamed = service_.engine.catalog().Rename(
              caller.tenant, request.name(), request.new_name(), service_.threads_per_worker, stop);
          if (!renamed.ok()) return renamed.status();
          service_.live_streams.MatrixChanged(caller.tenant,
                                              engine::Named(caller.tenant, request.name()).second);
          return Describe(**renamed, caller, reply);
        });
  }

  grpc::ServerUnaryReactor* Copy(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::CopyMatrixRequest, v1::MatrixInfo>(
        Op::kCopy, service_, context, bytes, response,
        [this](const v1::CopyMatrixRequest& request, const Caller& caller, v1::MatrixInfo& reply,
               engine::Store::Stop stop) {
          const auto copy =
              service_.engine.catalog().Copy(caller.tenant, request.name(), request.new_name(),
                                             request.replace(), service_.threads_per_worker, stop);
          if (!copy.ok()) return copy.status();
          service_.live_streams.MatrixChanged((*copy)->tenant(), (*copy)->name());
          return Describe(**copy, caller, reply);
        });
  }

  grpc::ServerUnaryReactor* Share(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::ShareRequest, v1::ShareReply>(
        Op::kShare, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ShareReply& reply) {
          engine::Catalog& catalog = service_.engine.catalog();
          const v1::MatrixShare& share = request.share();
          absl::Status status =
              request.revoke()
                  ? catalog.Unshare(caller.tenant, request.name(), share.with())
                  : catalog.Share(caller.tenant, request.name(),
                                  {share.with(),
                                   share.write() ? engine::Right::kWrite : engine::Right::kRead});
          if (!status.ok()) return status;
          // Who watches it may not do so any more.
          if (request.revoke()) service_.live_streams.MatrixChanged(caller.tenant, request.name());
          const auto matrix = catalog.Find(caller.tenant, request.name());
          if (matrix.ok()) AddShares(**matrix, *reply.mutable_shares());
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* bytes,
                                    grpc::ByteBuffer* response) override {
    return StartExplain(service_, context, *bytes, *response, explanations_);
  }

 private:
  /// Of one that belongs to the caller. OK.
  absl::Status Describe(const engine::Matrix& matrix, const Caller& caller,
                        v1::MatrixInfo& reply) const {
    reply = ToMatrixInfo(matrix, caller.tenant, service_.engine.executor());
    AddShares(matrix, *reply.mutable_shares());
    return absl::OkStatus();
  }

  void AddShares(const engine::Matrix& matrix,
                 google::protobuf::RepeatedPtrField<v1::MatrixShare>& shares) const {
    for (const engine::Share& share : service_.engine.catalog().SharesOf(matrix)) {
      v1::MatrixShare& message = *shares.Add();
      message.set_with(share.with);
      message.set_write(share.right == engine::Right::kWrite);
    }
  }

  const ServiceContext& service_;
  std::atomic<int> explanations_{0};  ///< under way
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCatalogService(const ServiceContext& context) {
  return std::make_unique<CatalogService>(context);
}

}  // namespace sparsed::server
