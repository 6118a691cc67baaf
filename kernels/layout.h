// A layout: one pattern in a representation made for kernels. Kinds are defined in kernels/formats.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"

namespace sparsed {

/// Arrays of one pattern, without values: layouts are shared by every matrix of a pattern. A
/// matrix's values in it are one more array, of `value_slots` elements, made by `PlaceValues`. The
/// store, the checksums and the devices move arrays and know nothing of kinds; the kind's header in
/// kernels/formats gives a typed view and documents each array.
struct Layout {
  std::string kind;      ///< "csr", "aspt"
  std::string pipeline;  ///< canonical text of the pipeline that made it (kernels/pipeline.h)
  std::vector<std::pair<std::string, int64_t>> parameters;  ///< for the kind's view
  int64_t rows = 0;  ///< of the matrix as the kernel sees it: swapped in a transposed layout
  int64_t cols = 0;
  int64_t nnz = 0;
  bool transposed = false;  ///< it holds S^T
  int64_t value_slots = 0;  ///< nnz plus padding
  std::vector<Array> arrays;
  /// Nonzeros of the longest row that the kernel sees; -1: not known. Not stored.
  int64_t longest_row = -1;

  /// Null if there is none of that name.
  const Array* Find(std::string_view name) const;
  /// The elements of that array; none if there is none of that name.
  template <typename T>
  std::span<const T> Elements(std::string_view name) const {
    const Array* array = Find(name);
    return array != nullptr ? array->As<T>() : std::span<const T>();
  }
  /// -1 if there is none of that name.
  int64_t Parameter(std::string_view name) const;
  int64_t bytes() const;
};

/// Where the arrays of a layout lie one after another, in one block of memory, each begins at a
/// multiple of this: kernels of all devices read them there.
inline constexpr size_t kPackedAlignment = 256;
constexpr size_t PackedBytes(size_t bytes) {
  return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

/// The layout as it is described: its arrays have no elements.
std::shared_ptr<const Layout> WithoutElements(const Layout& layout);

/// Name of the array that, for each value slot, holds the CSR nonzero it comes from (i32, or i64 if
/// nnz needs it; -1 is padding). A layout without it keeps CSR's order.
inline constexpr std::string_view kValueSource = "value_source";

/// Fills `slots` (layout.value_slots elements of `type`) from `csr_values` (layout.nnz elements,
/// canonical CSR order), padding with zeros. The transform is a copy.
void PlaceValues(const Layout& layout, ElementType type, const void* csr_values, void* slots,
                 int threads);

}  // namespace sparsed
