// T of the InCSR method.
#pragma once

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/formats/incsr.h"

namespace sparsed::cpu {

/// Sections of as many columns as a line of 64 bytes has values.
template <typename T>
struct Sections : IncsrView {
  static constexpr int64_t kColumns = 64 / sizeof(T);

  const T* values;  ///< kColumns of each section, 0 where there is no entry
};

/// What each thread of the InCSR method runs.
void RunSections(const RowJob<float>& job, const Sections<float>& sections, std::byte* workspace,
                 PieceQueue& pieces);
void RunSections(const RowJob<double>& job, const Sections<double>& sections, std::byte* workspace,
                 PieceQueue& pieces);

}  // namespace sparsed::cpu
