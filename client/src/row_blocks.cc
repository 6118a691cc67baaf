#include "client/src/row_blocks.h"

#include <exception>
#include <span>
#include <variant>
#include <vector>

namespace sparsed {
inline namespace client {
namespace {

template <typename T>
void Append(const ConstValues& from, std::vector<T>& to) {
  const auto& values = std::get<std::span<const T>>(from);
  to.insert(to.end(), values.begin(), values.end());
}

}  // namespace

absl::Status Append(const RowBlock& block, CsrMatrix& matrix) {
  try {
    if (block.row_begin == 0) {
      matrix.values = ZeroValues(TypeOf(block.values));
      matrix.row_offsets.reserve(static_cast<size_t>(block.result_rows) + 1);
    }
    matrix.row_offsets.insert(matrix.row_offsets.end(), block.row_offsets.begin() + 1,
                              block.row_offsets.end());
    matrix.column_indices.insert(matrix.column_indices.end(), block.column_indices.begin(),
                                 block.column_indices.end());
    std::visit([&block](auto& values) { Append(block.values, values); }, matrix.values);
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError("no memory for the product; take it block by block");
  }
  return absl::OkStatus();
}

}  // namespace client
}  // namespace sparsed
