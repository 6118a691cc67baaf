#include "client/c/steps.h"

#include <variant>

namespace sparsed::c {
namespace {

Operand Held(const Destination& destination) {
  if (const auto* const view = std::get_if<MutableDenseView>(&destination)) {
    return DenseView(view->data, view->type, view->rows, view->cols, view->leading_dimension);
  }
  return std::get<DenseMatrix>(destination);
}

}  // namespace

std::optional<Chain::Value> Input(Chain& chain, const std::optional<Operand>& operand) {
  if (!operand) return std::nullopt;
  return chain.Input(*operand);
}

Chain ChainOf(const Matrix& matrix, const Operand& b, const Destination& c,
              const SpmmOptions& spmm) {
  Chain chain;
  Chain::SpmmOptions options;
  options.transpose = spmm.transpose;
  options.alpha = spmm.alpha;
  options.beta = spmm.beta;
  options.allow_tf32 = spmm.allow_tf32;
  options.values = Input(chain, spmm.values);
  if (spmm.beta != 0) {
    options.accumulate = chain.Input(spmm.accumulate ? *spmm.accumulate : Held(c));
  }
  const Chain::Value from = chain.Input(b);
  chain.Output(chain.Spmm(matrix, from, options), c);
  return chain;
}

Chain ChainOf(const Matrix& matrix, const Operand& a, const Operand& b, const Destination& values,
              const SddmmOptions& sddmm, int64_t heads) {
  Chain chain;
  Chain::SddmmOptions options;
  options.unscaled = sddmm.unscaled;
  options.values = Input(chain, sddmm.values);
  options.heads = heads;
  const Chain::Value left = chain.Input(a), right = chain.Input(b);
  chain.Output(chain.Sddmm(matrix, left, right, options), values);
  return chain;
}

}  // namespace sparsed::c
