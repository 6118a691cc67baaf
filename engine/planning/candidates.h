// Candidates: which pipelines are worth building for a problem signature on a pattern. Rules
// written down from cheap features (a table in candidates.cc: a pipeline, the signatures that it is
// for, a condition); the trial has the last word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/plan.h"
#include "engine/planning/calibration.h"
#include "engine/planning/estimate.h"
#include "kernels/features/features.h"
#include "kernels/formats/csr.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"

namespace sparsed::engine {

struct Candidate {
  std::string pipeline;  ///< canonical; empty, of SpGEMM: the kernel's own (FormatPipeline)
  bool worth_trying = false;
  std::string reason;  ///< why, or why not, without a full stop
  /// Only worth building if clustering the rows fills dense tiles.
  bool needs_clustered_tiles = false;
  /// Nobody but a client may have it tried: it would hold up others.
  bool forbidden = false;
  bool asked = false;  ///< a client wants it: what was measured for others does not rule it out
  std::string kernel = {};  ///< the only one that is tried; empty: all of the pipeline's
  /// None: a rule judged it, or a client asked for it.
  std::optional<Promise> promise = std::nullopt;
};

/// Every pipeline that there is a rule for, besides plain CSR, cheapest to build first; none for
/// SpGEMM, which is chosen for by kernel. `measured`: of the device; what is not known of it is
/// what is built in.
std::vector<Candidate> CandidatesFor(const ProblemSignature& signature, const Features& features,
                                     const DeviceConstants& measured = DeviceConstants());

/// Whether there is a rule for the pipeline (canonical) on such devices, whatever signature it is
/// for.
bool HasRule(DeviceKind device, std::string_view pipeline);

/// Whether tiling pays once `row_order` has clustered the rows: the share of nonzeros in dense
/// tiles then. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<double> ClusteredTileRatio(const CsrView& csr, const CsrView& clustered,
                                          const BuildContext& context);

/// Why building a candidate's layout for the signature would be in vain, if it would, by what was
/// `measured` of the pattern before (`again`: for another K it does not count), and by
/// `clustered_ratio`, ClusteredTileRatio where rows were clustered.
std::optional<std::string> RuledOutByOthers(const Candidate& candidate,
                                            const ProblemSignature& signature,
                                            const std::vector<Measurement>& measured, bool again,
                                            std::optional<double> clustered_ratio);

/// SpGEMM: every kernel of the problem's device but the default one, with what the features of both
/// operands (null: not known) promise of it.
std::vector<Candidate> SpgemmCandidatesFor(const Problem& problem, const Features* left,
                                           const Features* right);
/// Kernels of the signature's operation that can run this problem on this layout; the default
/// first.
std::vector<std::string_view> KernelsFor(const Problem& problem, const Layout& layout);

/// For questions about kernels: plain CSR need not be read from the disk for them.
Layout PlainCsrWithoutArrays(int64_t rows, int64_t cols, int64_t nnz);
/// What serves in the place of `plan`, whose layout is not to be had, until it is tried again:
/// plain CSR (PlainCsrWithoutArrays); none if no kernel does. `why`: "for want of memory".
std::optional<Plan> OnPlainCsr(Plan plan, const Layout& csr, std::string_view why);

}  // namespace sparsed::engine
