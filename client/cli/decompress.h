// What gzip, xz and zstd compressed, plain again.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"

namespace sparsed::cli {

/// Enough to tell compressions apart by.
inline constexpr size_t kMagicBytes = 16;

/// "gzip", "xz", "Zstandard"; empty for anything else.
std::string_view CompressionOf(std::string_view head);

/// `compressed` as it was before; `compression` is what CompressionOf() said, empty: as it is. Data
/// that end too early or are damaged, and those that need more memory than is usual (256 MiB), are
/// INVALID_ARGUMENT when they are read. RESOURCE_EXHAUSTED if there is no memory to begin.
absl::StatusOr<std::unique_ptr<ByteStream>> Decompressed(std::unique_ptr<ByteStream> compressed,
                                                         std::string_view compression);

}  // namespace sparsed::cli
