// What is said of a GPU and its driver, by what a machine shows of them.
#include "kernels/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace sparsed::cuda {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kNoLibrary = "libsparsed_no_such_library.so.1";
/// One that every process has.
constexpr const char* kSomeLibrary = "libc.so.6";

/// A machine's /dev, /proc and /sys in a folder; CUDA_VISIBLE_DEVICES is not set meanwhile.
class Driver : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "sparsed_driver_test";
    fs::remove_all(root_);
    fs::create_directories(root_ + "/dev");
    if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) visible_ = visible;
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
  void TearDown() override {
    fs::remove_all(root_);
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (visible_.has_value()) setenv("CUDA_VISIBLE_DEVICES", visible_->c_str(), 1);
  }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = root_ + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void AddPciDevice(const std::string& address, const std::string& vendor,
                    const std::string& device_class) {
    Write("/sys/bus/pci/devices/" + address + "/vendor", vendor + "\n");
    Write("/sys/bus/pci/devices/" + address + "/class", device_class + "\n");
  }
  absl::Status Check(const char* library) { return CheckTraces(FindTraces(root_, library)); }

  std::string root_;
  std::optional<std::string> visible_;
  const bool built_ = !ThisBuild().architectures.empty();
};

TEST_F(Driver, NoneIsSaidInPlainWords) {
  // Other makers' cards, NVIDIA's network cards and its sound are no trace; nor are odd files.
  AddPciDevice("0000:00:02.0", "0x8086", "0x030000");
  AddPciDevice("0000:01:00.1", "0x10de", "0x040300");
  AddPciDevice("0000:02:00.0", "0x10de", "0x020000");
  Write("/dev/nvidia", "");
  Write("/dev/nvidia-caps", "");
  const absl::Status status = Check(kNoLibrary);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(status.message(), "no NVIDIA driver here");
}

TEST_F(Driver, ACardWithoutADriverIsUnavailable) {
  AddPciDevice("0000:3b:00.0", "0x10de", "0x030200");
  const absl::Status status = Check(kNoLibrary);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  if (!built_) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("this build has no GPU kernels"));
    return;
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("0000:3b:00.0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no NVIDIA driver here"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--gpus all"));
}

TEST_F(Driver, ADriverWithoutItsLibraryIsUnavailable) {
  for (const char* file : {"/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version"}) {
    Write(file, "");
    const absl::Status status = Check(kNoLibrary);
    EXPECT_TRUE(absl::IsUnavailable(status)) << file << status;
    if (built_) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("NVIDIA_DRIVER_CAPABILITIES")) << file;
      EXPECT_THAT(std::string(status.message()), HasSubstr(kNoLibrary)) << file;
    }
    fs::remove(root_ + file);
  }
}

TEST_F(Driver, ADriverCanBeAskedWhereItsLibraryIs) {
  const absl::Status status = Check(kSomeLibrary);
  if (built_) {
    EXPECT_TRUE(status.ok()) << status;
  } else {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
}

TEST_F(Driver, WhoeverHidesAllCardsExpectsNone) {
  AddPciDevice("0000:3b:00.0", "0x10de", "0x030200");
  Write("/dev/nvidiactl", "");
  for (const char* hidden : {"", "-1", "-1,0", "NoDevFiles"}) {
    setenv("CUDA_VISIBLE_DEVICES", hidden, 1);
    EXPECT_TRUE(absl::IsNotFound(Check(kSomeLibrary))) << hidden;
  }
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  EXPECT_FALSE(absl::IsNotFound(Check(kSomeLibrary)));
}

TEST_F(Driver, WhatADriverRefusesIsSaidInItsWordsAndWhatToDo) {
  // Its library alone, as under systemd's PrivateDevices.
  const absl::Status hidden = DriverRefuses(FindTraces(root_, kSomeLibrary), "no device");
  EXPECT_TRUE(absl::IsUnavailable(hidden));
  EXPECT_THAT(std::string(hidden.message()), HasSubstr("sparsed-gpu.conf"));
  EXPECT_THAT(std::string(hidden.message()), HasSubstr("The driver says: no device"));
  Write("/dev/nvidiactl", "");
  const absl::Status refused = DriverRefuses(FindTraces(root_, kSomeLibrary), "no device");
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no device"));
}

}  // namespace
}  // namespace sparsed::cuda
