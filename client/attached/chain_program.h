// A chain as it is run in this process.
#pragma once

#include <array>
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
    kAttention,
    kAttentionGradient,
    kToCsr,     ///< from the order of the upload
    kToUpload,  ///< back
    kCopy,
  };
  enum class Reduction : uint8_t { kMean = 1, kMax = 2, kMin = 3 };
  enum class Scores : uint8_t { kDot = 1, kSum = 2, kGatv2 = 3 };
  /// What attention and its gradients have besides `a` (left), `b` (right), `scale` and, of
  /// attention, `to` and `which` (log_sums).
  struct Attention {
    Scores scores = Scores::kDot;
    int64_t heads = 1;
    double slope = 0;
    size_t values = kNone, bias = kNone, att = kNone;
    size_t result = kNone, log_sums = kNone, gradient = kNone;  ///< of gradients
    /// They make: those of left, right, values, bias and att, as far as they are wanted.
    std::array<size_t, 5> gradients = {kNone, kNone, kNone, kNone, kNone};
  };
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
    std::shared_ptr<const ExportedRows> columns;     ///< S^T: kAttentionGradient
    size_t to = kNone;
    size_t which = kNone;         ///< kReduce: the arguments; kAttention: log_sums
    size_t a = kNone, b = kNone;  ///< dense operands, or what it is made of and its gradient
    size_t values = kNone;        ///< S's; none: its own
    size_t old = kNone;           ///< of SpMM with beta: what C was, if it is not there already
    size_t by_rows = kNone, by_cols = kNone;  ///< kScale
    bool unscaled = false;                    ///< the place of S's values is taken by ones
    Reduction reduction = Reduction::kMean;
    double alpha = 1, beta = 0;
    double scale = 1;
    size_t first_term = 0, terms = 0;  ///< kSum
    Attention attention = {};
  };

  /// Calls `use(value)` for each that the step reads.
  template <typename Use>
  void ForEachUse(const Step& step, const Use& use) const {
    const Attention& of = step.attention;
    for (const size_t value : {step.a, step.b, step.values, step.old, step.by_rows, step.by_cols,
                               of.values, of.bias, of.att, of.result, of.log_sums, of.gradient}) {
      if (value != kNone) use(value);
    }
    for (size_t i = 0; i < step.terms; ++i) use(terms[step.first_term + i].value);
  }
  /// ... that it makes.
  template <typename Made>
  static void ForEachMade(const Step& step, const Made& made) {
    const std::array<size_t, 5>& more = step.attention.gradients;
    for (const size_t value : {step.to, step.which, more[0], more[1], more[2], more[3], more[4]}) {
      if (value != kNone) made(value);
    }
  }

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
