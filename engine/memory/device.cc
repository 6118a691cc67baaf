#include "engine/memory/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/cuda/exportable_memory.h"

namespace sparsed::engine {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;
/// For which a copy of pinned memory has the link, between which others' go; and its bytes where
/// the link was not measured.
constexpr double kDirectSeconds = 0.2e-3;
constexpr size_t kDirectBytes = size_t{8} << 20;
/// Of the card, beyond what it holds now: whoever shares it gets no errors on our account.
constexpr int64_t kSpareBytes = int64_t{256} << 20;

/// The process's pool, which takes from the card what it needs and keeps it until it is trimmed.
class CardPool final : public DevicePool {
 public:
  static absl::StatusOr<std::shared_ptr<DevicePool>> Create(int ordinal) {
    const cuda::DeviceScope scope(ordinal);
    absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
    if (!stream.ok()) return stream.status();
    return std::shared_ptr<DevicePool>(new CardPool(ordinal, *std::move(stream)));
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    const cuda::DeviceScope scope(ordinal_);
    const MutexLock lock(mutex_);
    absl::StatusOr<Buffer> buffer = memory_->Allocate(bytes);
    if (!buffer.ok()) return buffer;
    // The stream only ever allocates, so there is nothing to wait for; afterwards any stream may
    // use the buffer.
    if (absl::Status s = stream_.Synchronize(); !s.ok()) return s;
    return buffer;
  }

  size_t ExportableBytes(size_t bytes) const override {
    if (granularity_ == 0) return bytes;
    return (bytes + granularity_ - 1) / granularity_ * granularity_;
  }

  absl::StatusOr<Buffer> AllocateExportable(size_t bytes) override {
    if (granularity_ == 0) return Allocate(bytes);
    const cuda::DeviceScope scope(ordinal_);
    return cuda::AllocateExportable(bytes);
  }

  /// The pool has no part in it: what that keeps from the card is no room.
  absl::StatusOr<int64_t> LeftAfterExportable(size_t bytes) override {
    if (granularity_ == 0) return LeftAfter(bytes);
    const cuda::DeviceScope scope(ordinal_);
    const absl::StatusOr<size_t> free = cuda::FreeBytes();
    if (!free.ok()) return free.status();
    return static_cast<int64_t>(*free) - static_cast<int64_t>(ExportableBytes(bytes));
  }

  absl::StatusOr<int64_t> LeftAfter(size_t bytes) override {
    const cuda::DeviceScope scope(ordinal_);
    const absl::StatusOr<cuda::PoolState> pool = cuda::ReadPool();
    if (!pool.ok()) return pool.status();
    if (pool->used + bytes <= pool->reserved) return std::numeric_limits<int64_t>::max();
    const absl::StatusOr<size_t> free = cuda::FreeBytes();
    if (!free.ok()) return free.status();
    return static_cast<int64_t>(*free) - static_cast<int64_t>(pool->used + bytes - pool->reserved);
  }

  void Settle() override {
    const cuda::DeviceScope scope(ordinal_);
    const MutexLock lock(mutex_);
    // What was freed in the stream counts as unused once that was waited for; nothing else is
    // ever in it.
    stream_.Synchronize().IgnoreError();
  }

  void Trim() override {
    Settle();
    const cuda::DeviceScope scope(ordinal_);
    cuda::TrimPool(0).IgnoreError();
  }

 private:
  CardPool(int ordinal, cuda::Stream stream)
      : ordinal_(ordinal),
        granularity_(cuda::ExportGranularity()),
        stream_(std::move(stream)),
        memory_(cuda::DeviceMemory(stream_)) {}

  const int ordinal_;
  const size_t granularity_;  ///< of exportable memory; 0: there is none
  Mutex mutex_;
  cuda::Stream stream_ ABSL_GUARDED_BY(mutex_);
  const std::unique_ptr<MemorySource> memory_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<DeviceSlot> DeviceSlot::Create(cuda::StreamPriority priority) {
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create(priority);
  absl::StatusOr<cuda::Stream> second = cuda::Stream::Create(priority);
  if (!stream.ok()) return stream.status();
  if (!second.ok()) return second.status();
  absl::StatusOr<cuda::Event> begin = cuda::Event::Create(), end = cuda::Event::Create();
  if (!begin.ok()) return begin.status();
  if (!end.ok()) return end.status();
  return DeviceSlot{*std::move(stream), *std::move(second), *std::move(begin), *std::move(end), {}};
}

Device::Device(int ordinal) : ordinal_(ordinal), name_(Name(id())), direct_bytes_(kDirectBytes) {}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int ordinal, const DeviceOptions& options) {
  const absl::StatusOr<cuda::DeviceInfo> info = cuda::ProbeDevice(ordinal);
  if (!info.ok()) return info.status();
  if (options.memory_bytes > static_cast<int64_t>(info->total_bytes)) {
    return absl::OutOfRangeError(
        fmt::format("its memory limit of {} bytes is more than the {} that it has",
                    options.memory_bytes, info->total_bytes));
  }
  const cuda::DeviceScope scope(ordinal);
  std::unique_ptr<Device> device(new Device(ordinal));
  device->info_ = *info;
  device->description_ = fmt::format(
      "{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB of memory, {:.1f} free",
      info->name, info->compute_major, info->compute_minor, info->multiprocessors,
      static_cast<double>(info->total_bytes) / (1 << 30),
      static_cast<double>(info->free_bytes) / (1 << 30));
  absl::StatusOr<std::unique_ptr<Staging>> staging =
      Staging::Create(cuda::PinnedMemory(), kBlockBytes,
                      static_cast<int>(options.staging_bytes / static_cast<int64_t>(kBlockBytes)));
  if (!staging.ok()) return staging.status();
  device->staging_ = *std::move(staging);
  absl::StatusOr<std::shared_ptr<DevicePool>> pool = CardPool::Create(ordinal);
  if (!pool.ok()) return pool.status();
  const int64_t limit = options.memory_bytes > 0 ? options.memory_bytes
                                                 : static_cast<int64_t>(info->free_bytes / 10 * 9);
  device->budget_ = std::make_unique<DeviceBudget>(*std::move(pool), limit, kSpareBytes);
  Device& opened = *device;
  device->residency_ = std::make_unique<Residency>(
      opened.budget(),
      [&opened](void* to, const void* from, size_t n) { return opened.CopyIn(to, from, n); },
      [&opened](void* to, const void* from, const PitchedRows& rows) {
        const MutexLock lock(opened.copies_mutex_);
        return opened.CopyRowsIn(*opened.copies_, to, from, rows);
      },
      [&opened](const Layout& layout, ElementType type, const void* csr_values,
                void* values_by_slot) {
        return opened.PlaceValues(layout, type, csr_values, values_by_slot);
      });
  absl::StatusOr<cuda::Stream> copies = cuda::Stream::Create();
  if (!copies.ok()) return copies.status();
  {
    const MutexLock lock(opened.copies_mutex_);
    opened.copies_.emplace(*std::move(copies));
  }
  absl::StatusOr<std::unique_ptr<Pieces>> pieces = Pieces::Create(*device->staging_);
  if (!pieces.ok()) return pieces.status();
  device->pieces_ = *std::move(pieces);
  for (int i = 0; i < std::max(1, options.slots); ++i) {
    const bool first_of_several = i == 0 && options.slots > 1;
    absl::StatusOr<DeviceSlot> slot = DeviceSlot::Create(
        first_of_several ? cuda::StreamPriority::kHigh : cuda::StreamPriority::kMiddle);
    if (!slot.ok()) return slot.status();
    device->slots_.push_back(*std::move(slot));
  }
  absl::StatusOr<DeviceSlot> trial_slot = DeviceSlot::Create(cuda::StreamPriority::kLow);
  if (!trial_slot.ok()) return trial_slot.status();
  device->trial_slot_.emplace(*std::move(trial_slot));
  if (absl::Status s = device->MeasureBandwidth(); !s.ok()) return s;
  return device;
}

void Device::MakePeers(std::span<const std::unique_ptr<Device>> devices) {
  for (const auto& device : devices) {
    const cuda::DeviceScope scope(device->ordinal());
    std::vector<Residency::Peer> peers;
    for (const auto& peer : devices) {
      if (peer == device) continue;
      // Without it copies are slower, that is all.
      if (cuda::AllowPeer(peer->ordinal()).ok()) peer->readable_.insert(device->ordinal());
      peers.push_back({&peer->residency(), [raw = peer.get()] { return raw->status().ok(); }});
    }
    device->residency().SetPeers(std::move(peers),
                                 [raw = device.get()](void* to, const void* from, size_t bytes) {
                                   return raw->CopyFromPeer(to, from, bytes);
                                 });
  }
}

absl::Status Device::MeasureBandwidth() {
  DeviceSlot& slot = slots_.front();
  constexpr size_t kBytes = size_t{256} << 20;  // more than any cache
  absl::StatusOr<Buffer> from = budget_->Source(MemoryUse::kRequests).Allocate(kBytes);
  if (!from.ok()) return from.status();
  absl::StatusOr<Buffer> to = budget_->Source(MemoryUse::kRequests).Allocate(kBytes);
  if (!to.ok()) return to.status();
  if (absl::Status s = slot.stream.Fill(from->mutable_data(), 1, kBytes); !s.ok()) return s;
  for (int run = 0; run < 4; ++run) {
    const absl::StatusOr<double> ms =
        Timed(slot, [&] { return slot.stream.Copy(to->mutable_data(), from->data(), kBytes); });
    if (!ms.ok()) return ms.status();
    if (*ms > 0) SawRate(2.0 * kBytes / (*ms * 1e-3));
  }
  return absl::OkStatus();
}

void Device::SetLinkRate(double bytes_per_second) {
  const double bytes = kDirectSeconds * bytes_per_second;
  direct_bytes_ = static_cast<size_t>(std::clamp(bytes, 0x1p20, 0x1p26)) & ~size_t{4095};
}

void Device::SawRate(double bytes_per_second) {
  double known = bytes_per_second_.load(std::memory_order_relaxed);
  while (known < bytes_per_second &&
         !bytes_per_second_.compare_exchange_weak(known, bytes_per_second)) {
  }
}

absl::Status Device::status() const {
  if (!lost_.load(std::memory_order_acquire)) return absl::OkStatus();
  const MutexLock lock(status_mutex_);
  return status_;
}

absl::Status Device::Checked(absl::Status status) {
  return absl::IsUnavailable(status) ? Lose(status) : status;
}

absl::Status Device::Lose(const absl::Status& why) {
  const absl::Status lost = absl::UnavailableError(
      fmt::format("the GPU {} is lost ({}); a restart of the server recovers what was acknowledged",
                  name_, std::string(why.message())));
  {
    const MutexLock lock(status_mutex_);
    if (lost_) return status_;
    status_ = lost;
    lost_.store(true, std::memory_order_release);
  }
  // What was queued may still run.
  staging_->Close();
  budget_->Close(lost);
  if (on_lost) on_lost(std::string(lost.message()));
  return lost;
}

absl::Status Device::Settle(cuda::Stream& stream) {
  const cuda::DeviceScope scope(ordinal_);
  const absl::Status done = stream.Synchronize();
  if (done.ok()) return done;
  // An error of what was queued is told once; the stream may be done all the same.
  const absl::Status again = stream.Synchronize();
  return again.ok() ? Checked(done) : Lose(again);
}

absl::StatusOr<double> Device::Timed(DeviceSlot& slot, const std::function<absl::Status()>& queue,
                                     const std::function<absl::Status()>& queue_behind) {
  const cuda::DeviceScope scope(ordinal_);
  absl::Status status = slot.begin.Record(slot.stream);
  if (status.ok()) status = queue();
  if (status.ok()) status = slot.end.Record(slot.stream);
  if (status.ok() && queue_behind) status = queue_behind();
  const absl::Status done = Settle(slot.stream);
  if (status.ok()) status = done;
  if (!status.ok()) return Checked(std::move(status));
  const absl::StatusOr<float> milliseconds = slot.end.MillisecondsSince(slot.begin);
  if (!milliseconds.ok()) return milliseconds.status();
  return *milliseconds;
}

void Device::Rest() {
  residency_->Sweep();
  budget_->Trim();
}

absl::Status Device::PartsIn(cuda::Stream& stream, size_t units, size_t unit_bytes,
                             const Part& fill, const Part& queue) {
  const cuda::DeviceScope scope(ordinal_);
  const size_t units_a_part = staging_->block_bytes() / unit_bytes;
  absl::StatusOr<StagingBlock> block_taken = TakeBlock();
  if (!block_taken.ok()) return block_taken.status();
  std::array<StagingBlock, 2> blocks = {*std::move(block_taken), StagingBlock()};
  std::array<std::optional<cuda::Event>, 2> sent;
  const int turns = units > units_a_part && (blocks[1] = staging_->TryTake()) ? 2 : 1;
  absl::Status status;
  int turn = 0;
  for (size_t first = 0; first < units && status.ok(); first += units_a_part) {
    const size_t count = std::min(units_a_part, units - first);
    std::byte* const block = blocks[turn].data();
    if (sent[turn].has_value()) status = sent[turn]->Synchronize();
    if (status.ok()) status = fill(block, first, count);
    if (status.ok()) status = queue(block, first, count);
    if (status.ok() && first + count < units) {
      if (!sent[turn].has_value()) {
        absl::StatusOr<cuda::Event> event = cuda::Event::Create();
        status = event.status();
        if (event.ok()) sent[turn].emplace(*std::move(event));
      }
      if (status.ok()) status = sent[turn]->Record(stream);
    }
    turn = (turn + 1) % turns;
  }
  // Also after an error: the blocks go back to others.
  const absl::Status done = Settle(stream);
  return status.ok() ? done : status;
}

absl::Status Device::PartsOut(cuda::Stream& stream, size_t units, size_t unit_bytes,
                              const Part& queue, const Part& drain) {
  const cuda::DeviceScope scope(ordinal_);
  const size_t units_a_part = staging_->block_bytes() / unit_bytes;
  absl::StatusOr<StagingBlock> block_taken = TakeBlock();
  if (!block_taken.ok()) return block_taken.status();
  std::array<StagingBlock, 2> blocks = {*std::move(block_taken), StagingBlock()};
  if (units <= units_a_part) {
    absl::Status status = queue(blocks[0].data(), 0, units);
    const absl::Status done = Settle(stream);
    if (status.ok()) status = done;
    return status.ok() ? drain(blocks[0].data(), 0, units) : status;
  }
  const size_t turns = (blocks[1] = staging_->TryTake()) ? 2 : 1;
  std::array<std::optional<cuda::Event>, 2> arrived;
  for (size_t i = 0; i < turns; ++i) {
    absl::StatusOr<cuda::Event> event = cuda::Event::Create();
    if (!event.ok()) return event.status();
    arrived[i].emplace(*std::move(event));
  }
  const size_t parts = (units + units_a_part - 1) / units_a_part;
  const auto count_of = [&](size_t part) {
    return std::min(units_a_part, units - part * units_a_part);
  };
  absl::Status status;
  for (size_t part = 0; part < parts + turns - 1 && status.ok(); ++part) {
    if (part < parts) {
      status = queue(blocks[part % turns].data(), part * units_a_part, count_of(part));
      if (status.ok()) status = arrived[part % turns]->Record(stream);
    }
    if (status.ok() && part + 1 >= turns) {
      const size_t done = part + 1 - turns;
      status = arrived[done % turns]->Synchronize();
      if (status.ok()) {
        status = drain(blocks[done % turns].data(), done * units_a_part, count_of(done));
      }
    }
  }
  if (!status.ok()) Settle(stream).IgnoreError();
  return status;
}

absl::Status Device::CopyDirectly(cuda::Stream& stream, void* to, size_t to_pitch, const void* from,
                                  size_t from_pitch, size_t row_bytes, size_t rows) {
  const cuda::DeviceScope scope(ordinal_);
  auto* const to_bytes = static_cast<std::byte*>(to);
  const auto* const from_bytes = static_cast<const std::byte*>(from);
  const bool whole = to_pitch == row_bytes && from_pitch == row_bytes;
  const size_t direct_bytes = direct_bytes_;
  absl::Status status;
  // In parts, between which others' copies may go.
  if (whole) {
    const size_t bytes = row_bytes * rows;
    for (size_t at = 0; at < bytes && status.ok(); at += direct_bytes) {
      status = stream.Copy(to_bytes + at, from_bytes + at, std::min(direct_bytes, bytes - at));
    }
  } else {
    const size_t rows_a_part = std::max<size_t>(direct_bytes / row_bytes, 1);
    for (size_t row = 0; row < rows && status.ok(); row += rows_a_part) {
      status = stream.CopyRows(to_bytes + row * to_pitch, to_pitch, from_bytes + row * from_pitch,
                               from_pitch, row_bytes, std::min(rows_a_part, rows - row));
    }
  }
  const absl::Status done = Settle(stream);
  return Checked(status.ok() ? done : status);
}

absl::StatusOr<Buffer> Device::Pin(Buffer memory) {
  const cuda::DeviceScope scope(ordinal_);
  absl::StatusOr<Buffer> pinned = cuda::PinHost(std::move(memory));
  return pinned.ok() ? std::move(pinned) : Checked(pinned.status());
}

absl::Status Device::CopyIn(cuda::Stream& stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  bytes_in_ += static_cast<int64_t>(bytes);
  if (cuda::IsPinned(from)) return CopyDirectly(stream, to, bytes, from, bytes, bytes, 1);
  return Checked(PartsIn(
      stream, bytes, 1,
      [&](std::byte* block, size_t first, size_t count) {
        std::memcpy(block, static_cast<const std::byte*>(from) + first, count);
        return absl::OkStatus();
      },
      [&](std::byte* block, size_t first, size_t count) {
        return stream.Copy(static_cast<std::byte*>(to) + first, block, count);
      }));
}

absl::Status Device::CopyOut(cuda::Stream& stream, void* to, const void* from, size_t bytes,
                             const std::function<void(size_t)>& arrived) {
  if (bytes == 0) return absl::OkStatus();
  bytes_out_ += static_cast<int64_t>(bytes);
  if (cuda::IsPinned(to)) {
    absl::Status copied = CopyDirectly(stream, to, bytes, from, bytes, bytes, 1);
    if (copied.ok() && arrived) arrived(bytes);
    return copied;
  }
  return Checked(PartsOut(
      stream, bytes, 1,
      [&](std::byte* block, size_t first, size_t count) {
        return stream.Copy(block, static_cast<const std::byte*>(from) + first, count);
      },
      [&](std::byte* block, size_t first, size_t count) {
        std::memcpy(static_cast<std::byte*>(to) + first, block, count);
        if (arrived) arrived(first + count);
        return absl::OkStatus();
      }));
}

absl::Status Device::CopyRowsIn(cuda::Stream& stream, void* to, const void* from,
                                const PitchedRows& rows) {
  if (rows.row_bytes == 0 || rows.rows == 0) return absl::OkStatus();
  const size_t pitch = rows.device_pitch;
  if (cuda::IsPinned(from)) {
    const cuda::DeviceScope scope(ordinal_);
    bytes_in_ += static_cast<int64_t>(rows.rows * rows.row_bytes);
    if (pitch > rows.row_bytes) {
      const absl::Status cleared = stream.FillRows(static_cast<std::byte*>(to) + rows.row_bytes,
                                                   pitch, 0, pitch - rows.row_bytes, rows.rows);
      if (!cleared.ok()) return Checked(cleared);
    }
    return CopyDirectly(stream, to, pitch, from, rows.host_pitch, rows.row_bytes, rows.rows);
  }
  // Such rows have no gaps on the device (PaddedShape).
  if (pitch > staging_->block_bytes()) {
    absl::Status status;
    for (size_t row = 0; row < rows.rows && status.ok(); ++row) {
      status = CopyIn(stream, static_cast<std::byte*>(to) + row * pitch,
                      static_cast<const std::byte*>(from) + row * rows.host_pitch, rows.row_bytes);
    }
    return status;
  }
  bytes_in_ += static_cast<int64_t>(rows.rows * pitch);
  return Checked(PartsIn(
      stream, rows.rows, pitch,
      [&](std::byte* block, size_t first, size_t count) {
        const auto* row = static_cast<const std::byte*>(from) + first * rows.host_pitch;
        for (size_t i = 0; i < count; ++i, row += rows.host_pitch, block += pitch) {
          std::memcpy(block, row, rows.row_bytes);
          std::memset(block + rows.row_bytes, 0, pitch - rows.row_bytes);
        }
        return absl::OkStatus();
      },
      [&](std::byte* block, size_t first, size_t count) {
        return stream.Copy(static_cast<std::byte*>(to) + first * pitch, block, count * pitch);
      }));
}

absl::Status Device::CopyRowsOut(cuda::Stream& stream, void* to, const void* from,
                                 const PitchedRows& rows,
                                 const std::function<void(size_t)>& arrived) {
  if (rows.row_bytes == 0 || rows.rows == 0) return absl::OkStatus();
  const size_t pitch = rows.device_pitch;
  if (cuda::IsPinned(to)) {
    bytes_out_ += static_cast<int64_t>(rows.rows * rows.row_bytes);
    absl::Status copied =
        CopyDirectly(stream, to, rows.host_pitch, from, pitch, rows.row_bytes, rows.rows);
    if (copied.ok() && arrived) arrived(rows.rows);
    return copied;
  }
  if (pitch > staging_->block_bytes()) {
    absl::Status status;
    for (size_t row = 0; row < rows.rows && status.ok(); ++row) {
      status = CopyOut(stream, static_cast<std::byte*>(to) + row * rows.host_pitch,
                       static_cast<const std::byte*>(from) + row * pitch, rows.row_bytes);
      if (status.ok() && arrived) arrived(row + 1);
    }
    return status;
  }
  bytes_out_ += static_cast<int64_t>(rows.rows * pitch);
  return Checked(PartsOut(
      stream, rows.rows, pitch,
      [&](std::byte* block, size_t first, size_t count) {
        return stream.Copy(block, static_cast<const std::byte*>(from) + first * pitch,
                           count * pitch);
      },
      [&](std::byte* block, size_t first, size_t count) {
        auto* row = static_cast<std::byte*>(to) + first * rows.host_pitch;
        for (size_t i = 0; i < count; ++i, row += rows.host_pitch) {
          std::memcpy(row, block + i * pitch, rows.row_bytes);
        }
        if (arrived) arrived(first + count);
        return absl::OkStatus();
      }));
}

absl::Status Device::PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                                 void* values_by_slot) {
  const cuda::DeviceScope scope(ordinal_);
  const MutexLock lock(copies_mutex_);
  absl::Status status = cuda::PlaceValues(*copies_, layout, type, csr_values, values_by_slot);
  const absl::Status done = Settle(*copies_);
  return Checked(status.ok() ? done : status);
}

absl::Status Device::CopyIn(void* to, const void* from, size_t bytes) {
  const MutexLock lock(copies_mutex_);
  return CopyIn(*copies_, to, from, bytes);
}

absl::Status Device::CopyFromPeer(void* to, const void* from, size_t bytes) {
  const cuda::DeviceScope scope(ordinal_);
  const MutexLock lock(copies_mutex_);
  const absl::Status queued = copies_->Copy(to, from, bytes);
  const absl::Status done = Settle(*copies_);
  const absl::Status copied = queued.ok() ? done : queued;
  if (copied.ok()) bytes_from_peers_ += static_cast<int64_t>(bytes);
  return Checked(copied);
}

absl::Status Device::PutRows(void* to, const void* from, const PitchedRows& rows) {
  const cuda::DeviceScope scope(ordinal_);
  const MutexLock lock(copies_mutex_);
  // Not through staging, whose parts have zeros in the gaps.
  const absl::Status queued =
      copies_->CopyRows(to, rows.device_pitch, from, rows.host_pitch, rows.row_bytes, rows.rows);
  const absl::Status done = Settle(*copies_);
  if (queued.ok()) bytes_in_ += static_cast<int64_t>(rows.rows * rows.row_bytes);
  return queued.ok() ? done : queued;
}

absl::Status Device::Clear(void* to, size_t bytes) {
  const cuda::DeviceScope scope(ordinal_);
  const MutexLock lock(copies_mutex_);
  const absl::Status queued = copies_->Fill(to, 0, bytes);
  const absl::Status done = Settle(*copies_);
  return queued.ok() ? done : queued;
}

absl::StatusOr<Array> Device::ToHost(const Array& array, MemorySource& memory) {
  absl::StatusOr<Array> host = AllocateArray(memory, array.name, array.type, array.length);
  if (!host.ok()) return host;
  const MutexLock lock(copies_mutex_);
  if (absl::Status s =
          CopyOut(*copies_, host->buffer.mutable_data(), array.buffer.data(), array.bytes());
      !s.ok()) {
    return s;
  }
  return host;
}

absl::StatusOr<Array> Device::ToHost(const Array& array, const PitchedRows& rows, int64_t length,
                                     MemorySource& memory) {
  absl::StatusOr<Array> host = AllocateArray(memory, array.name, array.type, length);
  if (!host.ok()) return host;
  if (rows.host_pitch > rows.row_bytes && host->bytes() > 0) {
    std::memset(host->buffer.mutable_data(), 0, host->bytes());
  }
  const MutexLock lock(copies_mutex_);
  if (absl::Status s =
          CopyRowsOut(*copies_, host->buffer.mutable_data(), array.buffer.data(), rows);
      !s.ok()) {
    return s;
  }
  return host;
}

StagingBlock Device::TakePieceBlock(size_t bytes) {
  const cuda::DeviceScope scope(ordinal_);
  return pieces_->TakeBlock(bytes);
}

absl::Status Device::AwaitPieces(const cuda::Stream& stream) {
  const cuda::DeviceScope scope(ordinal_);
  return Checked(pieces_->Await(stream));
}

void Device::KeepUntilSent(std::vector<Buffer> buffers) {
  const cuda::DeviceScope scope(ordinal_);
  pieces_->KeepUntilSent(std::move(buffers));
}

absl::Status Device::DrainPieces() {
  const cuda::DeviceScope scope(ordinal_);
  return Checked(pieces_->Drain());
}

absl::StatusOr<StagingBlock> Device::TakeBlock() {
  pieces_->Recycle();
  StagingBlock block = staging_->Take();
  if (!block) return status();
  return block;
}

absl::Status Device::SendPiece(void* to, StagingBlock block, size_t bytes) {
  const cuda::DeviceScope scope(ordinal_);
  bytes_in_ += static_cast<int64_t>(bytes);
  return Checked(pieces_->Send(to, std::move(block), bytes));
}

}  // namespace sparsed::engine
