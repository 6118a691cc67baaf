#include "server/server.h"

#include <fmt/format.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>

#include "absl/strings/escaping.h"
#include "base/mutex.h"
#include "base/private_file.h"
#include "engine/engine.h"
#include "kernels/device_id.h"
#include "proto/wire/chunk_codec.h"
#include "server/check_start.h"
#include "server/cluster/cluster.h"
#include "server/cluster/cluster_metrics.h"
#include "server/cluster/etcd.h"
#include "server/cluster/shards.h"
#include "server/config/otlp_endpoint.h"
#include "server/engine_options.h"
#include "server/listener/descriptor.h"
#include "server/listener/front_door.h"
#include "server/listener/self_probe.h"
#include "server/local/local_door.h"
#include "server/local/ring.h"
#include "server/log/log.h"
#include "server/page/pages.h"
#include "server/page/sources.h"
#include "server/rpc/carrier.h"
#include "server/rpc/connection_share.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/service.h"
#include "server/rpc/shared_regions.h"
#include "server/rpc/worker_pool.h"
#include "server/security/access.h"
#include "server/security/certificates.h"
#include "server/service_manager.h"
#include "server/telemetry/access_metrics.h"
#include "server/telemetry/connection_metrics.h"
#include "server/telemetry/engine_gauges.h"
#include "server/telemetry/http_port.h"
#include "server/telemetry/in_flight.h"
#include "server/telemetry/otlp_exporter.h"
#include "server/telemetry/queue_watch.h"
#include "server/telemetry/telemetry.h"
#include "server/telemetry/tenant_metrics.h"
#include "server/thread_starts.h"

namespace sparsed::server {
namespace {

constexpr int kWorkers = 4;
/// Threads of a node for changes, which mostly wait for others, and those that one tenant may have;
/// for copies that somebody waits for; for copies that are to take their time; for products that
/// wait for rows of other nodes, as changes.
constexpr int kChangers = 16, kChangersOfOne = 4, kArrivals = 4, kThrottledArrivals = 1;
constexpr int kGatherers = 16, kGatherersOfOne = 4;
/// Threads that copy for callers who attach.
constexpr int kExporters = 3;
constexpr std::string_view kLocalSocket = "local.sock";
constexpr int kMaxStreamsPerConnection = 256;
/// Unless the flag says otherwise.
constexpr int64_t kMaxConnections = 4096;
constexpr int kSecond = 1000;  // in gRPC's milliseconds
/// For calls to see that they were cancelled.
constexpr auto kCancelTime = std::chrono::milliseconds(100);

/// Makes what the access file says of tenants hold; called with each version of it.
void ApplyTenants(const TenantTable& tenants, engine::Engine& engine) {
  engine::TenantWeights weights{{}, tenants.others.weight};
  for (const auto& [name, limits] : tenants.named) weights.named[name] = limits.weight;
  engine.executor().SetWeights(weights);
  engine.preparation().SetWeights(weights);
  engine.tenants().SetLimits(tenants.named, tenants.others);
}

void SetTransport(const Config& config, grpc::ServerBuilder& builder) {
  // A message holds one chunk or one control message; what is larger is refused.
  const size_t largest = static_cast<size_t>(config.max_chunk_bytes) + wire::kMaxControlBytes;
  builder.SetMaxReceiveMessageSize(static_cast<int>(largest));
  // gRPC would inflate messages without a bound: a thousand times what came.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  if (config.wire_memory_bytes > 0) {
    // A second bound, for what the front door does not count. gRPC counts what it has reserved to
    // read into, too, and past the bound it ends connections that have done no harm: so it is wide.
    grpc::ResourceQuota quota("clients");
    quota.Resize(static_cast<size_t>(config.host_memory_bytes));
    builder.SetResourceQuota(quota);
  }
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // Fewer, larger frames: bulk bytes cost less work on both ends.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // A client that vanished without a word is noticed within 80 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10 * kSecond);
}

/// Of the process' descriptors, what clients' connections may take; the rest is for files, for the
/// HTTP port and for connections that have not said a word.
int64_t MaxConnections(const Config& config, int64_t descriptors) {
  const int64_t most = std::max<int64_t>(descriptors / 2, 1);
  const int64_t wanted = config.max_connections > 0 ? config.max_connections : kMaxConnections;
  if (config.max_connections > most) {
    Log(LogLevel::kWarn, "fewer connections than asked for",
        {{"max_connections", most}, {"descriptors", descriptors}});
  }
  return std::min(wanted, most);
}

/// Whether a Host header says an address or localhost, not a name that anybody may have chosen.
bool NamesThisMachine(std::string_view host) {
  if (host.starts_with('[')) return true;
  host = host.substr(0, host.find(':'));
  return host == "localhost" || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// Nothing, of no path.
absl::Status ReadSecret(const std::string& path, std::string& text) {
  if (path.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> content = ReadPrivateFile(path);
  if (!content.ok()) return content.status();
  text = *std::move(content);
  return absl::OkStatus();
}

/// Likewise.
absl::Status ReadText(const std::string& path, std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(fmt::format("{} cannot be read", path));
  text.assign(std::istreambuf_iterator<char>(file), {});
  return absl::OkStatus();
}

/// How etcd is called.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> EtcdCredentials(const Config& config) {
  if (config.etcd_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  if (absl::Status s = ReadText(config.etcd_ca, ssl.pem_root_certs); !s.ok()) return s;
  if (absl::Status s = ReadText(config.etcd_certificate, ssl.pem_cert_chain); !s.ok()) return s;
  if (absl::Status s = ReadSecret(config.etcd_key, ssl.pem_private_key); !s.ok()) return s;
  return grpc::SslCredentials(ssl);
}

/// How this node calls others. Errors: those of ReadPrivateFile, and NOT_FOUND.
absl::StatusOr<Peers::Options> PeersOf(const Config& config) {
  Peers::Options peers;
  peers.tls = !config.tls_certificate.empty();
  if (absl::Status s = ReadSecret(config.cluster_token_file, peers.token); !s.ok()) return s;
  while (!peers.token.empty() && peers.token.find_last_of(" \r\n\t") == peers.token.size() - 1) {
    peers.token.pop_back();
  }
  constexpr size_t kLeastTokenBytes = 32;
  if (!config.cluster_token_file.empty() && peers.token.size() < kLeastTokenBytes) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: the cluster's token has {} characters, and at least {} are needed, as sparsectl token "
        "makes them",
        config.cluster_token_file, peers.token.size(), kLeastTokenBytes));
  }
  if (!peers.tls) return peers;
  if (absl::Status s = ReadSecret(config.tls_key, peers.key); !s.ok()) return s;
  if (absl::Status s = ReadText(config.tls_certificate, peers.certificate); !s.ok()) return s;
  if (absl::Status s = ReadText(config.cluster_ca, peers.authorities); !s.ok()) return s;
  return peers;
}

SocketFile SocketFileOf(const Config& config) {
  return {.mode = config.socket_mode, .group = config.socket_group};
}

FrontDoor::Options FrontDoorOptions(const Config& config, int64_t descriptors) {
  FrontDoor::Options options;
  options.addresses = config.listen;
  options.socket_file = SocketFileOf(config);
  options.tls = !config.tls_certificate.empty();
  options.max_connections = MaxConnections(config, descriptors);
  options.max_waiting = static_cast<size_t>(std::clamp<int64_t>(descriptors / 8, 1, 1024));
  options.guard.streams = kMaxStreamsPerConnection;
  // What gRPC keeps for a message may be twice its bytes.
  options.max_unfinished_bytes = config.wire_memory_bytes > 0 ? config.wire_memory_bytes / 2
                                                              : std::numeric_limits<int64_t>::max();
  return options;
}

}  // namespace

class Server::Impl {
 public:
  Impl(const Config& config, std::function<void()> give_up)
      : config_(config),
        give_up_(std::move(give_up)),
        workers_(kWorkers, static_cast<size_t>(config.max_queued)),
        exporters_(kExporters, static_cast<size_t>(config.max_queued)) {
    if (config.etcd.empty()) return;
    const auto most = static_cast<size_t>(config.max_queued);
    changes_.emplace(kChangers, most, kChangersOfOne);
    // All of them are of one tenant, the cluster.
    arrivals_.emplace(kArrivals, most, kArrivals);
    throttled_arrivals_.emplace(kThrottledArrivals, most);
    gathers_.emplace(kGatherers, most, kGatherersOfOne);
  }

  ~Impl() {
    if (access_ != nullptr) access_->OnTenants(nullptr);
    probe_.reset();
    if (live_streams_.has_value()) live_streams_->Drain();
    if (cluster_ != nullptr) cluster_->Leave();
    if (door_ != nullptr) door_->Close();
    {
      const MutexLock lock(health_mutex_);
      health_ = nullptr;
    }
    // gRPC's own part of shutting down ends when every call is done with its reactor.
    if (grpc_ != nullptr) grpc_->Shutdown(std::chrono::system_clock::now() + kCancelTime);
    grpc_.reset();
    http_.reset();
    changes_.reset();
    arrivals_.reset();
    throttled_arrivals_.reset();
    gathers_.reset();
    joined_ = nullptr;
  }

  absl::Status Start() {
    if (const std::optional<UnsafeAddress> unsafe = FindUnsafeAddress(config_)) {
      return absl::FailedPreconditionError(unsafe->why);
    }
    auto access = Access::Open(config_.access_file);
    if (!access.ok()) return access.status();
    access_ = *std::move(access);
    if (!config_.audit_log.empty()) {
      auto audit = AuditLog::Open(config_.audit_log);
      if (!audit.ok()) return audit.status();
      telemetry_.SetAudit(*std::move(audit));
    }
    telemetry_.SetSlow(std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(config_.slow_request_seconds)));
    if (!config_.otlp_endpoint.empty()) {
      const absl::StatusOr<OtlpEndpoint> endpoint = ParseOtlpEndpoint(config_.otlp_endpoint);
      if (!endpoint.ok()) return endpoint.status();
      telemetry_.SetExporter(std::make_unique<OtlpExporter>(
          OtlpExporter::Options{.endpoint = *endpoint, .instance = server_id_}));
    }
    live_streams_.emplace(config_, *access_);
    if (!config_.tls_certificate.empty()) {
      auto certificates =
          Certificates::Open({config_.tls_certificate, config_.tls_key, config_.tls_client_ca});
      if (!certificates.ok()) return certificates.status();
      certificates_ = *std::move(certificates);
    }
    // Before the engine opens, which may take its time: an address that is taken is told at once.
    auto door = FrontDoor::Open(FrontDoorOptions(config_, RaiseDescriptorLimit()));
    if (!door.ok()) return door.status();
    door_ = *std::move(door);
    addresses_ = door_->addresses();
    telemetry_.metrics().device_lost = [this] {
      ++gpus_lost_;
      TellHealth();
    };
    telemetry_.metrics().store_changed = [this](bool up) {
      store_lost_ = !up;
      TellHealth();
    };
    telemetry_.metrics().matrix_expired = [this](const std::string& tenant,
                                                 const std::string& name) {
      live_streams_->MatrixChanged(tenant, name);
      if (Cluster* const cluster = joined_) cluster->Expired(tenant, name);
    };
    absl::StatusOr<std::string> installed_models = InstalledModels(config_);
    if (!installed_models.ok()) return installed_models.status();
    engine::EngineOptions options = ToEngineOptions(config_);
    options.installed_models = *std::move(installed_models);
    auto engine = engine::Engine::Open(options, telemetry_.metrics());
    if (!engine.ok()) return engine.status();
    engine_ = *std::move(engine);
    access_->OnTenants([this](const TenantTable& tenants) {
      // Those that are named have labels of their own before others.
      for (const auto& [name, limits] : tenants.named)
        telemetry_.metrics().tenant_labels().Of(name);
      ApplyTenants(tenants, *engine_);
    });
    if (config_.stall_seconds > 0) {
      queue_watch_ = std::make_unique<QueueWatch>(
          QueueWatch::Options{.patience = std::chrono::duration<double>(config_.stall_seconds),
                              .look = [this] { return QueuesOf(*engine_); },
                              .changed = [this] { TellHealth(); }});
    }
    telemetry_.SetHidden(
        [this](std::string_view tenant, std::string_view owner, std::string_view name) {
          const engine::Catalog& catalog = engine_->catalog();
          return catalog.Look(owner, name) != nullptr &&
                 catalog.LookAtShared(tenant, engine::NameKey(owner, name)) == nullptr;
        });
    gauges_ = std::make_unique<EngineGauges>(*engine_, telemetry_.metrics().tenant_labels(),
                                             config_.wire_memory_bytes);
    context_ = std::make_unique<ServiceContext>(ServiceContext{
        config_,
        *engine_,
        telemetry_,
        *access_,
        [this](const std::string& peer) { return door_->ProcessOf(peer); },
        [this](const std::string& peer, engine::Tenant& tenant) {
          return door_->Keep(peer, tenant.name(),
                             [&tenant] { return tenant.Hold(engine::Quota::kConnections); });
        },
        workers_,
        std::max(1, config_.threads / kWorkers),
        *live_streams_,
        shares_,
        regions_,
        carriers_,
        changes_.has_value() ? *changes_ : workers_,
        arrivals_.has_value() ? *arrivals_ : workers_,
        throttled_arrivals_.has_value() ? *throttled_arrivals_ : workers_,
        gathers_.has_value() ? *gathers_ : workers_,
        /*metrics_address=*/"",
        /*local_socket=*/"",
        server_id_,
        started_,
        started_steady_});
    if (absl::Status status = JoinCluster(); !status.ok()) return status;
    rings_ = std::make_unique<Rings>(*context_);
    // Its counts are on the pages.
    if (absl::Status status = OpenLocalDoor(); !status.ok()) return status;
    if (!config_.metrics_listen.empty()) {
      auto http = HttpPort::Start(config_.metrics_listen, Pages(), Probes(),
                                  [this](HttpRequest& request) { return Refuse(request); });
      if (!http.ok()) return http.status();
      http_ = *std::move(http);
      context_->metrics_address = http_->address();
    }
    return StartGrpc();
  }

  void Drain(std::chrono::duration<double> grace) {
    serving_ = false;
    live_streams_->Drain();
    TellHealth();  // who has seen it is refused already
    const auto deadline = std::chrono::steady_clock::now() + grace;
    while (telemetry_.in_flight() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    // Others take over at once.
    if (cluster_ != nullptr) cluster_->Leave();
  }

  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::string& metrics_address() const { return context_->metrics_address; }
  engine::Engine& engine() { return *engine_; }

 private:
  absl::Status JoinCluster() {
    if (config_.etcd.empty()) return absl::OkStatus();
    Cluster::Options options;
    options.self.name = config_.node;
    options.self.address = config_.advertise;
    for (const engine::DeviceFacts& device : engine_->devices()) {
      if (device.unavailable.empty()) options.self.devices.push_back(device.name);
    }
    options.self.memory_bytes = config_.engine_memory_bytes();
    options.replicas = config_.replicas;
    options.copy_bytes_per_second = config_.replication_rate_bytes;
    options.threads = context_->threads_per_worker;
    absl::StatusOr<Peers::Options> peers = PeersOf(config_);
    if (!peers.ok()) return peers.status();
    if (!peers->token.empty()) access_->TrustNodes(peers->token);
    options.peers = *std::move(peers);
    options.staleness = std::chrono::duration<double>(config_.cluster_staleness_seconds);
    options.settle = std::chrono::duration<double>(config_.cluster_settle_seconds);
    const auto etcd = EtcdCredentials(config_);
    if (!etcd.ok()) return etcd.status();
    auto cluster = Cluster::Join(std::move(options), OpenEtcd(config_.etcd, *etcd), *engine_,
                                 [this](const std::string& tenant, const std::string& name) {
                                   live_streams_->MatrixChanged(tenant, name);
                                 });
    if (!cluster.ok()) return cluster.status();
    cluster_ = *std::move(cluster);
    context_->cluster = cluster_.get();
    joined_ = cluster_.get();
    return absl::OkStatus();
  }

  absl::Status OpenLocalDoor() {
    const bool asked_for = config_.local_listen != "auto";
    LocalDoor::Options options;
    options.file = SocketFileOf(config_);
    options.server_id = server_id_;
    options.max_bytes = ConnectionMemory(config_);
    options.trusts_caller_memory = config_.trust_caller_gpu_memory;
    options.on_runs = [this](const AttachedRuns& runs) { telemetry_.metrics().OnAttached(runs); };
    options.address = asked_for ? config_.local_listen
                                : fmt::format("unix:{}/{}", config_.data_dir, kLocalSocket);
    if (options.address.empty() || (!asked_for && config_.in_memory())) return absl::OkStatus();
    const std::string path = options.address.substr(options.address.find(':') + 1);
    absl::Status status;
    if (const std::string error = AddressError(options.address, true); !error.empty()) {
      status = absl::InvalidArgumentError(error);
    } else {
      auto door = LocalDoor::Open(std::move(options), *access_, *engine_, workers_, exporters_,
                                  regions_, *rings_);
      status = door.status();
      if (door.ok()) {
        local_door_ = *std::move(door);
        context_->local_socket = std::filesystem::absolute(path).string();
        return absl::OkStatus();
      }
    }
    if (asked_for) return status;
    Log(LogLevel::kWarn, "no memory can be shared on this machine",
        {{"message", std::string(status.message())}});
    return absl::OkStatus();
  }

  absl::Status StartGrpc() {
    // Once nobody uses it, gRPC takes itself down, and may wait ten seconds for a poller of its
    // own.
    grpc_init();
    services_.push_back(MakeCatalogService(*context_));
    services_.push_back(MakeComputeService(*context_));
    services_.push_back(MakeBuffersService(*context_));
    services_.push_back(MakeAdminService(*context_));
    services_.push_back(MakeClusterService(*context_));
    services_.push_back(MakeReflectionService(*context_));

    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    SetTransport(config_, builder);
    const auto accept = [&builder](std::shared_ptr<grpc::ServerCredentials> credentials) {
      return builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          std::move(credentials));
    };
    auto plain = accept(grpc::InsecureServerCredentials());
    auto tls = certificates_ == nullptr ? nullptr : accept(certificates_->Credentials());
    for (const auto& service : services_) builder.RegisterService(service.get());
    grpc_ = builder.BuildAndStart();
    if (grpc_ == nullptr) return absl::FailedPreconditionError("cannot start gRPC");
    if (absl::Status status = door_->Serve(std::move(plain), std::move(tls)); !status.ok())
      return status;
    {
      const MutexLock lock(health_mutex_);
      health_ = grpc_->GetHealthCheckService();
    }
    serving_ = true;
    TellHealth();
    StartProbe();
    return absl::OkStatus();
  }

  void StartProbe() {
    SelfProbe::Options options;
    options.addresses = door_->own_addresses();
    options.tls = certificates_ != nullptr;
    options.patience = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::duration<double>(config_.give_up_seconds));
    options.about_to_connect = [this](std::string name) { door_->LetIn(std::move(name)); };
    options.told = [this](const absl::Status& status) { OnProbe(status); };
    options.give_up = [this] {
      Log(LogLevel::kError, "giving up: the server cannot be reached, and ends to be restarted",
          {{"seconds", config_.give_up_seconds}});
      if (give_up_) give_up_();
    };
    probe_ = std::make_unique<SelfProbe>(std::move(options));
  }

  void OnProbe(const absl::Status& status) {
    bool changed = false;
    {
      const MutexLock lock(health_mutex_);
      changed = status.ok() != unreachable_.empty();
      if (changed) unreachable_ = std::string(status.message());
    }
    if (changed && status.ok()) {
      Log(LogLevel::kInfo, "the server can be reached again");
    } else if (changed) {
      Log(LogLevel::kError, "unreachable", {{"message", std::string(status.message())}});
    }
    TellHealth();
    // Whoever is not told any more starts the process again (WatchdogSec in deploy/systemd), which
    // is to give up.
    const bool stalled = queue_watch_ != nullptr && !queue_watch_->Reason().empty();
    if (config_.give_up_seconds == 0 || (status.ok() && !stalled)) {
      NotifyServiceManager("WATCHDOG=1");
    }
  }

  /// As the page calls it (ShardOf).
  std::optional<std::string> OfShard(const engine::NameKey& key) const {
    const std::optional<ShardName> name = ParseShardName(key.second);
    if (!name.has_value()) return std::nullopt;
    if (name->part != ShardName::Part::kRows) return "";
    const Cluster* const cluster = joined_;
    const std::string whole = cluster == nullptr ? "" : cluster->WholeOf(key);
    return fmt::format("shard {} of {}", name->index,
                       whole.empty() ? "what is not complete" : whole);
  }
  /// Empty if requests are served, else why not.
  std::string NotReady() const {
    const MutexLock lock(health_mutex_);
    return NotReadyLocked();
  }
  std::string NotReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_mutex_) {
    if (!serving_) return "the server starts or shuts down";
    // Others take its place, but for what was on it alone.
    if (gpus_lost_ > 0 && gpus_lost_ == engine_->gpus().size()) return "the GPU is lost";
    if (store_lost_) return "the data directory is gone";
    if (CountThreadStarts().waiting > 0) return "the operating system starts no more threads";
    if (std::string stalled = queue_watch_ == nullptr ? "" : queue_watch_->Reason();
        !stalled.empty()) {
      return stalled;
    }
    return unreachable_;
  }

  bool Reachable() const {
    const MutexLock lock(health_mutex_);
    return unreachable_.empty();
  }

  /// What probes over gRPC are told.
  void TellHealth() {
    const MutexLock lock(health_mutex_);
    if (health_ == nullptr) return;
    const bool ready = NotReadyLocked().empty();
    health_->SetServingStatus(ready);
    for (const char* service : {"Catalog", "Compute", "Buffers", "Admin", "Cluster"}) {
      health_->SetServingStatus(fmt::format("sparsed.v1.{}", service), ready);
    }
  }

  HttpPort::Pages Probes() {
    return {
        {"/healthz", [](const HttpRequest&) { return HttpReply{.body = "alive\n"}; }},
        {"/readyz",
         [this](const HttpRequest&) {
           const std::string reason = NotReady();
           if (reason.empty()) return HttpReply{.body = "ready\n"};
           return HttpReply{.status = 503, .body = fmt::format("not ready: {}\n", reason)};
         }},
    };
  }

  /// `/metrics` names tenants and nothing of theirs. The status page's answers are about what is
  /// the caller's tenant's, or everybody's for an operator; its files about nobody.
  std::optional<HttpReply> Refuse(HttpRequest& request) {
    const auto refuse = [](int status, const std::string& why) {
      return HttpReply{.status = status, .body = why + "\n"};
    };
    const bool metrics = request.path == "/metrics";
    if (metrics && !config_.metrics_token) return std::nullopt;
    if (access_->everybody()) {
      request.viewer = {.tenant = std::string(kDefaultTenant), .all = true};
      if (config_.insecure) return std::nullopt;
      // The pages that a browser shows may give the address of this machine a name of their own,
      // to read what is there (DNS rebinding).
      if (request.from_this_machine && NamesThisMachine(request.host)) return std::nullopt;
      return refuse(403, "this page is for this machine alone, at its address or as localhost");
    }
    if (IsPageFile(request.path)) return std::nullopt;
    Evidence evidence = {.token = TokenIn(request.authorization),
                         .private_way = request.from_this_machine};
    if (request.authorization.empty()) evidence.token.reset();
    const absl::StatusOr<Caller> caller = access_->IdentifyAt("HTTP port", evidence);
    if (!caller.ok()) return refuse(401, std::string(caller.status().message()));
    request.viewer = {.tenant = caller->tenant, .all = caller->role == Role::kOperator};
    return std::nullopt;
  }

  HttpPort::Pages Pages() {
    HttpPort::Pages pages = {
        {"/metrics",
         [this](const HttpRequest&) {
           std::vector<prometheus::MetricFamily> families = telemetry_.metrics().Collect();
           for (auto& family : gauges_->Collect()) families.push_back(std::move(family));
           if (queue_watch_ != nullptr) families.push_back(queue_watch_->Metric());
           for (auto& family : Families(live_streams_->InFlight())) {
             families.push_back(std::move(family));
           }
           for (auto& family :
                ConnectionMetrics(door_->counts(), door_->max_connections(), Reachable())) {
             families.push_back(std::move(family));
           }
           const auto certificates =
               certificates_ == nullptr ? std::nullopt : std::optional(certificates_->facts());
           for (auto& family : TenantMetrics(*engine_, telemetry_.metrics().tenant_labels())) {
             families.push_back(std::move(family));
           }
           for (auto& family : AccessMetrics(access_->counts(), certificates,
                                             telemetry_.audit() == nullptr
                                                 ? std::nullopt
                                                 : std::optional(telemetry_.audit()->counts()))) {
             families.push_back(std::move(family));
           }
           for (auto& family : ClusterMetrics(cluster_.get())) {
             families.push_back(std::move(family));
           }
           families.push_back(SpanMetric(telemetry_.spans()));
           const LocalDoor::Counts local =
               local_door_ == nullptr ? LocalDoor::Counts() : local_door_->counts();
           for (auto& family : LocalMetrics(local.connections, local.turned_away, regions_.count(),
                                            regions_.queues(), engine_->executor().attachments(),
                                            rings_->count())) {
             families.push_back(std::move(family));
           }
           return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8",
                            prometheus::TextSerializer().Serialize(families)};
         }},
    };
    pages.merge(StatusPages(std::make_shared<PageTables>(
        PageSources{.config = config_,
                    .engine = *engine_,
                    .telemetry = telemetry_,
                    .in_flight = [this] { return live_streams_->InFlight(); },
                    .not_ready = [this] { return NotReady(); },
                    .cluster = config_.etcd.empty()
                                   ? std::function<nlohmann::json()>()
                                   : [this] {
                                       const Cluster* const cluster = joined_;
                                       return cluster == nullptr ? nlohmann::json::object()
                                                                 : ClusterTable(*cluster);
                                     },
                    .shard_of = config_.etcd.empty()
                                    ? ShardOf()
                                    : [this](const engine::NameKey& key) { return OfShard(key); },
                    .addresses = addresses_,
                    .started = started_,
                    .started_steady = started_steady_})));
    return pages;
  }

  // In the order of construction; destroyed in reverse: whoever calls goes before whom it calls.
  const Config config_;
  const std::function<void()> give_up_;
  const std::string server_id_ = absl::BytesToHexString(RandomBytes(16));
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  const std::chrono::steady_clock::time_point started_steady_ = std::chrono::steady_clock::now();
  std::atomic<bool> serving_ = false;
  std::atomic<size_t> gpus_lost_ = 0;
  std::atomic<bool> store_lost_ = false;
  mutable Mutex health_mutex_;
  std::string unreachable_ ABSL_GUARDED_BY(health_mutex_);  ///< why the probe failed
  grpc::HealthCheckServiceInterface* health_ ABSL_GUARDED_BY(health_mutex_) = nullptr;
  std::vector<std::string> addresses_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<Certificates> certificates_;
  std::optional<LiveStreams> live_streams_;
  Carriers carriers_;
  ConnectionShares shares_{ConnectionMemory(config_)};
  Telemetry telemetry_;
  /// Null: by itself. Its threads end with Leave(), and the engine's may call it until they end.
  std::unique_ptr<Cluster> cluster_;
  std::atomic<Cluster*> joined_ = nullptr;  ///< the same, for them
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<EngineGauges> gauges_;
  SharedRegions regions_;
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<Rings> rings_;  ///< workers open them
  WorkerPool workers_, exporters_;
  std::optional<WorkerPool> changes_, arrivals_, throttled_arrivals_, gathers_;
  std::unique_ptr<LocalDoor> local_door_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<FrontDoor> door_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<SelfProbe> probe_;
  std::unique_ptr<QueueWatch> queue_watch_;
  std::unique_ptr<HttpPort> http_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config,
                                                      std::function<void()> give_up) {
  constexpr int kDescriptorsToStart = 40;
  RaiseDescriptorLimit();
  if (absl::Status status = CheckDescriptorsLeft(kDescriptorsToStart); !status.ok()) return status;
  auto impl = std::make_unique<Impl>(config, std::move(give_up));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Drain(std::chrono::duration<double> grace) { impl_->Drain(grace); }
const std::vector<std::string>& Server::addresses() const { return impl_->addresses(); }
const std::string& Server::metrics_address() const { return impl_->metrics_address(); }
engine::Engine& Server::engine() { return impl_->engine(); }

}  // namespace sparsed::server
