#include "client/c/steps.h"

#include <utility>
#include <variant>

#include "client/c/calls.h"
#include "client/c/results.h"

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

absl::Status RunChain(LocalMatrix& local, const Place& place, const Chain& chain,
                      const CallOptions& options, sparsed_result* result, sparsed_call** call,
                      std::shared_ptr<void> kept) {
  if (call == nullptr) return Deliver(local.Run(place, chain, options), result);
  return FinishOrHandOut(local.client()->client().RunAsync(chain, options), call,
                         [result, kept = std::move(kept)](const ComputeResult& how) {
                           Set(how, result);
                           return absl::OkStatus();
                         });
}

}  // namespace sparsed::c
