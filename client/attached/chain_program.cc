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
  const auto for_each_use = [&](const Step& step, const auto& use) {
    for (const size_t value : {step.a, step.b, step.values, step.old, step.by_rows, step.by_cols}) {
      if (value != kNone) use(value);
    }
    for (size_t i = 0; i < step.terms; ++i) use(terms[step.first_term + i].value);
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    for_each_use(steps[i], [&](size_t value) { last_use[value] = i; });
  }
  Blocks blocks;
  std::vector<size_t> over;
  for (size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    over.clear();
    for_each_use(step, [&](size_t value) {
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
    for (const size_t made : {step.to, step.which}) {
      if (made == kNone || !values[made].temporary || (made == step.to && in_place)) continue;
      size_t bytes = 0;
      if (__builtin_mul_overflow(values[made].memory.rows, values[made].memory.cols, &bytes) ||
          __builtin_mul_overflow(bytes, values[made].element, &bytes) || bytes > kMostBytes) {
        return false;
      }
      values[made].offset = blocks.Take(bytes);
    }
    for (const size_t made : {step.to, step.which}) {
      if (made != kNone && values[made].temporary && last_use[made] == kNone) {
        over.push_back(made);
      }
    }
    for (const size_t value : over) blocks.Give(values[value].offset);
  }
  temporary_bytes = blocks.end();
  return true;
}

}  // namespace client
}  // namespace sparsed
