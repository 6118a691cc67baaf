#include "tools/corpus/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "engine/execution/gpu_backend.h"

namespace sparsed::corpus {
namespace {

constexpr char kTenant[] = "corpus";

template <typename T>
absl::Status Send(engine::Upload& upload, uint32_t array, const std::vector<T>& data) {
  const size_t bytes = data.size() * sizeof(T);
  const absl::StatusOr<std::byte*> to = upload.Claim(array, 0, bytes);
  if (!to.ok()) return to.status();
  if (bytes > 0) std::memcpy(*to, data.data(), bytes);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProblemSignature> ParseSignature(std::string_view text, std::string_view type) {
  constexpr std::string_view kTf32 = ":tf32";
  std::string_view rest = text;
  if (rest.ends_with(kTf32) && type == Name(ElementType::kF32)) {
    rest.remove_suffix(kTf32.size());
    type = kTf32.substr(1);
  }
  const size_t colon = rest.find(':');
  const std::string name =
      colon == std::string_view::npos
          ? fmt::format("{} {} cpu", rest, type)
          : fmt::format("{} {} k<={} cpu", rest.substr(0, colon), type, rest.substr(colon + 1));
  // TF32 is a GPU's.
  const std::string on_gpu = name.substr(0, name.size() - 3) + "cuda";
  std::optional<ProblemSignature> c = engine::ParseProblemSignature(name);
  if (!c) c = engine::ParseProblemSignature(on_gpu);
  if (c && (!c->transposed || c->operation == Operation::kSpmm)) return *c;
  return absl::InvalidArgumentError(fmt::format(
      "\"{}\" of {} values is no problem signature; expected spmm:K, spmm^T:K, either with "
      ":tf32 behind "
      "if values are f32, sddmm:K or spgemm, K one of {}",
      text, type, fmt::join(kSignatureWidths, ", ")));
}

absl::StatusOr<std::unique_ptr<Measurer>> Measurer::Open(const MeasureOptions& options) {
  std::unique_ptr<Measurer> measurer(new Measurer(options));
  engine::EngineOptions engine;
  engine.host_memory_bytes = options.memory_bytes;
  engine.preparation_memory_bytes = options.memory_bytes / 2;
  engine.execution.threads_per_slot = options.threads;
  engine.preparation.threads_per_worker = options.threads;
  engine.preparation.light_nonzeros = 0;  // all with the same threads
  engine.preparation.trial_budget_ms = options.trial_budget_ms;
  engine.preparation.expected_requests = options.expected_requests;
  engine.preparation.only_asked = options.explore || !options.asked.empty();
  std::set<ElementType> types;
  for (const ProblemSignature& c : options.signatures) types.insert(c.type);
  engine.preparation.seconds =
      options.seconds / static_cast<double>(std::max<size_t>(types.size(), 1));
  if (options.device.kind == DeviceKind::kCuda) {
    engine.gpu.emplace();
    engine.gpu_ordinals = {options.device.ordinal};
    engine.gpu_required = true;
  }
  absl::StatusOr<std::unique_ptr<engine::Engine>> opened =
      engine::Engine::Open(engine, measurer->observer_);
  if (!opened.ok()) return opened.status();
  measurer->engine_ = *std::move(opened);
  if (options.model.empty()) return measurer;
  absl::StatusOr<std::shared_ptr<const engine::Model>> model = engine::Model::Load(options.model);
  if (!model.ok()) return model.status();
  measurer->engine_->preparation().selector().Use(options.device.kind, *std::move(model));
  return measurer;
}

const std::string& Measurer::device_model() const {
  return engine_->executor().model(options_.device.kind);
}

absl::Status Measurer::device_status() const {
  const auto& gpus = engine_->executor().gpus();
  return options_.device.kind == DeviceKind::kCpu || gpus.empty() ? absl::OkStatus()
                                                                  : gpus.front().status();
}

std::vector<ProblemSignature> Measurer::SignaturesOf(ElementType type) const {
  std::vector<ProblemSignature> signatures;
  std::ranges::copy_if(options_.signatures, std::back_inserter(signatures),
                       [&](const ProblemSignature& c) { return c.type == type; });
  return signatures;
}

absl::StatusOr<engine::MatrixLease> Measurer::Upload(const Pattern& pattern, ElementType type) {
  engine::UploadHeader header;
  header.tenant = kTenant;
  header.name = Name(type);
  header.rows = pattern.rows;
  header.cols = pattern.cols;
  header.nnz = pattern.nnz();
  header.type = type;
  header.replace = true;
  header.values_are_ones = true;
  header.expected = options_.explore || !options_.asked.empty()
                        ? std::vector{SignatureOf({Operation::kSpgemm, false, type})}
                        : SignaturesOf(type);
  absl::StatusOr<std::unique_ptr<engine::Upload>> upload =
      engine_->catalog().BeginUpload(std::move(header));
  if (!upload.ok()) return upload.status();
  if (!(*upload)->pattern_known()) {
    absl::Status s = Send(**upload, engine::Upload::kRowOffsets, pattern.row_offsets);
    if (s.ok()) s = Send(**upload, engine::Upload::kColumnIndices, pattern.column_indices);
    if (!s.ok()) return s;
  }
  return (*upload)->Finish(options_.threads);
}

absl::Status Measurer::Finish(const engine::Matrix& matrix) {
  while (engine_->preparation().pending() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const engine::PreparationStatus status = matrix.pattern()->progress().status();
  return status.state == engine::PreparationState::kFailed ? absl::InternalError(status.detail)
                                                           : absl::OkStatus();
}

absl::StatusOr<Measured> Measurer::Measure(const Pattern& pattern) {
  std::set<ElementType> types;
  for (const ProblemSignature& c : options_.signatures) types.insert(c.type);
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status;
  std::vector<engine::MatrixLease> matrices;  // of one pattern, which lives as long as they
  for (const ElementType type : types) {
    absl::StatusOr<engine::MatrixLease> matrix = Upload(pattern, type);
    status = matrix.ok() ? Finish(**matrix) : matrix.status();
    if (!status.ok()) break;
    matrices.push_back(*matrix);
    // All signatures in one preparation, which builds each layout once.
    std::vector<engine::Asked> asked = options_.asked;
    if (options_.explore) asked.emplace_back();
    for (const engine::Asked& one : asked) {
      if (!status.ok()) break;
      status = engine_->preparation().Request(*matrix, SignaturesOf(type), /*again=*/false, one);
      if (absl::IsFailedPrecondition(status)) status = absl::OkStatus();  // there is no square
    }
    if (status.ok()) status = Finish(**matrix);
    if (!status.ok()) break;
  }
  Measured measured;
  measured.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!matrices.empty()) {
    measured.features = matrices.front()->pattern()->features();
    measured.measurements = matrices.front()->pattern()->trials().measurements();
  }
  matrices.clear();
  for (const ElementType type : types) {
    engine_->catalog().Delete(kTenant, Name(type)).IgnoreError();  // it may not have come so far
  }
  if (!status.ok()) return status;
  return measured;
}

}  // namespace sparsed::corpus
