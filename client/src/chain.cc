#include "sparsed/chain.h"

#include <atomic>

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

Chain::Value Chain::Sum(std::vector<Term> terms) { return Add(std::move(terms)); }

void Chain::Output(Value value, Destination destination) {
  outputs_.emplace_back(value, std::move(destination));
}

}  // namespace client
}  // namespace sparsed
