#include "engine/planning/model.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "engine/planning/booster.h"
#include "engine/planning/network.h"
#include "kernels/kernel_table.h"
#include "kernels/kernels_version.h"
#include "kernels/pipeline.h"

namespace sparsed::engine {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr char kManifest[] = "manifest.json";
/// Kinds of what a file holds.
constexpr std::string_view kTrees = "trees", kNetwork = "network";
/// A model of a few megabytes is a large one.
constexpr size_t kMostFileBytes = size_t{64} << 20;
constexpr size_t kMostNameLength = 64;
/// Of a deviation, in log2: more is no estimate.
constexpr double kMostDeviation = 20;
constexpr size_t kMostInputs = 1000, kMostCandidates = 1000;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(fmt::format("{} cannot be read", path));
  const auto size = static_cast<int64_t>(file.tellg());
  if (size < 0 || static_cast<size_t>(size) > kMostFileBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} is no file of at most {} bytes", path, kMostFileBytes));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(bytes.data(), size)) {
    return absl::NotFoundError(fmt::format("{} cannot be read", path));
  }
  return bytes;
}

/// Of a line that may be printed.
bool IsText(std::string_view text) {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; });
}

std::string Digest(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

/// "f32", or "tf32" where that is allowed.
std::string_view TypeOf(const ProblemSignature& c) {
  return c.allow_tf32 && c.type == ElementType::kF32 ? "tf32" : Name(c.type);
}

/// Throws what Json does where it is none of 64 bits.
int64_t Integer(const Json& number) {
  // A fraction or a huge number would be converted without a word.
  if (!number.is_number_integer()) (void)number.get_ref<const int64_t&>();
  return number.get<int64_t>();
}

absl::StatusOr<Operation> ParseOperation(const std::string& text) {
  for (const Operation operation : {Operation::kSpmm, Operation::kSddmm, Operation::kSpgemm}) {
    if (Name(operation) == text) return operation;
  }
  return absl::InvalidArgumentError(fmt::format("there is no operation \"{}\"", text));
}

template <typename Kernel>
bool IsOn(const Kernel* kernel, DeviceKind device) {
  return kernel != nullptr && kernel->device == device;
}

bool IsKernel(Operation operation, const std::string& name, DeviceKind device) {
  switch (operation) {
    case Operation::kSpmm:
      return IsOn(FindSpmmKernel(name), device);
    case Operation::kSddmm:
      return IsOn(FindSddmmKernel(name), device);
    case Operation::kSpgemm:
      break;
  }
  return IsOn(FindSpgemmKernel(name), device);
}

bool IsDeviation(double deviation) { return deviation >= 0 && deviation <= kMostDeviation; }

absl::Status CheckCandidate(const Estimate& candidate, Operation operation, DeviceKind device) {
  if (!IsKernel(operation, candidate.kernel, device)) {
    return absl::FailedPreconditionError(
        fmt::format("it knows a kernel that there is none of here: \"{}\"", candidate.kernel));
  }
  const absl::StatusOr<Pipeline> pipeline = ParsePipeline(candidate.pipeline);
  if (operation != Operation::kSpgemm &&
      (!pipeline.ok() || ToString(*pipeline) != candidate.pipeline)) {
    return absl::FailedPreconditionError(fmt::format(
        "it knows a transform pipeline that there is none of here: \"{}\"", candidate.pipeline));
  }
  if (!IsDeviation(candidate.deviation)) {
    return absl::InvalidArgumentError(
        fmt::format("the deviation {} of {} is none", candidate.deviation, candidate.kernel));
  }
  return absl::OkStatus();
}

/// Reads the manifest, with the files' bytes.
class Reader {
 public:
  Reader(const Json& manifest, const Model::Files& files, int inputs)
      : manifest_(manifest), files_(files), inputs_(inputs) {}

  /// Of a group or of building: what its file holds. Throws what Json does.
  absl::StatusOr<std::unique_ptr<const Predictor>> LoadPredictor(const Json& described,
                                                                 size_t outputs) {
    const auto name = described.at("file").get<std::string>();
    const std::string kind = described.value("kind", std::string(kTrees));
    const auto bytes = files_.find(name);
    if (bytes == files_.end()) {
      return absl::InvalidArgumentError(fmt::format("its file {} is missing", name));
    }
    if (manifest_.at("files").at(name).get<std::string>() != Digest(bytes->second)) {
      return absl::InvalidArgumentError(fmt::format("its file {} is damaged", name));
    }
    // Each is loaded for itself: what is named again and again would take memory beyond its size.
    if (!loaded_.insert(name).second) {
      return absl::InvalidArgumentError(fmt::format("its file {} is named twice", name));
    }
    if (outputs == 0 || outputs > kMostCandidates) {
      return absl::InvalidArgumentError(
          fmt::format("{} has {} candidates, not 1 to {}", name, outputs, kMostCandidates));
    }
    if (kind == kTrees) return Load<Booster>(name, bytes->second, outputs);
    if (kind == kNetwork) return Load<Network>(name, bytes->second, outputs);
    return absl::InvalidArgumentError(fmt::format("{} is of no kind \"{}\"", name, kind));
  }

 private:
  template <typename Kind>
  absl::StatusOr<std::unique_ptr<const Predictor>> Load(const std::string& name,
                                                        std::string_view bytes,
                                                        size_t outputs) const {
    absl::StatusOr<std::unique_ptr<Kind>> loaded =
        Kind::Load(bytes, inputs_, static_cast<int>(outputs));
    if (loaded.ok()) return *std::move(loaded);
    return absl::Status(loaded.status().code(),
                        fmt::format("{}: {}", name, std::string(loaded.status().message())));
  }

  const Json& manifest_;
  const Model::Files& files_;
  const int inputs_;
  std::set<std::string> loaded_;
};

}  // namespace

bool IsModelName(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kMostNameLength && text.front() != '.' &&
         std::ranges::all_of(text, allowed);
}

absl::StatusOr<Model::Files> Model::ReadFiles(const std::string& directory) {
  Files files;
  const auto read = [&](const std::string& name) {
    absl::StatusOr<std::string> bytes = ReadFile(fmt::format("{}/{}", directory, name));
    if (bytes.ok()) files.emplace(name, *std::move(bytes));
    return bytes.status();
  };
  if (absl::Status s = read(kManifest); !s.ok()) return s;
  const Json manifest = Json::parse(files.at(kManifest), nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest.at("files").is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}/{} names no files", directory, kManifest));
  }
  if (manifest.at("files").size() >= kMostModelFiles) {
    return absl::InvalidArgumentError(
        fmt::format("{}/{} names more than {} files", directory, kManifest, kMostModelFiles - 1));
  }
  for (const auto& [name, digest] : manifest.at("files").items()) {
    if (!IsModelName(name)) {
      return absl::InvalidArgumentError(fmt::format("\"{}\" is no name for a file", name));
    }
    if (absl::Status s = read(name); !s.ok()) return s;
  }
  return files;
}

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& directory) {
  const absl::StatusOr<Files> files = ReadFiles(directory);
  if (!files.ok()) return files.status();
  return FromFiles(*files);
}

absl::StatusOr<std::shared_ptr<const Model>> Model::FromFiles(const Files& files) {
  const auto text = files.find(kManifest);
  if (text == files.end()) return absl::NotFoundError("it has no manifest.json");
  const Json manifest = Json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  if (manifest.is_discarded()) return absl::InvalidArgumentError("manifest.json is no JSON");
  std::shared_ptr<Model> model(new Model());
  // What is missing or of another type throws; nothing is used of what was read until then.
  try {
    if (const int64_t format = Integer(manifest.at("format")); format != kFormat) {
      return absl::FailedPreconditionError(
          fmt::format("it is of format {}, not {}", format, kFormat));
    }
    if (const int64_t kernels = Integer(manifest.at("kernels")); kernels != kKernelsVersion) {
      return absl::FailedPreconditionError(fmt::format(
          "it was trained for version {} of the kernels, not {}", kernels, kKernelsVersion));
    }
    model->name_ = manifest.at("name").get<std::string>();
    if (!IsModelName(model->name_)) {
      return absl::InvalidArgumentError(
          "its name is none: 1 to 64 letters, digits, '-', '_' and '.', which is not the first");
    }
    model->created_ = manifest.at("created").get<std::string>();
    const auto kind = manifest.at("device").at("kind").get<std::string>();
    if (kind != "cpu" && kind != "cuda") {
      return absl::InvalidArgumentError(fmt::format("there is no kind of device \"{}\"", kind));
    }
    model->device_ = kind == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
    model->device_model_ = manifest.at("device").at("model").get<std::string>();
    if (!IsText(model->device_model_) || !IsText(model->created_)) {
      return absl::InvalidArgumentError("its device or its time is no printable text");
    }
    model->patterns_ = Integer(manifest.at("data").at("patterns"));
    if (model->patterns_ < 0) return absl::InvalidArgumentError("it has fewer than no patterns");
    model->most_nonzeros_ = manifest.at("data").value("most_nonzeros", 0.0);
    const auto inputs = manifest.at("inputs").get<std::vector<std::string>>();
    if (inputs.empty() || inputs.size() > kMostInputs) {
      return absl::InvalidArgumentError("it has no inputs, or too many");
    }
    for (const std::string& text : inputs) {
      std::optional<ModelInput> input = ModelInput::Parse(text);
      if (!input) {
        return absl::FailedPreconditionError(
            fmt::format("it wants a feature that there is none of here: \"{}\"", text));
      }
      model->inputs_.push_back(*std::move(input));
    }
    Reader reader(manifest, files, static_cast<int>(model->inputs_.size()));
    for (const Json& described : manifest.at("groups")) {
      Group group;
      const absl::StatusOr<Operation> operation =
          ParseOperation(described.at("operation").get<std::string>());
      if (!operation.ok()) return operation.status();
      group.operation = *operation;
      group.transposed = described.at("transposed").get<bool>();
      group.types = described.at("types").get<std::vector<std::string>>();
      group.least_k = Integer(described.at("least_k"));
      group.most_k = Integer(described.at("most_k"));
      if (group.least_k < 0 || group.least_k > group.most_k) {
        return absl::InvalidArgumentError(
            fmt::format("no K is from {} to {}", group.least_k, group.most_k));
      }
      group.shared_deviation = described.value("shared_deviation", 0.0);
      if (!IsDeviation(group.shared_deviation)) {
        return absl::InvalidArgumentError(
            fmt::format("the shared deviation {} is none", group.shared_deviation));
      }
      for (const Json& candidate : described.at("candidates")) {
        group.candidates.push_back({candidate.at("recipe").get<std::string>(),
                                    candidate.at("kernel").get<std::string>(), 0,
                                    candidate.at("deviation").get<double>()});
        absl::Status known =
            CheckCandidate(group.candidates.back(), group.operation, model->device_);
        if (!known.ok()) return known;
      }
      if (described.contains("measured")) {
        group.measured = described.at("measured").get<std::vector<std::string>>();
      }
      absl::StatusOr<std::unique_ptr<const Predictor>> times =
          reader.LoadPredictor(described, group.candidates.size());
      if (!times.ok()) return times.status();
      group.times = *std::move(times);
      model->groups_.push_back(std::move(group));
    }
    const Json& building = manifest.at("building");
    for (const Json& pipeline : building.at("recipes")) {
      model->built_.push_back(pipeline.at("recipe").get<std::string>());
    }
    for (const Group& group : model->groups_) {
      for (const Estimate& candidate : group.candidates) {
        if (candidate.pipeline == kCsr ||
            std::ranges::count(model->built_, candidate.pipeline) > 0) {
          continue;
        }
        return absl::InvalidArgumentError(
            fmt::format("how long {} takes to build it does not know", candidate.pipeline));
      }
    }
    absl::StatusOr<std::unique_ptr<const Predictor>> seconds =
        reader.LoadPredictor(building, model->built_.size());
    if (!seconds.ok()) return seconds.status();
    model->building_ = *std::move(seconds);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(fmt::format("manifest.json: {}", error.what()));
  }
  return model;
}

const Model::Group* Model::GroupOf(const ProblemSignature& c) const {
  if (c.device != device_) return nullptr;
  const std::string_view type = TypeOf(c);
  for (const Group& group : groups_) {
    if (group.operation != c.operation || group.transposed != c.transposed ||
        std::ranges::find(group.types, type) == group.types.end()) {
      continue;
    }
    const bool spgemm = c.operation == Operation::kSpgemm;
    if (spgemm || (c.k_bucket >= group.least_k && c.k_bucket <= group.most_k)) return &group;
  }
  return nullptr;
}

bool Model::HasSeen(const ProblemSignature& signature, const std::string& pipeline) const {
  const Group* const group = GroupOf(signature);
  if (group == nullptr) return false;
  return !group->measured ||
         std::ranges::find(*group->measured, pipeline) != group->measured->end();
}

bool Model::Covers(const ProblemSignature& signature) const {
  return GroupOf(signature) != nullptr;
}

double Model::SharedDeviation(const ProblemSignature& signature) const {
  const Group* const group = GroupOf(signature);
  return group == nullptr ? 0 : group->shared_deviation;
}

std::vector<float> Model::InputsOf(const ProblemSignature& c, const Features& features) const {
  std::vector<float> row;
  row.reserve(inputs_.size());
  for (const ModelInput& input : inputs_) {
    row.push_back(static_cast<float>(input.Of(c, features)));
  }
  return row;
}

absl::StatusOr<std::vector<Estimate>> Model::EstimateTimes(const ProblemSignature& signature,
                                                           const Features& features) const {
  const Group* const group = GroupOf(signature);
  if (group == nullptr)
    return absl::InternalError("the model does not cover the problem signature");
  const absl::StatusOr<std::vector<double>> ratios =
      group->times->Predict(InputsOf(signature, features), features.density_map);
  if (!ratios.ok()) return ratios.status();
  std::vector<Estimate> estimates = group->candidates;
  for (size_t i = 0; i < estimates.size(); ++i) estimates[i].log2_ratio = (*ratios)[i];
  return estimates;
}

absl::StatusOr<std::map<std::string, double>> Model::EstimateBuilding(
    const ProblemSignature& signature, const Features& features) const {
  const absl::StatusOr<std::vector<double>> seconds =
      building_->Predict(InputsOf(signature, features), features.density_map);
  if (!seconds.ok()) return seconds.status();
  std::map<std::string, double> building;
  // Trees do not reach beyond what they saw; building grows at least with the nonzeros.
  const double beyond = most_nonzeros_ > 0 ? std::max(1.0, features.nnz / most_nonzeros_) : 1;
  for (size_t i = 0; i < built_.size(); ++i) {
    building[built_[i]] = beyond * std::exp2((*seconds)[i]);
  }
  return building;
}

}  // namespace sparsed::engine
