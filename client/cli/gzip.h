// Files compressed as gzip does.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/output_file.h"

namespace sparsed::cli {

/// Appends what is in the file at `from` to `to`, compressed.
absl::Status Gzip(const std::string& from, OutputFile& to);

}  // namespace sparsed::cli
