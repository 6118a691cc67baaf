#include "kernels/features/dense_tiles.h"

#include <atomic>

#include "kernels/formats/panel_columns.h"

namespace sparsed {

absl::StatusOr<double> DenseTileRatio(const CsrView& csr, int64_t panel, int64_t min_dense,
                                      const BuildContext& context) {
  std::atomic<int64_t> dense = 0;
  const absl::Status status =
      ForEachPanel(Panels{csr, panel}, context, [&](int64_t, PanelColumns& columns) {
        int64_t count = 0;
        for (int64_t i = 0; i < columns.distinct(); ++i) {
          const int64_t nonzeros = columns.Distinct(i).number;
          if (nonzeros >= min_dense) count += nonzeros;
        }
        dense.fetch_add(count, std::memory_order_relaxed);
      });
  if (!status.ok()) return status;
  if (csr.nnz() == 0) return 0.0;
  return static_cast<double>(dense.load()) / static_cast<double>(csr.nnz());
}

}  // namespace sparsed
