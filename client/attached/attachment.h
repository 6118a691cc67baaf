// One attachment to a matrix: a connection to the server's local socket, and what was mapped by it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/attached/exported_product.h"
#include "client/attached/memory_file.h"
#include "client/src/local_socket.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed {
inline namespace client {

/// To a matrix of one run of a server. Thread-safe.
class Attachment {
 public:
  /// For the GPU of that number, or the CPU. Errors as AttachedMatrix::Attach's.
  static absl::StatusOr<std::shared_ptr<Attachment>> Open(const LocalAddress& address,
                                                          const std::string& matrix,
                                                          std::optional<int> gpu);

  /// What serves a problem.
  struct Product {
    std::shared_ptr<const ExportedProduct> runs;
    int64_t rows = 0, cols = 0, nnz = 0;  ///< of S
    v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
    std::string plan;
    uint64_t version = 0, sequence = 0;
  };
  /// The present one; asks the server if that may have changed. Without the server, what served
  /// last; UNAVAILABLE if there is none. Else what the server said.
  absl::StatusOr<std::shared_ptr<const Product>> Find(const v1::ProblemClass& problem);

  /// Whether the server is there.
  bool Alive() const { return socket_->Alive(); }
  UsagePage& usage() { return *usage_; }

 private:
  using Key = std::tuple<v1::ProblemClass::Operation, bool, int64_t, bool>;
  static Key KeyOf(const v1::ProblemClass& problem) {
    return {problem.operation(), problem.transposed(), problem.k(), problem.allow_tf32()};
  }

  Attachment(std::optional<int> gpu, std::shared_ptr<LocalSocket> socket,
             std::unique_ptr<UsagePage> usage, std::shared_ptr<const MappedFile> sequence);
  uint64_t sequence() const {
    return reinterpret_cast<const std::atomic<uint64_t>*>(sequence_->data())
        ->load(std::memory_order_acquire);
  }
  absl::StatusOr<std::shared_ptr<const Product>> AskLocked(const v1::ProblemClass& problem)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(asking_);
  /// The memory of that name, mapped.
  absl::StatusOr<std::shared_ptr<const MappedMemory>> MapLocked(const v1::ExportedMemory& memory)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(asking_);

  const std::optional<int> gpu_;
  const std::unique_ptr<UsagePage> usage_;
  const std::shared_ptr<const MappedFile> sequence_;
  const std::shared_ptr<LocalSocket> socket_;
  Mutex asking_;  ///< held while the server is asked what runs
  std::map<uint64_t, std::weak_ptr<const MappedMemory>> mapped_ ABSL_GUARDED_BY(asking_);
  std::map<Key, std::shared_ptr<ExportedProduct::Clock>> clocks_ ABSL_GUARDED_BY(asking_);
  Mutex mutex_;
  std::map<Key, std::shared_ptr<const Product>> products_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
