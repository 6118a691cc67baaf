// Flags by the names that they once had: these are still taken, and help does not mention them.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace sparsed::cli {

/// The words of the command line with the present names of flags.
std::vector<std::string> WithPresentNames(std::span<char* const> words);

/// A sentence about that command line, which names its flags as `words` have them.
std::string AsTyped(std::string sentence, std::span<char* const> words);

}  // namespace sparsed::cli
