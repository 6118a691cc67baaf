#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/sort_pairs.h"

namespace sparsed::cuda {

cudaError_t SortPairs(cudaStream_t stream, uint32_t* keys, uint32_t* values, uint32_t* other_keys,
                      uint32_t* other_values, uint32_t count, int bits, void* workspace,
                      size_t* workspace_bytes, SortedPairs* sorted) {
  cub::DoubleBuffer<uint32_t> key_buffers(keys, other_keys);
  cub::DoubleBuffer<uint32_t> value_buffers(values, other_values);
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(
      workspace, *workspace_bytes, key_buffers, value_buffers, count, 0, bits, stream);
  *sorted = {key_buffers.Current(), value_buffers.Current()};
  return error;
}

}  // namespace sparsed::cuda
