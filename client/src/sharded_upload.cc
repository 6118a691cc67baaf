// Uploads a matrix in shards: each a matrix of its own, with the numbers of its columns, and of its
// rows if they are no consecutive ones; then the whole, which is made of them at once.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <variant>

#include "base/status.h"
#include "client/src/arrays.h"
#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "client/src/shard_cut.h"
#include "client/src/sharded_calls.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed {
inline namespace client {
namespace {

std::string NewUpload() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// What nobody multiplies with is prepared for what takes least.
const std::vector<ProblemSignature> kNoProducts = {{.operation = Operation::kSddmm, .k = 1}};

/// Values of rows whose nonzeros begin there, one after the other; of consecutive rows a part of
/// what there is.
Values Gather(const ConstValues& values, const CutRows& cut) {
  return std::visit(
      [&cut](const auto& from) -> Values {
        using Element = std::remove_const_t<typename std::decay_t<decltype(from)>::element_type>;
        std::vector<Element> to;
        to.reserve(cut.column_indices.size());
        for (size_t row = 0; row < cut.begins.size(); ++row) {
          const auto begin = from.begin() + cut.begins[row];
          to.insert(to.end(), begin, begin + (cut.row_offsets[row + 1] - cut.row_offsets[row]));
        }
        return to;
      },
      values);
}

class ShardedUpload {
 public:
  ShardedUpload(Connection& home, ShardWork& work, CallState<Matrix>& state, const Matrix& handle,
                const CsrView& matrix, const UploadOptions& upload)
      : home_(home),
        work_(work),
        state_(state),
        handle_(handle),
        matrix_(matrix),
        upload_(upload),
        number_(NewUpload()) {}

  absl::StatusOr<Matrix> Run() {
    if (absl::Status free = CheckName(); !free.ok()) return free;
    if (absl::Status sent = SendAll(); !sent.ok()) return TakenBack(std::move(sent));
    absl::StatusOr<MatrixInfo> made = Make();
    if (made.ok()) {
      auto sharded = ShardedOf(*std::move(made));
      if (!sharded.ok()) return sharded.status();
      for (size_t shard = 0; shard < numbers_.size(); ++shard) {
        (*sharded)->SetNumbers(shard, std::move(numbers_[shard]));
      }
      home_.nodes().LearnSharded(handle_.name(), *std::move(sharded));
      return handle_;
    }
    return WasRefused(made.status()) ? TakenBack(made.status()) : made.status();
  }

 private:
  /// It is not made, and nothing of it is; after other errors it may be.
  static bool WasRefused(const absl::Status& status) {
    return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
           absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) ||
           absl::IsPermissionDenied(status) || absl::IsResourceExhausted(status) ||
           absl::IsAborted(status);
  }

  /// Before all of it is sent for nothing.
  absl::Status CheckName() {
    Call<MatrixInfo> call = GetMatrix(RouteOf(home_.shared_from_this(), handle_.name()),
                                      handle_.name(), work_.options());
    const absl::StatusOr<MatrixInfo> present = work_.Wait(call);
    if (absl::IsNotFound(present.status())) return absl::OkStatus();
    if (!present.ok()) return present.status();
    if (!upload_.replace) {
      return absl::AlreadyExistsError(fmt::format(
          "there is a matrix named '{}' already; delete it, or replace it (`replace`, sparsectl's "
          "--replace)",
          handle_.name()));
    }
    if (!present->shards.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        fmt::format("'{}' is a matrix that is not in shards: delete it first", handle_.name()));
  }

  absl::Status SendAll() {
    const int shards = upload_.shards;
    std::vector<std::vector<int32_t>> parts;
    if (!upload_.partition.empty()) {
      auto cut = CutByPartition(upload_.partition, matrix_.rows, shards);
      if (!cut.ok()) return cut.status();
      parts = *std::move(cut);
    } else {
      const std::vector<int64_t> firsts = CutByNonzeros(matrix_, shards);
      for (size_t shard = 0; shard + 1 < firsts.size(); ++shard) {
        parts.emplace_back(static_cast<size_t>(firsts[shard + 1] - firsts[shard]));
        std::iota(parts.back().begin(), parts.back().end(), static_cast<int32_t>(firsts[shard]));
      }
    }
    SetPlaces(parts);
    std::vector<int32_t> seen(static_cast<size_t>(matrix_.cols));
    for (size_t shard = 0; shard < parts.size(); ++shard) {
      if (absl::Status sent = SendShard(shard, parts[shard], seen); !sent.ok()) return sent;
      parts[shard] = {};
    }
    return absl::OkStatus();
  }

  absl::Status SendShard(size_t shard, std::vector<int32_t>& rows, std::vector<int32_t>& seen) {
    std::vector<int32_t> even;  // rows of operands, where they are not the matrix's
    if (matrix_.rows != matrix_.cols) {
      const auto [first, end] = EvenPart(matrix_.cols, shard, static_cast<size_t>(upload_.shards));
      even.resize(static_cast<size_t>(end - first));
      std::iota(even.begin(), even.end(), static_cast<int32_t>(first));
    }
    const bool square = matrix_.rows == matrix_.cols;
    CutRows cut = Cut(matrix_, rows, {.own = square ? rows : even, .places = places_}, seen);
    const bool reordered = !std::ranges::is_sorted(cut.columns);
    if (reordered && !upload_.sort) {
      if (absl::Status canonical = CheckAscending(rows); !canonical.ok()) return canonical;
    }
    const std::string name = fmt::format("shards:{}/{}", number_, shard);
    const auto count = static_cast<int64_t>(rows.size());
    const auto columns = static_cast<int64_t>(cut.columns.size());
    UploadOptions how{.sort = upload_.sort || reordered,
                      .sum_duplicates = upload_.sum_duplicates,
                      .values_are_ones = upload_.values_are_ones,
                      .expected = upload_.expected,
                      .replicas = upload_.replicas};
    const Values values =
        upload_.values_are_ones ? ZeroValues(TypeOf(matrix_.values)) : Gather(matrix_.values, cut);
    CsrView view{.rows = count,
                 .cols = columns,
                 .row_offsets = std::span<const int64_t>(cut.row_offsets),
                 .column_indices = cut.column_indices,
                 .values = {}};
    std::visit([&view](const auto& of) { view.values = std::span(of); }, values);
    if (upload_.progress) {
      how.progress = [this](int64_t sent, int64_t /*total*/) {
        state_.Post([progress = upload_.progress, sent = before_ + sent, total = total_] {
          progress(sent, total);
        });
      };
    }
    if (absl::Status sent = Send(name, view, how); !sent.ok()) return sent;
    before_ += static_cast<int64_t>(cut.row_offsets.size() * sizeof(int64_t) +
                                    cut.column_indices.size() * sizeof(int32_t)) +
               (upload_.values_are_ones ? 0 : ValueBytes(view));
    const bool partitioned = !upload_.partition.empty();
    std::vector<double> places;
    places.reserve(cut.columns.size());
    for (const int32_t column : cut.columns) {
      places.push_back(places_[static_cast<size_t>(column)]);
    }
    if (absl::Status sent = SendNumbers(name + "/columns", cut.columns, matrix_.cols, places);
        !sent.ok()) {
      return sent;
    }
    if (partitioned) {
      const std::vector<double> begins(cut.begins.begin(), cut.begins.end());
      if (absl::Status sent = SendNumbers(name + "/rows", rows, matrix_.rows, begins); !sent.ok()) {
        return sent;
      }
    } else {
      rows.clear();
      cut.begins.clear();
    }
    numbers_.push_back({std::move(cut.columns), std::move(rows), std::move(cut.begins)});
    return absl::OkStatus();
  }

  /// INVALID_ARGUMENT unless columns ascend in these rows, which the shard is sorted anew for: the
  /// server would not refuse it.
  absl::Status CheckAscending(const std::vector<int32_t>& rows) const {
    for (const int32_t row : rows) {
      const auto [begin, end] = NonzerosOf(matrix_, row);
      for (int64_t i = begin + 1; i < end; ++i) {
        const int32_t before = matrix_.column_indices[static_cast<size_t>(i - 1)];
        const int32_t column = matrix_.column_indices[static_cast<size_t>(i)];
        if (before < column) continue;
        return absl::InvalidArgumentError(fmt::format(
            "column_indices[{}] = {} in row {} follows {}: columns must ascend without duplicates; "
            "set `sort` (sparsectl's --sort) for those that don't",
            i, column, row, before));
      }
    }
    return absl::OkStatus();
  }

  static int64_t ValueBytes(const CsrView& view) {
    return static_cast<int64_t>(view.column_indices.size() * SizeOf(TypeOf(view.values)));
  }

  /// A matrix whose row j has its one nonzero, values[j], in column numbers[j].
  absl::Status SendNumbers(const std::string& name, const std::vector<int32_t>& numbers,
                           int64_t cols, const std::vector<double>& values) {
    std::vector<int64_t> offsets(numbers.size() + 1);
    std::iota(offsets.begin(), offsets.end(), 0);
    const CsrView view{.rows = static_cast<int64_t>(numbers.size()),
                       .cols = cols,
                       .row_offsets = std::span<const int64_t>(offsets),
                       .column_indices = numbers,
                       .values = std::span<const double>(values)};
    return Send(name, view, {.expected = kNoProducts, .replicas = upload_.replicas});
  }

  /// Says of each column which shard's node has that row of operands that stay there, and which of
  /// its rows it is: row r of shard i as i * 2^31 + r.
  void SetPlaces(const std::vector<std::vector<int32_t>>& parts) {
    constexpr double kRowsOfShard = 2147483648.0;
    places_.resize(static_cast<size_t>(matrix_.cols));
    for (size_t shard = 0; shard < parts.size(); ++shard) {
      double place = static_cast<double>(shard) * kRowsOfShard;
      if (matrix_.rows == matrix_.cols) {
        for (const int32_t row : parts[shard]) places_[static_cast<size_t>(row)] = place++;
        continue;
      }
      const auto [first, end] = EvenPart(matrix_.cols, shard, parts.size());
      for (int64_t row = first; row < end; ++row) places_[static_cast<size_t>(row)] = place++;
    }
  }

  absl::Status Send(const std::string& name, const CsrView& view, const UploadOptions& how) {
    sent_.push_back(name);
    const std::shared_ptr<Connection> home = home_.shared_from_this();
    Call<Matrix> call = Upload(RouteOf(home, name), name, handle_, view, how, work_.options());
    return work_.Wait(call).status();
  }

  absl::StatusOr<MatrixInfo> Make() {
    v1::MakeShardedRequest request;
    request.set_name(handle_.name());
    request.set_rows(matrix_.rows);
    request.set_cols(matrix_.cols);
    request.set_upload(number_);
    request.set_shards(upload_.shards);
    request.set_partitioned(!upload_.partition.empty());
    request.set_replace(upload_.replace);
    Call<MatrixInfo> call = LaunchUnary<v1::MatrixInfo, MatrixInfo>(
        home_.shared_from_this(), "/sparsed.v1.Catalog/MakeSharded", work_.options(),
        /*safe_to_repeat=*/false, request,
        [](const v1::MatrixInfo& reply) { return FromProto(reply); });
    return work_.Wait(call);
  }

  /// `failed`, when what was sent is deleted again. What cannot be, as nodes or the directory are
  /// away, the cluster drops a day later, and the status says so: nobody waits for longer than
  /// this.
  absl::Status TakenBack(absl::Status failed) {
    constexpr std::chrono::seconds kMost(5);
    std::vector<Call<void>> calls;
    calls.reserve(sent_.size());
    for (const std::string& name : sent_) {
      calls.push_back(
          DeleteMatrix(RouteOf(home_.shared_from_this(), name), name, {.timeout = kMost}));
    }
    int left = 0;
    for (Call<void>& call : calls) {
      const absl::Status deleted = call.Wait();
      if (!deleted.ok() && !absl::IsNotFound(deleted)) ++left;
    }
    if (left == 0) return failed;
    return Reworded(failed, fmt::format("{} (of the {} matrices that this upload sent for its "
                                        "shards {} could not be deleted: the cluster drops them "
                                        "in a day)",
                                        std::string(failed.message()), sent_.size(), left));
  }

  Connection& home_;
  ShardWork& work_;
  CallState<Matrix>& state_;
  const Matrix handle_;
  const CsrView matrix_;
  const UploadOptions upload_;
  const std::string number_;
  std::vector<std::string> sent_;
  std::vector<ShardNumbers> numbers_;
  std::vector<double> places_;  ///< by column, see SetPlaces
  int64_t before_ = 0;          ///< bytes of the shards before
  const int64_t total_ = (matrix_.rows + upload_.shards) * int64_t{8} +
                         static_cast<int64_t>(matrix_.column_indices.size()) * 4 +
                         (upload_.values_are_ones ? 0 : ValueBytes(matrix_));
};

absl::Status CheckUpload(const CsrView& matrix, const UploadOptions& upload) {
  if (upload.shards < 1 || upload.shards > kMostShards) {
    return absl::InvalidArgumentError(
        fmt::format("shards is {}, expected 1 to {}", upload.shards, kMostShards));
  }
  if (upload.shards > matrix.rows) {
    return absl::InvalidArgumentError(fmt::format("{} shards of {} {}: each needs one at least",
                                                  upload.shards, matrix.rows,
                                                  matrix.rows == 1 ? "row" : "rows"));
  }
  if (!upload.pattern_hash.empty() || upload.time_to_live.count() != 0) {
    return absl::InvalidArgumentError(
        "pattern_hash and time_to_live are for matrices that are not in shards");
  }
  if (!upload.partition.empty() && upload.sum_duplicates) {
    return absl::InvalidArgumentError(
        "sum_duplicates is for shards of consecutive rows: sum them up before");
  }
  const auto nnz = static_cast<int64_t>(matrix.column_indices.size());
  if (!upload.values_are_ones && Length(matrix.values) != nnz) {
    return absl::InvalidArgumentError(
        fmt::format("values has {} elements, column_indices {}", Length(matrix.values), nnz));
  }
  return CheckCut(matrix);
}

}  // namespace

Call<Matrix> UploadSharded(const std::shared_ptr<Connection>& connection, const Matrix& handle,
                           const CsrView& matrix, const UploadOptions& upload,
                           const CallOptions& options) {
  absl::Status right = CheckUpload(matrix, upload);
  if (right.ok() && !connection->nodes().in_cluster()) {
    right = absl::FailedPreconditionError(
        "shards are for the nodes of a cluster, and the server is none (--etcd)");
  }
  if (!right.ok()) return Refused<Matrix>(right);
  auto state = std::make_shared<CallState<Matrix>>();
  InShards<Matrix> in_shards;
  in_shards.work = std::make_shared<ShardWork>(options, connection->options());
  in_shards.run = [raw = connection.get(), state = state.get(), handle, matrix, upload](
                      ShardWork& work, const absl::Status&) {
    return ShardedUpload(*raw, work, *state, handle, matrix, upload).Run();
  };
  client::Start(in_shards, state, absl::OkStatus());
  return Call<Matrix>(std::move(state), [connection, work = in_shards.work] { work->Cancel(); });
}

}  // namespace client
}  // namespace sparsed
