#include "server/config/config.h"

#include <fmt/format.h>
#include <sys/un.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <limits>

namespace sparsed::server {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "";
}

}  // namespace

std::string AddressError(const std::string& address, bool unix_too) {
  if (!unix_too && address.starts_with(kUnixPrefix)) {
    return fmt::format("'{}' is not HOST:PORT", address);
  }
  if (address.starts_with(kUnixPrefix)) {
    const size_t length = address.size() - kUnixPrefix.size();
    constexpr size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;
    if (length == 0) return fmt::format("'{}' lacks the socket's path", address);
    if (length > kMaxPath) {
      return fmt::format("the path of '{}' has {} bytes, a Unix socket's has at most {}", address,
                         length, kMaxPath);
    }
    return {};
  }
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (colon == std::string::npos || host.empty() ||
      (host.find(':') != std::string::npos && !bracketed)) {
    return fmt::format("'{}' is not HOST:PORT{}", address, unix_too ? " or unix:/PATH" : "");
  }
  const char* begin = address.data() + colon + 1;
  const char* end = address.data() + address.size();
  unsigned port = 0;
  const auto [parsed, error] = std::from_chars(begin, end, port);
  if (error != std::errc() || parsed != end || port > 65535) {
    return fmt::format("the port of '{}' is not a number from 0 to 65535", address);
  }
  return {};
}

std::string ToYaml(const Config& config) {
  YAML::Emitter out;
  out.SetDoublePrecision(
      std::numeric_limits<double>::digits10);  // 0.005 and not 0.0050000000000000001
  out << YAML::BeginMap;
  out << YAML::Key << "listen" << YAML::Value << YAML::Flow << config.listen;
  out << YAML::Key << "metrics_listen" << YAML::Value
      << (config.metrics_listen.empty() ? "off" : config.metrics_listen);
  out << YAML::Key << "local_listen" << YAML::Value
      << (config.local_listen.empty() ? "off" : config.local_listen);
  out << YAML::Key << "trust_caller_gpu_memory" << YAML::Value << config.trust_caller_gpu_memory;
  const auto text = [&out](const char* key, const std::string& value) {
    if (!value.empty()) out << YAML::Key << key << YAML::Value << value;
  };
  text("access_file", config.access_file);
  text("tls_certificate", config.tls_certificate);
  text("tls_key", config.tls_key);
  text("tls_client_ca", config.tls_client_ca);
  text("audit_log", config.audit_log);
  if (config.share_patterns) out << YAML::Key << "share_patterns" << YAML::Value << true;
  if (config.insecure) out << YAML::Key << "insecure" << YAML::Value << true;
  if (config.socket_mode) text("socket_mode", fmt::format("{:04o}", *config.socket_mode));
  if (config.socket_group) text("socket_group", fmt::format("{}", *config.socket_group));
  if (config.metrics_token) out << YAML::Key << "metrics_token" << YAML::Value << true;
  if (config.in_memory()) {
    out << YAML::Key << "in_memory" << YAML::Value << true;
  } else {
    out << YAML::Key << "data_dir" << YAML::Value << config.data_dir;
  }
  if (!config.etcd.empty()) {
    out << YAML::Key << "etcd" << YAML::Value << YAML::Flow << config.etcd;
    text("etcd_ca", config.etcd_ca);
    text("etcd_certificate", config.etcd_certificate);
    text("etcd_key", config.etcd_key);
    out << YAML::Key << "cluster_staleness" << YAML::Value << config.cluster_staleness_seconds;
    out << YAML::Key << "cluster_settle" << YAML::Value << config.cluster_settle_seconds;
    text("advertise", config.advertise);
    text("node", config.node);
    out << YAML::Key << "replicas" << YAML::Value << config.replicas;
    out << YAML::Key << "replication_rate" << YAML::Value << config.replication_rate_bytes;
    text("cluster_token_file", config.cluster_token_file);
    text("cluster_ca", config.cluster_ca);
  }
  out << YAML::Key << "devices" << YAML::Value << YAML::Flow << config.devices;
  out << YAML::Key << "host_memory" << YAML::Value << config.host_memory_bytes;
  out << YAML::Key << "wire_memory" << YAML::Value << config.wire_memory_bytes;
  out << YAML::Key << "preparation_memory" << YAML::Value << config.preparation_memory_bytes;
  if (config.device_memory_bytes > 0) {
    out << YAML::Key << "device_memory" << YAML::Value << config.device_memory_bytes;
  }
  out << YAML::Key << "staging_memory" << YAML::Value << config.staging_memory_bytes;
  if (config.connection_memory_bytes > 0) {
    out << YAML::Key << "connection_memory" << YAML::Value << config.connection_memory_bytes;
  }
  if (config.buffer_memory_bytes > 0) {
    out << YAML::Key << "buffer_memory" << YAML::Value << config.buffer_memory_bytes;
  }
  out << YAML::Key << "threads" << YAML::Value << config.threads;
  out << YAML::Key << "worker_slots" << YAML::Value << config.worker_slots;
  out << YAML::Key << "preparation_workers" << YAML::Value << config.preparation_workers;
  out << YAML::Key << "preparation_threads" << YAML::Value << config.preparation_threads;
  out << YAML::Key << "preparation_seconds" << YAML::Value << config.preparation_seconds;
  if (config.max_connections > 0) {
    out << YAML::Key << "max_connections" << YAML::Value << config.max_connections;
  }
  out << YAML::Key << "max_chunk" << YAML::Value << config.max_chunk_bytes;
  out << YAML::Key << "max_requests_per_stream" << YAML::Value << config.max_requests_per_stream;
  out << YAML::Key << "max_rings" << YAML::Value << config.max_rings;
  out << YAML::Key << "ring_spin" << YAML::Value << config.ring_spin_microseconds;
  out << YAML::Key << "max_queued" << YAML::Value << config.max_queued;
  out << YAML::Key << "batch_wait" << YAML::Value << config.batch_wait_microseconds;
  out << YAML::Key << "receive_idle" << YAML::Value << config.receive_idle_seconds;
  out << YAML::Key << "send_idle" << YAML::Value << config.send_idle_seconds;
  out << YAML::Key << "buffer_time_to_live" << YAML::Value << config.buffer_time_to_live_seconds;
  out << YAML::Key << "shutdown_grace" << YAML::Value << config.shutdown_grace_seconds;
  out << YAML::Key << "give_up_after" << YAML::Value << config.give_up_seconds;
  out << YAML::Key << "stall_after" << YAML::Value << config.stall_seconds;
  out << YAML::Key << "scrub_interval" << YAML::Value << config.scrub_interval_seconds;
  out << YAML::Key << "past_measurements" << YAML::Value << config.past_measurement_bytes;
  out << YAML::Key << "models" << YAML::Value << config.models;
  out << YAML::Key << "expected_requests" << YAML::Value << config.expected_requests;
  out << YAML::Key << "log_level" << YAML::Value << Name(config.log_level);
  out << YAML::Key << "log_format" << YAML::Value
      << (config.log_format == LogFormat::kJson ? "json" : "text");
  out << YAML::Key << "slow_request" << YAML::Value << config.slow_request_seconds;
  if (!config.otlp_endpoint.empty()) {
    out << YAML::Key << "otlp_endpoint" << YAML::Value << config.otlp_endpoint;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace sparsed::server
