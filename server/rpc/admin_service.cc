#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "engine/catalog/catalog.h"
#include "engine/catalog/shares.h"
#include "engine/engine.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/page.h"
#include "server/rpc/reactors.h"
#include "server/rpc/unary.h"
#include "server/security/access.h"
#include "sparsed/v1/admin.grpc.pb.h"

namespace sparsed::server {
namespace {

using Models = v1::Admin::WithRawCallbackMethod_ListModels<
    v1::Admin::WithRawCallbackMethod_PutModel<v1::Admin::WithRawCallbackMethod_ActivateModel<
        v1::Admin::WithRawCallbackMethod_RollbackModel<v1::Admin::WithRawCallbackMethod_RemoveModel<
            v1::Admin::WithRawCallbackMethod_Calibrate<v1::Admin::Service>>>>>>;
using Service = v1::Admin::WithRawCallbackMethod_GetServerInfo<
    v1::Admin::WithRawCallbackMethod_GetStats<v1::Admin::WithRawCallbackMethod_ListTenants<
        v1::Admin::WithRawCallbackMethod_ListSlow<v1::Admin::WithRawCallbackMethod_SaveSnapshot<
            v1::Admin::WithRawCallbackMethod_WatchRequests<Models>>>>>>;

/// For which a calibration waits for idle worker slots.
constexpr std::chrono::seconds kCalibrationTime{60};
constexpr int kListedSlow = 20;  ///< unless the caller says how many

/// None: it is not said.
absl::StatusOr<std::optional<DeviceKind>> DeviceKindOf(const std::string& name) {
  if (name.empty()) return std::optional<DeviceKind>();
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (Name(kind) == name) return std::optional(kind);
  }
  return absl::InvalidArgumentError(fmt::format("device is \"{}\", expected cpu or cuda", name));
}

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
          if (service_.cluster != nullptr) {
            reply.set_node(service_.cluster->self().name);
            for (const std::string& address : service_.cluster->Addresses()) {
              reply.add_node_addresses(address);
            }
          }
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

  grpc::ServerUnaryReactor* ListTenants(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override {
    return Answer<v1::ListTenantsRequest, v1::ListTenantsReply>(
        Op::kListTenants, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ListTenantsReply& reply) {
          if (!request.all()) {
            *reply.add_tenants() = InfoOf(service_.engine.tenants().Of(caller.tenant));
            return absl::OkStatus();
          }
          const absl::Status allowed =
              service_.access.Require(caller, Role::kOperator, "what all tenants use");
          if (!allowed.ok()) return allowed;
          Page page(request.page_size());
          for (const auto& tenant : service_.engine.tenants().All()) {
            if (tenant->name() <= request.page_token()) continue;
            v1::TenantInfo info = InfoOf(*tenant);
            if (!page.Take(info)) {
              reply.set_next_page_token(reply.tenants().rbegin()->name());
              break;
            }
            *reply.add_tenants() = std::move(info);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ListSlow(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes,
                                     grpc::ByteBuffer* response) override {
    return Answer<v1::ListSlowRequest, v1::ListSlowReply>(
        Op::kListSlow, service_, context, bytes, response,
        [this](const auto& request, const Caller& caller, v1::ListSlowReply& reply) {
          constexpr auto kMost = static_cast<int>(SlowRequests::kMostListed);
          if (request.limit() < 0 || request.limit() > kMost) {
            return absl::InvalidArgumentError(fmt::format(
                "limit is {}, expected 1 to {}, or 0 for {}", request.limit(), kMost, kListedSlow));
          }
          if (request.all()) {
            absl::Status allowed = service_.access.Require(caller, Role::kOperator,
                                                           "the list of all tenants' requests");
            if (!allowed.ok()) return allowed;
          }
          const std::string& tenant = request.tenant().empty() ? caller.tenant : request.tenant();
          if (!request.all() && tenant != caller.tenant) {
            return absl::InvalidArgumentError(
                "tenant is another one: requests of other tenants are for operators, with `all`");
          }
          if (absl::Status named = CheckNames(request); !named.ok()) return named;
          SlowFilter filter = {
              .tenant = request.all() && request.tenant().empty() ? nullptr : &tenant,
              .subject = request.subject()};
          if (!request.operation().empty()) {
            filter.op = ParseOp(request.operation());
            if (!filter.op) {
              return absl::InvalidArgumentError(
                  fmt::format("operation '{}' is none; known: {}", request.operation(), OpNames()));
            }
          }
          const SlowRequests& requests = service_.telemetry.slow();
          const int limit = request.limit() > 0 ? request.limit() : kListedSlow;
          for (const EndedRequest& slow : requests.List(filter)) {
            if (reply.requests_size() == limit) break;
            *reply.add_requests() = ToSlowRequest(slow);
          }
          AddRefusedAt(tenant, reply);
          if (caller.role == Role::kOperator && !request.all()) {
            reply.set_of_others(static_cast<int64_t>(requests.CountOfOthers(filter)));
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::ListModelsRequest, v1::ListModelsReply>(
        Op::kListModels, service_, context, bytes, response,
        [this](const auto& request, const Caller&, v1::ListModelsReply& reply) {
          if (!request.name().empty()) {
            const auto model = service_.engine.models().Find(request.name());
            if (!model.ok()) return model.status();
            v1::ModelInfo& info = *reply.add_models() = ToModelInfo(*model);
            info.set_manifest(model->manifest);
            return absl::OkStatus();
          }
          Page page(request.page_size());
          for (const engine::ModelFacts& model : service_.engine.models().List()) {
            if (model.name <= request.page_token()) continue;
            v1::ModelInfo info = ToModelInfo(model);
            if (!page.Take(info)) {
              reply.set_next_page_token(reply.models().rbegin()->name());
              break;
            }
            *reply.add_models() = std::move(info);
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* PutModel(grpc::CallbackServerContext* context,
                                                      grpc::ByteBuffer* response) override {
    return StartPutModel(service_, context, response);
  }

  grpc::ServerUnaryReactor* ActivateModel(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::ActivateModelRequest, v1::ActivateModelReply>(
        Op::kActivateModel, service_, context, bytes, response,
        [this](const auto& request, const Caller&, v1::ActivateModelReply& reply) {
          const auto device = DeviceKindOf(request.device());
          if (!device.ok()) return device.status();
          const auto done = service_.engine.models().Activate(
              request.name(), *device,
              request.watch() ? engine::ModelRole::kWatched : engine::ModelRole::kUsed);
          if (done.ok()) reply.set_device(std::string(Name(*done)));
          return done.status();
        });
  }

  grpc::ServerUnaryReactor* RollbackModel(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::RollbackModelRequest, v1::RollbackModelReply>(
        Op::kRollbackModel, service_, context, bytes, response,
        [this](const auto& request, const Caller&, v1::RollbackModelReply& reply) {
          const auto device = DeviceKindOf(request.device());
          if (!device.ok()) return device.status();
          const auto chooses = service_.engine.models().Rollback(*device);
          if (chooses.ok()) reply.set_name(*chooses);
          return chooses.status();
        });
  }

  grpc::ServerUnaryReactor* RemoveModel(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* bytes,
                                        grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::RemoveModelRequest, v1::RemoveModelReply>(
        Op::kRemoveModel, service_, context, bytes, response,
        [this](const auto& request, const Caller&, v1::RemoveModelReply&) {
          absl::Status removed = service_.engine.models().Remove(request.name());
          if (removed.ok()) service_.telemetry.metrics().OnModelRemoved(request.name());
          return removed;
        });
  }

  grpc::ServerUnaryReactor* Calibrate(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* bytes,
                                      grpc::ByteBuffer* response) override {
    return AnswerOnWorker<v1::CalibrateRequest, v1::CalibrateReply>(
        Op::kCalibrate, service_, context, bytes, response,
        [this](const auto& request, const Caller&, v1::CalibrateReply& reply,
               engine::Store::Stop stop) {
          const auto asked = DeviceKindOf(request.device());
          if (!asked.ok()) return asked.status();
          engine::Engine& engine = service_.engine;
          const DeviceKind kind =
              asked->value_or(engine.gpus().empty() ? DeviceKind::kCpu : DeviceKind::kCuda);
          const auto done =
              engine.Calibrate(kind, stop, std::chrono::steady_clock::now() + kCalibrationTime);
          if (!done.ok()) return done.status();
          for (const engine::DeviceFacts& device : engine.devices()) {
            const std::optional<DeviceId> id = ParseDeviceId(device.name);
            if (!id || id->kind != kind) continue;
            Fill(device, *reply.mutable_device());
            break;
          }
          return absl::OkStatus();
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* SaveSnapshot(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* bytes) override {
    return StartSaveSnapshot(service_, context, *bytes, taking_snapshot_);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchRequests(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) override {
    return StartWatchRequests(service_, context, *bytes);
  }

 private:
  /// INVALID_ARGUMENT where nothing can be called so.
  static absl::Status CheckNames(const v1::ListSlowRequest& request) {
    const std::string_view tenant = request.tenant(), subject = request.subject();
    const size_t mark = subject.find(engine::kOwnerMark);
    const bool of_owner = mark != std::string_view::npos;
    absl::Status valid;
    if (!tenant.empty()) valid = engine::ValidateName("tenant's", tenant);
    if (valid.ok() && of_owner) valid = engine::ValidateName("owner's", subject.substr(0, mark));
    if (!valid.ok() || subject.empty()) return valid;
    return engine::ValidateName("matrix or buffer", of_owner ? subject.substr(mark + 1) : subject);
  }

  /// Of a tenant that there is: one that nobody has the name of gets no entry by being asked for.
  void AddRefusedAt(const std::string& tenant, v1::ListSlowReply& reply) {
    for (const auto& known : service_.engine.tenants().All()) {
      if (known->name() != tenant) continue;
      v1::TenantInfo info = InfoOf(*known);
      std::ranges::stable_sort(*info.mutable_quotas(), std::greater(), &v1::QuotaInfo::refused);
      for (v1::QuotaInfo& quota : *info.mutable_quotas()) {
        if (quota.refused() > 0) *reply.add_refused_at() = std::move(quota);
      }
    }
  }

  v1::TenantInfo InfoOf(const engine::Tenant& tenant) {
    v1::TenantInfo info;
    info.set_name(tenant.name());
    info.set_weight(tenant.weight());
    for (int i = 0; i < engine::kQuotas; ++i) {
      const auto quota = static_cast<engine::Quota>(i);
      const engine::QuotaLimit limit = tenant.limit(quota);
      v1::QuotaInfo& message = *info.add_quotas();
      message.set_quota(std::string(engine::Name(quota)));
      message.set_used(service_.engine.UseOf(tenant, quota));
      if (limit.soft != engine::kNoLimit) message.set_soft_limit(limit.soft);
      if (limit.hard != engine::kNoLimit) message.set_hard_limit(limit.hard);
      message.set_refused(tenant.refused(quota));
      message.set_warned(tenant.warned(quota));
    }
    return info;
  }

  static void Fill(const engine::DeviceFacts& device, v1::DeviceInfo& info) {
    info.set_name(device.name);
    info.set_description(device.description);
    info.set_threads(device.threads);
    info.set_unavailable(device.unavailable);
    for (const engine::ConstantField& field : engine::ConstantFields()) {
      const double value = device.constants.*field.value;
      if (value > 0) (*info.mutable_constants())[std::string(field.name)] = value;
    }
    if (device.calibration) info.set_calibrated_unix_ns(device.calibration->measured_unix_ns);
  }

  void Fill(v1::ServerInfo& reply) {
    reply.set_version(SPARSED_VERSION);
    for (const engine::DeviceFacts& device : service_.engine.devices()) {
      Fill(device, *reply.add_devices());
    }
    reply.set_max_chunk_bytes(service_.config.max_chunk_bytes);
    reply.set_host_memory_limit_bytes(service_.config.host_memory_bytes);
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
      count.set_status_call(requests.status_call);
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
      message.set_status_call(IsStatusCall(what.first));
    }
    stats.set_uptime_seconds(std::chrono::duration<double>(now - service_.started_steady).count());
    AddDevice(DeviceId{}, "cpu", engine.budget(), stats);
    v1::DeviceUse& cpu = *stats.mutable_devices(stats.devices_size() - 1);
    cpu.set_memory_kept_bytes(engine.budget().kept());
    cpu.set_memory_reserved_bytes(service_.config.wire_memory_bytes);
    for (const auto& gpu : engine.gpus()) {
      AddDevice(gpu->id(), gpu->name(), gpu->budget(), stats);
    }
    double busy_seconds = 0;
    for (const v1::DeviceUse& device : stats.devices()) busy_seconds += device.busy_seconds();
    stats.set_device_busy_seconds(busy_seconds);
  }

  /// `budget` is the host's or a device's.
  template <typename Budget>
  void AddDevice(DeviceId id, const std::string& name, const Budget& budget, v1::Stats& stats) {
    const engine::Executor& executor = service_.engine.executor();
    v1::DeviceUse& use = *stats.add_devices();
    use.set_name(name);
    use.set_busy_seconds(executor.busy_seconds(id));
    use.set_waiting(executor.queue_depth(id));
    use.set_memory_bytes(budget.used());
    use.set_memory_limit_bytes(budget.limit());
    use.set_memory_peak_bytes(
        budget.peak());  // after what is in use, which it is then no less than
    const engine::TenantSeconds seconds = executor.tenant_seconds(id);
    for (const auto& [tenant, of_tenant] : seconds.named()) {
      (*use.mutable_tenant_seconds())[tenant] = of_tenant.seconds;
    }
    if (seconds.others() > 0) (*use.mutable_tenant_seconds())["other"] = seconds.others();
  }

  const ServiceContext& service_;
  std::atomic<bool> taking_snapshot_ = false;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context) {
  return std::make_unique<AdminService>(context);
}

}  // namespace sparsed::server
