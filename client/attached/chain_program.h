// A chain as it is run in this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/attached/exported_product.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed {
inline namespace client {

class ExportedRows;

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

  /// Gives temporaries their places, those that are not needed at the same time the same. False if
  /// one of them is larger than memory can be.
  bool LayOut();
};

}  // namespace client
}  // namespace sparsed
