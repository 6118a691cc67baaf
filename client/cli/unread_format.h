// Formats that are not read, so that messages can name them.
#pragma once

#include <string>
#include <string_view>

namespace sparsed::cli {

/// A sentence that names the format of a file that begins so, and a command that makes of it what
/// is read; empty if the format is not known. `file` is what the command is given.
std::string UnreadFormat(std::string_view head, std::string_view file);

}  // namespace sparsed::cli
