// From SpgemmKernel's functions to the threads that do the work; the same for every kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/cpu/spgemm/jobs.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

/// How a kernel goes about the rows of one product.
struct SpgemmMethod {
  RowPolicy policy;
  Capacity capacity;
};

bool SupportsSpgemm(const Problem& problem);

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

/// The most products, and not more than T's columns, that a row of C can have: what the longest
/// rows of S and T would make together.
int64_t LargestBound(const SpgemmArguments& arguments);

}  // namespace sparsed::cpu
