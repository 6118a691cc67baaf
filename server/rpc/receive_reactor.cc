// Buffers.Put, Catalog.UpdateValues and Admin.PutModel: header, chunks, then what takes long on a
// worker.
#include <fmt/format.h>

#include <atomic>

#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/cluster/shards.h"
#include "server/rpc/admit.h"
#include "server/rpc/arriving_model.h"
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

/// A dense matrix to be held; if it shall be durable, the disk takes long.
struct Put {
  static constexpr Op kOp = Op::kPutBuffer;
  static constexpr const char* kName = "put";
  using Request = v1::PutBufferRequest;
  using Target = engine::DensePut;

  static absl::StatusOr<std::unique_ptr<Target>> Begin(const ServiceContext& service,
                                                       const std::string& tenant,
                                                       const v1::PutBufferHeader& message) {
    auto header = ToPutHeader(tenant, message);
    if (!header.ok()) return header.status();
    const bool is_part = ParseShardBuffer(header->name).has_value();
    if (header->version != 0 && !is_part) {
      return absl::InvalidArgumentError("version is for parts of buffers of matrices in shards");
    }
    if (header->durable && is_part && service.cluster != nullptr) {
      return absl::InvalidArgumentError("parts of buffers of matrices in shards are not durable");
    }
    if (absl::Status here = RoutedBuffer(service, tenant, header->name); !here.ok()) return here;
    if (!message.rows_of().empty()) {
      absl::StatusOr<engine::MatrixLease> of =
          service.engine.catalog().Find(tenant, message.rows_of());
      if (!of.ok()) return of.status();
      header->rows_of = *std::move(of);
    }
    return service.engine.dense().BeginPut(*std::move(header));
  }

  static std::string Parameters(const v1::PutBufferHeader& header) {
    return fmt::format("{}x{} {}{}", header.shape().rows(), header.shape().cols(),
                       Name(*ToElementType("type", header.shape().type())),
                       header.zeros() ? " zeros" : "");
  }

  static absl::StatusOr<grpc::ByteBuffer> Finish(const ServiceContext& service, Target& put,
                                                 const std::atomic<bool>& cancelled) {
    engine::Halo halo;
    if (service.cluster != nullptr) {
      const engine::PutHeader& header = put.header();
      const auto known = service.cluster->HaloOf(header.tenant, header.name, header.shape);
      if (!known.ok()) return known.status();
      halo = *known;
    }
    const absl::StatusOr<engine::HeldDenseLease> held = put.Finish(&cancelled, halo);
    if (!held.ok()) return held.status();
    return wire::Encode(ToBufferInfo(**held, service.engine.dense().now()));
  }
};

/// Under way, and of which matrix.
struct ArrivingValues {
  engine::NameKey key;
  std::unique_ptr<engine::ValuesUpdate> update;

  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size) {
    return update->Claim(array, offset, size);
  }
  size_t announced() const { return update->announced(); }
  size_t counted() const { return update->counted(); }
};

/// New values; every layout's refresh takes long.
struct UpdateValues {
  static constexpr Op kOp = Op::kUpdateValues;
  static constexpr const char* kName = "update";
  using Request = v1::UpdateValuesRequest;
  using Target = ArrivingValues;

  static absl::StatusOr<std::unique_ptr<Target>> Begin(const ServiceContext& service,
                                                       const std::string& tenant,
                                                       const v1::UpdateValuesHeader& message) {
    auto header = ToUpdateHeader(tenant, message);
    if (!header.ok()) return header.status();
    absl::Status here = Routed(service, tenant, message.name(), Cluster::Need::kChange);
    if (!here.ok()) return here;
    // What is acknowledged outlives this node, and so it outlives a restart of it.
    engine::NameKey key = engine::Named(tenant, message.name());
    if (service.cluster != nullptr && !service.config.in_memory() &&
        service.cluster->ReplicasOf(key) > 1) {
      header->durable = true;
    }
    auto update = service.engine.catalog().BeginUpdate(*std::move(header));
    if (absl::IsNotFound(update.status()) && service.cluster != nullptr) {
      const auto record = service.cluster->RecordOf(key);
      if (record.has_value() && !record->deleted) {
        return absl::UnavailableError(
            fmt::format("\"{}\" is being renamed, or is not here yet", message.name()));
      }
    }
    if (!update.ok()) return update.status();
    return std::make_unique<Target>(Target{std::move(key), *std::move(update)});
  }

  static absl::StatusOr<grpc::ByteBuffer> Finish(const ServiceContext& service, Target& update,
                                                 const std::atomic<bool>& cancelled) {
    const absl::StatusOr<engine::MatrixLease> matrix = Changed(service, update.key, [&] {
      return update.update->Finish(service.threads_per_worker, &cancelled);
    });
    if (!matrix.ok()) return matrix.status();
    v1::UpdateValuesReply reply;
    reply.set_version((*matrix)->version());
    if (service.cluster != nullptr) {
      reply.set_copies_missing(service.cluster->CopiesMissing(update.key));
    }
    return wire::Encode(reply);
  }
};

/// A model's files; checking them and writing them takes long.
struct PutModel {
  static constexpr Op kOp = Op::kPutModel;
  static constexpr const char* kName = "put";
  using Request = v1::PutModelRequest;
  using Target = ArrivingModel;

  static absl::StatusOr<std::unique_ptr<Target>> Begin(const ServiceContext& service,
                                                       const std::string& /*tenant*/,
                                                       const v1::PutModelHeader& header) {
    return ArrivingModel::Begin(service.engine.budget(), header);
  }

  static absl::StatusOr<grpc::ByteBuffer> Finish(const ServiceContext& service, Target& arrived,
                                                 const std::atomic<bool>& /*cancelled*/) {
    const absl::StatusOr<engine::Model::Files> files = arrived.Finish();
    if (!files.ok()) return files.status();
    const auto put = service.engine.models().Put(arrived.name(), *files, arrived.replace());
    if (!put.ok()) return put.status();
    return wire::Encode(ToModelInfo(*put));
  }
};

/// `Method`: one of the above.
template <typename Method>
class ReceiveReactor final : public BytesReadReactor, public LiveStream {
 public:
  ReceiveReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                 grpc::ByteBuffer* response, const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        response_(*response),
        hold_(service.shares.Of(*context)),
        record_(service.telemetry.Begin(Method::kOp, caller, "")) {
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

  void OnCancel() override { cancelled_ = true; }
  void OnRefused(const absl::Status& why) override { CancelCall(context_, why); }
  void OnTick(const Patience& patience) override {
    delivery_.Tick(patience, context_);
    if (!reception_.GivesUp(patience)) return;
    Conclude(patience.NothingReceived(fmt::format(
        "{} bytes of the {} are here, and nothing more came", reception_.bytes(), Method::kName)));
  }
  void Count(InFlightTable& table) override {
    const Activity activity = received_ ? Activity::kWorking : Activity::kReceiving;
    table[{Method::kOp, activity}].Add(static_cast<int64_t>(reception_.bytes()), begun_);
  }
  void OnDone() override {
    delivery_.End(/*ok=*/true).IgnoreError();
    service_.live_streams.Remove(this);
    delete this;
  }

 private:
  absl::Status Receive() {
    using Request = typename Method::Request;
    auto frame = wire::Decode<Request>(in_);
    in_.Clear();
    if (!frame.ok()) return frame.status();
    if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
      if (target_ == nullptr) return Refuse("a chunk came before the {}'s header");
      CountChunk(*chunk, record_);
      absl::Status taken =
          ReceiveChunk(*chunk, service_.config.max_chunk_bytes, service_.regions, *target_);
      return taken.ok() ? hold_.GrowTo(static_cast<int64_t>(target_->counted())) : taken;
    }
    const auto& message = std::get<Request>(*frame);
    if (!message.has_header()) return Refuse("a message of the {} is neither header nor chunk");
    if (target_ != nullptr) return Refuse("the {} has two headers");
    record_.subject = message.header().name();
    auto target = Method::Begin(service_, record_.tenant, message.header());
    if (!target.ok()) return target.status();
    target_ = *std::move(target);
    if constexpr (requires { Method::Parameters(message.header()); }) {
      record_.parameters = Method::Parameters(message.header());
    }
    return hold_.share().Check(fmt::format("the {}", Method::kName),
                               static_cast<int64_t>(target_->announced()));
  }

  /// The sending side was closed, or the client is gone.
  void OnClosed() {
    if (context_.IsCancelled()) return Conclude(BrokenOff());
    if (target_ == nullptr) return Conclude(Refuse("the {} has no header"));
    received_ = true;
    record_[Phase::kReceive] = NanosecondsSince(record_.begun);
    if (absl::Status status =
            WorkersFor(Method::kOp, service_).Run(record_.tenant, [this] { Publish(); });
        !status.ok()) {
      Conclude(std::move(status));
    }
  }

  /// On a worker.
  void Publish() {
    if (context_.IsCancelled()) return Conclude(BrokenOff());
    const TraceScope trace(record_.trace);
    const StageRecord::Clock::time_point begun = StageRecord::Clock::now();
    absl::StatusOr<grpc::ByteBuffer> reply = Method::Finish(service_, *target_, cancelled_);
    record_[Phase::kSetup] = NanosecondsSince(begun);
    if (reply.ok()) response_ = *std::move(reply);
    Conclude(reply.status());
  }

  static absl::Status Refuse(fmt::format_string<const char* const&> sentence) {
    return absl::InvalidArgumentError(fmt::format(sentence, Method::kName));
  }
  static absl::Status BrokenOff() {
    return absl::CancelledError(fmt::format("the {} broke off", Method::kName));
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    target_.reset();
    hold_.Clear();
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    EndCount();
    delivery_.Begin(0, [this, end = ToGrpc(status)] { Finish(end); });
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  ShareHold hold_;  ///< for the target
  StageRecord record_;
  const StageRecord::Clock::time_point begun_ = record_.begun;
  grpc::ByteBuffer in_;
  std::unique_ptr<typename Method::Target> target_;
  Reception reception_;
  Delivery delivery_;  ///< of the end
  std::atomic<bool> received_ = false;
  std::atomic<bool> cancelled_ = false;
};

template <typename Method>
BytesReadReactor* Start(const ServiceContext& service, grpc::CallbackServerContext* context,
                        grpc::ByteBuffer* response) {
  return ForCaller<BytesReadReactor>(Method::kOp, service, *context, [&](const Caller& caller) {
    return new ReceiveReactor<Method>(service, context, response, caller);
  });
}

}  // namespace

BytesReadReactor* StartPutBuffer(const ServiceContext& service,
                                 grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  return Start<Put>(service, context, response);
}

BytesReadReactor* StartUpdateValues(const ServiceContext& service,
                                    grpc::CallbackServerContext* context,
                                    grpc::ByteBuffer* response) {
  return Start<UpdateValues>(service, context, response);
}

BytesReadReactor* StartPutModel(const ServiceContext& service, grpc::CallbackServerContext* context,
                                grpc::ByteBuffer* response) {
  return Start<PutModel>(service, context, response);
}

}  // namespace sparsed::server
