#include "client/attached/chain_program.h"

#include <algorithm>

namespace sparsed {
inline namespace client {
namespace {

/// Of one value: sums of some thousand of them do not overflow.
constexpr size_t kMostBytes = size_t{1} << 50;
/// That kernels of all devices read values by.
constexpr size_t kAlignment = 256;

/// Blocks of memory that values have one after another.
class Blocks {
 public:
  size_t Take(size_t bytes) {
    bytes = std::max((bytes + kAlignment - 1) / kAlignment, size_t{1}) * kAlignment;
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->bytes >= bytes && (best == free_.end() || it->bytes < best->bytes)) best = it;
    }
    Block taken = {end_, bytes};
    if (best == free_.end()) {
      end_ += bytes;
    } else {
      taken = *best;
      free_.erase(best);
    }
    taken_.push_back(taken);
    return taken.offset;
  }
  void Give(size_t offset) {
    const auto given = std::ranges::find(taken_, offset, &Block::offset);
    free_.push_back(*given);
    taken_.erase(given);
  }
  size_t end() const { return end_; }

 private:
  struct Block {
    size_t offset, bytes;
  };
  std::vector<Block> free_, taken_;
  size_t end_ = 0;
};

}  // namespace

bool ChainProgram::LayOut() {
  std::vector<size_t> last_use(values.size(), kNone);
  for (size_t i = 0; i < steps.size(); ++i) {
    ForEachUse(steps[i], [&](size_t value) { last_use[value] = i; });
  }
  Blocks blocks;
  std::vector<size_t> over;
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    over.clear();
    ForEachUse(step, [&](size_t value) {
      if (values[value].temporary && last_use[value] == i &&
          std::ranges::find(over, value) == over.end()) {
        over.push_back(value);
      }
    });
    // What C was and nobody needs any more becomes C.
    const auto old = std::ranges::find(over, step.old);
    const bool in_place = old != over.end() && values[step.to].temporary && step.old != step.b &&
                          step.old != step.values;
    if (in_place) {
      values[step.to].offset = values[step.old].offset;
      over.erase(old);
      step.old = kNone;
    }
    bool fits = true;
    ForEachMade(step, [&](size_t made) {
      Value& value = values[made];
      if (!fits || !value.temporary || (made == step.to && in_place)) return;
      size_t bytes = 0;
      fits = !__builtin_mul_overflow(value.memory.rows, value.memory.cols, &bytes) &&
             !__builtin_mul_overflow(bytes, value.element, &bytes) && bytes <= kMostBytes;
      if (fits) value.offset = blocks.Take(bytes);
    });
    if (!fits) return false;
    ForEachMade(step, [&](size_t made) {
      if (values[made].temporary && last_use[made] == kNone) over.push_back(made);
    });
    for (const size_t value : over) blocks.Give(values[value].offset);
  }
  temporary_bytes = blocks.end();
  return true;
}

}  // namespace client
}  // namespace sparsed
