#include "engine/catalog/signature.h"

#include <fmt/format.h>

namespace sparsed::engine {

std::string SignatureText(const ProblemSignature& signature) {
  const ProblemSignature& c = signature;
  const std::string width =
      c.operation == Operation::kSpgemm ? "" : fmt::format(" K={}", c.k_bucket);
  return fmt::format("{}{}{} {} {}", Name(c.operation), c.transposed ? "^T" : "", width,
                     c.allow_tf32 ? "tf32" : Name(c.type), Name(c.device));
}

}  // namespace sparsed::engine
