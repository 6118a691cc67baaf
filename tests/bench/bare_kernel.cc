#include "tests/bench/bare_kernel.h"

#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/bound_run.h"
#include "kernels/formats/csr.h"
#include "kernels/recipe.h"

namespace sparsed::bench {
namespace {

class OnLayout final : public BareKernel {
 public:
  OnLayout(LayoutKernel kernel, std::shared_ptr<const Layout> layout, Buffer values)
      : kernel_(kernel), layout_(std::move(layout)), values_(std::move(values)) {}

  void Run(const float* b, float* c, int64_t k, int threads) override {
    const int64_t rows = layout_->transposed ? layout_->cols : layout_->rows;
    const int64_t cols = layout_->transposed ? layout_->rows : layout_->cols;
    RunArguments arguments;
    arguments.values = values_.data();
    arguments.dense[0] = {b, cols, k, k};
    arguments.result = {c, rows, k, k};
    const BoundRun run(kernel_, {.type = ElementType::kF32, .k = k}, layout_, arguments);
    const size_t bytes = run.Workspace(threads);
    if (workspace_.size() < bytes) workspace_ = HeapMemory().Allocate(bytes).value();
    Context context;
    context.threads = threads;
    context.workspace = {workspace_.mutable_data(), workspace_.size()};
    if (const absl::Status status = run.Run(context); !status.ok()) std::cerr << status << "\n";
  }

 private:
  const LayoutKernel kernel_;
  const std::shared_ptr<const Layout> layout_;
  const Buffer values_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<BareKernel> BareKernel::Make(const std::string& plan, int64_t rows, int64_t cols,
                                             std::span<const int64_t> row_offsets,
                                             std::span<const int32_t> column_indices,
                                             std::span<const float> values) {
  const size_t slash = plan.find(" / ");
  const std::string recipe = plan.substr(0, slash);
  const std::optional<LayoutKernel> kernel =
      FindLayoutKernel(Operation::kSpmm, slash == std::string::npos ? "" : plan.substr(slash + 3));
  const auto parsed = ParseRecipe(recipe);
  if (!kernel || !parsed.ok()) {
    std::cerr << "no kernel and layout for " << plan << "\n";
    return nullptr;
  }
  BuildContext context;
  context.memory = &HeapMemory();
  context.threads = 2;
  auto built = BuildLayout(*parsed, {rows, cols, row_offsets, column_indices, {}}, context);
  if (!built.ok() || built->skipped) {
    std::cerr << "cannot build " << recipe << "\n";
    return nullptr;
  }
  auto layout = std::make_shared<const Layout>(std::move(built->layout));
  Buffer slots =
      HeapMemory().Allocate(static_cast<size_t>(layout->value_slots) * sizeof(float)).value();
  PlaceValues(*layout, ElementType::kF32, values.data(), slots.mutable_data(), 2);
  return std::make_unique<OnLayout>(*kernel, std::move(layout), std::move(slots));
}

}  // namespace sparsed::bench
