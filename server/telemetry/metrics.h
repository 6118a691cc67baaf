// What the server counts as it works. A series appears when it is first counted; label values are
// bounded.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "engine/observer.h"
#include "server/log/log_limit.h"
#include "server/telemetry/attached_runs.h"
#include "server/telemetry/stage_record.h"
#include "server/telemetry/tenant_labels.h"

namespace sparsed::server {

struct RequestCount {
  std::string op, code;
  int64_t count = 0;
  bool status_call = false;  ///< IsStatusCall(op)
};

/// Thread-safe.
class Metrics : public engine::Observer {
 public:
  Metrics();

  void Begin(Op op) { InFlight(op).Increment(); }
  /// Once for each Begin.
  void End(const StageRecord& record);
  /// A request ended, by itself or without having begun.
  void CountEnd(Op op, const std::string& tenant, const absl::Status& status);

  /// A snapshot was taken, to its end.
  void OnSnapshot(int64_t bytes);

  /// What a caller says it ran itself.
  void OnAttached(const AttachedRuns& runs);

  void OnKernelRun(const engine::KernelRun& run) override;
  void OnBatch(std::string_view device, int64_t requests) override;
  void OnDistributed(int64_t parts) override;
  void OnMovedByHost(int64_t bytes) override;
  void OnPreparationStage(std::string_view stage, double seconds) override;
  void OnTrialWait(std::string_view device, double seconds) override;
  void OnLayoutBuilt(std::string_view kind, std::string_view device, double seconds) override;
  void OnPipeline(std::string_view outcome) override;
  void OnModelChoice(std::string_view model, std::string_view role, double share) override;
  void OnModelProblem(std::string_view sentence) override;
  void OnCalibrated(std::string_view device, std::string_view sentence) override;
  void OnCalibrationProblem(std::string_view sentence) override;
  /// It is not there any more: nor are its series.
  void OnModelRemoved(std::string_view model);
  void OnPreparationEnd(std::string_view state) override;
  void OnPreparationReport(const engine::PreparationReport& report) override;
  void OnDamage(std::string_view sentence) override;
  void OnDeviceLost(std::string_view sentence) override;
  void OnStore(const absl::Status& status) override;
  void OnDenseExpired(const engine::DenseExpiry& expiry) override;
  void OnMatrixExpired(const engine::MatrixExpiry& expiry) override;
  void OnSoftLimit(const engine::Tenant& tenant, engine::Quota quota, int64_t times) override;
  /// Called after the log has it. Set before the engine opens.
  std::function<void()> device_lost;
  std::function<void(bool up)> store_changed;
  std::function<void(const std::string& tenant, const std::string& name)> matrix_expired;

  TenantLabels& tenant_labels() { return tenant_labels_; }

  std::vector<RequestCount> RequestCounts() const;
  std::vector<prometheus::MetricFamily> Collect() const { return registry_.Collect(); }

 private:
  struct OfKernel {
    prometheus::Histogram* seconds;
    prometheus::Counter* flops;
    prometheus::Counter* roofline_seconds;
  };
  OfKernel& KernelMetrics(const engine::KernelRun& run);

  /// A series that is made when it is first counted, and found without a lock from then on.
  template <typename Metric>
  class Series {
   public:
    /// `add` may be called by several threads at once, and gives all of them the same.
    template <typename Add>
    Metric& Get(Add add) {
      Metric* metric = metric_.load(std::memory_order_acquire);
      if (metric == nullptr) {
        metric = add();
        metric_.store(metric, std::memory_order_release);
      }
      return *metric;
    }

   private:
    std::atomic<Metric*> metric_ = nullptr;
  };
  prometheus::Gauge& InFlight(Op op);
  prometheus::Histogram& RequestSeconds(Op op);
  prometheus::Histogram& PhaseSeconds(Op op, size_t phase);

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& errors_;
  prometheus::Family<prometheus::Gauge>& in_flight_family_;
  prometheus::Family<prometheus::Histogram>& request_seconds_family_;
  prometheus::Family<prometheus::Histogram>& phase_seconds_family_;
  prometheus::Family<prometheus::Histogram>& kernel_seconds_;
  prometheus::Family<prometheus::Counter>& kernel_flops_;
  prometheus::Family<prometheus::Counter>& kernel_roofline_seconds_;
  prometheus::Family<prometheus::Histogram>& batch_requests_;
  prometheus::Family<prometheus::Counter>& distributed_requests_;
  prometheus::Counter* moved_by_host_ = nullptr;
  prometheus::Family<prometheus::Counter>& attached_calls_;
  prometheus::Family<prometheus::Counter>& attached_seconds_;
  prometheus::Family<prometheus::Histogram>& preparation_seconds_;
  prometheus::Family<prometheus::Histogram>& trial_wait_seconds_;
  prometheus::Family<prometheus::Histogram>& layout_build_seconds_;
  prometheus::Family<prometheus::Counter>& preparations_ended_;
  prometheus::Family<prometheus::Counter>& pipelines_;
  prometheus::Family<prometheus::Counter>& model_choices_;
  prometheus::Family<prometheus::Histogram>& model_choice_share_;
  prometheus::Family<prometheus::Gauge>&snapshot_time_, &snapshot_bytes_;
  std::array<Series<prometheus::Gauge>, kOps> in_flight_;
  std::array<Series<prometheus::Histogram>, kOps> request_seconds_;
  std::array<std::array<Series<prometheus::Histogram>, kPhases>, kOps> phase_seconds_;
  prometheus::Counter *stream_in_, *stream_out_, *carried_in_, *carried_out_, *held_in_, *held_out_,
      *shared_in_, *shared_out_, *gpu_in_, *gpu_out_, *ring_in_, *ring_out_, *attached_in_,
      *attached_out_;
  prometheus::Counter *damages_, *ring_requests_;
  TenantLabels tenant_labels_;
  LogLimit expiry_log_{/*per_second=*/1, /*burst=*/20}, soft_log_{/*per_second=*/1, /*burst=*/20},
      preparation_log_{/*per_second=*/5, /*burst=*/50},
      failure_log_{/*per_second=*/5, /*burst=*/50};  ///< of preparations

  /// A series of a model is not removed while another thread counts in it.
  Mutex model_series_;
  Mutex kernels_mutex_;
  std::map<std::tuple<Operation, std::string, std::string>, OfKernel> kernels_
      ABSL_GUARDED_BY(kernels_mutex_);
};

}  // namespace sparsed::server
