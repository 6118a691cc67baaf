// Callers on this machine that run kernels themselves, on layouts and values that they map.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/matrix.h"
#include "engine/execution/executor.h"
#include "engine/memory/exported_memory.h"
#include "kernels/device_id.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// What runs for one problem, as a process that maps it needs to know it. It stays there, and
/// counts, while a copy of this lives.
struct ExportedRun {
  uint64_t sequence = 0;  ///< it is what requests run on for as long as the matrix's is no higher
  uint64_t contents = 0;  ///< ... and right, if not the fastest, as long as this is no higher
  MatrixLease matrix;
  uint64_t version = 0;  ///< of the values
  std::string plan;      ///< "<pipeline> / <kernel>"; of plain rows "<pipeline>"
  std::string kernel;    ///< empty of plain rows
  /// Its arrays have no elements: those lie in `arrays`, one after another, each at the next
  /// multiple of kPackedAlignment.
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<const ExportedMemory> arrays;
  std::shared_ptr<const ExportedMemory> values;  ///< in the layout's order
  std::shared_ptr<const ExportedMemory> order;   ///< Matrix::caller_order; null: none
};

/// One copy of what is exported, for all who ask for it while somebody has it. Thread-safe.
class Exports {
 public:
  using Make = std::function<absl::StatusOr<std::shared_ptr<const ExportedMemory>>()>;
  /// What was made of `one` and `other` (which may be the same), by `make` if nobody has it.
  absl::StatusOr<std::shared_ptr<const ExportedMemory>> Find(
      const std::shared_ptr<const void>& one, const std::shared_ptr<const void>& other,
      const Make& make);

 private:
  /// Their addresses are nobody else's while they are here.
  using Key = std::pair<std::weak_ptr<const void>, std::weak_ptr<const void>>;
  struct ByOwner {
    bool operator()(const Key& a, const Key& b) const;
  };
  struct Entry {
    Mutex making;
    std::weak_ptr<const ExportedMemory> memory ABSL_GUARDED_BY(making);
  };

  Mutex mutex_;
  std::map<Key, std::shared_ptr<Entry>, ByOwner> entries_ ABSL_GUARDED_BY(mutex_);
};

class GpuBackend;

/// A caller's hold on a name: what it stands for may change, or go. Thread-safe.
class Attachment {
 public:
  /// `device`: where the caller runs.
  Attachment(std::shared_ptr<Executor::Impl> impl, std::string tenant, std::string name,
             DeviceId device, std::unique_ptr<ExportedSequence> sequence);

  const std::string& tenant() const { return tenant_; }
  const std::string& name() const { return name_; }
  DeviceId device() const { return device_; }
  /// It grows when the matrix has other values, is another, is gone, or has another plan.
  const ExportedSequence& sequence() const { return *sequence_; }
  /// The matrix has other values, is another, is gone, or may not be used any more.
  void Changed() const { sequence_->IncrementContents(); }

  /// The matrix that the name stands for now. NOT_FOUND.
  absl::StatusOr<MatrixLease> Current() const;
  /// For SpMM or SDDMM; type and device of `problem` are the matrix's and the caller's. Blocks on
  /// the disk and on copies. A signature without a plan is tried soon, as if a request had come.
  /// NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED without a kernel, INVALID_ARGUMENT.
  absl::StatusOr<ExportedRun> Export(Problem problem);
  /// Plain CSR of S, or of S^T, for what has no plan. Blocks likewise, also on making that of S^T.
  absl::StatusOr<ExportedRun> ExportRows(bool transposed);

 private:
  /// The present matrix, whose changes the caller is told from here on.
  absl::StatusOr<ExportedRun> Begin();
  absl::StatusOr<std::shared_ptr<const Layout>> RowsOf(const std::shared_ptr<Pattern>& pattern,
                                                       bool transposed) const;
  /// Sets the layout of `run`, and what it names of memory, from its matrix.
  absl::Status ExportLayout(const std::shared_ptr<const Layout>& layout, ExportedRun& run) const;
  absl::Status ExportFiles(const std::shared_ptr<const Layout>& layout, ExportedRun& run) const;
  absl::Status ExportFrom(GpuBackend& gpu, const std::shared_ptr<const Layout>& layout,
                          ExportedRun& run) const;
  /// What stays the same while a layout in host memory is what it is, though it may leave memory
  /// and be read, or made, again.
  std::shared_ptr<const void> IdentityOf(const std::shared_ptr<Pattern>& pattern,
                                         const std::shared_ptr<const Layout>& layout) const;

  const std::shared_ptr<Executor::Impl> impl_;
  const std::string tenant_, name_;
  const DeviceId device_;
  const std::shared_ptr<ExportedSequence> sequence_;  ///< those who tell of changes hold it, too
  Mutex mutex_;
  std::weak_ptr<const Pattern> followed_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const void> plans_ ABSL_GUARDED_BY(mutex_);  ///< the watch of its plans
};

/// All of them, by the name that they follow. Thread-safe.
class Attachments {
 public:
  /// Those that follow the name learn that it changed.
  void Changed(std::string_view tenant, std::string_view name);
  void Add(const std::shared_ptr<const Attachment>& attachment);
  int64_t count() const;

 private:
  mutable Mutex mutex_;
  std::multimap<std::pair<std::string, std::string>, std::weak_ptr<const Attachment>> attached_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
