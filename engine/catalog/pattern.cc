#include "engine/catalog/pattern.h"

#include <utility>

namespace sparsed::engine {
Pattern::Pattern(std::string hash, int64_t rows, int64_t cols, int64_t nnz,
                 std::shared_ptr<LazyLayout> csr, MemoryOwner* payer)
    : hash_(std::move(hash)),
      rows_(rows),
      cols_(cols),
      nnz_(nnz),
      csr_(std::move(csr)),
      payer_(payer) {}

absl::StatusOr<TenantHold> Pattern::HoldDisk(int64_t bytes) const {
  if (payer_ == nullptr) return TenantHold();
  return TenantOf(*payer_).Hold(Quota::kDiskBytes, bytes);
}

void Pattern::SetOnDisk(const std::string& pipeline, TenantHold hold) {
  const MutexLock lock(mutex_);
  if (hold == nullptr) {
    on_disk_.erase(pipeline);
  } else {
    on_disk_[pipeline] = std::move(hold);
  }
}

bool Pattern::on_disk(const std::string& pipeline) const {
  const MutexLock lock(mutex_);
  return on_disk_.contains(pipeline);
}

std::vector<Pattern::BuiltEntry> Pattern::Layouts() const {
  const MutexLock lock(mutex_);
  std::vector<BuiltEntry> entries;
  for (const auto& [pipeline, entry] : layouts_) entries.push_back(entry);
  return entries;
}

std::shared_ptr<LazyLayout> Pattern::FindLayout(const std::string& pipeline) const {
  const MutexLock lock(mutex_);
  const auto found = layouts_.find(pipeline);
  return found == layouts_.end() ? nullptr : found->second.layout;
}

void Pattern::AddLayout(std::shared_ptr<const Layout> layout, double build_seconds) {
  auto description = WithoutElements(*layout);
  auto lazy = std::make_shared<LazyLayout>(std::move(layout));
  const MutexLock lock(mutex_);
  const std::string pipeline = description->pipeline;
  layouts_[pipeline] = {std::move(description), std::move(lazy), build_seconds};
}

void Pattern::AddLayout(const Layout& description, LazyLayout::DiskCopy disk,
                        double build_seconds) {
  auto lazy = std::make_shared<LazyLayout>(std::move(disk));
  const MutexLock lock(mutex_);
  layouts_[description.pipeline] = {WithoutElements(description), std::move(lazy), build_seconds};
}

void Pattern::DropLayout(const std::string& pipeline) {
  const MutexLock lock(mutex_);
  layouts_.erase(pipeline);
}

void Pattern::DropLayout(const std::shared_ptr<const LazyLayout>& layout) {
  const MutexLock lock(mutex_);
  std::erase_if(layouts_, [&](const auto& entry) { return entry.second.layout == layout; });
}

std::shared_ptr<const Features> Pattern::features() const {
  const MutexLock lock(mutex_);
  return features_;
}

void Pattern::SetFeatures(std::shared_ptr<const Features> features) {
  const MutexLock lock(mutex_);
  features_ = std::move(features);
}

void Pattern::AddOwner(const std::string& tenant) {
  const MutexLock lock(mutex_);
  if (!owned_) owner_ = tenant;
  owned_ = true;
  of_several_ = of_several_ || owner_ != tenant;
}

bool Pattern::IsOnlyOf(const std::string& tenant) const {
  const MutexLock lock(mutex_);
  return owned_ && !of_several_ && owner_ == tenant;
}

}  // namespace sparsed::engine
