// Streams beside the one of a call, for kernels that do not wait for each other: when one is left
// with its longest rows, the next fills the device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"

namespace sparsed::cuda {

/// Used by one call, until what it queued is done.
class SideStreams {
 public:
  static constexpr int kMost = 4;

  struct GiveBack {
    void operator()(SideStreams* streams) const;
  };
  using Lease = std::unique_ptr<SideStreams, GiveBack>;
  /// Of the calling thread's device, and of the priority of `beside`. Making streams takes longer
  /// than a small product, so that they are kept for who comes next. They may be given back as soon
  /// as all is joined: nobody gets them before it is done, lest calls wait for each other.
  static absl::StatusOr<Lease> Borrow(cudaStream_t beside);

  ~SideStreams();
  /// What is queued in the first `count` side streams from now on comes after what `stream` has.
  cudaError_t Fork(cudaStream_t stream, int count);
  /// What is queued in `stream` from now on comes after what these side streams have. After an
  /// error they are done.
  cudaError_t Join(cudaStream_t stream);
  cudaStream_t operator[](int i) const { return streams_[i]; }

 private:
  SideStreams() = default;
  cudaError_t Make();
  bool Idle() const;

  int device_ = 0, priority_ = 0;
  int used_ = 0;
  cudaStream_t streams_[kMost] = {};
  cudaEvent_t forked_ = nullptr, done_[kMost] = {};
};

}  // namespace sparsed::cuda
