#include <fmt/format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>
#include <utility>

#include "engine/retry.h"
#include "proto/wire/chunk_codec.h"
#include "server/cluster/copies.h"
#include "server/cluster/transport.h"
#include "sparsed/v1/cluster.pb.h"

namespace sparsed::server {
namespace {

constexpr char kMethod[] = "/sparsed.v1.Cluster/FetchRows";
/// After which one asks whether to stop.
constexpr std::chrono::milliseconds kLook(20);
/// A node that is there, and of which nothing came for so long.
constexpr std::chrono::seconds kPatience(30);

grpc::ByteBuffer RequestFor(const WantedRows& wanted, const RowsThere& from) {
  v1::FetchRowsRequest request;
  request.set_tenant(wanted.tenant);
  request.set_name(from.buffer);
  request.set_version(wanted.version);
  request.mutable_rows()->Add(from.rows.begin(), from.rows.end());
  return wire::Encode(request);
}

absl::Status MakesNoSense(const RowsThere& from) {
  return absl::InternalError(
      fmt::format("the node at {} sent rows that were not asked for", from.address));
}

/// What a node ended it with.
absl::Status EndOf(const grpc::Status& status, const RowsThere& from) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string said = fmt::format("the node at {}: {}", from.address, status.error_message());
  switch (code) {
    // A NOT_FOUND of the product would be one of its matrix.
    case absl::StatusCode::kNotFound:
      return absl::FailedPreconditionError(said + ": put it for the matrix (again)");
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInvalidArgument:
      return absl::FailedPreconditionError(said);
    case absl::StatusCode::kResourceExhausted:
      return engine::RetryLater(absl::ResourceExhaustedError(said));
    // Between nodes; of the tenant they would say something else.
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
      return absl::UnavailableError(said);
    default:
      return absl::Status(code, said);
  }
}

/// All calls are one completion queue's, whose events the thread that finishes them takes.
class GrpcFetch final : public Transport::Fetch {
 public:
  GrpcFetch(std::shared_ptr<Peers> peers, WantedRows wanted)
      : peers_(std::move(peers)), wanted_(std::move(wanted)), calls_(wanted_.from.size()) {
    for (size_t i = 0; i < calls_.size(); ++i) Begin(i);
  }

  ~GrpcFetch() override {
    for (One& call : calls_) {
      if (call.calling.has_value()) call.calling->context().TryCancel();
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  absl::Status Finish(const Transport::Take& take, const std::function<bool()>& stopped) override {
    size_t open = calls_.size();
    auto heard = std::chrono::steady_clock::now();
    while (open > 0) {
      if (stopped()) {
        return absl::CancelledError("cancelled while rows of other nodes were on their way");
      }
      void* tag = nullptr;
      bool ok = false;
      const auto next = queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kLook);
      if (next == grpc::CompletionQueue::TIMEOUT) {
        if (std::chrono::steady_clock::now() - heard < kPatience) continue;
        return absl::UnavailableError(fmt::format(
            "nothing of the rows that other nodes have came for {} s", kPatience.count()));
      }
      heard = std::chrono::steady_clock::now();
      if (next == grpc::CompletionQueue::SHUTDOWN) break;
      const auto code = reinterpret_cast<size_t>(tag);
      One& call = calls_[code / kEvents];
      const RowsThere& from = wanted_.from[code / kEvents];
      switch (static_cast<Event>(code % kEvents)) {
        case kWritten:
          break;
        case kRead:
          if (!ok) {
            call.stream->Finish(&call.end, TagOf(code / kEvents, kEnded));
            break;
          }
          if (absl::Status taken = Take(code / kEvents, take); !taken.ok()) return taken;
          call.stream->Read(&call.in, TagOf(code / kEvents, kRead));
          break;
        case kEnded:
          if (absl::Status end = EndOf(call.end, from); !end.ok()) return end;
          if (!call.announced || call.received != BytesOf(from)) return MakesNoSense(from);
          --open;
          break;
      }
    }
    return absl::OkStatus();
  }

 private:
  enum Event : size_t { kWritten, kRead, kEnded };
  static constexpr size_t kEvents = 3;
  struct One {
    std::optional<Peers::Calling> calling;
    std::unique_ptr<grpc::GenericStub> stub;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::ByteBuffer in;
    grpc::Status end;
    bool announced = false;
    uint64_t received = 0;
  };

  static void* TagOf(size_t call, Event event) {
    return reinterpret_cast<void*>(call * kEvents + event);
  }
  uint64_t BytesOf(const RowsThere& from) const {
    return from.rows.size() * static_cast<uint64_t>(wanted_.cols) * SizeOf(wanted_.type);
  }

  void Begin(size_t i) {
    const RowsThere& from = wanted_.from[i];
    One& call = calls_[i];
    call.calling.emplace(*peers_);
    call.stub = std::make_unique<grpc::GenericStub>(peers_->ChannelTo(from.address));
    // It starts with its only message.
    call.calling->context().set_initial_metadata_corked(true);
    call.stream = call.stub->PrepareCall(&call.calling->context(), kMethod, &queue_);
    call.stream->StartCall(nullptr);
    call.stream->WriteLast(RequestFor(wanted_, from), grpc::WriteOptions(), TagOf(i, kWritten));
    call.stream->Read(&call.in, TagOf(i, kRead));
  }

  absl::Status Take(size_t i, const Transport::Take& take) {
    const RowsThere& from = wanted_.from[i];
    One& call = calls_[i];
    const auto frame = wire::Decode<v1::FetchRowsReply>(call.in);
    call.in.Clear();
    if (!frame.ok()) return MakesNoSense(from);
    if (const auto* reply = std::get_if<v1::FetchRowsReply>(&*frame)) {
      const v1::DenseShape& shape = reply->header().shape();
      if (call.announced || static_cast<uint64_t>(shape.rows()) != from.rows.size()) {
        return MakesNoSense(from);
      }
      if (shape.cols() != wanted_.cols || shape.type() != TypeOnWire(wanted_.type)) {
        return absl::FailedPreconditionError(
            fmt::format("rows at the node {} are of another width or type", from.address));
      }
      call.announced = true;
      return absl::OkStatus();
    }
    const auto& chunk = std::get<wire::ChunkView>(*frame);
    if (!call.announced || chunk.array != 0 || chunk.size == 0 || chunk.offset != call.received ||
        chunk.size > BytesOf(from) - call.received) {
      return MakesNoSense(from);
    }
    for (const grpc::Slice& slice : chunk.data) {
      take(i, call.received,
           std::span(reinterpret_cast<const std::byte*>(slice.begin()), slice.size()));
      call.received += slice.size();
    }
    return absl::OkStatus();
  }

  static v1::ElementType TypeOnWire(ElementType type) {
    switch (type) {
      case ElementType::kF32:
        return v1::ELEMENT_TYPE_F32;
      case ElementType::kF64:
        return v1::ELEMENT_TYPE_F64;
      case ElementType::kF16:
        return v1::ELEMENT_TYPE_F16;
      case ElementType::kBF16:
        return v1::ELEMENT_TYPE_BF16;
      default:
        return v1::ELEMENT_TYPE_UNSPECIFIED;
    }
  }

  const std::shared_ptr<Peers> peers_;
  const WantedRows wanted_;
  grpc::CompletionQueue queue_;
  std::vector<One> calls_;  ///< destroyed before the queue, which has no event of theirs by then
};

class OverGrpc final : public Transport {
 public:
  explicit OverGrpc(std::shared_ptr<Peers> peers) : peers_(std::move(peers)) {}
  std::unique_ptr<Fetch> Begin(WantedRows wanted) override {
    return std::make_unique<GrpcFetch>(peers_, std::move(wanted));
  }

 private:
  const std::shared_ptr<Peers> peers_;
};

}  // namespace

std::unique_ptr<Transport> GrpcTransport(std::shared_ptr<Peers> peers) {
  return std::make_unique<OverGrpc>(std::move(peers));
}

}  // namespace sparsed::server
