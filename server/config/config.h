// What the server was told to do: one validated, immutable value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sparsed::server {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError };
enum class LogFormat : uint8_t { kText, kJson };

/// Made by ParseCommandLine, which fills in what the machine decides. Sizes are in bytes.
struct Config {
  std::vector<std::string> listen = {"127.0.0.1:7470"};  ///< "host:port" or "unix:/path"
  std::string metrics_listen = "127.0.0.1:7471";         ///< "host:port"; empty: off
  std::string data_dir;                                  ///< empty: in memory
  /// "unix:/path" of the socket where processes of this machine share memory; "auto": in data_dir,
  /// if there is one and it can be; empty: off.
  std::string local_listen = "auto";
  /// Whether memory that processes of this machine allocated on a GPU themselves is used where it
  /// is. They can free it under a kernel, and what happens then CUDA does not say.
  bool trust_caller_gpu_memory = false;
  std::string access_file;  ///< who is which tenant; empty: everybody is everything
  std::string tls_certificate, tls_key, tls_client_ca;  ///< PEM files; empty: none
  std::string audit_log;        ///< a file to which is appended who changed what; empty: none
  bool share_patterns = false;  ///< equal patterns of different tenants are prepared once
  bool insecure = false;        ///< serves other machines though it can ask nobody who he is
  std::optional<uint32_t> socket_mode;   ///< permissions of Unix sockets; by the umask without
  std::optional<uint32_t> socket_group;  ///< that they belong to; the process' own without
  bool metrics_token = false;            ///< /metrics takes a token
  bool salvage = false;                  ///< rebuild the catalog in data_dir and do not serve
  bool calibrate = false;                ///< measure the devices and do not serve
  std::vector<std::string> devices = {"auto"};  ///< "auto", "cpu", "cuda:0", "cuda:1" ...

  int64_t host_memory_bytes = 0;  ///< matrices, layouts, operands and results together
  int64_t wire_memory_bytes = 0;  ///< gRPC's buffers, part of the above; 0: not bounded, no part
  int64_t preparation_memory_bytes =
      0;                            ///< scratch of all preparations together, part of the above
  int64_t device_memory_bytes = 0;  ///< 0: nine tenths of what is free
  int64_t staging_memory_bytes = 64 << 20;
  int64_t connection_memory_bytes = 0;  ///< what one connection may hold; 0: half of host_memory
  int64_t buffer_memory_bytes = 0;      ///< buffers of one tenant; 0: no quota
  int threads = 1;                      ///< of all worker slots together
  int worker_slots = 1;                 ///< worker slots: requests that run at once
  int preparation_workers = 1;          ///< preparations at once; 0: none, plain CSR only
  int preparation_threads = 1;          ///< of each preparation, at low priority
  double preparation_seconds = 3600;    ///< of each preparation; 0: no limit

  int64_t max_connections = 0;  ///< of clients; 0: as many as there are descriptors for, or 4096
  int64_t max_chunk_bytes = 2 << 20;
  int max_requests_per_stream = 64;
  int max_rings = 16;                  ///< of processes of this machine; each has a thread
  int64_t ring_spin_microseconds = 0;  ///< for which its thread looks for the next before it sleeps
  int max_queued = 4096;               ///< requests waiting for a worker slot
  /// For which a narrow SpMM may wait for others to join; 0: none is joined.
  int64_t batch_wait_microseconds = 0;
  double shutdown_grace_seconds = 30;  ///< for requests in flight after SIGTERM
  double receive_idle_seconds = 30;    ///< for which a client may send nothing that is awaited
  double send_idle_seconds = 60;       ///< for which it may take nothing of what it asked for
  double give_up_seconds = 60;         ///< of not answering its own clients, then it ends; 0: never
  double stall_seconds = 600;          ///< of requests that wait while nothing runs; 0: never
  /// For which buffers that ask for nothing stay though nothing uses them; 0: for ever.
  double buffer_time_to_live_seconds = 86400;
  double scrub_interval_seconds = 86400;  ///< between two verifications of what is stored; 0: none
  /// On disk, for what was measured on patterns that no matrix has any more; 0: it is dropped.
  int64_t past_measurement_bytes = int64_t{64} << 20;

  /// "auto": the models that are installed beside the program; a folder of others; "off": none, nor
  /// those that were put into data_dir.
  std::string models = "auto";
  /// That a signature serves, for what a model's candidate gains.
  int64_t expected_requests = 20'000;

  std::vector<std::string> etcd;  ///< "host:port" of the cluster's directory; empty: by itself
  std::string etcd_ca;            ///< PEM, who vouches for etcd; empty: it is asked in plain text
  std::string etcd_certificate, etcd_key;  ///< PEM, shown to etcd; empty: none
  /// That what is known of etcd may be old when reads are served by it; 0: no bound.
  double cluster_staleness_seconds = 0;
  /// That nodes have to stay the same before matrices move to those that joined; 0: they stay.
  double cluster_settle_seconds = 60;
  std::string advertise;  ///< "host:port" where clients and other nodes reach this one
  std::string node;       ///< its name in the cluster
  int replicas = 1;       ///< nodes that have each matrix
  int64_t replication_rate_bytes = int64_t{256}
                                   << 20;  ///< a second, in the background; 0: no bound
  std::string cluster_token_file;          ///< a secret that all nodes have; empty: they ask nobody
  std::string cluster_ca;                  ///< PEM, who vouches for nodes; empty: the system's

  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  double slow_request_seconds = 0;  ///< from which on a request is logged as slow; 0: none
  std::string otlp_endpoint;        ///< where spans go, as ParseOtlpEndpoint has it; empty: nowhere

  /// What the engine may use.
  int64_t engine_memory_bytes() const { return host_memory_bytes - wire_memory_bytes; }
  bool in_memory() const { return data_dir.empty(); }
};

/// "host:port", "[v6 address]:port" or (if `unix_too`) "unix:/path". Empty if it is one, else what
/// is wrong with it.
std::string AddressError(const std::string& address, bool unix_too);

/// As a configuration file that would bring about the same.
std::string ToYaml(const Config& config);

}  // namespace sparsed::server
