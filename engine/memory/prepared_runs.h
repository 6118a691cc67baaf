// What kernels prepared once for many runs (kernel_table.h, `prepare`).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// The most recently used ones of one lane, which runs one kernel at a time. What was made for a
/// layout that is gone goes with the next look. Not thread-safe.
class PreparedRuns {
 public:
  /// For a run of `kernel` on `arguments`, whose layout is `layout`; prepared now, in the context's
  /// stream, if it was not. Null: the kernel prepares nothing, or could not (the run does without).
  template <typename Kernel, typename Arguments>
  void* For(const Kernel& kernel, const std::shared_ptr<const Layout>& layout,
            const Context& context, const Problem& problem, const Arguments& arguments,
            MemorySource& memory) {
    if (kernel.prepare == nullptr) return nullptr;
    const Entry wanted{layout,
                       layout.get(),
                       kernel.name,
                       problem.type,
                       problem.k,
                       problem.transposed,
                       Strides(arguments),
                       /*prepared=*/nullptr};
    if (void* const found = Find(wanted); found != nullptr) return found;
    absl::StatusOr<std::shared_ptr<void>> prepared =
        kernel.prepare(context, problem, arguments, memory);
    return prepared.ok() ? Keep(wanted, *std::move(prepared)) : nullptr;
  }

 private:
  using LeadingDimensions = std::pair<int64_t, int64_t>;
  struct Entry {
    std::weak_ptr<const Layout> lifetime;
    const Layout* layout;
    std::string_view kernel;
    ElementType type;
    int64_t k;
    bool transposed;
    LeadingDimensions strides;
    std::shared_ptr<void> prepared;
  };
  static constexpr size_t kMost = 16;

  static LeadingDimensions Strides(const SpmmArguments& arguments) {
    return {arguments.b.leading_dimension, arguments.c.leading_dimension};
  }
  static LeadingDimensions Strides(const SddmmArguments& arguments) {
    return {arguments.a.leading_dimension, arguments.b.leading_dimension};
  }
  void* Find(const Entry& wanted);
  void* Keep(Entry entry, std::shared_ptr<void> prepared);

  std::list<Entry> entries_;  ///< the last used first
};

}  // namespace sparsed::engine
