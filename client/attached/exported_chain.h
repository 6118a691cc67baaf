// Chains that this process runs itself: what their steps run on, and a chain as it is run.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

/// A chain that was checked, with all that it runs on: steps that go one after the other over
/// values.
struct ChainProgram {
  static constexpr size_t kNone = ~size_t{0};

  struct Value {
    /// Of the caller's, or without data, then a temporary.
    DenseMemory memory;
    size_t element = 0;  ///< bytes
    size_t offset = 0;   ///< of a temporary: of `temporary_bytes`
    bool temporary = false;
  };
  enum class Kind : uint8_t {
    kSpmm,
    kHeadSpmm,
    kSddmm,
    kHeadSddmm,
    kSoftmax,
    kSoftmaxGradient,
    kReduce,
    kScale,
    kTotal,
    kSum,
    kToCsr,     ///< from the order of the upload
    kToUpload,  ///< back
    kCopy,
  };
  enum class Reduction : uint8_t { kMean = 1, kMax = 2, kMin = 3 };
  struct Term {
    size_t value;
    double factor;
  };
  /// What it does not use is kNone, or null. Values of nonzeros are in the order of CSR, but where
  /// the kind says otherwise.
  struct Step {
    Kind kind;
    size_t of = 0;                                   ///< the step of the caller's chain
    std::shared_ptr<const ExportedProduct> product;  ///< of kSpmm and kSddmm
    std::shared_ptr<const ExportedRows> rows;        ///< of the others that know of a matrix
    size_t to = kNone;
    size_t which = kNone;         ///< kReduce: the arguments
    size_t a = kNone, b = kNone;  ///< dense operands, or what it is made of and its gradient
    size_t values = kNone;        ///< S's; none: its own
    size_t old = kNone;           ///< of SpMM with beta: what C was, if it is not there already
    size_t by_rows = kNone, by_cols = kNone;  ///< kScale
    bool unscaled = false;                    ///< the place of S's values is taken by ones
    Reduction reduction = Reduction::kMean;
    double alpha = 1, beta = 0;
    double scale = 1;
    size_t first_term = 0, terms = 0;  ///< kSum
  };

  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<Term> terms;
  size_t temporary_bytes = 0;
  /// Of S: as ExportedProduct::order, and what has it.
  const int64_t* order = nullptr;
  std::shared_ptr<const void> order_owner;
  int64_t nnz = 0;
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
