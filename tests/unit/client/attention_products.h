// Attention along nonzeros as a step of chains, and its gradients, on any server.
#pragma once

#include "tests/unit/client/chain_products.h"

namespace sparsed::test {

/// Of all types and kinds of scores, against sums over the nonzeros.
void CheckFusedAttention(ChainRunner& runner);
/// What does not go together is refused, with a sentence.
void CheckAttentionRefusals(ChainRunner& runner);

}  // namespace sparsed::test
