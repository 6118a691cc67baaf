#include "kernels/array.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <new>

#include "absl/status/status.h"

namespace sparsed {

std::string_view Name(ElementType type) {
  switch (type) {
    case ElementType::kI32:
      return "i32";
    case ElementType::kI64:
      return "i64";
    case ElementType::kF32:
      return "f32";
    case ElementType::kF64:
      return "f64";
    case ElementType::kF16:
      return "f16";
    case ElementType::kBF16:
      return "bf16";
  }
  return "unknown";
}

namespace {

class Heap final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (bytes == 0) return Buffer();
    auto* data = static_cast<std::byte*>(
        ::operator new (bytes, std::align_val_t{Buffer::kAlignment}, std::nothrow));
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          fmt::format("the operating system refused {} bytes of memory", bytes));
    }
    return Buffer(
        std::shared_ptr<std::byte>(
            data,
            [](std::byte* p) { ::operator delete (p, std::align_val_t{Buffer::kAlignment}); }),
        bytes);
  }
};

}  // namespace

MemorySource& HeapMemory() {
  static Heap* const heap = new Heap;
  return *heap;
}

absl::StatusOr<Array> AllocateArray(MemorySource& memory, std::string_view name, ElementType type,
                                    int64_t length) {
  if (length < 0 || length > std::numeric_limits<int64_t>::max() / 8) {
    return absl::InvalidArgumentError(
        fmt::format("array '{}' cannot have {} elements", name, length));
  }
  Array array{std::string(name), type, length, {}};
  absl::StatusOr<Buffer> buffer = memory.Allocate(array.bytes());
  if (!buffer.ok()) return buffer.status();
  array.buffer = *std::move(buffer);
  return array;
}

}  // namespace sparsed
