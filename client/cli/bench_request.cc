#include "client/cli/bench_request.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/machine.h"

namespace sparsed::cli {
namespace {

/// What a killed bench leaves on the server goes by itself after that.
constexpr std::chrono::minutes kTimeToLive{10};

/// A buffer's name.
std::string HeldName(std::string_view what) { return fmt::format("bench.{}.{}", getpid(), what); }
std::string HeldResult(int worker) { return HeldName(fmt::format("c{}", worker)); }

}  // namespace

BenchRequests::BenchRequests(const Client& client, const MatrixInfo& matrix,
                             const BenchOptions& options)
    : client_(client), matrix_(matrix), options_(options) {}

BenchRequests::~BenchRequests() {
  for (const DenseMatrix& held : held_) held.Delete().IgnoreError();
}

absl::StatusOr<std::unique_ptr<BenchRequests>> BenchRequests::Make(const Client& client,
                                                                   const MatrixInfo& matrix,
                                                                   const BenchOptions& options) {
  std::unique_ptr<BenchRequests> requests(new BenchRequests(client, matrix, options));
  if (absl::Status status = requests->Prepare(); !status.ok()) return status;
  return requests;
}

double BenchRequests::flops() const {
  if (sparse()) return 0;
  return 2.0 * static_cast<double>(matrix_.nnz) * static_cast<double>(options_.k);
}

int64_t BenchRequests::result_rows() const {
  if (options_.operation == Operation::kSddmm) return matrix_.nnz;
  return options_.transpose ? matrix_.cols : matrix_.rows;
}

std::string BenchRequests::InShards() const {
  return matrix_.shards.empty() ? std::string() : matrix_.name;
}

PutOptions BenchRequests::HowToPut() const {
  return {.owner = "bench", .time_to_live = kTimeToLive, .rows_of = InShards()};
}

absl::Status BenchRequests::CheckNode() const {
  if (!matrix_.shards.empty() || matrix_.nodes.empty()) return absl::OkStatus();
  const absl::StatusOr<ServerInfo> server = client_.GetServerInfo();
  if (!server.ok()) return server.status();
  const std::vector<std::string>& nodes = matrix_.nodes;
  if (server->node.empty() || std::ranges::find(nodes, server->node) != nodes.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("held operands lie on the node that is asked, {}, and \"{}\" is on {}: ask that "
                  "one (--server=, sparsectl cluster list)",
                  server->node, matrix_.name, fmt::join(nodes, ", ")));
}

absl::Status BenchRequests::Prepare() {
  if (sparse()) return absl::OkStatus();
  const bool held = options_.transport == BenchTransport::kHeld;
  if (held) {
    if (absl::Status here = CheckNode(); !here.ok()) return here;
  } else {
    const double bytes = static_cast<double>(options_.workers) *
                         static_cast<double>(result_rows()) * static_cast<double>(result_cols()) *
                         static_cast<double>(SizeOf(matrix_.type));
    absl::Status fits = CheckFitsMemory(
        fmt::format("{} results of {} x {}", options_.workers, result_rows(), result_cols()), bytes,
        "fewer at once (--concurrency), a smaller --k, or --transport=held");
    if (!fits.ok()) return fits;
  }
  if (options_.operation == Operation::kSddmm) {
    absl::Status left = PrepareOperand(matrix_.rows, "a", 1, left_);
    if (!left.ok()) return left;
  }
  absl::Status right =
      PrepareOperand(options_.transpose ? matrix_.rows : matrix_.cols, "b", 2, right_);
  if (!right.ok()) return right;
  for (int worker = 0; held && worker < options_.workers; ++worker) {
    absl::StatusOr<DenseMatrix> result = client_.PutZeros(HeldResult(worker), matrix_.type,
                                                          result_rows(), result_cols(), HowToPut());
    if (!result.ok()) return result.status();
    held_.push_back(*result);
    held_bytes_ += result_rows() * result_cols() * static_cast<int64_t>(SizeOf(matrix_.type));
  }
  return absl::OkStatus();
}

absl::Status BenchRequests::PrepareOperand(int64_t rows, const char* what, uint64_t seed,
                                           std::optional<NpyArray>& numbers) {
  absl::StatusOr<NpyArray> random = RandomDense(matrix_.type, rows, options_.k, seed);
  if (!random.ok()) return random.status();
  numbers = *std::move(random);
  if (options_.transport != BenchTransport::kHeld) return absl::OkStatus();
  absl::StatusOr<DenseMatrix> held = client_.PutDense(HeldName(what), numbers->View(), HowToPut());
  if (!held.ok()) return held.status();
  held_.push_back(*held);
  held_bytes_ += rows * options_.k * static_cast<int64_t>(SizeOf(matrix_.type));
  return absl::OkStatus();
}

absl::StatusOr<LoadRequest> BenchRequests::Of(const Client& client) const {
  const auto ends = std::make_shared<Ends>();
  const auto take = [&](const std::optional<NpyArray>& numbers, const char* what,
                        std::optional<Operand>& end) {
    if (!numbers.has_value()) return absl::OkStatus();
    absl::StatusOr<Operand> operand = OperandOf(client, *numbers, what, *ends);
    if (operand.ok()) end = *std::move(operand);
    return operand.status();
  };
  if (absl::Status status = take(left_, "a", ends->left); !status.ok()) return status;
  if (absl::Status status = take(right_, "b", ends->right); !status.ok()) return status;
  for (int worker = 0; !sparse() && worker < options_.workers; ++worker) {
    absl::StatusOr<Destination> result = ResultOf(client, worker, *ends);
    if (!result.ok()) return result.status();
    ends->results.push_back(*std::move(result));
  }
  return [this, client, ends](int worker, int64_t) { return Run(client, *ends, worker); };
}

absl::StatusOr<Operand> BenchRequests::OperandOf(const Client& client, const NpyArray& numbers,
                                                 const char* what, Ends& ends) const {
  if (options_.transport == BenchTransport::kHeld) {
    return client.DenseNamed(HeldName(what), InShards());
  }
  if (options_.transport == BenchTransport::kStream) return numbers.View();
  absl::StatusOr<SharedMatrix> shared =
      client.AllocateShared(numbers.rows, numbers.cols, matrix_.type);
  if (!shared.ok()) return shared.status();
  std::visit(
      [&]<typename T>(const std::vector<T>& values) {
        std::copy(values.begin(), values.end(), static_cast<T*>(shared->data()));
      },
      numbers.values);
  ends.shared.push_back(*shared);
  return shared->ConstView();
}

absl::StatusOr<Destination> BenchRequests::ResultOf(const Client& client, int worker,
                                                    Ends& ends) const {
  if (options_.transport == BenchTransport::kHeld) {
    return client.DenseNamed(HeldResult(worker), InShards());
  }
  if (options_.transport == BenchTransport::kShared) {
    absl::StatusOr<SharedMatrix> shared =
        client.AllocateShared(result_rows(), result_cols(), matrix_.type);
    if (!shared.ok()) return shared.status();
    ends.shared.push_back(*shared);
    return shared->View();
  }
  absl::StatusOr<NpyArray> array =
      NpyArray::Zeros(matrix_.type, result_rows(), result_cols(), false);
  if (!array.ok()) return array.status();
  ends.arrays.push_back(std::make_unique<NpyArray>(*std::move(array)));
  return ends.arrays.back()->MutableView();
}

absl::StatusOr<LoadSample> BenchRequests::Run(const Client& client, const Ends& ends,
                                              int worker) const {
  const Matrix matrix = client.MatrixNamed(options_.name);
  if (sparse()) {
    const absl::StatusOr<SpgemmResult> how =
        matrix.Spgemm(matrix, [](const RowBlock&) { return absl::OkStatus(); });
    if (!how.ok()) return how.status();
    return LoadSample{how->timings, how->plan, Transport::kStream, 0};
  }
  const Destination& result = ends.results[static_cast<size_t>(worker)];
  const absl::StatusOr<ComputeResult> how =
      options_.operation == Operation::kSpmm
          ? matrix.Spmm(*ends.right, result,
                        {.transpose = options_.transpose, .allow_tf32 = options_.allow_tf32})
          : matrix.Sddmm(*ends.left, *ends.right, result);
  if (!how.ok()) return how.status();
  return LoadSample{how->timings, how->plan, how->transport, flops()};
}

}  // namespace sparsed::cli
