// Candidates: which recipes are worth building for a class of problems on a pattern. Rules written
// down from cheap features (a table in candidates.cc: a recipe, the classes that it is for, a
// condition); the trial has the last word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/plan.h"
#include "kernels/features/features.h"
#include "kernels/formats/csr.h"
#include "kernels/kernel_table.h"
#include "kernels/problem.h"
#include "kernels/recipe.h"

namespace sparsed::engine {

/// What the rules look at.
struct PatternFacts {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t nnz = 0;
  double mean_row_length = 0;
  double dense_ratio = 0;    ///< share of nonzeros that tiling alone puts into dense tiles
  double row_length_cv = 0;  ///< standard deviation of the rows' lengths over their mean
  double empty_rows = 0;     ///< share of the rows
  /// Share of nonzeros that are less than 16 columns behind the one before them in their row.
  double near_nonzeros = 0;
  /// Of the blocks of 32 columns that two neighbouring rows have nonzeros in, counted for each, the
  /// share that is of one of them alone.
  double unlike_neighbours = 0;
};
/// `features` are the pattern's; what they lack is measured. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<PatternFacts> MeasureFacts(const CsrView& csr, const Features& features,
                                          const BuildContext& context);

struct Candidate {
  std::string recipe;  ///< canonical; empty, of SpGEMM: the kernel's own (FormatRecipe)
  bool worth_trying = false;
  std::string reason;  ///< why, or why not, without a full stop
  /// Only worth building if clustering the rows fills dense tiles (kWorthTiling).
  bool needs_clustered_tiles = false;
  bool asked = false;  ///< a client wants it: what was measured for others does not rule it out
  std::string kernel = {};  ///< the only one that is tried; empty: all of the recipe's
};

/// Every recipe that there is a rule for, besides plain CSR, cheapest to build first; none for
/// SpGEMM, which is chosen for by kernel.
std::vector<Candidate> CandidatesFor(const ProblemClass& problem_class, const PatternFacts& facts);

/// Whether tiling pays once `row_order` has clustered the rows: the share of nonzeros in dense
/// tiles then. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<double> ClusteredTileRatio(const CsrView& csr, const CsrView& clustered,
                                          const BuildContext& context);
inline constexpr double kWorthTiling = 0.05;

/// SpGEMM: every kernel of the problem's device but the default one, with what the features of both
/// operands (null: not known) promise of it.
std::vector<Candidate> SpgemmCandidatesFor(const Problem& problem, const Features* left,
                                           const Features* right);
/// Kernels of the class's operation that can run this problem on this layout; the default first.
std::vector<std::string_view> KernelsFor(const Problem& problem, const Layout& layout);

/// For questions about kernels: plain CSR need not be read from the disk for them.
Layout PlainCsrWithoutArrays(int64_t rows, int64_t cols, int64_t nnz);
/// What serves in the place of `plan`, whose layout is not to be had, until it is tried again:
/// plain CSR (PlainCsrWithoutArrays); none if no kernel does. `why`: "for want of memory".
std::optional<Plan> OnPlainCsr(Plan plan, const Layout& csr, std::string_view why);

}  // namespace sparsed::engine
