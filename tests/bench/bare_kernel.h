// A kernel called in this process, on memory of its own: what every other way is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace sparsed::bench {

/// Where kernels run: the host, or a GPU with a stream of its own. Ends the program if it fails.
class Place {
 public:
  static std::unique_ptr<Place> Host();
  static std::unique_ptr<Place> Gpu(int gpu);
  virtual ~Place() = default;

  /// Memory there, as long as the place is.
  virtual float* Floats(std::span<const float> values) = 0;
  virtual void Back(std::span<float> to, const float* from) = 0;
  /// Into memory there that is somebody else's.
  virtual void Put(float* to, std::span<const float> from) = 0;
  /// Waits for what was queued.
  virtual void Wait() = 0;
  /// cudaStream_t.
  virtual void* stream() const = 0;
};

/// Copies from pinned memory to a GPU and, at the same time, back: what nothing that moves operands
/// and results can do better.
class PinnedCopies {
 public:
  /// `bytes` a copy. Ends the program if it fails.
  static std::unique_ptr<PinnedCopies> Make(int gpu, size_t bytes);
  virtual ~PinnedCopies() = default;
  /// Waits for `count` copies each way.
  virtual void Run(int count) = 0;
};

/// SpMM in f32 by a plan of a server's.
class BareKernel {
 public:
  /// Builds the layout of "<pipeline> / <kernel>" there. Null, with a line on standard error: it
  /// cannot.
  static std::unique_ptr<BareKernel> Make(Place& place, const std::string& plan, int64_t rows,
                                          int64_t cols, std::span<const int64_t> row_offsets,
                                          std::span<const int32_t> column_indices,
                                          std::span<const float> values);
  virtual ~BareKernel() = default;
  /// c = S * b, both without gaps, of `k` columns. On a GPU it is queued.
  virtual void Run(const float* b, float* c, int64_t k, int threads) = 0;
};

}  // namespace sparsed::bench
