// Zstandard, where there is its library: with_zstandard.cc, or else without_zstandard.cc.
#pragma once

#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "client/cli/output_file.h"

namespace sparsed::cli {

/// Whether there is.
bool HasZstandard();

/// `compressed` as it was before. INVALID_ARGUMENT with a command in its place if there is no
/// library.
absl::StatusOr<std::unique_ptr<ByteStream>> FromZstandard(std::unique_ptr<ByteStream> compressed);

/// Appends what is left of `file` to `to`, compressed. INVALID_ARGUMENT likewise.
absl::Status ToZstandard(std::FILE* file, OutputFile& to);

}  // namespace sparsed::cli
