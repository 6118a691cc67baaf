#include "engine/execution/kept_product.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace sparsed::engine {

absl::Status KeptProduct::MayHave(int64_t nnz, std::string_view how_sure) const {
  const auto entry = static_cast<int64_t>(sizeof(int32_t) + SizeOf(type_));
  const int64_t limit = host_.limit();
  if (nnz <= limit / (2 * entry)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("'{}' would have {}{} nonzeros of {} bytes each, twice while it is put together, "
                  "and the server has {} bytes (--host-memory less --wire-memory): receive it as "
                  "it comes instead",
                  name_, how_sure, nnz, entry, limit));
}

absl::StatusOr<KeptProduct::Arrays> KeptProduct::Assemble(int64_t rows, int64_t nnz) {
  MemorySource& memory = host_.Source(MemoryUse::kMatrices, &owner_);
  absl::StatusOr<Array> offsets = AllocateArray(memory, "row_offsets", ElementType::kI64, rows + 1);
  if (!offsets.ok()) return offsets.status();
  absl::StatusOr<Array> columns = AllocateArray(memory, "column_indices", ElementType::kI32, nnz);
  if (!columns.ok()) return columns.status();
  absl::StatusOr<Array> values = AllocateArray(memory, "values", type_, nnz);
  if (!values.ok()) return values.status();
  offsets->MutableAs<int64_t>()[0] = 0;
  for (ResultBlock& block : blocks_) {
    const auto append = [](Array& to, int64_t position, const Array& from) {
      if (from.length == 0) return;
      std::memcpy(to.buffer.mutable_data() + position * SizeOf(to.type), from.buffer.data(),
                  from.bytes());
    };
    append(*offsets, block.rows.begin + 1, block.row_offsets);
    append(*columns, block.nnz_begin, block.column_indices);
    append(*values, block.nnz_begin, block.values);
    block = ResultBlock();
  }
  return Arrays{*std::move(offsets), *std::move(columns), *std::move(values)};
}

}  // namespace sparsed::engine
