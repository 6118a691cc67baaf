// The client's types have the names of the kernels': here there are the latter alone.
#include "client/attached/exported_product.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
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

/// A part of a file, which it keeps mapped.
Buffer PartOf(const std::shared_ptr<const MappedFile>& file, size_t offset, size_t bytes) {
  // Nobody writes it: the pages are not there for that.
  auto* const at = const_cast<std::byte*>(file->data()) + offset;
  return {std::shared_ptr<std::byte>(std::const_pointer_cast<MappedFile>(file), at), bytes};
}

absl::StatusOr<std::shared_ptr<const Layout>> LayoutOf(
    const v1::ExportedLayout& exported, const std::shared_ptr<const MappedFile>& arrays) {
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
    offset += std::min(
        left, (array.bytes() + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment);
  }
  return layout;
}

/// What one run at a time needs.
struct Workspace {
  Buffer scratch;
  Buffer canonical;  ///< SDDMM's values, before they are put in order
  /// What the kernel prepared for many runs with these leading dimensions.
  std::pair<int64_t, int64_t> leading_dimensions;
  std::shared_ptr<void> prepared;
};

absl::Status Grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() >= bytes) return absl::OkStatus();
  buffer = Buffer();
  absl::StatusOr<Buffer> larger = HeapMemory().Allocate(bytes);
  if (!larger.ok()) return larger.status();
  buffer = *std::move(larger);
  return absl::OkStatus();
}

ConstDense View(const DenseMemory& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}
Dense MutableView(const DenseMemory& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}

class LayoutProduct final : public ExportedProduct {
 public:
  LayoutProduct(LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
                Memory memory)
      : kernel_(kernel),
        problem_(problem),
        layout_(std::move(layout)),
        memory_(std::move(memory)) {}

  absl::Status Spmm(const DenseMemory& b, const DenseMemory& c, double alpha, double beta,
                    int threads) const override {
    RunArguments arguments;
    arguments.values = memory_.values->data();
    arguments.dense[0] = View(b);
    arguments.result = MutableView(c);
    arguments.alpha = alpha;
    arguments.beta = beta;
    Workspace workspace = Take();
    absl::Status status = Run(arguments, workspace, threads);
    GiveBack(std::move(workspace));
    return status;
  }

  absl::Status Sddmm(const DenseMemory& a, const DenseMemory& b, const DenseMemory& out,
                     bool unscaled, int threads) const override {
    RunArguments arguments;
    arguments.values = unscaled ? nullptr : memory_.values->data();
    arguments.dense = {View(a), View(b)};
    arguments.result = MutableView(out);
    Workspace workspace = Take();
    // Kernels write one value after the other, in the order of canonical CSR.
    const bool in_order = memory_.order == nullptr && out.leading_dimension <= 1;
    absl::Status status = absl::OkStatus();
    if (!in_order) {
      status = Grow(workspace.canonical, static_cast<size_t>(layout_->nnz) * SizeOf(problem_.type));
      arguments.result = {workspace.canonical.mutable_data(), out.rows, 1, 1};
    }
    if (status.ok()) status = Run(arguments, workspace, threads);
    if (status.ok() && !in_order) Scatter(workspace.canonical, out);
    GiveBack(std::move(workspace));
    return status;
  }

 private:
  absl::Status Run(const RunArguments& arguments, Workspace& workspace, int threads) const {
    const BoundRun run(kernel_, problem_, layout_, arguments);
    Context context;
    context.threads = threads;
    if (run.prepares() && (workspace.prepared == nullptr ||
                           workspace.leading_dimensions != run.leading_dimensions())) {
      workspace.prepared.reset();
      absl::StatusOr<std::shared_ptr<void>> prepared = run.Prepare(context, HeapMemory());
      if (prepared.ok()) workspace.prepared = *std::move(prepared);
      workspace.leading_dimensions = run.leading_dimensions();
    }
    context.prepared = workspace.prepared.get();
    if (context.prepared == nullptr) {
      absl::Status grown = Grow(workspace.scratch, run.Workspace(threads));
      if (!grown.ok()) return grown;
    }
    context.workspace = {workspace.scratch.mutable_data(), workspace.scratch.size()};
    return run.Run(context);
  }

  void Scatter(const Buffer& canonical, const DenseMemory& out) const {
    VisitBits(problem_.type, [&]<typename Bits>(Bits) {
      const auto* const from = reinterpret_cast<const Bits*>(canonical.data());
      auto* const to = static_cast<Bits*>(out.data);
      const auto* const order = memory_.order == nullptr
                                    ? nullptr
                                    : reinterpret_cast<const int64_t*>(memory_.order->data());
      for (int64_t i = 0; i < layout_->nnz; ++i) {
        to[(order == nullptr ? i : order[i]) * out.leading_dimension] = from[i];
      }
    });
  }

  Workspace Take() const {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return {};
    Workspace workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  void GiveBack(Workspace workspace) const {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

  const LayoutKernel kernel_;
  const Problem problem_;
  const std::shared_ptr<const Layout> layout_;
  const Memory memory_;
  mutable Mutex mutex_;
  mutable std::vector<Workspace> idle_ ABSL_GUARDED_BY(mutex_);  ///< as many as ran at once
};

}  // namespace

const std::string& KernelsHere() { return KernelsId(); }

absl::StatusOr<std::shared_ptr<const ExportedProduct>> ExportedProduct::Make(
    const v1::ExportedRun& run, const v1::ProblemClass& problem, Memory memory) {
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
                         .allow_tf32 = problem.allow_tf32() && *type == ElementType::kF32};
  if (!kernel || !kernel->Serves(exact, **layout)) {
    return absl::UnimplementedError(
        fmt::format("there is no kernel {} here that serves this", run.kernel()));
  }
  return std::make_shared<const LayoutProduct>(*kernel, exact, *std::move(layout),
                                               std::move(memory));
}

}  // namespace client
}  // namespace sparsed
