// Buffers.Get: the elements (after a restart from the disk, on a worker), then chunks.
#include <optional>

#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/array_chunks.h"
#include "server/rpc/convert.h"
#include "server/rpc/reactors.h"
#include "server/rpc/worker_pool.h"
#include "server/security/tenant.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

class GetBufferReactor final : public BytesWriteReactor {
 public:
  GetBufferReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                   const grpc::ByteBuffer& request)
      : service_(service),
        record_(service.telemetry.Begin(Op::kGetBuffer, TenantOf(*context), "")) {
    if (absl::Status status = Open(request); !status.ok()) Conclude(std::move(status));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Conclude(absl::CancelledError("the reader is gone"));
    if (elements_->done()) {
      record_[Phase::kSend] = NanosecondsSince(first_write_);
      return Conclude(absl::OkStatus());
    }
    size_t bytes = 0;
    out_ = elements_->Next(&bytes);
    record_.stream_bytes_out += bytes;
    StartWrite(&out_);
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Open(const grpc::ByteBuffer& bytes) {
    v1::GetBufferRequest request;
    if (absl::Status status = wire::Parse(bytes, request); !status.ok()) return status;
    record_.subject = request.name();
    auto held = service_.engine.dense().Find(record_.tenant, request.name());
    if (!held.ok()) return held.status();
    held_ = *std::move(held);
    return service_.workers.Run([this] {
      if (absl::Status status = Load(); !status.ok()) Conclude(std::move(status));
    });
  }

  /// On a worker; starts the writing.
  absl::Status Load() {
    absl::StatusOr<Array> elements = held_->elements->Get();
    if (!elements.ok()) return elements.status();
    elements_.emplace(0, 0, 0, *std::move(elements));
    v1::GetBufferReply reply;
    *reply.mutable_info() = ToBufferInfo(*held_);
    held_.reset();
    out_ = wire::Encode(reply);
    first_write_ = StageRecord::Clock::now();
    StartWrite(&out_);
    return absl::OkStatus();
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    elements_.reset();
    held_.reset();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  StageRecord record_;
  StageRecord::Clock::time_point first_write_;
  engine::HeldDenseLease held_;
  std::optional<ArrayChunks> elements_;
  grpc::ByteBuffer out_;
};

}  // namespace

BytesWriteReactor* StartGetBuffer(const ServiceContext& service,
                                  grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request) {
  return new GetBufferReactor(service, context, request);
}

}  // namespace sparsed::server
