// Formats that are not read, so that messages can name them.
#pragma once

#include <string>
#include <string_view>

namespace sparsed::cli {

/// A sentence that names the format of a file that begins so, and a command that makes of it what
/// is read, of a FILE; empty if the format is not known.
std::string UnreadFormat(std::string_view head);

}  // namespace sparsed::cli
