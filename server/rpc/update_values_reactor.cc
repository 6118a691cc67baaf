// Catalog.UpdateValues: header, chunks, then every layout's refresh on a worker.
#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/convert.h"
#include "server/rpc/reactors.h"
#include "server/rpc/receive_chunk.h"
#include "server/rpc/worker_pool.h"
#include "server/security/tenant.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

class UpdateValuesReactor final : public BytesReadReactor {
 public:
  UpdateValuesReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                      grpc::ByteBuffer* response)
      : service_(service),
        context_(*context),
        response_(*response),
        record_(service.telemetry.Begin(Op::kUpdateValues, TenantOf(*context), "")) {
    StartRead(&in_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return OnClosed();
    if (absl::Status status = Receive(); !status.ok()) return Conclude(std::move(status));
    StartRead(&in_);
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Receive() {
    auto frame = wire::Decode<v1::UpdateValuesRequest>(in_);
    in_.Clear();
    if (!frame.ok()) return frame.status();
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      if (update_ == nullptr) {
        return absl::InvalidArgumentError("a chunk came before the update's header");
      }
      record_.stream_bytes_in += chunk->size;
      return ReceiveChunk(*chunk, service_.config.max_chunk_bytes, *update_);
    }
    const auto& message = std::get<v1::UpdateValuesRequest>(*frame);
    if (!message.has_header()) {
      return absl::InvalidArgumentError("a message of the update is neither header nor chunk");
    }
    if (update_ != nullptr) return absl::InvalidArgumentError("the update has two headers");
    record_.subject = message.header().name();
    auto header = ToUpdateHeader(record_.tenant, message.header());
    if (!header.ok()) return header.status();
    auto update = service_.engine.catalog().BeginUpdate(*std::move(header));
    if (!update.ok()) return update.status();
    update_ = *std::move(update);
    return absl::OkStatus();
  }

  /// The sending side was closed, or the client is gone.
  void OnClosed() {
    if (context_.IsCancelled()) return Conclude(absl::CancelledError("the update broke off"));
    if (update_ == nullptr) {
      return Conclude(absl::InvalidArgumentError("the update has no header"));
    }
    record_[Phase::kReceive] = NanosecondsSince(record_.begun);
    if (absl::Status status = service_.workers.Run([this] { Publish(); }); !status.ok()) {
      Conclude(std::move(status));
    }
  }

  /// On a worker.
  void Publish() {
    if (context_.IsCancelled()) return Conclude(absl::CancelledError("the update broke off"));
    const absl::StatusOr<engine::MatrixLease> matrix = update_->Finish(service_.config.threads);
    if (!matrix.ok()) return Conclude(matrix.status());
    v1::UpdateValuesReply reply;
    reply.set_version((*matrix)->version());
    response_ = wire::Encode(reply);
    Conclude(absl::OkStatus());
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    update_.reset();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  StageRecord record_;
  grpc::ByteBuffer in_;
  std::unique_ptr<engine::ValuesUpdate> update_;
};

}  // namespace

BytesReadReactor* StartUpdateValues(const ServiceContext& service,
                                    grpc::CallbackServerContext* context,
                                    grpc::ByteBuffer* response) {
  return new UpdateValuesReactor(service, context, response);
}

}  // namespace sparsed::server
