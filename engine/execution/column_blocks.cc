#include "engine/execution/column_blocks.h"

#include <algorithm>
#include <utility>

namespace sparsed::engine {
namespace {

/// Columns: narrower column blocks would read S too often.
constexpr int64_t kLeastColumnBlock = 8;

/// Columns of a matrix on the host, one after the other on the device.
PitchedRows BlockColumns(const DenseShape& host, int64_t columns) {
  return RowsOf({host.rows, columns, host.leading_dimension, host.type},
                {host.rows, columns, columns, host.type});
}

}  // namespace

Problem ColumnBlockMultiplication::ProblemOf(int64_t width) const {
  Problem problem = product_.plan.problem;
  problem.k = width;
  return problem;
}

BoundRun ColumnBlockMultiplication::Bind(ColumnBlock& block, int64_t width) const {
  RunArguments arguments;
  arguments.values = product_.sparse.values->buffer.data();
  arguments.dense[0] = {block.b.buffer.data(), product_.b.shape.rows, width, width};
  arguments.result = {block.c.buffer.mutable_data(), product_.result.shape.rows, width, width};
  arguments.alpha = product_.alpha;
  arguments.beta = product_.beta;
  return BoundRun(*kernel_, ProblemOf(width), product_.sparse.layout, arguments);
}

std::optional<LayoutKernel> ColumnBlockMultiplication::FindKernel(int64_t width,
                                                                  int64_t rest) const {
  const Layout& layout = *product_.sparse.layout;
  const auto serves = [&](const LayoutKernel& kernel) {
    return kernel.Serves(ProblemOf(width), layout) && kernel.Serves(ProblemOf(rest), layout);
  };
  if (serves(*product_.plan.kernel)) return product_.plan.kernel;
  const std::span<const LayoutKernel> kernels = LayoutKernels(Operation::kSpmm);
  const auto other = std::ranges::find_if(kernels, serves);
  return other == kernels.end() ? std::nullopt : std::optional(*other);
}

absl::Status ColumnBlockMultiplication::ReserveFor(int64_t width) {
  blocks_ = {};
  // The last column block may be narrower, and may need more workspace.
  const int64_t rest = k() % width == 0 ? width : k() % width;
  kernel_ = FindKernel(width, rest);
  if (!kernel_) return absl::UnimplementedError("no kernel for column blocks");
  MemorySource& memory = gpu_.MemoryFor(MemoryUse::kRequests, product_.owner);
  const size_t workspace = std::max(Bind(blocks_[0], width).Workspace(slot_.threads),
                                    Bind(blocks_[0], rest).Workspace(slot_.threads));
  MemorySource& of_slot = gpu_.memory(MemoryUse::kRequests);
  if (absl::Status s = Grow(slot_.workspace, workspace, of_slot); !s.ok()) return s;
  for (ColumnBlock& block : blocks_) {
    for (auto [array, rows] : {std::pair(&block.b, product_.b.shape.rows),
                               std::pair(&block.c, product_.result.shape.rows)}) {
      absl::StatusOr<Array> allocated =
          AllocateArray(memory, "column block", product_.result.shape.type, rows * width);
      if (!allocated.ok()) return allocated.status();
      *array = *std::move(allocated);
    }
  }
  width_ = width;
  return absl::OkStatus();
}

absl::Status ColumnBlockMultiplication::Reserve() {
  absl::Status reserved = absl::ResourceExhaustedError("column blocks would be too narrow");
  for (int64_t width = (k() + 1) / 2;
       absl::IsResourceExhausted(reserved) && width >= kLeastColumnBlock; width = (width + 1) / 2) {
    reserved = ReserveFor(width);
  }
  return reserved;
}

absl::Status ColumnBlockMultiplication::Queue(ColumnBlock& block, cuda::Stream& stream) {
  Device& device = gpu_.device();
  const size_t offset = block.first * SizeOf(product_.b.shape.type);
  absl::Status status = device.CopyRowsIn(stream, block.b.buffer.mutable_data(),
                                          product_.b.array.buffer.data() + offset,
                                          BlockColumns(product_.b.shape, block.width));
  if (status.ok() && product_.beta != 0) {
    status = device.CopyRowsIn(stream, block.c.buffer.mutable_data(),
                               product_.old.array.buffer.data() + offset,
                               BlockColumns(product_.old.shape, block.width));
  }
  // One kernel at a time: they share the workspace.
  cuda::Event& last = slot_.gpu->end;
  if (status.ok()) status = last.Hold(stream);
  if (!status.ok()) return status;
  Context context = gpu_.ContextOf(slot_, token_.flag());
  context.workspace = {slot_.workspace.mutable_data(), slot_.workspace.size()};
  context.stream = stream.handle();
  status = Bind(block, block.width).Run(context);
  return status.ok() ? last.Record(stream) : status;
}

absl::Status ColumnBlockMultiplication::BringDown(ColumnBlock& block, cuda::Stream& stream) {
  if (block.width == 0) return absl::OkStatus();
  const int64_t columns = std::exchange(block.width, 0);
  Array result = product_.result.array;
  return gpu_.device().CopyRowsOut(
      stream, result.buffer.mutable_data() + block.first * SizeOf(result.type),
      block.c.buffer.data(), BlockColumns(product_.result.shape, columns));
}

absl::Status ColumnBlockMultiplication::Run() {
  absl::Status status = Reserve();
  if (!status.ok()) return status;
  size_t turn = 0;
  for (int64_t first = 0; first < k() && status.ok(); first += width_, turn ^= 1) {
    if (token_.stopped()) {
      status = token_.status();
      break;
    }
    ColumnBlock& block = blocks_[turn];
    block.first = first;
    block.width = std::min(width_, k() - first);
    status = Queue(block, slot_.gpu->streams(turn));
    if (status.ok()) status = BringDown(blocks_[turn ^ 1], slot_.gpu->streams(turn ^ 1));
  }
  if (status.ok()) status = BringDown(blocks_[turn ^ 1], slot_.gpu->streams(turn ^ 1));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const absl::Status done = gpu_.device().Settle(slot_.gpu->streams(i));
    if (status.ok()) status = done;
  }
  return status;
}

}  // namespace sparsed::engine
