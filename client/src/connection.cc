#include "client/src/connection.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "client/src/admin_calls.h"

namespace sparsed {
inline namespace client {
namespace {

/// Replies that are not chunks: a long list of matrices with all that was tried on them.
constexpr int kMaxReceiveBytes = 256 << 20;
constexpr int64_t kMinChunkBytes = 4096;
constexpr int kMostStreams = 16;
/// As many as carry about what one does without TLS (docs/results/h100/service.md).
constexpr int kStreamsOverTls = 4;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const ClientOptions& options,
                                           const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  // A connection of its own for each client, straight to the server, and soon again after a
  // restart.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.gateway.empty()) {
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  } else {
    arguments.SetString(GRPC_ARG_HTTP_PROXY, "http://" + options.gateway);
  }
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  const auto keepalive = static_cast<int>(
      std::clamp<int64_t>(options.keepalive.count(), 1, std::numeric_limits<int>::max()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit
  if (!credentials.server_name().empty()) {
    arguments.SetSslTargetNameOverride(credentials.server_name());
  }
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, credentials.channel(), arguments);
  // gRPC runs callbacks on a queue that it takes down with the last channel, and aborts if one of
  // that queue's own threads drops it. So the first channel stays as long as the process.
  // Volatile, or the compiler would drop the pointer and leave a leak.
  static const auto* const volatile first = new std::shared_ptr<grpc::Channel>(channel);
  static_cast<void>(first);
  return channel;
}

size_t CarriersOf(const ClientOptions& options, const Credentials& credentials) {
  const int by_default = credentials.encrypted() ? kStreamsOverTls : 1;
  const int streams = options.streams == 0 ? by_default : options.streams;
  return static_cast<size_t>(std::clamp(streams, 1, kMostStreams) - 1);
}

constexpr std::string_view kHttp = "an HTTP server answers there";

/// gRPC tells its whole way there; the cause comes last.
std::string CauseOf(const absl::Status& unavailable) {
  const std::string message(unavailable.message());
  if (message.ends_with("Trying to connect an http1.x server")) return std::string(kHttp);
  const size_t colon = message.rfind(": ");
  return colon == std::string::npos ? message : message.substr(colon + 2);
}

/// What `options` say, and where they say nothing the environment; empty: none, also of "off".
absl::StatusOr<std::string> GatewayOf(const ClientOptions& options) {
  std::string gateway = options.gateway;
  if (const char* const said = std::getenv("SPARSED_GATEWAY"); gateway.empty() && said != nullptr) {
    gateway = said;
  }
  if (gateway.empty() || gateway == "off") return "";
  constexpr std::string_view kOfHosts =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._[]:";
  const size_t colon = gateway.rfind(':');
  uint16_t port = 0;
  if (colon != std::string::npos && colon > 0 &&
      gateway.find_first_not_of(kOfHosts) == std::string::npos) {
    const char* const end = gateway.data() + gateway.size();
    const auto [rest, error] = std::from_chars(gateway.data() + colon + 1, end, port);
    if (error == std::errc() && rest == end && port > 0) return gateway;
  }
  // It may have a password in it.
  const std::string named = gateway.find('@') == std::string::npos ? " \"" + gateway + "\"" : "";
  return absl::InvalidArgumentError(
      fmt::format("the gateway{} is not HOST:PORT (--gateway, SPARSED_GATEWAY, gateway=)", named));
}

/// "ADDRESS through the gateway HOST:PORT", or without one.
std::string Way(const std::string& address, const std::string& gateway) {
  if (gateway.empty() || address.starts_with("unix:")) return address;
  return fmt::format("{} through the gateway {}", address, gateway);
}

/// Somebody took the connection, and said nothing.
bool IsSilent(const absl::Status& status) {
  return absl::IsUnavailable(status) &&
         status.message().find("before receiving SETTINGS frame") != std::string_view::npos;
}

/// What may be the matter with a connection that gRPC, which knows no flags, says that of.
std::string_view HintFor(std::string_view cause, bool encrypted) {
  const auto says = [cause](std::string_view what) {
    return cause.find(what) != std::string_view::npos;
  };
  if (says("Hostname Verification Check failed")) {
    return "its certificate is for other names than that address: say one of them by "
           "--tls-server-name, SPARSED_TLS_SERVER_NAME, server_name=";
  }
  if (says("certificate verify failed")) {
    return "its certificate is of no authority in --tls-ca, SPARSED_TLS_CA, tls=, or has expired";
  }
  if (says("security handshaker")) {
    return "--tls-ca, --tls-certificate and --tls-key: one of these files has no certificate or "
           "key, or they do not belong together";
  }
  if (cause == kHttp) {
    return "if that is a sparsed's port for metrics and the status page (--metrics-listen), gRPC "
           "is at its --listen, port 7470 unless it says otherwise";
  }
  if (says("reset by peer") || cause == "Socket closed") {
    return encrypted ? "it may speak no TLS, or not take the certificate that --tls-certificate "
                       "shows, which may have expired"
                     : "it may speak TLS: --tls-ca, SPARSED_TLS_CA, tls=";
  }
  return "an address is HOST:PORT or unix:/path";
}

}  // namespace

absl::Status Worded(absl::Status status, const std::string& address, const std::string& gateway) {
  if (!absl::IsUnavailable(status) ||
      status.message().find("failed to connect to all addresses") != 0) {
    return status;
  }
  return Reworded(status,
                  fmt::format("no sparsed at {}: {}", Way(address, gateway), CauseOf(status)));
}

Connection::Connection(const std::string& address, const ClientOptions& options,
                       std::shared_ptr<Credentials> credentials, Connection* home)
    : address_(address),
      options_(options),
      credentials_(std::move(credentials)),
      stub_(MakeChannel(address, options, *credentials_)),
      carriers_(CarriersOf(options, *credentials_)),
      home_(home == nullptr ? this : home),
      nodes_(*this),
      spmm_(*this, "/sparsed.v1.Compute/Spmm"),
      sddmm_(*this, "/sparsed.v1.Compute/Sddmm"),
      chain_(*this, "/sparsed.v1.Compute/Chain"),
      ring_(*this) {}

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const std::string& address,
                                                             const ClientOptions& options) {
  return Open(address, options, nullptr);
}

absl::StatusOr<std::shared_ptr<Connection>> Connection::OpenNode(const std::string& address,
                                                                 const ClientOptions& options,
                                                                 Connection& home) {
  return Open(address, options, &home);
}

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const std::string& address,
                                                             const ClientOptions& given,
                                                             Connection* home) {
  absl::StatusOr<std::string> gateway = GatewayOf(given);
  if (!gateway.ok() && address.starts_with("unix:")) gateway = "";  // goes by none
  if (!gateway.ok()) return gateway.status();
  ClientOptions options = given;
  options.gateway = *gateway;
  absl::StatusOr<std::shared_ptr<Credentials>> credentials = Credentials::Open(address, options);
  if (!credentials.ok()) return credentials.status();
  // What the environment said may have changed since.
  if (home != nullptr && home->credentials_->encrypted() && !(*credentials)->encrypted()) {
    return absl::FailedPreconditionError(fmt::format(
        "{} is reached over TLS, and the node at {} would not be", home->address(), address));
  }
  std::shared_ptr<Connection> connection(
      new Connection(address, options, *std::move(credentials), home));
  const auto until = std::chrono::steady_clock::now() + options.connect_timeout;
  const auto ask = [&] {
    const auto left = std::max<std::chrono::nanoseconds>(std::chrono::nanoseconds(1),
                                                         until - std::chrono::steady_clock::now());
    return GetServerInfo(connection, CallOptions{.timeout = left}).Wait();
  };
  absl::StatusOr<ServerInfo> info = ask();
  // A server that begins listens before it answers.
  while (IsSilent(info.status())) {
    info = std::chrono::steady_clock::now() < until ? ask() : absl::DeadlineExceededError("");
  }
  if (absl::IsDeadlineExceeded(info.status())) {
    return absl::UnavailableError(
        fmt::format("no sparsed answered at {} within {} ms", Way(address, *gateway),
                    std::chrono::milliseconds(options.connect_timeout).count()));
  }
  if (absl::IsUnavailable(info.status())) {
    const std::string cause = CauseOf(info.status());
    return absl::UnavailableError(
        fmt::format("no sparsed at {}: {} ({})", Way(address, *gateway), cause,
                    HintFor(cause, connection->credentials_->encrypted())));
  }
  if (!info.ok()) {
    // With the id of the request.
    return Reworded(info.status(), fmt::format("cannot use a sparsed at {}: {}", address,
                                               std::string(info.status().message())));
  }
  connection->chunk_bytes_ = static_cast<size_t>(
      std::max(kMinChunkBytes, std::min(options.max_chunk_bytes, info->max_chunk_bytes)));
  connection->nodes().Learn(info->node_addresses);
  connection->max_requests_per_stream_ = std::max(1, info->max_requests_per_stream);
  // Blocks keep it, and may outlive the connection.
  connection->shared_memory_ = std::make_shared<SharedMemory>(
      [weak = std::weak_ptr<Connection>(connection)]() -> absl::StatusOr<LocalAddress> {
        const std::shared_ptr<Connection> asked = weak.lock();
        if (asked == nullptr) return absl::UnavailableError("the connection is gone");
        return asked->FindLocalAddress();
      });
  return connection;
}

grpc::GenericStub& Connection::carrier_stub(size_t i) {
  const MutexLock lock(mutex_);
  if (carrier_stubs_.size() <= i) carrier_stubs_.resize(i + 1);
  std::unique_ptr<grpc::GenericStub>& stub = carrier_stubs_[i];
  if (stub == nullptr)
    stub = std::make_unique<grpc::GenericStub>(MakeChannel(address_, options_, *credentials_));
  return *stub;
}

absl::StatusOr<LocalAddress> Connection::FindLocalAddress(
    std::chrono::steady_clock::time_point deadline) {
  const auto left = std::max(std::chrono::nanoseconds(0),
                             std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()));
  const CallOptions options{.timeout =
                                std::min<std::chrono::nanoseconds>(options_.connect_timeout, left)};
  absl::StatusOr<ServerInfo> info = GetServerInfo(shared_from_this(), options).Wait();
  if (!info.ok()) return info.status();
  return LocalAddress{std::move(info->local_socket), std::move(info->server_id),
                      std::move(info->tenant), Token()};
}

}  // namespace client
}  // namespace sparsed
