// Who asked for something that ends later.
#pragma once

#include <string>

namespace sparsed::engine {

/// For the log alone; empty where nobody asked, as for what a start restores.
struct Requester {
  std::string tenant, caller, request_id;
  std::string matrix;  ///< what he asked about
};

}  // namespace sparsed::engine
