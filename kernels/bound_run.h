// SpMM and SDDMM as they are run: a kernel bound to a layout, values and dense operands. What binds
// it needs nothing but kernels/: a service, a trial, a benchmark or a client that has the operands.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed {

/// A kernel of SpMM or of SDDMM: what both say of themselves. Refers to the table.
class LayoutKernel {
 public:
  explicit LayoutKernel(const SpmmKernel& kernel) : kernel_(&kernel) {}
  explicit LayoutKernel(const SddmmKernel& kernel) : kernel_(&kernel) {}

  std::string_view name() const;
  bool from_library() const;  ///< as SpmmKernel's
  bool resumes() const;       ///< as SpmmKernel's
  bool reduces() const;       ///< as SpmmKernel's; not SDDMM's
  /// Whether it computes `problem`, on its device, from `layout`; the problem is that of the matrix
  /// (see SeenThrough).
  bool Serves(const Problem& problem, const Layout& layout) const;

 private:
  friend class BoundRun;
  std::variant<const SpmmKernel*, const SddmmKernel*> kernel_;
};

/// Those of an operation, in the order of the table; none of SpGEMM's.
std::span<const LayoutKernel> LayoutKernels(Operation operation);
/// None if there is none of that name.
std::optional<LayoutKernel> FindLayoutKernel(Operation operation, std::string_view name);

/// What a run works with besides the layout, all of it where the kernel's device reads it.
/// Borrowed.
struct RunArguments {
  /// In the layout's order; null: SDDMM's S is a mask only, SpMM's of a kernel that reduces ones.
  const void* values = nullptr;
  std::array<ConstDense, 2> dense;  ///< SpMM: B; SDDMM: A and B
  Dense result;                     ///< SpMM: C; SDDMM: one value for each nonzero, without gaps
  double alpha = 1, beta = 0;       ///< of SpMM
  Reduction reduction = Reduction::kSum;  ///< of SpMM, by a kernel that reduces
};

/// A kernel with all that it runs on, to be run any number of times. Keeps the layout, which is
/// where the kernel's device reads it, and borrows the rest.
class BoundRun {
 public:
  /// `problem` is that of the matrix, its K at most the columns that there are; the kernel serves
  /// it.
  BoundRun(LayoutKernel kernel, const Problem& problem, std::shared_ptr<const Layout> layout,
           const RunArguments& arguments)
      : kernel_(kernel),
        problem_(SeenThrough(*layout, problem)),
        layout_(std::move(layout)),
        arguments_(arguments) {}

  std::string_view kernel() const { return kernel_.name(); }
  /// It may be cut: it knows Context::progress.
  bool resumes() const { return kernel_.resumes(); }
  /// As the kernel sees it.
  const Problem& problem() const { return problem_; }
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  /// Those of the dense matrices, what Prepare's result depends on besides kernel, problem and
  /// layout.
  std::pair<int64_t, int64_t> leading_dimensions() const;

  /// Bytes of Context::workspace that Run needs, unless Context::prepared is Prepare's.
  size_t Workspace(int threads) const;
  /// Whether there is something to prepare.
  bool prepares() const;
  /// What is worth doing once for many runs, for Context::prepared; see PrepareRuns.
  absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, MemorySource& memory) const;
  /// On a GPU it queues, and nothing that it runs on may go before the stream has passed.
  absl::Status Run(const Context& context) const;

 private:
  /// `use` gets the kernel of the table and the arguments as it takes them.
  template <typename Use>
  auto Visit(const Use& use) const;

  LayoutKernel kernel_;
  Problem problem_;
  std::shared_ptr<const Layout> layout_;
  RunArguments arguments_;
};

}  // namespace sparsed
