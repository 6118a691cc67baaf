#include "engine/memory/blocks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "kernels/array.h"

namespace sparsed::engine {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t Page() {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

/// Gives pages back. A process has a limit of mappings, and giving back the middle of one makes
/// two: at the limit the pages go and their addresses stay behind.
void Unmap(std::byte* data, size_t bytes) {
  if (bytes > 0 && munmap(data, bytes) != 0) madvise(data, bytes, MADV_DONTNEED);
}

std::byte* Map(size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

/// Beginning with a huge page, and with the advice to use such.
std::byte* MapHuge(size_t bytes) {
  std::byte* const data = Map(bytes + kHugePage);
  if (data == nullptr) return nullptr;
  const size_t before = -reinterpret_cast<uintptr_t>(data) % kHugePage;
  Unmap(data, before);
  Unmap(data + before + bytes, kHugePage - before);
  // Whole ones alone: none then reaches into the neighbour's block, where it could not be freed.
  madvise(data + before, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return data + before;
}

}  // namespace

size_t BlockBytes(size_t bytes) {
  if (bytes < Block::kSmallestMapped) return bytes;
  return (bytes + Page() - 1) / Page() * Page();
}

Block NewBlock(size_t bytes) {
  Block block{nullptr, bytes};
  if (!block.mapped()) {
    block.data = static_cast<std::byte*>(
        ::operator new (bytes, std::align_val_t{Buffer::kAlignment}, std::nothrow));
  } else {
    block.data = bytes >= 2 * kHugePage ? MapHuge(bytes) : Map(bytes);
  }
  return block;
}

void DeleteBlock(const Block& block) {
  if (block.mapped()) {
    Unmap(block.data, block.bytes);
  } else {
    ::operator delete (block.data, std::align_val_t{Buffer::kAlignment});
  }
}

Block CutBlock(const Block& block, size_t bytes) {
  Unmap(block.data + bytes, block.bytes - bytes);
  return {block.data, bytes};
}

void KeptBlocks::Keep(const Block& block) {
  kept_.emplace(Key{block.bytes, ++age_}, block.data);
  ages_.emplace(age_, block.bytes);
  bytes_ += static_cast<int64_t>(block.bytes);
}

Block KeptBlocks::Take(size_t bytes) {
  const auto smallest = kept_.lower_bound({bytes, 0});
  if (smallest == kept_.end() || smallest->first.first > bytes + bytes / 4) return {};
  return Remove(--kept_.upper_bound({smallest->first.first, age_}));
}

std::vector<Block> KeptBlocks::TakeDownTo(int64_t down_to) {
  std::vector<Block> taken;
  while (bytes_ > down_to && !ages_.empty()) taken.push_back(RemoveOldest());
  return taken;
}

std::vector<Block> KeptBlocks::TakeIdle() {
  std::vector<Block> taken;
  while (!ages_.empty() && ages_.begin()->first <= idle_age_) taken.push_back(RemoveOldest());
  idle_age_ = age_;
  return taken;
}

Block KeptBlocks::RemoveOldest() {
  const auto [age, bytes] = *ages_.begin();
  return Remove(kept_.find({bytes, age}));
}

Block KeptBlocks::Remove(std::map<Key, std::byte*>::iterator kept) {
  const Block block{kept->second, kept->first.first};
  ages_.erase(kept->first.second);
  kept_.erase(kept);
  bytes_ -= static_cast<int64_t>(block.bytes);
  return block;
}

}  // namespace sparsed::engine
