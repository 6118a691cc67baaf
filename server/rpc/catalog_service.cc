#include <atomic>

#include "engine/engine.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/page.h"
#include "server/rpc/reactors.h"
#include "server/rpc/unary.h"
#include "sparsed/v1/catalog.grpc.pb.h"

namespace sparsed::server {
namespace {

using Streams =
    v1::Catalog::WithRawCallbackMethod_Upload<v1::Catalog::WithRawCallbackMethod_UpdateValues<
        v1::Catalog::WithRawCallbackMethod_Download<v1::Catalog::WithCallbackMethod_Watch<
            v1::Catalog::WithCallbackMethod_ListMeasurements<v1::Catalog::Service>>>>>;
using Service = v1::Catalog::WithCallbackMethod_Get<
    v1::Catalog::WithCallbackMethod_List<v1::Catalog::WithCallbackMethod_Prepare<
        v1::Catalog::WithCallbackMethod_Delete<v1::Catalog::WithCallbackMethod_Explain<Streams>>>>>;

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
  grpc::ServerWriteReactor<v1::WatchReply>* Watch(grpc::CallbackServerContext* context,
                                                  const v1::WatchRequest* request) override {
    return StartWatch(service_, context, *request);
  }

  grpc::ServerWriteReactor<v1::PatternMeasurements>* ListMeasurements(
      grpc::CallbackServerContext* context, const v1::ListMeasurementsRequest* request) override {
    return StartListMeasurements(service_, context, *request);
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetMatrixRequest* request,
                                v1::MatrixInfo* reply) override {
    return Answer(Op::kGet, service_, context, request->name(), [&](const std::string& tenant) {
      const auto matrix = service_.engine.catalog().Find(tenant, request->name());
      if (matrix.ok()) *reply = ToMatrixInfo(**matrix);
      if (matrix.ok() && request->features()) AddFeatures(**matrix, *reply);
      return matrix.status();
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListMatricesRequest* request,
                                 v1::ListMatricesReply* reply) override {
    return Answer(Op::kList, service_, context, request->prefix(), [&](const std::string& tenant) {
      Page page(request->page_size());
      for (const auto& matrix :
           service_.engine.catalog().List(tenant, request->prefix(), request->page_token())) {
        v1::MatrixInfo info = ToMatrixInfo(*matrix);
        info.clear_detail();
        info.clear_measurements();
        info.clear_decisions();
        if (!page.Take(info)) {
          reply->set_next_page_token(reply->matrices().rbegin()->name());
          break;
        }
        *reply->add_matrices() = std::move(info);
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Prepare(grpc::CallbackServerContext* context,
                                    const v1::PrepareRequest* request,
                                    v1::PrepareReply* /*reply*/) override {
    return AnswerOnWorker(Op::kPrepare, service_, context, request->name(),
                          [this, request = *request](const std::string& tenant) {
                            const auto matrix =
                                service_.engine.catalog().Find(tenant, request.name());
                            if (!matrix.ok()) return matrix.status();
                            auto classes = ToClasses((*matrix)->type(), request.expected());
                            if (!classes.ok()) return classes.status();
                            return service_.engine.preparation().Request(
                                *matrix, *std::move(classes), request.again());
                          });
  }

  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteMatrixRequest* request,
                                   v1::DeleteMatrixReply* /*reply*/) override {
    return AnswerOnWorker(Op::kDelete, service_, context, request->name(),
                          [this, name = request->name()](const std::string& tenant) {
                            const absl::Status status =
                                service_.engine.catalog().Delete(tenant, name);
                            if (status.ok()) service_.live_streams.MatrixChanged(tenant, name);
                            return status;
                          });
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainReply* reply) override {
    return StartExplain(service_, context, *request, *reply, explanations_);
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
