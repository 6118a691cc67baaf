// What steps of chains without a plan run on, and who runs chains in this process.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/attached/chain_program.h"
#include "client/attached/exported_product.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed {
inline namespace client {

/// Plain CSR of S, or of S^T, which steps without a plan run on. Thread-safe.
class ExportedRows {
 public:
  /// As ExportedProduct::Make.
  static absl::StatusOr<std::shared_ptr<const ExportedRows>> Make(const v1::ExportedRun& run,
                                                                  std::optional<int> gpu,
                                                                  ExportedProduct::Memory memory);
  virtual ~ExportedRows() = default;

  /// As ExportedProduct::order.
  virtual const int64_t* order() const = 0;
};

/// Runs chains of one matrix: what they work in is kept for the next. Thread-safe.
class ExportedChains {
 public:
  /// `clock` as of ExportedProduct::Make.
  static std::shared_ptr<ExportedChains> Make(std::optional<int> gpu);
  virtual ~ExportedChains() = default;

  /// As ExportedProduct's: done, queued, or part of a graph. `durations`, one for each step of the
  /// caller's chain, get what each took on the CPU, and nothing on a GPU. UNIMPLEMENTED, maybe
  /// after some steps, if the GPU has no kernel for so large a matrix.
  virtual ExportedProduct::Accounted Run(const ChainProgram& program,
                                         const ExportedProduct::Where& where,
                                         std::vector<std::chrono::nanoseconds>& durations) = 0;
};

}  // namespace client
}  // namespace sparsed
