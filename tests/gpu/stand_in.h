// What the GPU made of the CPU (stand_in.cc) is told by a test, and what it remembers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace sparsed::cuda::stand_in {

/// A call that may fail.
enum class Step : uint8_t {
  kAllocate,  ///< of device memory
  kCopy,      ///< also of rows
  kFill,
  kSynchronize,  ///< of a stream
  kCreateEvent,
  kRecord,  ///< of an event
  kHold,    ///< of a stream, for an event
  kAwaitEvent,
  kAskEvent,
  kElapsed,    ///< between two events
  kKernel,     ///< a dense one, before it writes
  kKernelEnd,  ///< a dense one, after it wrote
};
inline constexpr Step kSteps[] = {Step::kAllocate,    Step::kCopy,        Step::kFill,
                                  Step::kSynchronize, Step::kCreateEvent, Step::kRecord,
                                  Step::kHold,        Step::kAwaitEvent,  Step::kAskEvent,
                                  Step::kElapsed,     Step::kKernel,      Step::kKernelEnd};

/// Of the calls of `step` from now on, number `first` (the next is 0) and the `count - 1` after it
/// fail with `status`.
void Fail(Step step, int first, int count, absl::Status status);
/// How many of `step` did, since Fail was called.
int Failed(Step step);
/// An event has passed when it was asked so many times, and once more: like a card that others keep
/// busy. 1000 unless told.
void PassAfter(int asked);
/// From now on none fails, and events pass as ever.
void Heal();

/// Whether a card may read the memory of others, as an engine that is opened from then on finds.
void LetPeersRead(bool may);

/// There are so many of them, cuda:0 and on, alike.
inline constexpr int kCards = 3;

/// Calls that wait for a card.
struct Waits {
  int streams = 0, events = 0;
  int unpinned = 0;  ///< copies from memory that is not pinned: the driver takes the bytes first
  int trims = 0;     ///< memory that is given back to the card
  bool operator==(const Waits&) const = default;
};
Waits WaitsOfThisThread();

/// Memory of a card as cudaMalloc gives it to a caller, in what the card takes for another process
/// than the server's, though a test has both: others can open it by handle. The bytes stay while
/// somebody has it open, as the driver has it.
class CallerAllocation {
 public:
  explicit CallerAllocation(size_t bytes, int card = 0);
  CallerAllocation(const CallerAllocation&) = delete;
  CallerAllocation& operator=(const CallerAllocation&) = delete;
  /// Frees it: its handle opens no more.
  ~CallerAllocation();
  /// Frees it, and allocates as much in the same place, with the same handle.
  void Reallocate();
  float* floats() const;

 private:
  std::byte* data_ = nullptr;
};
/// Handles that are open, over all.
int OpenHandles();

}  // namespace sparsed::cuda::stand_in
