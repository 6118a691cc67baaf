// A kernel that does what a broken one would.
#include "tests/gpu/fault.h"

namespace sparsed::test {
namespace {

__global__ void WriteNowhere(int* nowhere) { *nowhere = 1; }

}  // namespace

const char* BreakTheDevice() {
  WriteNowhere<<<1, 1>>>(reinterpret_cast<int*>(16));
  const cudaError_t started = cudaGetLastError();
  return cudaGetErrorString(started == cudaSuccess ? cudaDeviceSynchronize() : started);
}

}  // namespace sparsed::test
