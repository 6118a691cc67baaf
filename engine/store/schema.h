// The tables of the catalog and the way from older ones to them.
#pragma once

#include "absl/status/status.h"
#include "engine/store/database.h"

namespace sparsed::engine {

/// Makes the tables in an empty database, or brings older ones up to date. FAILED_PRECONDITION if a
/// newer program wrote them, or another program altogether; DATA_LOSS if the database is empty and
/// must not be: `had_data`.
absl::Status PrepareSchema(Database& database, bool had_data);

}  // namespace sparsed::engine
