#include "kernels/layout.h"

#include <algorithm>

namespace sparsed {
namespace {

template <typename Value, typename Index>
void Gather(std::span<const Index> source, const Value* csr_values, Value* slots, int threads) {
  const int64_t count = static_cast<int64_t>(source.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t slot = 0; slot < count; ++slot) {
    slots[slot] = source[slot] < 0 ? Value{0} : csr_values[source[slot]];
  }
}

template <typename Value>
void PlaceTyped(const Layout& layout, const Value* csr_values, Value* slots, int threads) {
  const Array* source = layout.Find(kValueSource);
  if (source == nullptr) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t slot = 0; slot < layout.value_slots; ++slot) slots[slot] = csr_values[slot];
  } else if (source->type == ElementType::kI32) {
    Gather(source->As<int32_t>(), csr_values, slots, threads);
  } else {
    Gather(source->As<int64_t>(), csr_values, slots, threads);
  }
}

}  // namespace

const Array* Layout::Find(std::string_view name) const {
  for (const Array& array : arrays) {
    if (array.name == name) return &array;
  }
  return nullptr;
}

int64_t Layout::Parameter(std::string_view name) const {
  for (const auto& [key, value] : parameters) {
    if (key == name) return value;
  }
  return -1;
}

int64_t Layout::bytes() const {
  int64_t total = 0;
  for (const Array& array : arrays) total += static_cast<int64_t>(array.bytes());
  return total;
}

std::shared_ptr<const Layout> WithoutElements(const Layout& layout) {
  auto description = std::make_shared<Layout>(layout);
  for (Array& array : description->arrays) array.buffer = Buffer();
  return description;
}

void PlaceValues(const Layout& layout, ElementType type, const void* csr_values, void* slots,
                 int threads) {
  threads = std::max(threads, 1);
  // The transform is a copy of bits, so the width of an element is all that matters.
  VisitBits(type, [&]<typename Bits>(Bits) {
    PlaceTyped(layout, static_cast<const Bits*>(csr_values), static_cast<Bits*>(slots), threads);
  });
}

}  // namespace sparsed
