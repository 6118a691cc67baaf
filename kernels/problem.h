// Problems, contexts and operands: what kernels are asked and what they work with.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/array.h"

namespace sparsed {

enum class Operation : uint8_t { kSpmm = 1, kSddmm = 2, kSpgemm = 3 };
/// "spmm", "sddmm", "spgemm".
std::string_view Name(Operation operation);

enum class DeviceKind : uint8_t { kCpu = 1, kCuda = 2 };
/// "cpu", "cuda".
std::string_view Name(DeviceKind kind);

/// What SpGEMM multiplies by and sums with. Entries are where products are, whatever their values:
/// an entry that is zero is stored as any other.
enum class Semiring : uint8_t {
  kSumProduct = 1,  ///< sum of s * t
  kBoolean = 2,     ///< or of s and t: every stored entry is true, and so is every one of C, as 1
  kMinPlus = 3,     ///< least s + t; NaN only where all of them are
  kPlusPair = 4,    ///< how many pairs there are: sum of 1
};
/// "sum-product", "boolean", "min-plus", "plus-pair".
std::string_view Name(Semiring semiring);

/// How the products of a row's nonzeros become one number.
enum class Reduction : uint8_t {
  kSum = 0,
  kMean = 1,  ///< the sum over how many there are; 0 of none
  kMax = 2,   ///< 0 of none; NaN if any is
  kMin = 3,
};
/// "sum", "mean", "max", "min".
std::string_view Name(Reduction reduction);
constexpr bool IsBest(Reduction reduction) {
  return reduction == Reduction::kMax || reduction == Reduction::kMin;
}

/// An operation with its sizes, types and options.
struct Problem {
  Operation operation = Operation::kSpmm;
  bool transposed = false;  ///< SpMM with S^T, S as the layout holds it
  ElementType type = ElementType::kF32;
  int64_t k = 0;  ///< width of the dense operand; 0 for SpGEMM
  DeviceKind device = DeviceKind::kCpu;
  /// SpMM in f32 on a GPU may round the factors to TF32 (10 bits of mantissa); sums stay f32.
  bool allow_tf32 = false;
  Semiring semiring = Semiring::kSumProduct;  ///< SpGEMM
  bool masked = false;                        ///< SpGEMM under SpgemmArguments::mask
};

/// K of a signature: a problem's K rounded up, wider ones share the last. A single column is a
/// signature of its own: SpMV.
inline constexpr int32_t kSignatureWidths[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024};

/// Problems that share a plan, their signature: as Problem (of SpGEMM without semiring and mask), K
/// rounded up to one of kSignatureWidths. Ordered, hashable by its text.
struct ProblemSignature {
  Operation operation = Operation::kSpmm;
  bool transposed = false;
  ElementType type = ElementType::kF32;
  int32_t k_bucket = 0;
  DeviceKind device = DeviceKind::kCpu;
  bool allow_tf32 = false;  ///< false wherever it makes no difference

  friend auto operator<=>(const ProblemSignature&, const ProblemSignature&) = default;
};
ProblemSignature SignatureOf(const Problem& problem);
/// The widest problem of the signature.
Problem ProblemOf(const ProblemSignature& c);
/// "spmm f32 k<=128 cpu", "spmm^T tf32 k<=128 cuda" (f32 with TF32 allowed).
std::string ToString(const ProblemSignature& c);

/// How far a run has come that may be cut: it computes its work part by part, and stops between two
/// of them when somebody else is to go first. Runs of the same arguments with the same Progress and
/// the workspace as the run before left it go on from there; the result has the same bits however
/// often it was cut.
struct Progress {
  int64_t done = 0;  ///< parts that are computed: all those before this one
  int phase = 0;     ///< of a kernel that runs others; `done` is of this one
  bool finished = false;
  int64_t least = 1;  ///< parts that a run computes before it looks at `pause`
  /// A run sets it where the parts to come are others than those that it computed: how many of
  /// these fit a piece says nothing of them.
  bool other_parts = false;
  const std::atomic<bool>* pause = nullptr;  ///< while it is true the run stops; null: never

  /// A run that has computed so many parts is to stop.
  bool pauses(int64_t computed) const {
    return pause != nullptr && computed >= least && pause->load(std::memory_order_relaxed);
  }
};

/// What a kernel may use. It allocates nothing, logs nothing, reads no clock.
struct Context {
  int threads = 1;                          ///< OpenMP team size; the caller's thread owns the team
  std::span<std::byte> workspace;           ///< at least workspace(...) bytes, aligned to 64
  const std::atomic<bool>* stop = nullptr;  ///< if it becomes true, return CANCELLED soon
  void* stream = nullptr;  ///< GPU kernels: the CUDA stream (cudaStream_t); they queue, never wait
  void* prepared = nullptr;      ///< what the kernel's `prepare` returned; null: it was not asked
  Progress* progress = nullptr;  ///< of a kernel that `resumes`; null: the run is not cut
  bool stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

/// Row-major dense matrices; leading dimension in elements, >= cols. Not owned.
struct ConstDense {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading_dimension = 0;
};
struct Dense {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t leading_dimension = 0;
};

/// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace sparsed
