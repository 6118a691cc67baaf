// Which kernels and layouts a process has.
#pragma once

#include <string>

namespace sparsed {

/// Of this build of the kernels' library (the linker's build id, in hexadecimal): processes with
/// the same one have the same kernels, and mean the same by a layout. Empty if it has none.
const std::string& KernelsId();

}  // namespace sparsed
