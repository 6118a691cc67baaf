// Typed, contiguous, reference-counted arrays: what every layout consists of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/half.h"

namespace sparsed {

enum class ElementType : uint8_t { kI32 = 1, kI64 = 2, kF32 = 3, kF64 = 4, kF16 = 5, kBF16 = 6 };

/// f16 or bf16: a type that is only stored; kernels compute with it as f32.
constexpr bool IsHalf(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBF16;
}
constexpr bool IsFloat(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kF64 || IsHalf(type);
}

/// Bytes of one element.
constexpr size_t SizeOf(ElementType type) {
  if (IsHalf(type)) return 2;
  return type == ElementType::kI32 || type == ElementType::kF32 ? 4 : 8;
}

/// "i32", "i64", "f32", "f64", "f16", "bf16".
std::string_view Name(ElementType type);

template <typename T>
constexpr ElementType ElementTypeOf();
template <>
constexpr ElementType ElementTypeOf<int32_t>() {
  return ElementType::kI32;
}
template <>
constexpr ElementType ElementTypeOf<int64_t>() {
  return ElementType::kI64;
}
template <>
constexpr ElementType ElementTypeOf<float>() {
  return ElementType::kF32;
}
template <>
constexpr ElementType ElementTypeOf<double>() {
  return ElementType::kF64;
}
template <>
constexpr ElementType ElementTypeOf<Float16>() {
  return ElementType::kF16;
}
template <>
constexpr ElementType ElementTypeOf<BFloat16>() {
  return ElementType::kBF16;
}

/// Calls `f` with a zero of the C++ type that holds the elements, of a type that IsFloat() was true
/// of. Every use names all types in this way, so that none is taken for another.
template <typename F>
decltype(auto) VisitFloat(ElementType type, F&& f) {
  switch (type) {
    case ElementType::kF32:
      return f(float{});
    case ElementType::kF64:
      return f(double{});
    case ElementType::kF16:
      return f(Float16{});
    case ElementType::kBF16:
      return f(BFloat16{});
    case ElementType::kI32:
    case ElementType::kI64:
      break;
  }
  std::abort();
}

/// Calls `f` with a zero of the unsigned integer as wide as an element: for copies of bits.
template <typename F>
decltype(auto) VisitBits(ElementType type, F&& f) {
  switch (SizeOf(type)) {
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

/// Bytes aligned to 64. Copies share them; the last one frees them (or gives them back to whoever
/// lent them).
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  Buffer() = default;
  /// Adopts `data`, whose deleter returns the bytes to their owner.
  Buffer(std::shared_ptr<std::byte> data, size_t size) : data_(std::move(data)), size_(size) {}

  const std::byte* data() const { return data_.get(); }
  /// Only for whoever fills it, before it is shared.
  std::byte* mutable_data() { return data_.get(); }
  size_t size() const { return size_; }
  /// Expires with the bytes.
  std::weak_ptr<const std::byte> lifetime() const { return data_; }
  /// Bytes [offset, offset + size), which keep the whole alive.
  Buffer Part(size_t offset, size_t size) const {
    return Buffer(std::shared_ptr<std::byte>(data_, data_.get() + offset), size);
  }

 private:
  std::shared_ptr<std::byte> data_;
  size_t size_ = 0;
};

/// Where buffers come from. The engine's counts them against a budget. Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// `bytes` uninitialised bytes; RESOURCE_EXHAUSTED, with what was asked for and what is left, if
  /// they are not to be had.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
};

/// The plain heap, unlimited; for tests and benchmarks.
MemorySource& HeapMemory();

/// A named array. Immutable once it is part of a layout.
struct Array {
  std::string name;
  ElementType type = ElementType::kI32;
  int64_t length = 0;  ///< in elements
  Buffer buffer;       ///< at least length * SizeOf(type) bytes

  size_t bytes() const { return static_cast<size_t>(length) * SizeOf(type); }
  template <typename T>
  std::span<const T> As() const {
    return {reinterpret_cast<const T*>(buffer.data()), static_cast<size_t>(length)};
  }
  template <typename T>
  std::span<T> MutableAs() {
    return {reinterpret_cast<T*>(buffer.mutable_data()), static_cast<size_t>(length)};
  }
};

/// An uninitialised array of `length` elements.
absl::StatusOr<Array> AllocateArray(MemorySource& memory, std::string_view name, ElementType type,
                                    int64_t length);

}  // namespace sparsed
