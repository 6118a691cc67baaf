#include "client/examples/triangles.h"

#include <numeric>
#include <span>
#include <variant>

namespace sparsed::examples {

// C<L> = L * L^T over plus-pair: for each edge, the vertices below both of its ends that are
// neighbours of both. The mask spares all pairs of vertices that are no edge.
absl::StatusOr<int64_t> CountTriangles(const Matrix& lower) {
  double triangles = 0;  // counts of single edges are small, f32 or not
  const absl::StatusOr<SpgemmResult> done = lower.Spgemm(
      lower,
      [&triangles](const RowBlock& block) {
        std::visit(
            [&](auto values) {
              for (const auto count : values) triangles += static_cast<float>(count);
            },
            block.values);
        return absl::OkStatus();
      },
      {.transpose_right = true, .semiring = Semiring::kPlusPair, .mask = lower.name()});
  if (!done.ok()) return done.status();
  return static_cast<int64_t>(triangles);
}

}  // namespace sparsed::examples
