#include "client/examples/galerkin.h"

namespace sparsed::examples {

// A * P stays on the server; only the coarse operator comes back.
absl::StatusOr<CsrMatrix> GalerkinProduct(const Client& client, const Matrix& a, const Matrix& p,
                                          const std::string& scratch) {
  const absl::StatusOr<SpgemmResult> kept = a.SpgemmKeep(p, scratch, {.replace = true});
  if (!kept.ok()) return kept.status();
  const Matrix ap = client.MatrixNamed(scratch);
  absl::StatusOr<CsrMatrix> coarse = p.SpgemmCollect(ap, {.transpose_left = true});
  const absl::Status deleted = ap.Delete();
  if (coarse.ok() && !deleted.ok()) return deleted;
  return coarse;
}

}  // namespace sparsed::examples
