// The formulas of each distribution, beside cards that are gone through one by one as the
// algorithms of the papers go.
#include "tools/scale/distributions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/corpus/graphs.h"

namespace sparsed::tools {
namespace {

using testing::HasSubstr;

/// Rates at which bytes are easy to tell from seconds.
Machine Plain(int cards_per_node = 8) {
  Machine machine;
  machine.name = "plain";
  machine.card_bytes = int64_t{1} << 40;
  machine.memory_rate = 1e15;
  machine.spmm = machine.sddmm = {{1, 1e9}};
  machine.link_rate = 1e8;
  machine.network_rate = 1e7;
  machine.cards_per_node = cards_per_node;
  return machine;
}

ScaleModel ModelOf(const Product& product, const Machine& machine,
                   const ScaleModel::Options& options = {}) {
  return {product, machine, options};
}

constexpr Product kSquare{
    .rows = 4096, .cols = 4096, .nnz = 65536, .used_cols = 4096, .k = 64, .value_bytes = 4};

TEST(OneCard, ReadsARowOfTheOperandForEachNonzero) {
  Machine machine = Plain();
  machine.launch_seconds = 0.25;
  const Outlook one = ModelOf(kSquare, machine).OneCard();
  const double bytes = 4096 * 8 + 65536 * 8 + 4096 * 256 + 65536.0 * 256;
  EXPECT_DOUBLE_EQ(one.spmm.compute, bytes / 1e9);
  EXPECT_DOUBLE_EQ(one.spmm.total, bytes / 1e9 + 0.25);
  EXPECT_EQ(one.card_memory_bytes, 4097 * 8 + 65536 * 8 + 2 * 4096 * 256);
  EXPECT_EQ(one.node_memory_bytes, one.card_memory_bytes);
  EXPECT_EQ(one.exchanged_bytes + one.sddmm_exchanged_bytes, 0);
  EXPECT_TRUE(one.fits);
  machine.card_bytes = one.card_memory_bytes - 1;
  EXPECT_FALSE(ModelOf(kSquare, machine).OneCard().fits);
}

TEST(OneCard, TakesNoLessThanWhatMustMove) {
  Machine machine = Plain();
  machine.memory_rate = 1e6;
  const double least = 4096 * 8 + 65536 * 8 + 2.0 * 4096 * 256;
  EXPECT_DOUBLE_EQ(ModelOf(kSquare, machine).OneCard().spmm.compute, least / 1e6);
}

TEST(OneCard, ReadsASectorAtLeast) {
  Product narrow = kSquare;
  narrow.k = 1;
  const double bytes = 4096 * 8 + 65536 * 8 + 4096 * 4 + 65536.0 * 32;
  EXPECT_DOUBLE_EQ(ModelOf(narrow, Plain()).OneCard().spmm.compute, bytes / 1e9);
}

TEST(OneCard, TakesRatesBetweenThoseThatAreKnown) {
  Machine machine = Plain();
  machine.spmm = {{64, 1e9}, {1024, 3e9}};
  const auto compute = [&machine](int64_t k) {
    Product product = kSquare;
    product.k = k;
    const double row = static_cast<double>(k) * 4;
    return (4096 * 8 + 65536 * 8 + 4096 * row + 65536 * row) /
           ModelOf(product, machine).OneCard().spmm.compute;
  };
  EXPECT_NEAR(compute(8), 1e9, 1);
  EXPECT_NEAR(compute(64), 2e9, 1);  // 256 bytes: half way by logarithm
  EXPECT_NEAR(compute(4096), 3e9, 1);
}

TEST(Columns, ExchangeNothingButSumsOfSddmm) {
  const Outlook four = ModelOf(kSquare, Plain()).Columns(4);
  EXPECT_EQ(four.exchanged_bytes, 0);
  EXPECT_EQ(four.sddmm_exchanged_bytes, 3 * 65536 * 4);
  EXPECT_EQ(four.card_memory_bytes, 4097 * 8 + 65536 * 8 + 2 * 4096 * 16 * 4);
  EXPECT_EQ(four.node_memory_bytes, 4 * four.card_memory_bytes);
  EXPECT_DOUBLE_EQ(four.sddmm.link, 65536 * 4 * 0.75 / 1e8);
  EXPECT_EQ(four.sddmm.network, 0);
  // Between two nodes each of a node's cards has a quarter of the sums, and needs half of that.
  const Outlook eight = ModelOf(kSquare, Plain(4)).Columns(8);
  EXPECT_EQ(eight.nodes, 2);
  EXPECT_DOUBLE_EQ(eight.sddmm.link, 65536 * 4 * 0.75 / 1e8);
  EXPECT_DOUBLE_EQ(eight.sddmm.network, 65536.0 / 2 / 1e7);
  // Sums of 16-bit values travel as f32.
  Product half = kSquare;
  half.value_bytes = 2;
  EXPECT_EQ(ModelOf(half, Plain()).Columns(4).sddmm_exchanged_bytes, 3 * 65536 * 4);
}

TEST(Columns, LeaveCardsIdleThatHaveNone) {
  Product narrow = kSquare;
  narrow.k = 5;
  const Outlook eight = ModelOf(narrow, Plain()).Columns(8);
  EXPECT_EQ(eight.idle_cards, 3);
  EXPECT_EQ(eight.spmm.total, ModelOf(narrow, Plain()).Columns(5).spmm.total);
  const Outlook two = ModelOf(narrow, Plain()).Columns(2);
  EXPECT_EQ(two.idle_cards, 0);
  EXPECT_DOUBLE_EQ(*two.imbalance, 6.0 / 5);
}

TEST(RotatingColumns, MoveSOnceAround) {
  const int64_t sparse = 4096 * 8 + 65536 * 8;
  const Outlook four = ModelOf(kSquare, Plain(2)).RotatingColumns(4);
  EXPECT_EQ(four.exchanged_bytes, 3 * sparse);
  EXPECT_EQ(four.largest_card_bytes, sparse / 4 * 3);
  EXPECT_EQ(four.network_bytes, sparse);  // into each of two nodes a half
  EXPECT_EQ(four.card_memory_bytes, 2 * sparse / 4 + 2 * 4096 * 16 * 4);
  EXPECT_GE(four.spmm.total, four.spmm.link);
}

TEST(Rows, FetchWhatThePatternNames) {
  const corpus::Pattern pattern = corpus::ChungLu(4096, 60'000, corpus::Falloff::kHalf, 1);
  const CsrView csr{pattern.rows, pattern.cols, pattern.row_offsets, pattern.column_indices, {}};
  Product product = kSquare;
  product.nnz = csr.nnz();
  for (const int cards : {2, 8}) {
    const RowExchange exchange = CountExchange(csr, BlocksByNonzeros(csr, cards), cards, 4);
    const Outlook rows = ModelOf(product, Plain(4)).Rows(exchange, "rows");
    EXPECT_TRUE(rows.counted);
    EXPECT_EQ(rows.exchanged_bytes, exchange.fetched_rows() * 256);
    EXPECT_EQ(rows.sddmm_exchanged_bytes, rows.exchanged_bytes);
    int64_t largest = 0, memory = 0, between = 0;
    for (const CardLoad& card : exchange.cards) {
      largest = std::max(largest, card.fetched_rows * 256);
      memory =
          std::max(memory, (card.rows + 1) * 8 + card.nonzeros * 8 +
                               (2 * card.rows + card.fetched_rows) * 256 + card.fetched_rows * 4);
    }
    for (const NodeLoad& node : exchange.nodes) between += node.fetched_rows * 256;
    EXPECT_EQ(rows.largest_card_bytes, largest);
    EXPECT_EQ(rows.card_memory_bytes, memory);
    EXPECT_EQ(rows.network_bytes, between);
    EXPECT_GE(*rows.imbalance, 1);
    EXPECT_GE(rows.spmm.total, std::max(rows.spmm.link, rows.spmm.network));
    EXPECT_LE(rows.spmm.total, rows.spmm.compute + rows.spmm.link + rows.spmm.network);
  }
}

TEST(Rows, HideTheExchangeBehindWhatNeedsNone) {
  RowExchange exchange;
  exchange.nodes = {{2, 0, 0}};
  CardLoad card{.rows = 2048,
                .nonzeros = 32768,
                .own_nonzeros = 32768,
                .outer_rows = 0,
                .operand_rows = 2048,
                .own_used_rows = 2048,
                .fetched_rows = 0,
                .sent_rows = 0};
  exchange.cards = {card, card};
  const double alone = ModelOf(kSquare, Plain()).Rows(exchange, "rows").spmm.total;
  // Nearly all nonzeros stay: what the few rows take on the link is less than their kernel takes.
  for (CardLoad& c : exchange.cards) {
    c.own_nonzeros -= 100;
    c.outer_rows = 10;
    c.fetched_rows = c.sent_rows = 10;
  }
  const Outlook rows = ModelOf(kSquare, Plain()).Rows(exchange, "rows");
  EXPECT_GT(rows.spmm.link, 0);
  EXPECT_LT(rows.spmm.total, alone + rows.spmm.link);
  EXPECT_GT(rows.spmm.total, alone);
  // The card that sends most is what others wait for.
  exchange.cards[0].sent_rows = 1'000'000;
  EXPECT_DOUBLE_EQ(ModelOf(kSquare, Plain()).Rows(exchange, "rows").spmm.link, 256e6 / 1e8);
}

/// What arrives at each card, and what is not of its node, of the algorithm that `received` goes
/// through: it calls its argument with the card, who has the block, the block's number and its
/// bytes.
template <typename Algorithm>
void ExpectExchange(const Outlook& outlook, int cards, int cards_per_node, Algorithm algorithm) {
  std::vector<double> into(cards, 0);
  double between = 0;
  std::set<std::pair<int, int>> arrived;  // node, block
  algorithm([&](int card, int from, int block, double bytes) {
    if (card == from) return;
    into[card] += bytes;
    const int node = card / cards_per_node;
    if (from / cards_per_node != node && arrived.emplace(node, block).second) between += bytes;
  });
  double sum = 0;
  for (const double bytes : into) sum += bytes;
  EXPECT_DOUBLE_EQ(static_cast<double>(outlook.exchanged_bytes), sum);
  EXPECT_DOUBLE_EQ(static_cast<double>(outlook.largest_card_bytes),
                   *std::ranges::max_element(into));
  EXPECT_DOUBLE_EQ(static_cast<double>(outlook.network_bytes), between);
}

TEST(AllRows, GiveEverybodyAllOfB) {
  for (const int cards_per_node : {4, 8}) {
    ExpectExchange(ModelOf(kSquare, Plain(cards_per_node)).AllRows(8), 8, cards_per_node,
                   [](const auto& receive) {
                     for (int card = 0; card < 8; ++card) {
                       for (int from = 0; from < 8; ++from) receive(card, from, from, 512 * 256);
                     }
                   });
  }
}

TEST(OneAndAHalfD, IsTheAlgorithmOfCagnet) {
  // Of its publication's program, gcn_distr_15d.py: card r is in row r / c and column r % c of the
  // grid. A column goes through its share of the blocks of B; rows of the grid add up.
  constexpr int kCards = 64, kCardsPerNode = 8;
  const auto outlook = ModelOf(kSquare, Plain(kCardsPerNode)).OneAndAHalfD(kCards);
  ASSERT_TRUE(outlook.ok());
  const int c = outlook->copies, blocks = kCards / c, stages = blocks / c;
  const double block = 4096.0 / blocks * 256;
  ExpectExchange(*outlook, kCards, kCardsPerNode, [&](const auto& receive) {
    for (int card = 0; card < kCards; ++card) {
      const int column = card % c;
      for (int i = 0; i < stages; ++i) {
        const int q = column * stages + i;
        receive(card, q * c + column, q, block);
      }
      // A ring that reduces and gathers, of neighbours that are in one node.
      for (int step = 0; step < 2 * (c - 1); ++step) {
        receive(card, card / c * c + (column + c - 1) % c, -1, block / c);
      }
    }
  });
  // Each has a block row's share of S, and blocks of B, C, and what arrives.
  EXPECT_EQ(outlook->card_memory_bytes,
            (4096 / blocks + 1) * 8 + 65536 / kCards * 8 + 3 * 4096 / blocks * 256);
}

TEST(OneAndAHalfD, NeedsAPartOfBInANodeWhereItsCardsAreOfFewColumns) {
  constexpr int kCards = 256, kCardsPerNode = 2;
  const auto outlook = ModelOf(kSquare, Plain(kCardsPerNode)).OneAndAHalfD(kCards);
  ASSERT_TRUE(outlook.ok());
  const int c = outlook->copies, blocks = kCards / c, stages = blocks / c;
  ASSERT_GT(c, kCardsPerNode);
  const double block = 4096.0 / blocks * 256;
  std::set<std::pair<int, int>> arrived;  // node, block
  for (int card = 0; card < kCards; ++card) {
    for (int i = 0; i < stages; ++i) {
      const int q = card % c * stages + i, from = q * c + card % c;
      if (from / kCardsPerNode != card / kCardsPerNode) arrived.emplace(card / kCardsPerNode, q);
    }
  }
  // Sums: each of a node's cards has a half of its row's block, reduced and gathered over c / 2
  // nodes.
  const double sums = kCards * 2 * (1 - 2.0 / c) * block / 2;
  EXPECT_DOUBLE_EQ(static_cast<double>(outlook->network_bytes),
                   static_cast<double>(arrived.size()) * block + sums);
}

TEST(OneAndAHalfD, TakesTheCopiesThatTakeLeast) {
  const ScaleModel model = ModelOf(kSquare, Plain());
  EXPECT_EQ(model.OneAndAHalfD(4)->copies, 2);
  const auto best = model.OneAndAHalfD(64);
  EXPECT_THAT(best->copies, testing::AnyOf(2, 4, 8));
  EXPECT_LT(best->exchanged_bytes, model.AllRows(64).exchanged_bytes);
  for (const int cards : {2, 3, 6}) {
    EXPECT_THAT(std::string(model.OneAndAHalfD(cards).status().message()),
                HasSubstr("whose square divides"));
  }
}

TEST(TwoD, IsSumma) {
  for (const auto& [cards, cards_per_node] :
       {std::pair{4, 8}, {16, 8}, {16, 2}, {64, 8}, {32, 8}, {8, 4}}) {
    SCOPED_TRACE(testing::Message() << cards << " cards, " << cards_per_node << " a node");
    const auto outlook = ModelOf(kSquare, Plain(cards_per_node)).TwoD(cards);
    ASSERT_TRUE(outlook.ok());
    const int rows = outlook->grid_rows, cols = outlook->grid_cols;
    ASSERT_EQ(rows * cols, cards);
    const double s = (4096.0 * 8 + 65536.0 * 8) / cards, b = 4096.0 * 256 / cards;
    ExpectExchange(*outlook, cards, cards_per_node, [&](const auto& receive) {
      for (int card = 0; card < cards; ++card) {
        const int i = card / cols, j = card % cols;
        for (int k = 0; k < cols; ++k) receive(card, i * cols + k, i * cols + k, s);
        for (int k = 0; k < rows; ++k) receive(card, k * cols + j, cards + k * cols + j, b);
      }
    });
  }
}

TEST(TwoD, RefusesWhatIsNoGrid) {
  const ScaleModel model = ModelOf(kSquare, Plain());
  EXPECT_THAT(std::string(model.TwoD(7).status().message()), HasSubstr("no grid"));
  Product narrow = kSquare;
  narrow.k = 3;
  EXPECT_THAT(std::string(ModelOf(narrow, Plain()).TwoD(16).status().message()),
              HasSubstr("4 columns for K = 3"));
}

TEST(ScaleModel, IsCalibratedByOneCard) {
  const ScaleModel::Options twice{.spmm_factor = 2, .sddmm_factor = 3};
  const ScaleModel plain = ModelOf(kSquare, Plain()), slow = ModelOf(kSquare, Plain(), twice);
  EXPECT_DOUBLE_EQ(slow.OneCard().spmm.total, 2 * plain.OneCard().spmm.total);
  EXPECT_DOUBLE_EQ(slow.OneCard().sddmm.total, 3 * plain.OneCard().sddmm.total);
  EXPECT_DOUBLE_EQ(slow.Columns(4).spmm.total, 2 * plain.Columns(4).spmm.total);
  EXPECT_EQ(slow.AllRows(4).spmm.link, plain.AllRows(4).spmm.link);
}

TEST(ScaleModel, SpreadsAndCollectsFromOneCard) {
  const ScaleModel::Options from_one{.from_one_card = true};
  const ScaleModel model = ModelOf(kSquare, Plain(), from_one);
  EXPECT_EQ(model.OneCard().spmm.spread, 0);
  // Three quarters of B go out, and of C come back.
  const double moved = 0.75 * 2 * 4096 * 256;
  EXPECT_DOUBLE_EQ(model.Columns(4).spmm.spread, moved / 1e8);
  EXPECT_DOUBLE_EQ(model.Columns(4).spmm.total,
                   ModelOf(kSquare, Plain()).Columns(4).spmm.total + moved / 1e8);
  // A half of them to the other node.
  EXPECT_DOUBLE_EQ(ModelOf(kSquare, Plain(2), from_one).Columns(4).spmm.spread,
                   0.5 * 2 * 4096 * 256 / 1e7);
}

void ExpectNoOverflow(const Outlook& outlook) {
  SCOPED_TRACE(outlook.distribution);
  for (const int64_t bytes :
       {outlook.exchanged_bytes, outlook.largest_card_bytes, outlook.network_bytes,
        outlook.sddmm_exchanged_bytes, outlook.card_memory_bytes, outlook.node_memory_bytes}) {
    EXPECT_GE(bytes, 0);
  }
  EXPECT_GE(outlook.node_memory_bytes, outlook.card_memory_bytes);
  EXPECT_GE(outlook.sddmm_exchanged_bytes, outlook.exchanged_bytes);
  EXPECT_GE(outlook.spmm.total, outlook.spmm.compute);
}

TEST(ScaleModel, DoesNotOverflow) {
  const Product papers{.rows = 111'059'956,
                       .cols = 111'059'956,
                       .nnz = 1'615'685'872,
                       .used_cols = 111'059'956,
                       .k = 128,
                       .value_bytes = 4};
  const Product largest{.rows = kMostRows,
                        .cols = kMostRows,
                        .nnz = kMostNonzeros,
                        .used_cols = kMostRows,
                        .k = kMostColumns,
                        .value_bytes = 8};
  for (const Product& p : {papers, largest}) {
    const ScaleModel model = ModelOf(p, Plain());
    // Every card fetches everything.
    RowExchange exchange;
    exchange.nodes.assign(kMostCards / 8, {8, p.cols, p.rows});
    exchange.cards.assign(kMostCards, {.rows = p.rows / kMostCards,
                                       .nonzeros = p.nnz / kMostCards,
                                       .own_nonzeros = 0,
                                       .outer_rows = p.rows / kMostCards,
                                       .operand_rows = p.cols / kMostCards,
                                       .own_used_rows = 0,
                                       .fetched_rows = p.cols,
                                       .sent_rows = p.cols});
    ExpectNoOverflow(model.Columns(kMostCards));
    ExpectNoOverflow(model.RotatingColumns(kMostCards));
    const Outlook rows = model.Rows(exchange, "rows");
    ExpectNoOverflow(rows);
    EXPECT_EQ(static_cast<double>(rows.exchanged_bytes),
              1024.0 * static_cast<double>(p.cols) * static_cast<double>(p.k * p.value_bytes));
    ExpectNoOverflow(model.AllRows(kMostCards));
    ExpectNoOverflow(*model.OneAndAHalfD(kMostCards));
    ExpectNoOverflow(*model.TwoD(kMostCards));
  }
  // 58 TB, as 1D moves them for papers.
  EXPECT_EQ(ModelOf(papers, Plain()).AllRows(kMostCards).exchanged_bytes,
            int64_t{1023} * 111'059'956 * 512);
}

TEST(MachineByName, KnowsWhatWasMeasured) {
  for (const char* const name : {"h100", "h200"}) {
    const auto machine = MachineByName(name);
    ASSERT_TRUE(machine.ok());
    for (const std::vector<Rate>& rates : {machine->spmm, machine->sddmm}) {
      ASSERT_FALSE(rates.empty());
      EXPECT_TRUE(std::ranges::is_sorted(rates, {}, &Rate::row_bytes));
    }
  }
  EXPECT_THAT(std::string(MachineByName("b300").status().message()),
              HasSubstr("known are h100 and h200"));
}

}  // namespace
}  // namespace sparsed::tools
