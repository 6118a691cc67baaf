// What an AttachedMatrix has.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/attached/attachment.h"
#include "client/src/connection.h"
#include "sparsed/attached.h"
#include "sparsed/chain.h"
#include "sparsed/client.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

/// Keeps an attachment, and takes another one when the server has started anew.
class AttachedMatrix::State {
 public:
  using Clock = LocalSocket::Clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  State(std::shared_ptr<Connection> connection, Matrix matrix, int threads, std::optional<int> gpu)
      : connection_(std::move(connection)),
        matrix_(std::move(matrix)),
        threads_(threads),
        gpu_(gpu) {}

  ~State() {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      if (opening_ != nullptr) opening_->End();
      changed_.NotifyAll();
    }
    if (keeper_.joinable()) keeper_.join();
  }

  absl::Status Open(Clock::time_point deadline) {
    const absl::StatusOr<LocalAddress> address = connection_->FindLocalAddress(deadline);
    if (!address.ok()) return address.status();
    absl::StatusOr<std::shared_ptr<Attachment>> opened = Attach(*address, deadline);
    if (!opened.ok()) return opened.status();
    const MutexLock lock(mutex_);
    attachment_ = *std::move(opened);
    keeper_ = std::thread([this] { Keep(); });
    return absl::OkStatus();
  }

  /// Null: the server computes.
  std::shared_ptr<Attachment> attachment() {
    const MutexLock lock(mutex_);
    return attachment_;
  }
  absl::Status status() {
    std::shared_ptr<Attachment> present;
    const MutexLock lock(mutex_);
    present = attachment_;
    return present == nullptr || !status_.ok() ? status_ : present->status();
  }
  const Matrix& matrix() const { return matrix_; }
  const std::optional<int>& gpu() const { return gpu_; }
  ExportedProduct::Where Where(GpuStream stream = {}) const { return {threads_, stream.handle}; }
  int64_t runs() const { return runs_; }

  // None: they cannot run here, or what is wrong with them the server says.
  std::optional<absl::StatusOr<ComputeResult>> Spmm(const DenseView& b, const MutableDenseView& c,
                                                    const SpmmOptions& spmm,
                                                    const ExportedProduct::Where& where,
                                                    Clock::time_point deadline = kNever);
  std::optional<absl::StatusOr<ComputeResult>> Sddmm(const DenseView& a, const DenseView& b,
                                                     const MutableDenseView& values,
                                                     const SddmmOptions& sddmm,
                                                     const ExportedProduct::Where& where,
                                                     Clock::time_point deadline = kNever);

  std::optional<absl::StatusOr<ComputeResult>> Run(const Chain& chain,
                                                   const ExportedProduct::Where& where,
                                                   Clock::time_point deadline = kNever);
  /// On the server.
  absl::StatusOr<ComputeResult> RunThere(const Chain& chain, const CallOptions& options) const;
  /// The same, over the host's memory.
  absl::StatusOr<ComputeResult> RunThere(const Chain& chain, GpuStream stream) const;

 private:
  /// Between two looks at whether the server is there.
  static constexpr std::chrono::seconds kLook{1};

  /// Counts one run, if it was one.
  absl::StatusOr<ComputeResult> Count(std::string plan, uint64_t version,
                                      UsagePage::Counters& counters, uint64_t bytes_in,
                                      uint64_t bytes_out,
                                      const ExportedProduct::Accounted& accounted) {
    if (!accounted.ok()) return accounted.status();
    ComputeResult result;
    result.plan = std::move(plan);
    result.version = version;
    result.transport = Transport::kAttached;
    const std::optional<std::chrono::nanoseconds>& took = *accounted;
    if (!took) return result;
    counters.calls.fetch_add(1, std::memory_order_relaxed);
    counters.nanoseconds.fetch_add(static_cast<uint64_t>(took->count()), std::memory_order_relaxed);
    counters.bytes_in.fetch_add(bytes_in, std::memory_order_relaxed);
    counters.bytes_out.fetch_add(bytes_out, std::memory_order_relaxed);
    runs_.fetch_add(1, std::memory_order_relaxed);
    if (!gpu_) result.timings.kernel = result.timings.total = *took;
    return result;
  }

  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const LocalAddress& address,
                                                     Clock::time_point deadline = kNever) {
    if (address.path.empty()) {
      return absl::FailedPreconditionError(
          "the server has no local socket (its --local-listen), so nobody can attach to it");
    }
    absl::StatusOr<std::shared_ptr<LocalSocket>> socket = LocalSocket::Connect(address, deadline);
    if (!socket.ok()) return socket.status();
    {
      const MutexLock lock(mutex_);
      if (closing_) return absl::CancelledError("nobody is attached any more");
      opening_ = *socket;
    }
    absl::StatusOr<std::shared_ptr<Attachment>> opened =
        Attachment::Open(*socket, matrix_.name(), gpu_, deadline);
    const MutexLock lock(mutex_);
    opening_ = nullptr;
    return opened;
  }

  void Keep() {
    MutexLock lock(mutex_);
    while (!closing_) {
      changed_.WaitUntil(mutex_, Clock::now() + kLook);
      if (closing_) return;
      if (attachment_ != nullptr && attachment_->Alive()) continue;
      lock.Unlock();
      const absl::StatusOr<LocalAddress> address = connection_->FindLocalAddress();
      absl::StatusOr<std::shared_ptr<Attachment>> again =
          address.ok() ? Attach(*address) : address.status();
      lock.Lock();
      // While nobody answers, what there is serves. Who answers may have other values.
      if (absl::IsUnavailable(address.status()) || absl::IsDeadlineExceeded(address.status())) {
        continue;
      }
      status_ = again.status();
      std::shared_ptr<Attachment> other = again.ok() ? *std::move(again) : nullptr;
      attachment_.swap(other);
      lock.Unlock();
      other = nullptr;  // which may unmap gigabytes
      lock.Lock();
    }
  }

  const std::shared_ptr<Connection> connection_;
  const Matrix matrix_;
  const int threads_;
  const std::optional<int> gpu_;
  std::atomic<int64_t> runs_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  /// What the keeper waits on, maybe.
  std::shared_ptr<LocalSocket> opening_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Attachment> attachment_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread keeper_;  ///< looks whether the server is there
};

}  // namespace client
}  // namespace sparsed
