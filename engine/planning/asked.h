// What a client wants tried whatever the rules say, and whether there is such a thing.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/planning/candidates.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// A pipeline, with one of the kernels for its layout or with all of them. Of SpGEMM it is that of
/// the layout that factors are read from; "csr" leaves that to the kernel. As it is made: every
/// candidate that there is, without the skip rules of its steps.
struct Asked {
  std::string pipeline;  ///< canonical; empty: all
  std::string kernel;    ///< empty: all

  friend auto operator<=>(const Asked&, const Asked&) = default;
};

/// From what a client wrote; of both, one may be empty. INVALID_ARGUMENT: no such pipeline.
absl::StatusOr<Asked> ParseAsked(std::string_view pipeline, std::string_view kernel);

/// Whether there is such a kernel, and it can be tried for the signature on a pattern of `rows` x
/// `cols`; INVALID_ARGUMENT says what can.
absl::Status CheckAsked(const Asked& asked, const ProblemSignature& signature, int64_t rows,
                        int64_t cols, int64_t nnz);

/// The pipeline with the flag "force" at every step that knows it.
std::string WithoutSkipRules(const std::string& pipeline);

/// Has the candidates tried that are asked for. `nothing_else`: and no others.
void AddAsked(const std::set<Asked>& asked, bool nothing_else, std::vector<Candidate>& candidates);
/// Likewise of SpGEMM's kernels.
void AddAskedKernels(const std::set<Asked>& asked, bool nothing_else,
                     std::vector<Candidate>& candidates);

}  // namespace sparsed::engine
