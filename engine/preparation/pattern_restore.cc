// What a preparation writes to the store, and how it is brought back.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "engine/catalog/stored.h"
#include "engine/planning/candidates.h"
#include "engine/preparation/pattern_job.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

Plan FromRecord(const PlanRecord& record, const ProblemSignature& signature) {
  Plan plan;
  plan.signature = signature;
  plan.pipeline = record.pipeline;
  plan.kernel = record.kernel;
  plan.baseline_ms = record.baseline_ms;
  plan.plan_ms = record.plan_ms;
  plan.reason = record.reason;
  for (const Distribution best :
       {Distribution::kWhole, Distribution::kColumns, Distribution::kRows}) {
    if (record.distribution != Name(best)) continue;
    plan.distribution = {best, record.gpus, record.whole_ms, record.best_ms};
  }
  return plan;
}

PlanRecord ToRecord(const std::string& pattern_hash, const Plan& plan) {
  PlanRecord record{pattern_hash, ToString(plan.signature), plan.pipeline,
                    plan.kernel,  plan.baseline_ms,         plan.plan_ms,
                    plan.reason};
  if (plan.distribution) {
    record.distribution = Name(plan.distribution->best);
    record.gpus = plan.distribution->gpus;
    record.whole_ms = plan.distribution->whole_ms;
    record.best_ms = plan.distribution->best_ms;
  }
  return record;
}

Layout PlainCsrOf(const Pattern& pattern) {
  return PlainCsrWithoutArrays(pattern.rows(), pattern.cols(), pattern.nnz());
}

std::vector<std::string_view> KernelsOf(const ProblemSignature& c, const Layout& layout) {
  return KernelsFor(ProblemOf(c), layout);
}

/// There is no room for it now: it is read when it is needed. One that the pattern has already
/// stays. False if it never fits, or is damaged. `description` becomes its.
bool AddUnreadLayout(const JobModules& modules, Pattern& pattern, const LayoutRecord& record,
                     Layout& description) {
  LazyLayout::DiskCopy disk = DiskCopyOf(modules.store, modules.budget, pattern.payer(), record);
  description = record.layout;
  description.arrays.clear();
  for (const StoredArray& array : record.arrays) {
    description.arrays.push_back({array.name, array.type, array.length, {}});
  }
  if (pattern.FindLayout(description.pipeline) != nullptr) return true;
  const auto bytes = static_cast<size_t>(description.bytes());
  if (!disk.readable() ||
      !modules.budget.MayFit(bytes, MemoryUse::kLayouts, pattern.payer()).ok()) {
    return false;
  }
  pattern.AddLayout(description, std::move(disk), record.build_seconds);
  return true;
}

bool HasKernel(const Plan& plan, const Layout& layout) {
  const auto kernels = KernelsOf(plan.signature, layout);
  return std::ranges::find(kernels, plan.kernel) != kernels.end();
}

}  // namespace

std::map<std::string, std::set<ProblemSignature>> RestoreMeasurements(
    const StoreContents& contents, const std::map<std::string, std::shared_ptr<Pattern>>& patterns,
    const ModelOf& model) {
  std::map<std::string, std::set<ProblemSignature>> foreign, ours;
  std::map<Pattern*, std::vector<Measurement>> measurements;
  for (const MeasurementRecord& record : contents.measurements) {
    const auto pattern = patterns.find(record.pattern_hash);
    if (pattern == patterns.end()) continue;
    std::optional<Measurement> measurement = FromRecord(record, pattern->second->nnz());
    if (!measurement) continue;
    const ProblemSignature c = measurement->signature;
    // An older program stored none; and a kind that is not here is nobody's to try.
    const std::string& here = model(c.device);
    const bool is_ours = record.model.empty() || here.empty() || record.model == here;
    // Of SpGEMM a signature's own plan is plain CSR anyway; pairs are tried when they are next
    // asked for.
    if (is_ours || c.operation != Operation::kSpgemm) {
      (is_ours ? ours : foreign)[record.pattern_hash].insert(c);
    }
    if (is_ours) measurements[pattern->second.get()].push_back(*std::move(measurement));
  }
  for (auto& [pattern, of_pattern] : measurements)
    pattern->trials().SetMeasurements(std::move(of_pattern));
  for (auto& [hash, signatures] : foreign) {
    const auto& here = ours[hash];
    std::erase_if(signatures, [&](const ProblemSignature& c) { return here.contains(c); });
  }
  std::map<std::pair<Pattern*, ProblemSignature>, std::vector<Decision>> decisions;
  for (const DecisionRecord& record : contents.decisions) {
    const auto pattern = patterns.find(record.pattern_hash);
    const std::optional<ProblemSignature> c = ParseProblemSignature(record.signature);
    if (pattern == patterns.end() || !c || foreign[record.pattern_hash].contains(*c)) continue;
    decisions[{pattern->second.get(), *c}].push_back(
        {*c, record.pipeline, record.tried, record.reason, record.kernel, record.pair});
  }
  for (auto& [key, of_signature] : decisions) {
    key.first->trials().SetDecisions(key.second, std::move(of_signature));
  }
  return foreign;
}

void RestoreProductLayouts(const JobModules& modules, Pattern& pattern,
                           const StoredPreparation& stored) {
  for (const LayoutRecord& record : stored.layouts) {
    Layout description;
    if (ReadsLayouts(Operation::kSpgemm, record.layout.kind)) {
      AddUnreadLayout(modules, pattern, record, description);
    }
  }
}

absl::StatusOr<std::set<ProblemSignature>> PatternJob::Restore(const StoredPreparation& stored) {
  RestoreFeatures();
  std::set<ProblemSignature> lost, rewritten;
  std::map<std::string, std::vector<Plan>> by_pipeline;
  for (const PlanRecord& record : stored.plans) {
    const std::optional<ProblemSignature> c = ParseProblemSignature(record.signature);
    if (c) by_pipeline[record.pipeline].push_back(FromRecord(record, *c));
  }
  int64_t done = 0;
  for (const auto& [pipeline, plans] : by_pipeline) {
    progress_.At("restore", done++, static_cast<int64_t>(by_pipeline.size()));
    absl::Status status;
    Layout layout = PlainCsrOf(*pattern_);
    if (pipeline != kCsr) {
      absl::StatusOr<LayoutBuilder::Built> built = ReadOrRebuild(stored, pipeline);
      if (absl::IsCancelled(built.status()) || absl::IsDataLoss(built.status())) {
        return built.status();
      }
      status = built.status();
      if (status.ok()) {
        const bool for_cpu = std::ranges::any_of(
            plans, [](const Plan& plan) { return plan.signature.device == DeviceKind::kCpu; });
        layout = *built->layout;
        // As its arrays are: nobody may ever need it.
        const Budget::SpareOnly spare;
        status = AddLayout(built->layout, built->seconds, for_cpu);
        if (status.ok()) SetDiskCopy(stored, pipeline);
      }
      if (absl::IsResourceExhausted(status) && AddUnread(stored, pipeline, layout)) {
        status = absl::OkStatus();
      }
    }
    if (!status.ok()) {
      notes_.push_back(
          fmt::format("{} could not be restored: {}", pipeline, std::string(status.message())));
    }
    for (Plan plan : plans) {
      const bool foreign = stored.foreign.contains(plan.signature);
      if (foreign) {
        plan.reason += ", on another device, or a CPU with other threads, until it is tried here";
        plan.provisional = true;
        lost.insert(plan.signature);
      }
      // Another build of the program may have other kernels.
      if (status.ok() && HasKernel(plan, layout)) {
        Activate(plan);
        if (unstored_.contains(pipeline)) rewritten.insert(plan.signature);
      } else if (absl::IsResourceExhausted(status)) {
        Suspend(plan);
      } else {
        lost.insert(plan.signature);
      }
    }
  }
  progress_.Leave();
  if (!rewritten.empty()) StoreOutcome(rewritten);
  DropStoredLayoutsWithoutPlan(stored);
  return lost;
}

void PatternJob::RestoreFeatures() {
  absl::StatusOr<std::optional<Features>> features =
      modules_.store.ReadFeatures(pattern_->hash(), modules_.budget.Source(MemoryUse::kLayouts));
  if (!features.ok()) {
    notes_.push_back(
        fmt::format("features are not known: {}", std::string(features.status().message())));
  } else if (features->has_value()) {
    pattern_->SetFeatures(std::make_shared<const Features>(**std::move(features)));
  }
}

void PatternJob::Suspend(const Plan& plan) {
  const std::optional<Plan> plain =
      OnPlainCsr(plan, PlainCsrOf(*pattern_), "for want of memory for");
  if (plain) Activate(*plain);
}

const LayoutRecord* PatternJob::RecordOf(const StoredPreparation& stored,
                                         const std::string& pipeline) {
  const auto record = std::ranges::find_if(
      stored.layouts, [&](const LayoutRecord& r) { return r.layout.pipeline == pipeline; });
  return record == stored.layouts.end() ? nullptr : &*record;
}

void PatternJob::SetDiskCopy(const StoredPreparation& stored, const std::string& pipeline) {
  // One that was built again is not stored yet.
  if (unstored_.contains(pipeline)) return;
  pattern_->FindLayout(pipeline)->SetDiskCopy(
      DiskCopyOf(modules_.store, modules_.budget, pattern_->payer(), *RecordOf(stored, pipeline)));
}

bool PatternJob::AddUnread(const StoredPreparation& stored, const std::string& pipeline,
                           Layout& description) {
  const LayoutRecord* const record = RecordOf(stored, pipeline);
  return record != nullptr && AddUnreadLayout(modules_, *pattern_, *record, description);
}

void PatternJob::DropStoredLayoutsWithoutPlan(const StoredPreparation& stored) {
  for (const LayoutRecord& record : stored.layouts) {
    const std::string& pipeline = record.layout.pipeline;
    if (std::ranges::find(stored.plans, pipeline, &PlanRecord::pipeline) != stored.plans.end()) {
      continue;
    }
    const MutexLock lock(modules_.publishing);
    // Plans of pairs are found again when they are asked for (RestoreProductLayouts).
    if (pattern_->FindLayout(pipeline) != nullptr) continue;
    const absl::Status dropped = modules_.store.DropLayout(pattern_->hash(), pipeline);
    if (dropped.ok()) pattern_->SetOnDisk(pipeline, nullptr);
    if (!dropped.ok()) notes_.push_back(std::string(dropped.message()));
  }
}

absl::StatusOr<Layout> PatternJob::ReadSpare(const LayoutRecord& record) {
  // What is idle does not go for it: nobody may ever need it.
  const Budget::SpareOnly spare;
  return ReadLayout(modules_.store, record,
                    modules_.budget.Source(MemoryUse::kLayouts, pattern_->payer()), &stop_);
}

absl::StatusOr<LayoutBuilder::Built> PatternJob::ReadOrRebuild(const StoredPreparation& stored,
                                                               const std::string& pipeline) {
  if (const LayoutRecord* const record = RecordOf(stored, pipeline)) {
    absl::StatusOr<Layout> layout = ReadSpare(*record);
    if (layout.ok()) {
      return LayoutBuilder::Built{std::make_shared<Layout>(*std::move(layout)),
                                  record->build_seconds, ""};
    }
    if (!absl::IsDataLoss(layout.status())) return layout.status();
    modules_.observer.OnDamage(std::string(layout.status().message()));
    notes_.push_back(fmt::format("built again: {}", std::string(layout.status().message())));
    absl::Status dropped = modules_.store.DropLayout(pattern_->hash(), pipeline);
    if (!dropped.ok()) return absl::InternalError(std::string(dropped.message()));
    pattern_->SetOnDisk(pipeline, nullptr);
  }
  if (absl::Status s = LoadCsr(); !s.ok()) return s;
  absl::StatusOr<LayoutBuilder::Built> built = builder_->Build(pipeline);
  if (!built.ok()) return built.status();
  if (built->layout == nullptr) return absl::NotFoundError(built->note);
  absl::Status moved =
      MoveTo(modules_.budget.Source(MemoryUse::kLayouts, pattern_->payer()), *built->layout);
  if (!moved.ok()) return moved;
  unstored_.insert(pipeline);
  return built;
}

bool PatternJob::StoreLayout(Pattern& pattern, const Pattern::BuiltEntry& entry) {
  const absl::StatusOr<std::shared_ptr<const Layout>> layout = entry.layout->Get(&stop_);
  TenantHold hold;
  const absl::StatusOr<LayoutRecord> stored = [&]() -> absl::StatusOr<LayoutRecord> {
    if (!layout.ok()) return layout.status();
    if (modules_.store.durable()) {
      absl::StatusOr<TenantHold> room = pattern.HoldDisk((*layout)->bytes());
      if (!room.ok()) return room.status();
      hold = *std::move(room);
    }
    return modules_.store.PutLayout(pattern.hash(), **layout, entry.build_seconds, &stop_);
  }();
  if (!stored.ok()) {
    notes_.push_back(fmt::format("{} is used but not stored: {}", entry.description->pipeline,
                                 Sentence(stored.status())));
    return false;
  }
  if (modules_.store.durable()) {
    entry.layout->SetDiskCopy(
        DiskCopyOf(modules_.store, modules_.budget, pattern.payer(), *stored));
    pattern.SetOnDisk(entry.description->pipeline, std::move(hold));
  }
  return true;
}

void PatternJob::StoreOutcome(const std::set<ProblemSignature>& signatures) {
  progress_.At("store", 0, 0);
  for (const Pattern::BuiltEntry& entry : pattern_->Layouts()) {
    const std::string& pipeline = entry.description->pipeline;
    if (unstored_.contains(pipeline) && StoreLayout(*pattern_, entry)) unstored_.erase(pipeline);
  }
  std::vector<PlanRecord> plans;
  // Pairs of which not all was tried: their measurements would pass for all.
  std::set<std::pair<ProblemSignature, PatternPair>> unfinished;
  const auto is_unfinished = [&](const auto& known) {
    return known.pair && unfinished.contains({known.signature, *known.pair});
  };
  for (const auto& active : pattern_->plans().List()) {
    const Plan& plan = active->plan;
    if (plan.provisional && plan.pair) unfinished.emplace(plan.signature, *plan.pair);
    // That of a pair is found again by its measurements.
    if (!signatures.contains(plan.signature) || plan.provisional || plan.pair) continue;
    if (!unstored_.contains(plan.pipeline)) {
      plans.push_back(ToRecord(pattern_->hash(), plan));
    }
  }
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  std::vector<MeasurementRecord> measurements;
  for (const Measurement& m : pattern_->trials().measurements()) {
    if (!signatures.contains(m.signature) || is_unfinished(m)) continue;
    measurements.push_back({pattern_->hash(), ToString(m.signature), m.pipeline, m.kernel, m.device,
                            m.k, m.median_ms, m.runs, now, m.baseline_ms, m.roofline_ms,
                            m.preparation_ms, m.model, m.pair, m.compulsory_bytes, m.censored});
  }
  std::vector<DecisionRecord> decisions;
  for (const Decision& d : pattern_->trials().decisions()) {
    if (!signatures.contains(d.signature) || is_unfinished(d)) continue;
    decisions.push_back(
        {pattern_->hash(), ToString(d.signature), d.pipeline, d.tried, d.reason, d.kernel, d.pair});
  }
  absl::Status stored = modules_.store.PutPlans(plans);
  if (stored.ok()) stored = modules_.store.PutMeasurements(measurements);
  if (stored.ok()) stored = modules_.store.PutDecisions(decisions);
  // NOT_FOUND: the pattern has been deleted meanwhile.
  if (!stored.ok() && !absl::IsNotFound(stored)) {
    notes_.push_back(
        fmt::format("plans are used but not stored: {}", std::string(stored.message())));
  }
  progress_.Leave();
}

}  // namespace sparsed::engine
