// T of the InCSR method.
#pragma once

#include <cstdint>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/piece_queue.h"
#include "kernels/scratch.h"

namespace sparsed::cpu {

/// T's rows cut into sections of as many aligned columns as a line of 64 bytes has values, those
/// without an entry left out.
template <typename T>
struct Sections {
  static constexpr int64_t kColumns = 64 / sizeof(T);

  Scratch<int64_t> offsets;   ///< row r: sections [offsets[r], offsets[r + 1])
  Scratch<int32_t> columns;   ///< of each section: its first column / kColumns
  Scratch<uint16_t> present;  ///< a bit for each of its columns: is there an entry
  Scratch<T> values;          ///< kColumns of each section, 0 where there is none
};

/// What each thread of the InCSR method runs.
void RunSections(const RowJob<float>& job, const Sections<float>& sections, std::byte* workspace,
                 PieceQueue& pieces);
void RunSections(const RowJob<double>& job, const Sections<double>& sections, std::byte* workspace,
                 PieceQueue& pieces);

}  // namespace sparsed::cpu
