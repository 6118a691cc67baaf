// SpMM and SDDMM on operands that are where the kernels read them: what calls and steps of chains
// share.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/execution/executor_impl.h"

namespace sparsed::engine {

/// A layout with the matrix's values in its order, where the worker slot's kernels read them.
/// `host`: memory of the host for what is on its way.
absl::StatusOr<PlacedSparse> PlaceWithValues(Executor::Impl& impl, const Matrix& matrix,
                                             const std::shared_ptr<const Layout>& layout,
                                             WorkerSlot& slot, MemorySource& host);

/// The product of SpMM (`first`: B) or of SDDMM (A and B, into nnz x 1 without gaps), as the
/// resolved plan runs it; S without values only masks, in SpMM it is ones. Borrows all.
BoundRun BindProduct(const Resolved& plan, const PlacedSparse& s, const PlacedDense& first,
                     const PlacedDense* second, const PlacedDense& result, double alpha,
                     double beta, Reduction reduction = Reduction::kSum);

/// Tells the observer of a product that `kernel` computed; `reads_result`: with C's old value;
/// `heads`: as many values for each nonzero.
void RecordProduct(Executor::Impl& impl, DeviceId device, const Pattern& pattern,
                   const Problem& problem, bool reads_result, std::string_view kernel,
                   uint64_t nanoseconds, int64_t heads = 1);

}  // namespace sparsed::engine
