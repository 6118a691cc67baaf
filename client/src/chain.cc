#include "sparsed/chain.h"

#include <atomic>
#include <utility>

namespace sparsed {
inline namespace client {

namespace {

uint64_t NewId() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

Chain::Chain() : id_(NewId()) {}

Chain::Value Chain::Add(Source source) {
  values_.push_back(std::move(source));
  return {id_, static_cast<uint32_t>(values_.size() - 1)};
}

Chain::Value Chain::Input(Operand operand) {
  operands_.push_back(std::move(operand));
  return Add(operands_.size() - 1);
}

Chain::Value Chain::Spmm(const Matrix& s, Value b, const SpmmOptions& options) {
  return Add(SpmmStep{s.name(), b, options});
}

Chain::Value Chain::Sddmm(const Matrix& s, Value a, Value b, const SddmmOptions& options) {
  return Add(SddmmStep{s.name(), a, b, options});
}

Chain::Value Chain::Softmax(const Matrix& s, Value x, double scale) {
  return Add(SoftmaxStep{s.name(), scale, x, std::nullopt});
}

Chain::Value Chain::SoftmaxGradient(const Matrix& s, Value softmax, Value gradient, double scale) {
  return Add(SoftmaxStep{s.name(), scale, softmax, gradient});
}

Chain::Value Chain::Mean(const Matrix& s, Value b, const ReduceOptions& options) {
  return Add(ReduceStep{s.name(), Reduction::kMean, b, options, false});
}

Chain::Value Chain::Max(const Matrix& s, Value b, const ReduceOptions& options) {
  return Add(ReduceStep{s.name(), Reduction::kMax, b, options, false});
}

Chain::Value Chain::Min(const Matrix& s, Value b, const ReduceOptions& options) {
  return Add(ReduceStep{s.name(), Reduction::kMin, b, options, false});
}

Chain::Best Chain::MaxAndWhich(const Matrix& s, Value b, const ReduceOptions& options) {
  return AddBest(s, Reduction::kMax, b, options);
}

Chain::Best Chain::MinAndWhich(const Matrix& s, Value b, const ReduceOptions& options) {
  return AddBest(s, Reduction::kMin, b, options);
}

Chain::Best Chain::AddBest(const Matrix& s, Reduction reduction, Value b,
                           const ReduceOptions& options) {
  const Value value = Add(ReduceStep{s.name(), reduction, b, options, true});
  return {value, Add(FurtherValue())};
}

Chain::Value Chain::Scale(const Matrix& s, const ScaleOptions& options) {
  return Add(ScaleStep{s.name(), options});
}

Chain::Value Chain::Total(const Matrix& s, const TotalOptions& options) {
  return Add(TotalStep{s.name(), options});
}

Chain::Attended Chain::Attention(const Matrix& s, Value left, Value right, Value values,
                                 const AttentionOptions& options) {
  const Value value = Add(AttentionStep{s.name(), left, right, values, options});
  return {value, Add(FurtherValue())};
}

Chain::AttentionGradients Chain::AttentionGradient(const Matrix& s, Value left, Value right,
                                                   Value values, const AttentionOptions& options,
                                                   const Attended& made, Value gradient,
                                                   const AttentionWanted& wanted) {
  const AttentionStep of = {s.name(), left, right, values, options};
  const AttentionGradientStep step = {of, made, gradient, wanted};
  AttentionGradients gradients;
  bool first = true;
  const auto add = [&](bool is_wanted, std::optional<Value>& to) {
    if (is_wanted) to = std::exchange(first, false) ? Add(step) : Add(FurtherValue());
  };
  add(wanted.left, gradients.left);
  add(wanted.right, gradients.right);
  add(wanted.values, gradients.values);
  add(wanted.bias, gradients.bias);
  add(wanted.att, gradients.att);
  if (first) Add(step);  // which Run refuses
  return gradients;
}

Chain::Value Chain::Sum(std::vector<Term> terms) { return Add(std::move(terms)); }

void Chain::Output(Value value, Destination destination) {
  outputs_.emplace_back(value, std::move(destination));
}

}  // namespace client
}  // namespace sparsed
