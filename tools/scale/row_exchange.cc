#include "tools/scale/row_exchange.h"

#include <algorithm>
#include <cmath>

#include "kernels/formats/row_bounds.h"

namespace sparsed::tools {
namespace {

constexpr CardNumber kNobody = -1;

/// Rows in the order of their cards.
std::vector<int32_t> RowsByCard(std::span<const CardNumber> card_of_row, int cards) {
  std::vector<int64_t> next(static_cast<size_t>(cards) + 1, 0);
  for (const CardNumber card : card_of_row) ++next[card + 1];
  for (int card = 0; card < cards; ++card) next[card + 1] += next[card];
  std::vector<int32_t> order(card_of_row.size());
  for (size_t row = 0; row < card_of_row.size(); ++row) {
    order[next[card_of_row[row]]++] = static_cast<int32_t>(row);
  }
  return order;
}

std::vector<CardNumber> EvenBlocks(int64_t count, int cards) {
  std::vector<CardNumber> card(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) card[i] = static_cast<CardNumber>(i * cards / count);
  return card;
}

int64_t Rounded(int64_t count, double factor) {
  return std::llround(static_cast<double>(count) * factor);
}

}  // namespace

int64_t RowExchange::fetched_rows() const {
  int64_t sum = 0;
  for (const CardLoad& card : cards) sum += card.fetched_rows;
  return sum;
}

std::vector<CardNumber> BlocksByNonzeros(const CsrView& csr, int cards) {
  std::vector<CardNumber> card_of_row(static_cast<size_t>(csr.rows));
  const std::vector<int64_t> bounds = RowBoundsByNonzeros(csr, cards);
  for (int card = 0; card < cards; ++card) {
    std::fill(card_of_row.begin() + bounds[card], card_of_row.begin() + bounds[card + 1],
              static_cast<CardNumber>(card));
  }
  return card_of_row;
}

RowExchange CountExchange(const CsrView& csr, std::span<const CardNumber> card_of_row, int cards,
                          int cards_per_node) {
  RowExchange exchange;
  exchange.cards.resize(cards);
  exchange.nodes.resize((cards + cards_per_node - 1) / cards_per_node);
  for (int card = 0; card < cards; ++card) ++exchange.nodes[card / cards_per_node].cards;

  std::vector<CardNumber> even;
  std::span<const CardNumber> owner = card_of_row;
  if (csr.rows != csr.cols) owner = even = EvenBlocks(csr.cols, cards);
  for (const CardNumber card : owner) ++exchange.cards[card].operand_rows;

  // Who named each column last; cards come one after another, and so do nodes.
  std::vector<CardNumber> by_card(static_cast<size_t>(csr.cols), kNobody), by_node = by_card;
  for (const int32_t row : RowsByCard(card_of_row, cards)) {
    const CardNumber card = card_of_row[row];
    const auto node = static_cast<CardNumber>(card / cards_per_node);
    CardLoad& load = exchange.cards[card];
    const int64_t begin = csr.row_offsets[row], end = csr.row_offsets[row + 1];
    int64_t own = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int32_t column = csr.column_indices[i];
      const CardNumber from = owner[column];
      own += from == card ? 1 : 0;
      if (by_card[column] == card) continue;
      by_card[column] = card;
      if (from == card) {
        ++load.own_used_rows;
        continue;
      }
      ++load.fetched_rows;
      const int from_node = from / cards_per_node;
      if (from_node == node) {
        ++exchange.cards[from].sent_rows;
      } else if (by_node[column] != node) {
        by_node[column] = node;
        ++exchange.nodes[node].fetched_rows;
        ++exchange.nodes[from_node].sent_rows;
      }
    }
    ++load.rows;
    load.nonzeros += end - begin;
    load.own_nonzeros += own;
    load.outer_rows += own < end - begin ? 1 : 0;
  }
  return exchange;
}

RowExchange Scaled(const RowExchange& exchange, double row_factor, double nonzero_factor) {
  RowExchange scaled = exchange;
  for (CardLoad& card : scaled.cards) {
    for (int64_t* const count : {&card.nonzeros, &card.own_nonzeros}) {
      *count = Rounded(*count, nonzero_factor);
    }
    for (int64_t* const count : {&card.rows, &card.outer_rows, &card.operand_rows,
                                 &card.own_used_rows, &card.fetched_rows, &card.sent_rows}) {
      *count = Rounded(*count, row_factor);
    }
  }
  for (NodeLoad& node : scaled.nodes) {
    node.fetched_rows = Rounded(node.fetched_rows, row_factor);
    node.sent_rows = Rounded(node.sent_rows, row_factor);
  }
  return scaled;
}

}  // namespace sparsed::tools
