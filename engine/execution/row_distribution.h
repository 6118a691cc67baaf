// Matrices whose rows several GPUs have: for each of them the blocks that it multiplies with, and
// the rows of the operand that it fetches.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/matrix.h"
#include "engine/catalog/pattern.h"
#include "engine/memory/budget.h"
#include "engine/memory/lazy_array.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// Of op(S) for one division of its rows and of the operand's, whatever the values. GPU i
/// multiplies `own` with its own rows of the operand and `fetched` with those that it fetches, and
/// the sum is its rows of the product. Thread-safe.
class RowDistribution {
 public:
  struct Fetched {
    std::shared_ptr<LazyArray> rows;  ///< i64, ascending, of the block that they lie in
    int64_t count = 0;
  };
  struct Part {
    std::shared_ptr<Pattern> own;
    std::shared_ptr<Pattern> fetched;  ///< null: it fetches nothing
    std::vector<Fetched> from;         ///< by GPU, one after the other
    int64_t fetched_rows = 0;
    Array own_source, fetched_source;    ///< which of S's nonzeros each of theirs is
    int64_t first_nonzero = 0, nnz = 0;  ///< of op(S)'s, in its order
    /// i64, where each of theirs is among the part's, in op(S)'s order; `fetched_order` may be
    /// null.
    std::shared_ptr<LazyArray> own_order, fetched_order;
  };
  /// Of one version of a matrix.
  struct Matrices {
    MatrixLease own, fetched;  ///< the latter may be null
  };

  /// GPU i has rows [operand_bounds[i], operand_bounds[i + 1]) of the operand and computes the same
  /// rows of the product, or, if op(S) is not square, those with as many nonzeros. `of` is op(S) in
  /// plain CSR. Takes memory for layouts, which is nobody's: it goes when others need it. Errors:
  /// RESOURCE_EXHAUSTED, CANCELLED.
  static absl::StatusOr<std::shared_ptr<RowDistribution>> Build(const Layout& of,
                                                                std::vector<int64_t> operand_bounds,
                                                                Budget& budget,
                                                                const std::atomic<bool>* stop);

  const std::vector<int64_t>& operand_bounds() const { return operand_bounds_; }
  const std::vector<int64_t>& result_bounds() const { return result_bounds_; }
  const std::vector<Part>& parts() const { return parts_; }
  /// Of the operand that go from one GPU to another, each time.
  int64_t fetched_rows() const;
  /// Of memory, with the layouts so far.
  int64_t bytes() const;

  /// For each part. Their values are copied out of the matrix's when they are needed, and again
  /// where they gave way.
  std::vector<Matrices> MatricesOf(const MatrixLease& matrix, Budget& budget);

  /// The parts have plans for this problem, made after that of the whole matrix, or one that says
  /// the same.
  bool HasPlans(const Problem& problem, const std::shared_ptr<const ActivePlan>& whole) const;
  /// Gives them: the kernel of the whole matrix's, and `with_layouts` its layout, if that took no
  /// more than some seconds to build, else plain CSR, or the layout if it is there already; what is
  /// fetched is multiplied from compressed rows, so that rows that fetch nothing cost nothing.
  /// Errors: CANCELLED; without memory plain CSR serves.
  absl::Status AddPlans(const Problem& problem, const std::shared_ptr<const ActivePlan>& whole,
                        const Pattern& of, bool with_layouts, Budget& budget,
                        const std::atomic<bool>* stop);
  /// The parts would have a layout that AddPlans was not to build.
  static bool WouldBuild(const Problem& problem, const std::shared_ptr<const ActivePlan>& whole,
                         const Pattern& of);
  /// The parts have plans that lack a layout which AddPlans would build, and it was not asked for
  /// in the last minutes before `now`; from then on it was.
  bool AsksForLayouts(const Problem& problem, const std::shared_ptr<const ActivePlan>& whole,
                      const Pattern& of, std::chrono::steady_clock::time_point now);

 private:
  RowDistribution() = default;
  /// The part's pattern's layout of that pipeline, now or before; null: there is none.
  static absl::StatusOr<std::shared_ptr<LazyLayout>> LayoutOf(Pattern& pattern,
                                                              const std::string& pipeline,
                                                              Budget& budget,
                                                              const std::atomic<bool>* stop);

  std::vector<int64_t> operand_bounds_, result_bounds_;
  std::vector<Part> parts_;
  mutable Mutex mutex_;
  std::vector<std::pair<std::weak_ptr<const Matrix>, std::vector<Matrices>>> matrices_
      ABSL_GUARDED_BY(mutex_);
  /// What the plans of a signature were made after, and whether they have all layouts that are
  /// theirs.
  struct Planned {
    std::shared_ptr<const ActivePlan> whole;
    bool with_layouts = false;
    std::optional<std::chrono::steady_clock::time_point> asked = {};  ///< for layouts, last
  };
  std::map<ProblemSignature, Planned> planned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
