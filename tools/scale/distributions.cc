#include "tools/scale/distributions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace sparsed::tools {
namespace {

constexpr int64_t kIndexBytes = 4, kOffsetBytes = 8;
/// What memory and caches of a GPU hand out at least.
constexpr double kSectorBytes = 32;
constexpr double kGiga = 1e9, kMicro = 1e-6;

double AsDouble(int64_t count) { return static_cast<double>(count); }
int64_t CeilDiv(int64_t count, int64_t by) { return (count + by - 1) / by; }
/// All but the own one of `parts`.
double Others(int parts) { return static_cast<double>(parts - 1) / parts; }
int64_t Bytes(double bytes) { return std::llround(bytes); }
int Steps(int parts) { return static_cast<int>(std::bit_width(static_cast<unsigned>(parts - 1))); }

/// Between the rates that are known, by the logarithm of the row's bytes; beyond them the nearest.
double RateAt(const std::vector<Rate>& rates, double row_bytes) {
  const auto above = std::ranges::lower_bound(rates, row_bytes, {}, &Rate::row_bytes);
  if (above == rates.begin()) return rates.front().bytes_per_second;
  if (above == rates.end()) return rates.back().bytes_per_second;
  const Rate& below = *(above - 1);
  const double share =
      std::log(row_bytes / below.row_bytes) / std::log(above->row_bytes / below.row_bytes);
  return std::lerp(below.bytes_per_second, above->bytes_per_second, share);
}

/// Of a result that is added to in `stages` steps: those rows are read and written again that have
/// a nonzero in the step.
double StagedPasses(int64_t rows, int64_t nonzeros, int stages) {
  const double touched = AsDouble(nonzeros) / stages / AsDouble(rows);
  return 1 + 2 * (stages - 1) * std::min(touched, 1.0);
}

double Sum(const Times& times) {
  return times.compute + times.link + times.network + times.latency + times.spread;
}

}  // namespace

absl::StatusOr<Machine> MachineByName(std::string_view name) {
  // Effective rates: geometric means over the patterns of a million nonzeros or more, by the
  // fastest kernel, of docs/results/h100/plans-f32.jsonl.gz and docs/results/h200/corpus.jsonl.xz;
  // tests/bench/scale_tables.py computes them again.
  Machine machine;
  machine.link_rate = 372 * kGiga;
  machine.network_rate = 50 * kGiga;
  machine.launch_seconds = 5 * kMicro;
  machine.latency_seconds = 17 * kMicro;
  if (name == "h100") {
    machine.name = "H100";
    machine.card_bytes = 80'000'000'000;
    machine.memory_rate = 3010 * kGiga;
    machine.spmm = {{32, 3929 * kGiga},
                    {128, 7849 * kGiga},
                    {512, 9331 * kGiga},
                    {2048, 9440 * kGiga},
                    {4096, 9517 * kGiga}};
    machine.sddmm = {{32, 3056 * kGiga},
                     {128, 5845 * kGiga},
                     {512, 7690 * kGiga},
                     {2048, 7826 * kGiga},
                     {4096, 7894 * kGiga}};
    return machine;
  }
  if (name == "h200") {
    machine.name = "H200";
    machine.card_bytes = 141'000'000'000;
    machine.memory_rate = 4429 * kGiga;
    machine.spmm = {
        {32, 3122 * kGiga}, {128, 6751 * kGiga}, {512, 9181 * kGiga}, {2048, 10395 * kGiga}};
    machine.sddmm = {{128, 5315 * kGiga}, {512, 8214 * kGiga}};
    return machine;
  }
  return absl::InvalidArgumentError(
      fmt::format("no machine is called {}: known are h100 and h200", name));
}

// The parts that every distribution needs.

double ScaleModel::Compute(Kind kind, const Part& part) const {
  const bool spmm = kind == Kind::kSpmm;
  const double row_bytes = AsDouble(part.k * product_.value_bytes);
  const double sparse = AsDouble(SparseBytes(part.rows, part.nonzeros));
  const double result = AsDouble(part.rows) * row_bytes * part.result_passes;
  const double gathered_row = std::max(row_bytes, kSectorBytes);
  const double gathered = sparse + result + AsDouble(part.nonzeros) * gathered_row;
  const double least = sparse + result + AsDouble(part.used_cols) * row_bytes;
  const double rate = RateAt(spmm ? machine_.spmm : machine_.sddmm, gathered_row);
  return (spmm ? options_.spmm_factor : options_.sddmm_factor) *
         std::max(gathered / rate, least / machine_.memory_rate);
}

int ScaleModel::NodesOf(int cards) const {
  return static_cast<int>(CeilDiv(cards, machine_.cards_per_node));
}

int ScaleModel::CardsOfNode(int cards) const { return std::min(cards, machine_.cards_per_node); }

int64_t ScaleModel::SparseBytes(int64_t rows, int64_t nonzeros) const {
  return rows * kOffsetBytes + nonzeros * (kIndexBytes + product_.value_bytes);
}

int64_t ScaleModel::DenseBytes(int64_t rows, int64_t k) const {
  return rows * k * product_.value_bytes;
}

/// What follows from the cards and the memory of one.
void ScaleModel::Finish(Outlook& outlook, int64_t card_memory) const {
  outlook.nodes = NodesOf(outlook.cards);
  outlook.card_memory_bytes = card_memory;
  outlook.fits = card_memory <= machine_.card_bytes;
  if (outlook.node_memory_bytes == 0) {
    outlook.node_memory_bytes = card_memory * CardsOfNode(outlook.cards - outlook.idle_cards);
  }
  for (const auto& [kind, times] :
       {std::pair{Kind::kSpmm, &outlook.spmm}, {Kind::kSddmm, &outlook.sddmm}}) {
    times->spread = Spread(kind, outlook.cards);
    times->total += times->spread;
  }
}

double ScaleModel::Spread(Kind kind, int cards) const {
  if (!options_.from_one_card || cards == 1) return 0;
  const int64_t b = DenseBytes(product_.cols, product_.k),
                c = DenseBytes(product_.rows, product_.k);
  const bool spmm = kind == Kind::kSpmm;
  const double out = AsDouble(spmm ? b : b + c);
  const double back = AsDouble(spmm ? c : product_.nnz * product_.value_bytes);
  const double to_nodes = Others(NodesOf(cards)), to_cards = Others(cards) - to_nodes;
  return (out + back) * std::max(to_cards / machine_.link_rate, to_nodes / machine_.network_rate);
}

// One card, and K split.

Outlook ScaleModel::OneCard() const {
  Outlook outlook = Columns(1);
  outlook.distribution = "one_card";
  return outlook;
}

Outlook ScaleModel::Columns(int cards) const {
  const Product& p = product_;
  Outlook outlook{.cards = cards, .distribution = "columns", .counted = true, .imbalance = 1};
  const auto busy = static_cast<int>(std::min<int64_t>(cards, p.k));
  outlook.idle_cards = cards - busy;
  const int64_t k = CeilDiv(p.k, busy);
  const Part part{p.rows, p.nnz, p.used_cols, k};
  outlook.imbalance = AsDouble(k * busy) / AsDouble(p.k);
  outlook.spmm.compute = Compute(Kind::kSpmm, part);
  outlook.spmm.latency = machine_.launch_seconds;
  outlook.spmm.total = Sum(outlook.spmm);

  // Each value of O is a sum over the cards: reduced and scattered, first in nodes, then among
  // them. Sums of 16-bit types travel as f32.
  const int64_t sums = p.nnz * std::max<int64_t>(p.value_bytes, 4);
  const int in_node = CardsOfNode(busy), nodes = NodesOf(busy);
  outlook.sddmm_exchanged_bytes = sums * (busy - 1);
  outlook.sddmm.compute = Compute(Kind::kSddmm, part);
  outlook.sddmm.link = AsDouble(sums) * Others(in_node) / machine_.link_rate;
  outlook.sddmm.network = AsDouble(sums) / in_node * Others(nodes) / machine_.network_rate;
  outlook.sddmm.latency =
      machine_.launch_seconds + (Steps(in_node) + Steps(nodes)) * machine_.latency_seconds;
  outlook.sddmm.total = Sum(outlook.sddmm);
  Finish(outlook, SparseBytes(p.rows + 1, p.nnz) + DenseBytes(p.rows + p.cols, k));
  return outlook;
}

Outlook ScaleModel::RotatingColumns(int cards) const {
  const Product& p = product_;
  Outlook outlook = Columns(cards);
  outlook.distribution = "columns_rotating";
  const int busy = cards - outlook.idle_cards, nodes = NodesOf(busy), in_node = CardsOfNode(busy);
  const int64_t sparse = SparseBytes(p.rows, p.nnz), part = CeilDiv(sparse, busy);
  outlook.exchanged_bytes = sparse * (busy - 1);
  outlook.largest_card_bytes = sparse - sparse / busy;
  outlook.network_bytes = sparse * (nodes - 1);
  outlook.sddmm_exchanged_bytes = outlook.exchanged_bytes;
  const Part whole{p.rows, p.nnz, p.used_cols, CeilDiv(p.k, busy)};
  for (const auto& [kind, times] :
       {std::pair{Kind::kSpmm, &outlook.spmm}, {Kind::kSddmm, &outlook.sddmm}}) {
    *times = {.compute = Compute(kind, whole)};
    times->network = AsDouble(sparse) * Others(nodes) / in_node / machine_.network_rate;
    times->link = AsDouble(sparse) * (Others(busy) - Others(nodes) / in_node) / machine_.link_rate;
    times->latency = busy * machine_.launch_seconds + (busy - 1) * machine_.latency_seconds;
    times->total = std::max(times->compute, std::max(times->link, times->network)) + times->latency;
  }
  // One part that is worked with, one that arrives.
  outlook.node_memory_bytes = 0;
  Finish(outlook, 2 * part + DenseBytes(p.rows + p.cols, whole.k));
  return outlook;
}

// Rows.

Times ScaleModel::RowTimes(Kind kind, const RowExchange& exchange) const {
  const int64_t k = product_.k;
  const auto nodes = static_cast<int>(exchange.nodes.size());
  Times slowest;
  for (size_t c = 0; c < exchange.cards.size(); ++c) {
    const CardLoad& card = exchange.cards[c];
    const NodeLoad& node = exchange.nodes[c / machine_.cards_per_node];
    Times times;
    // Rows from other nodes arrive evenly at the node's cards, which then pass them on.
    const double arrived = AsDouble(node.fetched_rows) / node.cards;
    const double row_bytes = AsDouble(k * product_.value_bytes);
    times.link = row_bytes / machine_.link_rate *
                 std::max({AsDouble(card.fetched_rows) - arrived, AsDouble(card.sent_rows), 0.0});
    times.network = row_bytes / machine_.network_rate / node.cards *
                    AsDouble(std::max(node.fetched_rows, node.sent_rows));
    const double exchanged = std::max(times.link, times.network);
    times.latency = machine_.launch_seconds;
    if (card.fetched_rows > 0) times.latency += machine_.latency_seconds;
    if (nodes > 1) {
      times.latency += AsDouble(CeilDiv(nodes - 1, node.cards)) * machine_.latency_seconds;
    }
    // In one kernel when everything is there; or first what needs no other card's rows, meanwhile.
    const double whole =
        Compute(kind, {card.rows, card.nonzeros, card.own_used_rows + card.fetched_rows, k});
    const double own = Compute(kind, {card.rows, card.own_nonzeros, card.own_used_rows, k});
    const double outer = Compute(kind, {card.outer_rows, card.nonzeros - card.own_nonzeros,
                                        card.fetched_rows, k, /*result_passes=*/2});
    const double in_two = std::max(exchanged, own) + outer + machine_.launch_seconds;
    if (in_two < exchanged + whole) {
      times.compute = own + outer;
      times.latency += machine_.launch_seconds;
      times.total = std::max(exchanged, own) + outer + times.latency;
    } else {
      times.compute = whole;
      times.total = exchanged + whole + times.latency;
    }
    if (times.total > slowest.total) slowest = times;
  }
  return slowest;
}

Outlook ScaleModel::Rows(const RowExchange& exchange, std::string_view distribution) const {
  const Product& p = product_;
  Outlook outlook{.cards = static_cast<int>(exchange.cards.size()),
                  .distribution = distribution,
                  .counted = true};
  int64_t fetched = 0, most_fetched = 0, most_nonzeros = 0, card_memory = 0, in_node = 0;
  for (size_t c = 0; c < exchange.cards.size(); ++c) {
    const CardLoad& card = exchange.cards[c];
    fetched += card.fetched_rows;
    most_fetched = std::max(most_fetched, card.fetched_rows);
    most_nonzeros = std::max(most_nonzeros, card.nonzeros);
    outlook.idle_cards += card.nonzeros == 0 ? 1 : 0;
    // The list of rows to fetch is kept beside them.
    const int64_t memory = SparseBytes(card.rows + 1, card.nonzeros) +
                           DenseBytes(card.rows + card.operand_rows + card.fetched_rows, p.k) +
                           card.fetched_rows * kIndexBytes;
    card_memory = std::max(card_memory, memory);
    in_node = c % machine_.cards_per_node == 0 ? memory : in_node + memory;
    outlook.node_memory_bytes = std::max(outlook.node_memory_bytes, in_node);
  }
  int64_t between = 0;
  for (const NodeLoad& node : exchange.nodes) between += node.fetched_rows;
  outlook.exchanged_bytes = outlook.sddmm_exchanged_bytes = DenseBytes(fetched, p.k);
  outlook.largest_card_bytes = DenseBytes(most_fetched, p.k);
  outlook.network_bytes = DenseBytes(between, p.k);
  outlook.imbalance = AsDouble(most_nonzeros) * outlook.cards / AsDouble(p.nnz);
  outlook.spmm = RowTimes(Kind::kSpmm, exchange);
  outlook.sddmm = RowTimes(Kind::kSddmm, exchange);
  Finish(outlook, card_memory);
  return outlook;
}

// Those of the literature, by their formulas.

Outlook ScaleModel::AllRows(int cards) const {
  Outlook outlook = Replicated(cards, 1);
  outlook.distribution = "1d";
  return outlook;
}

/// A grid of cards / copies rows and `copies` columns: each row of the grid has a block of rows of
/// S, B and C. A card gets the blocks of B that 1 / copies of the columns of S name from the cards
/// of its column, adds them up, and the cards of its row add up their results.
Outlook ScaleModel::Replicated(int cards, int copies) const {
  const Product& p = product_;
  Outlook outlook{.cards = cards, .distribution = "1.5d", .copies = copies};
  const int nodes = NodesOf(cards), in_node = CardsOfNode(cards), blocks = cards / copies;
  const double b = AsDouble(DenseBytes(p.cols, p.k)), c = AsDouble(DenseBytes(p.rows, p.k));
  const double c_block = c / blocks;
  const double gathered = copies == 1 ? b * Others(cards) : b / copies;
  const double reduced = 2 * Others(copies) * c_block;
  outlook.exchanged_bytes = outlook.sddmm_exchanged_bytes =
      Bytes(b * (blocks - 1) + reduced * cards);
  outlook.largest_card_bytes = Bytes(gathered + reduced);

  // A node's cards are of min(copies, in_node) columns of the grid. Each of these needs its part of
  // B once in the node, less what the node's own cards have of it.
  const double into_node = b * std::min(copies, in_node) / copies * Others(std::min(blocks, nodes));
  const int row_nodes = static_cast<int>(CeilDiv(copies, in_node));
  const double reduced_between = 2 * Others(row_nodes) * c_block / std::min(copies, in_node);
  outlook.network_bytes = Bytes(into_node * nodes + reduced_between * cards);
  const double gather_network = into_node / in_node / machine_.network_rate;
  const double gather_link = std::max(gathered - into_node / in_node, 0.0) / machine_.link_rate;
  const double reduce_network = reduced_between / machine_.network_rate;
  const double reduce_link = (reduced - reduced_between) / machine_.link_rate;
  const int stages = blocks / copies;
  // Each card has 1 / cards of the nonzeros, in `copies` times as many rows.
  Part part{CeilDiv(p.rows, blocks), CeilDiv(p.nnz, cards),
            std::min(p.used_cols / copies, CeilDiv(p.nnz, cards)), p.k};
  part.result_passes = StagedPasses(part.rows, part.nonzeros, stages);
  for (const auto& [kind, times] :
       {std::pair{Kind::kSpmm, &outlook.spmm}, {Kind::kSddmm, &outlook.sddmm}}) {
    times->compute = Compute(kind, part);
    times->link = gather_link + reduce_link;
    times->network = gather_network + reduce_network;
    // Broadcasts of all stages follow each other in a pipeline.
    times->latency =
        stages * machine_.launch_seconds + (stages + 2 * Steps(copies)) * machine_.latency_seconds;
    times->total = std::max({times->compute, gather_link, gather_network}) +
                   std::max(reduce_link, reduce_network) + times->latency;
  }
  Finish(outlook, SparseBytes(part.rows + 1, part.nonzeros) +
                      DenseBytes(part.rows + 2 * CeilDiv(p.cols, blocks), p.k));
  return outlook;
}

absl::StatusOr<Outlook> ScaleModel::OneAndAHalfD(int cards) const {
  std::optional<Outlook> best;
  for (int copies = 2; copies * copies <= cards; ++copies) {
    if (cards % (copies * copies) != 0) continue;
    const Outlook outlook = Replicated(cards, copies);
    if (!best.has_value() || outlook.spmm.total < best->spmm.total) best = outlook;
  }
  if (best.has_value()) return *best;
  return absl::InvalidArgumentError("no number of copies above 1 whose square divides the cards");
}

Outlook ScaleModel::Summa(int cards, int grid_rows) const {
  const Product& p = product_;
  const int grid_cols = cards / grid_rows;
  Outlook outlook{
      .cards = cards, .distribution = "2d", .grid_rows = grid_rows, .grid_cols = grid_cols};
  const int nodes = NodesOf(cards), in_node = CardsOfNode(cards);
  const int64_t k = CeilDiv(p.k, grid_cols);
  // A card gets its grid row's blocks of S, and its grid column's of B.
  const int stages = std::max(grid_rows, grid_cols);
  Part part{CeilDiv(p.rows, grid_rows), CeilDiv(p.nnz, grid_rows),
            std::min(p.used_cols, CeilDiv(p.nnz, grid_rows)), k};
  part.result_passes = StagedPasses(part.rows, part.nonzeros, stages);
  const double s_row = AsDouble(SparseBytes(part.rows, part.nonzeros));
  const double b_col = AsDouble(DenseBytes(p.cols, k));
  const double received = s_row * Others(grid_cols) + b_col * Others(grid_rows);
  outlook.exchanged_bytes = outlook.sddmm_exchanged_bytes = Bytes(received * cards);
  outlook.largest_card_bytes = Bytes(received);
  // Cards of a row of the grid are neighbours.
  double network = 0;
  if (nodes > 1 && grid_cols >= in_node) {
    network = s_row * (1 - static_cast<double>(in_node) / grid_cols) / in_node +
              b_col * Others(grid_rows);
  } else if (nodes > 1) {
    network = b_col * grid_cols / in_node * Others(nodes);
  }
  outlook.network_bytes = Bytes(network * cards);
  for (const auto& [kind, times] :
       {std::pair{Kind::kSpmm, &outlook.spmm}, {Kind::kSddmm, &outlook.sddmm}}) {
    times->compute = Compute(kind, part);
    times->network = network / machine_.network_rate;
    times->link = std::max(received - network, 0.0) / machine_.link_rate;
    times->latency = stages * (machine_.launch_seconds + machine_.latency_seconds);
    times->total = std::max({times->compute, times->link, times->network}) + times->latency;
  }
  const int64_t own =
      SparseBytes(part.rows + 1, CeilDiv(p.nnz, cards)) + DenseBytes(CeilDiv(p.cols, grid_rows), k);
  Finish(outlook, 2 * own + DenseBytes(part.rows, k));
  return outlook;
}

absl::StatusOr<Outlook> ScaleModel::TwoD(int cards) const {
  int grid_rows = 1;
  for (int rows = 1; rows * rows <= cards; ++rows) {
    if (cards % rows == 0) grid_rows = rows;
  }
  if (grid_rows == 1) {
    return absl::InvalidArgumentError("the cards make no grid of several rows and columns");
  }
  // More rows than columns, as the dense matrices are narrow.
  const int grid_cols = grid_rows;
  if (grid_cols > product_.k) {
    return absl::InvalidArgumentError(
        fmt::format("a grid of {} columns for K = {}", grid_cols, product_.k));
  }
  return Summa(cards, cards / grid_cols);
}

}  // namespace sparsed::tools
