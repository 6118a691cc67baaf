#include "tests/rpc/shards_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "sparsed/client.h"

namespace sparsed::test {
namespace {

constexpr int64_t kRows = 300, kCols = 250, kWidth = 5;

absl::Status Wrong(const std::string& what) { return absl::InternalError(what); }

/// Whole numbers that are never large.
template <typename T>
std::vector<T> Numbers(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<T>(static_cast<double>(random() % 7) - 3));
  }
  return numbers;
}

/// Rows of very different lengths, empty ones among them.
template <typename T>
struct Sparse {
  explicit Sparse(uint64_t seed) {
    std::mt19937_64 random(seed);
    offsets.push_back(0);
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t length = row % 7 == 3 ? 0
                             : row == 100 ? 60
                                          : static_cast<int64_t>(random() % 9);
      std::vector<int32_t> own;
      for (int64_t i = 0; i < length; ++i) own.push_back(static_cast<int32_t>(random() % kCols));
      std::ranges::sort(own);
      own.erase(std::unique(own.begin(), own.end()), own.end());
      columns.insert(columns.end(), own.begin(), own.end());
      offsets.push_back(static_cast<int64_t>(columns.size()));
    }
    values = Numbers<T>(nnz(), seed + 1);
  }
  int64_t nnz() const { return static_cast<int64_t>(columns.size()); }
  CsrView View() const {
    return {.rows = kRows,
            .cols = kCols,
            .row_offsets = std::span<const int64_t>(offsets),
            .column_indices = columns,
            .values = std::span<const T>(values)};
  }

  std::vector<int64_t> offsets;
  std::vector<int32_t> columns;
  std::vector<T> values;
};

template <typename T>
absl::Status Same(const std::vector<double>& expected, const std::vector<T>& got,
                  std::string_view what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (static_cast<double>(got[i]) == expected[i]) continue;
    return Wrong(fmt::format("{}: element {} is {}, not {}", what, i, static_cast<double>(got[i]),
                             expected[i]));
  }
  return absl::OkStatus();
}

template <typename T>
std::vector<double> SpmmOf(const Sparse<T>& s, const std::vector<T>& values,
                           const std::vector<T>& b, bool transpose) {
  std::vector<double> c(static_cast<size_t>((transpose ? kCols : kRows) * kWidth));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      const int64_t from = transpose ? row : s.columns[i], to = transpose ? s.columns[i] : row;
      for (int64_t k = 0; k < kWidth; ++k) {
        c[to * kWidth + k] +=
            static_cast<double>(values[i]) * static_cast<double>(b[from * kWidth + k]);
      }
    }
  }
  return c;
}

/// Every product with a handle that may know nothing yet.
template <typename T>
absl::Status Multiply(const Matrix& matrix, const Sparse<T>& s) {
  const std::vector<T> wide = Numbers<T>(kCols * kWidth, 5), tall = Numbers<T>(kRows * kWidth, 6);
  const std::vector<T> own = Numbers<T>(s.nnz(), 7);
  const DenseView b(wide.data(), kCols, kWidth), a(tall.data(), kRows, kWidth);
  const DenseView values(own.data(), s.nnz(), 1);
  std::vector<T> c(kRows * kWidth), ct(kCols * kWidth), of(static_cast<size_t>(s.nnz()));
  const auto expect = [&](const absl::StatusOr<ComputeResult>& result,
                          const std::vector<double>& expected, const std::vector<T>& got,
                          std::string_view what) -> absl::Status {
    if (!result.ok()) {
      return absl::Status(result.status().code(),
                          fmt::format("{}: {}", what, std::string(result.status().message())));
    }
    if (result->plan.find("shards: ") == std::string::npos) return Wrong(result->plan);
    return Same(expected, got, what);
  };
  absl::Status status = expect(matrix.Spmm(b, MutableDenseView(c.data(), kRows, kWidth)),
                               SpmmOf(s, s.values, wide, false), c, "SpMM");
  if (!status.ok()) return status;
  // A caller's matrix with gaps between its rows.
  std::vector<T> gaps(kRows * (kWidth + 3), static_cast<T>(9.0F));
  status.Update(matrix.Spmm(b, MutableDenseView(gaps.data(), kRows, kWidth, kWidth + 3)).status());
  for (int64_t row = 0; status.ok() && row < kRows; ++row) {
    for (int64_t k = 0; k < kWidth + 3; ++k) {
      const T expected = k < kWidth ? c[row * kWidth + k] : static_cast<T>(9.0F);
      if (static_cast<float>(gaps[row * (kWidth + 3) + k]) != static_cast<float>(expected)) {
        return Wrong("rows with gaps");
      }
    }
  }
  if (!status.ok()) return status;
  std::vector<double> sums = SpmmOf(s, own, wide, false);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = 2 * sums[i] - static_cast<double>(tall[i]);
  status = expect(matrix.Spmm(b, MutableDenseView(c.data(), kRows, kWidth),
                              {.alpha = 2, .beta = -1, .accumulate = a, .values = values}),
                  sums, c, "SpMM with alpha, beta and values");
  if (!status.ok()) return status;
  // beta of what the destination holds.
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = 2 * sums[i];
  std::vector<double> plain = SpmmOf(s, s.values, wide, false);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += plain[i];
  status = expect(matrix.Spmm(b, MutableDenseView(c.data(), kRows, kWidth), {.beta = 2}), sums, c,
                  "SpMM with beta");
  if (!status.ok()) return status;
  // Onto its own operand: C takes rows that B has.
  std::vector<T> place(wide.begin(), wide.end());
  place.resize(kRows * kWidth);
  status = expect(matrix.Spmm(DenseView(place.data(), kCols, kWidth),
                              MutableDenseView(place.data(), kRows, kWidth)),
                  plain, place, "SpMM in place");
  if (!status.ok()) return status;
  std::vector<double> transposed = SpmmOf(s, s.values, tall, true);
  status = expect(matrix.Spmm(a, MutableDenseView(ct.data(), kCols, kWidth), {.transpose = true}),
                  transposed, ct, "SpMM, transposed");
  if (!status.ok()) return status;
  for (double& sum : transposed) sum *= 3;
  status = expect(matrix.Spmm(a, MutableDenseView(ct.data(), kCols, kWidth),
                              {.transpose = true, .alpha = 2, .beta = 1}),
                  transposed, ct, "SpMM, transposed, with alpha and beta");
  if (!status.ok()) return status;
  for (const bool with_own : {false, true}) {
    const std::vector<double> products = SddmmOf(s, with_own ? own : s.values, tall, wide);
    SddmmOptions options;
    if (with_own) options.values = values;
    status = expect(matrix.Sddmm(a, b, MutableDenseView(of.data(), s.nnz(), 1), options), products,
                    of, with_own ? "SDDMM with values" : "SDDMM");
    if (!status.ok()) return status;
    if (!with_own) continue;
    of = own;
    options.values = DenseView(of.data(), s.nnz(), 1);
    status = expect(matrix.Sddmm(a, b, MutableDenseView(of.data(), s.nnz(), 1), options), products,
                    of, "SDDMM in the place of its values");
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

/// What SDDMM makes of A, which is tall, and B, which is wide.
template <typename T>
std::vector<double> SddmmOf(const Sparse<T>& s, const std::vector<T>& values,
                            const std::vector<T>& tall, const std::vector<T>& wide) {
  std::vector<double> products(static_cast<size_t>(s.nnz()));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) {
        sum += static_cast<double>(tall[row * kWidth + k]) *
               static_cast<double>(wide[s.columns[i] * kWidth + k]);
      }
      products[i] = sum * static_cast<double>(values[i]);
    }
  }
  return products;
}

/// Products whose results come to the caller, of operands that stay on the nodes: x of the wide
/// matrix.
template <typename T>
absl::Status TakeHeld(const Client& client, const Matrix& matrix, const Sparse<T>& s,
                      const DenseMatrix& x, const std::vector<T>& wide) {
  const std::vector<T> tall = Numbers<T>(kRows * kWidth, 6), own = Numbers<T>(s.nnz(), 7);
  const DenseView a(tall.data(), kRows, kWidth), b(wide.data(), kCols, kWidth);
  const DenseView values(own.data(), s.nnz(), 1);
  const auto t = client.PutDense("t", a, {.rows_of = matrix.name()});
  if (!t.ok()) return t.status();
  std::vector<T> c(kRows * kWidth), ct(kCols * kWidth), of(static_cast<size_t>(s.nnz()));
  const MutableDenseView out(c.data(), kRows, kWidth), across(ct.data(), kCols, kWidth);
  const MutableDenseView products(of.data(), s.nnz(), 1);
  std::vector<absl::Status> checks;
  const auto check = [&](const absl::StatusOr<ComputeResult>& result,
                         const std::vector<double>& expected, const std::vector<T>& got,
                         const char* what) {
    checks.push_back(result.status());
    if (result.ok()) checks.push_back(Same(expected, got, what));
  };
  SpmmOptions how{.values = values};
  check(matrix.Spmm(x, out, how), SpmmOf(s, own, wide, false), c, "held, with values");
  std::vector<double> sums = SpmmOf(s, s.values, tall, true);
  how = {.transpose = true};
  check(matrix.Spmm(*t, across, how), sums, ct, "held, transposed");
  for (double& sum : sums) sum *= 3;
  how = {.transpose = true, .alpha = 2, .beta = 1};
  check(matrix.Spmm(*t, across, how), sums, ct, "held, transposed, added to");
  how = {.transpose = true, .values = values};
  check(matrix.Spmm(*t, across, how), SpmmOf(s, own, tall, true), ct,
        "held, transposed, with values");
  const std::vector<double> expected = SddmmOf(s, s.values, tall, wide);
  check(matrix.Sddmm(*t, x, products), expected, of, "SDDMM of two that are held");
  check(matrix.Sddmm(a, x, products), expected, of, "SDDMM whose B is held");
  check(matrix.Sddmm(*t, b, products), expected, of, "SDDMM whose A is held");
  check(matrix.Sddmm(*t, x, products, {.values = values}), SddmmOf(s, own, tall, wide), of,
        "SDDMM of two that are held, with values");
  checks.push_back(t->Delete());
  for (const absl::Status& one : checks) {
    if (!one.ok()) return one;
  }
  return absl::OkStatus();
}

/// Operands and results that stay on the nodes, of a matrix whose handle may know nothing yet.
template <typename T>
absl::Status Hold(const Client& client, const std::string& name, const Sparse<T>& s) {
  const std::vector<T> wide = Numbers<T>(kCols * kWidth, 5);
  const std::vector<double> once = SpmmOf(s, s.values, wide, false);
  std::vector<double> thrice;
  for (const double sum : once) thrice.push_back(3 * sum);
  const Matrix matrix = client.MatrixNamed(name);
  const PutOptions put{.rows_of = name};
  const auto x = client.PutDense("x", DenseView(wide.data(), kCols, kWidth), put);
  if (!x.ok()) return x.status();
  const ValueType type = DenseView(wide.data(), kCols, kWidth).type;
  const auto y = client.PutZeros("y", type, kRows, kWidth, put);
  if (!y.ok()) return y.status();
  const auto info = x->Info(), zeros = y->Info();
  if (!info.ok()) return info.status();
  if (!zeros.ok()) return zeros.status();
  if (zeros->version == info->version) return Wrong("two buffers have the same version");
  if (info->rows != kCols || info->cols != kWidth || info->shards == 0) {
    return Wrong(fmt::format("the buffer is {} x {} in {} shards, version {}", info->rows,
                             info->cols, info->shards, info->version));
  }
  std::vector<T> back(kCols * kWidth), c(kRows * kWidth);
  if (const auto read = x->Read(MutableDenseView(back.data(), kCols, kWidth)); !read.ok()) {
    return read.status();
  }
  for (size_t i = 0; i < back.size(); ++i) {
    if (static_cast<float>(back[i]) != static_cast<float>(wide[i])) {
      return Wrong("another buffer was read");
    }
  }
  const auto expect = [&](const absl::StatusOr<ComputeResult>& result, bool held,
                          const std::vector<double>& expected, const char* what) -> absl::Status {
    if (!result.ok()) return result.status();
    if (held) {
      const auto read = y->Read(MutableDenseView(c.data(), kRows, kWidth));
      if (!read.ok()) return read.status();
    }
    return Same(expected, c, what);
  };
  const MutableDenseView out(c.data(), kRows, kWidth);
  absl::Status status = expect(matrix.Spmm(*x, *y), true, once, "held to held");
  if (status.ok()) status = expect(matrix.Spmm(*x, *y, {.beta = 2}), true, thrice, "added to");
  if (status.ok()) status = expect(matrix.Spmm(*x, out), false, once, "held to memory");
  if (status.ok()) {
    // c has it once; y has it three times.
    status = expect(matrix.Spmm(*x, out, {.beta = 2}), false, thrice, "added to in memory");
  }
  if (status.ok()) {
    status = expect(matrix.Spmm(DenseView(wide.data(), kCols, kWidth), *y), true, once,
                    "memory to held");
  }
  if (status.ok()) {
    SpmmOptions options{.beta = 2};
    options.accumulate = *y;
    status = expect(matrix.Spmm(*x, out, options), false, thrice, "held to memory, added to held");
  }
  if (!status.ok()) return status;
  const auto written = y->Renew();
  if (!written.ok() || written->version == zeros->version) {
    return Wrong("y was written, and has the version that it had");
  }
  if (absl::Status took = TakeHeld(client, matrix, s, *x, wide); !took.ok()) return took;
  if (absl::Status gone = x->Delete(); !gone.ok()) return gone;
  if (absl::Status gone = y->Delete(); !gone.ok()) return gone;
  if (!absl::IsNotFound(x->Delete()) || !absl::IsNotFound(x->Info().status())) {
    return Wrong("a deleted buffer is there");
  }
  return absl::OkStatus();
}

/// Nonzeros near the diagonal, however many columns there are; `far`: one a row, half of the
/// columns behind it.
template <typename T>
struct Band {
  Band(int64_t rows, int64_t cols, bool far) : rows(rows), cols(cols) {
    offsets.push_back(0);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<int32_t> own;
      const int64_t middle = row * cols / rows + (far ? cols / 2 : 0);
      const int64_t reach = far ? 0 : 2;
      for (int64_t column = middle - reach; column <= middle + reach; ++column) {
        if (far) own.push_back(static_cast<int32_t>(column % cols));
        if (!far && column >= 0 && column < cols) own.push_back(static_cast<int32_t>(column));
      }
      columns.insert(columns.end(), own.begin(), own.end());
      offsets.push_back(static_cast<int64_t>(columns.size()));
    }
    // Small, so that products of products are exact in f16.
    for (size_t i = 0; i < columns.size(); ++i) {
      values.push_back(static_cast<T>(static_cast<float>(i % 3) - 1));
    }
  }
  CsrView View() const {
    return {.rows = rows,
            .cols = cols,
            .row_offsets = std::span<const int64_t>(offsets),
            .column_indices = columns,
            .values = std::span<const T>(values)};
  }
  std::vector<double> Times(const std::vector<double>& b) const {
    std::vector<double> c(static_cast<size_t>(rows * kWidth));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        for (int64_t k = 0; k < kWidth; ++k) {
          c[row * kWidth + k] += static_cast<double>(values[i]) * b[columns[i] * kWidth + k];
        }
      }
    }
    return c;
  }

  int64_t rows, cols;
  std::vector<int64_t> offsets;
  std::vector<int32_t> columns;
  std::vector<T> values;
};

/// Rows of operands that shards name, by who has them.
struct Named {
  int64_t others = 0;  ///< other shards' nodes
  int64_t own = 0;     ///< rows that the shards' own nodes have
};
template <typename T>
Named NamedBy(const Band<T>& s, const MatrixInfo& info, const std::vector<int32_t>& partition) {
  const auto shard_of = [&](int64_t row) -> int64_t {
    if (!partition.empty()) return partition[row];
    int64_t shard = 0;
    while (shard + 1 < std::ssize(info.shards) && info.shards[shard + 1].first_row <= row) ++shard;
    return shard;
  };
  const auto node_of = [&](int64_t column) {
    if (s.rows == s.cols) return shard_of(column);
    const auto count = std::ssize(info.shards);
    int64_t shard = 0;
    while (s.cols * (shard + 1) / count <= column) ++shard;
    return shard;
  };
  std::set<std::pair<int64_t, int64_t>> named;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      named.emplace(shard_of(row), s.columns[i]);
    }
  }
  Named count;
  for (const auto& [shard, column] : named) {
    ++(node_of(column) == shard ? count.own : count.others);
  }
  return count;
}

template <typename T>
std::vector<T> As(const std::vector<double>& from) {
  std::vector<T> to;
  for (const double value : from) to.push_back(static_cast<T>(static_cast<float>(value)));
  return to;
}

template <typename T>
absl::Status Iterate(const Client& client, const OwnRowsCase& with,
                     const std::function<RowTraffic()>& traffic) {
  const Band<T> s(with.rows, with.cols, with.far);
  UploadOptions options;
  options.shards = with.shards;
  std::vector<int32_t> partition;
  for (int64_t row = 0; with.partition && row < s.rows; ++row) {
    // Some runs of rows each.
    partition.push_back(static_cast<int32_t>(row / 20 % with.shards));
  }
  options.partition = partition;
  const absl::StatusOr<Matrix> matrix = client.Upload("g", s.View(), options);
  if (!matrix.ok()) return matrix.status();
  const absl::StatusOr<MatrixInfo> info = matrix->Info();
  if (!info.ok()) return info.status();
  const absl::StatusOr<CsrMatrix> back = matrix->Download();
  if (!back.ok()) return back.status();
  if (back->row_offsets != s.offsets || back->column_indices != s.columns) {
    return Wrong("what was downloaded is another matrix");
  }
  const Named named = NamedBy(s, *info, partition);
  constexpr auto kRowBytes = static_cast<int64_t>(kWidth * sizeof(T));
  RowTraffic before = traffic();
  /// What went since, of so many products that each gathered anew.
  const auto moved = [&](int64_t gathers, std::string_view what) -> absl::Status {
    const RowTraffic now = traffic();
    const RowTraffic expected{gathers * named.others * kRowBytes,
                              with.copies ? gathers * named.own * kRowBytes : 0};
    const RowTraffic since{now.received - before.received, now.copied - before.copied};
    before = now;
    if (since.received == expected.received && since.copied == expected.copied) {
      return absl::OkStatus();
    }
    return Wrong(fmt::format("{}: {} bytes came from other nodes and {} were copied, not {} and {}",
                             what, since.received, since.copied, expected.received,
                             expected.copied));
  };

  const std::vector<double> b = Numbers<double>(s.cols * kWidth, 5);
  const std::vector<double> once = s.Times(b);
  const std::vector<T> b_values = As<T>(b);
  const DenseView wide(b_values.data(), s.cols, kWidth);
  const ValueType type = wide.type;
  const PutOptions put{.rows_of = "g"};
  const auto x = client.PutDense("x", wide, put);
  if (!x.ok()) return x.status();
  const auto y = client.PutZeros("y", type, s.rows, kWidth, put);
  if (!y.ok()) return y.status();
  std::vector<T> c(static_cast<size_t>(s.rows * kWidth));
  const MutableDenseView out(c.data(), s.rows, kWidth);
  const auto held = [&](const DenseMatrix& buffer, const std::vector<double>& expected,
                        std::string_view what) -> absl::Status {
    const auto read = buffer.Read(out);
    return read.ok() ? Same(expected, c, what) : read.status();
  };
  // Where nothing is gathered in place, each product gathers anew.
  const int64_t again = with.copies ? 1 : 0;
  std::vector<absl::Status> checks;
  checks.push_back(matrix->Spmm(*x, *y).status());
  checks.push_back(held(*y, once, "y = S x"));
  checks.push_back(moved(1, "the first product"));
  checks.push_back(matrix->Spmm(*x, out).status());
  checks.push_back(Same(once, c, "S x once more"));
  checks.push_back(moved(again, "the second product of one operand"));
  std::vector<double> sums = once;
  for (double& sum : sums) sum *= 3;
  checks.push_back(matrix->Spmm(*x, *y, {.alpha = 2, .beta = 1}).status());
  checks.push_back(held(*y, sums, "y = 2 S x + y"));
  checks.push_back(moved(again, "one that is added to"));
  // The same rows by a client that brings them.
  checks.push_back(matrix->Spmm(wide, out).status());
  checks.push_back(Same(once, c, "S b"));
  checks.push_back(moved(0, "an operand that comes with the request"));
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  if (s.rows == s.cols) {
    // Results are operands, and operands results.
    checks.push_back(matrix->Spmm(*x, *y).status());
    checks.push_back(moved(again, "y = S x"));
    checks.push_back(matrix->Spmm(*y, *x).status());
    checks.push_back(held(*x, s.Times(once), "x = S y"));
    checks.push_back(moved(1, "x = S y"));
    checks.push_back(matrix->Spmm(*x, *y).status());
    checks.push_back(held(*y, s.Times(s.Times(once)), "y = S S S x"));
    checks.push_back(moved(1, "y = S x of another x"));
  }
  // Put again, it is another operand.
  std::vector<double> other = b;
  for (double& value : other) value = 1 - value;
  const std::vector<T> other_values = As<T>(other);
  checks.push_back(
      client.PutDense("x", DenseView(other_values.data(), s.cols, kWidth), put).status());
  checks.push_back(matrix->Spmm(*x, *y).status());
  checks.push_back(held(*y, s.Times(other), "of a buffer that was put again"));
  checks.push_back(moved(1, "of a buffer that was put again"));
  checks.push_back(x->Renew().status());
  checks.push_back(matrix->Spmm(*x, *y).status());
  checks.push_back(moved(again, "of a buffer that was renewed"));
  // Many at once want the rows of one operand.
  const auto zeros = client.PutZeros("x", type, s.cols, kWidth, put);
  if (!zeros.ok()) return zeros.status();
  constexpr int kAtOnce = 6;
  std::vector<std::vector<T>> results(kAtOnce, std::vector<T>(c.size(), static_cast<T>(1.0F)));
  std::vector<Call<ComputeResult>> calls;
  for (std::vector<T>& result : results) {
    calls.push_back(matrix->SpmmAsync(*x, MutableDenseView(result.data(), s.rows, kWidth)));
  }
  for (Call<ComputeResult>& call : calls) checks.push_back(call.Wait().status());
  const std::vector<double> nothing(c.size());
  for (const std::vector<T>& result : results) checks.push_back(Same(nothing, result, "at once"));
  checks.push_back(moved(with.copies ? kAtOnce : 1, "several at once"));
  // SDDMM's values are in the order of the upload, whatever that of the shards is.
  std::vector<T> of(s.columns.size());
  const std::vector<T> tall = As<T>(once);
  checks.push_back(matrix
                       ->Sddmm(DenseView(tall.data(), s.rows, kWidth), wide,
                               MutableDenseView(of.data(), std::ssize(of), 1))
                       .status());
  std::vector<double> products(of.size());
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      for (int64_t k = 0; k < kWidth; ++k) {
        products[i] += static_cast<double>(s.values[i]) * once[row * kWidth + k] *
                       b[s.columns[i] * kWidth + k];
      }
    }
  }
  checks.push_back(Same(products, of, "SDDMM"));
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  return matrix->Delete();
}

template <typename T>
absl::Status Use(const std::string& address, const std::string& other, const ShardsCase& with) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const absl::StatusOr<Client> stranger = Client::Connect(other);
  if (!stranger.ok()) return stranger.status();
  const Sparse<T> first(1), second(2);
  UploadOptions options;
  options.shards = with.shards;
  std::vector<int32_t> partition;
  for (int64_t row = 0; with.partition && row < kRows; ++row) {
    partition.push_back(static_cast<int32_t>((row * row + row / 3) % with.shards));
  }
  options.partition = partition;
  const absl::StatusOr<Matrix> matrix = client->Upload("g", first.View(), options);
  if (!matrix.ok()) return matrix.status();
  absl::StatusOr<MatrixInfo> info = matrix->Info();
  if (!info.ok()) return info.status();
  if (info->rows != kRows || info->cols != kCols || info->nnz != first.nnz() ||
      static_cast<int>(info->shards.size()) != with.shards ||
      info->nodes.size() != std::min<size_t>(with.shards, 3)) {
    return Wrong(fmt::format("{} x {}, {} nonzeros in {} shards on {} nodes", info->rows,
                             info->cols, info->nnz, info->shards.size(), info->nodes.size()));
  }
  if (absl::Status right = Multiply(*matrix, first); !right.ok()) return right;
  // The other node may hear of it some milliseconds later; its client knows nothing of shards.
  const Matrix named = stranger->MatrixNamed("g");
  const auto heard = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!named.Info().ok() && std::chrono::steady_clock::now() < heard) {
  }
  if (absl::Status right = Multiply(named, first); !right.ok()) return right;
  if (absl::Status right = Hold(*stranger, "g", first); !right.ok()) return right;
  if (absl::Status right = Hold(*client, "g", first); !right.ok()) return right;
  if (absl::Status ready = named.WaitReady(); !ready.ok()) return ready;

  const absl::StatusOr<CsrMatrix> back = stranger->MatrixNamed("g").Download();
  if (!back.ok()) return back.status();
  if (back->row_offsets != first.offsets || back->column_indices != first.columns ||
      std::ranges::any_of(std::get<std::vector<T>>(back->values), [&, i = 0](T value) mutable {
        return static_cast<float>(value) != static_cast<float>(first.values[i++]);
      })) {
    return Wrong("what was downloaded is another matrix");
  }
  const auto listed = client->ListMatrices();
  if (!listed.ok()) return listed.status();
  if (listed->size() != 1 || listed->front().name != "g" || listed->front().shards.empty()) {
    return Wrong(fmt::format("{} matrices are listed", listed->size()));
  }

  // Clients that know the old shards find the new ones.
  options.replace = true;
  const absl::StatusOr<Matrix> replaced = client->Upload("g", second.View(), options);
  if (!replaced.ok()) return replaced.status();
  if (absl::Status right = Multiply(*replaced, second); !right.ok()) return right;
  // What is added to is added to once, whichever of the two it was.
  const std::vector<T> wide = Numbers<T>(kCols * kWidth, 5), tall = Numbers<T>(kRows * kWidth, 6);
  const DenseView b(wide.data(), kCols, kWidth);
  std::vector<T> c;
  absl::Status added;
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  do {
    c = tall;
    added = named.Spmm(b, MutableDenseView(c.data(), kRows, kWidth), {.beta = 2}).status();
  } while (absl::IsUnavailable(added) && std::chrono::steady_clock::now() < soon);
  if (!added.ok()) return added;
  std::vector<double> old_sums = SpmmOf(first, first.values, wide, false);
  std::vector<double> sums = SpmmOf(second, second.values, wide, false);
  for (size_t i = 0; i < sums.size(); ++i) {
    old_sums[i] += 2 * static_cast<double>(tall[i]);
    sums[i] += 2 * static_cast<double>(tall[i]);
  }
  if (!Same(old_sums, c, "").ok()) {
    absl::Status once = Same(sums, c, "SpMM with beta of what was replaced");
    if (!once.ok()) return once;
  }
  // As soon as the old ones' nodes have heard of it.
  absl::Status late;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  do {
    late = Multiply(named, second);
  } while (!late.ok() && std::chrono::steady_clock::now() < patience);
  if (!late.ok()) return late;
  const absl::StatusOr<Matrix> renamed = named.Rename("h");
  if (!renamed.ok()) return renamed.status();
  if (absl::Status right = Multiply(*renamed, second); !right.ok()) return right;
  // Who knows the shards finds them by one name, never by both.
  absl::Status old;
  do {
    old = Multiply(*matrix, second);
  } while (old.ok() && std::chrono::steady_clock::now() < patience);
  if (!absl::IsNotFound(old)) return Wrong("by its old name: " + old.ToString());
  // The old name is another matrix's, for those too who knew what it was made of.
  absl::StatusOr<Matrix> anew = absl::UnavailableError("");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  do {
    anew = client->Upload("g", first.View());
  } while (!anew.ok() && std::chrono::steady_clock::now() < until);
  if (!anew.ok()) return anew.status();
  for (const std::string& node : {address, other}) {
    const absl::StatusOr<Client> nobody = Client::Connect(node);
    if (!nobody.ok()) return nobody.status();
    const Matrix seen = nobody->MatrixNamed("g");
    absl::StatusOr<MatrixInfo> is;
    do {
      is = seen.Info();
    } while ((!is.ok() || !is->shards.empty()) && std::chrono::steady_clock::now() < until);
    if (!is.ok()) return is.status();
  }
  for (const Matrix& g : {*anew, named}) {
    // The shards that it was made of are there, and would answer.
    c = tall;
    const auto product = g.Spmm(b, MutableDenseView(c.data(), kRows, kWidth), {.beta = 2});
    if (!product.ok()) return product.status();
    absl::Status right = Same(old_sums, c, "SpMM by a name that was another matrix's");
    if (!right.ok()) return right;
  }
  if (absl::Status gone = anew->Delete(); !gone.ok()) return gone;
  if (absl::Status gone = renamed->Delete(); !gone.ok()) return gone;
  const absl::Status after = renamed->Info().status();
  return absl::IsNotFound(after) ? absl::OkStatus() : Wrong(after.ToString());
}

/// INTERNAL unless it has that code, and says that.
absl::Status Refused(const absl::Status& status, absl::StatusCode code, std::string_view says) {
  if (status.code() == code && std::string(status.message()).find(says) != std::string::npos) {
    return absl::OkStatus();
  }
  return Wrong(fmt::format("\"{}\" is expected, and this came: {}", says, status.ToString()));
}

/// Of "g", kRows x kCols of f32 in shards with so many nonzeros; adds to `checks`.
absl::Status MisuseBuffers(const Client& client, int64_t nnz, std::vector<absl::Status>& checks) {
  using enum absl::StatusCode;
  const Matrix g = client.MatrixNamed("g");
  const std::vector<float> b(kCols * kWidth), seven(7 * kWidth);
  const DenseView in(b.data(), kCols, kWidth);
  std::vector<float> c(kRows * kWidth);
  const MutableDenseView out(c.data(), kRows, kWidth);
  const PutOptions put{.rows_of = "g"};
  checks.push_back(Refused(client.PutDense("x", DenseView(seven.data(), 7, kWidth), put).status(),
                           kInvalidArgument, "as many rows as it has rows or columns"));
  PutOptions other = put;
  other.durable = true;
  checks.push_back(
      Refused(client.PutDense("x", in, other).status(), kInvalidArgument, "not durable"));
  other = put;
  other.distribution = Distribution::kColumns;
  checks.push_back(Refused(client.PutDense("x", in, other).status(), kInvalidArgument, "as rows"));
  checks.push_back(
      Refused(client.PutDense("x", in, {.rows_of = "nothing"}).status(), kNotFound, "nothing"));
  checks.push_back(
      Refused(g.Spmm(client.DenseNamed("x"), out).status(), kFailedPrecondition, "put it"));
  const auto x = client.PutDense("x", in, put);
  if (!x.ok()) return x.status();
  checks.push_back(Refused(g.Spmm(*x, *x).status(), kInvalidArgument, "operand and result"));
  checks.push_back(Refused(g.Spmm(*x, MutableDenseView(c.data(), kRows, kWidth - 1)).status(),
                           kInvalidArgument, ""));
  checks.push_back(Refused(g.Spmm(*x, client.DenseNamed("y")).status(), kFailedPrecondition,
                           "\"y\" is not there"));
  checks.push_back(Refused(g.Spmm(in, *x, {.transpose = true}).status(), kFailedPrecondition,
                           "the client adds up"));
  std::vector<float> across(kCols * kWidth);
  const MutableDenseView turned(across.data(), kCols, kWidth);
  checks.push_back(Refused(g.Spmm(*x, turned, {.transpose = true}).status(), kInvalidArgument,
                           "\"x\" is 250 x 5 f32, expected 300 x 5 f32"));
  SpmmOptions sum{.transpose = true, .beta = 1};
  sum.accumulate = *x;
  const std::vector<float> tall(kRows * kWidth);
  const DenseView left(tall.data(), kRows, kWidth);
  checks.push_back(
      Refused(g.Spmm(left, turned, sum).status(), kFailedPrecondition, "accumulate is a buffer"));
  SpmmOptions other_values;
  other_values.values = *x;
  checks.push_back(
      Refused(g.Spmm(in, out, other_values).status(), kFailedPrecondition, "values is a buffer"));
  std::vector<float> of(static_cast<size_t>(nnz));
  const MutableDenseView nonzeros(of.data(), nnz, 1);
  checks.push_back(
      Refused(g.Sddmm(left, *x, *x).status(), kFailedPrecondition, "values is a buffer"));
  checks.push_back(Refused(g.Sddmm(client.DenseNamed("none"), in, nonzeros).status(),
                           kFailedPrecondition, "\"none\" is not there"));
  checks.push_back(Refused(g.Spmm(client.DenseNamed("none"), turned, {.transpose = true}).status(),
                           kFailedPrecondition, "\"none\" is not there"));
  checks.push_back(Refused(g.Sddmm(left, client.DenseNamed("none"), nonzeros).status(),
                           kFailedPrecondition, "put it"));
  checks.push_back(
      Refused(g.Sddmm(*x, in, nonzeros).status(), kInvalidArgument, "expected 300 x 5 f32"));
  std::vector<float> few(kCols);
  checks.push_back(Refused(x->Read(MutableDenseView(few.data(), kCols, 1)).status(),
                           kInvalidArgument, "the destination"));
  // A part of another put, whose version is another: whoever reads it says so, and where it is.
  const auto info = g.Info();
  if (!info.ok()) return info.status();
  const std::string part = info->shards.back().matrix + "/x";
  const auto shards = static_cast<int64_t>(info->shards.size());
  const int64_t rows = kCols - kCols * (shards - 1) / shards;
  const auto alone = client.PutZeros(part, ValueType::kF32, rows, kWidth);
  if (!alone.ok()) return alone.status();
  checks.push_back(
      Refused(g.Spmm(*x, out).status(), kFailedPrecondition, "parts are of different products"));
  checks.push_back(Refused(x->Info().status(), kFailedPrecondition, "of different products"));
  if (absl::Status gone = client.DenseNamed(part).Delete(); !gone.ok()) return gone;
  checks.push_back(Refused(g.Spmm(*x, out).status(), kFailedPrecondition, "put it"));
  checks.push_back(Refused(x->Info().status(), kFailedPrecondition, "gone from their nodes"));
  // Parts whose rows are too few for what the columns name.
  for (const ShardInfo& shard : info->shards) {
    const auto small = client.PutZeros(shard.matrix + "/small", ValueType::kF32, 1, kWidth);
    if (!small.ok()) return small.status();
  }
  checks.push_back(Refused(g.Spmm(client.DenseNamed("small"), out).status(), kInvalidArgument,
                           "no operand of the matrix"));
  for (const ShardInfo& shard : info->shards) {
    if (absl::Status gone = client.DenseNamed(shard.matrix + "/small").Delete(); !gone.ok()) {
      return gone;
    }
  }
  // A result, which has more rows than an operand; and one of different products, that is added to.
  const auto y = client.PutZeros("y", ValueType::kF32, kRows, kWidth, put);
  if (!y.ok()) return y.status();
  checks.push_back(Refused(g.Spmm(*y, out).status(), kInvalidArgument, "no operand of the matrix"));
  const auto again = client.PutZeros(info->shards.back().matrix + "/y", ValueType::kF32,
                                     info->shards.back().rows, kWidth);
  if (!again.ok()) return again.status();
  SpmmOptions added{.beta = 1};
  checks.push_back(
      Refused(g.Spmm(in, *y, added).status(), kFailedPrecondition, "of different products"));
  added.accumulate = *y;
  checks.push_back(
      Refused(g.Spmm(in, out, added).status(), kFailedPrecondition, "of different products"));
  PutOptions durable;
  durable.durable = true;
  checks.push_back(Refused(client.PutZeros(part, ValueType::kF32, rows, kWidth, durable).status(),
                           kInvalidArgument, "not durable"));
  if (absl::Status gone = y->Delete(); !gone.ok()) return gone;
  // Not the rows of the matrix that is multiplied.
  const ShardInfo& first = info->shards.front();
  std::vector<float> other_rows(static_cast<size_t>(first.cols * kWidth));
  checks.push_back(Refused(client.MatrixNamed(first.columns)
                               .Spmm(client.DenseNamed(first.matrix + "/x"),
                                     MutableDenseView(other_rows.data(), first.cols, kWidth))
                               .status(),
                           kInvalidArgument, "another matrix"));
  return x->Delete();
}

}  // namespace

absl::Status UseShards(const std::string& address, const std::string& other,
                       const ShardsCase& with) {
  const std::string_view type = with.type;
  return type == "f64"   ? Use<double>(address, other, with)
         : type == "f16" ? Use<Float16>(address, other, with)
                         : Use<float>(address, other, with);
}

absl::Status IterateInShards(const std::string& address, const OwnRowsCase& with,
                             const std::function<RowTraffic()>& traffic) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const std::string_view type = with.type;
  return type == "f64"   ? Iterate<double>(*client, with, traffic)
         : type == "f16" ? Iterate<Float16>(*client, with, traffic)
                         : Iterate<float>(*client, with, traffic);
}

namespace {

/// The whole's rows of UploadShardsAsBefore; all values are 1.
const std::vector<std::vector<int32_t>> kBefore = {{0, 5}, {0}, {2}, {3, 4}, {0, 4}, {5}};

/// Rows of ones, or of `values`.
template <typename T>
absl::Status UploadRows(const Client& client, const std::string& name, int64_t cols,
                        const std::vector<std::vector<int32_t>>& rows, std::vector<T> values = {}) {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> columns;
  for (const std::vector<int32_t>& row : rows) {
    columns.insert(columns.end(), row.begin(), row.end());
    offsets.push_back(static_cast<int64_t>(columns.size()));
  }
  values.resize(columns.size(), static_cast<T>(1.0F));
  return client
      .Upload(name, {.rows = std::ssize(rows),
                     .cols = cols,
                     .row_offsets = std::span<const int64_t>(offsets),
                     .column_indices = columns,
                     .values = std::span<const T>(values)})
      .status();
}

}  // namespace

absl::Status UploadShardsAsBefore(const std::string& address, const std::string& upload) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const std::string first = fmt::format("shards:{}/0", upload);
  const std::string second = fmt::format("shards:{}/1", upload);
  constexpr double kOther = 2147483648.0;
  // Columns 0, 2 and 5, and columns 0, 3, 4 and 5.
  absl::Status status = UploadRows<float>(*client, first, 3, {{0, 2}, {0}, {1}});
  status.Update(
      UploadRows<double>(*client, first + "/columns", 6, {{0}, {2}, {5}}, {0, 2, kOther + 2}));
  status.Update(UploadRows<float>(*client, second, 4, {{1, 2}, {0, 2}, {3}}));
  status.Update(UploadRows<double>(*client, second + "/columns", 6, {{0}, {3}, {4}, {5}},
                                   {0, kOther, kOther + 1, kOther + 2}));
  return status;
}

absl::Status HoldInShardsAsBefore(const std::string& address, const std::string& name) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const PutOptions put{.rows_of = name};
  const std::vector<float> b = Numbers<float>(6 * kWidth, 5);
  const auto x = client->PutDense("x", DenseView(b.data(), 6, kWidth), put);
  if (!x.ok()) return x.status();
  std::vector<float> c(6 * kWidth);
  const MutableDenseView out(c.data(), 6, kWidth);
  if (const auto done = client->MatrixNamed(name).Spmm(*x, out); !done.ok()) return done.status();
  std::vector<double> expected(c.size());
  for (int64_t row = 0; row < 6; ++row) {
    for (const int32_t column : kBefore[static_cast<size_t>(row)]) {
      for (int64_t k = 0; k < kWidth; ++k) {
        expected[row * kWidth + k] += static_cast<double>(b[column * kWidth + k]);
      }
    }
  }
  return Same(expected, c, "shards as before");
}

absl::Status MultiplyHeldInShards(const std::string& address, const std::string& name) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  std::vector<float> c(kRows * kWidth);
  return client->MatrixNamed(name)
      .Spmm(client->DenseNamed("x", name), MutableDenseView(c.data(), kRows, kWidth))
      .status();
}

absl::Status MisuseShards(const std::string& address) {
  using enum absl::StatusCode;
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const Sparse<float> s(1);
  std::vector<absl::Status> checks;
  const auto upload = [&](const CsrView& view, const UploadOptions& options) {
    return client->Upload("g", view, options).status();
  };
  for (const int shards : {0, -1, 1025}) {
    checks.push_back(Refused(upload(s.View(), {.shards = shards}), kInvalidArgument, "1 to 1024"));
  }
  checks.push_back(Refused(upload(s.View(), {.shards = 301}), kInvalidArgument, "needs one"));
  const std::vector<int32_t> few(7), foreign(kRows, 3), one(kRows, 1);
  checks.push_back(
      Refused(upload(s.View(), {.shards = 3, .partition = few}), kInvalidArgument, "7 elements"));
  checks.push_back(Refused(upload(s.View(), {.shards = 3, .partition = foreign}), kInvalidArgument,
                           "partition[0] = 3"));
  checks.push_back(Refused(upload(s.View(), {.shards = 3, .partition = one}), kInvalidArgument,
                           "shard 0 of 3 no row"));
  checks.push_back(Refused(upload(s.View(), {.time_to_live = std::chrono::hours(1), .shards = 3}),
                           kInvalidArgument, "time_to_live"));
  Sparse<float> bad = s;
  bad.columns[7] = kCols;
  checks.push_back(Refused(upload(bad.View(), {.shards = 3}), kInvalidArgument,
                           "column_indices[7] = 250 is out of range"));
  bad = s;
  bad.offsets[9] = bad.offsets[10] + 1;
  checks.push_back(Refused(upload(bad.View(), {.shards = 3}), kInvalidArgument, "row_offsets[9]"));
  bad = s;
  bad.offsets.pop_back();
  checks.push_back(Refused(upload(bad.View(), {.shards = 3}), kInvalidArgument, "one more"));
  CsrView wide = s.View();
  wide.cols = int64_t{1} << 40;
  checks.push_back(Refused(upload(wide, {.shards = 3}), kInvalidArgument, "no size of a matrix"));
  // Of shards by a partition, whose columns are numbered in the order of the nodes, and which are
  // sorted for it: that is no leave to send rows that are not.
  Band<float> band(kRows, kRows, /*far=*/false);
  const Band<float> sorted = band;
  const auto turn = [&](size_t i) {
    std::swap(band.columns[i], band.columns[i + 1]);
    std::swap(band.values[i], band.values[i + 1]);
  };
  turn(500);
  UploadOptions turned{.shards = 3};
  std::vector<int32_t> runs;
  for (int64_t row = 0; row < kRows; ++row) runs.push_back(static_cast<int32_t>(row / 20 % 3));
  turned.partition = runs;
  checks.push_back(Refused(upload(band.View(), turned), kInvalidArgument, "columns must ascend"));
  turned.sort = true;
  checks.push_back(upload(band.View(), turned));
  const absl::StatusOr<CsrMatrix> back = client->MatrixNamed("g").Download();
  if (!back.ok()) return back.status();
  if (back->column_indices != sorted.columns ||
      std::get<std::vector<float>>(back->values) != sorted.values) {
    return Wrong("what was sorted is another matrix");
  }
  checks.push_back(client->MatrixNamed("g").Delete());
  // Nothing of all that is left.
  const auto left = client->ListMatrices();
  if (!left.ok()) return left.status();
  if (!left->empty()) return Wrong("a refused upload left something");

  if (absl::Status made = upload(s.View(), {.shards = 3}); !made.ok()) return made;
  checks.push_back(Refused(upload(s.View(), {.shards = 3}), kAlreadyExists, "'g'"));
  checks.push_back(Refused(upload(s.View(), {}), kAlreadyExists, "in shards"));
  checks.push_back(Refused(upload(s.View(), {.replace = true}), kAlreadyExists, "in shards"));
  const Matrix g = client->MatrixNamed("g");
  std::vector<float> b(kCols * kWidth), c(kRows * kWidth);
  const DenseView in(b.data(), kCols, kWidth);
  const MutableDenseView out(c.data(), kRows, kWidth);
  checks.push_back(Refused(g.Spmm(DenseView(b.data(), kCols - 1, kWidth), out).status(),
                           kInvalidArgument, "b is 249 x 5, expected 250 x 5"));
  checks.push_back(Refused(g.Spmm(in, MutableDenseView(c.data(), kRows - 1, kWidth)).status(),
                           kInvalidArgument, "c is 299 x 5"));
  std::vector<double> doubles(kCols * kWidth);
  checks.push_back(Refused(g.Spmm(DenseView(doubles.data(), kCols, kWidth), out).status(),
                           kInvalidArgument, "b is f64, the matrix f32"));
  if (absl::Status right = MisuseBuffers(*client, s.nnz(), checks); !right.ok()) return right;
  checks.push_back(Refused(g.UpdateValues(std::span<const float>(s.values)).status(),
                           kFailedPrecondition, "in 3 shards"));
  checks.push_back(Refused(g.Copy("h").status(), kFailedPrecondition, "in 3 shards"));
  checks.push_back(Refused(g.Prepare(), kFailedPrecondition, "in 3 shards"));
  checks.push_back(Refused(g.SpgemmCollect(g).status(), kFailedPrecondition, "in "));
  checks.push_back(Refused(g.Explain().status(), kFailedPrecondition, "in 3 shards"));
  checks.push_back(Refused(g.Features().status(), kFailedPrecondition, "in 3 shards"));
  const absl::StatusOr<MatrixInfo> info = g.Info();
  if (!info.ok()) return info.status();
  const std::string shard = info->shards.front().matrix;
  checks.push_back(
      Refused(client->MatrixNamed(shard).Delete(), kFailedPrecondition, "is a shard of \"g\""));
  checks.push_back(
      Refused(client->MatrixNamed(shard).Rename("own").status(), kFailedPrecondition, "a shard"));
  const Matrix of_g = client->MatrixNamed(shard);
  const std::vector<float> numbers(static_cast<size_t>(info->shards.front().nnz));
  checks.push_back(Refused(of_g.UpdateValues(std::span<const float>(numbers)).status(),
                           kFailedPrecondition, "a shard of \"g\""));
  checks.push_back(Refused(of_g.Share({.with = "bob"}).status(), kFailedPrecondition, "a shard"));
  checks.push_back(Refused(client->Upload(shard, s.View(), {.replace = true}).status(),
                           kFailedPrecondition, "a shard of \"g\""));
  checks.push_back(Refused(g.Rename(shard).status(), kInvalidArgument, "name of a shard"));
  checks.push_back(Refused(g.Share({.with = "no such~name"}).status(), kInvalidArgument, "name"));
  checks.push_back(Refused(g.Unshare("bob").status(), kNotFound, "bob"));
  const auto shared = g.Share({.with = "bob"});
  if (!shared.ok()) return shared.status();
  const auto seen = g.Info();
  if (!seen.ok()) return seen.status();
  if (seen->shares.size() != 1) return Wrong("it is not shared");
  if (absl::Status revoked = g.Unshare("bob").status(); !revoked.ok()) return revoked;
  // A name that is whole is not to be in shards.
  if (absl::Status made = client->Upload("whole", s.View()).status(); !made.ok()) return made;
  checks.push_back(
      Refused(client->Upload("whole", s.View(), {.replace = true, .shards = 3}).status(),
              kFailedPrecondition, "not in shards"));
  checks.push_back(
      Refused(client->MatrixNamed("whole").Rename("shards:0123456789abcdef/0").status(),
              kInvalidArgument, "name of a shard"));
  checks.push_back(Refused(g.Rename("whole").status(), kAlreadyExists, "whole"));
  for (const absl::Status& check : checks) {
    if (!check.ok()) return check;
  }
  if (absl::Status gone = g.Delete(); !gone.ok()) return gone;
  return client->MatrixNamed("whole").Delete();
}

absl::Status UploadShardsTo(const std::string& address) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  return client->Upload("g", Sparse<float>(1).View(), {.shards = 3}).status();
}

absl::Status UploadInShards(const std::string& address, const std::string& name, int shards) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  return client->Upload(name, Sparse<float>(1).View(), {.shards = shards}).status();
}

absl::Status UploadInShardsWith(const std::string& address, const std::string& name,
                                const std::function<void()>& meanwhile) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  bool done = false;
  UploadOptions options;
  options.shards = 80;
  options.progress = [&](int64_t sent, int64_t total) {
    if (2 * sent > total && !std::exchange(done, true)) meanwhile();
  };
  return client->Upload(name, Sparse<float>(1).View(), options).status();
}

absl::Status MultiplyInShards(const std::string& address, const std::string& name) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const Sparse<float> s(1);
  const Matrix matrix = client->MatrixNamed(name);
  const absl::StatusOr<CsrMatrix> back = matrix.Download();
  if (!back.ok()) return back.status();
  if (back->column_indices != s.columns) return Wrong("another matrix was downloaded");
  return Multiply(matrix, s);
}

absl::Status PutForShards(const std::string& address, const std::string& name) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  return client->PutZeros("x", ValueType::kF32, kCols, kWidth, {.rows_of = name}).status();
}

absl::Status HoldInShards(const std::string& address, const std::string& name) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  return Hold(*client, name, Sparse<float>(1));
}

}  // namespace sparsed::test
