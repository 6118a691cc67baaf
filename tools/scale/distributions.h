// What a product with S on several cards exchanges, needs of memory and takes, for each way of
// distributing it. S is M x N with nnz nonzeros, B and C are N x K and M x K. docs/scale.md has the
// formulas, what they assume, and the papers that they are from.
//
// Rates are bytes a second of one card and one direction; all sizes are those of S in CSR (8 bytes
// a row, 4 for a column index) and of values. Nodes are cards_per_node cards that reach each
// other's memory; between nodes there is a network.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/scale/row_exchange.h"

namespace sparsed::tools {

/// Within these limits no count of bytes, times kMostCards, exceeds 2^63.
inline constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMostNonzeros = int64_t{1} << 40;
inline constexpr int64_t kMostColumns = int64_t{1} << 16;  ///< K

/// How fast a kernel is where a row of the operand has so many bytes, counting S, the result, and a
/// row of the operand for each nonzero, of 32 bytes at least.
struct Rate {
  double row_bytes = 0;
  double bytes_per_second = 0;
};

struct Machine {
  std::string name;
  int64_t card_bytes = 0;         ///< memory of a card
  double memory_rate = 0;         ///< of its memory: bounds what must move at least
  std::vector<Rate> spmm, sddmm;  ///< ascending row_bytes, at least one
  double link_rate = 0;           ///< to a card of the same node
  double network_rate = 0;        ///< to another node
  int cards_per_node = 8;
  double launch_seconds = 0;   ///< of a kernel
  double latency_seconds = 0;  ///< of an exchange, or of a step of a collective one
};

/// "h100", "h200": as measured where docs/scale.md says so. INVALID_ARGUMENT names those that are
/// known.
absl::StatusOr<Machine> MachineByName(std::string_view name);

struct Product {
  int64_t rows = 0, cols = 0, nnz = 0;
  int64_t used_cols = 0;  ///< columns with a nonzero
  int64_t k = 0;
  int64_t value_bytes = 4;
};

/// Seconds of the slowest card; what overlaps is in its parts, but once in the total.
struct Times {
  double compute = 0;
  double link = 0;     ///< bytes from cards of the same node
  double network = 0;  ///< bytes from other nodes
  double latency = 0;  ///< launches, and steps of the exchange
  double spread = 0;   ///< an operand that lies on one card goes out, the result comes back
  double total = 0;
};

struct Outlook {
  int cards = 1, nodes = 1;
  std::string_view distribution;
  int idle_cards = 0;                ///< that have nothing to do
  int copies = 1;                    ///< of B in 1.5d
  int grid_rows = 0, grid_cols = 0;  ///< of 2d
  bool counted = false;  ///< from the pattern; else by a formula that takes nonzeros for even

  int64_t exchanged_bytes = 0;     ///< by one SpMM, into all cards
  int64_t largest_card_bytes = 0;  ///< of them, into one card
  int64_t network_bytes = 0;       ///< of them, between nodes
  int64_t sddmm_exchanged_bytes = 0;
  int64_t card_memory_bytes = 0, node_memory_bytes = 0;  ///< largest: S, B, C, what is fetched
  bool fits = false;                                     ///< the card's memory
  /// Nonzeros of the largest card over the mean; none: not counted.
  std::optional<double> imbalance = {};
  Times spmm = {}, sddmm = {};
};

/// Each distribution on so many cards. Those that return an error are not possible:
/// INVALID_ARGUMENT says why.
class ScaleModel {
 public:
  struct Options {
    /// Of kernels' time that the model would have: what a measured card took over what it says.
    double spmm_factor = 1, sddmm_factor = 1;
    /// B lies on one card, and C is to be there.
    bool from_one_card = false;
  };
  /// The product within the limits above, sizes positive.
  ScaleModel(const Product& product, Machine machine, const Options& options)
      : product_(product), machine_(std::move(machine)), options_(options) {}

  Outlook OneCard() const;
  /// S everywhere, each card has some of the K columns of B and C. Nothing is exchanged by SpMM;
  /// SDDMM adds up nnz values.
  Outlook Columns(int cards) const;
  /// As Columns, but S is in as many parts as there are cards, which travel round: 1.5D ColA of
  /// Koanantakool et al. 2016, without copies.
  Outlook RotatingColumns(int cards) const;
  /// Rows of S and of C, those of B fetched that are named.
  Outlook Rows(const RowExchange& exchange, std::string_view distribution) const;
  /// Rows of S and of C, all of B to everybody: 1D of CAGNET.
  Outlook AllRows(int cards) const;
  /// The 1.5D of CAGNET, with the number of copies that takes the least time.
  absl::StatusOr<Outlook> OneAndAHalfD(int cards) const;
  /// SUMMA with a stationary result: 2D of CAGNET.
  absl::StatusOr<Outlook> TwoD(int cards) const;

 private:
  struct Part {  ///< of a product, on one card
    int64_t rows, nonzeros, used_cols, k;
    double result_passes = 1;  ///< times that the result is read or written
  };
  enum class Kind : uint8_t { kSpmm, kSddmm };

  double Compute(Kind kind, const Part& part) const;
  int NodesOf(int cards) const;
  int CardsOfNode(int cards) const;  ///< of a full one
  int64_t SparseBytes(int64_t rows, int64_t nonzeros) const;
  int64_t DenseBytes(int64_t rows, int64_t k) const;
  void Finish(Outlook& outlook, int64_t card_memory) const;
  double Spread(Kind kind, int cards) const;
  Times RowTimes(Kind kind, const RowExchange& exchange) const;
  Outlook Replicated(int cards, int copies) const;
  Outlook Summa(int cards, int grid_rows) const;

  Product product_;
  Machine machine_;
  Options options_;
};

}  // namespace sparsed::tools
