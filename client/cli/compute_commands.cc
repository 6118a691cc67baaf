// spmm, sddmm, spgemm.
#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/matrix_market.h"
#include "client/cli/npy.h"
#include "client/cli/npz_writer.h"
#include "client/cli/progress_bar.h"

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

Report SpgemmReport(const SpgemmArguments& arguments, const SpgemmResult& how,
                    Clock::duration elapsed) {
  Report report;
  report.json = {{"left", arguments.left},
                 {"right", arguments.right},
                 {"transpose_left", arguments.options.transpose_left},
                 {"transpose_right", arguments.options.transpose_right},
                 {"semiring", Name(arguments.options.semiring)},
                 {"rows", how.rows},
                 {"cols", how.cols},
                 {"nnz", how.nnz},
                 {"plan", how.plan},
                 {"version", how.version},
                 {"timings_ns", ToJson(how.timings)},
                 {"client_ns", std::chrono::nanoseconds(elapsed).count()}};
  if (!arguments.options.mask.empty()) report.json["mask"] = arguments.options.mask;
  std::string where = "received and dropped";
  if (!arguments.out.empty()) {
    report.json["out"] = arguments.out;
    where = fmt::format("wrote {}", arguments.out);
  } else if (!arguments.name.empty()) {
    report.json["name"] = arguments.name;
    where = fmt::format("kept as {}", arguments.name);
  }
  report.text = fmt::format(
      "plan    {}\n"
      "server  {}\n"
      "client  {}\n"
      "result  {} x {}, {} nonzeros, {}\n",
      how.plan, Text(how.timings), Milliseconds(elapsed), Count(how.rows), Count(how.cols),
      Count(how.nnz), where);
  return report;
}

/// Streams the product through `add`, then `finish` gets its size.
absl::StatusOr<SpgemmResult> Stream(
    const Client& client, const SpgemmArguments& arguments, const RowBlockCallback& add,
    const std::function<absl::Status(int64_t rows, int64_t cols, int64_t nnz)>& finish) {
  ProgressBar bar;
  absl::StatusOr<SpgemmResult> result =
      client.MatrixNamed(arguments.left)
          .Spgemm(
              client.MatrixNamed(arguments.right),
              [&](const RowBlock& block) {
                bar.Show("receiving", block.row_begin + block.rows, block.result_rows);
                return add(block);
              },
              arguments.options);
  if (!result.ok()) return result;
  if (absl::Status status = finish(result->rows, result->cols, result->nnz); !status.ok()) {
    return status;
  }
  return result;
}

template <typename Writer>
absl::StatusOr<SpgemmResult> StreamTo(const Client& client, const SpgemmArguments& arguments) {
  absl::StatusOr<Writer> writer = Writer::Open(arguments.out);
  if (!writer.ok()) return writer.status();
  return Stream(
      client, arguments, [&writer](const RowBlock& block) { return writer->Add(block); },
      [&writer](int64_t rows, int64_t cols, int64_t nnz) {
        return writer->Finish(rows, cols, nnz);
      });
}

absl::StatusOr<SpgemmResult> RunSpgemm(const Client& client, const SpgemmArguments& arguments) {
  if (!arguments.name.empty()) {
    return client.MatrixNamed(arguments.left)
        .SpgemmKeep(client.MatrixNamed(arguments.right), arguments.name,
                    {.replace = arguments.replace, .spgemm = arguments.options});
  }
  if (arguments.discard) {
    return Stream(
        client, arguments, [](const RowBlock&) { return absl::OkStatus(); },
        [](int64_t, int64_t, int64_t) { return absl::OkStatus(); });
  }
  return arguments.out.ends_with(".npz") ? StreamTo<NpzWriter>(client, arguments)
                                         : StreamTo<MatrixMarketWriter>(client, arguments);
}

}  // namespace

absl::StatusOr<Semiring> ParseSemiring(std::string_view text) {
  for (const Semiring semiring :
       {Semiring::kSumProduct, Semiring::kBoolean, Semiring::kMinPlus, Semiring::kPlusPair}) {
    if (text == Name(semiring)) return semiring;
  }
  return absl::InvalidArgumentError(
      fmt::format("{} is none of sum-product, boolean, min-plus and plus-pair", text));
}

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

absl::StatusOr<Report> Spgemm(const Client& client, const SpgemmArguments& arguments) {
  const auto begin = Clock::now();
  const absl::StatusOr<SpgemmResult> how = RunSpgemm(client, arguments);
  if (!how.ok()) return how.status();
  return SpgemmReport(arguments, *how, Clock::now() - begin);
}

}  // namespace sparsed::cli
