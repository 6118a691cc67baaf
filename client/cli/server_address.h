// What --server takes.
#pragma once

#include <string>
#include <string_view>

namespace sparsed::cli {

/// Why gRPC would not find the server there, and what was probably meant; empty: nothing is the
/// matter with it. Several addresses have commas between them.
std::string AddressProblem(std::string_view addresses);

}  // namespace sparsed::cli
