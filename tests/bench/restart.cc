// What a start costs with many small matrices on the disk, and a request of a signature without a
// decision among them: one line of JSON.
//
//   bench_restart [--matrices=4000] [--measurements=100000] [--directory=DIR]
//
//   open_seconds        catalog opened and entered, measurements restored: requests are served
//   restored_seconds    of these, the measurements
//   ready_seconds       from the beginning until every pattern is READY
//   request_trial_us    what a signature's first request pays for asking for a trial; by how many
//                       matrices there are it must not grow
//
// DIR (a new one below the temporary directory) is filled first, which takes longer than all else.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/planning/candidates.h"
#include "engine/preparation/pattern_job.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 20;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

template <typename T>
Array MakeArray(std::string_view name, const std::vector<T>& elements) {
  Array array =
      *AllocateArray(HeapMemory(), name, ElementTypeOf<T>(), static_cast<int64_t>(elements.size()));
  std::memcpy(array.buffer.mutable_data(), elements.data(), elements.size() * sizeof(T));
  return array;
}

/// A diagonal, with a name and a pattern of its own.
NewMatrix Diagonal(int64_t number) {
  NewMatrix m;
  m.name = "m" + std::to_string(number);
  m.pattern_hash = "pattern" + std::to_string(number);
  m.rows = m.cols = m.nnz = kRows;
  std::vector<int64_t> row_offsets(kRows + 1);
  std::vector<int32_t> column_indices(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    row_offsets[row + 1] = row + 1;
    column_indices[row] = static_cast<int32_t>(row);
  }
  m.row_offsets = MakeArray("row_offsets", row_offsets);
  m.column_indices = MakeArray("column_indices", column_indices);
  m.values = MakeArray("values", std::vector<float>(kRows, 1));
  return m;
}

ProblemSignature Signature(int64_t k) {
  return SignatureOf({Operation::kSpmm, false, ElementType::kF32, k, DeviceKind::kCpu});
}

/// A store as a server leaves it that has prepared every matrix.
absl::Status Fill(const std::string& directory, int64_t matrices, int64_t measurements) {
  absl::StatusOr<std::unique_ptr<Store>> store = OpenStore(PosixFileSystem(), directory);
  if (!store.ok()) return store.status();
  const Layout csr =
      MakeCsrLayout(kRows, kRows, *Diagonal(0).row_offsets, *Diagonal(0).column_indices);
  const std::string kernel(KernelsFor(ProblemOf(Signature(128)), csr).front());
  Features features;
  std::vector<PlanRecord> plans;
  std::vector<MeasurementRecord> measured;
  for (int64_t i = 0; i < matrices; ++i) {
    const NewMatrix m = Diagonal(i);
    absl::Status status = (*store)->PutMatrix(m).status();
    if (status.ok()) status = (*store)->PutFeatures(m.pattern_hash, features);
    if (status.ok()) status = (*store)->PutPreparation(m.pattern_hash, {"READY", "", 1});
    if (!status.ok()) return status;
    plans.push_back({m.pattern_hash, ToString(Signature(128)), "csr", kernel, 1, 1, "plain CSR"});
    const int64_t share = measurements * (i + 1) / matrices - measurements * i / matrices;
    for (int64_t j = 0; j < share; ++j) {
      measured.push_back({m.pattern_hash, ToString(Signature(128)), "recipe" + std::to_string(j),
                          kernel, "cpu", 128, 1, 9, 77, 1, 1, 0});
    }
  }
  absl::Status status = (*store)->PutPlans(plans);
  return status.ok() ? (*store)->PutMeasurements(measured) : status;
}

EngineOptions OptionsFor(const std::string& directory) {
  EngineOptions options;
  options.data_dir = directory;
  options.host_memory_bytes = int64_t{4} << 30;
  options.preparation_memory_bytes = int64_t{1} << 30;
  options.scrub_interval_seconds = 0;
  return options;
}

/// Seconds in which alone the measurements of the store are given back to their patterns.
absl::StatusOr<double> RestoreMeasured(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<Store>> store = OpenStore(PosixFileSystem(), directory);
  if (!store.ok()) return store.status();
  absl::StatusOr<StoreContents> contents = (*store)->Load();
  if (!contents.ok()) return contents.status();
  Budget budget(int64_t{1} << 30, int64_t{1} << 30);
  Catalog catalog(**store, budget);
  if (absl::Status status = catalog.Restore(*contents); !status.ok()) return status;
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const MatrixLease& matrix : catalog.All()) {
    patterns[matrix->pattern()->hash()] = matrix->pattern();
  }
  const Clock::time_point begin = Clock::now();
  const std::string any;
  RestoreMeasurements(*contents, patterns,
                      [&any](DeviceKind) -> const std::string& { return any; });
  return SecondsSince(begin);
}

absl::Status Measure(const std::string& directory, nlohmann::ordered_json& line) {
  const absl::StatusOr<double> restored = RestoreMeasured(directory);
  if (!restored.ok()) return restored.status();
  Observer observer;
  const Clock::time_point begin = Clock::now();
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(OptionsFor(directory), observer);
  if (!engine.ok()) return engine.status();
  line["open_seconds"] = SecondsSince(begin);
  line["restored_seconds"] = *restored;
  while ((*engine)->preparation().pending() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  line["ready_seconds"] = SecondsSince(begin);
  const std::vector<MatrixLease> matrices = (*engine)->catalog().All();
  line["ready"] = std::ranges::count_if(matrices, [](const MatrixLease& matrix) {
    return matrix->pattern()->progress().status().state == PreparationState::kReady;
  });
  constexpr int64_t kRequests = 1000;
  const Problem problem = ProblemOf(Signature(512));
  const Clock::time_point requests_begin = Clock::now();
  for (int64_t i = 0; i < kRequests; ++i) {
    (*engine)->preparation().RequestTrial(matrices[i % matrices.size()], problem);
  }
  line["request_trial_us"] = 1e6 * SecondsSince(requests_begin) / kRequests;
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::engine

int main(int argc, char** argv) {
  CLI::App app("What a start costs with many small matrices on the disk.");
  int64_t matrices = 4000, measurements = 100'000;
  std::string directory;
  app.add_option("--matrices", matrices)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--measurements", measurements)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--directory", directory, "Where to make the store");
  CLI11_PARSE(app, argc, argv);
  if (directory.empty()) directory = std::filesystem::temp_directory_path();
  directory += "/sparsed-restart-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    std::cerr << "cannot make " << directory << "\n";
    return 1;
  }
  nlohmann::ordered_json line = {{"matrices", matrices}, {"measurements", measurements}};
  absl::Status status = sparsed::engine::Fill(directory, matrices, measurements);
  if (status.ok()) status = sparsed::engine::Measure(directory, line);
  std::filesystem::remove_all(directory);
  if (!status.ok()) {
    std::cerr << status.message() << "\n";
    return 1;
  }
  std::cout << line.dump() << std::endl;
}
