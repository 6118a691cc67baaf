// Products as chains of one step, which can do more: several heads, other memory, attention.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "client/c/arguments.h"
#include "client/c/local.h"
#include "sparsed/c.h"
#include "sparsed/chain.h"
#include "sparsed/client.h"

namespace sparsed::c {

/// None if there is no operand.
std::optional<Chain::Value> Input(Chain& chain, const std::optional<Operand>& operand);

/// `spmm.values` may have several columns. What `c` holds is an operand of its own if it is read.
Chain ChainOf(const Matrix& matrix, const Operand& b, const Destination& c,
              const SpmmOptions& spmm);
Chain ChainOf(const Matrix& matrix, const Operand& a, const Operand& b, const Destination& values,
              const SddmmOptions& sddmm, int64_t heads);

/// Of this matrix alone. `kept` is used until the call has ended.
absl::Status RunChain(LocalMatrix& local, const Place& place, const Chain& chain,
                      const CallOptions& options, sparsed_result* result, sparsed_call** call,
                      std::shared_ptr<void> kept = nullptr);

/// What attention and its gradients are given alike.
struct AttentionInputs {
  Chain::Value left, right, values;
  Chain::AttentionOptions options;
};
/// What the scores of attention are, without bias and att. Refuses what is none; heads: 0 for 1.
Chain::AttentionOptions AttentionOptionsOf(Arguments& in, int32_t scores, int64_t heads,
                                           double scale, double slope);

}  // namespace sparsed::c
