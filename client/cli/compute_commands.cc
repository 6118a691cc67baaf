// spmm, sddmm.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/npy.h"

namespace sparsed::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// What both dense operations have to say; `wrote` describes the file.
Report DenseReport(const std::string& matrix, const NpyArray& result, const ComputeResult& how,
                   Clock::duration elapsed, const std::string& out, const std::string& wrote) {
  Report report;
  report.json = {{"matrix", matrix},
                 {"rows", result.rows},
                 {"cols", result.cols},
                 {"type", Name(result.type())},
                 {"plan", how.plan},
                 {"version", how.version},
                 {"batch", how.batch},
                 {"timings_ns", ToJson(how.timings)},
                 {"client_ns", std::chrono::nanoseconds(elapsed).count()},
                 {"out", out}};
  report.text = fmt::format(
      "plan    {}{}\n"
      "server  {}\n"
      "client  {}\n"
      "wrote   {}: {}, {}\n",
      how.plan, how.batch > 1 ? fmt::format(", one of {} at once", how.batch) : "",
      Text(how.timings), Milliseconds(elapsed), out, wrote, NpyTypeText(result.type()));
  return report;
}

/// S's values as they are given: the server's, or those of a file. Views one in `*read`.
absl::StatusOr<std::optional<Operand>> ReadValues(const Client& client, const std::string& values,
                                                  const MatrixInfo& matrix, NpyArray* read) {
  if (values.empty()) return std::nullopt;
  if (values.starts_with('@')) return client.DenseNamed(values.substr(1));
  absl::StatusOr<NpyArray> array = ReadNpy(values, matrix.type);
  if (!array.ok()) return array.status();
  *read = *std::move(array);
  if (read->rows != matrix.nnz || read->cols != 1) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {} x {}, expected {} x 1: {} has {} nonzeros", values, read->rows,
                    read->cols, matrix.nnz, matrix.name, Count(matrix.nnz)));
  }
  return read->View();
}

}  // namespace

absl::StatusOr<Report> Spmm(const Client& client, const SpmmArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const absl::StatusOr<NpyArray> operand = ReadNpy(arguments.operand, info->type);
  if (!operand.ok()) return operand.status();
  const int64_t rows = arguments.transpose ? info->cols : info->rows;

  absl::StatusOr<NpyArray> result =
      arguments.accumulate.empty()
          ? NpyArray::Zeros(info->type, rows, operand->cols, operand->one_dimensional)
          : ReadNpy(arguments.accumulate, info->type);
  if (!result.ok()) return result.status();
  if (result->rows != rows || result->cols != operand->cols) {
    return absl::InvalidArgumentError(fmt::format("{} is {} x {}, expected {} x {} like the result",
                                                  arguments.accumulate, result->rows, result->cols,
                                                  rows, operand->cols));
  }
  NpyArray read;
  const absl::StatusOr<std::optional<Operand>> values =
      ReadValues(client, arguments.values, *info, &read);
  if (!values.ok()) return values.status();
  const auto begin = Clock::now();
  const absl::StatusOr<ComputeResult> how = matrix.Spmm(operand->View(), result->MutableView(),
                                                        {.transpose = arguments.transpose,
                                                         .alpha = arguments.alpha,
                                                         .beta = arguments.beta,
                                                         .accumulate = {},
                                                         .allow_tf32 = arguments.allow_tf32,
                                                         .values = *values});
  const auto elapsed = Clock::now() - begin;
  if (!how.ok()) return how.status();
  if (absl::Status status = WriteNpy(arguments.out, *result); !status.ok()) return status;
  Report report = DenseReport(arguments.name, *result, *how, elapsed, arguments.out,
                              fmt::format("{} x {}", Count(result->rows), Count(result->cols)));
  if (arguments.allow_tf32) AddTf32Note(client, info->type, report);
  return report;
}

absl::StatusOr<Report> Sddmm(const Client& client, const SddmmArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const absl::StatusOr<NpyArray> left = ReadNpy(arguments.left, info->type);
  if (!left.ok()) return left.status();
  const absl::StatusOr<NpyArray> right = ReadNpy(arguments.right, info->type);
  if (!right.ok()) return right.status();
  absl::StatusOr<NpyArray> result = NpyArray::Zeros(info->type, info->nnz, 1, true);
  if (!result.ok()) return result.status();
  NpyArray read;
  const absl::StatusOr<std::optional<Operand>> values =
      ReadValues(client, arguments.values, *info, &read);
  if (!values.ok()) return values.status();

  const auto begin = Clock::now();
  const absl::StatusOr<ComputeResult> how =
      matrix.Sddmm(left->View(), right->View(), result->MutableView(),
                   {.unscaled = arguments.unscaled, .values = *values});
  const auto elapsed = Clock::now() - begin;
  if (!how.ok()) return how.status();
  if (absl::Status status = WriteNpy(arguments.out, *result); !status.ok()) return status;
  return DenseReport(arguments.name, *result, *how, elapsed, arguments.out,
                     fmt::format("{} values, one for each nonzero", Count(result->rows)));
}

}  // namespace sparsed::cli
