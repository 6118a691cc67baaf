#include "tools/scale/partition.h"

namespace sparsed::tools {

absl::StatusOr<Partition> MetisPartition(const CsrView& /*csr*/, int /*parts*/) {
  return absl::UnimplementedError(
      "this sparsed_scale was built without METIS: install libmetis-dev (deploy/install-packages "
      "scale), configure and build again, or name a file that METIS wrote");
}

}  // namespace sparsed::tools
