#include "engine/preparation/layout_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "base/sleep.h"
#include "engine/memory/device.h"
#include "kernels/build_accelerator.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

/// A stop flag that becomes true when `stop` does and when a deadline passes. Where the system has
/// no thread left, it is `stop`: the deadline is then looked at between layouts only.
class StopAtDeadline {
 public:
  StopAtDeadline(const std::atomic<bool>* stop, const Deadline& deadline) : stop_(stop) {
    try {
      thread_ = std::jthread([this, deadline](const std::stop_token& done) {
        do {
          flag_ = deadline.passed() || (stop_ != nullptr && *stop_);
        } while (!flag_ && SleepFor(kBetweenLooks, done));
      });
    } catch (const std::system_error&) {
    }
  }

  const std::atomic<bool>* flag() const { return thread_.joinable() ? &flag_ : stop_; }

 private:
  static constexpr std::chrono::milliseconds kBetweenLooks{10};
  const std::atomic<bool>* const stop_;
  std::atomic<bool> flag_{false};
  std::jthread thread_;  ///< ends before the flag
};

/// By its pipeline.
bool IsClustered(const Layout& layout) {
  return layout.kind == kCsr && !layout.transposed && layout.pipeline.starts_with("lsh_cluster");
}

}  // namespace

Deadline::Clock::time_point Deadline::ForTrials() const {
  constexpr std::chrono::seconds kAtLeast{2};
  return limited() ? std::max(end_, Clock::now() + kAtLeast) : Clock::time_point::max();
}

double Deadline::LeftOf(double most) const {
  if (!limited()) return most;
  const double left = std::chrono::duration<double, std::milli>(end_ - Clock::now()).count();
  return std::clamp(left, 0.0, most);
}

std::string Deadline::Sentence() const {
  return fmt::format("the preparation's {:g} s are used up (--preparation-seconds)", seconds_);
}

absl::Status MoveTo(MemorySource& memory, Array& array) {
  absl::StatusOr<Array> copy = AllocateArray(memory, array.name, array.type, array.length);
  if (!copy.ok()) return copy.status();
  if (array.bytes() > 0) {
    std::memcpy(copy->buffer.mutable_data(), array.buffer.data(), array.bytes());
  }
  array = *std::move(copy);
  return absl::OkStatus();
}

absl::Status MoveTo(MemorySource& memory, Layout& layout) {
  for (Array& array : layout.arrays) {
    if (absl::Status status = MoveTo(memory, array); !status.ok()) return status;
  }
  return absl::OkStatus();
}

LayoutBuilder::LayoutBuilder(const Pattern& pattern, std::shared_ptr<const Layout> csr,
                             BuildContext context, DeviceId gpu, Progress& progress,
                             Deadline deadline)
    : pattern_(pattern),
      csr_(std::move(csr)),
      context_([&] {
        context.progress = [&progress](std::string_view stage, int64_t done, int64_t total) {
          progress.At(stage, done, total);
        };
        return std::move(context);
      }()),
      gpu_(gpu),
      progress_(progress),
      deadline_(deadline) {}

absl::StatusOr<LayoutBuilder::Built> LayoutBuilder::Get(const Candidate& candidate,
                                                        const ProblemSignature& signature,
                                                        bool again) {
  if (!candidate.asked && !candidate.promise && !built_.contains(candidate.pipeline) &&
      !deadline_.passed()) {
    absl::StatusOr<std::optional<std::string>> futile = Futile(candidate, signature, again);
    if (!futile.ok()) return futile.status();
    if (futile->has_value()) return Built{nullptr, 0, **futile};
  }
  return GetInTime(candidate.pipeline);
}

absl::StatusOr<LayoutBuilder::Built> LayoutBuilder::GetInTime(const std::string& pipeline) {
  if (const auto found = built_.find(pipeline); found != built_.end()) return found->second;
  const Built too_late{nullptr, 0, deadline_.Sentence(), false, /*out_of_time=*/true};
  if (deadline_.passed()) return too_late;
  absl::StatusOr<Built> built = [&] {
    if (!deadline_.limited()) return Build(pipeline);
    const StopAtDeadline stop(context_.stop, deadline_);
    BuildContext context = context_;
    context.stop = stop.flag();
    return Build(pipeline, context);
  }();
  if (absl::IsCancelled(built.status()) && !context_.stopped()) {
    built = too_late;
  }
  if (absl::IsCancelled(built.status())) return built.status();
  if (!built.ok()) {
    built = Built{nullptr, 0, std::string(built.status().message()),
                  absl::IsResourceExhausted(built.status())};
  }
  // Looked at now: if it loses its trial it is dropped.
  if (built->layout != nullptr) {
    if (absl::Status status = LookForTiles(*built->layout); !status.ok()) return status;
  }
  return built_[pipeline] = *std::move(built);
}

absl::Status LayoutBuilder::LookForTiles(const Layout& layout) {
  const bool clustered = IsClustered(layout) && !ViewCsr(layout).row_order.empty();
  if (!clustered || clustered_ratio_) return absl::OkStatus();
  const absl::StatusOr<double> ratio =
      ClusteredTileRatio(ViewCsr(*csr_), ViewCsr(layout), context_);
  if (absl::IsCancelled(ratio.status())) return ratio.status();
  // Without memory to look, tiles are not tried.
  if (ratio.ok()) clustered_ratio_ = *ratio;
  return absl::OkStatus();
}

absl::StatusOr<LayoutBuilder::Built> LayoutBuilder::Build(const std::string& text) {
  return Build(text, context_);
}

absl::StatusOr<LayoutBuilder::Built> LayoutBuilder::Build(const std::string& text,
                                                          const BuildContext& context) {
  absl::StatusOr<Pipeline> pipeline = ParsePipeline(text);
  if (!pipeline.ok()) return pipeline.status();
  const BuildAccelerator* const gpu = context.accelerator;
  const int64_t calls_before = gpu == nullptr ? 0 : gpu->calls();
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<BuiltLayout> result = BuildLayout(*pipeline, ViewCsr(*csr_), context);
  if (!result.ok()) return result.status();
  Built built;
  built.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (result->skipped) {
    built.note = result->notes;
  } else {
    built.layout = std::make_shared<Layout>(std::move(result->layout));
    const bool on_gpu = gpu != nullptr && gpu->calls() > calls_before;
    progress_.Built(built.layout->kind, Name(on_gpu ? gpu_ : DeviceId{}), built.seconds);
  }
  return built;
}

bool LayoutBuilder::Has(const std::string& pipeline) const {
  const auto found = built_.find(pipeline);
  return found != built_.end() && found->second.layout != nullptr;
}

LayoutBuilder::Built LayoutBuilder::Take(const std::string& pipeline) {
  auto node = built_.extract(pipeline);
  return node.empty() ? Built() : std::move(node.mapped());
}

void LayoutBuilder::DropAllBut(const std::set<std::string>& pipelines) {
  for (auto& [pipeline, built] : built_) {
    if (!pipelines.contains(pipeline)) built.layout = nullptr;
  }
  std::erase_if(built_, [](const auto& entry) {
    return entry.second.layout == nullptr && entry.second.note.empty();
  });
}

absl::StatusOr<std::optional<std::string>> LayoutBuilder::Futile(const Candidate& candidate,
                                                                 const ProblemSignature& signature,
                                                                 bool again) {
  // The clustering that the candidate begins with may be the pattern's from an earlier job.
  for (const Pattern::BuiltEntry& entry : pattern_.Layouts()) {
    if (!candidate.needs_clustered_tiles || clustered_ratio_) break;
    if (!IsClustered(*entry.description)) continue;
    const absl::StatusOr<std::shared_ptr<const Layout>> layout = entry.layout->Get(context_.stop);
    if (absl::IsCancelled(layout.status())) return layout.status();
    // Without it tiles are not tried.
    if (!layout.ok()) continue;
    if (absl::Status status = LookForTiles(**layout); !status.ok()) return status;
  }
  return RuledOutByOthers(candidate, signature, pattern_.trials().measurements(), again,
                          clustered_ratio_);
}

}  // namespace sparsed::engine
