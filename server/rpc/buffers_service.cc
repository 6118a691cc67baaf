#include "engine/catalog/shares.h"
#include "engine/engine.h"
#include "server/rpc/convert.h"
#include "server/rpc/page.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/unary.h"
#include "server/security/access.h"
#include "sparsed/v1/buffers.grpc.pb.h"

namespace sparsed::server {
namespace {

using Streams = v1::Buffers::WithRawCallbackMethod_Put<
    v1::Buffers::WithRawCallbackMethod_Get<v1::Buffers::Service>>;
using Service = v1::Buffers::WithRawCallbackMethod_Delete<
    v1::Buffers::WithRawCallbackMethod_Renew<v1::Buffers::WithRawCallbackMethod_List<Streams>>>;

class BuffersService final : public Service {
 public:
  explicit BuffersService(const ServiceContext& service) : service_(service) {}

  BytesReadReactor* Put(grpc::CallbackServerContext* context, grpc::ByteBuffer* response) override {
    return StartPutBuffer(service_, context, response);
  }
  BytesWriteReactor* Get(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    return StartGetBuffer(service_, context, *request);
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes,
                                 grpc::ByteBuffer* response) override {
    return Answer<v1::ListBuffersRequest, v1::ListBuffersReply>(
        Op::kListBuffers, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ListBuffersReply& reply) {
          if (request.all()) {
            absl::Status allowed = service_.access.Require(caller, Role::kOperator,
                                                           "the list of all tenants' buffers");
            if (!allowed.ok()) return allowed;
          }
          Page page(request.page_size());
          const engine::DenseCatalog& dense = service_.engine.dense();
          for (const auto& held :
               request.all() ? dense.ListAll(request.prefix(), request.page_token())
                             : dense.List(caller.tenant, request.prefix(), request.page_token())) {
            v1::BufferInfo info = ToBufferInfo(*held, dense.now());
            if (request.all()) info.set_name(engine::ReferenceFor("", {held->tenant, held->name}));
            if (!page.Take(info)) {
              reply.set_next_page_token(reply.buffers().rbegin()->name());
              break;
            }
            *reply.add_buffers() = std::move(info);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* bytes,
                                  grpc::ByteBuffer* response) override {
    return Answer<v1::RenewBufferRequest, v1::BufferInfo>(
        Op::kRenewBuffer, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::BufferInfo& reply) {
          absl::Status here = RoutedBuffer(service_, caller.tenant, request.name());
          if (!here.ok()) return here;
          const engine::DenseCatalog& dense = service_.engine.dense();
          const absl::StatusOr<engine::HeldDenseLease> held =
              dense.Find(caller.tenant, request.name());
          if (held.ok()) reply = ToBufferInfo(**held, dense.now());
          return held.status();
        });
  }

  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::DeleteBufferRequest, v1::DeleteBufferReply>(
        Op::kDeleteBuffer, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::DeleteBufferReply&) {
          // Also one whose shard is gone, or another node's by now.
          absl::Status gone = service_.engine.dense().Delete(caller.tenant, request.name());
          const absl::Status here = RoutedBuffer(service_, caller.tenant, request.name());
          return here.ok() || (absl::IsNotFound(here) && gone.ok()) ? gone : here;
        });
  }

 private:
  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBuffersService(const ServiceContext& context) {
  return std::make_unique<BuffersService>(context);
}

}  // namespace sparsed::server
