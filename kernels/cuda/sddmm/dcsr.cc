// SDDMM over doubly compressed sparse rows: the kernels of CSR on the stored rows (csr.cu).
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cuda {

SddmmKernel DcsrSddmm() { return SddmmOverStoredRows<CsrSddmm>("cuda.dcsr.row_dots"); }

}  // namespace sparsed::cuda
