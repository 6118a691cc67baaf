// A file whose name says how it is compressed once it is complete.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/output_file.h"

namespace sparsed::cli {

/// An OutputFile, compressed at the end if it ends in .gz, .xz or .zst, so that what was written
/// can be overwritten until then.
class PackedFile {
 public:
  static absl::StatusOr<PackedFile> Create(const std::string& path);

  absl::Status Write(std::string_view text) { return file_.Write(text); }
  absl::Status Patch(size_t offset, std::string_view text) { return file_.Patch(offset, text); }
  absl::Status Commit();

 private:
  PackedFile(OutputFile file, std::optional<OutputFile> compressed)
      : file_(std::move(file)), compressed_(std::move(compressed)) {}

  OutputFile file_;
  std::optional<OutputFile> compressed_;  ///< what is to be of `file_`, which has no name then
};

}  // namespace sparsed::cli
