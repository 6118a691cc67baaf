#include "engine/planning/model_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

namespace sparsed::engine {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMostHistory = 32;
constexpr std::string_view kManifest = "manifest.json";
constexpr std::string_view kActive = "active.json";
/// Directories that a change makes on its way; names of models do not begin so.
constexpr std::string_view kNew = ".new-", kOld = ".old-";
/// A processor's model that was trained with it is called so: "cpu-avx512".
constexpr std::string_view kAvx512 = "avx512";
constexpr DeviceKind kDeviceKinds[] = {DeviceKind::kCpu, DeviceKind::kCuda};

std::string InFolder(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

/// A directory and all that is in it; what cannot be removed now is at the next start.
void RemoveAll(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

/// Makes a file durable, but for its name.
absl::Status WriteFile(FileSystem& files, const std::string& path, std::string_view contents) {
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, OpenMode::kCreate);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Truncate(0);
  if (status.ok()) status = (*file)->Write(0, std::as_bytes(std::span(contents)));
  return status.ok() ? (*file)->Sync() : status;
}

absl::StatusOr<std::string> ReadFile(FileSystem& files, const std::string& path, size_t most) {
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, OpenMode::kRead);
  if (!file.ok()) return file.status();
  const absl::StatusOr<int64_t> size = (*file)->Size();
  if (!size.ok()) return size.status();
  if (*size > static_cast<int64_t>(most)) {
    return absl::InvalidArgumentError(fmt::format("{} has more than {} bytes", path, most));
  }
  std::string text(static_cast<size_t>(*size), '\0');
  const absl::StatusOr<size_t> read = (*file)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return read.status();
  text.resize(*read);
  return text;
}

/// The geometric mean, over groups, of what the first choice reached in cross-validation.
double ShareOf(const Json& held_out) {
  double logs = 0;
  int groups = 0;
  for (const auto& [group, found] : held_out.items()) {
    if (!found.is_object() || !found.contains("all")) continue;
    const double share = found.at("all").at("first").get<double>();
    if (share <= 0) return 0;
    logs += std::log(share);
    ++groups;
  }
  return groups == 0 ? 0 : std::exp(logs / groups);
}

/// As far as it can be read.
ModelFacts FactsOf(std::string name, bool own, std::string text) {
  ModelFacts facts;
  facts.name = std::move(name);
  facts.own = own;
  const Json manifest = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  facts.manifest = std::move(text);
  try {
    facts.device = manifest.at("device").at("kind").get<std::string>();
    facts.created = manifest.at("created").get<std::string>();
    facts.device_model = manifest.at("device").at("model").get<std::string>();
    facts.patterns = manifest.at("data").at("patterns").get<int64_t>();
    if (manifest.contains("held_out")) facts.held_out_share = ShareOf(manifest.at("held_out"));
  } catch (const Json::exception&) {
    // What is missing is the problem that loading it finds.
  }
  return facts;
}

std::optional<DeviceKind> KindNamed(std::string_view name) {
  for (const DeviceKind kind : kDeviceKinds) {
    if (Name(kind) == name) return kind;
  }
  return std::nullopt;
}

/// As sentences have what callers wrote.
std::string Shortened(std::string_view text) {
  constexpr size_t kMost = 64;
  return text.size() <= kMost ? std::string(text) : fmt::format("{}...", text.substr(0, kMost));
}

absl::Status CheckOnlyNamed(const Model::Files& files) {
  const Json manifest = Json::parse(files.at(std::string(kManifest)));
  for (const auto& [name, digest] : manifest.at("files").items()) {
    if (files.contains(name)) continue;
    return absl::InvalidArgumentError(
        fmt::format("its manifest names a file that is missing: {}", Shortened(name)));
  }
  for (const auto& [name, contents] : files) {
    if (name == kManifest || manifest.at("files").contains(name)) continue;
    return absl::InvalidArgumentError(
        fmt::format("it has a file that its manifest does not name: {}", name));
  }
  return absl::OkStatus();
}

absl::Status NoModel(std::string_view name) {
  return absl::NotFoundError(fmt::format("there is no model named '{}'", Shortened(name)));
}

std::string Said(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

absl::Status CheckModelFiles(const std::map<std::string, size_t>& bytes) {
  if (bytes.size() > kMostModelFiles) {
    return absl::InvalidArgumentError(
        fmt::format("the model has {} files, {} at most are taken", bytes.size(), kMostModelFiles));
  }
  if (!bytes.contains(std::string(kManifest))) {
    return absl::InvalidArgumentError(fmt::format("the model has no {}", kManifest));
  }
  size_t all = 0;
  for (const auto& [name, size] : bytes) {
    if (!IsModelName(name)) {
      return absl::InvalidArgumentError(
          fmt::format("\"{}\" is no name for a file", Shortened(name)));
    }
    const size_t most = name == kManifest ? kMostManifestBytes : kMostModelBytes;
    if (size > most) {
      return absl::InvalidArgumentError(
          fmt::format("{} has {} bytes, {} at most are taken", name, size, most));
    }
    all += std::min(size, kMostModelBytes + 1);
  }
  if (all > kMostModelBytes) {
    return absl::InvalidArgumentError(
        fmt::format("the model has files of {} bytes, {} at most are taken", all, kMostModelBytes));
  }
  return absl::OkStatus();
}

ModelStore::ModelStore(FileSystem& files, ModelStoreOptions options, Selector& selector,
                       const Tell& tell)
    : files_(files), options_(std::move(options)), selector_(selector) {
  const MutexLock lock(mutex_);
  FinishChanges();
  ReadFolder(options_.installed, /*own=*/false, tell);
  ReadFolder(options_.own, /*own=*/true, tell);
  if (absl::Status status = ReadAsked(); !status.ok()) {
    tell(fmt::format("which models were activated cannot be read ({}): as if none was",
                     Said(status)));
  }
  for (auto& [name, facts] : models_) {
    if (!facts.device.empty()) continue;
    if (const absl::Status status = Load(facts).status(); !status.ok()) {
      tell(fmt::format("model {} cannot be used: {}", name, Said(status)));
    }
  }
  // The same for all kinds, and said once.
  bool no_library = false;
  const auto failed = [&](const absl::Status& status, const std::string& what) {
    if (!absl::IsUnimplemented(status)) return tell(fmt::format("{}: {}", what, Said(status)));
    if (!std::exchange(no_library, true)) {
      tell(fmt::format("no model can be used, and the rules choose: {}", Said(status)));
    }
  };
  for (const ModelDevice& device : options_.devices) {
    const Asked& asked = asked_[IndexOf(device.kind)];
    const absl::StatusOr<std::shared_ptr<const Model>> used = ModelFor(asked.used, device);
    if (used.ok()) {
      selector_.Use(device.kind, *used);
    } else {
      failed(used.status(), fmt::format("for {} the rules choose", Name(device.kind)));
    }
    if (asked.watched.empty()) continue;
    const absl::StatusOr<std::shared_ptr<const Model>> watched = LoadNamed(asked.watched, device);
    if (watched.ok()) {
      selector_.Watch(device.kind, *watched);
    } else {
      failed(watched.status(), fmt::format("for {} no model is watched", Name(device.kind)));
    }
  }
}

/// Puts right what a change left half done that was under way when the process ended.
void ModelStore::FinishChanges() {
  if (options_.own.empty()) return;
  const absl::StatusOr<std::vector<std::string>> names = files_.List(options_.own);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = InFolder(options_.own, name);
    if (name.starts_with(kNew)) RemoveAll(path);
    if (!name.starts_with(kOld)) continue;
    const std::string of = name.substr(kOld.size());
    if (std::ranges::find(*names, of) != names->end()) {
      RemoveAll(path);
    } else {
      // The only copy: if that fails, the next start tries again.
      files_.Rename(path, InFolder(options_.own, of)).IgnoreError();
    }
  }
}

void ModelStore::ReadManifest(const std::string& directory, bool own) {
  const std::string name = std::filesystem::path(directory).filename();
  models_[name] = FactsOf(
      name, own, ReadFile(files_, InFolder(directory, kManifest), kMostManifestBytes).value_or(""));
  unread_.insert(name);
}

absl::StatusOr<std::shared_ptr<const Model>> ModelStore::Load(ModelFacts& facts) const {
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(DirectoryOf(facts));
  if (model.ok() && (*model)->name() != facts.name) {
    model = absl::InvalidArgumentError(
        fmt::format("its manifest is of a model named {}", (*model)->name()));
  }
  facts.problem = Said(model.status());
  unread_.erase(facts.name);
  return model;
}

void ModelStore::ReadFolder(const std::string& folder, bool own, const Tell& tell) {
  if (folder.empty()) return;
  const absl::StatusOr<std::vector<std::string>> names = files_.List(folder);
  if (!names.ok()) return;  // nothing was put there yet
  for (const std::string& name : *names) {
    const std::string directory = InFolder(folder, name);
    std::error_code ignored;
    if (!IsModelName(name) || !std::filesystem::is_directory(directory, ignored)) continue;
    // One's own comes before an installed one of its name.
    const bool hides = models_.contains(name);
    ReadManifest(directory, own);
    if (hides) {
      tell(
          fmt::format("model {} of the data directory hides the installed one of its name until "
                      "it is removed",
                      name));
    }
  }
}

absl::Status ModelStore::ReadAsked() {
  if (options_.own.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> text =
      ReadFile(files_, InFolder(options_.own, kActive), kMostManifestBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  AskedOfKinds asked;
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  try {
    if (json.at("format").get<int>() != kFormat) {
      return absl::FailedPreconditionError(fmt::format("{} is of another format", kActive));
    }
    for (const DeviceKind kind : kDeviceKinds) {
      const Json& of = json.at(std::string(Name(kind)));
      asked[IndexOf(kind)] = {of.at("used").get<std::string>(), of.at("watched").get<std::string>(),
                              of.at("history").get<std::vector<std::string>>()};
    }
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError(fmt::format("{} is damaged", kActive));
  }
  asked_ = std::move(asked);
  return absl::OkStatus();
}

absl::Status ModelStore::WriteAsked(const AskedOfKinds& asked) {
  if (options_.own.empty()) return absl::OkStatus();
  Json json = {{"format", kFormat}};
  for (const DeviceKind kind : kDeviceKinds) {
    const Asked& of = asked[IndexOf(kind)];
    json[std::string(Name(kind))] = {
        {"used", of.used}, {"watched", of.watched}, {"history", of.history}};
  }
  absl::Status status = files_.CreateDirectory(options_.own);
  const std::string path = InFolder(options_.own, kActive);
  const std::string temporary = InFolder(options_.own, fmt::format("{}{}", kNew, kActive));
  if (status.ok()) status = WriteFile(files_, temporary, json.dump(1) + "\n");
  if (status.ok()) status = files_.Rename(temporary, path);
  return status.ok() ? files_.SyncDirectory(options_.own) : status;
}

std::string ModelStore::DirectoryOf(const ModelFacts& facts) const {
  return InFolder(facts.own ? options_.own : options_.installed, facts.name);
}

const ModelDevice* ModelStore::Serving(DeviceKind kind) const {
  const auto found = std::ranges::find(options_.devices, kind, &ModelDevice::kind);
  return found == options_.devices.end() ? nullptr : &*found;
}

absl::StatusOr<DeviceKind> ModelStore::KindOf(std::optional<DeviceKind> device) const {
  if (!device.has_value()) {
    if (options_.devices.size() == 1) return options_.devices.front().kind;
    return absl::InvalidArgumentError("several kinds of devices serve: say for which, cpu or cuda");
  }
  if (Serving(*device) != nullptr) return *device;
  return absl::FailedPreconditionError(
      fmt::format("no device of kind {} serves here", Name(*device)));
}

std::vector<std::string> ModelStore::Fitting(const ModelDevice& device) const {
  std::vector<std::string> names, of_others;
  for (const auto& [name, facts] : models_) {
    if (facts.own || facts.device != Name(device.kind)) continue;
    const bool needs_avx512 = name.find(kAvx512) != std::string::npos;
    if (device.kind == DeviceKind::kCpu && needs_avx512 && !device.avx512) continue;
    (facts.device_model == device.model ? names : of_others).push_back(name);
  }
  names.insert(names.end(), of_others.begin(), of_others.end());
  return names;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelStore::LoadNamed(
    const std::string& name, const ModelDevice& device) const {
  const auto found = models_.find(name);
  if (found == models_.end()) return NoModel(name);
  absl::StatusOr<std::shared_ptr<const Model>> model = Load(found->second);
  if (!model.ok()) {
    const std::string why = fmt::format("model {} cannot be used: {}", name, Said(model.status()));
    // That the library is missing is said once for all models.
    return absl::IsUnimplemented(model.status()) ? absl::UnimplementedError(why)
                                                 : absl::FailedPreconditionError(why);
  }
  if ((*model)->device() != device.kind) {
    return absl::InvalidArgumentError(fmt::format("model {} is for {}, not for {}", name,
                                                  Name((*model)->device()), Name(device.kind)));
  }
  return model;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelStore::ModelFor(const std::string& used,
                                                                  const ModelDevice& device) const {
  if (used == kRules) return nullptr;
  if (!used.empty()) return LoadNamed(used, device);
  absl::StatusOr<std::shared_ptr<const Model>> model = nullptr;
  bool first = true;
  for (const std::string& name : Fitting(device)) {
    absl::StatusOr<std::shared_ptr<const Model>> loaded = LoadNamed(name, device);
    if (loaded.ok()) return loaded;
    // If none can be used, why not the one that fits best.
    if (std::exchange(first, false)) model = std::move(loaded);
  }
  return model;
}

ModelFacts ModelStore::WithRoles(ModelFacts facts) const {
  const std::optional<DeviceKind> kind = KindNamed(facts.device);
  if (!kind.has_value()) return facts;
  const std::shared_ptr<const Model> used = selector_.used(*kind);
  const std::shared_ptr<const Model> watched = selector_.watched(*kind);
  facts.used = used != nullptr && used->name() == facts.name;
  facts.watched = watched != nullptr && watched->name() == facts.name;
  return facts;
}

ModelFacts ModelStore::Whole(ModelFacts& facts) const {
  // What is wrong with it is in facts.problem.
  if (unread_.contains(facts.name)) Load(facts).IgnoreError();
  return WithRoles(facts);
}

std::vector<ModelFacts> ModelStore::List() const {
  const MutexLock lock(mutex_);
  std::vector<ModelFacts> list;
  for (auto& [name, facts] : models_) list.push_back(Whole(facts));
  return list;
}

absl::StatusOr<ModelFacts> ModelStore::Find(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) return NoModel(name);
  return Whole(found->second);
}

absl::Status ModelStore::WriteModel(const std::string& name, const Model::Files& files) {
  const std::string final_path = InFolder(options_.own, name);
  const std::string path = InFolder(options_.own, fmt::format("{}{}", kNew, name));
  const std::string old = InFolder(options_.own, fmt::format("{}{}", kOld, name));
  RemoveAll(path);
  const absl::StatusOr<bool> replaces = files_.Exists(final_path);
  if (!replaces.ok()) return replaces.status();
  if (*replaces) RemoveAll(old);
  absl::Status status = files_.CreateDirectory(options_.own);
  if (status.ok()) status = files_.SyncDirectory(InFolder(options_.own, ".."));
  if (status.ok()) status = files_.CreateDirectory(path);
  for (const auto& [file, contents] : files) {
    if (status.ok()) status = WriteFile(files_, InFolder(path, file), contents);
  }
  if (status.ok()) status = files_.SyncDirectory(path);
  // A directory cannot take the place of another one: FinishChanges knows what is between.
  bool moved = false, placed = false;
  if (status.ok() && *replaces) {
    status = files_.Rename(final_path, old);
    moved = status.ok();
  }
  if (status.ok()) {
    status = files_.Rename(path, final_path);
    placed = status.ok();
  }
  if (status.ok()) status = files_.SyncDirectory(options_.own);
  if (status.ok()) {
    RemoveAll(old);
    return status;
  }
  // What was there serves on, and after a restart.
  if (placed) files_.Rename(final_path, path).IgnoreError();
  if (moved) files_.Rename(old, final_path).IgnoreError();
  RemoveAll(path);
  return status;
}

absl::StatusOr<ModelFacts> ModelStore::Put(const std::string& name, const Model::Files& files,
                                           bool replace) {
  if (options_.own.empty()) {
    return absl::FailedPreconditionError(
        "the server keeps no models of its own: it was started with --in-memory or --models=off");
  }
  std::map<std::string, size_t> bytes;
  for (const auto& [file, contents] : files) bytes[file] = contents.size();
  if (absl::Status status = CheckModelFiles(bytes); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::FromFiles(files);
  if (!model.ok()) return model.status();
  if (absl::Status status = CheckOnlyNamed(files); !status.ok()) return status;
  if ((*model)->name() != name) {
    return absl::InvalidArgumentError(
        fmt::format("the model is named {} in its manifest, not {}", (*model)->name(), name));
  }
  if (name == kRules || name == kNoModel || name == kActive) {
    return absl::InvalidArgumentError(fmt::format("no model can be named {}", name));
  }
  const MutexLock lock(mutex_);
  const auto there = models_.find(name);
  if (there != models_.end() && !there->second.own) {
    return absl::AlreadyExistsError(fmt::format(
        "a model named {} is installed with the server: give this one another name", name));
  }
  if (there != models_.end() && !replace) {
    return absl::AlreadyExistsError(fmt::format("there is a model named {} already", name));
  }
  const auto own = static_cast<size_t>(
      std::ranges::count_if(models_, [](const auto& entry) { return entry.second.own; }));
  if (there == models_.end() && own >= kMostModels) {
    return absl::ResourceExhaustedError(
        fmt::format("the server keeps {} models at most: remove one", kMostModels));
  }
  const DeviceKind kind = (*model)->device();
  if (there != models_.end()) {
    const ModelFacts now = WithRoles(there->second);
    if ((now.used || now.watched) && now.device != Name(kind)) {
      return absl::FailedPreconditionError(
          fmt::format("the model {} that is used or watched is for {}, this one for {}", name,
                      now.device, Name(kind)));
    }
  }
  if (absl::Status status = WriteModel(name, files); !status.ok()) return status;
  const Asked& asked = asked_[IndexOf(kind)];
  ModelFacts facts = FactsOf(name, /*own=*/true, files.at(std::string(kManifest)));
  models_[name] = facts;
  unread_.erase(name);
  // What is asked for by its name is this one from now on.
  if (Serving(kind) != nullptr && asked.used == name) selector_.Use(kind, *model);
  if (Serving(kind) != nullptr && asked.watched == name) selector_.Watch(kind, *model);
  return WithRoles(std::move(facts));
}

absl::StatusOr<DeviceKind> ModelStore::Activate(const std::string& name,
                                                std::optional<DeviceKind> device, ModelRole role) {
  const MutexLock lock(mutex_);
  const bool off = name == (role == ModelRole::kUsed ? kRules : kNoModel);
  if (!off) {
    const auto found = models_.find(name);
    if (found == models_.end()) return NoModel(name);
    if (!device.has_value()) device = KindNamed(found->second.device);
  }
  const absl::StatusOr<DeviceKind> kind = KindOf(device);
  if (!kind.ok()) return kind;
  std::shared_ptr<const Model> model;
  if (!off) {
    absl::StatusOr<std::shared_ptr<const Model>> loaded = LoadNamed(name, *Serving(*kind));
    if (absl::IsUnimplemented(loaded.status())) {
      return absl::FailedPreconditionError(loaded.status().message());
    }
    if (!loaded.ok()) return loaded.status();
    model = *std::move(loaded);
  }
  AskedOfKinds asked = asked_;
  Asked& of = asked[IndexOf(*kind)];
  if (role == ModelRole::kUsed) {
    if (of.used != name) of.history.push_back(std::exchange(of.used, name));
    if (of.history.size() > kMostHistory) of.history.erase(of.history.begin());
    if (of.watched == name) of.watched.clear();
  } else {
    const std::shared_ptr<const Model> used = selector_.used(*kind);
    if (!off && used != nullptr && used->name() == name) {
      return absl::FailedPreconditionError(
          fmt::format("model {} is used: what it chooses is counted as it is", name));
    }
    of.watched = off ? "" : name;
  }
  if (absl::Status status = WriteAsked(asked); !status.ok()) return status;
  asked_ = std::move(asked);
  if (role == ModelRole::kUsed) {
    selector_.Use(*kind, std::move(model));
    if (asked_[IndexOf(*kind)].watched.empty()) selector_.Watch(*kind, nullptr);
  } else {
    selector_.Watch(*kind, std::move(model));
  }
  return kind;
}

absl::StatusOr<std::string> ModelStore::Rollback(std::optional<DeviceKind> device) {
  const MutexLock lock(mutex_);
  const absl::StatusOr<DeviceKind> kind = KindOf(device);
  if (!kind.ok()) return kind.status();
  AskedOfKinds asked = asked_;
  Asked& of = asked[IndexOf(*kind)];
  absl::StatusOr<std::shared_ptr<const Model>> model = absl::FailedPreconditionError(
      fmt::format("nothing was used for {} before what is used now", Name(*kind)));
  // One that cannot be used any more is passed over.
  while (!model.ok() && !of.history.empty()) {
    of.used = std::move(of.history.back());
    of.history.pop_back();
    model = ModelFor(of.used, *Serving(*kind));
  }
  if (!model.ok()) return absl::FailedPreconditionError(Said(model.status()));
  std::string chooses = *model == nullptr ? std::string(kRules) : (*model)->name();
  if (of.watched == chooses) of.watched.clear();
  if (absl::Status status = WriteAsked(asked); !status.ok()) return status;
  asked_ = std::move(asked);
  selector_.Use(*kind, *std::move(model));
  if (asked_[IndexOf(*kind)].watched.empty()) selector_.Watch(*kind, nullptr);
  return chooses;
}

absl::Status ModelStore::Remove(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) return NoModel(name);
  if (!found->second.own) {
    return absl::FailedPreconditionError(
        fmt::format("model {} is installed with the server, whose package removes it", name));
  }
  AskedOfKinds asked = asked_;
  for (Asked& of : asked) {
    if (of.used == name || of.watched == name) {
      return absl::FailedPreconditionError(
          fmt::format("model {} is {}: activate or watch another one first", name,
                      of.used == name ? "used" : "watched"));
    }
    std::erase(of.history, name);
  }
  if (absl::Status status = WriteAsked(asked); !status.ok()) return status;
  const std::string old = InFolder(options_.own, fmt::format("{}{}", kNew, name));
  RemoveAll(old);
  absl::Status status = files_.Rename(DirectoryOf(found->second), old);
  if (status.ok()) status = files_.SyncDirectory(options_.own);
  if (!status.ok()) return status;
  RemoveAll(old);
  asked_ = std::move(asked);
  models_.erase(found);
  unread_.erase(name);
  // An installed one of its name that it hid is to be seen again.
  const std::string installed = InFolder(options_.installed, name);
  std::error_code ignored;
  if (!options_.installed.empty() && std::filesystem::is_directory(installed, ignored)) {
    ReadManifest(installed, /*own=*/false);
  }
  return absl::OkStatus();
}

}  // namespace sparsed::engine
