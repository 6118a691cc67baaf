#include "kernels/bound_run.h"

#include <algorithm>
#include <vector>

namespace sparsed {
namespace {

SpmmArguments ArgumentsOf(const SpmmKernel& /*kernel*/, const Layout& layout,
                          const RunArguments& from) {
  return {layout, from.values, from.dense[0], from.result, from.alpha, from.beta, from.reduction};
}

SddmmArguments ArgumentsOf(const SddmmKernel& /*kernel*/, const Layout& layout,
                           const RunArguments& from) {
  return {layout, from.values, from.dense[0], from.dense[1], from.result.data};
}

template <typename Kernel>
std::vector<LayoutKernel> Listed(std::span<const Kernel> kernels) {
  return {kernels.begin(), kernels.end()};
}

}  // namespace

std::string_view LayoutKernel::name() const {
  return std::visit([](const auto* kernel) { return kernel->name; }, kernel_);
}

bool LayoutKernel::from_library() const {
  return std::visit([](const auto* kernel) { return kernel->from_library; }, kernel_);
}

bool LayoutKernel::resumes() const {
  return std::visit([](const auto* kernel) { return kernel->resumes; }, kernel_);
}

bool LayoutKernel::reduces() const {
  const auto* const* const spmm = std::get_if<const SpmmKernel*>(&kernel_);
  return spmm != nullptr && (*spmm)->reduces;
}

bool LayoutKernel::Serves(const Problem& problem, const Layout& layout) const {
  return std::visit(
      [&](const auto* kernel) {
        return kernel->layout_kind == layout.kind && kernel->device == problem.device &&
               kernel->supports(SeenThrough(layout, problem), layout);
      },
      kernel_);
}

std::span<const LayoutKernel> LayoutKernels(Operation operation) {
  static const auto* const spmm = new std::vector<LayoutKernel>(Listed(SpmmKernels()));
  static const auto* const sddmm = new std::vector<LayoutKernel>(Listed(SddmmKernels()));
  switch (operation) {
    case Operation::kSpmm:
      return *spmm;
    case Operation::kSddmm:
      return *sddmm;
    case Operation::kSpgemm:
      break;
  }
  return {};
}

std::optional<LayoutKernel> FindLayoutKernel(Operation operation, std::string_view name) {
  const std::span<const LayoutKernel> kernels = LayoutKernels(operation);
  const auto found = std::ranges::find(kernels, name, &LayoutKernel::name);
  return found == kernels.end() ? std::nullopt : std::optional(*found);
}

template <typename Use>
auto BoundRun::Visit(const Use& use) const {
  return std::visit(
      [&](const auto* kernel) { return use(*kernel, ArgumentsOf(*kernel, *layout_, arguments_)); },
      kernel_.kernel_);
}

std::pair<int64_t, int64_t> BoundRun::leading_dimensions() const {
  const bool sddmm = problem_.operation == Operation::kSddmm;
  return {arguments_.dense[0].leading_dimension,
          sddmm ? arguments_.dense[1].leading_dimension : arguments_.result.leading_dimension};
}

size_t BoundRun::Workspace(int threads) const {
  return Visit([&](const auto& kernel, const auto& /*arguments*/) {
    return kernel.workspace(problem_, *layout_, threads);
  });
}

bool BoundRun::prepares() const {
  return Visit(
      [](const auto& kernel, const auto& /*arguments*/) { return kernel.prepare != nullptr; });
}

absl::StatusOr<std::shared_ptr<void>> BoundRun::Prepare(const Context& context,
                                                        MemorySource& memory) const {
  return Visit([&](const auto& kernel, const auto& arguments) {
    return kernel.prepare(context, problem_, arguments, memory);
  });
}

absl::Status BoundRun::Run(const Context& context) const {
  return Visit([&](const auto& kernel, const auto& arguments) {
    return kernel.run(context, problem_, arguments);
  });
}

}  // namespace sparsed
