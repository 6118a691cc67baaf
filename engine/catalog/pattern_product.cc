#include "engine/catalog/pattern_product.h"

#include <fmt/format.h>

namespace sparsed::engine {

std::string FactorPipeline(std::string_view pipeline, bool transposed) {
  return transposed ? fmt::format("transpose > {}", pipeline) : std::string(pipeline);
}

std::string FactorsText(const PatternPair& pair, std::string_view left_hash,
                        std::string_view pipeline, std::string_view kernel) {
  if (pipeline == kCsr) return ToString(pair, left_hash);
  const SpgemmKernel* const known = FindSpgemmKernel(kernel);
  const bool left_too = known != nullptr && known->left_too;
  const std::string left = left_too              ? FactorPipeline(pipeline, pair.transpose_left)
                           : pair.transpose_left ? "transpose"
                                                 : std::string(kCsr);
  const std::string right = FactorPipeline(pipeline, pair.transpose_right);
  return pair.right == left_hash ? fmt::format("{} * {}", left, right)
                                 : fmt::format("{} * {} {}", left, right, pair.right);
}

std::optional<FactorLayouts> FindFactorLayouts(const PatternProduct& product,
                                               const SpgemmKernel& kernel,
                                               std::string_view pipeline) {
  FactorLayouts layouts;
  if (kernel.layout_kind == kCsr) return layouts;
  layouts.right = product.right->FindLayout(FactorPipeline(pipeline, product.transpose_right));
  if (layouts.right == nullptr) return std::nullopt;
  if (!kernel.left_too) return layouts;
  layouts.left = product.left->FindLayout(FactorPipeline(pipeline, product.transpose_left));
  if (layouts.left == nullptr) return std::nullopt;
  return layouts;
}

std::optional<FactorLayouts> FindFactorLayouts(const PatternProduct& product, const Plan& plan) {
  const SpgemmKernel* const kernel = FindSpgemmKernel(plan.kernel);
  if (kernel == nullptr) return std::nullopt;
  return FindFactorLayouts(product, *kernel, plan.pipeline);
}

bool UsesLayout(const Plan& plan, std::string_view left, const Pattern& pattern,
                std::string_view pipeline) {
  if (!plan.pair) return left == pattern.hash() && plan.pipeline == pipeline;
  const SpgemmKernel* const kernel = FindSpgemmKernel(plan.kernel);
  if (kernel == nullptr || kernel->layout_kind == kCsr) return false;
  const bool as_right = plan.pair->right == pattern.hash() &&
                        FactorPipeline(plan.pipeline, plan.pair->transpose_right) == pipeline;
  const bool as_left = kernel->left_too && left == pattern.hash() &&
                       FactorPipeline(plan.pipeline, plan.pair->transpose_left) == pipeline;
  return as_right || as_left;
}

}  // namespace sparsed::engine
