// Plain products as chains of one step, which can do more: several heads, other memory.
#pragma once

#include <cstdint>
#include <optional>

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

}  // namespace sparsed::c
