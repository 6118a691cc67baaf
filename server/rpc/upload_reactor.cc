// Catalog.Upload: header, chunks, then validation and the disk on a worker.
#include <fmt/format.h>

#include <atomic>
#include <optional>

#include "base/mutex.h"
#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/connection_share.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/rpc/receive_chunk.h"
#include "server/rpc/routes.h"
#include "server/rpc/worker_pool.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

class UploadReactor final : public BytesBidiReactor, public LiveStream {
 public:
  UploadReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        hold_(service.shares.Of(*context)),
        record_(service.telemetry.Begin(Op::kUpload, caller, "")) {
    if (service_.live_streams.Add(this)) {
      reception_.Await(0, [this] { StartRead(&in_); });
    } else {
      Conclude(absl::UnavailableError("the server is shutting down"));
    }
  }

  void OnReadDone(bool ok) override {
    if (!reception_.Take()) return;
    if (!ok) return OnClosed();
    const uint64_t before = record_.received_bytes;
    if (absl::Status status = Receive(); !status.ok()) return Conclude(std::move(status));
    reception_.Await(record_.received_bytes - before, [this] { StartRead(&in_); });
  }

  void OnWriteDone(bool ok) override {
    delivery_.End(ok).IgnoreError();  // a cancelled call's reads fail, too
    std::optional<absl::Status> concluded;
    {
      const MutexLock lock(mutex_);
      writing_ = false;
      concluded = concluded_;
    }
    if (concluded.has_value()) Send(*concluded);
  }

  void OnCancel() override { cancelled_ = true; }
  void OnRefused(const absl::Status& why) override { CancelCall(context_, why); }
  void OnTick(const Patience& patience) override {
    delivery_.Tick(patience, context_);
    if (!reception_.GivesUp(patience)) return;
    Conclude(patience.NothingReceived(
        fmt::format("{} bytes of the upload are here, and nothing more came", reception_.bytes())));
  }
  void Count(InFlightTable& table) override {
    const Activity activity = received_ ? Activity::kWorking : Activity::kReceiving;
    table[{Op::kUpload, activity}].Add(static_cast<int64_t>(reception_.bytes()), begun_);
  }
  void OnDone() override {
    delivery_.End(/*ok=*/true).IgnoreError();
    service_.live_streams.Remove(this);
    delete this;
  }

 private:
  absl::Status Receive() {
    auto frame = wire::Decode<v1::UploadRequest>(in_);
    in_.Clear();
    if (!frame.ok()) return frame.status();
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      if (upload_ == nullptr) {
        return absl::InvalidArgumentError("a chunk came before the upload's header");
      }
      CountChunk(*chunk, record_);
      absl::Status taken =
          ReceiveChunk(*chunk, service_.config.max_chunk_bytes, service_.regions, *upload_);
      return taken.ok() ? hold_.GrowTo(static_cast<int64_t>(upload_->counted())) : taken;
    }
    const auto& message = std::get<v1::UploadRequest>(*frame);
    if (!message.has_header()) {
      return absl::InvalidArgumentError("a message of the upload is neither header nor chunk");
    }
    return Open(message.header());
  }

  absl::Status Open(const v1::UploadHeader& message) {
    if (upload_ != nullptr) return absl::InvalidArgumentError("the upload has two headers");
    record_.subject = message.name();
    record_.parameters = fmt::format("{}x{} nnz={}", message.rows(), message.cols(), message.nnz());
    auto header = ToUploadHeader(record_.tenant, message);
    if (!header.ok()) return header.status();
    if (service_.cluster != nullptr) {
      if (absl::Status can = TakeReplicas(message.replicas()); !can.ok()) return can;
      absl::Status here =
          service_.cluster->RouteUpload(record_.tenant, message.name(), message.pattern_hash());
      if (!here.ok()) return here;
      wishes_.placed_by =
          service_.cluster->PlacedBy(record_.tenant, message.name(), message.pattern_hash());
      // It is gone before this one comes in its place.
      if (service_.cluster->IsDropped({record_.tenant, message.name()})) header->replace = true;
    }
    replaces_ = message.replace();
    header->requester = {record_.tenant, record_.caller, record_.id, message.name()};
    auto upload = service_.engine.catalog().BeginUpload(*std::move(header));
    if (!upload.ok()) return upload.status();
    upload_ = *std::move(upload);
    absl::Status fits =
        hold_.share().Check("the upload", static_cast<int64_t>(upload_->announced()));
    if (!fits.ok() || message.pattern_hash().empty()) return fits;
    v1::UploadReply reply;
    reply.mutable_pattern()->set_known(upload_->pattern_known());
    pattern_answer_ = wire::Encode(reply);
    {
      const MutexLock lock(mutex_);
      writing_ = true;
    }
    delivery_.Begin(0, [this] { StartWrite(&pattern_answer_); });
    return absl::OkStatus();
  }

  /// The sending side was closed, or the client is gone.
  void OnClosed() {
    if (context_.IsCancelled()) return Conclude(absl::CancelledError("the upload broke off"));
    if (upload_ == nullptr) {
      return Conclude(absl::InvalidArgumentError("the upload has no header"));
    }
    received_ = true;
    record_[Phase::kReceive] = NanosecondsSince(record_.begun);
    if (absl::Status status =
            WorkersFor(Op::kUpload, service_).Run(record_.tenant, [this] { Store(); });
        !status.ok()) {
      Conclude(std::move(status));
    }
  }

  /// On a worker.
  void Store() {
    if (context_.IsCancelled()) return Conclude(absl::CancelledError("the upload broke off"));
    const engine::NameKey key(record_.tenant, record_.subject);
    const TraceScope trace(record_.trace);
    const StageRecord::Clock::time_point begun = StageRecord::Clock::now();
    const absl::StatusOr<engine::MatrixLease> matrix = Changed(
        service_, key,
        [&]() -> absl::StatusOr<engine::MatrixLease> {
          if (!replaces_ && IsKnown(key)) return engine::NameIsTaken(key.second);
          auto made = upload_->Finish(service_.threads_per_worker, &cancelled_);
          if (made.ok()) service_.live_streams.MatrixChanged(key.first, key.second);
          return made;
        },
        wishes_);
    record_[Phase::kSetup] = NanosecondsSince(begun);
    if (!matrix.ok()) return Conclude(matrix.status());
    v1::UploadReply reply;
    *reply.mutable_matrix() = ToMatrixInfo(**matrix, record_.tenant, service_.engine.executor());
    AddNodes(service_, *reply.mutable_matrix());
    reply_ = wire::Encode(reply);
    Conclude(absl::OkStatus());
  }

  /// INVALID_ARGUMENT for a number that is none; FAILED_PRECONDITION if copies would not be
  /// durable.
  absl::Status TakeReplicas(int32_t replicas) {
    if (replicas < 0 || replicas > kMostReplicas) {
      return absl::InvalidArgumentError(fmt::format(
          "replicas is {}, expected 1 to {}, or 0 for as many as the matrix has that it "
          "replaces, or as the nodes' --replicas says",
          replicas, kMostReplicas));
    }
    if (replicas > 1 && service_.config.in_memory()) {
      return absl::FailedPreconditionError(
          fmt::format("replicas is {}, and this node keeps matrices in memory alone: copies are "
                      "acknowledged when they are durable (--data-dir)",
                      replicas));
    }
    if (replicas > 0) wishes_.replicas = replicas;
    return absl::OkStatus();
  }

  /// The cluster has one of that name, or this node.
  bool IsKnown(const engine::NameKey& key) const {
    if (service_.cluster == nullptr) return false;
    const auto record = service_.cluster->RecordOf(key);
    return (record.has_value() && !record->deleted) ||
           service_.engine.catalog().Look(key.first, key.second) != nullptr;
  }

  /// The terminal transition; waits for a write under way.
  void Conclude(absl::Status status) {
    upload_.reset();
    hold_.Clear();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    {
      const MutexLock lock(mutex_);
      concluded_ = status;
      if (writing_) return;
    }
    Send(status);
  }

  /// `this` may be gone afterwards.
  void Send(const absl::Status& status) {
    EndCount();
    delivery_.Begin(0, [this, &status] {
      if (status.ok()) {
        StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
      } else {
        Finish(ToGrpc(status));
      }
    });
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  ShareHold hold_;  ///< for the upload
  StageRecord record_;
  const StageRecord::Clock::time_point begun_ = record_.begun;
  grpc::ByteBuffer in_, pattern_answer_, reply_;
  std::unique_ptr<engine::Upload> upload_;
  bool replaces_ = false;  ///< as its header says
  Cluster::Wishes wishes_;
  Reception reception_;
  Delivery delivery_;
  std::atomic<bool> received_ = false;
  std::atomic<bool> cancelled_ = false;

  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> concluded_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

BytesBidiReactor* StartUpload(const ServiceContext& service, grpc::CallbackServerContext* context) {
  return ForCaller<BytesBidiReactor>(Op::kUpload, service, *context, [&](const Caller& caller) {
    return new UploadReactor(service, context, caller);
  });
}

}  // namespace sparsed::server
