#include "engine/catalog/matrix.h"

#include <utility>

#include "kernels/formats/csr.h"

namespace sparsed::engine {

Matrix::Matrix(std::string tenant, std::string name, std::shared_ptr<Pattern> pattern,
               ElementType type, uint64_t version, int64_t created_unix_ns, bool durable,
               std::shared_ptr<LazyArray> values, std::shared_ptr<LazyArray> caller_order,
               Budget::Charge charge)
    : tenant_(std::move(tenant)),
      name_(std::move(name)),
      pattern_(std::move(pattern)),
      type_(type),
      version_(version),
      created_unix_ns_(created_unix_ns),
      durable_(durable),
      values_(std::move(values)),
      caller_order_(std::move(caller_order)),
      charge_(std::move(charge)) {}

absl::StatusOr<Array> Matrix::Values(LazyArray::Stop stop) const { return values_->Get(stop); }

absl::StatusOr<Array> Matrix::ValuesIn(const Layout& layout, MemorySource& memory,
                                       int threads) const {
  if (layout.recipe == kCsr) return Values();
  {
    std::lock_guard lock(mutex_);
    const auto found = placed_.find(layout.recipe);
    if (found != placed_.end() && found->second.layout.lock().get() == &layout) {
      return found->second.values;
    }
  }
  absl::StatusOr<Array> csr_values = Values();
  if (!csr_values.ok()) return csr_values.status();
  absl::StatusOr<Array> slots = AllocateArray(memory, "values", type_, layout.value_slots);
  if (!slots.ok()) return slots.status();
  PlaceValues(layout, type_, csr_values->buffer.data(), slots->buffer.mutable_data(), threads);

  std::lock_guard lock(mutex_);
  // A request may still use a layout that was dropped; keeping its values would be for nobody.
  std::shared_ptr<const Layout> known = pattern_->FindLayout(layout.recipe);
  if (known.get() == &layout) {
    placed_.insert_or_assign(layout.recipe, Placed{std::move(known), *slots});
  }
  return slots;
}

void Matrix::DropLayout(const std::string& recipe) const {
  std::lock_guard lock(mutex_);
  placed_.erase(recipe);
}

int64_t Matrix::LayoutValueBytes(const std::string& recipe) const {
  std::lock_guard lock(mutex_);
  const auto found = placed_.find(recipe);
  return found == placed_.end() ? 0 : static_cast<int64_t>(found->second.values.bytes());
}

}  // namespace sparsed::engine
