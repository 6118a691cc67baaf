// Values of flags that several commands of the tree have.
#pragma once

#include <CLI/CLI.hpp>

namespace sparsed::cli {

/// Turns a size such as 50MB, 64MiB or a number of bytes into bytes, by UnitBytes, as the server's
/// flags do; of whole numbers.
CLI::Validator Size();

}  // namespace sparsed::cli
