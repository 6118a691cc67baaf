// Passes over dense matrices that stand between products.
#pragma once

#include <span>

#include "kernels/array.h"
#include "kernels/problem.h"

namespace sparsed {

/// One of the matrices of a weighted sum.
struct WeightedTerm {
  double factor = 1;
  ConstDense dense;
};

/// The most that are summed at once.
inline constexpr size_t kMostTerms = 64;

/// to = sum of factor * dense, one to kMostTerms of them, all of `to`'s rows and columns and of a
/// type that IsFloat() is true of. Computed in f64 for f64 and in f32 for the others; a term may be
/// where the result is.
void WeightedSum(std::span<const WeightedTerm> terms, ElementType type, const Dense& to,
                 int threads);

}  // namespace sparsed
