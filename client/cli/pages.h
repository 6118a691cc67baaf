// What is shown again and again until it is stopped: the pages of top and of cluster top.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/cli/output.h"
#include "client/cli/report.h"

namespace sparsed::cli {

struct PageArguments {
  double interval = 2;  ///< seconds
  bool once = false;
  int64_t count = 0;  ///< pages; 0: no end
};

void AddPageOptions(CLI::App& command, const std::shared_ptr<PageArguments>& arguments);

struct Page {
  Json json;
  /// As people read it, of at most so many lines where it can be shorter.
  std::function<std::string(int lines)> text;
};

/// Shows what `next` returns after each interval: over the page before in a terminal, else one
/// below the other. The one page of `once` is the report.
absl::StatusOr<Report> ShowPages(const PageArguments& arguments, OutputFormat format,
                                 const std::function<absl::StatusOr<Page>()>& next);

}  // namespace sparsed::cli
