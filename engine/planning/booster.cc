#include "engine/planning/booster.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sparsed::engine {
namespace {

constexpr char kLibrary[] = "libxgboost.so.0";
/// Of which the interface below is; a later major one may have another.
constexpr int kMajor = 1, kLeastMinor = 6;

/// The functions of its C interface (xgboost/c_api.h) that are used. All are there or none. Those
/// that fail return -1.
struct Library {
  void (*version)(int* major, int* minor, int* patch);
  const char* (*last_error)();
  int (*create)(const void* const* matrices, uint64_t count, void** booster);
  int (*free)(void* booster);
  int (*load)(void* booster, const void* bytes, uint64_t length);
  int (*set)(void* booster, const char* name, const char* value);
  int (*feature_count)(void* booster, uint64_t* count);
  int (*predict)(void* booster, const char* array, const char* config, void* matrix,
                 const uint64_t** shape, uint64_t* dimensions, const float** result);
};

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<Library> Open() {
  void* const opened = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    return absl::UnimplementedError(
        fmt::format("{} cannot be opened (Debian: libxgboost0): {}", kLibrary, dlerror()));
  }
  Library library{};
  if (!Find(opened, "XGBoostVersion", library.version) ||
      !Find(opened, "XGBGetLastError", library.last_error) ||
      !Find(opened, "XGBoosterCreate", library.create) ||
      !Find(opened, "XGBoosterFree", library.free) ||
      !Find(opened, "XGBoosterLoadModelFromBuffer", library.load) ||
      !Find(opened, "XGBoosterSetParam", library.set) ||
      !Find(opened, "XGBoosterGetNumFeature", library.feature_count) ||
      !Find(opened, "XGBoosterPredictFromDense", library.predict)) {
    return absl::UnimplementedError(
        fmt::format("{} is older than {}.{}", kLibrary, kMajor, kLeastMinor));
  }
  int major = 0, minor = 0, patch = 0;
  library.version(&major, &minor, &patch);
  if (major != kMajor || minor < kLeastMinor) {
    return absl::UnimplementedError(fmt::format("{} is version {}.{}.{}, not {}.{} or a later {}",
                                                kLibrary, major, minor, patch, kMajor, kLeastMinor,
                                                kMajor));
  }
  return library;
}

/// Opened once; never closed, as its threads may outlive any use.
const absl::StatusOr<Library>& TheLibrary() {
  static const absl::StatusOr<Library> library = Open();
  return library;
}

/// While it lives, parallel regions that this thread begins have a team of one: what the library
/// loads is too little to wait for others.
class OneThread {
 public:
  OneThread() : team_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(team_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int team_;
};

/// The last error's first line: the rest is a stack trace.
std::string LastError() {
  const std::string_view text = TheLibrary()->last_error();
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Booster>> Booster::Load(std::string_view bytes, int inputs,
                                                       int outputs) {
  const absl::StatusOr<Library>& library = TheLibrary();
  if (!library.ok()) return library.status();
  const OneThread alone;
  void* handle = nullptr;
  if (library->create(nullptr, 0, &handle) != 0) return absl::InternalError(LastError());
  std::unique_ptr<Booster> booster(new Booster(handle, inputs, outputs));
  if (library->load(handle, bytes.data(), bytes.size()) != 0) {
    return absl::InvalidArgumentError(fmt::format("no trees of XGBoost: {}", LastError()));
  }
  // One row is not worth a team of threads.
  if (library->set(handle, "nthread", "1") != 0) return absl::InternalError(LastError());
  uint64_t count = 0;
  if (library->feature_count(handle, &count) != 0) return absl::InternalError(LastError());
  if (count != static_cast<uint64_t>(inputs)) {
    return absl::InvalidArgumentError(
        fmt::format("trees of {} inputs, where {} are said", count, inputs));
  }
  // How many outputs they have only a prediction tells.
  const absl::StatusOr<std::vector<double>> tried =
      booster->Predict(std::vector<float>(static_cast<size_t>(inputs)), DensityMap());
  if (!tried.ok()) return absl::InvalidArgumentError(std::string(tried.status().message()));
  return booster;
}

Booster::~Booster() { TheLibrary()->free(handle_); }

absl::StatusOr<std::vector<double>> Booster::Predict(std::span<const float> row,
                                                     const DensityMap& /*map*/) const {
  if (row.size() != static_cast<size_t>(inputs_)) {
    return absl::InternalError(fmt::format("{} inputs, not {}", row.size(), inputs_));
  }
  const std::string array =
      fmt::format(R"({{"data":[{},true],"shape":[1,{}],"typestr":"<f4","version":3}})",
                  reinterpret_cast<uintptr_t>(row.data()), row.size());
  // type 1: the sums, not what a classifier would make of them.
  constexpr char kConfig[] = R"({"type":1,"training":false,"iteration_begin":0,"iteration_end":0,)"
                             R"("strict_shape":true,"missing":NaN,"cache_id":0})";
  const uint64_t* shape = nullptr;
  uint64_t dimensions = 0;
  const float* result = nullptr;
  const OneThread alone;
  const MutexLock lock(mutex_);
  if (TheLibrary()->predict(handle_, array.c_str(), kConfig, nullptr, &shape, &dimensions,
                            &result) != 0) {
    return absl::InternalError(LastError());
  }
  uint64_t count = 1;
  for (uint64_t i = 0; i < dimensions; ++i) count *= shape[i];
  if (count != static_cast<uint64_t>(outputs_)) {
    return absl::InternalError(
        fmt::format("trees of {} outputs, where {} are said", count, outputs_));
  }
  std::vector<double> sums(result, result + count);
  if (!std::ranges::all_of(sums, [](double sum) { return std::isfinite(sum); })) {
    return absl::InternalError("trees whose sums are no numbers");
  }
  return sums;
}

}  // namespace sparsed::engine
