// Rows of S on several cards: what each of them has, and which rows of the dense operand B it must
// fetch. S is M x N; card c multiplies its rows of S and has the same rows of the result. Row j of
// B lies on the card that has row j of S, or, if S is not square, on card j * cards / N.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"

namespace sparsed::tools {

inline constexpr int kMostCards = 1024;
using CardNumber = int16_t;

struct CardLoad {
  int64_t rows = 0;  ///< of S, and of the result
  int64_t nonzeros = 0;
  int64_t own_nonzeros = 0;   ///< whose row of B lies on this card
  int64_t outer_rows = 0;     ///< rows of S with a nonzero that is not one of those
  int64_t operand_rows = 0;   ///< of B that lie on this card
  int64_t own_used_rows = 0;  ///< of those that its nonzeros name
  int64_t fetched_rows = 0;   ///< of B that its nonzeros name and that lie elsewhere, once each
  int64_t sent_rows = 0;  ///< that the other cards of its node fetch from it, once for each card
};

/// Between nodes a row travels once for each node that has a card which names it.
struct NodeLoad {
  int cards = 0;
  int64_t fetched_rows = 0;
  int64_t sent_rows = 0;
};

struct RowExchange {
  std::vector<CardLoad> cards;
  std::vector<NodeLoad> nodes;  ///< of so many cards each, the last one of those that are left

  int64_t fetched_rows() const;
};

/// The card of each row, as the server divides them (RowBoundsByNonzeros). `cards` in
/// [1, kMostCards].
std::vector<CardNumber> BlocksByNonzeros(const CsrView& csr, int cards);

/// One pass over the nonzeros, whatever the number of cards; scratch: 4 bytes a row and 6 a
/// column. `card_of_row` has numbers in [0, cards).
RowExchange CountExchange(const CsrView& csr, std::span<const CardNumber> card_of_row, int cards,
                          int cards_per_node);

/// What a larger pattern of the same kind has: rows and nonzeros each in proportion.
RowExchange Scaled(const RowExchange& exchange, double row_factor, double nonzero_factor);

}  // namespace sparsed::tools
