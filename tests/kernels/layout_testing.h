// What the tests of layouts share.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed::test {

/// For builds in `memory`.
inline BuildContext ContextWith(MemorySource& memory, int threads = 2) {
  BuildContext context;
  context.threads = threads;
  context.memory = &memory;
  return context;
}
inline BuildContext OnHeap(int threads = 2) { return ContextWith(HeapMemory(), threads); }

/// The CSR nonzero of a value slot; -1: padding.
inline int64_t Source(const Layout& layout, int64_t slot) {
  const Array& source = *layout.Find(kValueSource);
  return source.type == ElementType::kI32 ? source.As<int32_t>()[slot] : source.As<int64_t>()[slot];
}

/// The same arrays, to the bit.
inline void ExpectSameArrays(const Layout& one, const Layout& other) {
  ASSERT_EQ(one.arrays.size(), other.arrays.size());
  for (size_t i = 0; i < one.arrays.size(); ++i) {
    EXPECT_EQ(one.arrays[i].name, other.arrays[i].name);
    ASSERT_EQ(one.arrays[i].bytes(), other.arrays[i].bytes());
    EXPECT_EQ(std::memcmp(one.arrays[i].buffer.data(), other.arrays[i].buffer.data(),
                          one.arrays[i].bytes()),
              0)
        << one.arrays[i].name;
  }
}

}  // namespace sparsed::test
