#include "server/cluster/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "engine/memory/budget.h"
#include "server/telemetry/call_origin.h"

namespace sparsed::server {
namespace {

/// A chunk and its envelope.
constexpr int kMostMessageBytes = 80 << 20;
/// More than there are nodes; they may come under ever new addresses.
constexpr size_t kMostChannels = 64;
constexpr uint32_t kCallerOrder = 3;

absl::Status FromGrpc(const grpc::Status& status, const std::string& address) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      fmt::format("the node at {}: {}", address, status.error_message()));
}

std::optional<ElementType> TypeOf(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F32:
      return ElementType::kF32;
    case v1::ELEMENT_TYPE_F64:
      return ElementType::kF64;
    case v1::ELEMENT_TYPE_F16:
      return ElementType::kF16;
    case v1::ELEMENT_TYPE_BF16:
      return ElementType::kBF16;
    default:
      return std::nullopt;
  }
}

/// INTERNAL for what is no matrix; the rest is the catalog's to check.
absl::StatusOr<engine::UploadHeader> HeaderOf(const v1::CopyHereRequest& request,
                                              const v1::DownloadHeader& header, bool values_only) {
  const v1::MatrixInfo& matrix = header.matrix();
  const std::optional<ElementType> type = TypeOf(matrix.type());
  if (!type.has_value()) return absl::InternalError("a node sent values of an unknown type");
  engine::UploadHeader upload;
  upload.tenant = request.tenant();
  upload.name = request.name();
  upload.rows = matrix.rows();
  upload.cols = matrix.cols();
  upload.nnz = matrix.nnz();
  upload.type = *type;
  upload.replace = true;
  upload.sort = header.caller_order();
  if (values_only) upload.pattern_hash = matrix.pattern_hash();
  upload.time_to_live = std::chrono::nanoseconds(matrix.time_to_live_ns());
  // It is the same version everywhere.
  constexpr uint64_t kHighestVersion = uint64_t{1} << 62;
  if (matrix.version() < 1 || matrix.version() > kHighestVersion) {
    return absl::InternalError("a node sent a version that is none");
  }
  upload.version = matrix.version();
  upload.created_unix_ns = matrix.created_unix_ns();
  upload.requester = {request.tenant(), "a node of the cluster", "", request.name()};
  return upload;
}

/// Where arrays that come chunk after chunk, each array's in ascending order, go.
class Receiver {
 public:
  /// `order`: memory for the caller's order, if it comes, of 8 bytes a nonzero.
  Receiver(engine::Upload& upload, const v1::DownloadHeader& header, Buffer order)
      : upload_(upload), ordered_(header.caller_order()), order_(std::move(order)) {
    const v1::MatrixInfo& matrix = header.matrix();
    const uint64_t nnz = static_cast<uint64_t>(matrix.nnz());
    widths_ = {8, 4, SizeOf(TypeOf(matrix.type()).value_or(ElementType::kF32))};
    bytes_ = {static_cast<uint64_t>(matrix.rows() + 1) * 8, nnz * 4, nnz * widths_[2],
              ordered_ ? nnz * 8 : 0};
  }

  absl::Status Take(const v1::Chunk& chunk) {
    const uint32_t array = chunk.array();
    const std::string& data = chunk.data();
    if (array > kCallerOrder || chunk.offset() != received_[array] ||
        data.size() > bytes_[array] - received_[array]) {
      return absl::InternalError("a node sent bytes that belong to no array");
    }
    received_[array] += data.size();
    if (array == kCallerOrder) {
      std::memcpy(order_.mutable_data() + chunk.offset(), data.data(), data.size());
      return absl::OkStatus();
    }
    if (ordered_ && array > 0) return Scatter(array, chunk.offset(), data);
    const absl::StatusOr<std::byte*> to = upload_.Claim(array, chunk.offset(), data.size());
    if (!to.ok()) return to.status();
    std::memcpy(*to, data.data(), data.size());
    return absl::OkStatus();
  }

 private:
  /// To where the caller had them: `order_` came before.
  absl::Status Scatter(uint32_t array, uint64_t offset, const std::string& data) {
    const size_t width = widths_[array];
    if (received_[kCallerOrder] != bytes_[kCallerOrder] || offset % width != 0 ||
        data.size() % width != 0) {
      return absl::InternalError("a node sent nonzeros before their order");
    }
    std::byte*& begin = begin_[array];
    if (begin == nullptr) {
      const absl::StatusOr<std::byte*> all = upload_.Claim(array, 0, bytes_[array]);
      if (!all.ok()) return all.status();
      begin = *all;
    }
    const std::span order(reinterpret_cast<const int64_t*>(order_.data()),
                          bytes_[kCallerOrder] / sizeof(int64_t));
    for (size_t i = 0; i < data.size() / width; ++i) {
      const int64_t at = order[offset / width + i];
      if (at < 0 || static_cast<size_t>(at) >= order.size()) {
        return absl::InternalError("a node sent an order that is none");
      }
      std::memcpy(begin + static_cast<size_t>(at) * width, data.data() + i * width, width);
    }
    return absl::OkStatus();
  }

  engine::Upload& upload_;
  const bool ordered_;
  std::array<size_t, 3> widths_{};
  std::array<uint64_t, 4> bytes_{};
  std::array<uint64_t, 4> received_{};
  std::array<std::byte*, 3> begin_{};
  Buffer order_;
};

/// The messages of one Fetch, each waited for with patience. Finish() comes last.
class FetchCall {
 public:
  FetchCall(v1::Cluster::Stub& stub, grpc::ClientContext& context, const v1::FetchRequest& request,
            std::chrono::milliseconds patience)
      : context_(context),
        patience_(patience),
        reader_(stub.AsyncFetch(&context, request, &queue_, nullptr)) {
    Wait();
  }
  ~FetchCall() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool done = false;
    while (queue_.Next(&tag, &done)) {
    }
  }
  FetchCall(const FetchCall&) = delete;
  FetchCall& operator=(const FetchCall&) = delete;

  /// False: there are no more.
  bool Read(v1::DownloadReply* message) {
    reader_->Read(message, nullptr);
    return Wait();
  }
  grpc::Status Finish() {
    grpc::Status status;
    reader_->Finish(&status, nullptr);
    Wait();
    if (!silent_) return status;
    return {grpc::DEADLINE_EXCEEDED,
            fmt::format("nothing of the matrix came for {} ms", patience_.count())};
  }

 private:
  /// Whether what was begun last succeeded.
  bool Wait() {
    void* tag = nullptr;
    bool succeeded = false;
    if (queue_.AsyncNext(&tag, &succeeded, std::chrono::system_clock::now() + patience_) ==
        grpc::CompletionQueue::TIMEOUT) {
      silent_ = true;
      context_.TryCancel();
      queue_.Next(&tag, &succeeded);
    }
    return succeeded && !silent_;
  }

  grpc::ClientContext& context_;
  const std::chrono::milliseconds patience_;
  bool silent_ = false;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::DownloadReply>> reader_;
};

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const Peers::Options& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = options.authorities;
  ssl.pem_cert_chain = options.certificate;
  ssl.pem_private_key = options.key;
  return grpc::SslCredentials(ssl);
}

}  // namespace

Peers::Peers(Options options)
    : options_(std::move(options)), credentials_(CredentialsOf(options_)) {}

std::shared_ptr<grpc::Channel> Peers::ChannelTo(const std::string& address) {
  const MutexLock lock(mutex_);
  if (channels_.size() >= kMostChannels && !channels_.contains(address)) {
    std::erase_if(channels_, [](const auto& known) { return known.second.use_count() == 1; });
  }
  std::shared_ptr<grpc::Channel>& channel = channels_[address];
  if (channel == nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMostMessageBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // A node that vanished without a word, also while it has long had nothing to say.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
    channel = grpc::CreateCustomChannel(address, credentials_, arguments);
  }
  return channel;
}

Peers::Calling::Calling(Peers& peers) : peers_(peers) {
  const std::string& token = peers_.options_.token;
  if (!token.empty() && peers_.options_.tls) {
    context_.AddMetadata("authorization", fmt::format("Bearer {}", token));
  }
  if (const TraceContext& trace = TraceScope::Current(); trace.traced()) {
    context_.AddMetadata("traceparent", TraceParentOf(trace));
    if (!trace.state.empty()) context_.AddMetadata("tracestate", trace.state);
  }
  const MutexLock lock(peers_.mutex_);
  peers_.calling_.insert(&context_);
  if (peers_.cancelled_) context_.TryCancel();
}

Peers::Calling::~Calling() {
  const MutexLock lock(peers_.mutex_);
  peers_.calling_.erase(&context_);
}

void Peers::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* const context : calling_) context->TryCancel();
}

absl::StatusOr<v1::CopyHereReply> Peers::CopyHere(const std::string& address,
                                                  const v1::CopyHereRequest& request) {
  v1::CopyHereReply reply;
  const auto stub = v1::Cluster::NewStub(ChannelTo(address));
  Calling calling(*this);
  absl::Status status = FromGrpc(stub->CopyHere(&calling.context(), request, &reply), address);
  if (!status.ok()) return status;
  return reply;
}

absl::StatusOr<v1::CopyHereReply> Peers::Fetch(const v1::CopyHereRequest& request,
                                               engine::Engine& engine, int threads,
                                               const std::atomic<bool>& stop) {
  const bool may_have_pattern =
      !request.pattern_hash().empty() && engine.catalog().HasPattern(request.pattern_hash());
  bool pattern_missing = false;
  auto reply = FetchOnce(request, may_have_pattern, &pattern_missing, engine, threads, stop);
  if (!pattern_missing) return reply;
  return FetchOnce(request, false, &pattern_missing, engine, threads, stop);
}

absl::StatusOr<v1::CopyHereReply> Peers::FetchOnce(const v1::CopyHereRequest& request,
                                                   bool values_only, bool* pattern_missing,
                                                   engine::Engine& engine, int threads,
                                                   const std::atomic<bool>& stop) {
  *pattern_missing = false;
  v1::FetchRequest fetch;
  fetch.set_tenant(request.tenant());
  fetch.set_name(request.name());
  fetch.set_values_only(values_only);
  const auto stub = v1::Cluster::NewStub(ChannelTo(request.from()));
  Calling calling(*this);
  grpc::ClientContext& context = calling.context();
  FetchCall call(*stub, context, fetch, options_.patience);
  v1::CopyHereReply reply;
  std::unique_ptr<engine::Upload> upload;
  std::optional<Receiver> receiver;
  v1::DownloadReply message;
  absl::Status status;
  const auto begun = std::chrono::steady_clock::now();
  while (status.ok() && call.Read(&message)) {
    if (stop) {
      status = absl::CancelledError("the node shuts down");
    } else if (message.has_header() && upload == nullptr) {
      const v1::MatrixInfo& matrix = message.header().matrix();
      reply.set_source_created_unix_ns(matrix.created_unix_ns());
      reply.set_source_version(matrix.version());
      auto header = HeaderOf(request, message.header(), values_only);
      auto begin = header.ok() ? engine.catalog().BeginUpload(*std::move(header))
                               : absl::StatusOr<std::unique_ptr<engine::Upload>>(header.status());
      status = begin.status();
      if (!status.ok()) break;
      upload = *std::move(begin);
      *pattern_missing = values_only && !upload->pattern_known();
      if (*pattern_missing) break;
      Buffer order;
      if (message.header().caller_order()) {
        engine::Budget& budget = engine.budget();
        auto memory = budget.Source(engine::MemoryUse::kMatrices, &budget.OwnerOf(request.tenant()))
                          .Allocate(static_cast<size_t>(matrix.nnz()) * sizeof(int64_t));
        status = memory.status();
        if (!status.ok()) break;
        order = *std::move(memory);
      }
      receiver.emplace(*upload, message.header(), std::move(order));
    } else if (message.has_chunk() && receiver.has_value()) {
      status = receiver->Take(message.chunk());
      reply.set_bytes(reply.bytes() + static_cast<int64_t>(message.chunk().data().size()));
      if (request.bytes_per_second() > 0) {
        const std::chrono::duration<double> due(static_cast<double>(reply.bytes()) /
                                                static_cast<double>(request.bytes_per_second()));
        const auto ahead = due - (std::chrono::steady_clock::now() - begun);
        if (ahead.count() > 0) {
          std::this_thread::sleep_for(
              std::min<std::chrono::duration<double>>(ahead, std::chrono::seconds(1)));
        }
      }
    } else {
      status = absl::InternalError("a node sent what is no part of a matrix");
    }
  }
  if (!status.ok() || *pattern_missing) context.TryCancel();
  const grpc::Status end = call.Finish();
  if (*pattern_missing) return absl::NotFoundError("the pattern is not here");
  if (!status.ok()) return status;
  if (!end.ok()) return FromGrpc(end, request.from());
  if (upload == nullptr) return absl::InternalError("a node sent no matrix");
  const absl::StatusOr<engine::MatrixLease> matrix = upload->Finish(threads, &stop);
  if (!matrix.ok()) return matrix.status();
  reply.set_created_unix_ns((*matrix)->created_unix_ns());
  reply.set_version((*matrix)->version());
  return reply;
}

}  // namespace sparsed::server
