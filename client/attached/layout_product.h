// A kernel on a layout that this process mapped, wherever that is: the CPU's products, and what a
// GPU's have in common with them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/attached/exported_product.h"
#include "kernels/bound_run.h"

namespace sparsed {
inline namespace client {

/// Where one run at a time works: memory, and what is done there besides the kernel.
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
  /// Called before memory of this site goes that earlier runs may still use.
  virtual absl::Status Settle() = 0;
  /// Whether what a kernel prepares may be kept for the site's next run.
  virtual bool keeps() const = 0;
  /// to[i] = from[order[i]] for `count` (i64) positions.
  virtual absl::Status Gather(const int64_t* order, int64_t count, ElementType type,
                              const void* from, void* to) = 0;
  /// to[order[i]] = from[i].
  virtual absl::Status Scatter(const int64_t* order, int64_t count, ElementType type,
                               const void* from, void* to) = 0;
  virtual absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                                   void* slots) = 0;
  virtual absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t row_bytes, size_t rows) = 0;

  absl::Status Grow(Buffer& buffer, size_t bytes);

  Buffer scratch;
  Buffer result;   ///< SDDMM's, before they are put in order
  Buffer ordered;  ///< values, in CSR's order or the caller's
  Buffer slots;    ///< values in the layout's order
  /// What the kernel prepared for many runs, if it could, and with which leading dimensions.
  std::shared_ptr<void> prepared;
  std::optional<std::pair<int64_t, int64_t>> prepared_for;
};

class LayoutProduct : public ExportedProduct {
 public:
  LayoutProduct(LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
                Memory memory)
      : kernel_(kernel),
        problem_(problem),
        memory_(std::move(memory)),
        layout_(std::move(layout)) {}

  Accounted Spmm(const DenseMemory& b, const DenseMemory& c, const DenseMemory* old,
                 const DenseMemory* own, double alpha, double beta, const Where& where) const final;
  Accounted Sddmm(const DenseMemory& a, const DenseMemory& b, const DenseMemory& out,
                  const DenseMemory* own, bool unscaled, const Where& where) const final;

 protected:
  using Work = std::function<absl::Status(Site&)>;
  /// Does `work` at a site that nobody else uses meanwhile.
  virtual Accounted At(const Where& where, const Work& work) const = 0;

 private:
  absl::Status Run(const RunArguments& arguments, Site& site) const;
  absl::Status CopyAt(const DenseMemory& from, const DenseMemory& to, Site& site) const;
  /// In the layout's order.
  absl::StatusOr<const void*> Values(const DenseMemory* own, Site& site) const;
  /// Null: the order is CSR's.
  const int64_t* order() const;

  const LayoutKernel kernel_;
  const Problem problem_;
  const Memory memory_;
  const std::shared_ptr<const Layout> layout_;
};

/// On a GPU of this process. `clock`: as ExportedProduct::Make's.
std::shared_ptr<const ExportedProduct> MakeGpuProduct(
    LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
    ExportedProduct::Memory memory, int gpu, std::shared_ptr<ExportedProduct::Clock>& clock);

}  // namespace client
}  // namespace sparsed
