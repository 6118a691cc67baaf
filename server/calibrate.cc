#include "server/calibrate.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <ostream>
#include <string>

#include "engine/engine.h"
#include "engine/store/data_directory.h"
#include "server/engine_options.h"

namespace sparsed::server {
namespace {

/// A machine that is never idle for so long is none to measure.
constexpr std::chrono::seconds kPatience{60};

/// `threads`: of a CPU's worker slot.
void Print(const engine::Calibration& calibration, DeviceKind kind, int threads,
           std::ostream& out) {
  out << fmt::format("{}: {}, in {:.1f} s\n", Name(kind), calibration.model, calibration.seconds);
  const engine::DeviceConstants built_in = engine::DefaultConstants(kind, threads);
  for (const engine::ConstantField& field : engine::ConstantFields()) {
    const double value = calibration.constants.*field.value;
    if (value == 0) continue;
    const double before = built_in.*field.value;
    out << fmt::format("  {:<30} {:>10.4g} {:<4}{}\n", field.name, value, field.unit,
                       before > 0 ? fmt::format("  built in: {:.4g}", before) : std::string());
  }
}

}  // namespace

int CalibrateDevices(const Config& config, std::ostream& out, std::ostream& err) {
  engine::EngineOptions options = ToEngineOptions(config);
  std::unique_ptr<engine::DataDirectory> directory;
  if (!options.data_dir.empty()) {
    auto locked = engine::DataDirectory::Open(engine::PosixFileSystem(), options.data_dir);
    if (!locked.ok()) {
      err << fmt::format("sparsed: {}; while a server uses it: sparsectl calibrate\n",
                         std::string(locked.status().message()));
      return 1;
    }
    directory = *std::move(locked);
  }
  // Nothing of what is stored is read, and nothing is prepared.
  options.data_dir.clear();
  options.models = false;
  engine::Observer observer;
  const auto engine = engine::Engine::Open(options, observer);
  if (!engine.ok()) {
    err << fmt::format("sparsed: {}\n", std::string(engine.status().message()));
    return 1;
  }
  int exit_code = 0;
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (kind == DeviceKind::kCuda && (*engine)->gpus().empty()) continue;
    const auto calibration =
        (*engine)->Calibrate(kind, nullptr, std::chrono::steady_clock::now() + kPatience);
    absl::Status status = calibration.status();
    if (status.ok() && directory != nullptr) {
      status = engine::KeepCalibration(engine::PosixFileSystem(), directory->path(), *calibration);
    }
    if (!status.ok()) {
      err << fmt::format("sparsed: {} was not calibrated: {}\n", Name(kind),
                         std::string(status.message()));
      exit_code = 1;
      continue;
    }
    const bool cpu = kind == DeviceKind::kCpu;
    Print(*calibration, kind, cpu ? options.execution.threads_per_slot : 0, out);
  }
  return exit_code;
}

}  // namespace sparsed::server
