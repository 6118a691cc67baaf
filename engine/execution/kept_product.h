// An SpGEMM result that becomes a matrix: its blocks, and what they are put together to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/call.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"

namespace sparsed::engine {

class KeptProduct {
 public:
  /// `name`: the matrix to be. `host` outlives it; `owner` pays.
  KeptProduct(std::string name, ElementType type, Budget& host, MemoryOwner& owner)
      : name_(std::move(name)), type_(type), host_(host), owner_(owner) {}

  /// RESOURCE_EXHAUSTED, in a sentence that begins with `how_sure`, if so many nonzeros could never
  /// be kept: putting blocks together takes their memory twice.
  absl::Status MayHave(int64_t nnz, std::string_view how_sure) const;
  void Add(ResultBlock block) { blocks_.push_back(std::move(block)); }

  struct Arrays {
    Array row_offsets, column_indices, values;
  };
  /// All blocks, which cover `rows` rows with `nnz` entries, put together; they are let go of one
  /// by one.
  absl::StatusOr<Arrays> Assemble(int64_t rows, int64_t nnz);

 private:
  const std::string name_;
  const ElementType type_;
  Budget& host_;
  MemoryOwner& owner_;
  std::vector<ResultBlock> blocks_;
};

}  // namespace sparsed::engine
