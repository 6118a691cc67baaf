// A row is read twice, the second time from a cache, and written once.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/row_passes.cuh"

namespace sparsed::cuda {
namespace {

__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }

/// The greatest of some numbers, and the sum of exp(number - greatest).
template <typename W>
struct Softened {
  W greatest, sum;

  __device__ void Add(W number) {
    if (number == -static_cast<W>(INFINITY)) return;  // less than any other by as much as can be
    if (number <= greatest) {
      sum += Exp(number - greatest);
      return;
    }
    // Also a NaN, which stays, and infinity, which is no number afterwards: exp(0) is 1 otherwise.
    sum = sum * Exp(greatest - number) + Exp(number - number);
    greatest = number;
  }
  __device__ void Merge(const Softened& other) {
    if (other.sum == 0) return;
    if (sum == 0) {
      *this = other;
      return;
    }
    const W both = other.greatest <= greatest ? greatest : other.greatest;
    sum = sum * Exp(greatest - both) + other.sum * Exp(other.greatest - both);
    greatest = both;
  }
  __device__ static Softened None() { return {-static_cast<W>(INFINITY), 0}; }
};

/// Values of nonzeros.
template <typename T>
struct Values {
  T* data;
  int64_t stride;

  __device__ T& At(int64_t nonzero, int64_t head) const { return data[nonzero * stride + head]; }
};
template <typename T>
Values<const T> ValuesOf(const ConstDense& dense) {
  return {static_cast<const T*>(dense.data), dense.leading_dimension};
}
template <typename T>
Values<T> ValuesOf(const Dense& dense) {
  return {static_cast<T*>(dense.data), dense.leading_dimension};
}

template <typename T>
struct Softmax {
  using Found = Softened<SumOf<T>>;
  static constexpr bool kOfRows = false;
  SumOf<T> scale;
  Values<const T> x;
  Values<T> y;

  __device__ void Find(int64_t i, int64_t head, Found& found) const {
    found.Add(scale * Widen(x.At(i, head)));
  }
  __device__ void Write(int64_t i, int64_t head, const Found& found) const {
    y.At(i, head) = Narrow<T>(Exp(scale * Widen(x.At(i, head)) - found.greatest) / found.sum);
  }
};

template <typename T>
struct SoftmaxGradient {
  using Found = Summed<SumOf<T>>;
  static constexpr bool kOfRows = false;
  SumOf<T> scale;
  Values<const T> y, dy;
  Values<T> dx;

  __device__ void Find(int64_t i, int64_t head, Found& found) const {
    found.Add(Widen(y.At(i, head)) * Widen(dy.At(i, head)));
  }
  __device__ void Write(int64_t i, int64_t head, const Found& found) const {
    dx.At(i, head) = Narrow<T>(scale * Widen(y.At(i, head)) * (Widen(dy.At(i, head)) - found.sum));
  }
};

}  // namespace

absl::Status RowSoftmax(Stream& stream, std::span<const int64_t> row_offsets, ElementType type,
                        double scale, const ConstDense& x, const Dense& y) {
  if (row_offsets.size() < 2) return absl::OkStatus();
  return VisitFloat(type, [&]<typename T>(T) {
    const Softmax<T> work = {static_cast<SumOf<T>>(scale), ValuesOf<T>(x), ValuesOf<T>(y)};
    return ToStatus(
        LaunchPass(static_cast<cudaStream_t>(stream.handle()), row_offsets, x.cols, work),
        "softmax over rows");
  });
}

absl::Status RowSoftmaxGradient(Stream& stream, std::span<const int64_t> row_offsets,
                                ElementType type, double scale, const ConstDense& y,
                                const ConstDense& dy, const Dense& dx) {
  if (row_offsets.size() < 2) return absl::OkStatus();
  return VisitFloat(type, [&]<typename T>(T) {
    const SoftmaxGradient<T> work = {static_cast<SumOf<T>>(scale), ValuesOf<T>(y), ValuesOf<T>(dy),
                                     ValuesOf<T>(dx)};
    return ToStatus(
        LaunchPass(static_cast<cudaStream_t>(stream.handle()), row_offsets, y.cols, work),
        "the gradient of softmax over rows");
  });
}

}  // namespace sparsed::cuda
