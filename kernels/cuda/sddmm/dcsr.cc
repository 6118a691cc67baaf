// SDDMM over doubly compressed sparse rows: the kernel of CSR on the stored rows (csr.cu).
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cuda {
namespace {

const SddmmKernel& OfCsr(const Problem&, const Layout&) {
  static const SddmmKernel kernel = CsrSddmm();
  return kernel;
}

}  // namespace

SddmmKernel DcsrSddmm() {
  return SddmmOverStoredRows<OfCsr>("cuda.dcsr.row_dots", DeviceKind::kCuda);
}

}  // namespace sparsed::cuda
