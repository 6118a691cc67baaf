#include "engine/execution/bound_spgemm.h"

#include <utility>

#include "kernels/formats/csr.h"

namespace sparsed::engine {

SpgemmArguments SpgemmFactors::arguments() const {
  SpgemmArguments arguments = {ViewCsr(*left.layout), left.values->buffer.data(),
                               ViewCsr(*right.layout), right.values->buffer.data()};
  if (mask != nullptr) arguments.mask = ViewCsr(*mask);
  const auto format_of = [](const PlacedSparse& placed) {
    return SpgemmFormat{placed.layout.get(),
                        placed.values == nullptr ? nullptr : placed.values->buffer.data()};
  };
  arguments.left_format = format_of(left_format);
  arguments.right_format = format_of(right_format);
  return arguments;
}

absl::Status SetFormat(Backend& backend, const Matrix& matrix, std::shared_ptr<const Layout> format,
                       MemorySource& memory, int threads, SpgemmFactor& factor) {
  if (format->value_slots > 0) {
    absl::StatusOr<Array> values = backend.ValuesFor(matrix, *format, memory, threads);
    if (!values.ok()) return values.status();
    factor.format_values = *std::move(values);
  }
  factor.format = std::move(format);
  return absl::OkStatus();
}

absl::StatusOr<SpgemmFactors> PlaceFactors(Backend& backend, const SpgemmFactor& left,
                                           const SpgemmFactor& right,
                                           const std::shared_ptr<const Layout>& mask,
                                           MemorySource& host) {
  SpgemmFactors factors;
  absl::Status status;
  const auto place = [&](const std::shared_ptr<const Layout>& layout, const Array* values,
                         PlacedSparse& to) {
    if (!status.ok() || layout == nullptr) return;
    absl::StatusOr<PlacedSparse> placed = backend.Place(layout, values, host);
    status = placed.status();
    if (placed.ok()) to = *std::move(placed);
  };
  const auto place_format = [&](const SpgemmFactor& factor, PlacedSparse& to) {
    const bool has_values = factor.format != nullptr && factor.format->value_slots > 0;
    place(factor.format, has_values ? &factor.format_values : nullptr, to);
  };
  PlacedSparse placed_mask;
  place(left.csr, &left.values, factors.left);
  place(right.csr, &right.values, factors.right);
  place_format(left, factors.left_format);
  place_format(right, factors.right_format);
  place(mask, nullptr, placed_mask);
  if (!status.ok()) return status;
  factors.mask = std::move(placed_mask.layout);
  return factors;
}

BoundSpgemm::BoundSpgemm(Backend& backend, const SpgemmKernel& kernel, const Problem& problem,
                         SpgemmFactors factors)
    : backend_(backend),
      kernel_(kernel),
      problem_(problem),
      factors_(std::move(factors)),
      arguments_(factors_.arguments()) {}

absl::Status BoundSpgemm::Prepare(WorkerSlot& slot, const std::atomic<bool>* stop,
                                  MemorySource& memory, double* milliseconds) {
  if (kernel_.prepare == nullptr) return absl::OkStatus();
  std::shared_ptr<void> prepared;
  double taken = 0;
  const absl::Status status = backend_.Timed(
      slot,
      [&] {
        absl::StatusOr<std::shared_ptr<void>> made =
            kernel_.prepare(backend_.ContextOf(slot, stop), problem_, arguments_, memory);
        if (made.ok()) prepared = *std::move(made);
        return made.status();
      },
      &taken);
  *milliseconds += taken;
  if (status.ok()) prepared_ = std::move(prepared);
  return status;
}

absl::StatusOr<Context> BoundSpgemm::ContextOf(WorkerSlot& slot, const RunOptions& options) {
  // To find it out a kernel may look at every row, and worker slots are alike.
  if (!workspace_bytes_) workspace_bytes_ = kernel_.workspace(problem_, arguments_, slot.threads);
  absl::Status grown = Grow(options.workspace, *workspace_bytes_, options.memory);
  if (!grown.ok()) return grown;
  Context context = backend_.ContextOf(slot, options.stop);
  context.workspace = {options.workspace.mutable_data(), options.workspace.size()};
  context.prepared = prepared_.get();
  context.progress = options.progress;
  return context;
}

absl::Status BoundSpgemm::CountRows(WorkerSlot& slot, const RunOptions& options, RowRange range,
                                    std::span<int64_t> row_sizes, double* milliseconds) {
  const absl::StatusOr<Context> context = ContextOf(slot, options);
  if (!context.ok()) return context.status();
  double taken = 0;
  const absl::Status status = backend_.Timed(
      slot, [&] { return kernel_.symbolic(*context, arguments_, range, row_sizes); }, &taken);
  *milliseconds += taken;
  return status;
}

absl::Status BoundSpgemm::Count(WorkerSlot& slot, const RunOptions& options, bool exact,
                                std::span<int64_t> row_sizes, int64_t* products,
                                double* milliseconds) {
  const absl::StatusOr<Context> context = ContextOf(slot, options);
  if (!context.ok()) return context.status();
  double taken = 0;
  const auto count = [&](std::span<int64_t> sizes, int64_t* multiplications) {
    const absl::Status status = backend_.Timed(
        slot,
        [&] {
          absl::Status queued = kernel_.analyse(*context, arguments_, sizes, multiplications);
          if (!queued.ok() || !exact) return queued;
          return kernel_.symbolic(*context, arguments_, {0, rows()}, sizes);
        },
        &taken);
    *milliseconds += taken;
    return status;
  };
  if (backend_.shares_host_memory()) return count(row_sizes, products);
  absl::StatusOr<Array> sizes_there =
      AllocateArray(options.memory, "row counts", ElementType::kI64, rows());
  if (!sizes_there.ok()) return sizes_there.status();
  absl::StatusOr<Array> products_there =
      AllocateArray(options.memory, "products", ElementType::kI64, 1);
  if (!products_there.ok()) return products_there.status();
  absl::Status status =
      count(sizes_there->MutableAs<int64_t>(), products_there->MutableAs<int64_t>().data());
  if (status.ok()) {
    status = backend_.CopyOut(slot, row_sizes.data(), sizes_there->buffer.data(),
                              row_sizes.size_bytes());
  }
  if (status.ok()) {
    status = backend_.CopyOut(slot, products, products_there->buffer.data(), sizeof *products);
  }
  return status;
}

}  // namespace sparsed::engine
