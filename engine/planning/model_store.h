// The models that a server has, installed with it or its own, and which of them choose what is
// tried, or are watched, on each kind of device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/planning/model.h"
#include "engine/planning/selector.h"
#include "engine/store/file_system.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// In the place of a model's name: the rules choose; nothing is watched.
inline constexpr std::string_view kRules = "rules", kNoModel = "none";
/// Of all files of a model, in bytes.
inline constexpr size_t kMostModelBytes = size_t{64} << 20;
/// Of them the manifest.
inline constexpr size_t kMostManifestBytes = size_t{512} << 10;
/// A server's own ones.
inline constexpr size_t kMostModels = 32;

/// INVALID_ARGUMENT unless a model may have files of these names and bytes.
absl::Status CheckModelFiles(const std::map<std::string, size_t>& bytes);

/// What chooses, or is watched.
enum class ModelRole : uint8_t { kUsed, kWatched };

/// A kind of devices that serves.
struct ModelDevice {
  DeviceKind kind = DeviceKind::kCpu;
  std::string model;    ///< the card's or the processor's name
  bool avx512 = false;  ///< a CPU that has it
};

struct ModelStoreOptions {
  std::string installed;  ///< a folder of model directories that is only read; empty: none
  std::string own;        ///< likewise, which Put writes to; empty: nothing is kept
  std::vector<ModelDevice> devices;
};

/// What a manifest says, for people, and what becomes of it here.
struct ModelFacts {
  std::string name;
  bool own = false;    ///< else installed
  std::string device;  ///< "cpu" or "cuda"; empty: the manifest does not say
  std::string device_model, created;
  int64_t patterns = 0;
  /// In cross-validation, of the best speed, its first choice had: the geometric mean; 0: not said.
  double held_out_share = 0;
  std::string problem;  ///< why it cannot be used; empty: it can
  bool used = false, watched = false;
  std::string manifest;  ///< its text
};

/// Thread-safe. Statuses are sentences.
class ModelStore {
 public:
  using Tell = std::function<void(const std::string& sentence)>;

  /// Reads the manifests of what there is, and has `selector` use and watch what was activated
  /// before; where nothing was, the installed model that fits the device. Of other models more is
  /// read when somebody asks for them. `tell` is called with a sentence, now, for what
  /// cannot be used (then rules choose), and for what hides an installed one. `files` and
  /// `selector` outlive this.
  ModelStore(FileSystem& files, ModelStoreOptions options, Selector& selector, const Tell& tell);

  /// By name. The first time it reads all of those that nobody asked for before.
  std::vector<ModelFacts> List() const;
  /// NOT_FOUND.
  absl::StatusOr<ModelFacts> Find(const std::string& name) const;

  /// Keeps a model, durably, under the name that its manifest has, which `name` is to be.
  /// INVALID_ARGUMENT, FAILED_PRECONDITION and UNIMPLEMENTED as Model::FromFiles has them;
  /// FAILED_PRECONDITION if nothing is kept; ALREADY_EXISTS, unless it is one of the server's own
  /// and `replace`; RESOURCE_EXHAUSTED: there are too many, or no room on the disk.
  absl::StatusOr<ModelFacts> Put(const std::string& name, const Model::Files& files, bool replace);

  /// From now on, and after a restart. `name`: a model, or kRules (of kUsed), or kNoModel (of
  /// kWatched) for the kind of device, which may be left out where one serves. What is used is
  /// watched no more. NOT_FOUND; FAILED_PRECONDITION: it cannot be used, or its device does not
  /// serve; INVALID_ARGUMENT: it is for another kind. Returns the kind that it was done for.
  absl::StatusOr<DeviceKind> Activate(const std::string& name, std::optional<DeviceKind> device,
                                      ModelRole role);
  /// Uses again what was used before the last Activate that is not rolled back. Returns what
  /// chooses now: a model, or kRules. FAILED_PRECONDITION: nothing was used before.
  absl::StatusOr<std::string> Rollback(std::optional<DeviceKind> device);
  /// NOT_FOUND; FAILED_PRECONDITION if it is installed, used or watched. An installed one of its
  /// name that it hid takes its place.
  absl::Status Remove(const std::string& name);

 private:
  static constexpr int kKinds = 2;

  /// What was asked for, for a kind of device.
  struct Asked {
    std::string used;                  ///< a model, kRules, or empty: what fits of the installed
    std::string watched;               ///< a model, or empty
    std::vector<std::string> history;  ///< what `used` was before, the last at the end
  };
  using AskedOfKinds = std::array<Asked, kKinds>;

  static size_t IndexOf(DeviceKind kind) { return kind == DeviceKind::kCuda ? 1 : 0; }
  std::string DirectoryOf(const ModelFacts& facts) const;
  const ModelDevice* Serving(DeviceKind kind) const;
  absl::StatusOr<DeviceKind> KindOf(std::optional<DeviceKind> device) const;

  void FinishChanges();
  /// What its manifest says, under its directory's name.
  void ReadManifest(const std::string& directory, bool own) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadFolder(const std::string& folder, bool own, const Tell& tell)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadAsked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteAsked(const AskedOfKinds& asked);
  absl::Status WriteModel(const std::string& name, const Model::Files& files);
  /// The installed models for the device by name, those that were trained on such a one first.
  std::vector<std::string> Fitting(const ModelDevice& device) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// One of models_, whose `problem` is known from now on. Errors: as Model::Load,
  /// INVALID_ARGUMENT.
  absl::StatusOr<std::shared_ptr<const Model>> Load(ModelFacts& facts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What `used` comes to: null for rules.
  absl::StatusOr<std::shared_ptr<const Model>> ModelFor(const std::string& used,
                                                        const ModelDevice& device) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<const Model>> LoadNamed(const std::string& name,
                                                         const ModelDevice& device) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ModelFacts WithRoles(ModelFacts facts) const;
  /// One of models_, with its problem and roles.
  ModelFacts Whole(ModelFacts& facts) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem& files_;
  const ModelStoreOptions options_;
  Selector& selector_;
  mutable Mutex mutex_;  ///< held while the disk is read and written
  mutable std::map<std::string, ModelFacts> models_ ABSL_GUARDED_BY(mutex_);  ///< without roles
  /// Of models_, those that nobody asked for yet: whether they can be used is not known.
  mutable std::set<std::string> unread_ ABSL_GUARDED_BY(mutex_);
  AskedOfKinds asked_ ABSL_GUARDED_BY(mutex_);  ///< by IndexOf
};

}  // namespace sparsed::engine
