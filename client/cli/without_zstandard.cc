#include "client/cli/zstandard.h"

namespace sparsed::cli {

bool HasZstandard() { return false; }

absl::StatusOr<std::unique_ptr<ByteStream>> FromZstandard(std::unique_ptr<ByteStream>) {
  return absl::InvalidArgumentError(
      "this program was built without Zstandard; try zstd -dc FILE | sparsectl upload - "
      "--name=NAME");
}

absl::Status ToZstandard(std::FILE*, OutputFile&) {
  return absl::InvalidArgumentError("this program was built without Zstandard; write .gz or .xz");
}

}  // namespace sparsed::cli
