#include "engine/engine.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/unary.h"
#include "sparsed/v1/admin.grpc.pb.h"

namespace sparsed::server {
namespace {

using Service = v1::Admin::WithRawCallbackMethod_GetServerInfo<
    v1::Admin::WithRawCallbackMethod_GetStats<v1::Admin::Service>>;

class AdminService final : public Service {
 public:
  explicit AdminService(const ServiceContext& service) : service_(service) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override {
    return Answer<v1::GetServerInfoRequest, v1::ServerInfo>(
        Op::kGetServerInfo, service_, context, bytes, response,
        [this](const auto&, const Caller& caller, v1::ServerInfo& reply) {
          Fill(reply);
          reply.set_tenant(caller.tenant);
          reply.set_role(std::string(Name(caller.role)));
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes,
                                     grpc::ByteBuffer* response) override {
    return Answer<v1::GetStatsRequest, v1::Stats>(
        Op::kGetStats, service_, context, bytes, response,
        [this](const auto&, const Caller&, v1::Stats& reply) {
          Fill(reply);
          return absl::OkStatus();
        });
  }

 private:
  void Fill(v1::ServerInfo& reply) {
    reply.set_version(SPARSED_VERSION);
    for (const engine::DeviceFacts& device : service_.engine.devices()) {
      v1::DeviceInfo& info = *reply.add_devices();
      info.set_name(device.name);
      info.set_description(device.description);
      info.set_threads(device.threads);
      info.set_unavailable(device.unavailable);
    }
    reply.set_max_chunk_bytes(service_.config.max_chunk_bytes);
    reply.set_host_memory_limit_bytes(service_.config.engine_memory_bytes());
    reply.set_durable(!service_.config.in_memory());
    reply.set_started_unix_ns(
        std::chrono::nanoseconds(service_.started.time_since_epoch()).count());
    reply.set_max_requests_per_stream(service_.config.max_requests_per_stream);
    reply.set_metrics_address(service_.metrics_address);
    reply.set_local_socket(service_.local_socket);
    reply.set_server_id(service_.server_id);
  }

  void Fill(v1::Stats& stats) {
    for (const RequestCount& requests : service_.telemetry.metrics().RequestCounts()) {
      v1::RequestCount& count = *stats.add_requests();
      count.set_operation(requests.op);
      count.set_code(requests.code);
      count.set_count(requests.count);
    }
    engine::Engine& engine = service_.engine;
    stats.set_matrices(static_cast<int64_t>(engine.catalog().All().size()));
    stats.set_patterns(engine.catalog().patterns());
    stats.set_buffers(engine.dense().size());
    for (int use = 0; use < engine::kMemoryUses; ++use) {
      const auto memory_use = static_cast<engine::MemoryUse>(use);
      (*stats.mutable_memory_bytes())[std::string(engine::Name(memory_use))] =
          engine.budget().used(memory_use);
    }
    (*stats.mutable_memory_bytes())["kept"] = engine.budget().kept();
    stats.set_requests_in_flight(engine.executor().in_flight());
    stats.set_preparations_pending(engine.preparation().pending());
    const auto now = std::chrono::steady_clock::now();
    for (const auto& [what, in_flight] : service_.live_streams.InFlight()) {
      v1::RequestsInFlight& message = *stats.add_in_flight();
      message.set_operation(std::string(Name(what.first)));
      message.set_activity(std::string(Name(what.second)));
      message.set_count(in_flight.count);
      message.set_bytes(in_flight.bytes);
      message.set_oldest_seconds(std::chrono::duration<double>(now - in_flight.oldest).count());
    }
    stats.set_uptime_seconds(std::chrono::duration<double>(now - service_.started_steady).count());
    double busy_seconds = engine.executor().busy_seconds(DeviceId{});
    for (const auto& gpu : engine.gpus()) {
      busy_seconds += engine.executor().busy_seconds(gpu->id());
    }
    stats.set_device_busy_seconds(busy_seconds);
  }

  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context) {
  return std::make_unique<AdminService>(context);
}

}  // namespace sparsed::server
