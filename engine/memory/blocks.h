// Blocks of host memory: where they come from, and those that are kept for the next caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace sparsed::engine {

/// Large ones are mappings of their own, whole pages that go back to the operating system; small
/// ones are the heap's.
struct Block {
  std::byte* data = nullptr;
  size_t bytes = 0;

  static constexpr size_t kSmallestMapped = size_t{128} << 10;
  bool mapped() const { return bytes >= kSmallestMapped; }
};

/// What a block for so many bytes takes: for a large one, the next multiple of a page (of those
/// that no memory has, anything).
size_t BlockBytes(size_t bytes);
/// `bytes` as BlockBytes said. Without data if the operating system refuses.
Block NewBlock(size_t bytes);
void DeleteBlock(const Block& block);
/// Gives back what a mapped block has beyond `bytes`, whole pages too.
Block CutBlock(const Block& block, size_t bytes);

/// Mapped blocks that came back: fresh pages cost as much as the multiplication that fills them.
/// Frees nothing by itself, so that its owner can do so without a lock.
class KeptBlocks {
 public:
  int64_t bytes() const { return bytes_; }

  void Keep(const Block& block);
  /// A block of at least `bytes` and at most a quarter more (see CutBlock), of those that fit best
  /// the one that came back last; without data if there is none.
  Block Take(size_t bytes);
  /// Takes out those that came back longest ago, to be deleted, until at most `down_to` bytes are
  /// kept: what serves the requests of now stays.
  std::vector<Block> TakeDownTo(int64_t down_to);
  /// Takes out those that have been kept, untouched, since before the last call.
  std::vector<Block> TakeIdle();

 private:
  using Key = std::pair<size_t, uint64_t>;  ///< bytes and age
  Block Remove(std::map<Key, std::byte*>::iterator kept);
  Block RemoveOldest();

  std::map<Key, std::byte*> kept_;
  std::map<uint64_t, size_t> ages_;  ///< bytes, the oldest first
  uint64_t age_ = 0;
  uint64_t idle_age_ = 0;  ///< of the youngest at the last TakeIdle
  int64_t bytes_ = 0;
};

}  // namespace sparsed::engine
