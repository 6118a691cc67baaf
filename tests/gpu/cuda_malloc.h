// GPU memory as programs allocate it that know nothing of sparsed.
#pragma once

#include <cstddef>

namespace sparsed::test {

/// Of cudaMalloc; ends the program if there is none.
class CudaMalloc {
 public:
  explicit CudaMalloc(size_t bytes);
  CudaMalloc(const CudaMalloc&) = delete;
  CudaMalloc& operator=(const CudaMalloc&) = delete;
  /// cudaFree, which waits for the GPU.
  ~CudaMalloc();
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

}  // namespace sparsed::test
