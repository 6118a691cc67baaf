// Plans: which layout and which kernel serve a problem signature on one pattern.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/catalog/distribution.h"
#include "engine/memory/lazy_array.h"
#include "engine/store/pattern_pair.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// The signature whose ToString() is `text`; none if there is no such signature.
std::optional<ProblemSignature> ParseProblemSignature(std::string_view text);

/// A pure, printable value.
struct Plan {
  ProblemSignature signature;
  std::string pipeline = "csr";
  std::string kernel;
  double baseline_ms = 0;  ///< plain CSR for the same problem; 0: not tried
  double plan_ms = 0;
  std::string reason;
  /// Plain CSR serves for want of memory or time only, or of SpGEMM's kernels some were not tried
  /// for want of memory. Requests use such a plan like any other, but nothing of it is stored, and
  /// the next upload or start of the server tries again, or the next request after a while.
  bool provisional = false;
  /// SpGEMM: of that product, whose factors the kernel reads from layouts of the pipeline; none: of
  /// any that has no plan of its own, from plain CSR.
  std::optional<PatternPair> pair;
  /// Of a server with several GPUs: how operands had best lie; none: nothing was tried.
  std::optional<TriedDistribution> distribution = std::nullopt;

  /// "<pipeline> / <kernel>".
  std::string ToString() const;
};

/// For people, in the place of the pipeline where that is plain CSR: "csr * csr" of a pattern with
/// itself, else "csr * <hash of the right one>"; "csr * transpose", "transpose * transpose <hash>"
/// and so on of transposed ones.
std::string ToString(const PatternPair& pair, std::string_view left_hash);

/// In sentences: "S * S", "S^T * another".
std::string ProductText(const PatternPair& pair, std::string_view left_hash);

/// One trial: everything that a later, learned selector would want to know of it.
struct Measurement {
  ProblemSignature signature;
  int64_t k = 0;  ///< the width that was timed
  std::string pipeline;
  std::string kernel;
  std::string device = "cpu";
  double median_ms = 0;
  double gflops = 0;
  int runs = 0;
  /// Of plain CSR's default kernel, turn by turn with this; 0: not known (an older program's).
  double baseline_ms = 0;
  /// Compulsory bytes at the device's rate, as that was known then; 0: not known. RooflineOf has it
  /// at the rate that is known now.
  double roofline_ms = 0;
  double preparation_ms = 0;  ///< to build the layout
  std::string model = {};     ///< the processor's or the card's name; empty: not known
  std::optional<PatternPair> pair = std::nullopt;  ///< SpGEMM
  /// CompulsoryBytes; 0: not known (an older program's).
  double compulsory_bytes = 0;
  /// It was so slow in its first turn that there was no other: little more is known of its time
  /// than that the baseline's is far less.
  bool censored = false;
};

/// What became of a pipeline for a signature, or of a kernel of SpGEMM for a pair.
struct Decision {
  ProblemSignature signature;
  std::string pipeline;  ///< empty: it is about the signature, or the pair
  bool tried = false;
  std::string reason;       ///< why, or why not
  std::string kernel = {};  ///< of SpGEMM
  std::optional<PatternPair> pair = std::nullopt;
};

/// Bytes that any kernel must move: S and the result once, and the rows of dense operands that S
/// touches. `rows` x `cols` is the matrix as it was uploaded.
double CompulsoryBytes(const Problem& problem, int64_t rows, int64_t cols, int64_t nnz);

/// Of them, those that plain CSR's kernels move for certain, whichever columns S has: S and the
/// result.
double StreamedBytes(const Problem& problem, int64_t rows, int64_t cols, int64_t nnz);

/// CompulsoryBytes of SpGEMM whose result has `result_nnz` nonzeros.
double CompulsoryBytes(ElementType type, const CsrView& left, const CsrView& right,
                       int64_t result_nnz);

/// 2 * nnz * k operations in `milliseconds`, in 10^9 a second.
double Gflops(int64_t nnz, int64_t k, double milliseconds);

/// A plan with the layout that it needs.
struct ActivePlan {
  Plan plan;
  std::shared_ptr<LazyLayout> layout;  ///< null: plain CSR
  /// When requests began to use it; 0: not known, or one to be replaced.
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// What a plan is of.
using PlanKey = std::pair<ProblemSignature, std::optional<PatternPair>>;

/// How much the plans of a pattern are used: by all requests, or by those for one matrix. Of
/// bounded size, as plans are. Thread-safe.
class PlanUses {
 public:
  using Clock = std::chrono::steady_clock;

  struct Use {
    double per_second = 0;  ///< halved for each minute since: a steady rate comes out as that
    Clock::time_point last = {};
  };

  /// A request runs on it, or on what took its place.
  void Count(const Plan& plan, Clock::time_point now = Clock::now());
  /// Nothing if none did.
  std::optional<Use> Of(const Plan& plan, Clock::time_point now = Clock::now()) const;

 private:
  mutable Mutex mutex_;
  std::map<PlanKey, Use> uses_ ABSL_GUARDED_BY(mutex_);
};

/// The plans of one pattern. The preparation writes, requests read; replacing one is atomic.
/// Thread-safe.
class PlanTable {
 public:
  using Clock = std::chrono::steady_clock;

  struct Found {
    std::shared_ptr<const ActivePlan> plan;  ///< null: nothing near; use plain CSR's default kernel
    bool exact = false;  ///< false: a plan of a neighbouring signature; a trial would be worth it

    /// There is nothing left to find out.
    bool decided() const { return exact && !plan->plan.provisional; }
    /// A trial may be asked for: there was none, or for want of memory or time not of everything,
    /// some time ago.
    bool due() const;
  };
  /// The plan of the signature, else of the nearest K with the same operation, transposition and
  /// type; where TF32 is allowed and nothing was tried with it, that of f32. Without a plan of the
  /// pair, that of any.
  Found Find(const ProblemSignature& signature,
             const std::optional<PatternPair>& pair = std::nullopt) const;
  void Replace(std::shared_ptr<const ActivePlan> plan);
  /// Calls `changed` after each change, from whichever thread made it, until what is returned goes,
  /// and perhaps once more. It must not block.
  std::shared_ptr<const void> Watch(std::function<void()> changed);
  std::vector<std::shared_ptr<const ActivePlan>> List() const;

  /// By requests for any matrix of the pattern.
  PlanUses& uses() { return uses_; }
  const PlanUses& uses() const { return uses_; }
  struct Used {
    std::shared_ptr<const ActivePlan> plan;
    double per_second = 0;  ///< as PlanUses::Use
    /// Most of the requests of late, or the last of all; of one plan at most.
    bool in_use = false;
  };
  /// Those for values of `type`, and how much they are used.
  std::vector<Used> ListUsed(ElementType type, const PlanUses& uses,
                             Clock::time_point now = Clock::now()) const;

 private:
  /// Null if there is none of the signature but for K.
  std::shared_ptr<const ActivePlan> NearestLocked(const ProblemSignature& signature) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<PlanKey, std::shared_ptr<const ActivePlan>> plans_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<const std::function<void()>>> watchers_ ABSL_GUARDED_BY(mutex_);
  PlanUses uses_;
};

}  // namespace sparsed::engine
