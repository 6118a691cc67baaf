// Kernels that one part of the GPU bounds, for calibration. Each thread does the same, enough of
// them are there to fill every multiprocessor, and what they find goes to memory where the compiler
// cannot know that it never does.
#include "kernels/cuda/check.h"
#include "kernels/cuda/probes.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
/// Of a multiprocessor: all of its warps.
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kSharedSteps = 512, kMultiplySteps = 2048, kChains = 8;

__global__ void Nothing() {}

__device__ __forceinline__ uint32_t Folded(const uint4& word) {
  return word.x ^ word.y ^ word.z ^ word.w;
}

template <bool kCached>
__global__ void __launch_bounds__(kThreads)
    Read(const uint4* from, int64_t words, int repeats, uint32_t* found) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
#pragma unroll 8
    for (int64_t i = first; i < words; i += step) {
      sum ^= Folded(kCached ? __ldcg(from + i) : __ldcs(from + i)) + static_cast<uint32_t>(repeat);
    }
  }
  if (sum == 0x9e3779b9u) *found = sum;
}

__global__ void __launch_bounds__(kThreads) ReadShared(uint32_t* found) {
  __shared__ uint4 words[2 * kThreads];
  for (int i = threadIdx.x; i < 2 * kThreads; i += kThreads) {
    words[i] = make_uint4(i, i + 1, i + 2, i + 3);
  }
  __syncthreads();
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(words));
  uint32_t offset = threadIdx.x * sizeof(uint4);
  uint32_t sum = 0;
  for (int step = 0; step < kSharedSteps; ++step) {
    uint4 word;
    // Volatile twice, for both compilers: the same place is to be read again.
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "r"(base + offset));
    sum ^= Folded(word);
    offset ^= kThreads * sizeof(uint4) * (step & 1);
  }
  if (sum == 0x9e3779b9u) *found = sum;
}

__global__ void __launch_bounds__(kThreads) Add(float* to, int64_t count, int repeats) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (int64_t i = first; i < count; i += step) atomicAdd(to + i, 1.0f);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) MultiplyAndAdd(uint32_t* found) {
  T chains[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) chains[i] = static_cast<T>(threadIdx.x + i);
  const T factor = static_cast<T>(0.5), added = static_cast<T>(blockIdx.x & 1);
  for (int step = 0; step < kMultiplySteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) chains[i] = chains[i] * factor + added;
  }
  T sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += chains[i];
  if (sum == static_cast<T>(-1)) *found = 1;
}

}  // namespace

absl::StatusOr<double> QueueProbe(Stream& stream, Probe probe, std::span<std::byte> memory,
                                  int repeats) {
  if (memory.size() < kLeastProbeBytes || memory.size() % sizeof(uint4) != 0 || repeats < 1) {
    return absl::InvalidArgumentError("a probe needs 1 MiB or more, in words of 16 bytes");
  }
  auto* const queue = static_cast<cudaStream_t>(stream.handle());
  const int blocks = Multiprocessors() * kBlocksPerMultiprocessor;
  const double threads = static_cast<double>(blocks) * kThreads;
  const auto bytes = static_cast<double>(memory.size());
  const auto* const words = reinterpret_cast<const uint4*>(memory.data());
  const auto count = static_cast<int64_t>(memory.size() / sizeof(uint4));
  auto* const found = reinterpret_cast<uint32_t*>(memory.data());
  double done = 0;
  switch (probe) {
    case Probe::kEmpty:
      for (int i = 0; i < repeats; ++i) Nothing<<<1, 32, 0, queue>>>();
      done = repeats;
      break;
    case Probe::kMemoryReads:
      Read<false><<<blocks, kThreads, 0, queue>>>(words, count, 1, found);
      done = bytes;
      break;
    case Probe::kCacheReads:
      Read<true><<<blocks, kThreads, 0, queue>>>(words, count, repeats, found);
      done = bytes * repeats;
      break;
    case Probe::kSharedReads:
      ReadShared<<<blocks, kThreads, 0, queue>>>(found);
      done = threads * kSharedSteps * sizeof(uint4);
      break;
    case Probe::kAtomicAdds:
      Add<<<blocks, kThreads, 0, queue>>>(reinterpret_cast<float*>(memory.data()),
                                          static_cast<int64_t>(memory.size() / sizeof(float)),
                                          repeats);
      done = bytes / sizeof(float) * repeats;
      break;
    case Probe::kMultiplyF32:
      MultiplyAndAdd<float><<<blocks, kThreads, 0, queue>>>(found);
      done = 2.0 * threads * kMultiplySteps * kChains;
      break;
    case Probe::kMultiplyF64:
      MultiplyAndAdd<double><<<blocks, kThreads, 0, queue>>>(found);
      done = 2.0 * threads * kMultiplySteps * kChains;
      break;
  }
  absl::Status launched = ToStatus(cudaGetLastError(), "starting a probe");
  if (!launched.ok()) return launched;
  return done;
}

}  // namespace sparsed::cuda
