// SpMM and SDDMM calls in a queue: all that can fail is done when the request is taken, so that
// only kernels and copies on the GPU are left for when the caller's stream is there.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "engine/execution/dense_call.h"
#include "engine/execution/dense_product.h"
#include "engine/execution/device_queues.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// For a caller's stream that does not come: what its requests keep is given back then.
constexpr std::chrono::minutes kPatience{10};

/// Memory that was taken before it is asked for.
class Taken final : public MemorySource {
 public:
  absl::Status Take(MemorySource& memory, size_t bytes) {
    absl::StatusOr<Buffer> taken = memory.Allocate(bytes);
    if (taken.ok()) buffer_ = *std::move(taken);
    return taken.status();
  }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (bytes > buffer_.size()) return absl::InternalError("more than was taken");
    return buffer_.Part(0, bytes);
  }

 private:
  Buffer buffer_;
};

/// All that one product uses, where the GPU's kernels read it, until the queue has passed it.
struct QueuedProduct {
  std::shared_ptr<Executor::Impl> impl;
  GpuBackend& gpu;
  MatrixLease matrix;
  Resolved plan;
  double alpha, beta;
  PlacedSparse s = {};
  PlacedDense first = {}, second = {};
  PlacedDense old = {};      ///< C's old value, if it lies elsewhere
  PlacedDense result = {};   ///< the caller's memory
  PlacedDense written = {};  ///< the same, or where the kernel writes before it is put in order
  PlacedDense own = {};      ///< S's values, if they come with the request
  std::shared_ptr<const Array> order = {};  ///< of values in the caller's order
  Taken gathered = {}, value_slots = {};

  bool sddmm() const { return plan.problem.operation == Operation::kSddmm; }
  BoundRun Bind() const {
    return BindProduct(plan, s, first, sddmm() ? &second : nullptr, written, alpha, beta);
  }

  absl::Status Run(WorkerSlot& slot) {
    absl::Status status;
    if (own.array != nullptr) {
      absl::StatusOr<PlacedDense> values = own;
      if (order != nullptr) values = gpu.Gather(own, *order, gathered, slot);
      if (!values.ok()) return values.status();
      absl::StatusOr<std::shared_ptr<const Array>> ordered =
          gpu.OrderValues(*values, *s.layout, value_slots, slot);
      if (!ordered.ok()) return ordered.status();
      s.values = *std::move(ordered);
    }
    if (old.array != nullptr) status = gpu.CopyDense(old, result, slot);
    if (!status.ok()) return status;
    double unknown = 0;
    status = gpu.Run(slot, Bind(), {slot.workspace, gpu.memory(MemoryUse::kRequests)}, &unknown);
    if (!status.ok() || written.array == result.array) return status;
    return gpu.Scatter(written, order.get(), result, slot);
  }
};

}  // namespace

absl::Status DenseCall::Enqueue(Resolved& plan, WorkerSlot& slot) {
  GpuBackend& gpu = *impl_->gpu(device());
  MemorySource& memory = gpu.MemoryFor(MemoryUse::kRequests, owner_);
  const bool sddmm = problem_.operation == Operation::kSddmm;
  absl::StatusOr<PlacedSparse> s = PlaceMatrix(plan, slot);
  if (!s.ok()) return s.status();
  const auto placed = [](const Operand& operand) {
    return PlacedDense{std::make_shared<const Array>(*operand.shared()), operand.shape};
  };
  auto product = std::make_shared<QueuedProduct>(
      QueuedProduct{impl_, gpu, matrix_, plan, alpha_, beta_, *std::move(s)});
  product->first = placed(operands_[0]);
  if (sddmm) product->second = placed(operands_[1]);
  if (!sddmm && beta_ != 0 && !in_place_) product->old = placed(operands_[1]);
  if (own_values_) product->own = placed(operands_.back());
  absl::StatusOr<PlacedDense> result = EmptyResult(slot);
  if (!result.ok()) return result.status();
  product->result = product->written = *std::move(result);

  absl::Status status;
  const size_t element = SizeOf(problem_.type);
  const bool in_order = writes_in_order(product->result);
  if (matrix_->caller_order() != nullptr && (own_values_ || !in_order)) {
    absl::StatusOr<std::shared_ptr<const Array>> order = gpu.PlaceIndices(matrix_->caller_order());
    if (!order.ok()) return order.status();
    product->order = *std::move(order);
  }
  if (!in_order) {
    const DenseShape packed = {result_.shape().rows, 1, 1, result_.shape().type};
    absl::StatusOr<PlacedDense> canonical = gpu.NewDense("values", packed, memory, slot);
    if (!canonical.ok()) return canonical.status();
    product->written = *std::move(canonical);
  }
  if (own_values_) {
    if (product->order != nullptr) {
      status = product->gathered.Take(
          memory, std::max<size_t>(1, static_cast<size_t>(matrix_->pattern()->nnz()) * element));
    }
    const Layout& layout = *product->s.layout;
    if (status.ok()) {
      status = product->value_slots.Take(
          memory, std::max<size_t>(1, static_cast<size_t>(layout.value_slots) * element));
    }
    if (!status.ok()) return status;
  }
  status = queue_.queue->Reserve(product->Bind().Workspace(slot.threads));
  if (!status.ok()) return status;

  DeviceQueue::Request request;
  request.number = queue_.number;
  request.until = std::min(until_, Clock::now() + kPatience);
  request.run = [product](WorkerSlot& of_queue) { return product->Run(of_queue); };
  request.ended = [product, device = device(), scheduler = scheduler().shared_from_this(),
                   tenant = tenant(), problem = problem_](double milliseconds) {
    const auto nanoseconds = static_cast<uint64_t>(milliseconds * 1e6);
    scheduler->AddBusy(device, nanoseconds);
    scheduler->Charge(device, tenant, 1e-9 * static_cast<double>(nanoseconds));
    RecordProduct(*product->impl, device, *product->matrix->pattern(), problem,
                  /*reads_result=*/product->beta != 0, product->plan.kernel->name(), nanoseconds);
  };
  if (status = queue_.queue->Take(std::move(request)); !status.ok()) return status;
  SendBegin(plan.text);
  return absl::OkStatus();
}

}  // namespace sparsed::engine
