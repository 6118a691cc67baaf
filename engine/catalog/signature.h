// Problem signatures for people. What is stored has ToString's form, which does not change.
#pragma once

#include <string>

#include "kernels/problem.h"

namespace sparsed::engine {

/// "spmm K=128 f32 cpu", "spmm^T K=64 tf32 cuda", "spgemm f32 cpu": of K the widest that it is for.
std::string SignatureText(const ProblemSignature& signature);

}  // namespace sparsed::engine
