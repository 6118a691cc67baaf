#include <atomic>
#include <optional>
#include <utility>

#include "engine/engine.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/page.h"
#include "server/rpc/reactors.h"
#include "server/rpc/unary.h"
#include "sparsed/v1/catalog.grpc.pb.h"

namespace sparsed::server {
namespace {

using Streams =
    v1::Catalog::WithRawCallbackMethod_Upload<v1::Catalog::WithRawCallbackMethod_UpdateValues<
        v1::Catalog::WithRawCallbackMethod_Download<v1::Catalog::WithRawCallbackMethod_Watch<
            v1::Catalog::WithRawCallbackMethod_ListMeasurements<v1::Catalog::Service>>>>>;
using Service = v1::Catalog::WithRawCallbackMethod_Get<v1::Catalog::WithRawCallbackMethod_List<
    v1::Catalog::WithRawCallbackMethod_Prepare<v1::Catalog::WithRawCallbackMethod_Delete<
        v1::Catalog::WithRawCallbackMethod_Explain<Streams>>>>>;

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
          if (matrix.ok()) reply = ToMatrixInfo(**matrix);
          if (matrix.ok() && request.features()) AddFeatures(**matrix, reply);
          return matrix.status();
        });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return Answer<v1::ListMatricesRequest, v1::ListMatricesReply>(
        Op::kList, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ListMatricesReply& reply) {
          Page page(request.page_size());
          for (const auto& matrix : service_.engine.catalog().List(caller.tenant, request.prefix(),
                                                                   request.page_token())) {
            v1::MatrixInfo info = ToMatrixInfo(*matrix);
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
          const auto matrix = service_.engine.catalog().Find(caller.tenant, request.name());
          if (!matrix.ok()) return matrix.status();
          auto classes = ToClasses((*matrix)->type(), request.expected());
          if (!classes.ok()) return classes.status();
          std::optional<engine::Asked> asked;
          if (!request.recipe().empty() || !request.kernel().empty()) {
            auto parsed = engine::ParseAsked(request.recipe(), request.kernel());
            if (!parsed.ok()) return parsed.status();
            asked = *std::move(parsed);
          }
          return service_.engine.preparation().Request(*matrix, *std::move(classes),
                                                       request.again(), asked);
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

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* bytes,
                                    grpc::ByteBuffer* response) override {
    return StartExplain(service_, context, *bytes, *response, explanations_);
  }

 private:
  const ServiceContext& service_;
  std::atomic<int> explanations_{0};  ///< under way
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCatalogService(const ServiceContext& context) {
  return std::make_unique<CatalogService>(context);
}

}  // namespace sparsed::server
