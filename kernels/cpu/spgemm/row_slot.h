// Where a row of C goes.
#pragma once

#include <cstdint>

namespace sparsed::cpu {

template <typename T>
struct RowSlot {
  int32_t* columns;
  T* values;
  /// Entries that may be overwritten from here on, at least as many as the row has: vectors are
  /// stored whole while they fit, and what they leave behind the row's end is overwritten by the
  /// next rows.
  int64_t room;
};

}  // namespace sparsed::cpu
