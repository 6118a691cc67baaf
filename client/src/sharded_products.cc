// SpMM and SDDMM of a matrix in shards: operands are cut, or rows of them gathered, for each shard;
// all shards multiply at the same time; results are put together. Row-wise one-dimensional
// distribution that moves what is named alone, as Mukhopadhyay et al., "Sparsity-Aware
// Communication for Distributed Graph Neural Network Training" (ICPP 2024), has it between its
// processes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "client/src/arrays.h"
#include "client/src/compute_calls.h"
#include "client/src/convert.h"
#include "client/src/dense_rows.h"
#include "client/src/sharded.h"
#include "client/src/sharded_calls.h"

namespace sparsed {
inline namespace client {
namespace {

/// Whether it has memory in common with what is written.
bool Overlaps(const std::optional<DenseView>& read, const MutableDenseView& written) {
  if (!read || read->rows == 0 || written.rows == 0) return false;
  const DenseView to = ConstView(written);
  const std::less<const std::byte*> before;
  return before(RowOf(*read, 0), RowOf(to, to.rows - 1) + RowBytes(to)) &&
         before(RowOf(to, 0), RowOf(*read, read->rows - 1) + RowBytes(*read));
}

/// What the caller gave in memory. FAILED_PRECONDITION for memory of GPUs, and for buffers where
/// they cannot be, INVALID_ARGUMENT unless it is of that type and shape; cols 0: as it says.
template <typename View, typename Given>
absl::StatusOr<View> InMemory(const Connection& home, const Given& given, ValueType type,
                              int64_t rows, int64_t cols, const char* what) {
  const auto* const view = std::get_if<View>(&given);
  if (view == nullptr) {
    return absl::FailedPreconditionError(fmt::format(
        "{} is a buffer: of products with a matrix in shards SpMM takes and keeps buffers "
        "(with the matrix as it is, and its own values); all else goes with the request: files "
        "for sparsectl, memory of the caller's",
        what));
  }
  if (const auto bytes = BytesOf(*view, what); !bytes.ok()) return bytes.status();
  if (view->rows > 0 && home.shared_memory() != nullptr &&
      home.shared_memory()->OnGpu(view->data)) {
    return absl::FailedPreconditionError(
        fmt::format("{} is in a GPU's memory, from where it cannot be cut for the shards: copy it "
                    "to the host",
                    what));
  }
  if (view->type != type) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {}, the matrix {}", what, Name(view->type), Name(type)));
  }
  if (view->rows != rows || (cols != 0 && view->cols != cols)) {
    return absl::InvalidArgumentError(fmt::format("{} is {} x {}, expected {} x {}", what,
                                                  view->rows, view->cols, rows,
                                                  cols == 0 ? view->cols : cols));
  }
  return *view;
}

/// Rows [first, first + count) of a column of nonzeros for each row that a shard has, in or out.
template <typename Move>
void ForRuns(const std::vector<int64_t>& begins, const std::vector<int32_t>& rows,
             const Move& move) {
  int64_t here = 0;
  for (const int32_t row : rows) {
    const int64_t begin = begins[static_cast<size_t>(row)];
    const int64_t count = begins[static_cast<size_t>(row) + 1] - begin;
    if (count > 0) move(here, begin, count);
    here += count;
  }
}

/// What is known of a product from its parts, which ran at the same time.
class Together {
 public:
  void Add(const ComputeResult& part) {
    if (parts_++ == 0) {
      whole_ = part;
      whole_.batch = 1;
      return;
    }
    whole_.version = std::max(whole_.version, part.version);
    whole_.transport = std::max(whole_.transport, part.transport);
    for (const auto phase :
         {&Timings::queue, &Timings::receive, &Timings::to_device, &Timings::kernel,
          &Timings::from_device, &Timings::send, &Timings::total, &Timings::setup}) {
      whole_.timings.*phase = std::max(whole_.timings.*phase, part.timings.*phase);
    }
  }
  ComputeResult Take() {
    whole_.plan = fmt::format("{} shards: {}", parts_, whole_.plan);
    return std::move(whole_);
  }

 private:
  int parts_ = 0;
  ComputeResult whole_;
};

/// The buffer that it is, for the matrix's shards; null: it is in the caller's memory.
template <typename Given>
const DenseMatrix* BufferOf(const Given& given) {
  return std::get_if<DenseMatrix>(&given);
}

const DenseMatrix* BufferOf(const std::optional<Operand>& given) {
  return given.has_value() ? BufferOf(*given) : nullptr;
}

/// Where a product with a matrix that is not in shards goes. Buffers are those of the client's
/// home, which says so where the matrix is elsewhere.
template <typename... Given>
std::shared_ptr<Connection> WayOf(Connection& home, const std::string& name,
                                  const Given&... given) {
  const bool held = ((BufferOf(given) != nullptr) || ...);
  return held ? home.shared_from_this() : RouteOf(home.shared_from_this(), name);
}

/// A product of one of the shards, and what lies between it and the caller's memory.
struct Part {
  std::shared_ptr<const ShardNumbers> numbers;
  Scratch a, b, accumulate, values, result;
  std::optional<Call<ComputeResult>> call;  ///< destroyed first: it uses what is above
};

/// Those of all shards, where each has to be asked for its numbers.
absl::StatusOr<std::vector<Part>> PartsOf(Connection& home, ShardWork& work,
                                          ShardedMatrix& sharded) {
  std::vector<Part> parts(sharded.info().shards.size());
  for (size_t shard = 0; shard < parts.size(); ++shard) {
    const auto numbers = sharded.Numbers(home, work, shard);
    if (!numbers.ok()) return numbers.status();
    parts[shard].numbers = *numbers;
  }
  return parts;
}

/// Rows of the whole that are the shard's.
DenseView RowsFor(const ShardInfo& shard, const ShardNumbers& numbers, const DenseView& whole,
                  Scratch& scratch) {
  if (numbers.rows.empty()) return Rows(whole, shard.first_row, shard.rows);
  scratch = Gather(whole, numbers.rows);
  return scratch.View();
}

/// Rows of the shard, to where they are in the whole.
void PutRows(const DenseView& from, const ShardInfo& shard, const ShardNumbers& numbers,
             const MutableDenseView& whole) {
  if (!numbers.rows.empty()) return Scatter(from, numbers.rows, whole);
  const MutableDenseView to = Rows(whole, shard.first_row, from.rows);
  for (int64_t j = 0; j < from.rows; ++j) {
    std::memcpy(RowOf(to, j), RowOf(from, j), RowBytes(from));
  }
}

/// The first error, when all that is before it is done.
absl::StatusOr<ComputeResult> WaitForAll(ShardWork& work, std::vector<Part>& parts) {
  Together together;
  for (Part& part : parts) {
    const absl::StatusOr<ComputeResult> done = work.Wait(*part.call);
    if (!done.ok()) return done.status();
    together.Add(*done);
  }
  return together.Take();
}

/// Rows of B that are the shard's columns.
DenseView ColumnsFor(const ShardNumbers& numbers, const DenseView& b, Scratch& scratch) {
  // All of them, in their order.
  if (static_cast<int64_t>(numbers.columns.size()) == b.rows &&
      std::ranges::is_sorted(numbers.columns)) {
    return b;
  }
  scratch = Gather(b, numbers.columns);
  return scratch.View();
}

/// Of a column with an element for each nonzero, those of the shard.
DenseView ValuesFor(const ShardedMatrix& sharded, size_t shard, const ShardNumbers& numbers,
                    const std::vector<int64_t>* begins, const DenseView& whole, Scratch& scratch) {
  const int64_t nnz = sharded.info().shards[shard].nnz;
  if (begins == nullptr) return Rows(whole, sharded.first_nonzeros()[shard], nnz);
  scratch = Scratch(whole.type, nnz, 1);
  const MutableDenseView to = scratch.MutableView();
  ForRuns(*begins, numbers.rows, [&](int64_t here, int64_t there, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(RowOf(to, here + i), RowOf(whole, there + i), RowBytes(whole));
    }
  });
  return scratch.View();
}

/// Those of the shard, to where they are in such a column of the whole.
void PutValues(const DenseView& from, const ShardedMatrix& sharded, size_t shard,
               const ShardNumbers& numbers, const std::vector<int64_t>* begins,
               const MutableDenseView& whole) {
  const auto put = [&](int64_t here, int64_t there, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(RowOf(whole, there + i), RowOf(from, here + i), RowBytes(from));
    }
  };
  if (begins == nullptr) return put(0, sharded.first_nonzeros()[shard], from.rows);
  ForRuns(*begins, numbers.rows, put);
}

/// Of shards by a partition, where each row's nonzeros begin; null: rows are consecutive.
absl::StatusOr<std::shared_ptr<const std::vector<int64_t>>> BeginsOf(Connection& home,
                                                                     ShardWork& work,
                                                                     ShardedMatrix& sharded) {
  if (!sharded.partitioned()) return nullptr;
  return sharded.Begins(home, work);
}

/// to += from, row j of it to row rows[j].
template <typename From, typename To>
void AddRows(const DenseView& from, std::span<const int32_t> rows, To* to, int64_t stride) {
  for (size_t j = 0; j < rows.size(); ++j) {
    const auto* const row = reinterpret_cast<const From*>(RowOf(from, static_cast<int64_t>(j)));
    To* const sum = to + rows[j] * stride;
    for (int64_t k = 0; k < from.cols; ++k) sum[k] += static_cast<To>(row[k]);
  }
}

/// The sum of what shards make of S^T B, in the precision of sums: f32, or f64 of f64.
template <typename Element, typename Sum>
absl::StatusOr<ComputeResult> AddUp(ShardWork& work, std::vector<Part>& parts, double beta,
                                    const DenseView* accumulate, const MutableDenseView& c) {
  std::vector<Sum> sums(static_cast<size_t>(c.rows * c.cols));
  if (accumulate != nullptr) {
    for (int64_t row = 0; row < c.rows; ++row) {
      const auto* const from = reinterpret_cast<const Element*>(RowOf(*accumulate, row));
      for (int64_t k = 0; k < c.cols; ++k) {
        sums[static_cast<size_t>(row * c.cols + k)] =
            static_cast<Sum>(beta * static_cast<double>(from[k]));
      }
    }
  }
  Together together;
  // In order, so that the sums are the same each time.
  for (Part& part : parts) {
    const absl::StatusOr<ComputeResult> done = work.Wait(*part.call);
    if (!done.ok()) return done.status();
    together.Add(*done);
    AddRows<Element, Sum>(part.result.View(), part.numbers->columns, sums.data(), c.cols);
  }
  for (int64_t row = 0; row < c.rows; ++row) {
    auto* const to = reinterpret_cast<Element*>(RowOf(c, row));
    for (int64_t k = 0; k < c.cols; ++k) {
      to[k] = static_cast<Element>(sums[static_cast<size_t>(row * c.cols + k)]);
    }
  }
  return together.Take();
}

absl::StatusOr<ComputeResult> AddUp(ShardWork& work, std::vector<Part>& parts, double beta,
                                    const DenseView* accumulate, const MutableDenseView& c) {
  switch (c.type) {
    case ValueType::kF64:
      return AddUp<double, double>(work, parts, beta, accumulate, c);
    case ValueType::kF16:
      return AddUp<Float16, float>(work, parts, beta, accumulate, c);
    case ValueType::kBF16:
      return AddUp<BFloat16, float>(work, parts, beta, accumulate, c);
    case ValueType::kF32:
    case ValueType::kI64:
      break;
  }
  return AddUp<float, float>(work, parts, beta, accumulate, c);
}

/// SpMM of which the operand, or the result, stays on the nodes.
absl::StatusOr<ComputeResult> SpmmHeld(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                       const Operand& b, const Destination& c,
                                       const SpmmOptions& spmm) {
  const MatrixInfo& info = sharded.info();
  if (absl::Status own = ShardBuffers::CheckOwn(sharded); !own.ok()) return own;
  if (spmm.transpose || spmm.values) {
    return absl::FailedPreconditionError(
        "with a matrix in shards, buffers are operands and results of SpMM that is not transposed, "
        "with the matrix's own values");
  }
  if (BufferOf(b) != nullptr && BufferOf(c) != nullptr &&
      BufferOf(b)->name() == BufferOf(c)->name()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is operand and result: other nodes would read rows of it that are "
                    "results already, take two buffers in turn",
                    BufferOf(b)->name()));
  }
  std::optional<DenseView> from, accumulate;
  std::optional<MutableDenseView> to;
  int64_t cols = 0;
  if (BufferOf(b) == nullptr) {
    const auto given = InMemory<DenseView>(home, b, info.type, info.cols, 0, "b");
    if (!given.ok()) return given.status();
    from = *given;
    cols = from->cols;
  }
  if (BufferOf(c) == nullptr) {
    const auto given = InMemory<MutableDenseView>(home, c, info.type, info.rows, cols, "c");
    if (!given.ok()) return given.status();
    to = *given;
    cols = to->cols;
  }
  // Without one it is what the result's place holds.
  std::optional<Operand> old = spmm.accumulate;
  if (spmm.beta != 0 && !old && to) old = ConstView(*to);
  if (spmm.beta != 0 && old && BufferOf(*old) == nullptr) {
    const auto given = InMemory<DenseView>(home, *old, info.type, info.rows, cols, "accumulate");
    if (!given.ok()) return given.status();
    accumulate = *given;
  }
  if (const DenseMatrix* const added = spmm.beta == 0 ? nullptr
                                       : old          ? BufferOf(*old)
                                                      : BufferOf(c)) {
    // Each node adds its own part, and sees no other.
    const auto whole = ShardBuffers::Renew(home, work, sharded, *added);
    if (!whole.ok()) return whole.status();
  }
  // Which rows of the caller's memory are a shard's, and no others are asked for.
  std::vector<Part> parts(info.shards.size());
  if (from || (sharded.partitioned() && (to || accumulate))) {
    auto known = PartsOf(home, work, sharded);
    if (!known.ok()) return known.status();
    parts = *std::move(known);
  } else {
    const auto consecutive = std::make_shared<const ShardNumbers>();
    for (Part& part : parts) part.numbers = consecutive;
  }
  const uint64_t version = to ? 0 : ShardBuffers::NewVersion();
  const bool apart =
      to && (sharded.partitioned() || Overlaps(from, *to) || Overlaps(accumulate, *to));
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    const ShardInfo& shard = info.shards[i];
    SpmmOptions how{.alpha = spmm.alpha, .beta = spmm.beta, .allow_tf32 = spmm.allow_tf32};
    if (accumulate) {
      how.accumulate = RowsFor(shard, *part.numbers, *accumulate, part.accumulate);
    } else if (spmm.beta != 0 && old) {
      how.accumulate = ShardBuffers::PartOf(*BufferOf(*old), shard);
    }
    const Operand operand = from ? Operand(ColumnsFor(*part.numbers, *from, part.b))
                                 : Operand(ShardBuffers::PartOf(*BufferOf(b), shard));
    if (apart) part.result = Scratch(info.type, shard.rows, to->cols);
    const Destination result = !to     ? Destination(ShardBuffers::PartOf(*BufferOf(c), shard))
                               : apart ? Destination(part.result.MutableView())
                                       : Destination(Rows(*to, shard.first_row, shard.rows));
    part.call = Spmm(RouteOf(home.shared_from_this(), shard.matrix), shard.matrix, operand, result,
                     how, work.options(), /*queue=*/"", /*in_shards=*/{}, version);
  }
  const absl::StatusOr<ComputeResult> done = WaitForAll(work, parts);
  if (!done.ok() || !apart) return done;
  for (size_t i = 0; i < parts.size(); ++i) {
    PutRows(parts[i].result.View(), info.shards[i], *parts[i].numbers, *to);
  }
  return done;
}

absl::StatusOr<ComputeResult> SpmmSharded(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                          const Operand& b, const Destination& c,
                                          const SpmmOptions& spmm) {
  if (BufferOf(b) != nullptr || BufferOf(c) != nullptr ||
      (spmm.accumulate && BufferOf(*spmm.accumulate) != nullptr)) {
    return SpmmHeld(home, work, sharded, b, c, spmm);
  }
  const MatrixInfo& info = sharded.info();
  const int64_t in = spmm.transpose ? info.rows : info.cols;
  const int64_t out = spmm.transpose ? info.cols : info.rows;
  const auto from = InMemory<DenseView>(home, b, info.type, in, 0, "b");
  if (!from.ok()) return from.status();
  const auto to = InMemory<MutableDenseView>(home, c, info.type, out, from->cols, "c");
  if (!to.ok()) return to.status();
  std::optional<DenseView> accumulate, values;
  if (spmm.beta != 0) {
    accumulate = ConstView(*to);
    if (spmm.accumulate) {
      const auto given =
          InMemory<DenseView>(home, *spmm.accumulate, info.type, out, from->cols, "accumulate");
      if (!given.ok()) return given.status();
      accumulate = *given;
    }
  }
  if (spmm.values) {
    const auto given = InMemory<DenseView>(home, *spmm.values, info.type, info.nnz, 1, "values");
    if (!given.ok()) return given.status();
    values = *given;
  }
  std::shared_ptr<const std::vector<int64_t>> begins;
  if (values) {
    auto known = BeginsOf(home, work, sharded);
    if (!known.ok()) return known.status();
    begins = *std::move(known);
  }
  absl::StatusOr<std::vector<Part>> parts = PartsOf(home, work, sharded);
  if (!parts.ok()) return parts.status();
  // One shard's result is not to be in the place of what another has yet to read.
  const bool apart = sharded.partitioned() || Overlaps(*from, *to) || Overlaps(accumulate, *to) ||
                     Overlaps(values, *to);
  for (size_t i = 0; i < parts->size(); ++i) {
    Part& part = (*parts)[i];
    const ShardInfo& shard = info.shards[i];
    SpmmOptions how{
        .transpose = spmm.transpose, .alpha = spmm.alpha, .allow_tf32 = spmm.allow_tf32};
    if (values)
      how.values = ValuesFor(sharded, i, *part.numbers, begins.get(), *values, part.values);
    std::optional<DenseView> operand;
    std::optional<MutableDenseView> result;
    if (spmm.transpose) {
      operand = RowsFor(shard, *part.numbers, *from, part.b);
      part.result = Scratch(info.type, shard.cols, from->cols);
      result = part.result.MutableView();
    } else {
      operand = ColumnsFor(*part.numbers, *from, part.b);
      if (accumulate) {
        how.beta = spmm.beta;
        how.accumulate = RowsFor(shard, *part.numbers, *accumulate, part.accumulate);
      }
      result = Rows(*to, shard.first_row, shard.rows);
      if (apart) {
        part.result = Scratch(info.type, shard.rows, from->cols);
        result = part.result.MutableView();
      }
    }
    part.call = Spmm(RouteOf(home.shared_from_this(), shard.matrix), shard.matrix, *operand,
                     *result, how, work.options());
  }
  if (spmm.transpose) {
    return AddUp(work, *parts, spmm.beta, accumulate ? &*accumulate : nullptr, *to);
  }
  const absl::StatusOr<ComputeResult> done = WaitForAll(work, *parts);
  if (!done.ok() || !apart) return done;
  for (size_t i = 0; i < parts->size(); ++i) {
    const Part& part = (*parts)[i];
    PutRows(part.result.View(), info.shards[i], *part.numbers, *to);
  }
  return done;
}

absl::StatusOr<ComputeResult> SddmmSharded(Connection& home, ShardWork& work,
                                           ShardedMatrix& sharded, const Operand& a,
                                           const Operand& b, const Destination& values,
                                           const SddmmOptions& sddmm) {
  const MatrixInfo& info = sharded.info();
  const auto left = InMemory<DenseView>(home, a, info.type, info.rows, 0, "a");
  if (!left.ok()) return left.status();
  const auto right = InMemory<DenseView>(home, b, info.type, info.cols, left->cols, "b");
  if (!right.ok()) return right.status();
  const auto to = InMemory<MutableDenseView>(home, values, info.type, info.nnz, 1, "values");
  if (!to.ok()) return to.status();
  std::optional<DenseView> own;
  if (sddmm.values) {
    const auto given =
        InMemory<DenseView>(home, *sddmm.values, info.type, info.nnz, 1, "SddmmOptions::values");
    if (!given.ok()) return given.status();
    own = *given;
  }
  const auto begins = BeginsOf(home, work, sharded);
  if (!begins.ok()) return begins.status();
  absl::StatusOr<std::vector<Part>> parts = PartsOf(home, work, sharded);
  if (!parts.ok()) return parts.status();
  const bool apart =
      sharded.partitioned() || Overlaps(*left, *to) || Overlaps(*right, *to) || Overlaps(own, *to);
  for (size_t i = 0; i < parts->size(); ++i) {
    Part& part = (*parts)[i];
    const ShardInfo& shard = info.shards[i];
    SddmmOptions how{.unscaled = sddmm.unscaled};
    if (own) how.values = ValuesFor(sharded, i, *part.numbers, begins->get(), *own, part.values);
    MutableDenseView result = Rows(*to, sharded.first_nonzeros()[i], shard.nnz);
    if (apart) {
      part.result = Scratch(info.type, shard.nnz, 1);
      result = part.result.MutableView();
    }
    part.call = Sddmm(RouteOf(home.shared_from_this(), shard.matrix), shard.matrix,
                      RowsFor(shard, *part.numbers, *left, part.a),
                      ColumnsFor(*part.numbers, *right, part.b), result, how, work.options());
  }
  const absl::StatusOr<ComputeResult> done = WaitForAll(work, *parts);
  if (!done.ok() || !apart) return done;
  for (size_t i = 0; i < parts->size(); ++i) {
    const Part& part = (*parts)[i];
    PutValues(part.result.View(), sharded, i, *part.numbers, begins->get(), *to);
  }
  return done;
}

}  // namespace

Call<ComputeResult> SpmmOrSharded(const std::shared_ptr<Connection>& connection,
                                  const std::string& name, const Operand& b, const Destination& c,
                                  const SpmmOptions& spmm, const CallOptions& options) {
  return OrSharded<ComputeResult>(
      connection, name, options,
      [raw = connection.get(), name, b, c, spmm](const CallOptions& call_options,
                                                 InShards<ComputeResult> in_shards) {
        return Spmm(WayOf(*raw, name, b, c, spmm.accumulate, spmm.values), name, b, c, spmm,
                    call_options, "", std::move(in_shards));
      },
      [b, c, spmm](Connection& home, ShardWork& work, ShardedMatrix& sharded) {
        return SpmmSharded(home, work, sharded, b, c, spmm);
      });
}

Call<ComputeResult> SddmmOrSharded(const std::shared_ptr<Connection>& connection,
                                   const std::string& name, const Operand& a, const Operand& b,
                                   const Destination& values, const SddmmOptions& sddmm,
                                   const CallOptions& options) {
  return OrSharded<ComputeResult>(
      connection, name, options,
      [raw = connection.get(), name, a, b, values, sddmm](const CallOptions& call_options,
                                                          InShards<ComputeResult> in_shards) {
        return Sddmm(WayOf(*raw, name, a, b, values, sddmm.values), name, a, b, values, sddmm,
                     call_options, "", std::move(in_shards));
      },
      [a, b, values, sddmm](Connection& home, ShardWork& work, ShardedMatrix& sharded) {
        return SddmmSharded(home, work, sharded, a, b, values, sddmm);
      });
}

}  // namespace client
}  // namespace sparsed
