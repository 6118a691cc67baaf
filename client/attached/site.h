// Where kernels of this process run: on the CPU in a team of the thread that calls, on a GPU in a
// stream of the caller's. Products and chains alike are done there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/attached/exported_product.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/layout.h"
#include "kernels/nonzero_passes.h"
#include "kernels/problem.h"
#include "kernels/row_products.h"

namespace sparsed {
inline namespace client {

/// Where one run at a time works: memory, and what is done there besides kernels with a plan. All
/// is done, or queued, in the order of the calls, and on memory of its device.
class Site {
 public:
  Site() = default;
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;
  virtual ~Site() = default;

  virtual Context context() const = 0;
  /// Runs `kernel`, or queues it: what counts as the run's time, if the site measures that.
  virtual absl::Status Timed(const std::function<absl::Status()>& kernel) { return kernel(); }
  virtual MemorySource& memory() = 0;
  /// Whether the next run is done here, too; else all is part of a graph, which keeps the site.
  virtual bool keeps() const = 0;
  /// `used` stays until nothing that is done here uses it any more.
  virtual void Keep(const std::shared_ptr<const void>& used) = 0;
  /// Waits for what is queued, and lets go of what was kept for that alone.
  virtual absl::Status Settle() { return absl::OkStatus(); }

  /// Row i of `to` is row order[i] of `from`.
  virtual absl::Status Gather(std::span<const int64_t> order, ElementType type,
                              const ConstDense& from, const Dense& to) = 0;
  /// Row order[i] of `to` is row i of `from`.
  virtual absl::Status Scatter(std::span<const int64_t> order, ElementType type,
                               const ConstDense& from, const Dense& to) = 0;
  virtual absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                                   void* slots) = 0;
  virtual absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t row_bytes, size_t rows) = 0;
  // As those of kernels/.
  virtual absl::Status ComputeRowProducts(const RowProducts& products, ElementType type) = 0;
  virtual absl::Status ComputeHeadDots(const HeadDots& dots, ElementType type) = 0;
  virtual absl::Status RowSoftmax(std::span<const int64_t> row_offsets, ElementType type,
                                  double scale, const ConstDense& x, const Dense& y) = 0;
  virtual absl::Status RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type,
                                          double scale, const ConstDense& y, const ConstDense& dy,
                                          const Dense& dx) = 0;
  virtual absl::Status ScaleNonzeros(const NonzeroScaling& scaling, ElementType type) = 0;
  virtual absl::Status TotalNonzeros(const NonzeroTotals& totals, ElementType type) = 0;
  virtual absl::Status ComputeEdgeAttention(const EdgeAttention& attention, ElementType type) = 0;
  virtual absl::Status ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                                    ElementType type) = 0;
  virtual absl::Status WeightedSum(std::span<const WeightedTerm> terms, ElementType type,
                                   const Dense& to) = 0;

  /// Makes `buffer` at least so large; its contents are lost. Waits for what is queued only where
  /// there is no room before that is done, and never in a graph.
  absl::Status Grow(Buffer& buffer, size_t bytes);
  /// What `prepare` makes for the runs of `owner` with these leading dimensions, kept for the next
  /// of them while there is an owner; null: they run without.
  using LeadingDimensions = std::pair<int64_t, int64_t>;
  absl::StatusOr<void*> PreparedFor(
      const std::weak_ptr<const void>& owner, const LeadingDimensions& leading_dimensions,
      const std::function<absl::StatusOr<std::shared_ptr<void>>()>& prepare);

  Buffer scratch;
  Buffer result;       ///< SDDMM's, before they are put in order
  Buffer ordered;      ///< values, in CSR's order or the caller's
  Buffer slots;        ///< values in the layout's order
  Buffer temporaries;  ///< a chain's values

 private:
  struct Prepared {
    std::weak_ptr<const void> owner;
    LeadingDimensions leading_dimensions;
    std::shared_ptr<void> state;
  };
  std::vector<Prepared> prepared_;
};

/// The sites of one who runs, of whom many threads and streams may want something at once.
/// Thread-safe. They must go before what their runs use, unless that is kept there.
class Sites {
 public:
  using Work = std::function<absl::Status(Site&)>;

  virtual ~Sites() = default;
  /// Does `work` at a site that nobody else uses meanwhile.
  virtual ExportedProduct::Accounted At(const ExportedProduct::Where& where, const Work& work) = 0;
};

std::shared_ptr<Sites> MakeHostSites();

/// Of which runs a clock times some.
enum class Timing : uint8_t {
  kKernels,  ///< what a run does in Site::Timed
  kRuns,     ///< all that a run does
};
/// On a GPU of this process. `clock`: that of the runs before, or null, and that of the next.
std::shared_ptr<Sites> MakeGpuSites(int gpu, Timing timing,
                                    std::shared_ptr<ExportedProduct::Clock>& clock);

/// Calls `destroy`, which may wait for the GPU, on a thread of its own, after all that came there
/// before it. Whoever drops what a graph kept may call nothing of CUDA's, either.
void LetGo(int gpu, std::function<void()> destroy);
template <typename T>
std::shared_ptr<T> LetGoLater(T* object, int gpu) {
  return std::shared_ptr<T>(object, [gpu](T* gone) { LetGo(gpu, [gone] { delete gone; }); });
}

}  // namespace client
}  // namespace sparsed
