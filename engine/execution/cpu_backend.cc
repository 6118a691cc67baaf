#include "engine/execution/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "kernels/formats/csr.h"
#include "kernels/kernels_version.h"
#include "kernels/row_softmax.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeptWorkspace = size_t{16} << 20;

class CpuMoment final : public Moment {
 public:
  absl::Status Await() const override { return absl::OkStatus(); }
  absl::StatusOr<double> MillisecondsSince(const Moment& begin) const override {
    const auto& other = static_cast<const CpuMoment&>(begin);
    return std::chrono::duration<double, std::milli>(time_ - other.time_).count();
  }

 private:
  const Clock::time_point time_ = Clock::now();
};

struct RowMove {
  int64_t from, to;
};

/// Copies rows; `move_of(i, order[i])` says which and where to.
template <typename MoveOf>
void MoveRows(std::span<const int64_t> order, const ConstDense& from, const Dense& to,
              ElementType type, int threads, MoveOf move_of) {
  const auto rows = static_cast<int64_t>(order.size());
  VisitBits(type, [&]<typename Bits>(Bits) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const RowMove move = move_of(i, order[i]);
      const Bits* const source =
          static_cast<const Bits*>(from.data) + move.from * from.leading_dimension;
      Bits* const target = static_cast<Bits*>(to.data) + move.to * to.leading_dimension;
      for (int64_t j = 0; j < to.cols; ++j) target[j] = source[j];
    }
  });
}

}  // namespace

CpuBackend::CpuBackend(Budget& budget, int slots, int threads_per_slot)
    : Backend({},
              fmt::format("{}, {} thread{}, kernels {}", ProcessorName(), threads_per_slot,
                          threads_per_slot == 1 ? "" : "s", kKernelsVersion),
              threads_per_slot),
      budget_(budget),
      slots_(std::max(1, slots)),
      threads_per_slot_(threads_per_slot),
      memory_rate_(threads_per_slot) {}

std::vector<WorkerSlot> CpuBackend::NewWorkerSlots() {
  std::vector<WorkerSlot> slots(slots_);
  for (WorkerSlot& slot : slots) {
    slot.backend = this;
    slot.threads = threads_per_slot_;
  }
  return slots;
}

size_t CpuBackend::kept_workspace() const { return kKeptWorkspace; }

absl::StatusOr<Array> CpuBackend::ValuesFor(const Matrix& matrix, const Layout& layout,
                                            MemorySource& memory, int threads) {
  // Those in a layout of the pattern's own stay with the matrix.
  const std::shared_ptr<const LazyLayout> kept = matrix.pattern()->FindLayout(layout.pipeline);
  const bool stays = kept != nullptr && kept->Resident().get() == &layout;
  return matrix.ValuesIn(
      layout, stays ? budget_.Source(MemoryUse::kLayouts, matrix.payer()) : memory, threads);
}

absl::StatusOr<PlacedSparse> CpuBackend::Place(const std::shared_ptr<const Layout>& layout,
                                               const Array* values, MemorySource& /*host*/) {
  return PlacedSparse{layout, values == nullptr ? nullptr : std::make_shared<const Array>(*values)};
}

absl::StatusOr<std::shared_ptr<const Array>> CpuBackend::OrderValues(const PlacedDense& csr_values,
                                                                     const Layout& layout,
                                                                     MemorySource& memory,
                                                                     WorkerSlot& slot) {
  if (layout.Find(kValueSource) == nullptr) return csr_values.array;
  absl::StatusOr<Array> ordered =
      AllocateArray(memory, "values", csr_values.shape.type, layout.value_slots);
  if (!ordered.ok()) return ordered.status();
  PlaceValues(layout, csr_values.shape.type, csr_values.array->buffer.data(),
              ordered->buffer.mutable_data(), slot.threads);
  return std::make_shared<const Array>(*std::move(ordered));
}

absl::StatusOr<PlacedDense> CpuBackend::PlaceHeld(const std::shared_ptr<LazyArray>& held,
                                                  const DenseShape& shape) {
  absl::StatusOr<Array> array = held->Get();
  if (!array.ok()) return array.status();
  if (absl::Status s = CheckHolds(*array, shape); !s.ok()) return s;
  return PlacedDense{std::make_shared<const Array>(*std::move(array)), shape};
}

absl::StatusOr<PlacedDense> CpuBackend::Bring(Array host, const DenseShape& shape,
                                              WorkerSlot& /*slot*/) {
  return PlacedDense{std::make_shared<const Array>(std::move(host)), shape};
}

absl::StatusOr<PlacedDense> CpuBackend::NewDense(std::string_view name, const DenseShape& shape,
                                                 MemorySource& memory, WorkerSlot& /*slot*/) {
  absl::StatusOr<Array> array = AllocateArray(memory, name, shape.type, shape.elements());
  if (!array.ok()) return array.status();
  ClearGaps(*array, shape);
  return PlacedDense{std::make_shared<const Array>(*std::move(array)), shape};
}

absl::Status CpuBackend::CopyDense(std::span<const DenseCopy> copies, WorkerSlot& slot) {
  // All in one region: to begin one takes as long as a small copy.
#pragma omp parallel num_threads(slot.threads)
  for (const DenseCopy& copy : copies) {
    const ConstDense from = copy.from.View(copy.from.shape.cols);
    const Dense to = copy.to.MutableView(copy.to.shape.cols);
    const size_t size = SizeOf(copy.to.shape.type);
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < to.rows; ++row) {
      std::memcpy(static_cast<std::byte*>(to.data) + row * to.leading_dimension * size,
                  static_cast<const std::byte*>(from.data) + row * from.leading_dimension * size,
                  to.cols * size);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Array>> CpuBackend::PlaceIndices(
    const std::shared_ptr<LazyArray>& indices) {
  absl::StatusOr<Array> array = indices->Get();
  if (!array.ok()) return array.status();
  return std::make_shared<const Array>(*std::move(array));
}

absl::Status CpuBackend::Scatter(const PlacedDense& from, const Array* order, const PlacedDense& to,
                                 WorkerSlot& slot) {
  if (order == nullptr) return CopyDense(from, to, slot);
  MoveRows(order->As<int64_t>(), from.View(from.shape.cols), to.MutableView(to.shape.cols),
           to.shape.type, slot.threads,
           [](int64_t i, int64_t other) { return RowMove{.from = i, .to = other}; });
  return absl::OkStatus();
}

absl::StatusOr<PlacedDense> CpuBackend::Gather(const PlacedDense& from, const Array& order,
                                               MemorySource& memory, WorkerSlot& slot) {
  DenseShape shape = from.shape;
  shape.leading_dimension = shape.cols;
  absl::StatusOr<PlacedDense> to = NewDense(from.array->name, shape, memory, slot);
  if (!to.ok()) return to;
  MoveRows(order.As<int64_t>(), from.View(shape.cols), to->MutableView(shape.cols), shape.type,
           slot.threads, [](int64_t i, int64_t other) { return RowMove{.from = other, .to = i}; });
  return to;
}

absl::Status CpuBackend::Sum(std::span<const WeightedTerm> terms, const PlacedDense& to,
                             WorkerSlot& slot) {
  WeightedSum(terms, to.shape.type, to.MutableView(to.shape.cols), slot.threads);
  return absl::OkStatus();
}

absl::Status CpuBackend::Softmax(const Layout& csr, double scale, const PlacedDense& from,
                                 const PlacedDense* gradient, const PlacedDense& to,
                                 WorkerSlot& slot) {
  const std::span<const int64_t> rows = ViewCsr(csr).row_offsets;
  const int64_t heads = to.shape.cols;
  if (gradient == nullptr) {
    RowSoftmax(rows, to.shape.type, scale, from.View(heads), to.MutableView(heads), slot.threads);
  } else {
    RowSoftmaxGradient(rows, to.shape.type, scale, from.View(heads), gradient->View(heads),
                       to.MutableView(heads), slot.threads);
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::ComputeRowProducts(const RowProducts& products, ElementType type,
                                            WorkerSlot& slot) {
  sparsed::ComputeRowProducts(products, type, slot.threads);
  return absl::OkStatus();
}

absl::Status CpuBackend::ComputeHeadDots(const HeadDots& dots, ElementType type, WorkerSlot& slot) {
  sparsed::ComputeHeadDots(dots, type, slot.threads);
  return absl::OkStatus();
}

absl::Status CpuBackend::ScaleNonzeros(const NonzeroScaling& scaling, ElementType type,
                                       WorkerSlot& slot) {
  sparsed::ScaleNonzeros(scaling, type, slot.threads);
  return absl::OkStatus();
}

absl::Status CpuBackend::TotalNonzeros(const NonzeroTotals& totals, ElementType type,
                                       WorkerSlot& slot) {
  sparsed::TotalNonzeros(totals, type, slot.threads);
  return absl::OkStatus();
}

absl::Status CpuBackend::ComputeEdgeAttention(const EdgeAttention& attention, ElementType type,
                                              WorkerSlot& slot, const RunOptions& options) {
  const absl::StatusOr<Context> context =
      ContextWith(EdgeAttentionWorkspace(attention, type), slot, options);
  if (!context.ok()) return context.status();
  return sparsed::ComputeEdgeAttention(*context, attention, type);
}

absl::Status CpuBackend::ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                                      ElementType type, WorkerSlot& slot,
                                                      const RunOptions& options) {
  const absl::StatusOr<Context> context =
      ContextWith(EdgeAttentionWorkspace(gradient, type), slot, options);
  if (!context.ok()) return context.status();
  return sparsed::ComputeEdgeAttentionGradient(*context, gradient, type);
}

absl::StatusOr<std::unique_ptr<Moment>> CpuBackend::Now(WorkerSlot& /*slot*/) {
  return std::make_unique<CpuMoment>();
}

absl::Status CpuBackend::Repeat(const Array& period, Array& to, WorkerSlot& /*slot*/) {
  for (size_t at = 0; at < to.bytes(); at += period.bytes()) {
    std::memcpy(to.buffer.mutable_data() + at, period.buffer.data(),
                std::min(period.bytes(), to.bytes() - at));
  }
  return absl::OkStatus();
}

std::shared_ptr<LazyArray> CpuBackend::Hold(PlacedDense result, const DenseShape& /*shape*/,
                                            MemorySource& /*memory*/) {
  return std::make_shared<LazyArray>(*result.array);
}

absl::Status CpuBackend::Fetch(const PlacedDense& result, const DenseShape& /*shape*/,
                               MemorySource& /*memory*/, WorkerSlot& /*slot*/,
                               const Arrived& arrived) {
  arrived(*result.array, result.array->bytes());
  return absl::OkStatus();
}

absl::Status CpuBackend::FetchInto(const PlacedDense& result, const DenseShape& shape, Array& into,
                                   WorkerSlot& /*slot*/) {
  CopyRows(*result.array, result.shape, into, shape);
  return absl::OkStatus();
}

absl::Status CpuBackend::Run(WorkerSlot& slot, const BoundRun& run, const RunOptions& options,
                             double* milliseconds) {
  const absl::StatusOr<Context> context = ContextWith(run.Workspace(slot.threads), slot, options);
  if (!context.ok()) return context.status();
  return Timed(
      slot, [&] { return run.Run(*context); }, milliseconds);
}

absl::StatusOr<Context> CpuBackend::ContextWith(size_t workspace, WorkerSlot& slot,
                                                const RunOptions& options) const {
  absl::Status status = Grow(options.workspace, workspace, options.memory);
  if (!status.ok()) return status;
  Context context = ContextOf(slot, options.stop);
  context.workspace = {options.workspace.mutable_data(), options.workspace.size()};
  context.progress = options.progress;
  return context;
}

Context CpuBackend::ContextOf(WorkerSlot& slot, const std::atomic<bool>* stop) const {
  return {.threads = slot.threads, .workspace = {}, .stop = stop};
}

absl::Status CpuBackend::Timed(WorkerSlot& /*slot*/, const std::function<absl::Status()>& work,
                               double* milliseconds) {
  const Clock::time_point begin = Clock::now();
  absl::Status status = work();
  *milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return status;
}

absl::Status CpuBackend::CopyIn(WorkerSlot& /*slot*/, void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status CpuBackend::CopyOut(WorkerSlot& slot, void* to, const void* from, size_t bytes) {
  return CopyIn(slot, to, from, bytes);
}

}  // namespace sparsed::engine
