// T of the COO method.
#pragma once

#include <cstdint>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/scratch.h"

namespace sparsed::cpu {

/// T cut into ranges of columns, each with its entries by row.
template <typename T>
struct ColumnParts {
  int64_t count = 0;
  int64_t width = 0;         ///< columns of a part, the last one's may be fewer
  int64_t rows = 0;          ///< T's
  Scratch<int64_t> offsets;  ///< part p's row r: [offsets[p * (rows + 1) + r], the next one)
  Scratch<int32_t> columns;  ///< in all of T
  Scratch<T> values;

  const int64_t* offsets_of(int64_t part) const { return offsets.data() + part * (rows + 1); }
};

/// What each thread of the COO method runs.
void RunColumnParts(const RowJob<float>& job, const ColumnParts<float>& parts, std::byte* workspace,
                    PieceQueue& pieces);
void RunColumnParts(const RowJob<double>& job, const ColumnParts<double>& parts,
                    std::byte* workspace, PieceQueue& pieces);

}  // namespace sparsed::cpu
