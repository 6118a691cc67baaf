// Products whose operands and results lie in memory shared with the server, whatever its device.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "sparsed/client.h"

namespace sparsed::test {

/// The products of a matrix, whichever way they take.
struct Products {
  std::function<absl::StatusOr<ComputeResult>(const Operand&, const Destination&,
                                              const SpmmOptions&)>
      spmm;
  std::function<absl::StatusOr<ComputeResult>(const Operand&, const Operand&, const Destination&,
                                              const SddmmOptions&)>
      sddmm;
};
using ProductsOf = std::function<Products(const Matrix&)>;

/// Random matrices of several types and shapes against plain loops: nothing but what was asked for
/// is written.
void CheckProducts(const Client& client, const ProductsOf& products_of);

/// Random matrices of several types and shapes at the server of that address, against plain loops:
/// nothing but what was asked for is written, and the server did map the memory.
void CheckSharedProducts(const std::string& address);

/// 2 B - 2 C in the place of C, of 20 MB each; returns the plan.
std::string CheckLargeSharedProduct(const std::string& address);

}  // namespace sparsed::test
