// Attention along the nonzeros, and its gradients, as steps of chains.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/execution/chain_call.h"

namespace sparsed::engine {
namespace {

/// Of sums, which log_sums are of.
ElementType SumTypeOf(ElementType type) { return IsHalf(type) ? ElementType::kF32 : type; }

std::string PlanOf(const Layout& layout, DeviceKind device, std::string_view kernel) {
  return fmt::format("{} / {}.csr.{}", layout.pipeline, device == DeviceKind::kCpu ? "cpu" : "cuda",
                     kernel);
}

}  // namespace

absl::Status ChainCall::CheckScores(const AttentionScores& scores, const Step& step) {
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  if (scores.heads > kMostHeads) {
    return absl::InvalidArgumentError(
        fmt::format("it is of {} heads, at most {} may be", scores.heads, kMostHeads));
  }
  const bool sums = scores.kind == EdgeScores::Kind::kSum;
  const bool gatv2 = scores.kind == EdgeScores::Kind::kGatv2;
  if (gatv2 != scores.att.has_value()) {
    return absl::InvalidArgumentError(gatv2 ? "its scores are of GATv2, which needs an att"
                                            : "its scores have an att, which only GATv2's do");
  }
  absl::Status status =
      UseAs("its left", scores.left, type, pattern.rows(), sums ? scores.heads : -1);
  if (!status.ok()) return status;
  const int64_t k = values_[scores.left].shape.cols;
  status = UseAs("its right", scores.right, type, pattern.cols(), k);
  if (status.ok() && !sums) status = CheckHeads("its left", k, scores.heads);
  if (status.ok() && gatv2) status = UseAs("its att", *scores.att, type, 1, k);
  if (!status.ok() || !scores.bias) return status;
  const absl::StatusOr<Value*> bias = Use("its bias", *scores.bias);
  const bool shared = bias.ok() && (*bias)->shape.cols == 1;
  return UseAsNonzeros("its bias", *scores.bias, type, pattern.nnz(), shared ? 1 : scores.heads);
}

absl::Status ChainCall::CheckStep(const AttentionStep& attention, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(attention.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  const int64_t heads = attention.scores.heads;
  absl::Status status = CheckScores(attention.scores, step);
  if (status.ok()) status = UseAs("its values", attention.values, type, pattern.cols(), -1, "L");
  if (!status.ok()) return status;
  const int64_t width = values_[attention.values].shape.cols;
  step.width = values_[attention.scores.right].shape.cols + width;
  status = CheckHeads("a row of its values", width, heads);
  AddValue({pattern.rows(), width, width, type});
  AddValue({pattern.rows(), heads, heads, SumTypeOf(type)});
  return status;
}

absl::Status ChainCall::CheckStep(const AttentionGradientStep& of, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(of.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  step.on_transpose = true;
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  if (!of.of_left && !of.of_right && !of.of_values && !of.of_bias && !of.of_att) {
    return absl::InvalidArgumentError("no gradient is wanted");
  }
  if (of.of_bias && !of.scores.bias) {
    return absl::InvalidArgumentError("the gradient of its bias is wanted, but it has none");
  }
  if (of.of_att && !of.scores.att) {
    return absl::InvalidArgumentError("the gradient of its att is wanted, but it has none");
  }
  const int64_t heads = of.scores.heads;
  absl::Status status = CheckScores(of.scores, step);
  if (status.ok()) status = UseAs("its values", of.values, type, pattern.cols(), -1, "L");
  if (!status.ok()) return status;
  const DenseShape values = values_[of.values].shape;
  status = CheckHeads("a row of its values", values.cols, heads);
  if (status.ok()) status = UseAs("its result", of.result, type, pattern.rows(), values.cols);
  if (status.ok()) {
    status = UseAs("its log_sums", of.log_sums, SumTypeOf(type), pattern.rows(), heads);
  }
  if (status.ok()) status = UseAs("its gradient", of.gradient, type, pattern.rows(), values.cols);
  if (!status.ok()) return status;
  // Twice as many along rows, and along columns, where those are wanted.
  const int64_t passes =
      (of.of_left || of.of_bias || of.of_att ? 1 : 0) + (of.of_right || of.of_values ? 1 : 0);
  step.width = 2 * passes * (values_[of.scores.right].shape.cols + values.cols);
  // Copies: to add one may move the others.
  const DenseShape left = values_[of.scores.left].shape, right = values_[of.scores.right].shape;
  if (of.of_left) AddValue(left);
  if (of.of_right) AddValue(right);
  if (of.of_values) AddValue(values);
  if (of.of_bias) AddNonzeros(step.matrix, values_[*of.scores.bias].shape.cols);
  if (of.of_att) AddValue({1, left.cols, left.cols, type});
  return status;
}

absl::StatusOr<ConstDense> ChainCall::ViewOf(size_t value, const MatrixLease& order,
                                             WorkerSlot& slot) {
  const absl::StatusOr<PlacedDense> placed = InOrder(value, order, slot);
  if (!placed.ok()) return placed.status();
  return placed->View(placed->shape.cols);
}

absl::Status ChainCall::PlaceScores(const AttentionScores& from, const Step& step, EdgeScores& to,
                                    WorkerSlot& slot) {
  to.kind = from.kind;
  to.heads = from.heads;
  to.scale = from.scale;
  to.slope = from.slope;
  const absl::StatusOr<ConstDense> left = ViewOf(from.left, nullptr, slot);
  if (!left.ok()) return left.status();
  to.left = *left;
  const absl::StatusOr<ConstDense> right = ViewOf(from.right, nullptr, slot);
  if (!right.ok()) return right.status();
  to.right = *right;
  if (from.att) {
    const absl::StatusOr<ConstDense> att = ViewOf(*from.att, nullptr, slot);
    if (!att.ok()) return att.status();
    to.att = *att;
  }
  if (!from.bias) return absl::OkStatus();
  const absl::StatusOr<ConstDense> bias = ViewOf(*from.bias, OrderOf(step.matrix), slot);
  if (!bias.ok()) return bias.status();
  to.bias = *bias;
  return absl::OkStatus();
}

absl::Status ChainCall::Run(const AttentionStep& spec, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<std::shared_ptr<const Layout>> rows =
      PlacePattern(step.matrix, /*transposed=*/false, slot);
  if (!rows.ok()) return rows.status();
  EdgeAttention attention{**rows, {}};
  if (absl::Status s = PlaceScores(spec.scores, step, attention.scores, slot); !s.ok()) return s;
  const absl::StatusOr<ConstDense> values = ViewOf(spec.values, nullptr, slot);
  if (!values.ok()) return values.status();
  attention.values = *values;
  const absl::StatusOr<PlacedDense> out = NewValue(step.value, slot);
  if (!out.ok()) return out.status();
  attention.out = out->MutableView(out->shape.cols);
  const absl::StatusOr<PlacedDense> sums = NewValue(step.value + 1, slot);
  if (!sums.ok()) return sums.status();
  attention.log_sums = sums->MutableView(sums->shape.cols);
  step.done.plan = PlanOf(**rows, slot.backend->id().kind, "attention");
  const Pass pass = [attention, type = step.matrix->type()](WorkerSlot& on,
                                                            const RunOptions& options) {
    return on.backend->ComputeEdgeAttention(attention, type, on, options);
  };
  return Compute(step, pass, /*resumes=*/true, {*out, *sums}, slot);
}

absl::Status ChainCall::Run(const AttentionGradientStep& spec, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<std::shared_ptr<const Layout>> rows =
      PlacePattern(step.matrix, /*transposed=*/false, slot);
  if (!rows.ok()) return rows.status();
  const absl::StatusOr<std::shared_ptr<const Layout>> columns =
      PlacePattern(step.matrix, /*transposed=*/true, slot);
  if (!columns.ok()) return columns.status();
  EdgeAttentionGradient gradient{**rows, **columns, {}};
  if (absl::Status s = PlaceScores(spec.scores, step, gradient.scores, slot); !s.ok()) return s;
  const std::pair<size_t, ConstDense*> used[] = {{spec.values, &gradient.values},
                                                 {spec.result, &gradient.out},
                                                 {spec.log_sums, &gradient.log_sums},
                                                 {spec.gradient, &gradient.gradient}};
  for (const auto& [value, to] : used) {
    const absl::StatusOr<ConstDense> view = ViewOf(value, nullptr, slot);
    if (!view.ok()) return view.status();
    *to = *view;
  }
  const std::pair<bool, Dense*> wanted[] = {{spec.of_left, &gradient.left},
                                            {spec.of_right, &gradient.right},
                                            {spec.of_values, &gradient.values_gradient},
                                            {spec.of_bias, &gradient.bias},
                                            {spec.of_att, &gradient.att}};
  size_t value = step.value;
  std::vector<PlacedDense> results;
  for (const auto& [is_wanted, to] : wanted) {
    if (!is_wanted) continue;
    const absl::StatusOr<PlacedDense> made = NewValue(value++, slot);
    if (!made.ok()) return made.status();
    *to = made->MutableView(made->shape.cols);
    results.push_back(*made);
  }
  step.done.plan = PlanOf(**rows, slot.backend->id().kind, "attention_gradient");
  const Pass pass = [gradient, type = step.matrix->type()](WorkerSlot& on,
                                                           const RunOptions& options) {
    return on.backend->ComputeEdgeAttentionGradient(gradient, type, on, options);
  };
  return Compute(step, pass, /*resumes=*/true, std::move(results), slot);
}

}  // namespace sparsed::engine
