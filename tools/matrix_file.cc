#include "tools/reorder/matrix_file.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "client/cli/matrix_market.h"
#include "client/cli/output_file.h"

namespace sparsed::tools {

absl::StatusOr<SparseMatrix> ReadMatrix(const std::string& path) {
  absl::StatusOr<CsrMatrix> file = cli::ReadMatrixMarket(path, ValueType::kF64);
  if (!file.ok()) return file.status();
  return SparseMatrix{file->rows, file->cols, std::move(file->row_offsets),
                      std::move(file->column_indices),
                      std::get<std::vector<double>>(std::move(file->values))};
}

absl::Status WriteOrder(const std::string& path, const std::vector<int32_t>& order) {
  absl::StatusOr<cli::OutputFile> file = cli::OutputFile::Create(path);
  if (!file.ok()) return file.status();
  std::string text;
  for (const int32_t row : order) text += fmt::format("{}\n", row);
  if (absl::Status status = file->Write(text); !status.ok()) return status;
  return file->Commit();
}

}  // namespace sparsed::tools
