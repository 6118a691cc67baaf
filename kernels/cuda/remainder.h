// The remainder of adaptive sparse tiles whose rows have an order of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/formats/aspt.h"

namespace sparsed::cuda {

/// Bytes of workspace that RemainderTargets needs, a multiple of 256.
inline size_t RemainderTargetBytes(const Layout& layout) {
  const bool composed =
      layout.Find("row_order") != nullptr && layout.Find("remainder_order") != nullptr;
  return composed ? (static_cast<size_t>(layout.rows) * sizeof(int32_t) + 255) / 256 * 256 : 0;
}

/// The row of the matrix that each row of the remainder belongs to; null: its own number. Queued.
inline absl::StatusOr<const int32_t*> RemainderTargets(cudaStream_t stream, const AsptView& s,
                                                       std::span<std::byte> workspace) {
  if (s.remainder_order.empty()) return s.row_order.empty() ? nullptr : s.row_order.data();
  if (s.row_order.empty()) return s.remainder_order.data();
  auto* const targets = reinterpret_cast<int32_t*>(workspace.data());
  const cudaError_t error =
      ComposeOrders(stream, s.row_order.data(), s.remainder_order.data(), targets, s.rows);
  if (error != cudaSuccess) return ToStatus(error, "ordering the remainder");
  return targets;
}

}  // namespace sparsed::cuda
