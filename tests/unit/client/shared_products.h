// Products whose operands and results lie in memory shared with the server, whatever its device.
#pragma once

#include <string>

namespace sparsed::test {

/// Random matrices of several types and shapes at the server of that address, against plain loops:
/// nothing but what was asked for is written, and the server did map the memory.
void CheckSharedProducts(const std::string& address);

/// 2 B - 2 C in the place of C, of 20 MB each; returns the plan.
std::string CheckLargeSharedProduct(const std::string& address);

}  // namespace sparsed::test
