// What `doctor` finds on machines that are made up.
#include "client/cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "client/cli/machine.h"

namespace sparsed::cli {
namespace {

using testing::HasSubstr;
using Status = Finding::Status;

class Doctor : public testing::Test {
 protected:
  Doctor() {
    std::string folder = testing::TempDir() + "doctor_XXXXXX";
    root_ = mkdtemp(folder.data());
  }
  ~Doctor() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// The first of that status; fails the test if there is none.
  const Finding& Worst(Status status) {
    static const Finding kNone;
    for (const Finding& finding : findings_) {
      if (finding.status == status) return finding;
    }
    ADD_FAILURE() << "none is a " << Name(status) << ":\n" << Describe(findings_).text;
    return kNone;
  }

  std::string root_;
  Findings findings_;
};

TEST_F(Doctor, LimitsOfTheServerThatRuns) {
  Write("/17/comm", "sparsed\n");
  Write("/17/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 4096                 files     \n"
        "Max locked memory         65536                65536                bytes     \n"
        "Max address space         unlimited            1073741824           bytes     \n");
  Write("/18/comm", "bash\n");
  Write("/self/limits",
        "Max open files            1024                 10                 files\n");
  CheckLimits(root_, findings_);
  ASSERT_EQ(findings_.size(), 3u);
  EXPECT_EQ(findings_[0].status, Status::kWarning);
  EXPECT_EQ(findings_[0].what, "sparsed, process 17: 4096 open files at most");
  EXPECT_THAT(findings_[0].remedy, HasSubstr("LimitNOFILE=65536"));
  EXPECT_THAT(findings_[1].what, HasSubstr("64.0 KiB of locked memory"));
  EXPECT_EQ(findings_[2].status, Status::kWarning);
}

TEST_F(Doctor, LimitsOfThisShellWhereNoServerRuns) {
  Write("/18/comm", "bash\n");
  Write("/self/limits",
        "Max open files            1024                 unlimited            files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n");
  CheckLimits(root_, findings_);
  ASSERT_EQ(findings_.size(), 2u);
  for (const Finding& finding : findings_) EXPECT_EQ(finding.status, Status::kOk) << finding.what;
}

TEST_F(Doctor, FoldersThatAreMissingOpenOrNoFolders) {
  CheckDataFolder(root_ + "/none", /*asked_for=*/true, findings_);
  EXPECT_THAT(Worst(Status::kProblem).remedy, HasSubstr("install -d"));
  findings_.clear();
  CheckDataFolder(root_ + "/none", /*asked_for=*/false, findings_);
  EXPECT_EQ(findings_.front().status, Status::kNote);
  findings_.clear();
  Write("/file", "");
  CheckDataFolder(root_ + "/file", true, findings_);
  EXPECT_THAT(Worst(Status::kProblem).what, HasSubstr("is not a folder"));
  findings_.clear();
  ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
  CheckDataFolder(root_, true, findings_);
  EXPECT_THAT(Worst(Status::kWarning).remedy, HasSubstr("chmod 700 " + root_));
  findings_.clear();
  ASSERT_EQ(chmod(root_.c_str(), 0700), 0);
  CheckDataFolder(root_, true, findings_);
  EXPECT_EQ(findings_.front().status, Status::kOk);
  EXPECT_EQ(findings_[1].check, "disk");
}

TEST_F(Doctor, PortsThatOthersHave) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, generic, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, generic, &size), 0);
  const std::string taken = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  CheckPort(taken, "metrics", false, findings_);
  EXPECT_THAT(Worst(Status::kProblem).what, HasSubstr(taken + " is taken"));
  EXPECT_THAT(Worst(Status::kProblem).remedy, HasSubstr("ss -ltnp"));
  findings_.clear();
  CheckPort(taken, "the server", /*in_use=*/true, findings_);
  EXPECT_TRUE(findings_.empty());
  close(listener);
  CheckPort("127.0.0.1:0", "metrics", false, findings_);
  EXPECT_EQ(findings_.front().status, Status::kOk);
  findings_.clear();
  for (const char* odd : {"nonsense", "127.0.0.1:many", "no-such-host.invalid:1"}) {
    CheckPort(odd, "metrics", false, findings_);
    EXPECT_EQ(findings_.back().status, Status::kNote) << odd;
  }
}

TEST_F(Doctor, ACardWithoutItsDriver) {
  Write("/sys/bus/pci/devices/0000:65:00.0/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:65:00.0/class", "0x030200\n");
  Write("/sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
  CheckGpus(root_, findings_);
  const Finding& problem = Worst(Status::kProblem);
  EXPECT_EQ(problem.check, "driver");
  if (problem.what.find("libcuda.so.1 is not") == std::string::npos) {
    GTEST_SKIP() << "the driver is installed here";
  }
  EXPECT_THAT(problem.what, HasSubstr("0000:65:00.0"));
  EXPECT_THAT(problem.remedy, HasSubstr("modprobe nvidia"));
}

TEST_F(Doctor, MemoryIsWhatTheKernelSays) {
  EXPECT_EQ(MemoryInfo("MemTotal:  16 kB\nMemAvailable:    8 kB\n", "MemAvailable"), 8192);
  EXPECT_EQ(MemoryInfo("MemTotal:  16 kB\n", "MemAvailable"), 0);
  EXPECT_EQ(MemoryInfo("", "MemTotal"), 0);
  EXPECT_GT(AvailableMemory(), 0);
  Write("/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 1000 kB\n");
  Write("/sys/vm/overcommit_memory", "2\n");
  Write("/cpuinfo", "flags : sse2\n");
  CheckMachine(root_, findings_);
  EXPECT_GE(std::ranges::count(findings_, Status::kWarning, &Finding::status), 3);
}

TEST_F(Doctor, ProblemsHaveAnExitCodeAndRemediesALine) {
  const Report well = Describe({{"cpu", Status::kOk, "2 processors"}});
  EXPECT_EQ(well.exit_code, 0);
  EXPECT_THAT(well.text, HasSubstr("0 problems, 0 warnings"));
  const Report ill = Describe({{"disk", Status::kProblem, "full", "free some"},
                               {"cpu", Status::kWarning, "slow", "take another"}});
  EXPECT_EQ(ill.exit_code, 1);
  EXPECT_THAT(ill.text, HasSubstr("-> free some\n"));
  EXPECT_EQ(ill.json["findings"][0]["remedy"], "free some");
  EXPECT_EQ(ill.json["problems"], 1);
}

}  // namespace
}  // namespace sparsed::cli
