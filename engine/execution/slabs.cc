#include "engine/execution/slabs.h"

#include <algorithm>
#include <utility>

namespace sparsed::engine {
namespace {

/// Columns: narrower slabs would read S too often.
constexpr int64_t kLeastSlab = 8;

/// Columns of a matrix on the host, one after the other on the device.
PitchedRows SlabRows(const DenseShape& host, int64_t columns) {
  return RowsOf({host.rows, columns, host.leading_dimension, host.type},
                {host.rows, columns, columns, host.type});
}

}  // namespace

Problem SlabMultiplication::ProblemOf(int64_t width) const {
  Problem problem = product_.plan.problem;
  problem.k = width;
  return problem;
}

BoundRun SlabMultiplication::Bind(Slab& slab, int64_t width) const {
  RunArguments arguments;
  arguments.values = product_.sparse.values->buffer.data();
  arguments.dense[0] = {slab.b.buffer.data(), product_.b.shape.rows, width, width};
  arguments.result = {slab.c.buffer.mutable_data(), product_.result.shape.rows, width, width};
  arguments.alpha = product_.alpha;
  arguments.beta = product_.beta;
  return BoundRun(*kernel_, ProblemOf(width), product_.sparse.layout, arguments);
}

std::optional<LayoutKernel> SlabMultiplication::FindKernel(int64_t width, int64_t rest) const {
  const Layout& layout = *product_.sparse.layout;
  const auto serves = [&](const LayoutKernel& kernel) {
    return kernel.Serves(ProblemOf(width), layout) && kernel.Serves(ProblemOf(rest), layout);
  };
  if (serves(*product_.plan.kernel)) return product_.plan.kernel;
  const std::span<const LayoutKernel> kernels = LayoutKernels(Operation::kSpmm);
  const auto other = std::ranges::find_if(kernels, serves);
  return other == kernels.end() ? std::nullopt : std::optional(*other);
}

absl::Status SlabMultiplication::ReserveFor(int64_t width) {
  slabs_ = {};
  // The last slab may be narrower, and may need more workspace.
  const int64_t rest = k() % width == 0 ? width : k() % width;
  kernel_ = FindKernel(width, rest);
  if (!kernel_) return absl::UnimplementedError("no kernel for column blocks");
  MemorySource& memory = gpu_.MemoryFor(MemoryUse::kRequests, product_.owner);
  const size_t workspace = std::max(Bind(slabs_[0], width).Workspace(lane_.threads),
                                    Bind(slabs_[0], rest).Workspace(lane_.threads));
  MemorySource& of_lane = gpu_.memory(MemoryUse::kRequests);
  if (absl::Status s = Grow(lane_.workspace, workspace, of_lane); !s.ok()) return s;
  for (Slab& slab : slabs_) {
    for (auto [array, rows] : {std::pair(&slab.b, product_.b.shape.rows),
                               std::pair(&slab.c, product_.result.shape.rows)}) {
      absl::StatusOr<Array> allocated =
          AllocateArray(memory, "slab", product_.result.shape.type, rows * width);
      if (!allocated.ok()) return allocated.status();
      *array = *std::move(allocated);
    }
  }
  width_ = width;
  return absl::OkStatus();
}

absl::Status SlabMultiplication::Reserve() {
  absl::Status reserved = absl::ResourceExhaustedError("column blocks would be too narrow");
  for (int64_t width = (k() + 1) / 2; absl::IsResourceExhausted(reserved) && width >= kLeastSlab;
       width = (width + 1) / 2) {
    reserved = ReserveFor(width);
  }
  return reserved;
}

absl::Status SlabMultiplication::Queue(Slab& slab, cuda::Stream& stream) {
  Device& device = gpu_.device();
  const size_t offset = slab.first * SizeOf(product_.b.shape.type);
  absl::Status status = device.CopyRowsIn(stream, slab.b.buffer.mutable_data(),
                                          product_.b.array.buffer.data() + offset,
                                          SlabRows(product_.b.shape, slab.width));
  if (status.ok() && product_.beta != 0) {
    status = device.CopyRowsIn(stream, slab.c.buffer.mutable_data(),
                               product_.old.array.buffer.data() + offset,
                               SlabRows(product_.old.shape, slab.width));
  }
  // One kernel at a time: they share the workspace.
  cuda::Event& last = lane_.gpu->end;
  if (status.ok()) status = last.Hold(stream);
  if (!status.ok()) return status;
  Context context = gpu_.ContextOf(lane_, token_.flag());
  context.workspace = {lane_.workspace.mutable_data(), lane_.workspace.size()};
  context.stream = stream.handle();
  status = Bind(slab, slab.width).Run(context);
  return status.ok() ? last.Record(stream) : status;
}

absl::Status SlabMultiplication::BringDown(Slab& slab, cuda::Stream& stream) {
  if (slab.width == 0) return absl::OkStatus();
  const int64_t columns = std::exchange(slab.width, 0);
  Array result = product_.result.array;
  return gpu_.device().CopyRowsOut(stream,
                                   result.buffer.mutable_data() + slab.first * SizeOf(result.type),
                                   slab.c.buffer.data(), SlabRows(product_.result.shape, columns));
}

absl::Status SlabMultiplication::Run() {
  absl::Status status = Reserve();
  if (!status.ok()) return status;
  size_t turn = 0;
  for (int64_t first = 0; first < k() && status.ok(); first += width_, turn ^= 1) {
    if (token_.stopped()) {
      status = token_.status();
      break;
    }
    Slab& slab = slabs_[turn];
    slab.first = first;
    slab.width = std::min(width_, k() - first);
    status = Queue(slab, lane_.gpu->streams(turn));
    if (status.ok()) status = BringDown(slabs_[turn ^ 1], lane_.gpu->streams(turn ^ 1));
  }
  if (status.ok()) status = BringDown(slabs_[turn ^ 1], lane_.gpu->streams(turn ^ 1));
  for (size_t i = 0; i < slabs_.size(); ++i) {
    const absl::Status done = gpu_.device().Settle(lane_.gpu->streams(i));
    if (status.ok()) status = done;
  }
  return status;
}

}  // namespace sparsed::engine
