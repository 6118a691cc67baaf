// What cards exchange, beside a count that goes through all pairs of cards and rows.
#include "tools/scale/row_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "tools/corpus/graphs.h"
#include "tools/corpus/random.h"
#include "tools/corpus/rectangles.h"
#include "tools/matrix_file.h"

namespace sparsed::tools {
namespace {

using corpus::Pattern;

CsrView ViewOf(const Pattern& p) { return {p.rows, p.cols, p.row_offsets, p.column_indices, {}}; }

/// Card by card, with sets.
RowExchange BruteForce(const Pattern& p, const std::vector<CardNumber>& card_of_row, int cards,
                       int cards_per_node) {
  const auto owner = [&](int64_t j) {
    return p.rows == p.cols ? static_cast<int>(card_of_row[j])
                            : static_cast<int>(j * cards / p.cols);
  };
  RowExchange exchange;
  exchange.cards.resize(cards);
  exchange.nodes.resize((cards + cards_per_node - 1) / cards_per_node);
  std::set<std::pair<int, int64_t>> between;  // node, row of B
  for (int card = 0; card < cards; ++card) {
    ++exchange.nodes[card / cards_per_node].cards;
    CardLoad& load = exchange.cards[card];
    std::set<int64_t> named;
    for (int64_t row = 0; row < p.rows; ++row) {
      if (card_of_row[row] != card) continue;
      ++load.rows;
      bool outer = false;
      for (int64_t i = p.row_offsets[row]; i < p.row_offsets[row + 1]; ++i) {
        const int64_t column = p.column_indices[i];
        named.insert(column);
        ++load.nonzeros;
        if (owner(column) == card) {
          ++load.own_nonzeros;
        } else {
          outer = true;
        }
      }
      load.outer_rows += outer ? 1 : 0;
    }
    for (int64_t j = 0; j < p.cols; ++j) load.operand_rows += owner(j) == card ? 1 : 0;
    for (const int64_t j : named) {
      if (owner(j) == card) {
        ++load.own_used_rows;
        continue;
      }
      ++load.fetched_rows;
      if (owner(j) / cards_per_node == card / cards_per_node) {
        ++exchange.cards[owner(j)].sent_rows;
      } else {
        between.emplace(card / cards_per_node, j);
      }
    }
  }
  for (const auto& [node, j] : between) {
    ++exchange.nodes[node].fetched_rows;
    ++exchange.nodes[owner(j) / cards_per_node].sent_rows;
  }
  return exchange;
}

void ExpectSame(const RowExchange& counted, const RowExchange& expected) {
  ASSERT_EQ(counted.cards.size(), expected.cards.size());
  for (size_t c = 0; c < expected.cards.size(); ++c) {
    SCOPED_TRACE("card " + std::to_string(c));
    const CardLoad &a = counted.cards[c], &b = expected.cards[c];
    EXPECT_EQ(a.rows, b.rows);
    EXPECT_EQ(a.nonzeros, b.nonzeros);
    EXPECT_EQ(a.own_nonzeros, b.own_nonzeros);
    EXPECT_EQ(a.outer_rows, b.outer_rows);
    EXPECT_EQ(a.operand_rows, b.operand_rows);
    EXPECT_EQ(a.own_used_rows, b.own_used_rows);
    EXPECT_EQ(a.fetched_rows, b.fetched_rows);
    EXPECT_EQ(a.sent_rows, b.sent_rows);
  }
  ASSERT_EQ(counted.nodes.size(), expected.nodes.size());
  for (size_t n = 0; n < expected.nodes.size(); ++n) {
    SCOPED_TRACE("node " + std::to_string(n));
    EXPECT_EQ(counted.nodes[n].cards, expected.nodes[n].cards);
    EXPECT_EQ(counted.nodes[n].fetched_rows, expected.nodes[n].fetched_rows);
    EXPECT_EQ(counted.nodes[n].sent_rows, expected.nodes[n].sent_rows);
  }
}

std::vector<CardNumber> AtRandom(int64_t rows, int cards, uint64_t seed) {
  corpus::Random random(seed);
  std::vector<CardNumber> card(static_cast<size_t>(rows));
  for (CardNumber& c : card) c = static_cast<CardNumber>(random.Below(cards));
  return card;
}

TEST(CountExchange, IsWhatGoingThroughAllPairsCounts) {
  const Pattern patterns[] = {
      corpus::ChungLu(200, 1500, corpus::Falloff::kOne, 1),
      corpus::RoadGrid(15, 12, 900, 100, 2),
      corpus::UniformRows(90, 300, 5, 3),
      corpus::UniformRows(300, 40, 3, 4),
      corpus::FewRows(128, 7, 20, 5),
      corpus::FromRows(3, {{0, 1, 2}}),
      corpus::FromRows(1, {{}, {0}, {}, {0}}),
  };
  for (const Pattern& pattern : patterns) {
    for (const int cards : {1, 2, 3, 7, 16}) {
      for (const int cards_per_node : {1, 2, 5, 16}) {
        SCOPED_TRACE(testing::Message() << pattern.rows << " x " << pattern.cols << ", " << cards
                                        << " cards, " << cards_per_node << " a node");
        const CsrView csr = ViewOf(pattern);
        for (const std::vector<CardNumber>& card_of_row :
             {BlocksByNonzeros(csr, cards), AtRandom(pattern.rows, cards, 6)}) {
          ExpectSame(CountExchange(csr, card_of_row, cards, cards_per_node),
                     BruteForce(pattern, card_of_row, cards, cards_per_node));
        }
      }
    }
  }
}

TEST(CountExchange, IsWhatGoingThroughAllPairsCountsOfARealMesh) {
  const absl::StatusOr<SparseMatrix> mesh =
      ReadMatrix(std::string(SPARSED_TEST_DATA) + "/delaunay_n16.mtx.gz");
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  const Pattern pattern{mesh->rows, mesh->cols, mesh->row_offsets, mesh->column_indices};
  const CsrView csr = ViewOf(pattern);
  for (const int cards : {2, 8}) {
    const std::vector<CardNumber> blocks = BlocksByNonzeros(csr, cards);
    const RowExchange counted = CountExchange(csr, blocks, cards, 4);
    ExpectSame(counted, BruteForce(pattern, blocks, cards, 4));
    EXPECT_GT(counted.fetched_rows(), 0);
  }
}

TEST(BlocksByNonzeros, AreConsecutiveAndAsEvenAsRowsAllow) {
  const Pattern pattern = corpus::ChungLu(5000, 60'000, corpus::Falloff::kHalf, 1);
  const CsrView csr = ViewOf(pattern);
  int64_t longest = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    longest = std::max(longest, csr.row_offsets[row + 1] - csr.row_offsets[row]);
  }
  for (const int cards : {1, 2, 3, 8, 100}) {
    const std::vector<CardNumber> blocks = BlocksByNonzeros(csr, cards);
    EXPECT_TRUE(std::ranges::is_sorted(blocks));
    EXPECT_EQ(blocks.front(), 0);
    EXPECT_EQ(blocks.back(), cards - 1);
    for (const CardLoad& card : CountExchange(csr, blocks, cards, 8).cards) {
      // Each end is at most half a row beside its place.
      EXPECT_LE(std::abs(card.nonzeros - csr.nnz() / cards), longest + 1);
    }
  }
}

TEST(BlocksByNonzeros, LeaveCardsARowWhereOneRowHasEverything) {
  const Pattern pattern = corpus::FromRows(4, {{0, 1, 2, 3}, {}, {}});
  EXPECT_THAT(BlocksByNonzeros(ViewOf(pattern), 3), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(BlocksByNonzeros(ViewOf(pattern), 1), testing::ElementsAre(0, 0, 0));
}

TEST(Scaled, KeepsShares) {
  const Pattern pattern = corpus::ChungLu(1000, 8000, corpus::Falloff::kHalf, 1);
  const CsrView csr = ViewOf(pattern);
  const RowExchange small = CountExchange(csr, BlocksByNonzeros(csr, 4), 4, 2);
  // Beyond 32 bits.
  const RowExchange large = Scaled(small, 1e7, 2e7);
  for (size_t c = 0; c < small.cards.size(); ++c) {
    EXPECT_EQ(large.cards[c].rows, small.cards[c].rows * 10'000'000);
    EXPECT_EQ(large.cards[c].fetched_rows, small.cards[c].fetched_rows * 10'000'000);
    EXPECT_EQ(large.cards[c].nonzeros, small.cards[c].nonzeros * 20'000'000);
    EXPECT_EQ(large.cards[c].own_nonzeros, small.cards[c].own_nonzeros * 20'000'000);
  }
  EXPECT_EQ(large.nodes[1].fetched_rows, small.nodes[1].fetched_rows * 10'000'000);
  EXPECT_EQ(large.nodes[1].cards, 2);
}

}  // namespace
}  // namespace sparsed::tools
