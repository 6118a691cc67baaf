// What decisions take for the device's: rates and times that were measured on it (calibration), or
// what is built in where they were not. Kept in the data directory, by device model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"
#include "kernels/device_id.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// In bytes, operations and seconds; 0: not known. Of a CPU those of one worker slot's team.
struct DeviceConstants {
  double read_bytes_per_second = 0;    ///< from its memory
  double copy_bytes_per_second = 0;    ///< within its memory, read and written both counted
  double cache_bytes_per_second = 0;   ///< read from its last level cache
  double shared_bytes_per_second = 0;  ///< read from shared memory, by all multiprocessors
  double atomic_adds_per_second = 0;   ///< of f32 to its last level cache, by neighbours
  double f32_flops_per_second = 0;     ///< multiplications and additions in registers
  double f64_flops_per_second = 0;
  double multiplications_per_second = 0;    ///< of an SpMM of scattered columns, f32, by plain CSR
  double launch_seconds = 0;                ///< a kernel that does nothing, and waiting for it
  double queued_launch_seconds = 0;         ///< one more of them in a queue
  double to_device_bytes_per_second = 0;    ///< from any memory of the host's
  double from_device_bytes_per_second = 0;  ///< to any memory of the host's
  double link_bytes_per_second = 0;         ///< from pinned memory
};

/// One of them, by name.
struct ConstantField {
  std::string_view name;
  std::string_view unit;  ///< "B/s", "op/s", "s"
  double DeviceConstants::*value;
  double least, most;   ///< what is measured is within
  bool of_cpu, of_gpu;  ///< measured there
};
std::span<const ConstantField> ConstantFields();

/// What is built in: as an H100, or an x86-64 processor of 2025, has them; 0: no decision asks.
DeviceConstants DefaultConstants(DeviceKind kind, int threads);

/// `measured`, and of what was not measured what is built in.
DeviceConstants WithDefaults(const DeviceConstants& measured, DeviceKind kind, int threads);

/// One device's, as it was measured.
struct Calibration {
  std::string model;  ///< Backend::model()
  int64_t measured_unix_ns = 0;
  double seconds = 0;  ///< that it took
  DeviceConstants constants;
};

/// OK, or which constant is none: INVALID_ARGUMENT.
absl::Status CheckConstants(const DeviceConstants& constants);

/// The calibrations of a data directory, the newest of each model. Of a file that is not there:
/// none. INVALID_ARGUMENT with a sentence for one that is damaged, or of another format.
absl::StatusOr<std::vector<Calibration>> ReadCalibrations(FileSystem& files,
                                                          const std::string& directory);
/// Keeps one, durably, in the place of that of the same model; of the others the newest
/// kMostCalibrations - 1. What cannot be read is replaced.
absl::Status KeepCalibration(FileSystem& files, const std::string& directory,
                             const Calibration& calibration);
inline constexpr size_t kMostCalibrations = 16;
inline constexpr std::string_view kCalibrationFile = "calibration.json";

}  // namespace sparsed::engine
