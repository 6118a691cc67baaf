// SpGEMM as it is run: a kernel bound to both factors, where its backend has them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/backend.h"
#include "kernels/array.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// What is multiplied, transposed if it is to be.
struct SpgemmFactors {
  PlacedSparse left, right;                      ///< plain CSR
  PlacedSparse left_format, right_format;        ///< none: the kernel reads none
  std::shared_ptr<const Layout> mask = nullptr;  ///< null: none

  SpgemmArguments arguments() const;
};

/// A factor in host memory; values are as Backend::ValuesFor gives them.
struct SpgemmFactor {
  std::shared_ptr<const Layout> csr;
  Array values;
  std::shared_ptr<const Layout> format = nullptr;  ///< what the kernel reads besides; null: nothing
  Array format_values = {};                        ///< none if that has no values
};

/// Sets the factor's format and its values in it. `memory` and errors: as for Backend::ValuesFor.
absl::Status SetFormat(Backend& backend, const Matrix& matrix, std::shared_ptr<const Layout> format,
                       MemorySource& memory, int threads, SpgemmFactor& factor);

/// Both to where the backend's kernels read them. `host`: as for Backend::Place.
absl::StatusOr<SpgemmFactors> PlaceFactors(Backend& backend, const SpgemmFactor& left,
                                           const SpgemmFactor& right,
                                           const std::shared_ptr<const Layout>& mask,
                                           MemorySource& host);

/// Used by one thread at a time, on any worker slot of its backend. Milliseconds are added up.
class BoundSpgemm {
 public:
  /// `backend` and `kernel` outlive it.
  BoundSpgemm(Backend& backend, const SpgemmKernel& kernel, const Problem& problem,
              SpgemmFactors factors);

  const SpgemmKernel& kernel() const { return kernel_; }
  Backend& backend() const { return backend_; }
  ElementType type() const { return problem_.type; }
  int64_t rows() const { return arguments_.left.rows; }

  /// What the kernel makes of its factors before anything else; once. FAILED_PRECONDITION, in a
  /// sentence: they don't suit it.
  absl::Status Prepare(WorkerSlot& slot, const std::atomic<bool>* stop, MemorySource& memory,
                       double* milliseconds);
  /// How many entries each row has (`exact`), or at most has, and how many multiplications there
  /// are; to host memory. A GPU's kernels count exactly; the bounds of the CPU's may be cut.
  absl::Status Count(WorkerSlot& slot, const RunOptions& options, bool exact,
                     std::span<int64_t> row_sizes, int64_t* products, double* milliseconds);
  /// On the CPU: how many entries the rows of a range have.
  absl::Status CountRows(WorkerSlot& slot, const RunOptions& options, RowRange range,
                         std::span<int64_t> row_sizes, double* milliseconds);
  /// For Queue: its workspace is `options`'.
  absl::StatusOr<Context> ContextOf(WorkerSlot& slot, const RunOptions& options);
  /// Computes rows, as SpgemmKernel::numeric; everything is where the kernel runs.
  absl::Status Queue(const Context& context, RowRange rows, std::span<const int64_t> row_begin,
                     int32_t* column_indices, void* values, std::span<int64_t> row_nnz) const {
    return kernel_.numeric(context, problem_, arguments_, rows, row_begin, column_indices, values,
                           row_nnz);
  }

 private:
  Backend& backend_;
  const SpgemmKernel& kernel_;
  const Problem problem_;
  const SpgemmFactors factors_;
  const SpgemmArguments arguments_;
  std::shared_ptr<void> prepared_;
  std::optional<size_t> workspace_bytes_;
};

}  // namespace sparsed::engine
