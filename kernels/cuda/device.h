// The GPU without CUDA's types: what the engine needs to place arrays and run kernels on it.
// Without CUDA in the build everything here answers UNAVAILABLE with the reason.
//
// Errors: UNAVAILABLE for those that stay with the process (no device, a lost one, an illegal
// access: every later call says the same, and only a restart helps); RESOURCE_EXHAUSTED for memory;
// INTERNAL for the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/layout.h"
#include "kernels/nonzero_passes.h"
#include "kernels/problem.h"
#include "kernels/row_products.h"

namespace sparsed::cuda {

/// Makes a GPU the calling thread's, as long as this lives: streams, events and memory are made on
/// the thread's GPU, and kernels started there must be in a stream of it. Used by one thread.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  int before_ = -1;  ///< the thread's until now; -1: it was the same
};

struct DeviceInfo {
  std::string name;
  std::string uuid;    ///< as DeviceUuid's
  std::string driver;  ///< the CUDA version that the driver is for, "13.0"
  int multiprocessors = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;  ///< now; others may use the card too
  size_t l2_bytes = 0;
  double clock_hz = 0;                ///< the highest
  size_t shared_bytes_per_block = 0;  ///< the most a block may ask for
  int compute_major = 0;
  int compute_minor = 0;
};

/// Opens and describes a GPU. NOT_FOUND where there is no trace of a GPU or a driver; UNAVAILABLE,
/// with what to do, where there is one that cannot be used.
absl::StatusOr<DeviceInfo> ProbeDevice(int ordinal);
/// The 16 bytes that tell a GPU from all others, whatever number a process has for it. Changes
/// nothing on it. Errors as ProbeDevice's.
absl::StatusOr<std::string> DeviceUuid(int ordinal);

/// This process's pool of memory of the thread's GPU, in bytes.
struct PoolState {
  size_t reserved = 0;  ///< taken from the card
  size_t used = 0;      ///< of it, in buffers
};
absl::StatusOr<PoolState> ReadPool();
/// Bytes of the thread's GPU that nobody has taken.
absl::StatusOr<size_t> FreeBytes();
/// Gives what the pool holds beyond `keep` bytes and no buffer uses back to the card.
absl::Status TrimPool(size_t keep);

/// Of streams of one GPU: where blocks of kernels in several could start, those of the highest do.
/// What has started is not interrupted, and copies have no priorities.
enum class StreamPriority : uint8_t { kLow, kMiddle, kHigh };

/// Lets GPU `peer` read and write what this process allocates on the thread's GPU, from then on,
/// where there is a way between them; UNIMPLEMENTED, and copies go through the host, else.
absl::Status AllowPeer(int peer);

/// A queue of copies and kernels. Movable, not thread-safe. Its end waits for what is in it.
class Stream {
 public:
  static absl::StatusOr<Stream> Create(StreamPriority priority = StreamPriority::kMiddle);
  /// Somebody else's (a cudaStream_t), which outlives this and is left alone at the end.
  static Stream Of(void* handle) { return Stream(handle, /*owned=*/false); }
  Stream(Stream&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), owned_(other.owned_) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~Stream();

  /// For Context::stream.
  void* handle() const { return handle_; }
  /// Queues a copy in any direction, also from another GPU; host memory should be pinned to
  /// overlap.
  absl::Status Copy(void* to, const void* from, size_t bytes);
  absl::Status Fill(void* to, unsigned char byte, size_t bytes);
  /// Queues that of `rows` rows of `row_bytes`, that begin so many bytes apart.
  absl::Status FillRows(void* to, size_t pitch, unsigned char byte, size_t row_bytes, size_t rows);
  /// Queues a copy of `rows` rows of `row_bytes`, that begin so many bytes apart (any number).
  absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t row_bytes, size_t rows);
  /// Waits until all that was queued is done, and reports what went wrong in it.
  absl::Status Synchronize();

 private:
  explicit Stream(void* handle, bool owned = true) : handle_(handle), owned_(owned) {}
  void* handle_;
  bool owned_;
};

/// PlaceValues (layout.h) on the device, where the layout and both arrays are; queued.
absl::Status PlaceValues(Stream& stream, const Layout& layout, ElementType type,
                         const void* csr_values, void* slots);

/// to[i] = from[order[i]] (i64), all on the device; elements of a type that IsFloat() is true of.
/// Queued.
absl::Status GatherElements(Stream& stream, const Array& order, ElementType type, const void* from,
                            void* to);

/// to[order[i]] = from[i], all on the device; elements of a type that IsFloat() is true of. Queued.
absl::Status ScatterElements(Stream& stream, std::span<const int64_t> order, ElementType type,
                             const void* from, void* to);

/// As sparsed::WeightedSum, all on the device. Queued.
absl::Status WeightedSum(Stream& stream, std::span<const WeightedTerm> terms, ElementType type,
                         const Dense& to);

/// Row i of `to` is row order[i] of `from`, or (scattered) row order[i] of `to` row i of `from`,
/// all on the device. Queued.
absl::Status GatherRows(Stream& stream, std::span<const int64_t> order, ElementType type,
                        const ConstDense& from, const Dense& to);
absl::Status ScatterRows(Stream& stream, std::span<const int64_t> order, ElementType type,
                         const ConstDense& from, const Dense& to);

/// As sparsed::RowSoftmax and sparsed::RowSoftmaxGradient, all on the device. Queued.
absl::Status RowSoftmax(Stream& stream, std::span<const int64_t> row_offsets, ElementType type,
                        double scale, const ConstDense& x, const Dense& y);
absl::Status RowSoftmaxGradient(Stream& stream, std::span<const int64_t> row_offsets,
                                ElementType type, double scale, const ConstDense& y,
                                const ConstDense& dy, const Dense& dx);

/// As sparsed::ScaleNonzeros and sparsed::TotalNonzeros, all on the device. Queued. UNIMPLEMENTED
/// of 2^31 rows or more.
absl::Status ScaleNonzeros(Stream& stream, const NonzeroScaling& scaling, ElementType type);
absl::Status TotalNonzeros(Stream& stream, const NonzeroTotals& totals, ElementType type);

/// As sparsed::ComputeRowProducts and sparsed::ComputeHeadDots, all on the device; queued in the
/// context's stream, with a workspace of as many bytes as RowProductsWorkspace says.
/// UNIMPLEMENTED of operands that are too wide.
absl::Status ComputeRowProducts(const Context& context, const RowProducts& products,
                                ElementType type);
size_t RowProductsWorkspace(const RowProducts& products, ElementType type);
absl::Status ComputeHeadDots(const Context& context, const HeadDots& dots, ElementType type);

/// As sparsed::ComputeEdgeAttention and sparsed::ComputeEdgeAttentionGradient, all on the device;
/// queued in the context's stream, with a workspace of as many bytes as EdgeAttentionWorkspace
/// says. The same comes out every time. UNIMPLEMENTED of heads that are too wide.
absl::Status ComputeEdgeAttention(const Context& context, const EdgeAttention& attention,
                                  ElementType type);
size_t EdgeAttentionWorkspace(const EdgeAttention& attention, ElementType type);
absl::Status ComputeEdgeAttentionGradient(const Context& context,
                                          const EdgeAttentionGradient& gradient, ElementType type);
size_t EdgeAttentionWorkspace(const EdgeAttentionGradient& gradient, ElementType type);

/// to[i] = from[0] + ... + from[i - 1] for i <= count, both on the device; queued in the context's
/// stream, with a workspace of as many bytes as RunningSumWorkspace says.
absl::Status RunningSum(const Context& context, const int64_t* from, int64_t count, int64_t* to);
absl::StatusOr<size_t> RunningSumWorkspace(int64_t count);

/// A point in a stream.
class Event {
 public:
  static absl::StatusOr<Event> Create();
  /// One whose time is not asked for: it costs less to record.
  static absl::StatusOr<Event> CreateUntimed();
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Event();

  absl::Status Record(const Stream& stream);
  /// What is queued in `stream` from now on waits for the recorded point.
  absl::Status Hold(const Stream& stream) const;
  absl::Status Synchronize() const;
  /// Whether the recorded point was passed; what went wrong before it, if something did.
  absl::StatusOr<bool> Passed() const;
  /// Both recorded and passed.
  absl::StatusOr<float> MillisecondsSince(const Event& begin) const;

 private:
  explicit Event(void* handle) : handle_(handle) {}
  void* handle_;
};

/// Device memory from the stream-ordered pool of `stream`, which must outlive the buffers: a buffer
/// may be used in that stream at once, in others after an event, and is freed in that stream's
/// order. Thread-safe.
std::unique_ptr<MemorySource> DeviceMemory(const Stream& stream);

/// Host memory that copies to and from the device overlap with. Thread-safe.
MemorySource& PinnedMemory();

/// Pins host memory that somebody else allocated, for all GPUs, as long as the returned buffer or a
/// copy of it lives; that is of the same bytes, and keeps them. On a thread whose GPU was probed.
/// Takes a while: every page is visited.
absl::StatusOr<Buffer> PinHost(Buffer memory);
/// Whether copies to and from these bytes of the host overlap, since they are pinned.
bool IsPinned(const void* host);

}  // namespace sparsed::cuda
