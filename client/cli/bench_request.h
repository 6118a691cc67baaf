// The requests that `bench` makes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench_load.h"
#include "client/cli/npy.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// How operands and results travel.
enum class BenchTransport : uint8_t {
  kStream,  ///< with each request, as any caller's
  kHeld,    ///< not at all: the server holds them
  kShared,  ///< in memory that a server on this machine maps, too
};

struct BenchOptions {
  std::string name;
  Operation operation = Operation::kSpmm;
  bool transpose = false;  ///< of SpMM
  int64_t k = 128;         ///< width; of no meaning for SpGEMM
  bool allow_tf32 = false;
  BenchTransport transport = BenchTransport::kStream;
  int workers = 1;
};

/// Random operands, and a result for each worker. What the server holds for it goes with it.
class BenchRequests {
 public:
  /// RESOURCE_EXHAUSTED if this machine has no room for the results.
  static absl::StatusOr<std::unique_ptr<BenchRequests>> Make(const Client& client,
                                                             const MatrixInfo& matrix,
                                                             const BenchOptions& options);
  ~BenchRequests();
  BenchRequests(const BenchRequests&) = delete;
  BenchRequests& operator=(const BenchRequests&) = delete;

  /// One request of a worker. Thread-safe for different workers.
  absl::StatusOr<LoadSample> Run(int worker) const;

 private:
  /// Operations of one request; 0: it depends on the data (SpGEMM).
  double flops() const;
  BenchRequests(const Client& client, const MatrixInfo& matrix, const BenchOptions& options);
  absl::StatusOr<Operand> MakeOperand(int64_t rows, const char* what, uint64_t seed);
  absl::StatusOr<Destination> MakeResult(int64_t rows, int64_t cols, int worker);
  absl::Status Prepare();

  const Client client_;
  const MatrixInfo matrix_;
  const BenchOptions options_;
  std::vector<std::unique_ptr<NpyArray>> arrays_;  ///< what operands and results view
  std::vector<SharedMatrix> shared_;               ///< likewise
  std::vector<DenseMatrix> held_;
  std::optional<Operand> left_, right_;  ///< SpMM has a right one alone
  std::vector<Destination> results_;     ///< one for each worker
};

}  // namespace sparsed::cli
