// What a kernel writes beyond its workspace.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/kernel_table.h"
#include "tests/gpu/gpu.h"

namespace sparsed::test {

/// Runs with a workspace of exactly so many bytes, NaN all of them, on the GPU's stream, and waits
/// for the end; expects that nothing is written behind it.
template <typename Run>
absl::Status RunInWorkspace(Gpu& gpu, size_t bytes, const Run& run) {
  constexpr size_t kGuard = 256;
  Buffer workspace = gpu.Allocate(bytes + kGuard);
  Must(gpu.stream().Fill(workspace.mutable_data(), 0xff, bytes + kGuard));
  Context context;
  context.workspace = {workspace.mutable_data(), bytes};
  context.stream = gpu.stream().handle();
  const absl::Status started = run(context);
  const absl::Status done = gpu.stream().Synchronize();
  unsigned char guard[kGuard];
  gpu.Download(guard, workspace.data() + bytes, kGuard);
  for (const unsigned char byte : guard) EXPECT_EQ(byte, 0xff) << "behind the workspace";
  return started.ok() ? done : started;
}

}  // namespace sparsed::test
