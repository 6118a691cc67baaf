#include "kernels/cuda/side_streams.h"

#include <algorithm>
#include <vector>

#include "base/mutex.h"
#include "kernels/cuda/check.h"

namespace sparsed::cuda {
namespace {

struct Kept {
  Mutex mutex;
  // Never destroyed: the driver may have gone before.
  std::vector<SideStreams*> streams ABSL_GUARDED_BY(mutex);
};

Kept& KeptStreams() {
  static Kept& kept = *new Kept;
  return kept;
}

}  // namespace

absl::StatusOr<SideStreams::Lease> SideStreams::Borrow(cudaStream_t beside) {
  int device = 0, priority = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaStreamGetPriority(beside, &priority);
  if (error != cudaSuccess) return ToStatus(error, "making streams");
  {
    Kept& kept = KeptStreams();
    const MutexLock lock(kept.mutex);
    const auto found = std::ranges::find_if(kept.streams, [&](const SideStreams* streams) {
      return streams->device_ == device && streams->priority_ == priority && streams->Idle();
    });
    if (found != kept.streams.end()) {
      Lease lease(*found);
      kept.streams.erase(found);
      return lease;
    }
  }
  std::unique_ptr<SideStreams> made(new SideStreams);
  made->device_ = device;
  made->priority_ = priority;
  error = made->Make();
  if (error != cudaSuccess) return ToStatus(error, "making streams");
  return Lease(made.release());
}

void SideStreams::GiveBack::operator()(SideStreams* streams) const {
  Kept& kept = KeptStreams();
  const MutexLock lock(kept.mutex);
  kept.streams.push_back(streams);
}

cudaError_t SideStreams::Make() {
  cudaError_t error = cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming);
  for (int i = 0; i < kMost && error == cudaSuccess; ++i) {
    error = cudaStreamCreateWithPriority(&streams_[i], cudaStreamNonBlocking, priority_);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&done_[i], cudaEventDisableTiming);
  }
  return error;
}

SideStreams::~SideStreams() {
  for (int i = 0; i < kMost; ++i) {
    if (streams_[i] != nullptr) cudaStreamDestroy(streams_[i]);
    if (done_[i] != nullptr) cudaEventDestroy(done_[i]);
  }
  if (forked_ != nullptr) cudaEventDestroy(forked_);
}

// An event that was never recorded has passed.
bool SideStreams::Idle() const {
  for (const cudaEvent_t done : done_) {
    if (cudaEventQuery(done) == cudaSuccess) continue;
    cudaGetLastError();  // lest somebody takes "not ready" for a failure of theirs
    return false;
  }
  return true;
}

cudaError_t SideStreams::Fork(cudaStream_t stream, int count) {
  used_ = count;
  cudaError_t error = cudaEventRecord(forked_, stream);
  for (int i = 0; i < used_ && error == cudaSuccess; ++i) {
    error = cudaStreamWaitEvent(streams_[i], forked_);
  }
  return error;
}

cudaError_t SideStreams::Join(cudaStream_t stream) {
  cudaError_t first_error = cudaSuccess;
  for (int i = 0; i < used_; ++i) {
    cudaError_t error = cudaEventRecord(done_[i], streams_[i]);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream, done_[i]);
    if (error == cudaSuccess) continue;
    cudaStreamSynchronize(streams_[i]);
    if (first_error == cudaSuccess) first_error = error;
  }
  return first_error;
}

}  // namespace sparsed::cuda
