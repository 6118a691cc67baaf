// From SpgemmKernel's functions to the threads that do the work; the same for every kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/cpu/spgemm/jobs.h"
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

}  // namespace sparsed::cpu
