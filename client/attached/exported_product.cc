// The client's types have the names of the kernels': here there are the latter alone.
#include "client/attached/exported_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "client/attached/layout_product.h"
#include "kernels/bound_run.h"
#include "kernels/kernels_id.h"

namespace sparsed {
inline namespace client {
namespace {

/// That kernels read values by.
constexpr uintptr_t kValueAlignment = 16;
/// Of one owner, or several; of other leading dimensions each.
constexpr size_t kMostPrepared = 16;

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
  layout->pipeline = exported.recipe();
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
    const std::optional<ElementType> type = KernelType(header.type());
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

}  // namespace

std::optional<ElementType> KernelType(v1::ElementType type) {
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

std::span<const int64_t> OrderOf(const ExportedProduct::Memory& memory, int64_t nnz) {
  if (memory.order == nullptr) return {};
  return {reinterpret_cast<const int64_t*>(memory.order->data()), static_cast<size_t>(nnz)};
}

absl::Status CopyAt(const DenseMemory& from, const DenseMemory& to, size_t element, Site& site) {
  return site.CopyRows(to.data, static_cast<size_t>(to.leading_dimension) * element, from.data,
                       static_cast<size_t>(from.leading_dimension) * element,
                       static_cast<size_t>(from.cols) * element, static_cast<size_t>(from.rows));
}

absl::Status Site::Grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() >= bytes) return absl::OkStatus();
  // What is queued may still use it, and is not waited for.
  if (buffer.size() > 0) Keep(std::make_shared<const Buffer>(std::exchange(buffer, Buffer())));
  absl::StatusOr<Buffer> larger = memory().Allocate(bytes);
  if (absl::IsResourceExhausted(larger.status()) && keeps()) {
    // There may be room once the smaller one is gone.
    if (absl::Status settled = Settle(); !settled.ok()) return settled;
    larger = memory().Allocate(bytes);
  }
  if (!larger.ok()) return larger.status();
  buffer = *std::move(larger);
  return absl::OkStatus();
}

absl::StatusOr<void*> Site::PreparedFor(
    const std::weak_ptr<const void>& owner, const LeadingDimensions& leading_dimensions,
    const std::function<absl::StatusOr<std::shared_ptr<void>>()>& prepare) {
  // All that they ran is done: whoever ran them here kept them.
  std::erase_if(prepared_, [](const Prepared& known) { return known.owner.expired(); });
  for (const Prepared& known : prepared_) {
    const bool same = !known.owner.owner_before(owner) && !owner.owner_before(known.owner);
    if (same && known.leading_dimensions == leading_dimensions) return known.state.get();
  }
  if (prepared_.size() >= kMostPrepared) {
    for (Prepared& known : prepared_) {
      if (known.state != nullptr) Keep(std::move(known.state));
    }
    prepared_.clear();
  }
  absl::StatusOr<std::shared_ptr<void>> state = prepare();
  // They run without, if that failed.
  prepared_.push_back({owner, leading_dimensions, state.ok() ? *std::move(state) : nullptr});
  return prepared_.back().state.get();
}

ExportedProduct::Accounted LayoutProduct::At(const Where& where, const Sites::Work& work) const {
  return sites_->At(where, [&](Site& site) {
    // Its sites are its own, but a graph outlives everybody.
    if (!site.keeps()) site.Keep(shared_from_this());
    return work(site);
  });
}

ExportedProduct::Accounted LayoutProduct::Spmm(const DenseMemory& b, const DenseMemory& c,
                                               const DenseMemory* old, const DenseMemory* own,
                                               double alpha, double beta,
                                               const Where& where) const {
  return At(where,
            [&](Site& site) { return SpmmAt(site, b, c, old, own, Order::kUpload, alpha, beta); });
}

ExportedProduct::Accounted LayoutProduct::Sddmm(const DenseMemory& a, const DenseMemory& b,
                                                const DenseMemory& out, const DenseMemory* own,
                                                bool unscaled, const Where& where) const {
  return At(where,
            [&](Site& site) { return SddmmAt(site, a, b, out, own, Order::kUpload, unscaled); });
}

absl::Status LayoutProduct::SpmmAt(Site& site, const DenseMemory& b, const DenseMemory& c,
                                   const DenseMemory* old, const DenseMemory* own, Order order,
                                   double alpha, double beta) const {
  RunArguments arguments;
  if (old != nullptr) {
    if (absl::Status copied = CopyAt(*old, c, SizeOf(problem_.type), site); !copied.ok()) {
      return copied;
    }
  }
  const absl::StatusOr<const void*> values = Values(own, order, site);
  if (!values.ok()) return values.status();
  arguments.values = *values;
  arguments.dense[0] = View(b);
  arguments.result = MutableView(c);
  arguments.alpha = alpha;
  arguments.beta = beta;
  return Run(arguments, site);
}

absl::Status LayoutProduct::SddmmAt(Site& site, const DenseMemory& a, const DenseMemory& b,
                                    const DenseMemory& out, const DenseMemory* own, Order order,
                                    bool unscaled) const {
  RunArguments arguments;
  if (!unscaled) {
    const absl::StatusOr<const void*> values = Values(own, order, site);
    if (!values.ok()) return values.status();
    arguments.values = *values;
  }
  arguments.dense = {View(a), View(b)};
  // Kernels write one value after the other, in the order of canonical CSR.
  const std::span<const int64_t> permutation = Permutation(order);
  if (permutation.empty() && out.leading_dimension <= 1) {
    arguments.result = MutableView(out);
    return Run(arguments, site);
  }
  const int64_t nnz = layout_->nnz;
  const size_t element = SizeOf(problem_.type);
  absl::Status status = site.Grow(site.result, static_cast<size_t>(nnz) * element);
  const DenseMemory written = {site.result.mutable_data(), nnz, 1, 1};
  arguments.result = MutableView(written);
  if (status.ok()) status = Run(arguments, site);
  if (!status.ok()) return status;
  return permutation.empty()
             ? CopyAt(written, out, element, site)
             : site.Scatter(permutation, problem_.type, View(written), MutableView(out));
}

absl::StatusOr<const void*> LayoutProduct::Values(const DenseMemory* own, Order order,
                                                  Site& site) const {
  if (own == nullptr) return static_cast<const void*>(memory_.values->data());
  const size_t element = SizeOf(problem_.type);
  const void* values = own->data;
  absl::Status status;
  if (const std::span<const int64_t> permutation = Permutation(order); !permutation.empty()) {
    const int64_t nnz = layout_->nnz;
    status = site.Grow(site.ordered, static_cast<size_t>(nnz) * element);
    if (status.ok()) {
      status = site.Gather(permutation, problem_.type, {values, nnz, 1, 1},
                           {site.ordered.mutable_data(), nnz, 1, 1});
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

LayoutKernel LayoutProduct::KernelAt(const Site& site) const {
  if (site.keeps() || !kernel_.from_library()) return kernel_;
  for (const LayoutKernel& own : LayoutKernels(problem_.operation)) {
    if (!own.from_library() && own.Serves(problem_, *layout_)) return own;
  }
  return kernel_;
}

absl::Status LayoutProduct::Run(const RunArguments& arguments, Site& site) const {
  const BoundRun run(KernelAt(site), problem_, layout_, arguments);
  Context context = site.context();
  if (run.prepares() && site.keeps()) {
    const absl::StatusOr<void*> prepared =
        site.PreparedFor(weak_from_this(), run.leading_dimensions(),
                         [&] { return run.Prepare(context, site.memory()); });
    if (!prepared.ok()) return prepared.status();
    context.prepared = *prepared;
  }
  if (context.prepared == nullptr) {
    const absl::Status grown = site.Grow(site.scratch, run.Workspace(context.threads));
    if (!grown.ok()) return grown;
  }
  context.workspace = {site.scratch.mutable_data(), site.scratch.size()};
  return site.Timed([&] { return run.Run(context); });
}

const std::string& KernelsHere() { return KernelsId(); }

absl::StatusOr<std::shared_ptr<const Layout>> MappedLayout(const v1::ExportedRun& run,
                                                           const ExportedProduct::Memory& memory) {
  const std::optional<ElementType> type = KernelType(run.matrix().type());
  if (!type || !IsFloat(*type)) return Misfit("the matrix's type");
  absl::StatusOr<std::shared_ptr<const Layout>> layout = LayoutOf(run.layout(), memory.arrays);
  if (!layout.ok()) return layout;
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
  return layout;
}

absl::StatusOr<std::shared_ptr<const ExportedProduct>> ExportedProduct::Make(
    const v1::ExportedRun& run, const v1::ProblemClass& problem, std::optional<int> gpu,
    Memory memory, std::shared_ptr<Clock>& clock) {
  absl::StatusOr<std::shared_ptr<const Layout>> layout = MappedLayout(run, memory);
  if (!layout.ok()) return layout.status();
  const ElementType type = *KernelType(run.matrix().type());
  const bool sddmm = problem.operation() == v1::ProblemClass::SDDMM;
  const Operation operation = sddmm ? Operation::kSddmm : Operation::kSpmm;
  const std::optional<LayoutKernel> kernel = FindLayoutKernel(operation, run.kernel());
  const Problem exact = {.operation = operation,
                         .transposed = problem.transposed(),
                         .type = type,
                         .k = problem.k(),
                         .device = gpu ? DeviceKind::kCuda : DeviceKind::kCpu,
                         .allow_tf32 = problem.allow_tf32() && type == ElementType::kF32};
  if (!kernel || !kernel->Serves(exact, **layout)) {
    return absl::UnimplementedError(
        fmt::format("there is no kernel {} here that serves this", run.kernel()));
  }
  if (!gpu) {
    return std::make_shared<const LayoutProduct>(*kernel, exact, *std::move(layout),
                                                 std::move(memory), MakeHostSites());
  }
  return LetGoLater(new LayoutProduct(*kernel, exact, *std::move(layout), std::move(memory),
                                      MakeGpuSites(*gpu, Timing::kKernels, clock)),
                    *gpu);
}

}  // namespace client
}  // namespace sparsed
