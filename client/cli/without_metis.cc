// Where METIS is not installed, in the place of metis_partition.cc.
#include "client/cli/metis_partition.h"

namespace sparsed::cli {

absl::StatusOr<std::vector<int32_t>> MetisPartition(const GraphPattern& /*pattern*/,
                                                    int /*parts*/) {
  return absl::UnimplementedError(
      "this program was built without METIS: install libmetis-dev, configure and build again, or "
      "name a file that METIS wrote");
}

}  // namespace sparsed::cli
