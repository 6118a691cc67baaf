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
#include "client/attached/exported_chain.h"
#include "client/attached/exported_product.h"
#include "client/attached/memory_file.h"
#include "client/src/local_socket.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed {
inline namespace client {

/// To a matrix of one run of a server. Thread-safe.
class Attachment {
 public:
  /// For the GPU of that number, or the CPU, over a connection that nobody else uses. Errors as
  /// AttachedMatrix::Attach's.
  static absl::StatusOr<std::shared_ptr<Attachment>> Open(std::shared_ptr<LocalSocket> socket,
                                                          const std::string& matrix,
                                                          std::optional<int> gpu,
                                                          LocalSocket::Clock::time_point deadline);

  /// What serves a problem: a kernel with a plan or, for what has none, plain CSR.
  struct Product {
    std::shared_ptr<const ExportedProduct> runs;
    std::shared_ptr<const ExportedRows> csr;
    const int64_t* order = nullptr;       ///< ExportedProduct::order
    int64_t rows = 0, cols = 0, nnz = 0;  ///< of S
    v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
    std::string plan;
    uint64_t version = 0, sequence = 0, contents = 0;
  };
  /// The present one, of an unspecified operation plain CSR of S or, transposed, of S^T; asks the
  /// server if that may have changed, unless it refused a moment ago.
  /// Without the server, what served last if the matrix had the same values as the server ended;
  /// else UNAVAILABLE. Else what the server said;
  /// DEADLINE_EXCEEDED if it had said nothing then, or for ten seconds, and until it does.
  absl::StatusOr<std::shared_ptr<const Product>> Find(const v1::ProblemClass& problem,
                                                      LocalSocket::Clock::time_point deadline);
  /// Why something cannot run here, if that is so.
  absl::Status status();

  /// Whether the server is there.
  bool Alive() const { return socket_->Alive(); }
  const std::optional<int>& gpu() const { return gpu_; }
  UsagePage& usage() { return *usage_; }
  ExportedChains& chains() { return *chains_; }

 private:
  using Key = std::tuple<v1::ProblemClass::Operation, bool, int64_t, bool>;
  static Key KeyOf(const v1::ProblemClass& problem) {
    return {problem.operation(), problem.transposed(), problem.k(), problem.allow_tf32()};
  }

  /// Why there is no product; asked for again when the matrix changes, or some time has passed.
  struct Refusal {
    absl::Status why;
    uint64_t sequence = 0;
    LocalSocket::Clock::time_point until;
  };

  Attachment(std::optional<int> gpu, std::shared_ptr<LocalSocket> socket,
             std::unique_ptr<UsagePage> usage, std::shared_ptr<const MappedFile> sequence);
  /// The page's two numbers: of changes of any kind, and of those of contents.
  uint64_t sequence() const { return Number(0); }
  uint64_t contents() const { return Number(1); }
  uint64_t Number(size_t i) const {
    return reinterpret_cast<const std::atomic<uint64_t>*>(sequence_->data())[i].load(
        std::memory_order_acquire);
  }
  /// What is known without asking; `product`: the last one, if there is any.
  std::optional<absl::Status> KnownLocked(const Key& key, std::shared_ptr<const Product>& product)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// By who asks.
  absl::StatusOr<std::shared_ptr<const Product>> Ask(const v1::ProblemClass& problem,
                                                     LocalSocket::Clock::time_point deadline);
  /// Waits for the answer, and not for long. `late` gets what comes afterwards, and may be null.
  absl::StatusOr<LocalSocket::Reply> AskServer(v1::LocalRequest request,
                                               LocalSocket::Clock::time_point deadline,
                                               LocalSocket::OnReply late = nullptr);
  /// The memory of that name, mapped. By who asks.
  absl::StatusOr<std::shared_ptr<const MappedMemory>> Map(const v1::ExportedMemory& memory,
                                                          LocalSocket::Clock::time_point deadline);
  static std::shared_ptr<const void> Lease(const std::shared_ptr<LocalSocket>& socket,
                                           uint64_t run);

  const std::optional<int> gpu_;
  const std::unique_ptr<UsagePage> usage_;
  const std::shared_ptr<const MappedFile> sequence_;
  const std::shared_ptr<LocalSocket> socket_;
  const std::shared_ptr<ExportedChains> chains_;
  /// Answers that the server did not give in time, and has not given since.
  const std::shared_ptr<std::atomic<int>> owed_ = std::make_shared<std::atomic<int>>(0);
  // Used by who asks.
  std::map<uint64_t, std::weak_ptr<const MappedMemory>> mapped_;
  std::map<Key, std::shared_ptr<ExportedProduct::Clock>> clocks_;
  Mutex mutex_;
  CondVar asked_;
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;  ///< a thread asks the server what runs
  std::map<Key, std::shared_ptr<const Product>> products_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, Refusal> refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
