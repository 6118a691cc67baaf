// Catalog.Download: arrays from the disk on a worker, then chunks.
#include <deque>

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

class DownloadReactor final : public BytesWriteReactor {
 public:
  DownloadReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                  const grpc::ByteBuffer& request)
      : service_(service), record_(service.telemetry.Begin(Op::kDownload, TenantOf(*context), "")) {
    if (absl::Status status = Open(request); !status.ok()) Conclude(std::move(status));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Conclude(absl::CancelledError("the reader is gone"));
    while (!arrays_.empty() && arrays_.front().done()) arrays_.pop_front();
    if (arrays_.empty()) {
      record_[Phase::kSend] = NanosecondsSince(first_write_);
      return Conclude(absl::OkStatus());
    }
    size_t bytes = 0;
    out_ = arrays_.front().Next(&bytes);
    record_.stream_bytes_out += bytes;
    StartWrite(&out_);
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Open(const grpc::ByteBuffer& bytes) {
    v1::DownloadRequest request;
    if (absl::Status status = wire::Parse(bytes, request); !status.ok()) return status;
    record_.subject = request.name();
    auto matrix = service_.engine.catalog().Find(record_.tenant, request.name());
    if (!matrix.ok()) return matrix.status();
    matrix_ = *std::move(matrix);
    return service_.workers.Run([this] {
      if (absl::Status status = Load(); !status.ok()) Conclude(std::move(status));
    });
  }

  /// On a worker; starts the writing.
  absl::Status Load() {
    const auto csr = matrix_->pattern()->Csr();
    if (!csr.ok()) return csr.status();
    absl::StatusOr<Array> values = matrix_->Values();
    if (!values.ok()) return values.status();
    v1::DownloadReply reply;
    v1::DownloadHeader& header = *reply.mutable_header();
    *header.mutable_matrix() = ToMatrixInfo(*matrix_);
    const auto add = [&](std::string_view name, const Array& array) {
      AddArrayHeader(name, array.type, array.length, *header.mutable_arrays());
      const auto index = static_cast<uint32_t>(arrays_.size());
      arrays_.emplace_back(0, index, 0, array);
    };
    for (const char* name : {"row_offsets", "column_indices"}) add(name, *(*csr)->Find(name));
    add("values", *values);
    matrix_.reset();
    out_ = wire::Encode(reply);
    first_write_ = StageRecord::Clock::now();
    StartWrite(&out_);
    return absl::OkStatus();
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    arrays_.clear();
    matrix_.reset();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  StageRecord record_;
  StageRecord::Clock::time_point first_write_;
  engine::MatrixLease matrix_;
  std::deque<ArrayChunks> arrays_;
  grpc::ByteBuffer out_;
};

}  // namespace

BytesWriteReactor* StartDownload(const ServiceContext& service,
                                 grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer& request) {
  return new DownloadReactor(service, context, request);
}

}  // namespace sparsed::server
