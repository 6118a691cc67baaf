// T of the InCSR method.
#pragma once

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/cpu/spgemm/workspace.h"
#include "kernels/formats/incsr.h"

namespace sparsed::cpu {

template <typename T>
struct Sections : IncsrView {
  const T* values;  ///< shape.block of each block, 0 where there is no entry
};

/// Columns of a window for rows of T: its last section may reach over them.
inline int64_t SectionWindow(int64_t cols) { return RoundUp(cols, kMostSectionColumns); }

/// What each thread of the InCSR method runs.
void RunSections(const RowJob<float>& job, const Sections<float>& sections, std::byte* workspace,
                 PieceQueue& pieces);
void RunSections(const RowJob<double>& job, const Sections<double>& sections, std::byte* workspace,
                 PieceQueue& pieces);

}  // namespace sparsed::cpu
