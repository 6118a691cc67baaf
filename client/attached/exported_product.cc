// The client's types have the names of the kernels': here there are the latter alone.
#include "client/attached/exported_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/attached/layout_product.h"
#include "kernels/bound_run.h"
#include "kernels/kernels_id.h"

namespace sparsed {
inline namespace client {
namespace {

std::optional<ElementType> TypeOf(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_I32:
      return ElementType::kI32;
    case v1::ELEMENT_TYPE_I64:
      return ElementType::kI64;
    case v1::ELEMENT_TYPE_F32:
      return ElementType::kF32;
    case v1::ELEMENT_TYPE_F64:
      return ElementType::kF64;
    case v1::ELEMENT_TYPE_F16:
      return ElementType::kF16;
    case v1::ELEMENT_TYPE_BF16:
      return ElementType::kBF16;
    default:
      return std::nullopt;
  }
}

absl::Status Misfit(std::string_view what) {
  return absl::InvalidArgumentError(
      fmt::format("what the server says of {} does not fit together", what));
}

/// A part of it, which keeps it mapped.
Buffer PartOf(const std::shared_ptr<const MappedMemory>& memory, size_t offset, size_t bytes) {
  // Nobody writes it: it is not mapped for that.
  auto* const at = const_cast<std::byte*>(memory->data()) + offset;
  return {std::shared_ptr<std::byte>(std::const_pointer_cast<MappedMemory>(memory), at), bytes};
}

absl::StatusOr<std::shared_ptr<const Layout>> LayoutOf(
    const v1::ExportedLayout& exported, const std::shared_ptr<const MappedMemory>& arrays) {
  auto layout = std::make_shared<Layout>();
  layout->kind = exported.kind();
  layout->recipe = exported.recipe();
  for (const auto& parameter : exported.parameters()) {
    layout->parameters.emplace_back(parameter.name(), parameter.value());
  }
  layout->rows = exported.rows();
  layout->cols = exported.cols();
  layout->nnz = exported.nnz();
  layout->transposed = exported.transposed();
  layout->value_slots = exported.value_slots();
  size_t offset = 0;
  for (const v1::ArrayHeader& header : exported.arrays()) {
    const std::optional<ElementType> type = TypeOf(header.type());
    const size_t left = arrays->size() - offset;
    if (!type || header.length() < 0 ||
        static_cast<uint64_t>(header.length()) > left / SizeOf(*type)) {
      return Misfit("a layout's arrays");
    }
    Array& array = layout->arrays.emplace_back();
    array.name = header.name();
    array.type = *type;
    array.length = header.length();
    array.buffer = PartOf(arrays, offset, array.bytes());
    offset += std::min(left, PackedBytes(array.bytes()));
  }
  return layout;
}

class HostSite final : public Site {
 public:
  Context context() const override {
    Context context;
    context.threads = threads;
    return context;
  }
  MemorySource& memory() override { return HeapMemory(); }
  absl::Status Settle() override { return absl::OkStatus(); }
  bool keeps() const override { return true; }
  absl::Status Gather(const int64_t* order, int64_t count, ElementType type, const void* from,
                      void* to) override {
    VisitBits(type, [&]<typename Bits>(Bits) {
      for (int64_t i = 0; i < count; ++i) {
        static_cast<Bits*>(to)[i] = static_cast<const Bits*>(from)[order[i]];
      }
    });
    return absl::OkStatus();
  }
  absl::Status Scatter(const int64_t* order, int64_t count, ElementType type, const void* from,
                       void* to) override {
    VisitBits(type, [&]<typename Bits>(Bits) {
      for (int64_t i = 0; i < count; ++i) {
        static_cast<Bits*>(to)[order[i]] = static_cast<const Bits*>(from)[i];
      }
    });
    return absl::OkStatus();
  }
  absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                           void* slots) override {
    sparsed::PlaceValues(layout, type, csr_values, slots, threads);
    return absl::OkStatus();
  }
  absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t row_bytes, size_t rows) override {
    for (size_t row = 0; row < rows && row_bytes > 0; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, row_bytes);
    }
    return absl::OkStatus();
  }

  int threads = 1;  ///< of the run that it is taken for
};

class HostProduct final : public LayoutProduct {
 public:
  using LayoutProduct::LayoutProduct;

 private:
  Accounted At(const Where& where, const Work& work) const override {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<HostSite> site = Take();
    site->threads = where.threads;
    const absl::Status status = work(*site);
    GiveBack(std::move(site));
    if (!status.ok()) return status;
    return std::chrono::steady_clock::now() - begin;
  }

  std::unique_ptr<HostSite> Take() const {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return std::make_unique<HostSite>();
    std::unique_ptr<HostSite> site = std::move(idle_.back());
    idle_.pop_back();
    return site;
  }
  void GiveBack(std::unique_ptr<HostSite> site) const {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(site));
  }

  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<HostSite>> idle_
      ABSL_GUARDED_BY(mutex_);  ///< as many as ran at once
};

/// That kernels read values by.
constexpr uintptr_t kValueAlignment = 16;

ConstDense View(const DenseMemory& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}
Dense MutableView(const DenseMemory& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}

}  // namespace

absl::Status Site::Grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() >= bytes) return absl::OkStatus();
  if (buffer.size() > 0) {
    if (absl::Status settled = Settle(); !settled.ok()) return settled;
    buffer = Buffer();
  }
  absl::StatusOr<Buffer> larger = memory().Allocate(bytes);
  if (!larger.ok()) return larger.status();
  buffer = *std::move(larger);
  return absl::OkStatus();
}

ExportedProduct::Accounted LayoutProduct::Spmm(const DenseMemory& b, const DenseMemory& c,
                                               const DenseMemory* old, const DenseMemory* own,
                                               double alpha, double beta,
                                               const Where& where) const {
  return At(where, [&](Site& site) {
    RunArguments arguments;
    if (old != nullptr) {
      if (absl::Status copied = CopyAt(*old, c, site); !copied.ok()) return copied;
    }
    const absl::StatusOr<const void*> values = Values(own, site);
    if (!values.ok()) return values.status();
    arguments.values = *values;
    arguments.dense[0] = View(b);
    arguments.result = MutableView(c);
    arguments.alpha = alpha;
    arguments.beta = beta;
    return Run(arguments, site);
  });
}

ExportedProduct::Accounted LayoutProduct::Sddmm(const DenseMemory& a, const DenseMemory& b,
                                                const DenseMemory& out, const DenseMemory* own,
                                                bool unscaled, const Where& where) const {
  return At(where, [&](Site& site) {
    RunArguments arguments;
    if (!unscaled) {
      const absl::StatusOr<const void*> values = Values(own, site);
      if (!values.ok()) return values.status();
      arguments.values = *values;
    }
    arguments.dense = {View(a), View(b)};
    // Kernels write one value after the other, in the order of canonical CSR.
    const bool dense = out.leading_dimension <= 1;
    const bool in_order = order() == nullptr;
    const size_t bytes = static_cast<size_t>(layout_->nnz) * SizeOf(problem_.type);
    DenseMemory written = {out.data, out.rows, 1, 1};
    absl::Status status;
    if (!in_order || !dense) {
      status = site.Grow(site.result, bytes);
      written.data = site.result.mutable_data();
    }
    arguments.result = MutableView(written);
    if (status.ok()) status = Run(arguments, site);
    if (status.ok() && !in_order) {
      const void* const from = written.data;
      written.data = out.data;
      if (!dense) {
        status = site.Grow(site.ordered, bytes);
        written.data = site.ordered.mutable_data();
      }
      if (status.ok()) {
        status = site.Scatter(order(), layout_->nnz, problem_.type, from, written.data);
      }
    }
    if (status.ok() && !dense) status = CopyAt(written, out, site);
    return status;
  });
}

absl::Status LayoutProduct::CopyAt(const DenseMemory& from, const DenseMemory& to,
                                   Site& site) const {
  const size_t element = SizeOf(problem_.type);
  return site.CopyRows(to.data, static_cast<size_t>(to.leading_dimension) * element, from.data,
                       static_cast<size_t>(from.leading_dimension) * element,
                       static_cast<size_t>(from.cols) * element, static_cast<size_t>(from.rows));
}

absl::StatusOr<const void*> LayoutProduct::Values(const DenseMemory* own, Site& site) const {
  if (own == nullptr) return static_cast<const void*>(memory_.values->data());
  const size_t element = SizeOf(problem_.type);
  const void* values = own->data;
  absl::Status status;
  if (order() != nullptr) {
    status = site.Grow(site.ordered, static_cast<size_t>(layout_->nnz) * element);
    if (status.ok()) {
      status =
          site.Gather(order(), layout_->nnz, problem_.type, values, site.ordered.mutable_data());
    }
    values = site.ordered.data();
  }
  const bool as_they_are = layout_->Find(kValueSource) == nullptr &&
                           reinterpret_cast<uintptr_t>(values) % kValueAlignment == 0;
  if (status.ok() && !as_they_are) {
    status = site.Grow(site.slots, static_cast<size_t>(layout_->value_slots) * element);
    if (status.ok()) {
      status = site.PlaceValues(*layout_, problem_.type, values, site.slots.mutable_data());
    }
    values = site.slots.data();
  }
  if (!status.ok()) return status;
  return values;
}

absl::Status LayoutProduct::Run(const RunArguments& arguments, Site& site) const {
  const BoundRun run(kernel_, problem_, layout_, arguments);
  Context context = site.context();
  if (run.prepares() && site.keeps() && site.prepared_for != run.leading_dimensions()) {
    if (site.prepared != nullptr) {
      if (absl::Status settled = site.Settle(); !settled.ok()) return settled;
    }
    site.prepared.reset();
    absl::StatusOr<std::shared_ptr<void>> prepared = run.Prepare(context, site.memory());
    // It runs without, if that failed.
    if (prepared.ok()) site.prepared = *std::move(prepared);
    site.prepared_for = run.leading_dimensions();
  }
  context.prepared = site.prepared.get();
  if (context.prepared == nullptr) {
    const absl::Status grown = site.Grow(site.scratch, run.Workspace(context.threads));
    if (!grown.ok()) return grown;
  }
  context.workspace = {site.scratch.mutable_data(), site.scratch.size()};
  return site.Timed([&] { return run.Run(context); });
}

const int64_t* LayoutProduct::order() const {
  return memory_.order == nullptr ? nullptr
                                  : reinterpret_cast<const int64_t*>(memory_.order->data());
}

const std::string& KernelsHere() { return KernelsId(); }

absl::StatusOr<std::shared_ptr<const ExportedProduct>> ExportedProduct::Make(
    const v1::ExportedRun& run, const v1::ProblemClass& problem, std::optional<int> gpu,
    Memory memory, std::shared_ptr<Clock>& clock) {
  const std::optional<ElementType> type = TypeOf(run.matrix().type());
  const bool sddmm = problem.operation() == v1::ProblemClass::SDDMM;
  const Operation operation = sddmm ? Operation::kSddmm : Operation::kSpmm;
  if (!type || !IsFloat(*type)) return Misfit("the matrix's type");
  absl::StatusOr<std::shared_ptr<const Layout>> layout = LayoutOf(run.layout(), memory.arrays);
  if (!layout.ok()) return layout.status();
  const int64_t rows = (*layout)->transposed ? (*layout)->cols : (*layout)->rows;
  const int64_t cols = (*layout)->transposed ? (*layout)->rows : (*layout)->cols;
  const auto slots = static_cast<uint64_t>((*layout)->value_slots);
  if (rows != run.matrix().rows() || cols != run.matrix().cols() ||
      (*layout)->nnz != run.matrix().nnz() || (*layout)->nnz < 0 || (*layout)->value_slots < 0 ||
      slots > memory.values->size() / SizeOf(*type) ||
      (memory.order != nullptr &&
       static_cast<uint64_t>((*layout)->nnz) > memory.order->size() / sizeof(int64_t))) {
    return Misfit("the matrix and its layout");
  }
  const std::optional<LayoutKernel> kernel = FindLayoutKernel(operation, run.kernel());
  const Problem exact = {.operation = operation,
                         .transposed = problem.transposed(),
                         .type = *type,
                         .k = problem.k(),
                         .device = gpu ? DeviceKind::kCuda : DeviceKind::kCpu,
                         .allow_tf32 = problem.allow_tf32() && *type == ElementType::kF32};
  if (!kernel || !kernel->Serves(exact, **layout)) {
    return absl::UnimplementedError(
        fmt::format("there is no kernel {} here that serves this", run.kernel()));
  }
  if (gpu) {
    return MakeGpuProduct(*kernel, exact, *std::move(layout), std::move(memory), *gpu, clock);
  }
  return std::make_shared<const HostProduct>(*kernel, exact, *std::move(layout), std::move(memory));
}

}  // namespace client
}  // namespace sparsed
