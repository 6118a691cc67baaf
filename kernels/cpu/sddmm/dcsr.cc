// SDDMM over doubly compressed sparse rows: the kernel of CSR on the stored rows (csr.cc).
#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cpu {
namespace {

const SddmmKernel& OfCsr(const Problem&, const Layout&) {
  static const SddmmKernel kernel = CsrSddmm();
  return kernel;
}

}  // namespace

SddmmKernel DcsrSddmm() { return SddmmOverStoredRows<OfCsr>("cpu.dcsr.dot", DeviceKind::kCpu); }

}  // namespace sparsed::cpu
