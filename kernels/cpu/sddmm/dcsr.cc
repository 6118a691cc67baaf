// SDDMM over doubly compressed sparse rows: the kernel of CSR on the stored rows (csr.cc).
#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cpu {

SddmmKernel DcsrSddmm() { return SddmmOverStoredRows<CsrSddmm>("cpu.dcsr.dot"); }

}  // namespace sparsed::cpu
