// generate dense, generate matrix: files to try things with, without a server.
#include <fmt/format.h>

#include <optional>
#include <random>
#include <set>

#include "client/cli/commands.h"
#include "client/cli/matrix_file.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/npy.h"

namespace sparsed::cli {
namespace {

/// In [-1, 1), the same on every machine.
double Uniform(std::mt19937_64& random) {
  return static_cast<double>(static_cast<int64_t>(random()) >> 10) * 0x1p-53;
}

/// In [0, n), n at least 1.
int64_t Below(std::mt19937_64& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
}

/// `count` of [0, n), ascending: Floyd's sampling without replacement.
std::set<int32_t> Sample(std::mt19937_64& random, int64_t n, int64_t count) {
  std::set<int32_t> chosen;
  for (int64_t last = n - count; last < n; ++last) {
    if (!chosen.insert(static_cast<int32_t>(Below(random, last + 1))).second) {
      chosen.insert(static_cast<int32_t>(last));
    }
  }
  return chosen;
}

}  // namespace

absl::StatusOr<Extent> ParseExtent(std::string_view text) {
  const std::optional<MatrixShape> shape = ParseShape(text, kMaxDimension);
  if (!shape || shape->rows < 1 || shape->cols < 1) {
    return absl::InvalidArgumentError(fmt::format(
        "\"{}\" is not ROWSxCOLUMNS, such as 1000x128, each from 1 to {}", text, kMaxDimension));
  }
  return Extent{shape->rows, shape->cols};
}

absl::StatusOr<NpyArray> RandomDense(ValueType type, int64_t rows, int64_t cols, uint64_t seed) {
  absl::StatusOr<NpyArray> array = NpyArray::Zeros(type, rows, cols, false);
  if (!array.ok()) return array.status();
  std::mt19937_64 random(seed);
  std::visit(
      [&random]<typename T>(std::vector<T>& values) {
        for (T& value : values) value = static_cast<T>(Uniform(random));
      },
      array->values);
  return array;
}

absl::StatusOr<Report> GenerateDense(const GenerateDenseArguments& arguments) {
  const absl::StatusOr<Extent> extent = ParseExtent(arguments.extent);
  if (!extent.ok()) return extent.status();
  const absl::StatusOr<ValueType> type = ParseType(arguments.type);
  if (!type.ok()) return type.status();
  const absl::StatusOr<NpyArray> array =
      RandomDense(*type, extent->rows, extent->cols, arguments.seed);
  if (!array.ok()) return array.status();
  if (absl::Status status = WriteNpy(arguments.out, *array); !status.ok()) return status;
  return Report{{{"rows", extent->rows},
                 {"cols", extent->cols},
                 {"type", Name(*type)},
                 {"seed", arguments.seed},
                 {"out", arguments.out}},
                fmt::format("wrote {}: {} x {} {}, uniform in [-1, 1)\n", arguments.out,
                            Count(extent->rows), Count(extent->cols), NpyTypeText(*type))};
}

absl::StatusOr<Report> GenerateMatrix(const GenerateMatrixArguments& arguments) {
  const absl::StatusOr<Extent> extent = ParseExtent(arguments.extent);
  if (!extent.ok()) return extent.status();
  const int64_t count = arguments.row_nonzeros;
  if (count > extent->cols) {
    return absl::InvalidArgumentError(
        fmt::format("--row-nonzeros: a row of {} columns has no room for {}", extent->cols, count));
  }
  const absl::StatusOr<std::unique_ptr<MatrixWriter>> writer = OpenOutput(arguments.out);
  if (!writer.ok()) return writer.status();
  std::mt19937_64 random(arguments.seed);
  std::vector<int64_t> offsets = {0, 0};
  std::vector<float> values(static_cast<size_t>(count));
  RowBlock block;
  block.result_rows = extent->rows;
  block.result_cols = extent->cols;
  block.rows = 1;
  block.row_offsets = offsets;
  for (int64_t row = 0; row < extent->rows; ++row) {
    const std::set<int32_t> chosen = Sample(random, extent->cols, count);
    const std::vector<int32_t> columns(chosen.begin(), chosen.end());
    for (float& value : values) value = static_cast<float>(Uniform(random));
    block.row_begin = row;
    offsets = {row * count, (row + 1) * count};
    block.column_indices = columns;
    block.values = std::span<const float>(values);
    if (absl::Status status = (*writer)->Add(block); !status.ok()) return status;
  }
  const int64_t nnz = extent->rows * count;
  const absl::Status finished = (*writer)->Finish(extent->rows, extent->cols, nnz);
  if (!finished.ok()) return finished;
  Report report{
      {{"rows", extent->rows},
       {"cols", extent->cols},
       {"nnz", nnz},
       {"seed", arguments.seed},
       {"out", arguments.out.path}},
      fmt::format("wrote {}: {} x {}, {}, {} in each row\n", arguments.out.path,
                  Count(extent->rows), Count(extent->cols), Counted(nnz, "nonzero"), Count(count))};
  AddNote((*writer)->Note(), report);
  return report;
}

}  // namespace sparsed::cli
