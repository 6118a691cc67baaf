// Where the nonzeros of a layout are in the CSR that it is of.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace sparsed {

/// Of a slot without padding; its own number where the layout has no value source. Of a layout on a
/// device, for kernels there.
class ValueSource {
 public:
  ValueSource() = default;
  explicit ValueSource(const Layout& layout) {
    const Array* const source = layout.Find(kValueSource);
    if (source == nullptr) return;
    if (source->type == ElementType::kI32) {
      narrow_ = source->As<int32_t>().data();
    } else {
      wide_ = source->As<int64_t>().data();
    }
  }
  constexpr int64_t operator[](int64_t slot) const {
    if (narrow_ != nullptr) return narrow_[slot];
    return wide_ != nullptr ? wide_[slot] : slot;
  }

 private:
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
};

}  // namespace sparsed
