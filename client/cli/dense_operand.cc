#include "client/cli/dense_operand.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace sparsed::cli {

CLI::Validator AsBufferName() {
  return {[](std::string& text) {
            if (IsHeld(text)) text.erase(0, 1);
            return std::string();
          },
          ""};
}

std::string CheckHeld(const std::string& text) {
  return text == "@" ? "the name behind @ is missing" : "";
}

absl::StatusOr<DenseOperand> DenseOperand::Open(const Client& client, const std::string& text,
                                                ValueType type, const std::string& matrix) {
  DenseOperand operand;
  if (IsHeld(text)) {
    operand.held_ = client.DenseNamed(text.substr(1), matrix);
    const absl::StatusOr<DenseInfo> info = operand.held_->Info();
    const std::optional<std::string> node = client.MatrixNamed(matrix).RedirectedTo();
    if (absl::IsNotFound(info.status()) && node.has_value()) {
      return Reworded(
          info.status(),
          fmt::format("{}, and \"{}\" is on another node of the cluster: buffers for it "
                      "are put and multiplied with there (sparsectl --server={})",
                      std::string(info.status().message()), matrix, *node));
    }
    if (!info.ok()) return info.status();
    operand.rows_ = info->rows;
    operand.cols_ = info->cols;
    return operand;
  }
  absl::StatusOr<NpyArray> file = ReadNpy(text, type);
  if (!file.ok()) return file.status();
  operand.file_ = *std::move(file);
  operand.rows_ = operand.file_.rows;
  operand.cols_ = operand.file_.cols;
  return operand;
}

absl::StatusOr<DenseResult> DenseResult::Open(const Client& client, const ResultArguments& where,
                                              ValueType type, int64_t rows, int64_t cols,
                                              bool one_dimensional, const std::string& matrix,
                                              bool adds) {
  DenseResult result;
  result.where_ = where;
  result.type_ = type;
  if (where.keep_as.empty()) {
    absl::StatusOr<NpyArray> zeros = NpyArray::Zeros(type, rows, cols, one_dimensional);
    if (!zeros.ok()) return zeros.status();
    result.array_ = *std::move(zeros);
    return result;
  }
  result.held_ = client.DenseNamed(where.keep_as, matrix);
  const absl::StatusOr<DenseInfo> there = result.held_->Info();
  // Of a matrix in shards parts are gone with their nodes, or of different products.
  const bool in_parts = absl::IsFailedPrecondition(there.status()) && !matrix.empty() && !adds;
  if (in_parts) {
    if (absl::Status deleted = result.held_->Delete(); !deleted.ok()) return deleted;
  }
  if (in_parts || absl::IsNotFound(there.status())) {
    const auto made = client.PutZeros(where.keep_as, type, rows, cols, {.rows_of = matrix});
    if (!made.ok()) return made.status();
    result.made_ = true;
    return result;
  }
  if (!there.ok()) return there.status();
  if (there->rows != rows || there->cols != cols || there->type != type) {
    return absl::InvalidArgumentError(fmt::format(
        "the buffer {} is {} x {} {}, but the result is {} x {} {}: take another name, or "
        "`sparsectl buffers delete {}` first",
        where.keep_as, there->rows, there->cols, Name(there->type), rows, cols, Name(type),
        where.keep_as));
  }
  return result;
}

absl::Status DenseResult::Failed(absl::Status why) const {
  if (made_) held_->Delete().IgnoreError();
  return why;
}

Destination DenseResult::destination() {
  if (held_.has_value()) return *held_;
  return array_.MutableView();
}

absl::Status DenseResult::Finish(const std::string& what, Report& report) const {
  if (held_.has_value()) {
    report.json["kept_as"] = where_.keep_as;
    report.text += fmt::format("kept    @{}: {}, {}\n", where_.keep_as, what, Name(type_));
    return absl::OkStatus();
  }
  if (absl::Status status = WriteNpy(where_.out, array_); !status.ok()) return status;
  report.json["out"] = where_.out;
  report.text += fmt::format("wrote   {}: {}, {}\n", where_.out, what, NpyTypeText(type_));
  return absl::OkStatus();
}

}  // namespace sparsed::cli
