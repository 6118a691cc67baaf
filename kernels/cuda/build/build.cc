#include "kernels/cuda/build/build.h"

#include "kernels/cuda/check.h"

namespace sparsed::cuda {
namespace {

/// Has the system map fresh pages, by all threads: a copy from the device would wait for one after
/// another.
void Touch(Buffer& buffer, const BuildContext& context) {
  constexpr size_t kPage = 4096;
  const auto pages = static_cast<int64_t>(buffer.size() / kPage);
#pragma omp parallel for num_threads(context.TeamFor(pages * 64)) schedule(static)
  for (int64_t page = 0; page < pages; ++page) buffer.mutable_data()[page * kPage] = std::byte{0};
}

}  // namespace

absl::StatusOr<PatternCopy> PatternCopy::Make(Stream& stream, MemorySource& memory,
                                              const CsrView& csr) {
  PatternCopy copy;
  copy.view_ = csr;
  absl::Status status;
  const auto upload = [&]<typename T>(std::span<const T>& array, Buffer& buffer) {
    if (array.empty() || !status.ok()) return;
    absl::StatusOr<Buffer> allocated = memory.Allocate(array.size_bytes());
    if (!allocated.ok()) {
      status = allocated.status();
      return;
    }
    buffer = *std::move(allocated);
    status = stream.Copy(buffer.mutable_data(), array.data(), array.size_bytes());
    array = {reinterpret_cast<const T*>(buffer.data()), array.size()};
  };
  upload(copy.view_.row_offsets, copy.offsets_);
  upload(copy.view_.column_indices, copy.columns_);
  upload(copy.view_.row_order, copy.order_);
  if (!status.ok()) return Settled(stream.handle(), status);
  return copy;
}

absl::StatusOr<Layout> GpuBuildAccelerator::BuildRowSegments(const CsrView& csr,
                                                             const RowSegmentsOptions& options,
                                                             const BuildContext& context) {
  absl::StatusOr<PatternCopy> pattern = PatternCopy::Make(stream_, memory_, csr);
  if (!pattern.ok()) return pattern.status();
  absl::StatusOr<Layout> layout =
      BuildRowSegmentsOnDevice(stream_, memory_, pattern->view(), options);
  if (!layout.ok()) return layout.status();
  Layout host = *layout;
  absl::Status status;
  for (Array& array : host.arrays) {
    absl::StatusOr<Array> on_host =
        AllocateArray(*context.memory, array.name, array.type, array.length);
    status = on_host.status();
    if (status.ok()) {
      Touch(on_host->buffer, context);
      status = stream_.Copy(on_host->buffer.mutable_data(), array.buffer.data(), array.bytes());
    }
    if (!status.ok()) return Settled(stream_.handle(), status);
    array = *std::move(on_host);
  }
  if (status = stream_.Synchronize(); !status.ok()) return status;
  ++calls_;
  return host;
}

}  // namespace sparsed::cuda
