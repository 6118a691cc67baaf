// MinHash: the minimum over a row's columns of a random order of all columns; two rows agree in it
// with a probability equal to their Jaccard similarity. 16 orders are 16 lanes. A row is read once
// for all lanes and stays in registers; signatures never reach memory, only one key a band does.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reorder/minhash.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// foreach_target.h comes first: it includes this file once a target.
#include "kernels/reorder/minhash.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void KeysOfRows(const CsrView& csr, const int32_t* rows, int64_t begin, int64_t end, int first_band,
                int bands, int bsize, int64_t stride, uint32_t* keys) {
  const hn::CappedTag<uint32_t, kMinHashLanes> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  HWY_ALIGN uint32_t flip[kMinHashLanes];
  HWY_ALIGN uint32_t factor[kMinHashLanes];
  HWY_ALIGN uint32_t minima[kMinHashLanes];
  for (int h = 0; h < kMinHashLanes; ++h) {
    const MinHash hash(static_cast<uint32_t>(first_band * bsize + h));
    flip[h] = hash.flip;
    factor[h] = hash.factor;
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = csr.row_offsets[rows[i]];
    const int64_t last = csr.row_offsets[rows[i] + 1];
    for (int h = 0; h < bands * bsize; h += lanes) {
      const auto flips = hn::Load(d, flip + h);
      const auto factors = hn::Load(d, factor + h);
      auto minimum = hn::Set(d, ~uint32_t{0});
      for (int64_t p = first; p < last; ++p) {
        const auto mixed = hn::Set(d, MinHash::Mix(static_cast<uint32_t>(csr.column_indices[p])));
        minimum = hn::Min(minimum, hn::Mul(hn::Xor(mixed, flips), factors));
      }
      hn::Store(minimum, d, minima + h);
    }
    for (int b = 0; b < bands; ++b) {
      uint32_t key = 0;
      for (int h = b * bsize; h < (b + 1) * bsize; ++h) key = MinHash::AddToKey(key, minima[h]);
      keys[b * stride + i] = key;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sparsed
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed {

HWY_EXPORT(KeysOfRows);

void MinHashKeys(const CsrView& csr, std::span<const int32_t> rows, RowRange range, int first_band,
                 int bands, int bsize, int64_t stride, uint32_t* keys) {
  HWY_DYNAMIC_DISPATCH(KeysOfRows)
  (csr, rows.data(), range.begin, range.end, first_band, bands, bsize, stride, keys);
}

}  // namespace sparsed
#endif  // HWY_ONCE
