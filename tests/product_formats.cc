#include "tests/product_formats.h"

#include <string>
#include <utility>

#include "kernels/formats/csr.h"

namespace sparsed::test {
namespace {

absl::Status Build(const std::string& pipeline, const CsrView& csr, ElementType type,
                   const void* csr_values, const BuildContext& context, Layout& layout,
                   Array& values) {
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<BuiltLayout> built = BuildLayout(*parsed, csr, context);
  if (!built.ok()) return built.status();
  if (built->skipped) return absl::FailedPreconditionError(built->notes);
  layout = std::move(built->layout);
  absl::StatusOr<Array> slots = AllocateArray(*context.memory, "values", type, layout.value_slots);
  if (!slots.ok()) return slots.status();
  values = *std::move(slots);
  if (layout.value_slots > 0) {
    PlaceValues(layout, type, csr_values, values.buffer.mutable_data(), context.threads);
  }
  return absl::OkStatus();
}

SpgemmFormat FormatOf(const Layout& layout, const Array& values) {
  if (layout.kind.empty()) return {};
  return {&layout, layout.value_slots > 0 ? values.buffer.data() : nullptr};
}

}  // namespace

void ProductFormats::AddTo(SpgemmArguments& arguments) const {
  arguments.left_format = FormatOf(left, left_values);
  arguments.right_format = FormatOf(right, right_values);
}

absl::StatusOr<ProductFormats> MakeFormats(const SpgemmKernel& kernel, const Problem& problem,
                                           const SpgemmArguments& arguments,
                                           const BuildContext& context) {
  ProductFormats formats;
  if (kernel.layout_kind == kCsr) return formats;
  const absl::StatusOr<std::string> pipeline =
      FormatPipeline(kernel, problem, arguments.left, arguments.right);
  if (!pipeline.ok()) return pipeline.status();
  absl::Status status = Build(*pipeline, arguments.right, problem.type, arguments.right_values,
                              context, formats.right, formats.right_values);
  if (status.ok() && kernel.left_too) {
    status = Build(*pipeline, arguments.left, problem.type, arguments.left_values, context,
                   formats.left, formats.left_values);
  }
  if (!status.ok()) return status;
  return formats;
}

}  // namespace sparsed::test
