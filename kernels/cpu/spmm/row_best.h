// The vectorised part of greatest and least products, on one row and a single thread.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace sparsed::cpu {

/// Of a row's `count` nonzeros, 2^31 at the most, the greatest sign * (values[i] * B[columns[i],
/// k]) for each k. Not owned.
template <typename T>
struct RowOfProducts {
  const int32_t* columns = nullptr;
  const SumOf<T>* values = nullptr;
  int64_t count = 0;
  const T* b = nullptr;
  int64_t ldb = 0;
  SumOf<T> sign = 1;
};

/// best[k] and which[k], the first that it is of (a NaN, if any is one; -1 of none), for k < the
/// multiple of a vector's lanes that `k` holds; returns that.
int64_t FindBest(const RowOfProducts<float>& row, int64_t k, float* best, int32_t* which);
int64_t FindBest(const RowOfProducts<double>& row, int64_t k, double* best, int32_t* which);
int64_t FindBest(const RowOfProducts<Float16>& row, int64_t k, float* best, int32_t* which);
int64_t FindBest(const RowOfProducts<BFloat16>& row, int64_t k, float* best, int32_t* which);

}  // namespace sparsed::cpu
