#include "kernels/features/columns.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/scratch.h"

namespace sparsed {
namespace {

/// Rows of a panel, each a multiple of the one before.
constexpr std::array<int64_t, 3> kPanelRows = {8, 16, 64};
/// Parts of whole panels, each the work of one thread, so that sums over parts depend on nobody's
/// number of threads.
constexpr int64_t kParts = 128;
constexpr int64_t kAhead = 24;  // nonzeros; time enough for a line of the last level cache
constexpr int64_t kSampledRows = 512;
constexpr int64_t kMostSampledProducts = int64_t{1} << 21;
constexpr int64_t kMostSortedRows = int64_t{1} << 19;

/// What a thread knows of a column.
struct Column {
  uint32_t nonzeros = 0;
  int32_t last_row = -1;  ///< with a nonzero in it
};

/// What a part of the rows adds up to.
struct Sums {
  std::array<int64_t, kPanelRows.size()> distinct{};  ///< (panel, column) pairs with a nonzero
  int64_t products = 0, most_products = 0;            ///< of S * S, of a row of it
  double square_deviations = 0;  ///< of a row's products from ColumnScan::usual_products()
};

class ColumnScan {
 public:
  explicit ColumnScan(const CsrView& csr)
      : csr_(csr),
        end_(csr.column_indices.data() + csr.nnz()),
        square_(csr.rows == csr.cols && csr.nnz() > 0),
        panels_((csr.rows + kPanelRows.back() - 1) / kPanelRows.back()) {
    if (!square_) return;
    const double mean = static_cast<double>(csr.nnz()) / static_cast<double>(csr.rows);
    usual_products_ = mean * mean;
  }

  void Part(int64_t part, const BuildContext& context, std::span<Column> columns,
            Sums& sums) const {
    const int64_t begin = panels_ * part / kParts * kPanelRows.back();
    const int64_t end = std::min(panels_ * (part + 1) / kParts * kPanelRows.back(), csr_.rows);
    for (int64_t row = begin; row < end; ++row) {
      if (context.stopped()) return;
      Row(row, columns, sums);
    }
  }

  /// Products of some rows of S * S for each of their nonzeros; counted in `columns`, whose last
  /// rows are forgotten.
  double Compression(std::span<Column> columns) const {
    for (Column& column : columns) column.last_row = -1;
    int64_t products = 0, distinct = 0;
    for (int32_t i = 0; i < kSampledRows && products < kMostSampledProducts; ++i) {
      // In an order that is spread over the rows however early it ends; 317 has no factor of 2.
      const int64_t row = i * 317 % kSampledRows * csr_.rows / kSampledRows;
      for (const int32_t middle : Columns(row)) {
        const std::span<const int32_t> other = MatrixRow(middle);
        products += static_cast<int64_t>(other.size());
        for (const int32_t column : other) {
          distinct += columns[column].last_row == i ? 0 : 1;
          columns[column].last_row = i;
        }
        if (products >= 2 * kMostSampledProducts) break;
      }
    }
    return distinct == 0 ? 0 : static_cast<double>(products) / static_cast<double>(distinct);
  }

  /// S * S is there, and S is not empty.
  bool square() const { return square_; }
  /// What a row of S * S would take if all had as many nonzeros: a number not far from the mean.
  double usual_products() const { return usual_products_; }

 private:
  std::span<const int32_t> MatrixRow(int64_t row) const {
    const int64_t begin = csr_.row_offsets[row];
    return csr_.column_indices.subspan(begin, csr_.row_offsets[row + 1] - begin);
  }
  std::span<const int32_t> Columns(int64_t row) const {
    return MatrixRow(csr_.row_order.empty() ? row : int64_t{csr_.row_order[row]});
  }

  void Row(int64_t row, std::span<Column> columns, Sums& sums) const {
    int64_t products = 0;
    for (const int32_t& at : Columns(row)) {
      if (end_ - &at > kAhead) {
        const int32_t ahead = *(&at + kAhead);
        __builtin_prefetch(&columns[ahead], /*rw=*/1);
        if (square_) __builtin_prefetch(&csr_.row_offsets[ahead]);
      }
      Column& column = columns[at];
      for (size_t i = 0; i < kPanelRows.size(); ++i) {
        const bool seen =
            column.last_row >= 0 && column.last_row / kPanelRows[i] == row / kPanelRows[i];
        sums.distinct[i] += seen ? 0 : 1;
      }
      ++column.nonzeros;
      column.last_row = static_cast<int32_t>(row);
      if (square_) products += csr_.row_offsets[at + 1] - csr_.row_offsets[at];
    }
    sums.products += products;
    sums.most_products = std::max(sums.most_products, products);
    const double deviation = static_cast<double>(products) - usual_products_;
    sums.square_deviations += deviation * deviation;
  }

  const CsrView& csr_;
  const int32_t* const end_;  ///< of the column indices
  const bool square_;
  const int64_t panels_;  ///< of the most rows
  double usual_products_ = 0;
};

/// Standard deviation / mean of `count` numbers; `squares`: of their deviations from `near`.
double Variation(double sum, double squares, double near, double count) {
  const double mean = Ratio(sum, count);
  const double off = mean - near;
  return Ratio(std::sqrt(std::max(0.0, Ratio(squares, count) - off * off)), mean);
}

/// `columns` are put into another order.
void PutColumns(std::span<Column> columns, double nnz, Features& f) {
  if (columns.empty()) return;
  const auto fuller = [](const Column& a, const Column& b) { return a.nonzeros > b.nonzeros; };
  const auto heavy = columns.begin() + (static_cast<int64_t>(columns.size()) + 99) / 100;
  std::nth_element(columns.begin(), heavy - 1, columns.end(), fuller);
  const auto count = static_cast<double>(columns.size());
  const double mean = nnz / count;
  double squares = 0, most = 0, in_heavy = 0;
  for (auto column = columns.begin(); column != columns.end(); ++column) {
    const double nonzeros = column->nonzeros;
    squares += (nonzeros - mean) * (nonzeros - mean);
    most = std::max(most, nonzeros);
    in_heavy += column < heavy ? nonzeros : 0;
  }
  f.col_nonzeros_max = most;
  f.col_nonzeros_cv = Variation(nnz, squares, mean, count);
  f.heavy_columns = Ratio(in_heavy, nnz);
}

/// Another function for each of the odd factors.
constexpr uint64_t kFirstHash = 0x9e3779b97f4a7c15U, kSecondHash = 0xc2b2ae3d27d4eb4fU;
uint32_t Hash(int32_t column, uint64_t factor) {
  return static_cast<uint32_t>((static_cast<uint64_t>(column) + 1) * factor >> 32);
}

/// Minhashes of sections 3 and 4 of Broder, "On the resemblance and containment of documents"
/// (1997), two in a word.
absl::Status PutLikeRows(const CsrView& csr, const BuildContext& context, Features& f) {
  Scratch<uint64_t> keys;
  if (absl::Status s = keys.Allocate(*context.memory, csr.rows); !s.ok()) return s;
#pragma omp parallel for num_threads(context.TeamFor(csr.rows + csr.nnz())) schedule(static)
  for (int64_t row = 0; row < csr.rows; ++row) {
    uint32_t first = ~uint32_t{0}, second = first;
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      first = std::min(first, Hash(csr.column_indices[i], kFirstHash));
      second = std::min(second, Hash(csr.column_indices[i], kSecondHash));
    }
    keys[row] = uint64_t{first} << 32 | second;
  }
  // Of very many rows a share of the keys, so that like rows stay together.
  int bits = 0;
  while (csr.rows >> bits > kMostSortedRows) ++bits;
  const auto left_out = [&](uint64_t key) {
    return key == ~uint64_t{0} || (bits > 0 && key * kFirstHash >> (64 - bits) != 0);
  };
  const std::span<uint64_t> all = keys.span();
  const auto kept = all.first(std::remove_if(all.begin(), all.end(), left_out) - all.begin());
  std::ranges::sort(kept);
  double rows = 0, shared = 0, together = 0;
  for (auto begin = kept.begin(), end = begin; begin != kept.end(); begin = end) {
    end = std::find_if(begin, kept.end(), [&](uint64_t key) { return key != *begin; });
    const auto count = static_cast<double>(end - begin);
    rows += count;
    shared += count > 1 ? count : 0;
    together += count * count;
  }
  f.like_rows = Ratio(shared, rows);
  f.like_rows_mean = Ratio(together, rows);
  return absl::OkStatus();
}

}  // namespace

absl::Status PutColumnFeatures(const CsrView& csr, const BuildContext& context,
                               Features& features) {
  const auto bytes = static_cast<int64_t>(csr.cols * sizeof(Column));
  const int threads =
      TeamWithScratch(context.TeamFor(csr.rows + csr.nnz()), bytes, 8 * csr.rows + 4 * csr.nnz());
  std::vector<Scratch<Column>> columns(threads);
  for (Scratch<Column>& each : columns) {
    if (absl::Status s = each.Allocate(*context.memory, csr.cols); !s.ok()) return s;
    std::ranges::fill(each.span(), Column());
  }
  std::vector<Sums> parts(kParts);
  const ColumnScan scan(csr);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t part = 0; part < kParts; ++part) {
      scan.Part(part, context, columns[omp_get_thread_num()].span(), parts[part]);
    }
#pragma omp for schedule(static)
    for (int64_t column = 0; column < csr.cols; ++column) {
      for (int i = 1; i < threads; ++i) {
        columns[0][column].nonzeros += columns[i][column].nonzeros;
      }
    }
  }
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Sums sums;
  for (const Sums& part : parts) {
    for (size_t i = 0; i < sums.distinct.size(); ++i) sums.distinct[i] += part.distinct[i];
    sums.products += part.products;
    sums.most_products = std::max(sums.most_products, part.most_products);
    sums.square_deviations += part.square_deviations;
  }
  Features& f = features;
  const auto nnz = static_cast<double>(csr.nnz());
  f.panel_fill_8 = Ratio(nnz, static_cast<double>(sums.distinct[0]));
  f.panel_fill_16 = Ratio(nnz, static_cast<double>(sums.distinct[1]));
  f.panel_fill_64 = Ratio(nnz, static_cast<double>(sums.distinct[2]));
  if (scan.square()) {
    f.square_products = static_cast<double>(sums.products);
    f.square_products_max = static_cast<double>(sums.most_products);
    f.square_products_cv = Variation(f.square_products, sums.square_deviations,
                                     scan.usual_products(), static_cast<double>(csr.rows));
    f.square_compression = scan.Compression(columns.front().span());
  }
  PutColumns(columns.front().span(), nnz, f);
  return PutLikeRows(csr, context, f);
}

}  // namespace sparsed
