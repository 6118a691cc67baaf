#include "server/server.h"

#include <fmt/format.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/listen_address.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/service.h"
#include "server/rpc/worker_pool.h"
#include "server/telemetry/engine_gauges.h"
#include "server/telemetry/http_port.h"
#include "server/telemetry/in_flight.h"
#include "server/telemetry/status_page.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

constexpr int kWorkers = 4;
constexpr int kMaxStreamsPerConnection = 1024;
constexpr int kSecond = 1000;  // in gRPC's milliseconds
/// For calls to see that they were cancelled.
constexpr auto kCancelTime = std::chrono::milliseconds(100);

engine::EngineOptions ToEngineOptions(const Config& config) {
  engine::EngineOptions options;
  options.data_dir = config.data_dir;
  options.host_memory_bytes = config.host_memory_bytes;
  options.preparation_memory_bytes = config.preparation_memory_bytes;
  const auto asked = [&](const char* device) {
    return std::ranges::find(config.devices, device) != config.devices.end();
  };
  options.gpu_required = asked(engine::Device::kName);
  if (options.gpu_required || asked("auto")) {
    options.gpu = engine::DeviceOptions{.memory_bytes = config.device_memory_bytes,
                                        .staging_bytes = config.staging_memory_bytes};
  }
  options.scrub_interval_seconds = config.scrub_interval_seconds;
  options.execution.lanes = config.lanes;
  options.execution.threads_per_lane = std::max(1, config.threads / config.lanes);
  options.execution.max_queued = config.max_queued;
  options.preparation.enabled = config.preparation_workers > 0;
  options.preparation.workers = std::max(1, config.preparation_workers);
  options.preparation.threads_per_worker = config.preparation_threads;
  options.preparation.seconds = config.preparation_seconds;
  return options;
}

void SetTransport(const Config& config, grpc::ServerBuilder& builder) {
  // A message holds one chunk or one control message; what is larger is refused unread.
  const size_t largest = static_cast<size_t>(config.max_chunk_bytes) + wire::kMaxControlBytes;
  builder.SetMaxReceiveMessageSize(static_cast<int>(largest));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // Fewer, larger frames: bulk bytes cost less work on both ends.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // A client that vanished without a word is noticed within 80 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10 * kSecond);
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(const Config& config)
      : config_(config), workers_(kWorkers, static_cast<size_t>(config.max_queued)) {}

  ~Impl() {
    live_streams_.Drain();
    // gRPC's own part of shutting down ends when every call is done with its reactor.
    if (grpc_ != nullptr) grpc_->Shutdown(std::chrono::system_clock::now() + kCancelTime);
    grpc_.reset();
    http_.reset();
  }

  absl::Status Start() {
    for (const std::string& address : config_.listen) {
      if (absl::Status status = CheckListenAddress(address); !status.ok()) return status;
    }
    telemetry_.metrics().device_lost = [this] {
      device_lost_ = true;
      SetReady(false);
    };
    auto engine = engine::Engine::Open(ToEngineOptions(config_), telemetry_.metrics());
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    gauges_ = std::make_unique<EngineGauges>(*engine_);
    if (!config_.metrics_listen.empty()) {
      auto http = HttpPort::Start(config_.metrics_listen, Pages());
      if (!http.ok()) return http.status();
      http_ = *std::move(http);
      metrics_address_ = http_->address();
    }
    return StartGrpc();
  }

  void Drain(std::chrono::duration<double> grace) {
    SetReady(false);
    live_streams_.Drain();
    const auto deadline = std::chrono::steady_clock::now() + grace;
    while (telemetry_.in_flight() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::string& metrics_address() const { return metrics_address_; }
  engine::Engine& engine() { return *engine_; }

 private:
  absl::Status StartGrpc() {
    // Once nobody uses it, gRPC takes itself down, and may wait ten seconds for a poller of its
    // own.
    grpc_init();
    context_ = std::make_unique<ServiceContext>(ServiceContext{
        config_, *engine_, telemetry_, workers_, std::max(1, config_.threads / kWorkers),
        live_streams_, metrics_address_, started_, started_steady_});
    services_.push_back(MakeCatalogService(*context_));
    services_.push_back(MakeComputeService(*context_));
    services_.push_back(MakeBuffersService(*context_));
    services_.push_back(MakeAdminService(*context_));

    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    SetTransport(config_, builder);
    std::vector<int> ports(config_.listen.size(), 0);
    for (size_t i = 0; i < ports.size(); ++i) {
      builder.AddListeningPort(config_.listen[i], grpc::InsecureServerCredentials(), &ports[i]);
    }
    for (const auto& service : services_) builder.RegisterService(service.get());
    grpc_ = builder.BuildAndStart();
    for (size_t i = 0; i < ports.size(); ++i) {
      const std::string& address = config_.listen[i];
      if (grpc_ == nullptr && ports[i] <= 0) {
        return absl::FailedPreconditionError(fmt::format("cannot listen on {}", address));
      }
      addresses_.push_back(
          address.starts_with("unix:")
              ? address
              : fmt::format("{}:{}", address.substr(0, address.rfind(':')), ports[i]));
    }
    if (grpc_ == nullptr) return absl::FailedPreconditionError("cannot start gRPC");
    listening_ = true;
    SetReady(true);
    if (device_lost_) SetReady(false);  // meanwhile
    return absl::OkStatus();
  }

  /// What probes are told.
  void SetReady(bool ready) {
    ready_ = ready;
    if (!listening_) return;
    grpc::HealthCheckServiceInterface& health = *grpc_->GetHealthCheckService();
    health.SetServingStatus(ready);
    for (const char* service : {"Catalog", "Compute", "Buffers", "Admin"}) {
      health.SetServingStatus(fmt::format("sparsed.v1.{}", service), ready);
    }
  }

  std::map<std::string, HttpPort::Page> Pages() {
    return {
        {"/metrics",
         [this] {
           std::vector<prometheus::MetricFamily> families = telemetry_.metrics().Collect();
           for (auto& family : gauges_->Collect()) families.push_back(std::move(family));
           for (auto& family : Families(live_streams_.InFlight())) {
             families.push_back(std::move(family));
           }
           return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8",
                            prometheus::TextSerializer().Serialize(families)};
         }},
        {"/healthz", [] { return HttpReply{.body = "alive\n"}; }},
        {"/readyz",
         [this] {
           return ready_ ? HttpReply{.body = "ready\n"}
                         : HttpReply{.status = 503, .body = "not ready\n"};
         }},
        {"/",
         [this] {
           const std::chrono::duration<double> uptime =
               std::chrono::steady_clock::now() - started_steady_;
           return HttpReply{
               .content_type = "text/html; charset=utf-8",
               .body = StatusPage(config_, *engine_, telemetry_, uptime.count(), !ready_)};
         }},
    };
  }

  // In the order of construction; destroyed in reverse: whoever calls goes before whom it calls.
  const Config config_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  const std::chrono::steady_clock::time_point started_steady_ = std::chrono::steady_clock::now();
  std::atomic<bool> ready_ = false;
  std::atomic<bool> listening_ = false;
  std::atomic<bool> device_lost_ = false;
  std::string metrics_address_;
  std::vector<std::string> addresses_;
  LiveStreams live_streams_{config_};
  Telemetry telemetry_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<EngineGauges> gauges_;
  WorkerPool workers_;
  std::unique_ptr<ServiceContext> context_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<HttpPort> http_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config) {
  auto impl = std::make_unique<Impl>(config);
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Drain(std::chrono::duration<double> grace) { impl_->Drain(grace); }
const std::vector<std::string>& Server::addresses() const { return impl_->addresses(); }
const std::string& Server::metrics_address() const { return impl_->metrics_address(); }
engine::Engine& Server::engine() { return impl_->engine(); }

}  // namespace sparsed::server
