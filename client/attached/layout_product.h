// A kernel on a layout that this process mapped, wherever that is.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "client/attached/exported_product.h"
#include "client/attached/site.h"
#include "kernels/bound_run.h"

namespace sparsed {
inline namespace client {

std::optional<ElementType> KernelType(v1::ElementType type);
/// The layout that the server describes, of arrays that are mapped. INVALID_ARGUMENT if it does not
/// fit to them, to the values, to the order or to the matrix.
absl::StatusOr<std::shared_ptr<const Layout>> MappedLayout(const v1::ExportedRun& run,
                                                           const ExportedProduct::Memory& memory);
/// ExportedProduct::Memory::order of so many nonzeros; empty: it is CSR's.
std::span<const int64_t> OrderOf(const ExportedProduct::Memory& memory, int64_t nnz);

inline ConstDense View(const DenseMemory& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}
inline Dense MutableView(const DenseMemory& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}
absl::Status CopyAt(const DenseMemory& from, const DenseMemory& to, size_t element, Site& site);

class LayoutProduct final : public ExportedProduct,
                            public std::enable_shared_from_this<LayoutProduct> {
 public:
  LayoutProduct(LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
                Memory memory, std::shared_ptr<Sites> sites)
      : kernel_(kernel),
        problem_(problem),
        memory_(std::move(memory)),
        layout_(std::move(layout)),
        sites_(std::move(sites)) {}

  const int64_t* order() const override { return OrderOf(memory_, layout_->nnz).data(); }
  Accounted Spmm(const DenseMemory& b, const DenseMemory& c, const DenseMemory* old,
                 const DenseMemory* own, double alpha, double beta,
                 const Where& where) const override;
  Accounted Sddmm(const DenseMemory& a, const DenseMemory& b, const DenseMemory& out,
                  const DenseMemory* own, bool unscaled, const Where& where) const override;

  /// In which order values of nonzeros go in and out.
  enum class Order : uint8_t { kUpload, kCsr };
  /// The same at a site of somebody else's, who sees to it that this outlives what is done there.
  absl::Status SpmmAt(Site& site, const DenseMemory& b, const DenseMemory& c,
                      const DenseMemory* old, const DenseMemory* own, Order order, double alpha,
                      double beta) const;
  absl::Status SddmmAt(Site& site, const DenseMemory& a, const DenseMemory& b,
                       const DenseMemory& out, const DenseMemory* own, Order order,
                       bool unscaled) const;

 private:
  /// At a site of its own.
  Accounted At(const Where& where, const Sites::Work& work) const;
  /// Where nothing that was prepared is kept, as in a graph, not a vendor's: cuSPARSE's then
  /// prepares as it runs, which spoils what is captured.
  LayoutKernel KernelAt(const Site& site) const;
  absl::Status Run(const RunArguments& arguments, Site& site) const;
  /// In the layout's order.
  absl::StatusOr<const void*> Values(const DenseMemory* own, Order order, Site& site) const;
  /// What puts those of an order into CSR's; empty: nothing does.
  std::span<const int64_t> Permutation(Order order) const {
    if (order == Order::kCsr) return {};
    return OrderOf(memory_, layout_->nnz);
  }

  const LayoutKernel kernel_;
  const Problem problem_;
  const Memory memory_;
  const std::shared_ptr<const Layout> layout_;
  const std::shared_ptr<Sites> sites_;  ///< goes first, and waits for what uses the others
};

}  // namespace client
}  // namespace sparsed
