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

/// Random operands. What the server holds for them goes with them.
class BenchRequests {
 public:
  /// RESOURCE_EXHAUSTED if this machine has no room for the results.
  static absl::StatusOr<std::unique_ptr<BenchRequests>> Make(const Client& client,
                                                             const MatrixInfo& matrix,
                                                             const BenchOptions& options);
  ~BenchRequests();
  BenchRequests(const BenchRequests&) = delete;
  BenchRequests& operator=(const BenchRequests&) = delete;

  /// Requests of this client, for as long as this lives. Memory for results, or that it shares with
  /// the server, is their own.
  absl::StatusOr<LoadRequest> Of(const Client& client) const;

  /// Buffers that the server holds for it, and their bytes.
  size_t held_buffers() const { return held_.size(); }
  int64_t held_bytes() const { return held_bytes_; }

 private:
  /// What a client's requests read, and what they write.
  struct Ends {
    std::optional<Operand> left, right;             ///< SpMM has a right one alone, SpGEMM none
    std::vector<Destination> results;               ///< one for each worker
    std::vector<std::unique_ptr<NpyArray>> arrays;  ///< what results view
    std::vector<SharedMatrix> shared;               ///< what operands and results view
  };

  BenchRequests(const Client& client, const MatrixInfo& matrix, const BenchOptions& options);
  absl::Status Prepare();
  /// The matrix's name where it is in shards, whose nodes hold rows of operands; else empty.
  std::string InShards() const;
  PutOptions HowToPut() const;
  /// INVALID_ARGUMENT if operands would be held on another node than that which multiplies.
  absl::Status CheckNode() const;
  absl::Status PrepareOperand(int64_t rows, const char* what, uint64_t seed,
                              std::optional<NpyArray>& numbers);
  absl::StatusOr<Operand> OperandOf(const Client& client, const NpyArray& numbers, const char* what,
                                    Ends& ends) const;
  absl::StatusOr<Destination> ResultOf(const Client& client, int worker, Ends& ends) const;
  absl::StatusOr<LoadSample> Run(const Client& client, const Ends& ends, int worker) const;

  bool sparse() const { return options_.operation == Operation::kSpgemm; }
  /// Operations of one request; 0: it depends on the data (SpGEMM).
  double flops() const;
  int64_t result_rows() const;
  int64_t result_cols() const { return options_.operation == Operation::kSpmm ? options_.k : 1; }

  const Client client_;
  const MatrixInfo matrix_;
  const BenchOptions options_;
  std::optional<NpyArray> left_, right_;  ///< as Ends::left
  std::vector<DenseMatrix> held_;         ///< operands and results
  int64_t held_bytes_ = 0;
};

}  // namespace sparsed::cli
