// What `top` shows: a page from two looks at a server's counters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/cli/json.h"
#include "client/cli/report.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// What the server said at one moment.
struct Look {
  sparsed::Stats stats;
  std::vector<TenantInfo> tenants;
};

/// Rates are those between the two looks; of a single one, the averages since the server's start.
Json TopJson(const ServerInfo& server, const Look* before, const Look& now);
/// What its tables can be sorted by.
std::vector<Listing::Column> TopColumns();
/// Each table that has such a column; descending with "-" in front. Others stay as they are.
void SortTop(std::string_view by, Json& page);
/// In at most so many lines (0: any number): tables that are too long for that have about as many
/// rows each, the first of them, and say how many more there are.
std::string TopText(const Json& page, int lines = 0);

}  // namespace sparsed::cli
