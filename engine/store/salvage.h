// A new catalog from what blobs say of themselves, where the old one is damaged or missing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/file_system.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {

struct SalvageReport {
  std::vector<std::string> saved;  ///< a sentence for each matrix and buffer
  std::vector<std::string> lost;   ///< for each that is not, and each blob that is damaged: why
  std::string moved_to;            ///< the folder of the old catalog and of blobs that no row needs
};

/// Rebuilds the catalog of the store in `directory`, which no server may be using. Matrices and
/// buffers come back with their names if their blobs, or what can still be read of the
/// old catalog, tell these; a matrix of which only its arrays are known is named by `hash_pattern`.
/// Layouts, plans and measurements are left to the next preparation. Nothing is deleted. Reads
/// every blob. Errors: FAILED_PRECONDITION (the catalog is whole, there are no blobs, a server uses
/// the directory), otherwise as the file system's; after any of them the directory is as damaged as
/// it was, and can be salvaged again.
absl::StatusOr<SalvageReport> SalvageStore(
    FileSystem& files, const std::string& directory,
    const std::function<std::string(const CsrView&)>& hash_pattern);

}  // namespace sparsed::engine
