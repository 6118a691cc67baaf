// T of the COO method.
#pragma once

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/formats/column_parts.h"

namespace sparsed::cpu {

template <typename T>
struct ColumnParts : ColumnPartsView {
  const T* values;  ///< of its entries
};

/// What each thread of the COO method runs.
void RunColumnParts(const RowJob<float>& job, const ColumnParts<float>& parts, std::byte* workspace,
                    PieceQueue& pieces);
void RunColumnParts(const RowJob<double>& job, const ColumnParts<double>& parts,
                    std::byte* workspace, PieceQueue& pieces);

}  // namespace sparsed::cpu
