#include "kernels/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace sparsed {

std::string_view Name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kMean:
      return "mean";
    case Reduction::kMax:
      return "max";
    case Reduction::kMin:
      return "min";
    case Reduction::kSum:
      break;
  }
  return "sum";
}

std::string_view Name(Operation operation) {
  switch (operation) {
    case Operation::kSpmm:
      return "spmm";
    case Operation::kSddmm:
      return "sddmm";
    case Operation::kSpgemm:
      return "spgemm";
  }
  return "unknown";
}

std::string_view Name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

std::string_view Name(Semiring semiring) {
  switch (semiring) {
    case Semiring::kSumProduct:
      return "sum-product";
    case Semiring::kBoolean:
      return "boolean";
    case Semiring::kMinPlus:
      return "min-plus";
    case Semiring::kPlusPair:
      return "plus-pair";
  }
  return "unknown";
}

ProblemSignature SignatureOf(const Problem& problem) {
  ProblemSignature c{problem.operation, problem.transposed, problem.type, 0, problem.device};
  if (problem.operation != Operation::kSpgemm) {
    const int32_t* width =
        std::lower_bound(std::begin(kSignatureWidths), std::end(kSignatureWidths), problem.k);
    c.allow_tf32 = problem.allow_tf32 && problem.operation == Operation::kSpmm &&
                   problem.type == ElementType::kF32 && problem.device == DeviceKind::kCuda;
    c.k_bucket = width == std::end(kSignatureWidths) ? *std::rbegin(kSignatureWidths) : *width;
  }
  return c;
}

Problem ProblemOf(const ProblemSignature& c) {
  return {c.operation, c.transposed, c.type, c.k_bucket, c.device, c.allow_tf32};
}

std::string ToString(const ProblemSignature& c) {
  const std::string_view transposed = c.transposed ? "^T" : "";
  if (c.operation == Operation::kSpgemm) {
    return fmt::format("{}{} {} {}", Name(c.operation), transposed, Name(c.type), Name(c.device));
  }
  return fmt::format("{}{} {} k<={} {}", Name(c.operation), transposed,
                     c.allow_tf32 ? "tf32" : Name(c.type), c.k_bucket, Name(c.device));
}

}  // namespace sparsed
