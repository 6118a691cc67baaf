// SpMM and transposed SpMM from heavy row segments and light rows: C = alpha * op(S) * B + beta *
// C.
//
// Idea: RS-SpMM (Hong et al., HPDC'18) on a CPU: the light rows by the kernels of CSR, then the
// heavy segments, panel by panel ("vertical streaming"), added to C. A panel's part of B,
// transposed its part of C, is small enough for a core's own cache, where the GPU has shared
// memory. The inner loops are those of plain CSR (csr_rows.cc, csr_scatter.cc). Layout in:
// "row_segments", the same arrays for both. A block of rows of C belongs to one thread, transposed
// a panel does, so nothing races and every element of C is summed in the same order whatever the
// team. Needs: what CSR's kernels need for the light rows; f32 or f64. Wins where rows have runs of
// near columns, far apart from those of the rows next to them.
#include "kernels/formats/row_segments.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/parts.h"
#include "kernels/cpu/spmm/csr_rows.h"
#include "kernels/cpu/spmm/csr_scatter.h"
#include "kernels/cpu/spmm/spmm.h"

namespace sparsed::cpu {
namespace {

/// Over the heavy segments; B and C are those of the whole.
template <typename T>
CsrProduct<T> HeavyProduct(const RowSegmentsView& s, const SpmmArguments& arguments) {
  return {.row_offsets = s.segment_offsets.data(),
          .column_indices = s.heavy_columns.data(),
          .row_order = s.segment_rows.data(),
          .values = static_cast<const T*>(arguments.values),
          .nnz = s.heavy_nnz(),
          .b = static_cast<const T*>(arguments.b.data),
          .ldb = arguments.b.leading_dimension,
          .c = static_cast<T*>(arguments.c.data),
          .ldc = arguments.c.leading_dimension,
          .k = arguments.b.cols,
          .alpha = static_cast<T>(arguments.alpha),
          .beta = 1};
}

/// The light rows by a kernel of CSR, which also scales C.
absl::Status RunLight(const SpmmKernel& kernel, const Context& context, const Problem& problem,
                      const SpmmArguments& arguments) {
  const Layout light = LightRows(arguments.layout);
  const int64_t heavy = ViewRowSegments(arguments.layout).heavy_nnz();
  const void* const values = static_cast<const std::byte*>(arguments.values) +
                             heavy * static_cast<int64_t>(SizeOf(problem.type));
  return kernel.run(context, problem,
                    {light, values, arguments.b, arguments.c, arguments.alpha, arguments.beta});
}

/// Enough blocks of rows for every team to share, few enough for panels to be used again and again.
int64_t RowBlocks(int64_t rows) { return std::clamp<int64_t>(rows / 1024, 1, 64); }

template <typename T>
absl::Status AddSegments(const Context& context, const SpmmArguments& arguments) {
  const RowSegmentsView s = ViewRowSegments(arguments.layout);
  const CsrProduct<T> whole = HeavyProduct<T>(s, arguments);
  const int64_t blocks = RowBlocks(s.rows);
  PartLoop loop(context);
  const bool all = loop.Run(blocks, [&](int64_t block) {
    const RowRange rows = {s.rows * block / blocks, s.rows * (block + 1) / blocks};
    for (int64_t chunk = 0; chunk < s.chunks() && !context.stopped(); ++chunk) {
      const RowRange segments = s.SegmentsOf(chunk, rows);
      if (segments.begin == segments.end) continue;
      CsrProduct<T> product = whole;
      product.b += s.chunk_panels[chunk] * s.panel * product.ldb;
      MultiplyRows(product, segments, 0, product.nnz);
    }
  });
  return all ? loop.Finish() : loop.Cut();
}

template <typename T>
absl::Status ScatterSegments(const Context& context, const SpmmArguments& arguments) {
  const RowSegmentsView s = ViewRowSegments(arguments.layout);
  const CsrProduct<T> whole = HeavyProduct<T>(s, arguments);
  PartLoop loop(context);
  const bool all = loop.Run(s.chunks(), [&](int64_t first) {
    const int32_t panel = s.chunk_panels[first];
    if (first > 0 && s.chunk_panels[first - 1] == panel) return;  // that one does them all
    const Tile tile = {.first_column = 0, .last_column = static_cast<int32_t>(s.panel)};
    CsrProduct<T> product = whole;
    product.sums = product.c + panel * s.panel * product.ldc;
    product.ld_sums = product.ldc;
    for (int64_t chunk = first; chunk < s.chunks() && s.chunk_panels[chunk] == panel; ++chunk) {
      if (context.stopped()) break;
      ScatterRows(product, {s.chunk_offsets[chunk], s.chunk_offsets[chunk + 1]}, tile);
    }
  });
  return all ? loop.Finish() : loop.Cut();
}

template <bool kTransposed>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  Progress* const progress = context.progress;
  if (progress == nullptr || progress->phase == 0) {
    const absl::Status status =
        RunLight(kTransposed ? CsrTransposedSpmm() : CsrSpmm(), context, problem, arguments);
    if (!status.ok()) return status;
    if (progress != nullptr) {
      if (!progress->finished) return status;
      *progress = {.phase = 1, .least = progress->least, .pause = progress->pause};
    }
  }
  const auto run = [&]<typename T>(T) {
    return kTransposed ? ScatterSegments<T>(context, arguments)
                       : AddSegments<T>(context, arguments);
  };
  return problem.type == ElementType::kF32 ? run(float{}) : run(double{});
}

template <bool kTransposed>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && problem.transposed == kTransposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kRowSegments &&
         IsFloat(problem.type) && !IsHalf(problem.type);
}

template <bool kTransposed>
size_t Workspace(const Problem& problem, const Layout& layout, int threads) {
  return (kTransposed ? CsrTransposedSpmm() : CsrSpmm())
      .workspace(problem, LightRows(layout), threads);
}

template <bool kTransposed>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kRowSegments,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = Supports<kTransposed>,
          .workspace = Workspace<kTransposed>,
          .run = Run<kTransposed>,
          .resumes = true};
}

}  // namespace

SpmmKernel RowSegmentsSpmm() { return Kernel<false>("cpu.row_segments.streams"); }
SpmmKernel RowSegmentsTransposedSpmm() { return Kernel<true>("cpu.row_segments.scatter"); }

}  // namespace sparsed::cpu
