#include "engine/preparation/layout_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

/// A layout that was this much slower than plain CSR for one class is not built again for another.
constexpr double kClearlySlower = 1.1;
/// Nor is one that refines a layout that was this much slower for the same class.
constexpr double kBeyondRefining = 1.3;

}  // namespace

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
                             BuildContext context, Progress& progress)
    : pattern_(pattern), csr_(std::move(csr)), context_([&] {
        context.progress = [&progress](std::string_view stage, int64_t done, int64_t total) {
          progress.At(stage, done, total);
        };
        return std::move(context);
      }()) {}

absl::StatusOr<PatternFacts> LayoutBuilder::Facts() {
  if (!facts_) {
    const std::shared_ptr<const Features> features = pattern_.features();
    if (features == nullptr) {
      return absl::ResourceExhaustedError("there was no memory for the pattern's features");
    }
    context_.progress("features", 0, 0);
    absl::StatusOr<PatternFacts> facts = MeasureFacts(ViewCsr(*csr_), *features, context_);
    if (!facts.ok()) return facts.status();
    facts_ = *facts;
  }
  return *facts_;
}

absl::StatusOr<LayoutBuilder::Built> LayoutBuilder::Get(const Candidate& candidate,
                                                        const ProblemClass& problem_class) {
  if (const auto found = built_.find(candidate.recipe); found != built_.end()) {
    return found->second;
  }
  absl::StatusOr<std::optional<std::string>> futile = Futile(candidate, problem_class);
  if (!futile.ok()) return futile.status();
  if (futile->has_value()) {
    return Built{nullptr, 0, fmt::format("{} not tried: {}", candidate.recipe, **futile)};
  }
  absl::StatusOr<Built> built = Build(candidate.recipe);
  if (absl::IsCancelled(built.status())) return built.status();
  if (!built.ok()) {
    built = Built{
        nullptr, 0,
        fmt::format("{} not tried: {}", candidate.recipe, std::string(built.status().message())),
        absl::IsResourceExhausted(built.status())};
  }
  // Looked at now: if it loses its trial it is dropped.
  if (built->layout != nullptr) {
    if (absl::Status status = LookForTiles(*built->layout); !status.ok()) return status;
  }
  return built_[candidate.recipe] = *std::move(built);
}

absl::Status LayoutBuilder::LookForTiles(const Layout& layout) {
  const bool clustered =
      layout.kind == kCsr && !layout.transposed && !ViewCsr(layout).row_order.empty();
  if (!clustered || clustered_ratio_) return absl::OkStatus();
  const absl::StatusOr<double> ratio =
      ClusteredTileRatio(ViewCsr(*csr_), ViewCsr(layout), context_);
  if (absl::IsCancelled(ratio.status())) return ratio.status();
  // Without memory to look, tiles are not tried.
  if (ratio.ok()) clustered_ratio_ = *ratio;
  return absl::OkStatus();
}

absl::StatusOr<LayoutBuilder::Built> LayoutBuilder::Build(const std::string& text) {
  absl::StatusOr<Recipe> recipe = ParseRecipe(text);
  if (!recipe.ok()) return recipe.status();
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<BuiltLayout> result = BuildLayout(*recipe, ViewCsr(*csr_), context_);
  if (!result.ok()) return result.status();
  Built built;
  built.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (result->skipped) {
    built.note = fmt::format("{} not tried: {}", text, result->notes);
  } else {
    built.layout = std::make_shared<Layout>(std::move(result->layout));
  }
  return built;
}

LayoutBuilder::Built LayoutBuilder::Take(const std::string& recipe) {
  auto node = built_.extract(recipe);
  return node.empty() ? Built() : std::move(node.mapped());
}

void LayoutBuilder::DropAllBut(const Layout* layout) {
  for (auto& [recipe, built] : built_) {
    if (built.layout.get() != layout) built.layout = nullptr;
  }
  std::erase_if(built_, [](const auto& entry) {
    return entry.second.layout == nullptr && entry.second.note.empty();
  });
}

absl::StatusOr<std::optional<std::string>> LayoutBuilder::Futile(
    const Candidate& candidate, const ProblemClass& problem_class) {
  if (WasSlower(candidate.recipe, problem_class)) {
    return std::optional<std::string>("it was slower for another class");
  }
  if (const std::string base = HopelessBase(candidate.recipe, problem_class); !base.empty()) {
    return std::optional<std::string>(fmt::format("{} alone was far slower", base));
  }
  if (!candidate.needs_clustered_tiles) return std::optional<std::string>();
  // The clustering that the candidate begins with may be the pattern's from an earlier job.
  for (const Pattern::BuiltEntry& entry : pattern_.Layouts()) {
    if (absl::Status status = LookForTiles(*entry.layout); !status.ok()) return status;
  }
  if (!clustered_ratio_) return std::optional<std::string>("rows were not clustered");
  if (*clustered_ratio_ < kWorthTiling) {
    return std::optional<std::string>(
        fmt::format("clustering brings {:.1f} % of the nonzeros into dense tiles, less than {:.0f}",
                    100 * *clustered_ratio_, 100 * kWorthTiling));
  }
  return std::optional<std::string>();
}

double LayoutBuilder::Slowdown(const Measurement& tried) const {
  for (const Measurement& plain : pattern_.measurements()) {
    if (plain.recipe == kCsr && plain.problem_class == tried.problem_class && plain.k == tried.k) {
      return plain.median_ms > 0 ? tried.median_ms / plain.median_ms : 0;
    }
  }
  return 0;
}

std::string LayoutBuilder::HopelessBase(const std::string& recipe,
                                        const ProblemClass& problem_class) const {
  std::map<std::string, double> least;  // slowdown of a base, by its fastest kernel
  for (const Measurement& tried : pattern_.measurements()) {
    if (tried.problem_class != problem_class || !recipe.starts_with(tried.recipe + " > ")) continue;
    const double slowdown = Slowdown(tried);
    const auto [base, first] = least.emplace(tried.recipe, slowdown);
    if (!first) base->second = std::min(base->second, slowdown);
  }
  for (const auto& [base, slowdown] : least) {
    if (slowdown > kBeyondRefining) return base;
  }
  return "";
}

bool LayoutBuilder::WasSlower(const std::string& recipe, const ProblemClass& problem_class) const {
  bool slower = false;
  for (const Measurement& tried : pattern_.measurements()) {
    if (tried.recipe != recipe || tried.problem_class.transposed != problem_class.transposed) {
      continue;
    }
    const double slowdown = Slowdown(tried);
    if (slowdown == 0) continue;
    if (slowdown <= kClearlySlower) return false;
    slower = true;
  }
  return slower;
}

}  // namespace sparsed::engine
