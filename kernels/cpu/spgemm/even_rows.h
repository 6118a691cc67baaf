// T of the ELL method.
#pragma once

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/formats/ell.h"

namespace sparsed::cpu {

template <typename T>
struct EvenRows : EllView {
  const T* values;  ///< as `columns`; 0 where a row is shorter
};

/// What each thread of the ELL method runs.
void RunEvenRows(const RowJob<float>& job, const EvenRows<float>& rows, std::byte* workspace,
                 PieceQueue& pieces);
void RunEvenRows(const RowJob<double>& job, const EvenRows<double>& rows, std::byte* workspace,
                 PieceQueue& pieces);

}  // namespace sparsed::cpu
