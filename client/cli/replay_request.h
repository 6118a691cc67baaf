// The requests of a recorded log, made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench_load.h"
#include "client/cli/npy.h"
#include "client/cli/request_log.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// Random operands that all requests have in common, and room for a result for each worker.
class ReplayRequests {
 public:
  /// RESOURCE_EXHAUSTED if this machine has no room for the results; NOT_FOUND if the server has
  /// none of the matrices.
  static absl::StatusOr<std::unique_ptr<ReplayRequests>> Make(const Client& client,
                                                              const RequestLog& log, int workers);

  /// Those of the log that can be made, as they are due.
  const std::vector<RecordedRequest>& requests() const { return requests_; }
  /// How many cannot, by the matrix that is not there.
  const std::map<std::string, int64_t>& missing() const { return missing_; }
  /// One of them. Thread-safe for different workers.
  absl::StatusOr<LoadSample> Run(int worker, int64_t number) const;

 private:
  /// A product, and what it needs.
  struct Product {
    ProductKind kind;
    ValueType type = ValueType::kF32;
    int64_t left_rows = 0, right_rows = 0;  ///< of its dense operands; 0: it has none
    int64_t result_rows = 0, result_cols = 0;
    double flops = 0;
  };

  explicit ReplayRequests(const Client& client) : client_(client) {}
  absl::Status FindMatrices(const RequestLog& log);
  absl::Status MakeArrays(int workers);
  DenseView OperandOf(const Product& product, int64_t rows) const;

  const Client client_;
  std::vector<RecordedRequest> requests_;
  std::map<std::string, int64_t> missing_;
  std::vector<std::optional<Product>> products_;       ///< by kind; none: its matrix is not there
  std::map<ValueType, NpyArray> operands_;             ///< as many numbers as the largest needs
  std::vector<std::unique_ptr<std::byte[]>> results_;  ///< by worker
};

}  // namespace sparsed::cli
