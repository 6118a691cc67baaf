// T of the ELL method.
#pragma once

#include <cstdint>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/scratch.h"

namespace sparsed::cpu {

/// T with as much room for each row as the longest one takes: no offset has to be read to find a
/// row.
template <typename T>
struct EvenRows {
  /// May be read behind the last row.
  static constexpr int64_t kSpare = 16;

  int64_t width = 0;         ///< entries of the longest row
  Scratch<int32_t> lengths;  ///< of the rows; empty if all have `width` entries
  Scratch<int32_t> columns;  ///< row k's from k * width on
  Scratch<T> values;         ///< likewise; 0 where a row is shorter
};

/// What each thread of the ELL method runs.
void RunEvenRows(const RowJob<float>& job, const EvenRows<float>& rows, std::byte* workspace,
                 PieceQueue& pieces);
void RunEvenRows(const RowJob<double>& job, const EvenRows<double>& rows, std::byte* workspace,
                 PieceQueue& pieces);

}  // namespace sparsed::cpu
