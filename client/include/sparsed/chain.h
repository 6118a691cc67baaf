// Several operations as one request: what one makes and the next one takes never leaves the device.
//
//   // Three propagations, and the mean of all four matrices (LightGCN).
//   sparsed::Chain chain;
//   std::vector<sparsed::Chain::Term> layers = {{chain.Input(x), 0.25}};
//   for (int i = 0; i < 3; ++i) layers.push_back({chain.Spmm(graph, layers.back().value), 0.25});
//   chain.Output(chain.Sum(layers), y);
//   auto result = client->Run(chain);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

class AttachedChain;
class ChainEncoder;

/// A program of operations, put together here and run by Client::Run, as often as one likes:
/// operands are read, and results written, anew each time, and their memory is used until the call
/// has ended. What does not go together is said by Run, as INVALID_ARGUMENT that names the step,
/// counted from 0. Of one server's matrices; one version of each is used in one run.
class Chain {
 public:
  /// What a step made, or an operand; of one chain.
  class Value {
    friend class Chain;
    friend class ChainEncoder;
    friend class AttachedChain;
    Value(uint64_t chain, uint32_t number) : chain_(chain), number_(number) {}
    uint64_t chain_;
    uint32_t number_;
  };
  struct Term {
    Value value;
    double factor = 1;
  };
  struct SpmmOptions {
    bool transpose = false;
    double alpha = 1;
    double beta = 0;
    std::optional<Value> accumulate{};  ///< added beta times
    /// S's, nnz x 1 in the order of the upload; what an Sddmm of S made is such a one. nnz x H: K
    /// is a multiple of H, and the columns h K/H to (h + 1) K/H are multiplied with column h of
    /// them.
    std::optional<Value> values{};
    bool allow_tf32 = false;  ///< as in sparsed::SpmmOptions
  };
  struct SddmmOptions {
    bool unscaled = false;  ///< do not multiply by S's values
    /// S's, nnz x 1 or nnz x heads.
    std::optional<Value> values{};
    /// Of which each has K / heads columns of a and b, side by side, and a column of the result.
    int64_t heads = 1;
  };
  struct ReduceOptions {
    bool transpose = false;
    std::optional<Value> values{};  ///< S's, nnz x 1
    bool unscaled = false;          ///< do not multiply by S's values
  };
  /// A greatest or least of each row, and which nonzero it is of: i64, of the same shape, the
  /// position in the order of the upload of the first in its row, -1 of none. `which` is only for a
  /// destination of int64_t in the caller's memory.
  struct Best {
    Value value, which;
  };
  struct ScaleOptions {
    std::optional<Value> values{};  ///< nnz x H; S's own if there are none
    std::optional<Value> rows{};    ///< M x 1, or M x H
    std::optional<Value> cols{};    ///< N x 1, or N x H
  };
  struct TotalOptions {
    bool transpose = false;         ///< of each column
    std::optional<Value> values{};  ///< nnz x H; S's own if there are none
  };

  enum class Scores : uint8_t {
    kDot = 1,  ///< scale * (the product of part h of row i of left, and part h of row j of right)
    kSum = 2,  ///< LeakyReLU(left[i, h] + right[j, h])
    /// The sum over part h of att * LeakyReLU(row i of left + row j of right).
    kGatv2 = 3,
  };
  struct AttentionOptions {
    Scores scores = Scores::kDot;
    int64_t heads = 1;            ///< H
    double scale = 1;             ///< kDot
    double slope = 0.2;           ///< kSum, kGatv2: of what is below 0
    std::optional<Value> bias{};  ///< added to the scores: nnz x H, or nnz x 1
    std::optional<Value> att{};   ///< kGatv2, which needs it: 1 x K
  };
  /// What attention makes, M x L, and the logarithm of the sum over each row of exp(score), M x H:
  /// its gradients need both. In a chain of 16-bit types log_sums are f32.
  struct Attended {
    Value value, log_sums;
  };
  /// Of which operands of attention gradients are made.
  struct AttentionWanted {
    bool left = true, right = true, values = true, bias = false, att = false;
  };
  struct AttentionGradients {
    std::optional<Value> left{}, right{}, values{}, bias{}, att{};
  };

  Chain();

  /// At most 64.
  Value Input(Operand operand);
  /// alpha * S * b + beta * accumulate; with S^T likewise. At most 1,024 steps in all.
  Value Spmm(const Matrix& s, Value b, const SpmmOptions& options);
  Value Spmm(const Matrix& s, Value b) { return Spmm(s, b, SpmmOptions()); }
  /// S .* (a * b^T), nnz x 1 in the order of the upload; of several heads nnz x heads.
  Value Sddmm(const Matrix& s, Value a, Value b, const SddmmOptions& options);
  Value Sddmm(const Matrix& s, Value a, Value b) { return Sddmm(s, a, b, SddmmOptions()); }
  /// Softmax of scale * x over the nonzeros of each row of S, for x of nnz x H, as an Sddmm makes
  /// it.
  Value Softmax(const Matrix& s, Value x, double scale = 1);
  /// Its backward: the gradient of x, for that of what Softmax made with the same scale.
  Value SoftmaxGradient(const Matrix& s, Value softmax, Value gradient, double scale = 1);
  /// Of the products s * b of each row's nonzeros the mean, or the greatest or least: 0 of none,
  /// NaN if any is.
  Value Mean(const Matrix& s, Value b, const ReduceOptions& options);
  Value Mean(const Matrix& s, Value b) { return Mean(s, b, ReduceOptions()); }
  Value Max(const Matrix& s, Value b, const ReduceOptions& options);
  Value Max(const Matrix& s, Value b) { return Max(s, b, ReduceOptions()); }
  Value Min(const Matrix& s, Value b, const ReduceOptions& options);
  Value Min(const Matrix& s, Value b) { return Min(s, b, ReduceOptions()); }
  Best MaxAndWhich(const Matrix& s, Value b, const ReduceOptions& options);
  Best MinAndWhich(const Matrix& s, Value b, const ReduceOptions& options);
  /// rows[i] * values[p] * cols[j] for each nonzero p = (i, j) of S, nnz x H.
  Value Scale(const Matrix& s, const ScaleOptions& options);
  /// What the values of each row, or column, of S add up to, M x H (N x H).
  Value Total(const Matrix& s, const TotalOptions& options);
  Value Total(const Matrix& s) { return Total(s, TotalOptions()); }
  /// Attention along the nonzeros of S, in one pass: for row i and head h the sum over its nonzeros
  /// (i, j) of the softmax over the row of their scores, times part h of row j of `values`, which
  /// are N x L with L a multiple of H and may be `right` itself. left: M x K (kSum: M x H), right:
  /// N x K (N x H). 0 of a row without nonzeros. S's own values do not count.
  Attended Attention(const Matrix& s, Value left, Value right, Value values,
                     const AttentionOptions& options);
  Attended Attention(const Matrix& s, Value left, Value right, Value values) {
    return Attention(s, left, right, values, AttentionOptions());
  }
  /// Its gradients, for that of what it made, with the same operands and options. `made` may be
  /// inputs: what another chain's Attention made.
  AttentionGradients AttentionGradient(const Matrix& s, Value left, Value right, Value values,
                                       const AttentionOptions& options, const Attended& made,
                                       Value gradient, const AttentionWanted& wanted);
  /// The sum of 1 to 64 matrices of one shape, times their factors.
  Value Sum(std::vector<Term> terms);
  /// Where a value goes; at most 16. None may share memory with an operand or another result.
  void Output(Value value, Destination destination);

 private:
  friend class ChainEncoder;
  friend class AttachedChain;
  struct SpmmStep {
    std::string matrix;
    Value b;
    SpmmOptions options;
  };
  struct SddmmStep {
    std::string matrix;
    Value a, b;
    SddmmOptions options;
  };
  struct SoftmaxStep {
    std::string matrix;
    double scale;
    Value value;
    std::optional<Value> gradient;
  };
  enum class Reduction : uint8_t { kMean = 1, kMax = 2, kMin = 3 };
  struct ReduceStep {
    std::string matrix;
    Reduction reduction;
    Value b;
    ReduceOptions options;
    bool arguments;
  };
  struct ScaleStep {
    std::string matrix;
    ScaleOptions options;
  };
  struct TotalStep {
    std::string matrix;
    TotalOptions options;
  };
  struct AttentionStep {
    std::string matrix;
    Value left, right, values;
    AttentionOptions options;
  };
  struct AttentionGradientStep {
    AttentionStep of;
    Attended made;
    Value gradient;
    AttentionWanted wanted;
  };
  using SumStep = std::vector<Term>;
  /// What the step before made, too.
  struct FurtherValue {};
  /// A step, or which operand, by value.
  using Source =
      std::variant<size_t, SpmmStep, SddmmStep, SoftmaxStep, ReduceStep, ScaleStep, TotalStep,
                   AttentionStep, AttentionGradientStep, SumStep, FurtherValue>;

  Value Add(Source source);
  Best AddBest(const Matrix& s, Reduction reduction, Value b, const ReduceOptions& options);

  uint64_t id_;  ///< of this one and its copies
  std::vector<Operand> operands_;
  std::vector<Source> values_;
  std::vector<std::pair<Value, Destination>> outputs_;
};

}  // namespace client
}  // namespace sparsed
