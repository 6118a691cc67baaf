#pragma once

namespace sparsed::test {

/// An illegal access: every later call of the process to the thread's GPU fails, as this one does.
const char* BreakTheDevice();

}  // namespace sparsed::test
