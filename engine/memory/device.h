// A GPU as the engine uses it: memory under a budget, what lives there, copies, worker slots.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/memory/device_budget.h"
#include "engine/memory/pieces.h"
#include "engine/memory/prepared_runs.h"
#include "engine/memory/residency.h"
#include "engine/memory/staging.h"
#include "kernels/cuda/device.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

struct DeviceOptions {
  int64_t memory_bytes = 0;  ///< limit; 0: nine tenths of what is free at the start
  int64_t staging_bytes = int64_t{64} << 20;  ///< pinned host memory for copies
  /// Calls at once: one copies in, one computes, one copies out. Where there are several, one of
  /// these worker slots is for short calls alone.
  int slots = 4;
};

/// What belongs to one worker slot of the device.
struct DeviceSlot {
  /// On the thread's GPU.
  static absl::StatusOr<DeviceSlot> Create(cuda::StreamPriority priority);

  cuda::Stream stream;
  cuda::Stream second;     ///< for work that overlaps with the first's
  cuda::Event begin, end;  ///< around a kernel
  PreparedRuns prepared;
  std::vector<cuda::Event> spare_events = {};  ///< for who marks many moments

  cuda::Stream& streams(size_t turn) { return turn == 0 ? stream : second; }
};

/// Thread-safe, but for its worker slots. Whoever uses a slot's streams, or memory beside them, is
/// in a cuda::DeviceScope of its ordinal; what is called here sees to that itself.
class Device {
 public:
  /// NOT_FOUND where there is no trace of a GPU, UNAVAILABLE, with what to do, where there is one
  /// that cannot be used. Takes some 100 ms.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal, const DeviceOptions& options);
  /// Of those that serve together: what one has of an operand, another copies from there. Once,
  /// before anything is placed; they outlive all that is.
  static void MakePeers(std::span<const std::unique_ptr<Device>> devices);

  DeviceId id() const { return {DeviceKind::kCuda, ordinal_}; }
  int ordinal() const { return ordinal_; }
  /// For who keeps something by device.
  const std::shared_ptr<const void>& identity() const { return identity_; }
  const std::string& name() const { return name_; }  ///< "cuda:0"
  const std::string& description() const { return description_; }
  const cuda::DeviceInfo& info() const { return info_; }
  /// Its kernels may read what `peer` has.
  bool Reads(const Device& peer) const { return readable_.contains(peer.ordinal()); }
  /// Of copies within the device, read and written both counted: the roofline's denominator.
  double bytes_per_second() const { return bytes_per_second_.load(std::memory_order_relaxed); }
  /// A kernel reached it: bytes_per_second() is no less from now on.
  void SawRate(double bytes_per_second);
  /// Bytes a second between it and pinned memory: what copies are cut by.
  void SetLinkRate(double bytes_per_second);
  DeviceBudget& budget() { return *budget_; }
  Residency& residency() { return *residency_; }
  /// Of several the first has streams of high priority.
  std::vector<DeviceSlot>& slots() { return slots_; }
  /// Of low priority, for trials.
  DeviceSlot& trial_slot() { return *trial_slot_; }

  /// OK, or why it serves no more until a restart.
  absl::Status status() const;
  /// Returns `status`; if it says that the device is lost, so it is from now on. `on_lost` is
  /// called once, then. Set before the first call.
  absl::Status Checked(absl::Status status);
  std::function<void(const std::string& sentence)> on_lost;

  /// Waits until all that was queued in `stream` is done: it uses memory that the caller lets go.
  /// Where not even that can be found out the device is lost, and nothing of it is used again.
  absl::Status Settle(cuda::Stream& stream);
  /// Queues work in the worker slot's stream between its two events, and more behind them, and
  /// waits, after an error too: what was queued uses memory that its caller may free. The
  /// milliseconds between the events.
  absl::StatusOr<double> Timed(DeviceSlot& slot, const std::function<absl::Status()>& queue,
                               const std::function<absl::Status()>& queue_behind = nullptr);

  /// No worker slot has anything to do: memory that only busy ones need goes back to the card,
  /// which is shared.
  void Rest();

  /// The same bytes of the host, pinned for this and all other GPUs as long as a copy of what is
  /// returned lives.
  absl::StatusOr<Buffer> Pin(Buffer memory);
  /// Copies pass through staging, but those of pinned memory; all return when the bytes are there.
  absl::Status CopyIn(cuda::Stream& stream, void* to, const void* from, size_t bytes);
  /// `arrived` is told after each part how many bytes are there.
  absl::Status CopyOut(cuda::Stream& stream, void* to, const void* from, size_t bytes,
                       const std::function<void(size_t)>& arrived = nullptr);
  /// Row by row. The device has a whole pitch of each row, the host what is between its rows
  /// already. `arrived` is told after each part how many rows are there.
  absl::Status CopyRowsIn(cuda::Stream& stream, void* to, const void* from,
                          const PitchedRows& rows);
  absl::Status CopyRowsOut(cuda::Stream& stream, void* to, const void* from,
                           const PitchedRows& rows,
                           const std::function<void(size_t)>& arrived = nullptr);
  /// Values in CSR's order to a layout's, all of them on the device, on a stream of its own;
  /// returns when it is done.
  absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                           void* values_by_slot);
  /// Bytes from anywhere to the device, on a stream of its own; returns when they are there.
  absl::Status CopyIn(void* to, const void* from, size_t bytes);
  /// Rows of the host to the device, whose gaps stay as they are, likewise.
  absl::Status PutRows(void* to, const void* from, const PitchedRows& rows);
  /// Bytes of another GPU of the machine, likewise.
  absl::Status CopyFromPeer(void* to, const void* from, size_t bytes);
  /// Zeros, likewise.
  absl::Status Clear(void* to, size_t bytes);
  /// A copy on the host, on a stream of the device's own.
  absl::StatusOr<Array> ToHost(const Array& array, MemorySource& memory);
  /// Of an array whose rows are on the device, as one of `length` elements, zeros between its rows.
  absl::StatusOr<Array> ToHost(const Array& array, const PitchedRows& rows, int64_t length,
                               MemorySource& memory);

  /// Pieces of operands, as they arrive: none of these waits for the device. As those of Pieces.
  StagingBlock TakePieceBlock(size_t bytes);
  absl::Status SendPiece(void* to, StagingBlock block, size_t bytes);
  absl::Status AwaitPieces(const cuda::Stream& stream);
  void KeepUntilSent(std::vector<Buffer> buffers);
  /// Waits for all pieces sent so far.
  absl::Status DrainPieces();

  int64_t bytes_in() const { return bytes_in_; }
  int64_t bytes_out() const { return bytes_out_; }
  int64_t bytes_from_peers() const { return bytes_from_peers_; }
  /// Its kernels read so many.
  void CountFromPeers(int64_t bytes) { bytes_from_peers_ += bytes; }

  /// Bytes of operands on their way to it that are not complete (OperandMemory).
  std::atomic<int64_t>& arriving() { return arriving_; }

 private:
  explicit Device(int ordinal);
  absl::Status MeasureBandwidth();
  /// One part of a copy that passes through a block: units [first, first + count) of it.
  using Part = std::function<absl::Status(std::byte* block, size_t first, size_t count)>;
  /// Two blocks take turns: `fill` one while the other is on its way (`queue` queues that).
  absl::Status PartsIn(cuda::Stream& stream, size_t units, size_t unit_bytes, const Part& fill,
                       const Part& queue);
  /// Likewise: `drain` one while the other fills.
  absl::Status PartsOut(cuda::Stream& stream, size_t units, size_t unit_bytes, const Part& queue,
                        const Part& drain);
  /// A copy of rows between the device and pinned memory.
  absl::Status CopyDirectly(cuda::Stream& stream, void* to, size_t to_pitch, const void* from,
                            size_t from_pitch, size_t row_bytes, size_t rows);
  /// Waits for a block, but not for those of pieces that have arrived. UNAVAILABLE once the device
  /// is lost.
  absl::StatusOr<StagingBlock> TakeBlock();
  /// From now on it serves no more.
  absl::Status Lose(const absl::Status& why);

  const int ordinal_;
  const std::shared_ptr<const void> identity_ = std::make_shared<int>(0);
  const std::string name_;
  std::set<int> readable_;  ///< peers, by ordinal; as MakePeers found
  cuda::DeviceInfo info_;   ///< as it was at the start
  std::string description_;
  std::atomic<double> bytes_per_second_{1};
  std::atomic<size_t> direct_bytes_;  ///< of pinned memory that a copy moves at once
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<DeviceBudget> budget_;
  std::unique_ptr<Residency> residency_;
  std::vector<DeviceSlot> slots_;
  std::optional<DeviceSlot> trial_slot_;
  Mutex copies_mutex_;
  std::optional<cuda::Stream> copies_ ABSL_GUARDED_BY(copies_mutex_);
  std::unique_ptr<Pieces> pieces_;

  mutable Mutex status_mutex_;
  absl::Status status_ ABSL_GUARDED_BY(status_mutex_);
  std::atomic<bool> lost_ = false;
  std::atomic<int64_t> bytes_in_ = 0, bytes_out_ = 0, bytes_from_peers_ = 0, arriving_ = 0;
};

}  // namespace sparsed::engine
