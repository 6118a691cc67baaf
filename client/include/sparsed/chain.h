// Several products as one request: what one makes and the next one takes never leaves the device.
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

class ChainEncoder;

/// A program of products and sums, put together here and run by Client::Run, as often as one likes:
/// operands are read, and results written, anew each time, and their memory is used until the call
/// has ended. What does not go together is said by Run, as INVALID_ARGUMENT that names the step,
/// counted from 0. Of one server's matrices; one version of each is used in one run.
class Chain {
 public:
  /// What a step made, or an operand; of one chain.
  class Value {
    friend class Chain;
    friend class ChainEncoder;
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
    /// S's, nnz x 1 in the order of the upload; what an Sddmm of S made is such a one.
    std::optional<Value> values{};
    bool allow_tf32 = false;  ///< as in sparsed::SpmmOptions
  };
  struct SddmmOptions {
    bool unscaled = false;  ///< do not multiply by S's values
    std::optional<Value> values{};
  };

  Chain();

  /// At most 64.
  Value Input(Operand operand);
  /// alpha * S * b + beta * accumulate; with S^T likewise. At most 1,024 steps in all.
  Value Spmm(const Matrix& s, Value b, const SpmmOptions& options);
  Value Spmm(const Matrix& s, Value b) { return Spmm(s, b, SpmmOptions()); }
  /// S .* (a * b^T), nnz x 1 in the order of the upload.
  Value Sddmm(const Matrix& s, Value a, Value b, const SddmmOptions& options);
  Value Sddmm(const Matrix& s, Value a, Value b) { return Sddmm(s, a, b, SddmmOptions()); }
  /// Softmax of scale * x over the nonzeros of each row of S, for x of nnz x 1, as an Sddmm makes
  /// it.
  Value Softmax(const Matrix& s, Value x, double scale = 1);
  /// Its backward: the gradient of x, for that of what Softmax made with the same scale.
  Value SoftmaxGradient(const Matrix& s, Value softmax, Value gradient, double scale = 1);
  /// The sum of 1 to 64 matrices of one shape, times their factors.
  Value Sum(std::vector<Term> terms);
  /// Where a value goes; at most 16. None may share memory with an operand or another result.
  void Output(Value value, Destination destination);

 private:
  friend class ChainEncoder;
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
  using SumStep = std::vector<Term>;
  /// A step, or which operand, by value.
  using Source = std::variant<size_t, SpmmStep, SddmmStep, SoftmaxStep, SumStep>;

  Value Add(Source source);

  uint64_t id_;  ///< of this one and its copies
  std::vector<Operand> operands_;
  std::vector<Source> values_;
  std::vector<std::pair<Value, Destination>> outputs_;
};

}  // namespace client
}  // namespace sparsed
