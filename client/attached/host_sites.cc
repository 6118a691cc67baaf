// Runs on the CPU, which are done when they return.
#include <chrono>
#include <cstring>
#include <utility>

#include "base/mutex.h"
#include "client/attached/site.h"
#include "kernels/row_softmax.h"

namespace sparsed {
inline namespace client {
namespace {

/// Copies rows; `from_row(i)` and `to_row(i)` say which and where to.
template <typename FromRow, typename ToRow>
void MoveRows(int64_t rows, ElementType type, const ConstDense& from, const Dense& to, int threads,
              FromRow from_row, ToRow to_row) {
  VisitBits(type, [&]<typename Bits>(Bits) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const Bits* const source =
          static_cast<const Bits*>(from.data) + from_row(i) * from.leading_dimension;
      Bits* const target = static_cast<Bits*>(to.data) + to_row(i) * to.leading_dimension;
      for (int64_t j = 0; j < to.cols; ++j) target[j] = source[j];
    }
  });
}

class HostSite final : public Site {
 public:
  Context context() const override {
    Context context;
    context.threads = threads;
    return context;
  }
  MemorySource& memory() override { return HeapMemory(); }
  bool keeps() const override { return true; }
  void Keep(const std::shared_ptr<const void>& /*used*/) override {}

  absl::Status Gather(std::span<const int64_t> order, ElementType type, const ConstDense& from,
                      const Dense& to) override {
    MoveRows(
        static_cast<int64_t>(order.size()), type, from, to, threads,
        [&](int64_t i) { return order[i]; }, [](int64_t i) { return i; });
    return absl::OkStatus();
  }
  absl::Status Scatter(std::span<const int64_t> order, ElementType type, const ConstDense& from,
                       const Dense& to) override {
    MoveRows(
        static_cast<int64_t>(order.size()), type, from, to, threads, [](int64_t i) { return i; },
        [&](int64_t i) { return order[i]; });
    return absl::OkStatus();
  }
  absl::Status PlaceValues(const Layout& layout, ElementType type, const void* csr_values,
                           void* slots) override {
    sparsed::PlaceValues(layout, type, csr_values, slots, threads);
    return absl::OkStatus();
  }
  absl::Status CopyRows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t row_bytes, size_t rows) override {
    for (size_t row = 0; row < rows && row_bytes > 0; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                  static_cast<const std::byte*>(from) + row * from_pitch, row_bytes);
    }
    return absl::OkStatus();
  }
  absl::Status ComputeRowProducts(const RowProducts& products, ElementType type) override {
    sparsed::ComputeRowProducts(products, type, threads);
    return absl::OkStatus();
  }
  absl::Status ComputeHeadDots(const HeadDots& dots, ElementType type) override {
    sparsed::ComputeHeadDots(dots, type, threads);
    return absl::OkStatus();
  }
  absl::Status RowSoftmax(std::span<const int64_t> row_offsets, ElementType type, double scale,
                          const ConstDense& x, const Dense& y) override {
    sparsed::RowSoftmax(row_offsets, type, scale, x, y, threads);
    return absl::OkStatus();
  }
  absl::Status RowSoftmaxGradient(std::span<const int64_t> row_offsets, ElementType type,
                                  double scale, const ConstDense& y, const ConstDense& dy,
                                  const Dense& dx) override {
    sparsed::RowSoftmaxGradient(row_offsets, type, scale, y, dy, dx, threads);
    return absl::OkStatus();
  }
  absl::Status ScaleNonzeros(const NonzeroScaling& scaling, ElementType type) override {
    sparsed::ScaleNonzeros(scaling, type, threads);
    return absl::OkStatus();
  }
  absl::Status TotalNonzeros(const NonzeroTotals& totals, ElementType type) override {
    sparsed::TotalNonzeros(totals, type, threads);
    return absl::OkStatus();
  }
  absl::Status ComputeEdgeAttention(const EdgeAttention& attention, ElementType type) override {
    return InWorkspace(EdgeAttentionWorkspace(attention, type), [&](const Context& context) {
      return sparsed::ComputeEdgeAttention(context, attention, type);
    });
  }
  absl::Status ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                            ElementType type) override {
    return InWorkspace(EdgeAttentionWorkspace(gradient, type), [&](const Context& context) {
      return sparsed::ComputeEdgeAttentionGradient(context, gradient, type);
    });
  }
  absl::Status WeightedSum(std::span<const WeightedTerm> terms, ElementType type,
                           const Dense& to) override {
    sparsed::WeightedSum(terms, type, to, threads);
    return absl::OkStatus();
  }

  int threads = 1;  ///< of the run that it is taken for

 private:
  template <typename Use>
  absl::Status InWorkspace(size_t bytes, const Use& use) {
    absl::StatusOr<Buffer> workspace = memory().Allocate(bytes);
    if (!workspace.ok()) return workspace.status();
    Context with = context();
    with.workspace = {workspace->mutable_data(), workspace->size()};
    return use(with);
  }
};

class HostSites final : public Sites {
 public:
  ExportedProduct::Accounted At(const ExportedProduct::Where& where, const Work& work) override {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<HostSite> site = Take();
    site->threads = where.threads;
    const absl::Status status = work(*site);
    GiveBack(std::move(site));
    if (!status.ok()) return status;
    return std::chrono::steady_clock::now() - begin;
  }

 private:
  std::unique_ptr<HostSite> Take() {
    const MutexLock lock(mutex_);
    if (idle_.empty()) return std::make_unique<HostSite>();
    std::unique_ptr<HostSite> site = std::move(idle_.back());
    idle_.pop_back();
    return site;
  }
  void GiveBack(std::unique_ptr<HostSite> site) {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(site));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<HostSite>> idle_ ABSL_GUARDED_BY(mutex_);  ///< as many as ran at once
};

}  // namespace

std::shared_ptr<Sites> MakeHostSites() { return std::make_shared<HostSites>(); }

}  // namespace client
}  // namespace sparsed
