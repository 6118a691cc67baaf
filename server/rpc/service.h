// What every RPC works with, and the gRPC services made from it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/config/config.h"

namespace grpc {
class Service;
}

namespace sparsed::engine {
class Engine;
class Tenant;
}  // namespace sparsed::engine

namespace sparsed::server {

class Access;
class Carriers;
class Cluster;
class ConnectionShares;
class LiveStreams;
struct PeerProcess;
class SharedRegions;
class Telemetry;
class WorkerPool;

/// Outlives the services, rings, and their calls.
struct ServiceContext {
  const Config& config;
  engine::Engine& engine;
  Telemetry& telemetry;
  Access& access;
  /// The process at the other end of a connection over a Unix socket, by what its calls have as
  /// peer(); null: it is not known.
  std::function<std::shared_ptr<const PeerProcess>(const std::string& peer)> process_of;
  /// Counts the connection of a call with that peer() as the tenant's, for as long as it is open.
  /// RESOURCE_EXHAUSTED.
  std::function<absl::Status(const std::string& peer, engine::Tenant& tenant)> count_connection;
  WorkerPool& workers;
  int threads_per_worker;  ///< for OpenMP: each worker keeps a team of its own
  LiveStreams& live_streams;
  ConnectionShares& shares;
  const SharedRegions& regions;
  Carriers& carriers;
  /// In place of `workers`, for what waits for other nodes: none of these waits for one of its own.
  WorkerPool& changes;
  WorkerPool& arrivals;
  WorkerPool& throttled_arrivals;
  WorkerPool& gathers;          ///< of products that wait for rows of other nodes
  std::string metrics_address;  ///< empty: off
  std::string local_socket;     ///< a path; empty: off
  std::string server_id;        ///< of this run
  std::chrono::system_clock::time_point started;
  std::chrono::steady_clock::time_point started_steady;  ///< clocks may be set
  Cluster* cluster = nullptr;                            ///< null: the server is by itself
};

std::unique_ptr<grpc::Service> MakeCatalogService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeComputeService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeBuffersService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeClusterService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeReflectionService(const ServiceContext& context);

}  // namespace sparsed::server
