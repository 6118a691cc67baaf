// What is measured of devices: kept and read, damaged, of other devices, and what decisions take of
// it.
#include "engine/planning/calibration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "engine/engine.h"
#include "engine/execution/backend.h"
#include "engine/execution/calibrate.h"
#include "engine/execution/piece_run.h"
#include "engine/planning/candidates.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Calibration Of(const std::string& model, double launch_seconds, int64_t when) {
  Calibration calibration;
  calibration.model = model;
  calibration.measured_unix_ns = when;
  calibration.seconds = 0.5;
  calibration.constants.launch_seconds = launch_seconds;
  calibration.constants.read_bytes_per_second = 2.5e12;
  return calibration;
}

std::vector<Calibration> Read(const std::string& directory) {
  absl::StatusOr<std::vector<Calibration>> all = ReadCalibrations(PosixFileSystem(), directory);
  EXPECT_TRUE(all.ok()) << all.status();
  return all.ok() ? *std::move(all) : std::vector<Calibration>();
}

void Write(const std::string& directory, const std::string& text) {
  std::ofstream(fmt::format("{}/{}", directory, kCalibrationFile)) << text;
}

TEST(Calibrations, AreKeptByModel) {
  TemporaryDirectory directory;
  FileSystem& files = PosixFileSystem();
  EXPECT_THAT(Read(directory.path()), IsEmpty());
  ASSERT_TRUE(KeepCalibration(files, directory.path(), Of("H100", 5e-6, 1)).ok());
  ASSERT_TRUE(KeepCalibration(files, directory.path(), Of("EPYC, 2 threads", 1e-6, 2)).ok());
  ASSERT_TRUE(KeepCalibration(files, directory.path(), Of("EPYC, 4 threads", 2e-6, 3)).ok());
  ASSERT_TRUE(KeepCalibration(files, directory.path(), Of("H100", 6e-6, 4)).ok());
  const std::vector<Calibration> all = Read(directory.path());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].model, "H100");
  EXPECT_EQ(all[0].constants.launch_seconds, 6e-6);
  EXPECT_EQ(all[0].constants.read_bytes_per_second, 2.5e12);
  EXPECT_EQ(all[0].constants.link_bytes_per_second, 0) << "not measured";
  EXPECT_EQ(all[0].measured_unix_ns, 4);
  EXPECT_EQ(all[0].seconds, 0.5);
  EXPECT_EQ(all[1].model, "EPYC, 4 threads");
  EXPECT_EQ(all[2].model, "EPYC, 2 threads");
}

TEST(Calibrations, AreBounded) {
  TemporaryDirectory directory;
  for (int i = 0; i < 20; ++i) {
    const Calibration one = Of(fmt::format("card {}", i), 5e-6, i);
    ASSERT_TRUE(KeepCalibration(PosixFileSystem(), directory.path(), one).ok());
  }
  const std::vector<Calibration> all = Read(directory.path());
  ASSERT_EQ(all.size(), kMostCalibrations);
  EXPECT_EQ(all.front().model, "card 19");
  EXPECT_EQ(all.back().model, "card 4");
}

TEST(Calibrations, DamageIsASentenceAndIsReplaced) {
  TemporaryDirectory directory;
  const std::string entry = R"({"model":"H100","measured_unix_ns":1,"seconds":1,"constants":{)";
  const auto file = [](const std::string& entries) {
    return fmt::format(R"({{"format":1,"calibrations":[{}]}})", entries);
  };
  std::string many;
  for (int i = 0; i <= 16; ++i) many += fmt::format("{}{}}}}}", i == 0 ? "" : ",", entry);
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"", "it is no JSON"},
      {"{\"format\":1", "it is no JSON"},
      {"[]", "is damaged"},
      {R"({"format":2,"calibrations":[]})", "format 2, not 1"},
      {R"({"format":1})", "calibrations"},
      {R"({"format":"1","calibrations":[]})", "does not say of which format"},
      {fmt::format(R"({{"format":{}{}}})", std::string(100'000, '['), std::string(100'000, ']')),
       "does not say of which format"},
      {file("3"), "is damaged"},
      {file(R"({"model":"","measured_unix_ns":1,"seconds":1,"constants":{}})"),
       "a device in it is none"},
      {file(entry + R"("launch_seconds":"fast"}})"), "is damaged"},
      {file(entry + R"("launch_seconds":-1}})"), "launch_seconds is -1 s"},
      {file(entry + R"("read_bytes_per_second":1e300}})"), "read_bytes_per_second is 1e+300 B/s"},
      {file(many), "too many devices"},
      {std::string(300'000, ' '), "more than 262144 bytes"},
  };
  for (const auto& [text, why] : damaged) {
    Write(directory.path(), text);
    const absl::Status status = ReadCalibrations(PosixFileSystem(), directory.path()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << why << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("calibration.json"), HasSubstr(why)));
  }
  ASSERT_TRUE(KeepCalibration(PosixFileSystem(), directory.path(), Of("H100", 5e-6, 1)).ok());
  EXPECT_EQ(Read(directory.path()).size(), 1u);
}

TEST(Calibrations, AreKeptWhateverAProcessorIsCalled) {
  TemporaryDirectory directory;
  ASSERT_TRUE(KeepCalibration(PosixFileSystem(), directory.path(), Of("\xe9PYC", 5e-6, 1)).ok());
  EXPECT_EQ(Read(directory.path()).size(), 1u);
}

TEST(Constants, WhatWasNotMeasuredIsBuiltIn) {
  DeviceConstants measured;
  measured.launch_seconds = 3e-6;
  const DeviceConstants gpu = WithDefaults(measured, DeviceKind::kCuda, 0);
  EXPECT_EQ(gpu.launch_seconds, 3e-6);
  EXPECT_EQ(gpu.multiplications_per_second,
            DefaultConstants(DeviceKind::kCuda, 0).multiplications_per_second);
  EXPECT_EQ(DefaultConstants(DeviceKind::kCpu, 4).multiplications_per_second,
            4 * DefaultConstants(DeviceKind::kCpu, 1).multiplications_per_second);
  // What is built in is within the bounds of what is measured, too.
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    EXPECT_TRUE(CheckConstants(DefaultConstants(kind, 1)).ok());
  }
}

TEST(Constants, TriesOfABusyDeviceAreNone) {
  const absl::StatusOr<double> quiet = Agreed("reading", {95, 100, 99, 10, 98}, 0.9);
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  EXPECT_EQ(*quiet, 100) << "the best";
  const absl::Status busy = Agreed("reading", {50, 100, 51, 52, 99}, 0.9).status();
  EXPECT_TRUE(absl::IsAborted(busy)) << busy;
  EXPECT_THAT(std::string(busy.message()),
              AllOf(HasSubstr("others used the device"), HasSubstr("reading went at 100")));
}

TEST(Constants, TriesBesideOthersAreNone) {
  EXPECT_TRUE(CheckAlone("reading", {0.97, 1.02}, /*computes=*/true).ok());
  EXPECT_TRUE(CheckAlone("reading by a team", {0.6, 0.7}, /*computes=*/false).ok());
  const absl::Status starved = CheckAlone("reading", {0.5, 0.98}, true);
  EXPECT_TRUE(absl::IsAborted(starved)) << starved;
  EXPECT_THAT(std::string(starved.message()), HasSubstr("reading had 50 % of its processor"));
  for (const bool computes : {false, true}) {
    const absl::Status beside = CheckAlone("reading", {0.98, 2}, computes);
    EXPECT_TRUE(absl::IsAborted(beside)) << beside;
    EXPECT_THAT(std::string(beside.message()), HasSubstr("100 % as much again"));
  }
}

TEST(Constants, LongWorkIsWhatTakesLongOnTheDevice) {
  DeviceConstants slow = DefaultConstants(DeviceKind::kCuda, 0), fast = slow;
  fast.multiplications_per_second *= 10;
  EXPECT_DOUBLE_EQ(LongWork(fast, DeviceKind::kCuda), 10 * LongWork(slow, DeviceKind::kCuda));
  EXPECT_DOUBLE_EQ(LongWork(slow, DeviceKind::kCuda), UsualRate(slow) * kShortOnGpuSeconds);
  EXPECT_LT(UsualRate(slow), slow.multiplications_per_second);
}

/// Whether 3.5 nonzeros for each column of a panel of 256 rows are enough for tiles.
bool Tiles(const DeviceConstants& constants) {
  Features features;
  features.rows = features.cols = 256;
  features.nnz = 100'000;
  features.row_nonzeros_mean = 3.5;
  const ProblemSignature c =
      SignatureOf({.operation = Operation::kSpmm, .k = 32, .device = DeviceKind::kCuda});
  for (const Candidate& candidate : CandidatesFor(c, features, constants)) {
    if (candidate.pipeline.starts_with("aspt(")) return candidate.worth_trying;
  }
  ADD_FAILURE() << "there is no rule for tiles";
  return false;
}

TEST(Constants, TilesPayWhereSharedMemoryIsMuchFasterThanTheCache) {
  DeviceConstants constants;
  EXPECT_FALSE(Tiles(constants)) << "built in: from 4 on";
  constants.cache_bytes_per_second = 1e12;
  constants.shared_bytes_per_second = 8e12;
  EXPECT_TRUE(Tiles(constants));
  constants.shared_bytes_per_second = 3e12;
  EXPECT_FALSE(Tiles(constants));
  constants.shared_bytes_per_second = 5e11;  // no card is so
  EXPECT_FALSE(Tiles(constants));
}

/// What an engine says of calibrations.
class Sentences final : public Observer {
 public:
  void OnCalibrationProblem(std::string_view sentence) override {
    problems.emplace_back(sentence);
    Said();
  }
  void OnCalibrated(std::string_view /*device*/, std::string_view /*took*/) override { Said(); }
  std::vector<std::string> problems;
  absl::Notification said;

 private:
  void Said() {
    if (!said.HasBeenNotified()) said.Notify();
  }
};

EngineOptions OptionsIn(const std::string& directory) {
  EngineOptions options;
  options.data_dir = directory;
  options.host_memory_bytes = options.preparation_memory_bytes = kPlenty;
  options.models = false;
  return options;
}

TEST(EngineCalibration, StoredConstantsAreUsed) {
  TemporaryDirectory directory;
  std::string model;
  {
    Sentences observer;
    const auto engine = Engine::Open(OptionsIn(directory.path()), observer);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_FALSE((*engine)->devices().front().calibration);
    model = (*engine)->executor().model(DeviceKind::kCpu);
    EXPECT_THAT(observer.problems, IsEmpty());
  }
  Calibration calibration = Of(model, 7e-6, 5);
  calibration.constants.multiplications_per_second = 5e9;
  ASSERT_TRUE(KeepCalibration(PosixFileSystem(), directory.path(), calibration).ok());
  {
    Sentences observer;
    const auto engine = Engine::Open(OptionsIn(directory.path()), observer);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const DeviceFacts cpu = (*engine)->devices().front();
    ASSERT_TRUE(cpu.calibration);
    EXPECT_EQ(cpu.calibration->measured_unix_ns, 5);
    EXPECT_EQ(cpu.constants.launch_seconds, 7e-6);
    EXPECT_EQ(LongWork(cpu.constants, DeviceKind::kCpu), UsualRate(cpu.constants) * kPieceSeconds);
    EXPECT_GE((*engine)->executor().backend({}).bytes_per_second(), 2.5e12) << "the roofline's";
    EXPECT_TRUE((*engine)->executor().memory_rate_is_sure()) << "however busy the machine is";
    EXPECT_THAT(observer.problems, IsEmpty());
  }
  // Of other kernels, or another number of threads.
  calibration.model += "x";
  Write(directory.path(), "");
  ASSERT_TRUE(KeepCalibration(PosixFileSystem(), directory.path(), calibration).ok());
  ASSERT_THAT(model, HasSubstr(", 1 thread, "));
  calibration.model = absl::StrReplaceAll(model, {{", 1 thread, ", ", 2 threads, "}});
  ASSERT_TRUE(KeepCalibration(PosixFileSystem(), directory.path(), calibration).ok());
  {
    Sentences observer;
    const auto engine = Engine::Open(OptionsIn(directory.path()), observer);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_FALSE((*engine)->devices().front().calibration);
    EXPECT_EQ((*engine)->devices().front().constants.multiplications_per_second,
              DefaultConstants(DeviceKind::kCpu, 1).multiplications_per_second);
    EXPECT_THAT(observer.problems, ElementsAre(HasSubstr("none of " + model)));
  }
  Write(directory.path(), "{");
  Sentences observer;
  const auto engine = Engine::Open(OptionsIn(directory.path()), observer);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_FALSE((*engine)->devices().front().calibration);
  EXPECT_THAT(observer.problems, ElementsAre(HasSubstr("is damaged")));
}

TEST(EngineCalibration, MeasuresTheCpuOrSaysThatItIsBusy) {
  TemporaryDirectory directory;
  Sentences observer;
  const auto engine = Engine::Open(OptionsIn(directory.path()), observer);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto soon = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  const absl::StatusOr<Calibration> measured =
      (*engine)->Calibrate(DeviceKind::kCpu, nullptr, soon);
  const DeviceFacts cpu = (*engine)->devices().front();
  if (!measured.ok()) {  // others compute on this machine
    EXPECT_TRUE(absl::IsAborted(measured.status())) << measured.status();
    EXPECT_THAT(std::string(measured.status().message()), HasSubstr("others used the"));
    EXPECT_FALSE(cpu.calibration);
    EXPECT_THAT(Read(directory.path()), IsEmpty());
    return;
  }
  ASSERT_TRUE(cpu.calibration);
  for (const ConstantField& field : ConstantFields()) {
    const double value = measured->constants.*field.value;
    EXPECT_EQ(value > 0, field.of_cpu) << field.name;
    if (value > 0) {
      EXPECT_EQ(cpu.constants.*field.value, value) << field.name;
    }
  }
  const std::vector<Calibration> kept = Read(directory.path());
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept.front().model, (*engine)->executor().model(DeviceKind::kCpu));
}

TEST(EngineCalibration, IsNoneBesideOtherWork) {
  TemporaryDirectory directory;
  Sentences observer;
  const auto engine = Engine::Open(OptionsIn(directory.path()), observer);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::jthread busy([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
    }
  });
  const auto soon = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  const absl::Status status = (*engine)->Calibrate(DeviceKind::kCpu, nullptr, soon).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("others used the"));
  EXPECT_FALSE((*engine)->devices().front().calibration);
  EXPECT_THAT(Read(directory.path()), IsEmpty());
}

TEST(EngineCalibration, ComesByItselfInAQuietMoment) {
  TemporaryDirectory directory;
  Sentences observer;
  EngineOptions options = OptionsIn(directory.path());
  options.quiet_time = std::chrono::milliseconds(1);
  {
    const auto engine = Engine::Open(options, observer);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE(observer.said.WaitForNotificationWithTimeout(absl::Minutes(2)));
  }
  // It was measured and kept, or others compute on this machine.
  if (observer.problems.empty()) {
    EXPECT_EQ(Read(directory.path()).size(), 1u);
  } else {
    EXPECT_THAT(observer.problems.front(), HasSubstr("cpu was not calibrated"));
    EXPECT_THAT(Read(directory.path()), IsEmpty());
  }
}

TEST(EngineCalibration, IsRefusedWithASentence) {
  Sentences observer;
  EngineOptions options = OptionsIn("");
  options.host_memory_bytes = options.preparation_memory_bytes = 1 << 20;
  const auto engine = Engine::Open(options, observer);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto now = std::chrono::steady_clock::now();
  const absl::Status gpu = (*engine)->Calibrate(DeviceKind::kCuda, nullptr, now).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(gpu)) << gpu;
  EXPECT_THAT(std::string(gpu.message()), HasSubstr("no GPU"));
  const absl::Status memory = (*engine)->Calibrate(DeviceKind::kCpu, nullptr, now).status();
  EXPECT_TRUE(absl::IsResourceExhausted(memory)) << memory;
  EXPECT_FALSE((*engine)->devices().front().calibration);
}

}  // namespace
}  // namespace sparsed::engine
