// Files compressed as gzip, xz and zstd do.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/cli/output_file.h"

namespace sparsed::cli {

/// What the ending of a name asks for: "gzip" (.gz), "xz" (.xz), "Zstandard" (.zst), or nothing.
std::string_view CompressionByName(std::string_view path);
/// The name without the ending that asks for it.
std::string_view WithoutCompression(std::string_view path);

/// Appends what is in the file at `from` to `to`, compressed.
absl::Status Compress(const std::string& from, std::string_view compression, OutputFile& to);

}  // namespace sparsed::cli
