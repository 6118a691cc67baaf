// What can still be read of a damaged catalog.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/store/description.h"
#include "engine/store/file_system.h"

namespace sparsed::engine {

/// What whole pages of the catalog at `path` say of the arrays of patterns, matrices and held dense
/// matrices, by the numbers of their blobs. Nothing if there is no catalog or it is not readable at
/// all. Changes nothing. Errors: FAILED_PRECONDITION if a server has it open.
absl::StatusOr<std::map<int64_t, ArrayDescription>> ReadCatalogRemains(FileSystem& files,
                                                                       const std::string& path);

}  // namespace sparsed::engine
