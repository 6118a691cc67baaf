// C<M> = S * T at the positions of a third pattern M alone, in any semiring.
//
// Idea: the columns of M's row are the candidates. They are numbered in their order, a lookup from
// column to number says of each product whether it counts and where, and the numbers that got a
// product are the row of C, sorted by nature: the mask compressed accumulator of Milakovic,
// Selvitopi, Nisa, Budimlic and Buluc ("Parallel algorithms for masked sparse matrix-matrix
// products", 2022). A row of T that is far longer than M's is not walked through: M's columns are
// searched in it. So the work is bounded by the mask and the products both. Layout in: plain CSR of
// all three. A row of C belongs to one thread; threads take pieces of about equal numbers of S's
// entries. Workspace: for each thread a number for each of T's columns, or, where they are too many
// for a cache, a hash table of the longest row of M; and sums for that row.
#include <omp.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/semiring.h"
#include "kernels/cpu/spgemm/spgemm.h"

namespace sparsed::cpu {
namespace {

/// Columns whose numbers are kept in an array for all; of more, the row's are hashed.
constexpr int64_t kDenseColumns = int64_t{1} << 22;

/// The number of a column of M's row, by position in an array of all columns. Clean between rows.
class DenseNumbers {
 public:
  DenseNumbers(BumpAllocator& allocator, int64_t cols, int64_t /*longest*/)
      : numbers_(allocator.Take<int32_t>(cols)), cols_(cols) {}

  void Clean() { std::fill(numbers_, numbers_ + cols_, -1); }
  void Insert(std::span<const int32_t> columns) {
    for (size_t i = 0; i < columns.size(); ++i) numbers_[columns[i]] = static_cast<int32_t>(i);
  }
  void Remove(std::span<const int32_t> columns) {
    for (const int32_t column : columns) numbers_[column] = -1;
  }
  /// -1: it is not in the row.
  int32_t Find(int32_t column) const { return numbers_[column]; }

 private:
  int32_t* numbers_;
  int64_t cols_;
};

/// Likewise, by open addressing.
class HashedNumbers {
 public:
  HashedNumbers(BumpAllocator& allocator, int64_t /*cols*/, int64_t longest)
      : size_(SlotsFor(longest)), slots_(allocator.Take<Slot>(size_)) {}

  void Clean() { std::fill(slots_, slots_ + size_, Slot{-1, -1}); }
  void Insert(std::span<const int32_t> columns) {
    Resize(columns.size());
    for (size_t i = 0; i < columns.size(); ++i) {
      slots_[SlotOf(columns[i])] = {columns[i], static_cast<int32_t>(i)};
    }
  }
  void Remove(std::span<const int32_t> /*columns*/) {
    std::fill(slots_, slots_ + mask_ + 1, Slot{-1, -1});
  }
  int32_t Find(int32_t column) const { return slots_[SlotOf(column)].number; }

 private:
  struct Slot {
    int32_t column;  ///< -1: empty
    int32_t number;
  };

  /// At least twice as many slots as columns, so that probes are short.
  static int64_t SlotsFor(int64_t columns) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns) * 2 + 2));
  }
  void Resize(size_t columns) {
    const int64_t slots = SlotsFor(static_cast<int64_t>(columns));
    mask_ = static_cast<uint32_t>(slots - 1);
    shift_ = 64 - std::countr_zero(static_cast<uint64_t>(slots));
  }
  /// The slot that has the column, or the empty one where it belongs.
  uint32_t SlotOf(int32_t column) const {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    auto at = static_cast<uint32_t>(static_cast<uint32_t>(column) * kGoldenRatio >> shift_);
    while (slots_[at].column != column && slots_[at].column >= 0) at = (at + 1) & mask_;
    return at;
  }

  int64_t size_;
  Slot* slots_;
  uint32_t mask_ = 0;
  int shift_ = 0;
};

/// What the candidates of a row get.
template <typename T, class Ring>
struct Sums {
  Sums(BumpAllocator& allocator, const SpgemmArguments& arguments, int64_t longest)
      : sums(allocator.Take<T>(longest)),
        s_values(static_cast<const T*>(arguments.left_values)),
        t_values(static_cast<const T*>(arguments.right_values)) {}

  void Clear(size_t candidates) { std::fill(sums, sums + candidates, Ring::Nothing()); }
  void Add(size_t number, int64_t s, int64_t t) {
    sums[number] = Ring::Add(sums[number], Ring::Multiply(s_values[s], t_values[t]));
  }

  T* sums;
  const T* s_values;
  const T* t_values;
};

/// Of the symbolic phase: nothing.
struct NoSums {
  NoSums(BumpAllocator& /*allocator*/, const SpgemmArguments& /*arguments*/, int64_t /*longest*/) {}

  void Clear(size_t /*candidates*/) {}
  void Add(size_t /*number*/, int64_t /*s*/, int64_t /*t*/) {}
};

/// One thread's.
template <class Numbers, class SumsOf>
struct MaskedSpace {
  /// `longest`: row of M.
  MaskedSpace(BumpAllocator&& allocator, const SpgemmArguments& arguments, int64_t longest)
      : numbers(allocator, arguments.right.cols, longest),
        sums(allocator, arguments, longest),
        reached(allocator.Take<uint8_t>(longest)),
        bytes(allocator.bytes()) {}

  Numbers numbers;
  SumsOf sums;
  uint8_t* reached;  ///< of each candidate: has it a product
  size_t bytes;
};

std::span<const int32_t> RowOf(const CsrView& csr, int64_t row) {
  return csr.column_indices.subspan(
      static_cast<size_t>(csr.row_offsets[row]),
      static_cast<size_t>(csr.row_offsets[row + 1] - csr.row_offsets[row]));
}

/// Whether looking the candidates up in a row of T costs less than looking its columns up.
bool SearchesIn(size_t row, size_t candidates) {
  return candidates * static_cast<size_t>(std::bit_width(row)) < row;
}

/// Finds the candidates that row `row` of C reaches and sums them. False if it was stopped.
template <class Space>
bool ReachRow(const SpgemmArguments& arguments, const PieceQueue& pieces, int64_t row,
              std::span<const int32_t> candidates, Space& space) {
  const CsrView& s = arguments.left;
  const CsrView& t = arguments.right;
  std::fill(space.reached, space.reached + candidates.size(), uint8_t{0});
  space.sums.Clear(candidates.size());
  if (candidates.empty()) return true;
  space.numbers.Insert(candidates);
  const auto reach = [&space](size_t number, int64_t s_entry, int64_t t_entry) {
    space.reached[number] = 1;
    space.sums.Add(number, s_entry, t_entry);
  };
  bool stopped = false;
  for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1] && !stopped; ++p) {
    const int32_t k = s.column_indices[p];
    const int64_t begin = t.row_offsets[k];
    const std::span<const int32_t> columns = RowOf(t, k);
    if (SearchesIn(columns.size(), candidates.size())) {
      auto from = columns.begin();
      for (size_t i = 0; i < candidates.size(); ++i) {
        from = std::lower_bound(from, columns.end(), candidates[i]);
        if (from == columns.end()) break;
        if (*from == candidates[i]) reach(i, p, begin + (from - columns.begin()));
      }
    } else {
      for (size_t q = 0; q < columns.size(); ++q) {
        const int32_t number = space.numbers.Find(columns[q]);
        if (number >= 0) reach(static_cast<size_t>(number), p, begin + static_cast<int64_t>(q));
      }
    }
    stopped = pieces.stopped();
  }
  space.numbers.Remove(candidates);
  return !stopped;
}

/// Every thread of the team takes rows; `take(row, candidates, space)` gets what it found.
template <class Numbers, class SumsOf, typename Take>
absl::Status RunTeam(const Context& context, const SpgemmArguments& arguments, RowRange range,
                     const Take& take) {
  if (range.begin >= range.end) return absl::OkStatus();
  const CsrView& mask = *arguments.mask;
  const int64_t longest = LongestRow(mask, range);
  using Space = MaskedSpace<Numbers, SumsOf>;
  const size_t bytes = Space(BumpAllocator(nullptr), arguments, longest).bytes;
  PieceQueue pieces(
      context, range,
      arguments.left.row_offsets.subspan(static_cast<size_t>(range.begin),
                                         static_cast<size_t>(range.end - range.begin) + 1));
#pragma omp parallel num_threads(context.threads) if (context.threads > 1)
  {
    std::byte* const workspace =
        context.workspace.data() + bytes * static_cast<size_t>(omp_get_thread_num());
    Space space(BumpAllocator(workspace), arguments, longest);
    space.numbers.Clean();
    RowRange piece;
    bool stopped = false;
    while (!stopped && pieces.Next(&piece)) {
      for (int64_t row = piece.begin; row < piece.end && !stopped; ++row) {
        const std::span<const int32_t> candidates = RowOf(mask, row);
        stopped = !ReachRow(arguments, pieces, row, candidates, space);
        if (!stopped) take(row, candidates, space);
      }
    }
  }
  return context.stopped() ? absl::CancelledError("the product was cancelled") : absl::OkStatus();
}

/// Calls `f` with the numbers that suit the product.
template <typename F>
auto WithNumbers(const SpgemmArguments& arguments, const F& f) {
  return arguments.right.cols <= kDenseColumns ? f(std::type_identity<DenseNumbers>())
                                               : f(std::type_identity<HashedNumbers>());
}

bool Supports(const Problem& problem) {
  Problem unmasked = problem;
  unmasked.masked = false;
  return problem.masked && SupportsSemirings(unmasked);
}

size_t Workspace(const Problem& /*problem*/, const SpgemmArguments& arguments, int threads) {
  const int64_t longest = LongestRow(*arguments.mask, {0, arguments.mask->rows});
  return WithNumbers(arguments, [&]<class Numbers>(std::type_identity<Numbers>) {
    // Enough for either type.
    using Largest = MaskedSpace<Numbers, Sums<double, SumProduct<double>>>;
    return Largest(BumpAllocator(nullptr), arguments, longest).bytes * static_cast<size_t>(threads);
  });
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  return WithNumbers(arguments, [&]<class Numbers>(std::type_identity<Numbers>) {
    return RunTeam<Numbers, NoSums>(
        context, arguments, range,
        [&](int64_t row, std::span<const int32_t> candidates, const auto& space) {
          row_nnz[row - range.begin] =
              std::count(space.reached, space.reached + candidates.size(), uint8_t{1});
        });
  });
}

template <typename T, class Ring>
absl::Status NumericOf(const Context& context, const SpgemmArguments& arguments, RowRange range,
                       std::span<const int64_t> row_begin, int32_t* column_indices, T* values,
                       std::span<int64_t> row_nnz) {
  return WithNumbers(arguments, [&]<class Numbers>(std::type_identity<Numbers>) {
    return RunTeam<Numbers, Sums<T, Ring>>(
        context, arguments, range,
        [&](int64_t row, std::span<const int32_t> candidates, const auto& space) {
          const int64_t first = row_begin[row - range.begin];
          int64_t at = first;
          for (size_t i = 0; i < candidates.size(); ++i) {
            if (space.reached[i] == 0) continue;
            column_indices[at] = candidates[i];
            values[at] = space.sums.sums[i];
            ++at;
          }
          row_nnz[row - range.begin] = at - first;
        });
  });
}

template <typename T>
absl::Status NumericOf(const Context& context, const Problem& problem,
                       const SpgemmArguments& arguments, RowRange range,
                       std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                       std::span<int64_t> row_nnz) {
  const auto run = [&]<class Ring>(Ring) {
    return NumericOf<T, Ring>(context, arguments, range, row_begin, column_indices,
                              static_cast<T*>(values), row_nnz);
  };
  switch (problem.semiring) {
    case Semiring::kSumProduct:
      return run(SumProduct<T>());
    case Semiring::kBoolean:
      return run(Boolean<T>());
    case Semiring::kMinPlus:
      return run(MinPlus<T>());
    case Semiring::kPlusPair:
      return run(PlusPair<T>());
  }
  return absl::UnimplementedError("no such semiring");
}

absl::Status Numeric(const Context& context, const Problem& problem,
                     const SpgemmArguments& arguments, RowRange range,
                     std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                     std::span<int64_t> row_nnz) {
  return problem.type == ElementType::kF32
             ? NumericOf<float>(context, problem, arguments, range, row_begin, column_indices,
                                values, row_nnz)
             : NumericOf<double>(context, problem, arguments, range, row_begin, column_indices,
                                 values, row_nnz);
}

}  // namespace

SpgemmKernel MaskedSpgemm() {
  return {.name = "cpu.csr.masked",
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .analyse = AnalyseProducts,
          .symbolic = Symbolic,
          .numeric = Numeric};
}

}  // namespace sparsed::cpu
