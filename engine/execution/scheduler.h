// Lanes and their queue: which job runs where and when. Knows nothing of matrices.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/execution/call.h"
#include "engine/execution/executor.h"
#include "engine/execution/token.h"

namespace sparsed::engine {

class Scheduler;

/// A lane's own thread and what belongs to it. OpenMP keeps one team for each thread that opens
/// parallel regions, so request threads never grow teams.
struct Lane {
  int threads = 1;
  Buffer workspace;  ///< grows to the largest that a kernel asked for
};

/// What every call has in common: its state, its token, its end. A job is run in steps; between two
/// steps others may run.
class Job : public Call, public std::enable_shared_from_this<Job> {
 public:
  enum class Next {
    kEnded,   ///< with `*end`
    kAgain,   ///< another step, after whoever waits
    kPaused,  ///< until Release brings its unreleased bytes below the credit
    kLeft,    ///< another thread goes on with it and calls Finish
  };

  Job(std::shared_ptr<Scheduler> scheduler, std::string tenant, std::shared_ptr<ResultSink> sink);
  /// Second half of the construction: enters the register, starts the deadline. UNAVAILABLE, and no
  /// OnEnd, if the scheduler is closing.
  absl::Status Start(uint64_t timeout_ns);

  void Submit() final;
  void Cancel() final;
  void Fail(absl::Status status) final;
  void Release(int64_t bytes) final;

 protected:
  /// One step, on a lane. Not called again after kEnded or kLeft.
  virtual Next Run(Lane& lane, absl::Status* end) = 0;
  /// Lets go of whatever it holds; called once, before OnEnd.
  virtual void Drop() = 0;

  ResultSink& sink() { return *sink_; }
  const Token& token() const { return *token_; }
  Scheduler& scheduler() { return *scheduler_; }
  /// Counts block bytes handed to the sink; true if the credit is used up.
  bool Charge(int64_t bytes);
  /// Ends it. For kLeft; jobs on lanes return kEnded instead.
  void Finish(absl::Status status);

  CallEnd end_;  ///< timings, nnz, version; status is set by Finish
  std::chrono::steady_clock::time_point submitted_;

 private:
  friend class Scheduler;
  enum class State { kReceiving, kQueued, kRunning, kPaused, kLeft, kEnded };

  const std::shared_ptr<Scheduler> scheduler_;
  const std::string tenant_;
  std::shared_ptr<ResultSink> sink_;
  std::shared_ptr<Token> token_;
  std::optional<DeadlineTimer::Ticket> deadline_;
  std::atomic<int64_t> unreleased_{0};
  std::mutex mutex_;  ///< guards state_
  State state_ = State::kReceiving;
};

/// Thread-safe. Tenants take turns; within a tenant, first come first served.
class Scheduler : public std::enable_shared_from_this<Scheduler> {
 public:
  explicit Scheduler(const ExecutorOptions& options) : options_(options) {}
  ~Scheduler();
  void Open();
  /// Ends every job with UNAVAILABLE and joins the threads.
  void Close();

  absl::Status RunIdle(const std::function<void(int threads)>& work, const std::atomic<bool>* stop);
  /// Runs `work` on the thread for what blocks on the disk.
  void RunBlocking(std::function<void()> work);
  void AddBusy(uint64_t nanoseconds) { busy_ns_ += nanoseconds; }

  size_t deadlines() const { return timer_.watched(); }
  const ExecutorOptions& options() const { return options_; }
  int64_t in_flight() const;
  int64_t queue_depth() const;
  double busy_seconds() const { return static_cast<double>(busy_ns_.load()) * 1e-9; }

 private:
  friend class Job;
  struct IdleWork {
    const std::function<void(int)>* work;
    bool started = false;
    bool done = false;
  };

  bool Register(const std::shared_ptr<Job>& job);  ///< false: closing
  void Unregister(Job* job);
  /// False if the queue is full. `resumed` jobs are always taken.
  bool Enqueue(std::shared_ptr<Job> job, bool resumed);
  /// Called when a token stopped: ends the job if no lane has it.
  void Reap(std::weak_ptr<Job> job);
  std::shared_ptr<Job> PopLocked();
  void RunLane();
  void RunJob(const std::shared_ptr<Job>& job, Lane& lane);
  void RunReaper();
  void RunBlockingThread();

  const ExecutorOptions options_;
  DeadlineTimer timer_;
  std::atomic<uint64_t> busy_ns_{0};

  mutable std::mutex mutex_;
  std::condition_variable lane_work_, idle_done_, reaper_work_, blocking_work_;
  bool closing_ = false;
  bool reaper_closing_ = false;                        ///< lanes are gone: nothing stops any more
  std::unordered_map<Job*, std::weak_ptr<Job>> jobs_;  ///< begun and not ended
  std::map<std::string, std::deque<std::shared_ptr<Job>>> queues_;  ///< by tenant; none is empty
  std::string last_tenant_;                                         ///< whose turn was last
  int64_t queued_ = 0;
  std::deque<IdleWork*> idle_;
  std::deque<std::weak_ptr<Job>> stopped_;
  std::deque<std::function<void()>> blocking_;
  std::vector<std::thread> lanes_;
  std::thread reaper_, blocking_thread_;
};

}  // namespace sparsed::engine
