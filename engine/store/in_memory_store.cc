#include "engine/store/snapshot.h"
#include "engine/store/store.h"

namespace sparsed::engine {
namespace {

/// What a StoredArray says of an array that is not on disk.
StoredArray Unstored(ArrayOwner owner, std::string name, const Array& array) {
  return {std::move(owner), std::move(name), array.type, array.length, nullptr};
}

class InMemoryStore final : public Store {
 public:
  bool durable() const override { return false; }
  absl::Status Available() override { return absl::OkStatus(); }
  absl::StatusOr<StoreContents> Load() override { return StoreContents(); }

  absl::StatusOr<StoredMatrix> PutMatrix(const NewMatrix& m, Stop) override {
    const ArrayOwner of_pattern{ArrayOwner::Kind::kPattern, m.pattern_hash, "", "", ""};
    const ArrayOwner of_matrix{ArrayOwner::Kind::kMatrix, m.pattern_hash, m.tenant, m.name, ""};
    StoredMatrix stored;
    stored.pattern = {m.pattern_hash, m.rows, m.cols, m.nnz, {}, {}, {}};
    if (m.row_offsets) {
      stored.pattern.row_offsets = Unstored(of_pattern, "row_offsets", *m.row_offsets);
    }
    if (m.column_indices) {
      stored.pattern.column_indices = Unstored(of_pattern, "column_indices", *m.column_indices);
    }
    stored.matrix = {
        m.tenant,  m.name,           m.pattern_hash,    m.values.type,
        m.version, m.version,        m.created_unix_ns, Unstored(of_matrix, "values", m.values),
        {},        m.time_to_live_ns};
    if (m.value_order) {
      stored.matrix.value_order = Unstored(of_matrix, "value_order", *m.value_order);
    }
    return stored;
  }

  absl::StatusOr<MatrixRecord> PutValues(const std::string& tenant, const std::string& name,
                                         uint64_t version, const Array& values, Stop) override {
    MatrixRecord record;
    record.tenant = tenant;
    record.name = name;
    record.type = values.type;
    record.version = record.used_version = version;
    record.values = Unstored({ArrayOwner::Kind::kMatrix, "", tenant, name, ""}, "values", values);
    return record;
  }

  absl::Status UseVersions(const std::string&, const std::string&, uint64_t) override {
    return absl::OkStatus();
  }
  absl::Status PutShare(const ShareRecord&) override { return absl::OkStatus(); }
  absl::Status DeleteShare(const std::string&, const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status DeleteMatrix(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }

  absl::StatusOr<LayoutRecord> PutLayout(const std::string& pattern_hash, const Layout& layout,
                                         double build_seconds, Stop) override {
    LayoutRecord record{pattern_hash, layout, build_seconds, {}};
    record.layout.arrays.clear();
    const ArrayOwner owner{ArrayOwner::Kind::kLayout, pattern_hash, "", "", layout.pipeline};
    for (const Array& array : layout.arrays) {
      record.arrays.push_back(Unstored(owner, array.name, array));
    }
    return record;
  }

  absl::Status DropLayout(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status PutPlans(std::span<const PlanRecord>) override { return absl::OkStatus(); }
  absl::Status PutMeasurements(std::span<const MeasurementRecord>) override {
    return absl::OkStatus();
  }
  absl::Status PutDecisions(std::span<const DecisionRecord>) override { return absl::OkStatus(); }
  absl::Status PutWanted(std::span<const WantedRecord>) override { return absl::OkStatus(); }
  absl::Status PutPreparation(const std::string&, const PreparationRecord&) override {
    return absl::OkStatus();
  }
  absl::Status PutFeatures(const std::string&, const Features&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<Features>> ReadFeatures(const std::string&, MemorySource&) override {
    return std::optional<Features>();
  }
  absl::StatusOr<std::optional<PastPattern>> ReadNextPast(const std::string&,
                                                          MemorySource&) override {
    return std::optional<PastPattern>();
  }
  int64_t past_measurement_bytes() const override { return 0; }

  absl::StatusOr<BufferRecord> PutBuffer(const NewBuffer& b, Stop) override {
    return BufferRecord{
        b.tenant,
        b.name,
        b.rows,
        b.cols,
        b.leading_dimension,
        b.version,
        b.owner,
        b.time_to_live_ns,
        Unstored({ArrayOwner::Kind::kBuffer, "", b.tenant, b.name, ""}, "dense", b.array),
        b.distribution,
        b.row_bounds};
  }
  absl::Status DeleteBuffer(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }

  absl::StatusOr<Array> Read(const StoredArray& array, MemorySource&, Stop) override {
    return absl::FailedPreconditionError(Describe(array) + " is not on disk");
  }
  absl::StatusOr<std::unique_ptr<StoreSnapshot>> Snapshot(Stop) override {
    return absl::FailedPreconditionError(
        "this server keeps everything in memory (--in-memory), so there is nothing that a snapshot "
        "could be taken of");
  }
  absl::Status Scrub(const std::function<bool(int64_t)>&,
                     const std::function<void(const StoredArray&, const absl::Status&)>&) override {
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Store> MakeInMemoryStore() { return std::make_unique<InMemoryStore>(); }

}  // namespace sparsed::engine
