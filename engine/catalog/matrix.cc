#include "engine/catalog/matrix.h"

#include <utility>

#include "kernels/formats/csr.h"

namespace sparsed::engine {

Matrix::Matrix(std::string tenant, std::string name, std::shared_ptr<Pattern> pattern,
               ElementType type, uint64_t version, int64_t created_unix_ns, bool durable,
               std::shared_ptr<LazyArray> values, std::shared_ptr<LazyArray> caller_order,
               MatrixKeep keep, std::shared_ptr<EvictionQueue> evictions)
    : tenant_(std::move(tenant)),
      name_(std::move(name)),
      pattern_(std::move(pattern)),
      type_(type),
      version_(version),
      created_unix_ns_(created_unix_ns),
      durable_(durable),
      values_(std::move(values)),
      caller_order_(std::move(caller_order)),
      keep_(std::move(keep)),
      evictions_(std::move(evictions)) {
  pattern_->AddOwner(tenant_);
}

int64_t Matrix::disk_bytes() const {
  if (keep_.disk == nullptr) return 0;
  const auto bytes_of = [this](ElementType type) {
    return pattern_->nnz() * static_cast<int64_t>(SizeOf(type));
  };
  return bytes_of(type_) + (caller_order_ == nullptr ? 0 : bytes_of(ElementType::kI64));
}

void Matrix::CountUse(const Plan& plan) const {
  pattern_->plans().uses().Count(plan);
  keep_.plan_uses->Count(plan);
}

std::vector<PlanTable::Used> Matrix::UsedPlans() const {
  return pattern_->plans().ListUsed(type_, *keep_.plan_uses);
}

absl::StatusOr<Array> Matrix::Values(LazyArray::Stop stop) const { return values_->Get(stop); }

std::shared_ptr<PlacedValues> Matrix::FindPlaced(const std::string& pipeline) const {
  const MutexLock lock(mutex_);
  const auto found = placed_.find(pipeline);
  return found == placed_.end() ? nullptr : found->second;
}

absl::StatusOr<Array> Matrix::ValuesIn(const Layout& layout, MemorySource& memory,
                                       int threads) const {
  if (layout.pipeline == kCsr) return Values();
  // A request may still use a layout that was dropped; keeping its values would be for nobody.
  std::shared_ptr<const LazyLayout> known = pattern_->FindLayout(layout.pipeline);
  if (known != nullptr && known->Resident().get() != &layout) known = nullptr;
  if (const auto placed = FindPlaced(layout.pipeline); known != nullptr && placed != nullptr) {
    if (std::optional<Array> values = placed->Find(known)) return *std::move(values);
  }
  absl::StatusOr<Array> csr_values = Values();
  if (!csr_values.ok()) return csr_values.status();
  absl::StatusOr<Array> slots = AllocateArray(memory, "values", type_, layout.value_slots);
  if (!slots.ok()) return slots.status();
  PlaceValues(layout, type_, csr_values->buffer.data(), slots->buffer.mutable_data(), threads);
  if (known == nullptr) return slots;
  auto placed = std::make_shared<PlacedValues>(known, *slots, evictions_, keep_.payer);
  placed->Find(known);  // They are used now.
  const MutexLock lock(mutex_);
  if (pattern_->FindLayout(layout.pipeline) == known) placed_[layout.pipeline].swap(placed);
  return slots;
}

void Matrix::DropLayout(const std::string& pipeline) const {
  const MutexLock lock(mutex_);
  placed_.erase(pipeline);
}

int64_t Matrix::LayoutValueBytes(const std::string& pipeline) const {
  const std::shared_ptr<PlacedValues> placed = FindPlaced(pipeline);
  return placed == nullptr ? 0 : placed->bytes();
}

std::optional<Array> PlacedValues::Find(const std::shared_ptr<const LazyLayout>& layout) {
  if (layout_.lock() != layout) return std::nullopt;
  const MutexLock lock(mutex_);
  if (values_.has_value() && values_->buffer.size() > 0) {
    evictions_->Use(*this, CountedBytes(*values_), payer_);
  }
  return values_;
}

int64_t PlacedValues::bytes() const {
  const MutexLock lock(mutex_);
  return values_.has_value() ? static_cast<int64_t>(values_->bytes()) : 0;
}

bool PlacedValues::idle() const {
  const MutexLock lock(mutex_);
  return values_.has_value() && values_->buffer.lifetime().use_count() == 1;
}

bool PlacedValues::Evict() {
  std::optional<Array> evicted;  // freed without the lock
  const MutexLock lock(mutex_);
  if (!values_.has_value() || values_->buffer.lifetime().use_count() > 1) return false;
  evicted.swap(values_);
  evictions_->Remove(*this);
  return true;
}

}  // namespace sparsed::engine
