// Sparse matrices as scipy.sparse.load_npz reads them: a zip archive of .npy arrays, stored.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/output_file.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// Takes row blocks one by one. The arrays grow in temporary files beside the archive, which is put
/// together at the end, so that a result may be larger than memory.
class NpzWriter : public MatrixWriter {
 public:
  static absl::StatusOr<NpzWriter> Open(const std::string& path);

  absl::Status Add(const RowBlock& block) override;
  /// Writes the archive and gives it its name. Without it nothing is left.
  absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz) override;

 private:
  NpzWriter(std::string path, OutputFile offsets, OutputFile columns, OutputFile values)
      : path_(std::move(path)),
        offsets_(std::move(offsets)),
        columns_(std::move(columns)),
        values_(std::move(values)) {}

  std::string path_;
  OutputFile offsets_;
  OutputFile columns_;
  OutputFile values_;
  ValueType type_ = ValueType::kF32;
};

}  // namespace sparsed::cli
