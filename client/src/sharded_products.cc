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
        "{} is a buffer: of products with a matrix in shards, operands and results of SpMM, the "
        "operand of SpMM with the transpose, and A and B of SDDMM may be buffers; all else goes "
        "with the request: files for sparsectl, memory of the caller's",
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

/// An operand of which each shard's node has its part, or which the caller has. Refers to it.
struct Given {
  const DenseMatrix* buffer = nullptr;
  std::optional<DenseView> view = {};
};

/// A buffer, or as InMemory.
absl::StatusOr<Given> GivenAs(Connection& home, const Operand& operand, ValueType type,
                              int64_t rows, int64_t cols, const char* what) {
  if (const DenseMatrix* const buffer = BufferOf(operand)) return Given{buffer};
  const auto view = InMemory<DenseView>(home, operand, type, rows, cols, what);
  if (!view.ok()) return view.status();
  return Given{nullptr, *view};
}

/// Of a buffer whose parts are multiplied where they lie, that they are all there, and of one
/// product: each node sees its own alone.
/// Otherwise as InMemory.
absl::Status CheckParts(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                        const DenseMatrix* buffer, int64_t rows, int64_t cols) {
  if (buffer == nullptr) return absl::OkStatus();
  const absl::StatusOr<DenseInfo> whole = ShardBuffers::Renew(home, work, sharded, *buffer);
  if (absl::IsNotFound(whole.status())) {
    // Of products NOT_FOUND would be the shards. As nodes say it.
    return absl::FailedPreconditionError(
        fmt::format("\"{}\" is not there: put it for the matrix (again)", buffer->name()));
  }
  if (!whole.ok()) return whole.status();
  const ValueType type = sharded.info().type;
  if (whole->type == type && whole->rows == rows && (cols == 0 || whole->cols == cols)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "\"{}\" is {} x {} {}, expected {} x {} {}", buffer->name(), whole->rows, whole->cols,
      Name(whole->type), rows, cols == 0 ? whole->cols : cols, Name(type)));
}

/// The shard's part of it: by the shard's rows, or by its columns.
Operand OperandFor(const Given& given, const ShardInfo& shard, const ShardNumbers& numbers,
                   bool by_rows, Scratch& scratch) {
  if (given.buffer != nullptr) return ShardBuffers::PartOf(*given.buffer, shard);
  return by_rows ? RowsFor(shard, numbers, *given.view, scratch)
                 : ColumnsFor(numbers, *given.view, scratch);
}

absl::StatusOr<ComputeResult> SpmmSharded(Connection& home, ShardWork& work, ShardedMatrix& sharded,
                                          const Operand& b, const Destination& c,
                                          const SpmmOptions& spmm) {
  const MatrixInfo& info = sharded.info();
  const int64_t in = spmm.transpose ? info.rows : info.cols;
  const int64_t out = spmm.transpose ? info.cols : info.rows;
  const DenseMatrix* const kept = BufferOf(c);
  if (kept != nullptr && spmm.transpose) {
    return absl::FailedPreconditionError(fmt::format(
        "\"{}\" cannot keep the result: of the transpose of a matrix in shards it is the sum of "
        "what all shards make, which the client adds up in memory of the caller's",
        kept->name()));
  }
  if (kept != nullptr && BufferOf(b) != nullptr && BufferOf(b)->name() == kept->name()) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is operand and result: other nodes would read rows of it that are "
                    "results already, take two buffers in turn",
                    kept->name()));
  }
  const absl::StatusOr<Given> from = GivenAs(home, b, info.type, in, 0, "b");
  if (!from.ok()) return from.status();
  int64_t cols = from->view ? from->view->cols : 0;
  std::optional<MutableDenseView> to;
  if (kept == nullptr) {
    const auto given = InMemory<MutableDenseView>(home, c, info.type, out, cols, "c");
    if (!given.ok()) return given.status();
    to = *given;
    cols = to->cols;
  }
  Given accumulate;
  std::optional<Operand> old = spmm.accumulate;  // what is given refers to it
  if (spmm.beta != 0) {
    // Without one it is what the result's place holds.
    if (!old) old = to ? Operand(ConstView(*to)) : Operand(*kept);
    // The client adds what all shards make of S^T B.
    if (spmm.transpose) {
      const auto view = InMemory<DenseView>(home, *old, info.type, out, cols, "accumulate");
      if (!view.ok()) return view.status();
      accumulate.view = *view;
    } else {
      const absl::StatusOr<Given> given = GivenAs(home, *old, info.type, out, cols, "accumulate");
      if (!given.ok()) return given.status();
      accumulate = *given;
    }
  }
  std::optional<DenseView> values;
  std::shared_ptr<const std::vector<int64_t>> begins;
  if (spmm.values) {
    const auto given = InMemory<DenseView>(home, *spmm.values, info.type, info.nnz, 1, "values");
    if (!given.ok()) return given.status();
    values = *given;
    auto known = BeginsOf(home, work, sharded);
    if (!known.ok()) return known.status();
    begins = *std::move(known);
  }
  if (from->buffer != nullptr || kept != nullptr || accumulate.buffer != nullptr) {
    if (absl::Status own = ShardBuffers::CheckOwn(sharded); !own.ok()) return own;
  }
  // (B of S itself is gathered by the nodes, which look at all of its parts.)
  absl::Status there =
      CheckParts(home, work, sharded, spmm.transpose ? from->buffer : nullptr, in, cols);
  there.Update(CheckParts(home, work, sharded, accumulate.buffer, out, cols));
  if (!there.ok()) return there;
  // Which rows of the caller's memory are a shard's, and no others are asked for.
  std::vector<Part> parts(info.shards.size());
  if (from->view || spmm.transpose ||
      (sharded.partitioned() && (to || accumulate.view || values))) {
    auto known = PartsOf(home, work, sharded);
    if (!known.ok()) return known.status();
    parts = *std::move(known);
  } else {
    const auto consecutive = std::make_shared<const ShardNumbers>();
    for (Part& part : parts) part.numbers = consecutive;
  }
  const uint64_t version = kept != nullptr ? ShardBuffers::NewVersion() : 0;
  // One shard's result is not to be in the place of what another has yet to read.
  const bool apart = to && (spmm.transpose || sharded.partitioned() || Overlaps(from->view, *to) ||
                            Overlaps(accumulate.view, *to) || Overlaps(values, *to));
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    const ShardInfo& shard = info.shards[i];
    SpmmOptions how{
        .transpose = spmm.transpose, .alpha = spmm.alpha, .allow_tf32 = spmm.allow_tf32};
    if (values) {
      how.values = ValuesFor(sharded, i, *part.numbers, begins.get(), *values, part.values);
    }
    if (spmm.beta != 0 && !spmm.transpose) {
      how.beta = spmm.beta;
      how.accumulate =
          OperandFor(accumulate, shard, *part.numbers, /*by_rows=*/true, part.accumulate);
    }
    const Operand operand = OperandFor(*from, shard, *part.numbers, spmm.transpose, part.b);
    if (apart) part.result = Scratch(info.type, spmm.transpose ? shard.cols : shard.rows, cols);
    const Destination result = kept != nullptr ? Destination(ShardBuffers::PartOf(*kept, shard))
                               : apart         ? Destination(part.result.MutableView())
                                       : Destination(Rows(*to, shard.first_row, shard.rows));
    part.call = Spmm(RouteOf(home.shared_from_this(), shard.matrix), shard.matrix, operand, result,
                     how, work.options(), /*queue=*/"", /*in_shards=*/{}, version);
  }
  if (spmm.transpose) {
    return AddUp(work, parts, spmm.beta, accumulate.view ? &*accumulate.view : nullptr, *to);
  }
  const absl::StatusOr<ComputeResult> done = WaitForAll(work, parts);
  if (!done.ok() || !apart) return done;
  for (size_t i = 0; i < parts.size(); ++i) {
    PutRows(parts[i].result.View(), info.shards[i], *parts[i].numbers, *to);
  }
  return done;
}

absl::StatusOr<ComputeResult> SddmmSharded(Connection& home, ShardWork& work,
                                           ShardedMatrix& sharded, const Operand& a,
                                           const Operand& b, const Destination& values,
                                           const SddmmOptions& sddmm) {
  const MatrixInfo& info = sharded.info();
  const absl::StatusOr<Given> left = GivenAs(home, a, info.type, info.rows, 0, "a");
  if (!left.ok()) return left.status();
  const absl::StatusOr<Given> right =
      GivenAs(home, b, info.type, info.cols, left->view ? left->view->cols : 0, "b");
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
  if (left->buffer != nullptr || right->buffer != nullptr) {
    if (absl::Status mine = ShardBuffers::CheckOwn(sharded); !mine.ok()) return mine;
  }
  const absl::Status there =
      CheckParts(home, work, sharded, left->buffer, info.rows, right->view ? right->view->cols : 0);
  if (!there.ok()) return there;
  const auto begins = BeginsOf(home, work, sharded);
  if (!begins.ok()) return begins.status();
  absl::StatusOr<std::vector<Part>> parts = PartsOf(home, work, sharded);
  if (!parts.ok()) return parts.status();
  const bool apart = sharded.partitioned() || Overlaps(left->view, *to) ||
                     Overlaps(right->view, *to) || Overlaps(own, *to);
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
                      OperandFor(*left, shard, *part.numbers, /*by_rows=*/true, part.a),
                      OperandFor(*right, shard, *part.numbers, /*by_rows=*/false, part.b), result,
                      how, work.options());
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
