// Functions of other libraries that the program defines itself, so that those who find them by
// their names at run time come to the program's first.
#pragma once

#include <dlfcn.h>

namespace sparsed::server {

/// The function of that name that the program's own one hides.
template <typename Function>
Function* Hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace sparsed::server
