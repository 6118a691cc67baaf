#pragma once

namespace sparsed::test {

/// An illegal access: every later call of the process to the GPU fails.
void BreakTheDevice();

}  // namespace sparsed::test
