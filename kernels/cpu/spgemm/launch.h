// From SpgemmKernel's functions to the threads that do the work; the same for every kernel.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cpu/spgemm/jobs.h"
#include "kernels/cpu/spgemm/row_slot.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

/// How a kernel goes about the rows of one product.
struct SpgemmMethod {
  RowPolicy policy;
  Capacity capacity;
};

/// Sums of products in f32 and f64 on the CPU, without a mask.
bool SupportsSpgemm(const Problem& problem);
/// Of any semiring.
bool SupportsSemirings(const Problem& problem);

/// SpgemmKernel::analyse. Threads take pieces of S's rows; each reads S's columns and two of T's
/// row offsets for each of them.
absl::Status AnalyseProducts(const Context& context, const SpgemmArguments& arguments,
                             std::span<int64_t> row_bounds, int64_t* products);

/// SpgemmKernel::workspace.
size_t WorkspaceOf(const SpgemmMethod& method, const Problem& problem, int threads);

/// SpgemmKernel::symbolic.
absl::Status RunSymbolic(const SpgemmMethod& method, const Context& context,
                         const SpgemmArguments& arguments, RowRange range,
                         std::span<int64_t> row_nnz);

/// SpgemmKernel::numeric.
absl::Status RunNumeric(const SpgemmMethod& method, const Context& context, const Problem& problem,
                        const SpgemmArguments& arguments, RowRange range,
                        std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                        std::span<int64_t> row_nnz);

/// How `cpu.csr.row_groups` goes about a product; its analysis and symbolic phase serve every
/// kernel.
SpgemmMethod RowGroupsMethod(const SpgemmArguments& arguments);

/// Entries of the longest row of a range.
int64_t LongestRow(const CsrView& csr, RowRange range);

/// The most products, and not more than T's columns, that a row of C can have: what the longest
/// rows of S and T would make together.
int64_t LargestBound(const SpgemmArguments& arguments);

/// The kernel that goes about its rows as `Method(arguments)` says.
template <SpgemmMethod (*Method)(const SpgemmArguments&)>
SpgemmKernel MakeSpgemmKernel(std::string_view name,
                              bool (*supports)(const Problem&) = SupportsSpgemm) {
  return {.name = name,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = supports,
          .workspace = [](const Problem& problem, const SpgemmArguments& arguments,
                          int threads) { return WorkspaceOf(Method(arguments), problem, threads); },
          .analyse = AnalyseProducts,
          .symbolic =
              [](const Context& context, const SpgemmArguments& arguments, RowRange range,
                 std::span<int64_t> row_nnz) {
                return RunSymbolic(Method(arguments), context, arguments, range, row_nnz);
              },
          .numeric =
              [](const Context& context, const Problem& problem, const SpgemmArguments& arguments,
                 RowRange range, std::span<const int64_t> row_begin, int32_t* column_indices,
                 void* values, std::span<int64_t> row_nnz) {
                return RunNumeric(Method(arguments), context, problem, arguments, range, row_begin,
                                  column_indices, values, row_nnz);
              }};
}

/// SpgemmKernel::numeric's arguments.
struct NumericCall {
  const Context& context;
  const SpgemmArguments& arguments;
  RowRange range;
  std::span<const int64_t> row_begin;
  int32_t* columns;
  void* values;
  std::span<int64_t> row_nnz;
};

/// A call as its threads see it: the values typed, and rows counted from the matrix's first.
template <typename T>
struct RowJob {
  explicit RowJob(const NumericCall& call)
      : s(call.arguments.left),
        t(call.arguments.right),
        s_values(static_cast<const T*>(call.arguments.left_values)),
        t_values(static_cast<const T*>(call.arguments.right_values)),
        row_begin(call.row_begin.data() - call.range.begin),
        row_nnz(call.row_nnz.data() - call.range.begin),
        columns(call.columns),
        values(static_cast<T*>(call.values)) {}

  /// Where the row goes. Whole vectors may be stored up to the begin of row `end`.
  RowSlot<T> Slot(int64_t row, int64_t end) const {
    return {columns + row_begin[row], values + row_begin[row], row_begin[end] - row_begin[row]};
  }

  CsrView s, t;
  const T* s_values;
  const T* t_values;
  const int64_t* row_begin;
  int64_t* row_nnz;
  int32_t* columns;
  T* values;
};

/// CANCELLED, if the context is stopped: what was computed is not whole.
inline absl::Status UnlessStopped(const Context& context) {
  return context.stopped() ? absl::CancelledError("the product was cancelled") : absl::OkStatus();
}

/// Every thread of the team calls work(thread, pieces); the pieces cover the call's rows.
template <typename Work>
absl::Status ShareRows(const NumericCall& call, const Work& work) {
  const Context& context = call.context;
  if (call.range.begin < call.range.end) {
    PieceQueue pieces(context, call.range, call.row_begin);
#pragma omp parallel num_threads(context.threads) if (context.threads > 1)
    work(omp_get_thread_num(), pieces);
  }
  return UnlessStopped(context);
}

/// Phases<float> or Phases<double>, as the problem's values are.
template <template <typename> class Phases, typename Call>
auto WithPhases(const Problem& problem, const Call& call) {
  return problem.type == ElementType::kF32 ? call(Phases<float>()) : call(Phases<double>());
}

/// A kernel with a numeric phase of its own. What comes before it, and knows no values, is that of
/// row groups. For values of T, Phases<T> has
///   static size_t Workspace(const SpgemmArguments&);        bytes for each thread
///   static absl::Status Numeric(const NumericCall&);
/// and, if the kernel prepares, as SpgemmKernel::prepare but for the problem,
///   static absl::StatusOr<std::shared_ptr<void>> Prepare(const Context&, const SpgemmArguments&,
///                                                        MemorySource&);
template <template <typename> class Phases>
SpgemmKernel MakeSpgemmKernel(std::string_view name) {
  SpgemmKernel kernel = MakeSpgemmKernel<RowGroupsMethod>(name);
  kernel.workspace = [](const Problem& problem, const SpgemmArguments& arguments, int threads) {
    const size_t bytes = WithPhases<Phases>(
        problem, [&](auto phases) { return decltype(phases)::Workspace(arguments); });
    return std::max(WorkspaceOf(RowGroupsMethod(arguments), problem, threads),
                    bytes * static_cast<size_t>(threads));
  };
  kernel.numeric = [](const Context& context, const Problem& problem,
                      const SpgemmArguments& arguments, RowRange range,
                      std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                      std::span<int64_t> row_nnz) {
    const NumericCall call = {context,        arguments, range,  row_begin,
                              column_indices, values,    row_nnz};
    return WithPhases<Phases>(problem,
                              [&](auto phases) { return decltype(phases)::Numeric(call); });
  };
  if constexpr (requires { &Phases<float>::Prepare; }) {
    kernel.prepare = [](const Context& context, const Problem& problem,
                        const SpgemmArguments& arguments, MemorySource& memory) {
      return WithPhases<Phases>(problem, [&](auto phases) {
        return decltype(phases)::Prepare(context, arguments, memory);
      });
    };
  }
  return kernel;
}

}  // namespace sparsed::cpu
