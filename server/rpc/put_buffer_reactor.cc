// Buffers.Put: header, chunks, then (if durable) the disk on a worker.
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

class PutBufferReactor final : public BytesReadReactor {
 public:
  PutBufferReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                   grpc::ByteBuffer* response)
      : service_(service),
        context_(*context),
        response_(*response),
        record_(service.telemetry.Begin(Op::kPutBuffer, TenantOf(*context), "")) {
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
    auto frame = wire::Decode<v1::PutBufferRequest>(in_);
    in_.Clear();
    if (!frame.ok()) return frame.status();
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      if (put_ == nullptr) {
        return absl::InvalidArgumentError("a chunk came before the put's header");
      }
      record_.stream_bytes_in += chunk->size;
      return ReceiveChunk(*chunk, service_.config.max_chunk_bytes, *put_);
    }
    const auto& message = std::get<v1::PutBufferRequest>(*frame);
    if (!message.has_header()) {
      return absl::InvalidArgumentError("a message of the put is neither header nor chunk");
    }
    if (put_ != nullptr) return absl::InvalidArgumentError("the put has two headers");
    record_.subject = message.header().name();
    auto header = ToPutHeader(record_.tenant, message.header());
    if (!header.ok()) return header.status();
    auto put = service_.engine.dense().BeginPut(*std::move(header));
    if (!put.ok()) return put.status();
    put_ = *std::move(put);
    return absl::OkStatus();
  }

  /// The sending side was closed, or the client is gone.
  void OnClosed() {
    if (context_.IsCancelled()) return Conclude(absl::CancelledError("the put broke off"));
    if (put_ == nullptr) {
      return Conclude(absl::InvalidArgumentError("the put has no header"));
    }
    record_[Phase::kReceive] = NanosecondsSince(record_.begun);
    if (absl::Status status = service_.workers.Run([this] { Publish(); }); !status.ok()) {
      Conclude(std::move(status));
    }
  }

  /// On a worker.
  void Publish() {
    if (context_.IsCancelled()) return Conclude(absl::CancelledError("the put broke off"));
    const absl::StatusOr<engine::HeldDenseLease> held = put_->Finish();
    if (!held.ok()) return Conclude(held.status());
    response_ = wire::Encode(ToBufferInfo(**held));
    Conclude(absl::OkStatus());
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    put_.reset();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  StageRecord record_;
  grpc::ByteBuffer in_;
  std::unique_ptr<engine::DensePut> put_;
};

}  // namespace

BytesReadReactor* StartPutBuffer(const ServiceContext& service,
                                 grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  return new PutBufferReactor(service, context, response);
}

}  // namespace sparsed::server
