#include "engine/planning/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace sparsed::engine {
namespace {

using Json = nlohmann::json;
using C = DeviceConstants;

constexpr int kFormat = 1;
constexpr size_t kMostFileBytes = size_t{256} << 10;
constexpr size_t kMostModelLength = 512;

constexpr ConstantField kFields[] = {
    {"read_bytes_per_second", "B/s", &C::read_bytes_per_second, 1e8, 1e15, true, true},
    {"copy_bytes_per_second", "B/s", &C::copy_bytes_per_second, 1e8, 1e15, true, true},
    {"cache_bytes_per_second", "B/s", &C::cache_bytes_per_second, 1e8, 1e16, true, true},
    {"shared_bytes_per_second", "B/s", &C::shared_bytes_per_second, 1e9, 1e17, false, true},
    {"atomic_adds_per_second", "op/s", &C::atomic_adds_per_second, 1e7, 1e15, false, true},
    {"f32_flops_per_second", "op/s", &C::f32_flops_per_second, 1e8, 1e17, true, true},
    {"f64_flops_per_second", "op/s", &C::f64_flops_per_second, 1e8, 1e17, true, true},
    {"multiplications_per_second", "op/s", &C::multiplications_per_second, 1e6, 1e15, true, true},
    {"launch_seconds", "s", &C::launch_seconds, 1e-8, 1e-1, true, true},
    {"queued_launch_seconds", "s", &C::queued_launch_seconds, 1e-9, 1e-1, false, true},
    {"to_device_bytes_per_second", "B/s", &C::to_device_bytes_per_second, 1e7, 1e13, false, true},
    {"from_device_bytes_per_second", "B/s", &C::from_device_bytes_per_second, 1e7, 1e13, false,
     true},
    {"link_bytes_per_second", "B/s", &C::link_bytes_per_second, 1e7, 1e13, false, true},
};

std::string PathIn(const std::string& directory) {
  return fmt::format("{}/{}", directory, kCalibrationFile);
}

absl::StatusOr<std::string> ReadText(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, OpenMode::kRead);
  if (!file.ok()) return file.status();
  const absl::StatusOr<int64_t> size = (*file)->Size();
  if (!size.ok()) return size.status();
  if (*size > static_cast<int64_t>(kMostFileBytes)) {
    return absl::InvalidArgumentError(
        fmt::format("{} has more than {} bytes", path, kMostFileBytes));
  }
  std::string text(static_cast<size_t>(*size), '\0');
  const absl::StatusOr<size_t> read = (*file)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return read.status();
  text.resize(*read);
  return text;
}

absl::Status WriteText(FileSystem& files, const std::string& directory, std::string_view text) {
  const std::string path = PathIn(directory), next = fmt::format("{}.new", path);
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(next, OpenMode::kCreate);
  if (!file.ok()) return file.status();
  absl::Status status = (*file)->Truncate(0);
  if (status.ok()) status = (*file)->Write(0, std::as_bytes(std::span(text)));
  if (status.ok()) status = (*file)->Sync();
  file->reset();
  if (status.ok()) status = files.Rename(next, path);
  return status.ok() ? files.SyncDirectory(directory) : status;
}

/// Throws what Json does.
absl::StatusOr<Calibration> FromJson(const Json& json) {
  Calibration calibration;
  calibration.model = json.at("model").get<std::string>();
  calibration.measured_unix_ns = json.at("measured_unix_ns").get<int64_t>();
  calibration.seconds = json.at("seconds").get<double>();
  if (calibration.model.empty() || calibration.model.size() > kMostModelLength ||
      !std::isfinite(calibration.seconds)) {
    return absl::InvalidArgumentError("a device in it is none");
  }
  const Json& constants = json.at("constants");
  for (const ConstantField& field : kFields) {
    const std::string name(field.name);
    if (constants.contains(name)) {
      calibration.constants.*field.value = constants.at(name).get<double>();
    }
  }
  absl::Status status = CheckConstants(calibration.constants);
  if (!status.ok()) return status;
  return calibration;
}

Json ToJson(const Calibration& calibration) {
  Json constants = Json::object();
  for (const ConstantField& field : kFields) {
    const double value = calibration.constants.*field.value;
    if (value > 0) constants[std::string(field.name)] = value;
  }
  return {{"model", calibration.model},
          {"measured_unix_ns", calibration.measured_unix_ns},
          {"seconds", calibration.seconds},
          {"constants", std::move(constants)}};
}

}  // namespace

std::span<const ConstantField> ConstantFields() { return kFields; }

DeviceConstants DefaultConstants(DeviceKind kind, int threads) {
  DeviceConstants constants;
  if (kind == DeviceKind::kCpu) {
    constants.multiplications_per_second = 3.7e9 * std::max(threads, 1);
    return constants;
  }
  constants.cache_bytes_per_second = 6.4e12;
  constants.shared_bytes_per_second = 33e12;
  constants.multiplications_per_second = 7.2e11;
  constants.launch_seconds = 10e-6;
  constants.to_device_bytes_per_second = 20e9;
  constants.from_device_bytes_per_second = 20e9;
  constants.link_bytes_per_second = 42e9;
  return constants;
}

DeviceConstants WithDefaults(const DeviceConstants& measured, DeviceKind kind, int threads) {
  DeviceConstants constants = DefaultConstants(kind, threads);
  for (const ConstantField& field : kFields) {
    if (measured.*field.value > 0) constants.*field.value = measured.*field.value;
  }
  return constants;
}

absl::Status CheckConstants(const DeviceConstants& constants) {
  for (const ConstantField& field : kFields) {
    const double value = constants.*field.value;
    // NaN is none either.
    if (value == 0 || (value >= field.least && value <= field.most)) continue;
    return absl::InvalidArgumentError(fmt::format("{} is {:.3g} {}, expected {:.0e} to {:.0e}",
                                                  field.name, value, field.unit, field.least,
                                                  field.most));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Calibration>> ReadCalibrations(FileSystem& files,
                                                          const std::string& directory) {
  const std::string path = PathIn(directory);
  const absl::StatusOr<std::string> text = ReadText(files, path);
  if (absl::IsNotFound(text.status())) return std::vector<Calibration>();
  if (!text.ok()) return text.status();
  const auto damaged = [&path](std::string_view why) {
    return absl::InvalidArgumentError(fmt::format("{} is damaged: {}", path, why));
  };
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return damaged("it is no JSON");
  std::vector<Calibration> calibrations;
  try {
    if (const Json& format = json.at("format"); format != kFormat) {
      return absl::InvalidArgumentError(
          format.is_number_integer()
              ? fmt::format("{} is of format {}, not {}", path, format.get<int64_t>(), kFormat)
              : fmt::format("{} does not say of which format it is", path));
    }
    for (const Json& entry : json.at("calibrations")) {
      absl::StatusOr<Calibration> calibration = FromJson(entry);
      if (!calibration.ok()) return damaged(std::string(calibration.status().message()));
      calibrations.push_back(*std::move(calibration));
    }
  } catch (const Json::exception& error) {
    return damaged(error.what());
  }
  if (calibrations.size() > kMostCalibrations) return damaged("it has too many devices");
  return calibrations;
}

absl::Status KeepCalibration(FileSystem& files, const std::string& directory,
                             const Calibration& calibration) {
  std::vector<Calibration> all = {calibration};
  absl::StatusOr<std::vector<Calibration>> kept = ReadCalibrations(files, directory);
  if (kept.ok()) {
    std::ranges::sort(*kept, std::greater<>(), &Calibration::measured_unix_ns);
    for (Calibration& other : *kept) {
      if (all.size() == kMostCalibrations) break;
      if (other.model == calibration.model) continue;
      all.push_back(std::move(other));
    }
  }
  Json json = {{"format", kFormat}, {"calibrations", Json::array()}};
  for (const Calibration& one : all) json["calibrations"].push_back(ToJson(one));
  // A processor's name is whatever its hypervisor says.
  return WriteText(files, directory,
                   fmt::format("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace)));
}

}  // namespace sparsed::engine
