#include "engine/catalog/dense_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "engine/catalog/catalog.h"
#include "engine/catalog/shares.h"
#include "engine/catalog/stored.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/row_bounds.h"

namespace sparsed::engine {
namespace {

/// The array's name.
constexpr const char* kElements = "dense";

/// Of the array that holds it; none if its bytes do not fit 63 bits.
std::optional<int64_t> Elements(const DenseShape& shape) {
  if (shape.rows == 0) return 0;
  int64_t elements = 0;
  if (__builtin_mul_overflow(shape.rows - 1, shape.leading_dimension, &elements) ||
      __builtin_add_overflow(elements, shape.cols, &elements) ||
      elements > std::numeric_limits<int64_t>::max() / 8) {
    return std::nullopt;
  }
  return elements;
}

/// Entries that are looked at for their time to live without letting go of the lock: a millisecond
/// at most.
constexpr int kDueAtOnce = 4096;
/// Names of expired ones that are remembered, of at most 255 bytes each.
constexpr size_t kExpiredNames = 256;

int64_t ElementBytes(const DenseShape& shape) {
  return shape.elements() * static_cast<int64_t>(SizeOf(shape.type));
}

size_t ColumnBytes(const DenseShape& shape, int64_t columns) {
  return static_cast<size_t>(columns) * SizeOf(shape.type);
}

/// Rows of so many bytes, which begin `from_pitch` and `to_pitch` bytes apart.
void CopyRows(const std::byte* from, size_t from_pitch, std::byte* to, size_t to_pitch,
              size_t bytes, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to, from, bytes);
    from += from_pitch;
    to += to_pitch;
  }
}

/// Where it begins in the whole matrix.
size_t OffsetOf(const DenseBlock& block, const DenseShape& shape) {
  return static_cast<size_t>(block.first_row) * ColumnBytes(shape, shape.leading_dimension) +
         ColumnBytes(shape, block.first_col);
}

/// Null with one device, for which nothing is cut.
std::shared_ptr<DenseCuts> NewCuts(const DenseOptions& options) {
  return options.blocks > 1 ? std::make_shared<DenseCuts>(options.on_moved_by_host) : nullptr;
}

/// The block's part of the whole matrix, in memory of its own.
absl::StatusOr<Array> TakeBlock(const Array& whole, const DenseShape& shape,
                                const DenseBlock& block, MemorySource& memory) {
  absl::StatusOr<Array> taken =
      AllocateArray(memory, kElements, shape.type, block.shape.elements());
  if (!taken.ok() || block.shape.rows == 0) return taken;
  const size_t width = ColumnBytes(shape, block.shape.cols);
  CopyRows(whole.buffer.data() + OffsetOf(block, shape),
           ColumnBytes(shape, shape.leading_dimension), taken->buffer.mutable_data(), width, width,
           block.shape.rows);
  return taken;
}

void Tell(const std::function<void(int64_t bytes)>& on_moved, size_t bytes) {
  if (on_moved) on_moved(static_cast<int64_t>(bytes));
}

/// The matrix that the blocks are, with zeros in the gaps between its rows.
absl::StatusOr<Array> PutTogether(const DenseShape& shape, const std::vector<DenseBlock>& blocks,
                                  MemorySource& memory, LazyArray::Stop stop) {
  absl::StatusOr<Array> whole = AllocateArray(memory, kElements, shape.type, shape.elements());
  if (!whole.ok() || shape.rows == 0) return whole;
  std::byte* const begin = whole->buffer.mutable_data();
  if (shape.leading_dimension > shape.cols) std::memset(begin, 0, whole->bytes());
  for (const DenseBlock& block : blocks) {
    const absl::StatusOr<Array> elements = block.elements->Get(stop);
    if (!elements.ok()) return elements.status();
    const size_t width = ColumnBytes(shape, block.shape.cols);
    CopyRows(elements->buffer.data(), width, begin + OffsetOf(block, shape),
             ColumnBytes(shape, shape.leading_dimension), width, block.shape.rows);
  }
  return whole;
}

/// What `make` makes, away from worker slots and reactors as if it were on the disk, where somebody
/// needs it, and for as long as the memory is not needed for other things.
std::shared_ptr<LazyArray> MadeWhenNeeded(LazyArray::Loader make, Budget& budget,
                                          const MemoryOwner& payer) {
  return std::make_shared<LazyArray>(LazyArray::DiskCopy{
      std::move(make), [] { return true; }, budget.evictions(), &payer, /*is_read=*/false});
}

std::shared_ptr<LazyArray> WholeOf(const DenseShape& shape, std::vector<DenseBlock> blocks,
                                   std::function<void(int64_t)> on_moved, Budget& budget,
                                   MemoryOwner& payer) {
  MemorySource& memory = budget.Source(MemoryUse::kBuffers, &payer);
  return MadeWhenNeeded(
      [shape, blocks = std::move(blocks), on_moved = std::move(on_moved),
       &memory](LazyArray::Stop stop) {
        absl::StatusOr<Array> whole = PutTogether(shape, blocks, memory, stop);
        if (whole.ok()) Tell(on_moved, whole->bytes());
        return whole;
      },
      budget, payer);
}

/// Gives `blocks` of a buffer elements, which are copied when somebody needs them, while `whole`,
/// which has all of them, is there.
std::vector<DenseBlock> CutOutOf(const std::shared_ptr<LazyArray>& whole, const DenseShape& shape,
                                 std::vector<DenseBlock> blocks,
                                 const std::function<void(int64_t)>& on_moved, MemoryUse use,
                                 Budget& budget, MemoryOwner& payer) {
  MemorySource& memory = budget.Source(use, &payer);
  for (DenseBlock& block : blocks) {
    block.elements = MadeWhenNeeded(
        [of = std::weak_ptr<LazyArray>(whole), shape, block, on_moved,
         &memory](LazyArray::Stop stop) -> absl::StatusOr<Array> {
          const std::shared_ptr<LazyArray> whole = of.lock();
          if (whole == nullptr) return absl::AbortedError("the buffer is gone");
          const absl::StatusOr<Array> elements = whole->Get(stop);
          if (!elements.ok()) return elements.status();
          absl::StatusOr<Array> taken = TakeBlock(*elements, shape, block, memory);
          if (taken.ok()) Tell(on_moved, taken->bytes());
          return taken;
        },
        budget, payer);
  }
  return blocks;
}

/// The same for a request and those after it.
std::vector<DenseBlock> CutOutOf(const HeldDenseLease& held, std::vector<DenseBlock> blocks,
                                 Budget& budget) {
  const auto make = [&](std::vector<DenseBlock> of) {
    return CutOutOf(held->elements, held->shape, std::move(of),
                    held->cuts == nullptr ? nullptr : held->cuts->on_moved(), MemoryUse::kRequests,
                    budget, budget.OwnerOf(held->tenant));
  };
  return held->cuts == nullptr ? make(std::move(blocks))
                               : held->cuts->Find(std::move(blocks), make);
}

bool SameBlocks(const std::vector<DenseBlock>& one, const std::vector<DenseBlock>& other) {
  return std::ranges::equal(one, other, [](const DenseBlock& a, const DenseBlock& b) {
    return a.first_row == b.first_row && a.first_col == b.first_col &&
           a.shape.rows == b.shape.rows && a.shape.cols == b.shape.cols;
  });
}

}  // namespace

std::vector<DenseBlock> DenseCuts::Find(
    std::vector<DenseBlock> blocks,
    const std::function<std::vector<DenseBlock>(std::vector<DenseBlock>)>& make) {
  std::vector<DenseBlock> gone;  // let go of without the lock
  const MutexLock lock(mutex_);
  const auto known = std::ranges::find_if(
      known_, [&](const std::vector<DenseBlock>& cut) { return SameBlocks(cut, blocks); });
  if (known != known_.end()) return *known;
  if (known_.size() >= kMost) {
    gone = std::move(known_.front());
    known_.pop_front();
  }
  return known_.emplace_back(make(std::move(blocks)));
}

int64_t BytesToPutTogether(const HeldDense& held) {
  const bool there = held.blocks.empty() || held.durable || !held.elements->on_disk();
  return there ? 0 : ElementBytes(held.shape);
}

std::vector<DenseBlock> ColumnBlocks(const DenseShape& shape, int64_t count) {
  std::vector<DenseBlock> blocks;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = shape.cols * i / count, end = shape.cols * (i + 1) / count;
    blocks.push_back({0, first, {shape.rows, end - first, end - first, shape.type}, nullptr});
  }
  return blocks;
}

std::vector<DenseBlock> ColumnBlocksOf(const HeldDenseLease& held, int64_t count, Budget& budget) {
  if (held->distribution() == Distribution::kColumns &&
      static_cast<int64_t>(held->blocks.size()) == count) {
    return held->blocks;
  }
  return CutOutOf(held, ColumnBlocks(held->shape, count), budget);
}

std::vector<DenseBlock> BlocksOfRows(const DenseShape& shape, std::span<const int64_t> bounds) {
  std::vector<DenseBlock> blocks;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    blocks.push_back(
        {bounds[i], 0, {bounds[i + 1] - bounds[i], shape.cols, shape.cols, shape.type}, nullptr});
  }
  return blocks;
}

std::vector<int64_t> RowBoundsOf(const std::vector<DenseBlock>& blocks) {
  std::vector<int64_t> bounds = {0};
  for (const DenseBlock& block : blocks) bounds.push_back(block.first_row + block.shape.rows);
  return bounds;
}

std::vector<int64_t> EvenBounds(int64_t rows, int64_t count) {
  std::vector<int64_t> bounds;
  for (int64_t i = 0; i <= count; ++i) {
    bounds.push_back(rows / count * i + rows % count * i / count);
  }
  return bounds;
}

std::vector<DenseBlock> RowBlocksOf(const HeldDenseLease& held, std::span<const int64_t> bounds,
                                    Budget& budget) {
  if (held->distribution() == Distribution::kRows &&
      std::ranges::equal(RowBoundsOf(held->blocks), bounds)) {
    return held->blocks;
  }
  return CutOutOf(held, BlocksOfRows(held->shape, bounds), budget);
}

bool DenseCatalog::Distributes(const PutHeader& header, Distribution distribution) const {
  if (distribution == Distribution::kWhole || options_.blocks < 2) return false;
  const bool by_rows = header.shape.rows >= options_.blocks;
  const bool by_columns = header.shape.cols >= options_.blocks;
  if (distribution == Distribution::kAuto) return by_rows || by_columns;
  return distribution == Distribution::kRows ? by_rows : by_columns;
}

absl::StatusOr<std::vector<DenseBlock>> DenseCatalog::BlocksFor(const PutHeader& header,
                                                                Store::Stop stop) const {
  const int64_t count = options_.blocks;
  Distribution distribution = header.distribution;
  if (distribution == Distribution::kAuto) {
    distribution = Distribution::kWhole;
    if (Distributes(header, Distribution::kAuto) && options_.choose) {
      const auto chosen = options_.choose(header.rows_of, header.shape, stop);
      if (!chosen.ok()) return chosen.status();
      distribution = *chosen;
    }
  }
  if (!Distributes(header, distribution)) return std::vector<DenseBlock>();
  if (distribution == Distribution::kColumns) return ColumnBlocks(header.shape, count);
  if (header.rows_of == nullptr || header.rows_of->pattern()->rows() != header.shape.rows) {
    return BlocksOfRows(header.shape, EvenBounds(header.shape.rows, count));
  }
  const absl::StatusOr<std::shared_ptr<const Layout>> csr = header.rows_of->pattern()->Csr(stop);
  if (!csr.ok()) return csr.status();
  return BlocksOfRows(header.shape, RowBoundsByNonzeros(ViewCsr(**csr), count));
}

int64_t QuotaBytes(const DenseShape& shape, const Halo& halo) {
  const int64_t around = halo.rows() * shape.cols * static_cast<int64_t>(SizeOf(shape.type));
  return static_cast<int64_t>(kHeldDenseBytes) + ElementBytes(shape) + around;
}

absl::Status ValidateShape(std::string_view what, const DenseShape& shape) {
  if (!IsFloat(shape.type)) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {}, expected f32, f64, f16 or bf16", what, Name(shape.type)));
  }
  return ValidateSizes(what, shape);
}

absl::Status ValidateSizes(std::string_view what, const DenseShape& shape) {
  if (shape.rows < 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} rows, expected 0 or more", what, shape.rows));
  }
  if (shape.cols < 1) {
    return absl::InvalidArgumentError(
        fmt::format("{} has {} columns, expected 1 or more", what, shape.cols));
  }
  if (shape.leading_dimension < shape.cols) {
    return absl::InvalidArgumentError(
        fmt::format("{} has leading dimension {}, expected at least its {} columns", what,
                    shape.leading_dimension, shape.cols));
  }
  // Also of one without rows, so that sizes made of its width do not overflow.
  constexpr int64_t kMostColumns = int64_t{1} << 40;
  if (shape.leading_dimension > kMostColumns) {
    return absl::InvalidArgumentError(fmt::format("{} has leading dimension {}, at most 2^40 works",
                                                  what, shape.leading_dimension));
  }
  if (!Elements(shape)) {
    return absl::InvalidArgumentError(
        fmt::format("{} with {} rows and leading dimension {} is too large", what, shape.rows,
                    shape.leading_dimension));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DensePut::Claim(uint32_t array, uint64_t offset, uint64_t size) {
  if (array != 0) {
    return absl::InvalidArgumentError(
        fmt::format("chunk of array {}: a buffer has array 0 (elements) alone", array));
  }
  if (header_.zeros) {
    return absl::InvalidArgumentError(
        "chunk of array 0 (elements), which is not wanted: the header says that they are zeros");
  }
  return elements_.Claim(offset, size);
}

absl::StatusOr<Array> DensePut::TakeElements(HeldDense& held) {
  absl::StatusOr<Array> elements = Array();
  if (!header_.zeros) elements = elements_.Finish();
  if (!elements.ok()) return elements;
  MemorySource& memory = catalog_.MemoryOf(header_.tenant);
  if (held.halo.rows() > 0) {
    auto haloed = HaloedDense::Allocate(kElements, held.shape, held.halo, memory);
    if (haloed.ok()) {
      Array own = (*haloed)->own();
      if (!header_.zeros) {
        std::memcpy(own.buffer.mutable_data(), elements->buffer.data(), own.bytes());
      }
      elements = std::move(own);
      held.haloed = *std::move(haloed);
    }
  }
  if (!header_.zeros) return elements;
  if (held.haloed == nullptr) {
    elements = AllocateArray(memory, kElements, held.shape.type, held.shape.elements());
  }
  if (elements.ok() && elements->bytes() > 0) {
    std::memset(elements->buffer.mutable_data(), 0, elements->bytes());
  }
  return elements;
}

absl::StatusOr<HeldDenseLease> DensePut::Finish(Store::Stop stop, Halo halo) {
  absl::StatusOr<Budget::Charge> charge = catalog_.CountHeld(header_.tenant);
  if (!charge.ok()) return charge.status();
  auto held = std::make_shared<HeldDense>();
  held->charge = *std::move(charge);
  held->tenant = header_.tenant;
  held->name = header_.name;
  held->shape = header_.shape;
  held->durable = header_.durable;
  held->owner = header_.owner;
  held->time_to_live = header_.time_to_live;
  const bool plain = !header_.durable && header_.distribution == Distribution::kWhole &&
                     header_.shape.leading_dimension == header_.shape.cols;
  if (plain && catalog_.HasQuotaFor(header_, halo)) held->halo = halo;
  const absl::StatusOr<Array> taken = TakeElements(*held);
  if (!taken.ok()) return taken.status();
  const Array& elements = *taken;
  held->elements = std::make_shared<LazyArray>(elements);
  absl::StatusOr<std::vector<DenseBlock>> blocks = catalog_.BlocksFor(header_, stop);
  if (!blocks.ok()) return blocks.status();
  held->blocks = *std::move(blocks);
  held->cuts = NewCuts(catalog_.options_);
  if (!held->blocks.empty()) {
    MemorySource& memory = catalog_.MemoryOf(header_.tenant);
    absl::Status all_taken;
    for (DenseBlock& block : held->blocks) {
      absl::StatusOr<Array> taken = TakeBlock(elements, held->shape, block, memory);
      all_taken = taken.status();
      if (!taken.ok()) break;
      block.elements = std::make_shared<LazyArray>(*std::move(taken));
    }
    const bool may_be_whole = header_.distribution == Distribution::kAuto;
    if (absl::IsResourceExhausted(all_taken) && may_be_whole) {
      held->blocks.clear();
    } else if (!all_taken.ok()) {
      return all_taken;
    }
  }
  if (!held->blocks.empty()) {
    // The disk has it whole; else it need not be in memory twice.
    if (!held->durable) {
      held->elements = WholeOf(held->shape, held->blocks, catalog_.options_.on_moved_by_host,
                               catalog_.budget_, catalog_.budget_.OwnerOf(header_.tenant));
    }
  }
  held->used = std::make_shared<std::atomic<DenseClock::time_point>>(catalog_.now());
  if (absl::Status s = catalog_.Replace(held, elements, header_.version, stop); !s.ok()) return s;
  return held;
}

absl::Status DenseCatalog::Write(const HeldDense& held, const Array& elements, bool stored,
                                 Store::Stop stop) {
  if (!held.durable) {
    // A restart must not bring back what was replaced.
    return stored ? store_.DeleteBuffer(held.tenant, held.name) : absl::OkStatus();
  }
  NewBuffer record;
  record.tenant = held.tenant;
  record.name = held.name;
  record.rows = held.shape.rows;
  record.cols = held.shape.cols;
  record.leading_dimension = held.shape.leading_dimension;
  record.version = held.version;
  record.owner = held.owner;
  record.time_to_live_ns = std::chrono::nanoseconds(held.time_to_live).count();
  record.array = elements;
  if (!held.blocks.empty()) record.distribution = Name(held.distribution());
  if (held.distribution() == Distribution::kRows) record.row_bounds = RowBoundsOf(held.blocks);
  const absl::StatusOr<BufferRecord> put = store_.PutBuffer(record, stop);
  if (!put.ok()) return put.status();
  held.elements->SetDiskCopy(
      DiskCopyOf(store_, budget_, MemoryUse::kBuffers, budget_.OwnerOf(held.tenant), put->array));
  return absl::OkStatus();
}

absl::Status DenseCatalog::Replace(const std::shared_ptr<HeldDense>& held, const Array& elements,
                                   uint64_t version, Store::Stop stop) {
  const NameKey key(held->tenant, held->name);
  NameLocks::Guard change(changes_, key);
  if (absl::Status s = CheckStop(stop); !s.ok()) return s;
  bool stored = false;
  int64_t growth = 0;
  {
    const MutexLock lock(mutex_);
    // Others may have been put since this one began.
    const int64_t bytes = QuotaBytes(held->shape, held->halo);
    if (absl::Status s = CheckQuota(key, bytes); !s.ok()) return s;
    if (absl::Status s = TakeQuotas(key, *held); !s.ok()) return s;
    growth = std::max<int64_t>(0, GrowthBy(key, bytes));
    TotalsOf(key.first).bytes += growth;  // so that no other Put gets the room
    const auto present = entries_.find(key);
    if (version != 0) {
      held->version = version;
    } else if (present != entries_.end()) {
      held->version = present->second->version + 1;
    }
    stored = stored_.contains(key);
  }
  const absl::Status written = Write(*held, elements, stored, stop);
  HeldDenseLease replaced;  // Freed, if it is the last lease, without the lock.
  const MutexLock lock(mutex_);
  TotalsOf(key.first).bytes -= growth;
  if (!written.ok()) return written;
  // A result may have been written into the old one meanwhile.
  const auto present = entries_.find(key);
  if (version == 0 && present != entries_.end()) {
    held->version = std::max(held->version, present->second->version + 1);
  }
  Touch(*held);
  replaced = Enter(key, held);
  if (held->durable) {
    stored_.insert(key);
  } else {
    stored_.erase(key);
  }
  return absl::OkStatus();
}

absl::Status DenseCatalog::NoDense(const NameKey& key) const {
  // None can have such a name, and no sentence repeats it.
  if (absl::Status valid = ValidateName("buffer", key.second); !valid.ok()) return valid;
  const auto expired = std::ranges::find(expired_, key, &Expired::key);
  if (expired == expired_.end()) {
    return absl::NotFoundError(fmt::format("there is no buffer named '{}'", key.second));
  }
  return absl::NotFoundError(
      fmt::format("the buffer '{}' expired: nothing used it for its time to live of {:g} s",
                  key.second, std::chrono::duration<double>(expired->time_to_live).count()));
}

DenseTotals& DenseCatalog::TotalsOf(std::string_view tenant) {
  const auto known = totals_.find(tenant);
  return known != totals_.end() ? known->second : totals_[std::string(tenant)];
}

int64_t DenseCatalog::GrowthBy(const NameKey& key, int64_t bytes) const {
  const auto present = entries_.find(key);
  if (present == entries_.end()) return bytes;
  return bytes - QuotaBytes(present->second->shape, present->second->halo);
}

bool DenseCatalog::HasQuotaFor(const PutHeader& header, const Halo& halo) {
  const NameKey key(header.tenant, header.name);
  const MutexLock lock(mutex_);
  const int64_t free = options_.tenant_bytes - TotalsOf(key.first).bytes;
  return options_.tenant_bytes == 0 || GrowthBy(key, QuotaBytes(header.shape, halo)) <= free;
}

absl::Status DenseCatalog::CheckQuota(const NameKey& key, int64_t bytes) {
  DenseTotals& totals = TotalsOf(key.first);
  const int64_t growth = GrowthBy(key, bytes);
  const int64_t free = std::max<int64_t>(0, options_.tenant_bytes - totals.bytes);
  if (options_.tenant_bytes == 0 || growth <= 0 || growth <= free) {
    return budget_.tenants().Of(key.first).Check(Quota::kBuffers, 1,
                                                 entries_.contains(key) ? 1 : 0);
  }
  ++totals.refused;
  return absl::ResourceExhaustedError(fmt::format(
      "the buffer '{}' needs {} more bytes of what tenant '{}' may hold, {} of {} are free "
      "(--buffer-memory); delete buffers, or put them with a shorter time to live",
      key.second, growth, key.first, free, options_.tenant_bytes));
}

absl::Status DenseCatalog::TakeQuotas(const NameKey& key, HeldDense& held) {
  Tenant& tenant = budget_.tenants().Of(key.first);
  const auto present = entries_.find(key);
  const bool replaces = present != entries_.end();
  absl::StatusOr<TenantHold> count = tenant.Hold(Quota::kBuffers, 1, replaces ? 1 : 0);
  if (!count.ok()) return count.status();
  held.count = *std::move(count);
  if (!held.durable) return absl::OkStatus();
  const bool replaces_stored = replaces && present->second->disk != nullptr;
  absl::StatusOr<TenantHold> disk =
      tenant.Hold(Quota::kDiskBytes, ElementBytes(held.shape),
                  replaces_stored ? ElementBytes(present->second->shape) : 0);
  if (!disk.ok()) return disk.status();
  held.disk = *std::move(disk);
  return absl::OkStatus();
}

HeldDenseLease DenseCatalog::Enter(const NameKey& key, HeldDenseLease held) {
  DenseTotals& totals = TotalsOf(key.first);
  totals.bytes += GrowthBy(key, QuotaBytes(held->shape, held->halo));
  HeldDenseLease& entry = entries_[key];
  if (entry == nullptr) ++totals.count;
  std::erase_if(expired_, [&](const Expired& expired) { return expired.key == key; });
  return std::exchange(entry, std::move(held));
}

HeldDenseLease DenseCatalog::TakeOut(const NameKey& key) {
  const auto found = entries_.find(key);
  HeldDenseLease held = std::move(found->second);
  entries_.erase(found);
  DenseTotals& totals = TotalsOf(key.first);
  totals.bytes -= QuotaBytes(held->shape, held->halo);
  --totals.count;
  return held;
}

absl::StatusOr<Budget::Charge> DenseCatalog::CountHeld(std::string_view tenant) {
  return budget_.Count(kHeldDenseBytes, MemoryUse::kBuffers, &budget_.OwnerOf(tenant));
}

std::vector<DenseBlock> DenseCatalog::BlocksOf(const BufferRecord& record) const {
  const DenseShape shape = {record.rows, record.cols, record.leading_dimension, record.array.type};
  const int64_t count = options_.blocks;
  if (record.distribution == Name(Distribution::kColumns)) {
    return count < 2 || shape.cols < count ? std::vector<DenseBlock>() : ColumnBlocks(shape, count);
  }
  const bool in_rows = record.distribution == Name(Distribution::kRows);
  if (!in_rows || count < 2 || shape.rows < count) return {};
  std::vector<int64_t> bounds = record.row_bounds;
  const bool fit = static_cast<int64_t>(bounds.size()) == count + 1 && bounds.front() == 0 &&
                   bounds.back() == shape.rows &&
                   std::ranges::adjacent_find(bounds, std::greater_equal()) == bounds.end();
  // There are more GPUs now, or fewer.
  if (!fit) bounds = EvenBounds(shape.rows, count);
  return BlocksOfRows(shape, bounds);
}

absl::Status DenseCatalog::Restore(const StoreContents& contents) {
  const MutexLock lock(mutex_);
  for (const BufferRecord& record : contents.buffers) {
    absl::StatusOr<Budget::Charge> charge = CountHeld(record.tenant);
    if (!charge.ok()) return charge.status();
    auto held = std::make_shared<HeldDense>();
    held->charge = *std::move(charge);
    held->tenant = record.tenant;
    held->name = record.name;
    held->shape = {record.rows, record.cols, record.leading_dimension, record.array.type};
    held->version = record.version;
    held->durable = true;
    held->owner = record.owner;
    held->time_to_live = std::chrono::nanoseconds(record.time_to_live_ns);
    held->used = std::make_shared<std::atomic<DenseClock::time_point>>(now());
    const std::string what = fmt::format("the stored buffer '{}'", record.name);
    if (absl::Status s = ValidateShape(what, held->shape); !s.ok()) {
      return absl::DataLossError(std::string(s.message()));
    }
    if (record.array.length != held->shape.elements()) {
      return absl::DataLossError(fmt::format("{} has {} elements, its shape {}", what,
                                             record.array.length, held->shape.elements()));
    }
    held->elements = std::make_shared<LazyArray>(DiskCopyOf(
        store_, budget_, MemoryUse::kBuffers, budget_.OwnerOf(record.tenant), record.array));
    held->cuts = NewCuts(options_);
    held->blocks = CutOutOf(held->elements, held->shape, BlocksOf(record), /*on_moved=*/nullptr,
                            MemoryUse::kBuffers, budget_, budget_.OwnerOf(record.tenant));
    Tenant& tenant = budget_.tenants().Of(record.tenant);
    held->count = tenant.HoldAnyway(Quota::kBuffers);
    held->disk = tenant.HoldAnyway(Quota::kDiskBytes, ElementBytes(held->shape));
    const NameKey key(record.tenant, record.name);
    Enter(key, std::move(held));
    stored_.insert(key);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DensePut>> DenseCatalog::BeginPut(PutHeader header) {
  if (absl::Status s = ValidateName("buffer", header.name); !s.ok()) return s;
  const std::string what = fmt::format("buffer '{}'", header.name);
  if (absl::Status s = ValidateShape(what, header.shape); !s.ok()) return s;
  if (absl::Status s = CheckDurable(header.durable, store_); !s.ok()) return s;
  if (header.rows_of != nullptr) {
    const Matrix& of = *header.rows_of;
    if (header.distribution != Distribution::kRows && header.distribution != Distribution::kAuto) {
      return absl::InvalidArgumentError(fmt::format(
          "{} is to have the rows of '{}', but is not distributed by rows", what, of.name()));
    }
    const bool any_side = header.distribution == Distribution::kAuto;
    if (any_side && of.pattern()->rows() != header.shape.rows &&
        of.pattern()->cols() != header.shape.rows) {
      return absl::InvalidArgumentError(
          fmt::format("{} is to be multiplied with '{}', which is {} x {}, but has {} rows", what,
                      of.name(), of.pattern()->rows(), of.pattern()->cols(), header.shape.rows));
    }
    if (!any_side && of.pattern()->rows() != header.shape.rows) {
      return absl::InvalidArgumentError(
          fmt::format("{} is to have the rows of '{}', which has {} of them, not {}", what,
                      of.name(), of.pattern()->rows(), header.shape.rows));
    }
  }
  if (header.distribution == Distribution::kAuto && header.rows_of == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("{} is to lie as is best for a matrix, and names none", what));
  }
  if (!header.owner.empty()) {
    if (absl::Status s = ValidateName("owner", header.owner); !s.ok()) return s;
  }
  if (absl::Status s = CheckTimeToLive(what, header.time_to_live, "the server's default"); !s.ok())
    return s;
  if (header.time_to_live.count() == 0 && !header.durable) {
    header.time_to_live = options_.time_to_live;
  }
  const int64_t elements = header.shape.elements();
  const size_t bytes = static_cast<size_t>(elements) * SizeOf(header.shape.type);
  const MemoryOwner& owner = budget_.OwnerOf(header.tenant);
  // Its blocks are taken out of the whole. Where the server chooses, it stays whole without room.
  const bool must = header.distribution != Distribution::kAuto;
  const size_t room = must && Distributes(header, header.distribution) ? 2 * bytes : bytes;
  if (absl::Status s = CheckRoom(budget_, MemoryUse::kBuffers, room, &owner); !s.ok()) return s;
  {
    // Before anything comes; it is asked again when all is there.
    const MutexLock lock(mutex_);
    const NameKey key(header.tenant, header.name);
    if (absl::Status s = CheckQuota(key, QuotaBytes(header.shape)); !s.ok()) return s;
  }
  std::unique_ptr<DensePut> put(new DensePut(*this, std::move(header)));
  if (put->header_.zeros) return put;
  put->elements_ = ArrayAssembler({kElements, put->header_.shape.type, elements, {}},
                                  ArriveWhole(MemoryOf(put->header_.tenant), bytes));
  return put;
}

absl::StatusOr<HeldDenseLease> DenseCatalog::Find(std::string_view tenant,
                                                  std::string_view name) const {
  const MutexLock lock(mutex_);
  const NameKey key(tenant, name);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return NoDense(key);
  Touch(*found->second);
  return found->second;
}

std::vector<HeldDenseLease> DenseCatalog::List(std::string_view tenant, std::string_view prefix,
                                               std::string_view after) const {
  const MutexLock lock(mutex_);
  std::vector<HeldDenseLease> list;
  auto it = after < prefix ? entries_.lower_bound(NameKey(tenant, prefix))
                           : entries_.upper_bound(NameKey(tenant, after));
  for (; it != entries_.end(); ++it) {
    const auto& [key, held] = *it;
    if (key.first != tenant || !std::string_view(key.second).starts_with(prefix)) break;
    list.push_back(held);
  }
  return list;
}

std::vector<HeldDenseLease> DenseCatalog::ListAll(std::string_view prefix,
                                                  std::string_view after) const {
  const MutexLock lock(mutex_);
  std::vector<HeldDenseLease> list;
  auto it = after.empty() ? entries_.begin() : entries_.upper_bound(Named("", after));
  for (; it != entries_.end(); ++it) {
    const auto& [key, held] = *it;
    if (ReferenceFor("", key).starts_with(prefix)) list.push_back(held);
  }
  return list;
}

absl::Status DenseCatalog::Delete(std::string_view tenant, std::string_view name) {
  const NameKey key(tenant, name);
  NameLocks::Guard change(changes_, key);
  bool stored = false;
  {
    const MutexLock lock(mutex_);
    if (!entries_.contains(key)) return NoDense(key);
    stored = stored_.contains(key);
  }
  if (stored) {
    if (absl::Status s = store_.DeleteBuffer(key.first, key.second); !s.ok()) return s;
  }
  HeldDenseLease deleted;  // Freed, if it is the last lease, without the lock.
  const MutexLock lock(mutex_);
  deleted = TakeOut(key);
  stored_.erase(key);
  return absl::OkStatus();
}

absl::StatusOr<DenseWrite> DenseCatalog::BeginWrite(std::string_view tenant,
                                                    std::string_view name) {
  const NameKey key(tenant, name);
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return NoDense(key);
  if (!writing_.insert(key).second) {
    return absl::AbortedError(fmt::format("another request is writing the buffer '{}'", name));
  }
  Touch(*found->second);
  return DenseWrite(*this, found->second);
}

bool DenseCatalog::IsUsed(const NameKey& key, const HeldDenseLease& held) const {
  // Requests may keep the elements alone. Whoever gets one later asks for it with mutex_ held, and
  // that is a use.
  return writing_.contains(key) || held.use_count() > 1 || held->elements.use_count() > 1 ||
         (held->haloed != nullptr && held->haloed->in_use());
}

bool DenseCatalog::IsDue(const NameKey& key, const HeldDenseLease& held) const {
  if (held->time_to_live.count() == 0) return false;
  if (IsUsed(key, held)) {
    Touch(*held);
    return false;
  }
  return now() - held->used->load(std::memory_order_relaxed) >= held->time_to_live;
}

std::vector<NameKey> DenseCatalog::FindDue() {
  std::vector<NameKey> due;
  const MutexLock lock(mutex_);
  auto it = entries_.upper_bound(looked_at_);
  for (int i = 0; i < kDueAtOnce && it != entries_.end(); ++i, ++it) {
    if (IsDue(it->first, it->second)) due.push_back(it->first);
  }
  looked_at_ = it == entries_.end() ? NameKey() : std::prev(it)->first;
  return due;
}

std::optional<DenseExpiry> DenseCatalog::ExpireIfDue(const NameKey& key) {
  NameLocks::Guard change(changes_, key);
  DenseExpiry expiry;
  bool stored = false;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || !IsDue(key, found->second)) return std::nullopt;
    // From here on nobody can begin to use it; while the name is locked nobody puts another.
    expiry.held = TakeOut(key);
    stored = stored_.contains(key);
  }
  if (stored) expiry.status = store_.DeleteBuffer(key.first, key.second);
  const MutexLock lock(mutex_);
  if (expiry.status.ok()) {
    stored_.erase(key);
    ++TotalsOf(key.first).expired;
    expired_.push_back({key, expiry.held->time_to_live});
    if (expired_.size() > kExpiredNames) expired_.pop_front();
  } else {
    // It is there as long as a restart would bring it back; tried again after its time to live.
    Touch(*expiry.held);
    Enter(key, expiry.held);
  }
  return expiry;
}

std::vector<DenseExpiry> DenseCatalog::Expire(const std::stop_token& stop) {
  std::vector<DenseExpiry> expired;
  for (const NameKey& key : FindDue()) {
    if (stop.stop_requested()) break;
    std::optional<DenseExpiry> expiry = ExpireIfDue(key);
    if (expiry.has_value()) expired.push_back(*std::move(expiry));
  }
  return expired;
}

std::map<std::string, DenseTotals, std::less<>> DenseCatalog::totals() const {
  const MutexLock lock(mutex_);
  return totals_;
}

int64_t DenseCatalog::size() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

DenseWrite& DenseWrite::operator=(DenseWrite&& other) noexcept {
  std::swap(catalog_, other.catalog_);
  std::swap(base_, other.base_);
  std::swap(version_, other.version_);
  return *this;
}

DenseWrite::~DenseWrite() {
  if (catalog_ == nullptr) return;
  const MutexLock lock(catalog_->mutex_);
  catalog_->writing_.erase(NameKey(base_->tenant, base_->name));
}

absl::Status DenseWrite::Publish(std::vector<DenseBlock> blocks) {
  std::shared_ptr<LazyArray> whole =
      WholeOf(base_->shape, blocks, catalog_->options_.on_moved_by_host, catalog_->budget_,
              catalog_->budget_.OwnerOf(base_->tenant));
  return Publish(std::move(whole), nullptr, std::move(blocks));
}

absl::Status DenseWrite::Publish(std::shared_ptr<LazyArray> elements,
                                 std::shared_ptr<HaloedDense> haloed,
                                 std::vector<DenseBlock> blocks) {
  auto held = std::make_shared<HeldDense>(*base_);
  held->version = version_ != 0 ? version_ : base_->version + 1;
  held->durable = false;
  held->elements = std::move(elements);
  held->haloed = std::move(haloed);
  held->blocks = std::move(blocks);
  held->cuts = NewCuts(catalog_->options_);
  const MutexLock lock(catalog_->mutex_);
  const NameKey key(base_->tenant, base_->name);
  const auto present = catalog_->entries_.find(key);
  if (present == catalog_->entries_.end()) return catalog_->NoDense(key);
  if (present->second != base_) {
    return absl::AbortedError(
        fmt::format("the buffer '{}' was replaced while a request was writing it", base_->name));
  }
  catalog_->Touch(*held);
  // base_ keeps the old version alive, so nothing is freed under the lock.
  present->second = std::move(held);
  return absl::OkStatus();
}

}  // namespace sparsed::engine
