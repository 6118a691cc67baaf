#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/catalog/catalog.h"

namespace sparsed::engine {
namespace {

constexpr std::string_view kArrayNames[] = {"row_offsets", "column_indices", "values"};

absl::Status CheckDimension(std::string_view what, int64_t value) {
  if (value >= 0 && value <= kMaxDimension) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} = {} is out of range [0, {}]", what, value, kMaxDimension));
}

absl::Status CheckSizes(const UploadHeader& header) {
  if (absl::Status status = CheckDimension("rows", header.rows); !status.ok()) return status;
  if (absl::Status status = CheckDimension("cols", header.cols); !status.ok()) return status;
  // Dimensions are below 2^31, so their product fits.
  if (header.nnz < 0 || header.nnz > header.rows * header.cols) {
    return absl::InvalidArgumentError(fmt::format("nnz = {} is out of range [0, rows * cols = {}]",
                                                  header.nnz, header.rows * header.cols));
  }
  if (!IsFloat(header.type)) {
    return absl::InvalidArgumentError(
        fmt::format("values are {}, expected f32, f64, f16 or bf16", Name(header.type)));
  }
  if (header.row_offsets_type != ElementType::kI32 &&
      header.row_offsets_type != ElementType::kI64) {
    return absl::InvalidArgumentError(
        fmt::format("row_offsets are {}, expected i32 or i64", Name(header.row_offsets_type)));
  }
  if (header.row_offsets_type == ElementType::kI32 &&
      header.nnz > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        fmt::format("{} nonzeros do not fit i32 row_offsets; send i64", header.nnz));
  }
  return absl::OkStatus();
}

/// For small arrays a team of threads costs more than it brings.
int TeamFor(int64_t nnz, int threads) { return nnz < (1 << 15) ? 1 : std::max(threads, 1); }

/// Of a matrix's values and, if there is one, their order.
int64_t BytesOnDisk(const Array& values, const std::shared_ptr<LazyArray>& order) {
  const size_t order_bytes = order == nullptr ? 0 : SizeOf(ElementType::kI64);
  return static_cast<int64_t>(values.bytes()) + values.length * static_cast<int64_t>(order_bytes);
}

template <typename Value>
void Fill(std::span<Value> values, Value value, int threads) {
  const int64_t count = static_cast<int64_t>(values.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < count; ++i) values[i] = value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Upload>> Catalog::BeginUpload(UploadHeader header) {
  if (absl::Status status = ValidateName("matrix", header.name); !status.ok()) return status;
  if (absl::Status status = CheckSizes(header); !status.ok()) return status;
  absl::Status status = CheckTimeToLive(fmt::format("matrix '{}'", header.name),
                                        header.time_to_live, "as long as it is not deleted");
  if (!status.ok()) return status;
  if (!header.replace && Present(NameKey(header.tenant, header.name)) != nullptr) {
    return NameIsTaken(header.name);
  }
  if (absl::Status status = CheckQuotas(header); !status.ok()) return status;
  std::unique_ptr<Upload> upload(new Upload(*this, std::move(header)));
  if (absl::Status status = upload->Reserve(); !status.ok()) return status;
  return upload;
}

absl::Status Catalog::CheckQuotas(const UploadHeader& header) {
  Tenant& tenant = TenantOf(header.tenant);
  const MatrixLease replaced = Present(NameKey(header.tenant, header.name));
  absl::Status fits = tenant.Check(Quota::kMatrices, 1, replaced == nullptr ? 0 : 1);
  if (!fits.ok() || !store_.durable()) return fits;
  return tenant.Check(Quota::kDiskBytes, header.nnz * static_cast<int64_t>(SizeOf(header.type)),
                      replaced == nullptr ? 0 : replaced->disk_bytes());
}

Upload::Upload(Catalog& catalog, UploadHeader header)
    : catalog_(catalog), header_(std::move(header)), memory_(catalog.MemoryOf(header_.tenant)) {}

absl::Status Upload::Reserve() {
  const bool reorders = header_.sort || header_.sum_duplicates;
  if (!header_.pattern_hash.empty() && !reorders) {
    known_ = catalog_.KnownPattern(header_.tenant, header_.pattern_hash);
  }
  if (known_ != nullptr && (known_->rows() != header_.rows || known_->cols() != header_.cols ||
                            known_->nnz() != header_.nnz)) {
    return absl::InvalidArgumentError(fmt::format(
        "pattern {} is {} x {} with {} nonzeros, the header says {} x {} with {}", known_->hash(),
        known_->rows(), known_->cols(), known_->nnz(), header_.rows, header_.cols, header_.nnz));
  }
  const int64_t lengths[] = {header_.rows + 1, header_.nnz, header_.nnz};
  const ElementType types[] = {ElementType::kI64, ElementType::kI32, header_.type};
  size_t all = 0;
  for (uint32_t i : {kRowOffsets, kColumnIndices, kValues}) {
    if (known_ != nullptr && i != kValues) continue;
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(lengths[i]), SizeOf(types[i]), &bytes) ||
        __builtin_add_overflow(all, bytes, &all)) {
      return absl::InvalidArgumentError(
          fmt::format("a matrix of {} rows with {} nonzeros has more "
                      "bytes than can be counted",
                      header_.rows, header_.nnz));
    }
    if (!wanted(i)) continue;
    const ElementType sent = i == kRowOffsets ? header_.row_offsets_type : types[i];
    arrays_[i] = ArrayAssembler({std::string(kArrayNames[i]), sent, lengths[i], {}},
                                ArriveWhole(memory_, bytes));
  }
  // What cannot fit is refused before it is sent; memory is taken as it comes.
  return CheckRoom(catalog_.budget_, MemoryUse::kMatrices, all,
                   &catalog_.budget_.OwnerOf(header_.tenant));
}

size_t Upload::announced() const {
  size_t bytes = 0;
  for (const ArrayAssembler& array : arrays_) bytes += array.array().bytes();
  return bytes;
}

size_t Upload::counted() const {
  size_t bytes = 0;
  for (const ArrayAssembler& array : arrays_) bytes += array.counted();
  return bytes;
}

bool Upload::wanted(uint32_t array) const {
  return array == kValues ? !header_.values_are_ones : known_ == nullptr;
}

absl::StatusOr<std::byte*> Upload::Claim(uint32_t array, uint64_t offset, uint64_t size) {
  if (array > kValues) {
    return absl::InvalidArgumentError(
        fmt::format("chunk of array {}: a matrix has arrays 0 (row_offsets), 1 (column_indices) "
                    "and 2 (values)",
                    array));
  }
  if (!wanted(array)) {
    return absl::InvalidArgumentError(fmt::format(
        "chunk of array {} ({}), which is not wanted: {}", array, kArrayNames[array],
        array == kValues ? "the header says that values are ones" : "the pattern is known"));
  }
  return arrays_[array].Claim(offset, size);
}

absl::StatusOr<Array> Upload::TakeValues(int threads) {
  if (!header_.values_are_ones) return arrays_[kValues].Finish();
  absl::StatusOr<Array> values =
      AllocateArray(memory_, kArrayNames[kValues], header_.type, header_.nnz);
  if (!values.ok()) return values;
  VisitFloat(header_.type,
             [&]<typename T>(T) { Fill(values->MutableAs<T>(), static_cast<T>(1.0F), threads); });
  return values;
}

absl::StatusOr<MatrixLease> Upload::Finish(int threads, Store::Stop stop) {
  threads = TeamFor(header_.nnz, threads);
  if (known_ == nullptr && !header_.pattern_hash.empty() && arrays_[kRowOffsets].received() == 0) {
    return absl::NotFoundError(fmt::format(
        "pattern {} is not known; send row_offsets and column_indices", header_.pattern_hash));
  }
  absl::StatusOr<Array> values = TakeValues(threads);
  if (!values.ok()) return values.status();
  if (known_ != nullptr) {
    return catalog_.Add(header_, known_, *std::move(values), std::nullopt, threads, stop);
  }
  if (arrays_[kRowOffsets].received() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("row_offsets never arrived: a matrix of {} rows has {} of them, of which the "
                    "first is 0",
                    header_.rows, header_.rows + 1));
  }
  absl::StatusOr<Array> row_offsets = arrays_[kRowOffsets].Finish();
  if (!row_offsets.ok()) return row_offsets.status();
  absl::StatusOr<Array> column_indices = arrays_[kColumnIndices].Finish();
  if (!column_indices.ok()) return column_indices.status();
  if (row_offsets->type == ElementType::kI32) WidenRowOffsets(*row_offsets);

  CsrArrays arrays{
      header_.rows,       header_.cols, *std::move(row_offsets), *std::move(column_indices),
      *std::move(values), std::nullopt};
  absl::Status canonical =
      MakeCanonical(arrays, {header_.sort, header_.sum_duplicates}, memory_, threads);
  if (!canonical.ok()) return canonical;
  if (absl::Status s = CheckStop(stop); !s.ok()) return s;
  return catalog_.AddArrays(header_, std::move(arrays), threads, stop);
}

absl::StatusOr<std::unique_ptr<ValuesUpdate>> Catalog::BeginUpdate(UpdateHeader header) {
  absl::StatusOr<MatrixLease> base = Find(header.tenant, header.name, Right::kWrite);
  if (!base.ok()) return base.status();
  header.tenant = (*base)->tenant();
  header.name = (*base)->name();
  if (absl::Status status = CheckDurable(header.durable, store_); !status.ok()) return status;
  if (header.type != (*base)->type()) {
    return absl::InvalidArgumentError(fmt::format("values are {}, but matrix '{}' is {}",
                                                  Name(header.type), header.name,
                                                  Name((*base)->type())));
  }
  const int64_t nnz = (*base)->pattern()->nnz();
  const size_t bytes = static_cast<size_t>(nnz) * SizeOf(header.type);
  const MemoryOwner& owner = budget_.OwnerOf(header.tenant);
  if (absl::Status s = CheckRoom(budget_, MemoryUse::kMatrices, bytes, &owner); !s.ok()) return s;
  std::unique_ptr<ValuesUpdate> update(
      new ValuesUpdate(*this, std::move(header), *std::move(base)));
  if (absl::Status status = update->CheckVersion(*update->base_); !status.ok()) return status;
  update->values_ = ArrayAssembler({"values", update->header_.type, nnz, {}},
                                   ArriveWhole(update->memory_, bytes));
  return update;
}

ValuesUpdate::ValuesUpdate(Catalog& catalog, UpdateHeader header, MatrixLease base)
    : catalog_(catalog),
      header_(std::move(header)),
      memory_(catalog.MemoryOf(header_.tenant)),
      base_(std::move(base)) {}

absl::Status ValuesUpdate::CheckVersion(const Matrix& present) const {
  if (header_.if_version == 0 || header_.if_version == present.version()) return absl::OkStatus();
  return absl::AbortedError(fmt::format("matrix '{}' is at version {}, not {}", header_.name,
                                        present.version(), header_.if_version));
}

absl::StatusOr<std::byte*> ValuesUpdate::Claim(uint32_t array, uint64_t offset, uint64_t size) {
  if (array != 0) {
    return absl::InvalidArgumentError(
        fmt::format("chunk of array {}: an update has array 0 (values) alone", array));
  }
  return values_.Claim(offset, size);
}

absl::StatusOr<MatrixLease> ValuesUpdate::Finish(int threads, Store::Stop stop) {
  threads = TeamFor(base_->pattern()->nnz(), threads);
  absl::StatusOr<Array> values = values_.Finish();
  if (!values.ok()) return values.status();
  if (base_->caller_order() != nullptr) {
    absl::StatusOr<Array> order = base_->caller_order()->Get(stop);
    if (!order.ok()) return order.status();
    values = ToCanonicalOrder(*values, *order, memory_, threads);
    if (!values.ok()) return values.status();
  }

  const NameKey key(header_.tenant, header_.name);
  NameLocks::Guard change(catalog_.changes_, key);
  const MatrixLease present = catalog_.Present(key);
  if (present == nullptr) return NoMatrix(header_.name);
  if (absl::Status status = CheckVersion(*present); !status.ok()) return status;
  if (present->pattern() != base_->pattern() || present->type() != base_->type() ||
      present->caller_order() != base_->caller_order()) {
    return absl::AbortedError(
        fmt::format("matrix '{}' was replaced while its new values arrived", header_.name));
  }
  MatrixKeep keep = present->keep();
  if (header_.durable) {
    const int64_t present_bytes = present->disk_bytes();
    const int64_t bytes = BytesOnDisk(*values, base_->caller_order());
    absl::StatusOr<TenantHold> disk =
        catalog_.TenantOf(header_.tenant).Hold(Quota::kDiskBytes, bytes, present_bytes);
    if (!disk.ok()) return disk.status();
    keep.disk = *std::move(disk);
  }
  const auto lazy_values = std::make_shared<LazyArray>(*values);
  auto matrix = std::make_shared<const Matrix>(
      header_.tenant, header_.name, base_->pattern(), base_->type(), catalog_.NextVersion(key),
      present->created_unix_ns(), header_.durable, lazy_values, base_->caller_order(),
      std::move(keep), catalog_.budget_.evictions());
  if (absl::Status s = catalog_.PlaceInLayouts(*matrix, threads, stop); !s.ok()) return s;
  if (header_.durable) {
    const absl::StatusOr<MatrixRecord> stored =
        catalog_.store_.PutValues(header_.tenant, header_.name, matrix->version(), *values, stop);
    if (!stored.ok()) return stored.status();
    catalog_.SetDiskCopy(*lazy_values, header_.tenant, stored->values);
  } else if (absl::Status s = catalog_.UseVersion(key, matrix->version()); !s.ok()) {
    return s;
  }
  catalog_.Publish(matrix);
  return matrix;
}

}  // namespace sparsed::engine
