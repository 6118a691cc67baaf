#include "kernels/cuda/build/build.h"

#include "kernels/cuda/check.h"

namespace sparsed::cuda {

absl::StatusOr<PatternCopy> PatternCopy::Make(Workbench& workbench, const CsrView& csr) {
  PatternCopy copy;
  copy.view_ = csr;
  absl::Status status;
  const auto upload = [&]<typename T>(std::span<const T>& array, Buffer& buffer) {
    if (array.empty() || !status.ok()) return;
    absl::StatusOr<Buffer> allocated = workbench.memory.Allocate(array.size_bytes());
    if (!allocated.ok()) {
      status = allocated.status();
      return;
    }
    buffer = *std::move(allocated);
    status = workbench.stream.Copy(buffer.mutable_data(), array.data(), array.size_bytes());
    array = {reinterpret_cast<const T*>(buffer.data()), array.size()};
  };
  upload(copy.view_.row_offsets, copy.offsets_);
  upload(copy.view_.column_indices, copy.columns_);
  upload(copy.view_.row_order, copy.order_);
  if (!status.ok()) return Settled(workbench.stream.handle(), status);
  return copy;
}

absl::StatusOr<Layout> BuildRowSegments(Workbench& workbench, const CsrView& csr,
                                        const RowSegmentsOptions& options, MemorySource& memory) {
  absl::StatusOr<PatternCopy> pattern = PatternCopy::Make(workbench, csr);
  if (!pattern.ok()) return pattern.status();
  absl::StatusOr<Layout> layout = BuildRowSegmentsThere(workbench, pattern->view(), options);
  if (!layout.ok()) return layout.status();
  Layout host = *layout;
  absl::Status status;
  for (Array& array : host.arrays) {
    absl::StatusOr<Array> here = AllocateArray(memory, array.name, array.type, array.length);
    status = here.status();
    if (status.ok()) {
      status =
          workbench.stream.Copy(here->buffer.mutable_data(), array.buffer.data(), array.bytes());
    }
    if (!status.ok()) return Settled(workbench.stream.handle(), status);
    array = *std::move(here);
  }
  if (status = workbench.stream.Synchronize(); !status.ok()) return status;
  return host;
}

}  // namespace sparsed::cuda
