// What `doctor` finds on machines that are made up.
#include "client/cli/doctor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

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
  Write("/driver/nvidia/version", "590\n");
  Write("/self/limits",
        "Max open files            1024                 10                 files\n");
  CheckLimits(root_, findings_);
  ASSERT_EQ(findings_.size(), 3u);
  EXPECT_EQ(findings_[0].status, Status::kWarning);
  EXPECT_EQ(findings_[0].what, "sparsed, process 17: 4096 open files at most");
  EXPECT_THAT(findings_[0].remedy, HasSubstr("LimitNOFILE=65536"));
  EXPECT_THAT(findings_[1].what, HasSubstr("64.0 KiB of locked memory"));
  EXPECT_EQ(findings_[1].status, Status::kNote);
  EXPECT_EQ(findings_[2].status, Status::kWarning);
}

TEST_F(Doctor, ServersWithTheSameLimitsAreToldOfOnce) {
  const std::string few =
      "Max open files            1024                 4096                 files     \n"
      "Max locked memory         65536                65536                bytes     \n";
  for (const char* pid : {"17", "23"}) {
    Write(std::string("/") + pid + "/comm", "sparsed\n");
    Write(std::string("/") + pid + "/limits", few);
  }
  Write("/31/comm", "sparsed\n");
  Write("/31/limits",
        "Max open files            1024                 100000               files     \n");
  CheckLimits(root_, findings_);
  ASSERT_EQ(findings_.size(), 3u);
  std::ranges::sort(findings_, {}, &Finding::what);
  EXPECT_EQ(findings_[0].what, "sparsed, process 31: 100000 open files at most");
  EXPECT_EQ(findings_[1].what, "sparsed, processes 17, 23: 4096 open files at most");
  EXPECT_EQ(findings_[2].status, Status::kOk) << "without a GPU nothing is to be locked";
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

TEST_F(Doctor, TheFolderIsThatOfTheServerThatRuns) {
  std::filesystem::create_directories(root_ + "/42/fd");
  EXPECT_EQ(DataFolderOf(root_, {.pid = "42", .ports = {}}), std::nullopt);
  EXPECT_EQ(DataFolderOf(root_, {.pid = "43", .ports = {}}), std::nullopt);
  std::filesystem::create_symlink("socket:[17]", root_ + "/42/fd/3");
  std::filesystem::create_symlink("/srv/data/catalog.sqlite-wal", root_ + "/42/fd/4");
  EXPECT_EQ(DataFolderOf(root_, {.pid = "42", .ports = {}}), std::nullopt);
  std::filesystem::create_symlink("/srv/data/catalog.sqlite", root_ + "/42/fd/5");
  EXPECT_EQ(DataFolderOf(root_, {.pid = "42", .ports = {}}), "/srv/data");
}

TEST_F(Doctor, DisksThatAreFullOrTooSmall) {
  constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
  const Finding roomy = DescribeDisk("/data", 50 * kGiB, 100 * kGiB);
  EXPECT_EQ(roomy.status, Status::kOk);
  EXPECT_EQ(roomy.what, "50.0 GiB of 100.0 GiB are free at /data");
  EXPECT_EQ(roomy.remedy, "");
  const Finding little = DescribeDisk("/data", 4 * kGiB, 100 * kGiB);
  EXPECT_EQ(little.status, Status::kWarning);
  EXPECT_THAT(little.remedy, HasSubstr("refused when less than 16.0 MiB are free"));
  EXPECT_EQ(DescribeDisk("/data", 17 * kMiB, 100 * kGiB).status, Status::kProblem);
  const Finding full = DescribeDisk("/data", 16 * kMiB, 100 * kGiB);
  EXPECT_EQ(full.status, Status::kProblem);
  EXPECT_THAT(full.remedy, HasSubstr("every upload is refused, as 16.0 MiB are kept"));
  EXPECT_THAT(full.remedy, HasSubstr("delete matrices"));
  const Finding small = DescribeDisk("/data", 7 * kMiB, 8 * kMiB);
  EXPECT_EQ(small.status, Status::kProblem);
  EXPECT_THAT(small.remedy, HasSubstr("every upload is refused"));
  EXPECT_THAT(small.remedy, HasSubstr("take a larger volume"));
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
  CheckPort("/proc", taken, "metrics", false, {}, findings_);
  EXPECT_THAT(Worst(Status::kProblem).what,
              HasSubstr(taken + ", which is to be metrics's, is taken, by a process of the user "));
  EXPECT_THAT(Worst(Status::kProblem).remedy, HasSubstr("ss -ltnp"));
  findings_.clear();
  CheckPort("/proc", taken, "metrics", false, {{"17", {ntohs(address.sin_port)}}}, findings_);
  EXPECT_THAT(Worst(Status::kProblem).what, HasSubstr("is another sparsed's (process 17, at port"));
  findings_.clear();
  // One of a user whose sockets are not to be seen, but whose they are is.
  Write("/self/net/tcp",
        fmt::format("  sl  local_address\n"
                    "  0: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 "
                    "{} 0 99\n",
                    ntohs(address.sin_port), geteuid()));
  Write("/17/comm", "sparsed\n");
  CheckPort(root_, taken, "metrics", false, RunningServers(root_), findings_);
  EXPECT_THAT(Worst(Status::kProblem).what, HasSubstr("perhaps the sparsed that is process 17"));
  findings_.clear();
  CheckPort("/proc", taken, "the server", /*in_use=*/true, {}, findings_);
  EXPECT_TRUE(findings_.empty());
  close(listener);
  CheckPort("/proc", "127.0.0.1:0", "metrics", false, {}, findings_);
  EXPECT_EQ(findings_.front().status, Status::kOk);
  findings_.clear();
  for (const char* odd : {"nonsense", "127.0.0.1:many", "no-such-host.invalid:1"}) {
    CheckPort("/proc", odd, "metrics", false, {}, findings_);
    EXPECT_EQ(findings_.back().status, Status::kNote) << odd;
  }
}

TEST_F(Doctor, OtherServersAreNamedAsThat) {
  Write("/17/comm", "sparsed\n");
  Write(
      "/17/net/tcp",
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n"
      "   0: 0100007F:1D2E 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
      "4711 1 0 100 0 0 10 0\n"
      "   1: 0100007F:1D38 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
      "4712 1 0 100 0 0 10 0\n"
      "   2: 0100007F:1D2E 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 "
      "4713 1 0 100 0 0 10 0\n");
  std::filesystem::create_directories(root_ + "/17/fd");
  std::filesystem::create_symlink("socket:[4711]", root_ + "/17/fd/3");
  std::filesystem::create_symlink("socket:[4713]", root_ + "/17/fd/4");
  std::filesystem::create_symlink("/dev/null", root_ + "/17/fd/5");
  Write("/18/comm", "sparsed\n");
  Write("/19/comm", "bash\n");
  const std::vector<RunningServer> servers = RunningServers(root_);
  ASSERT_EQ(servers.size(), 2u);
  EXPECT_THAT(servers[0].ports, testing::ElementsAre(7470)) << "4712 is another process's";
  EXPECT_TRUE(servers[1].ports.empty());
  EXPECT_EQ(ServerAt("127.0.0.1:7470", servers), &servers[0]);
  EXPECT_EQ(ServerAt("127.0.0.1:7480", servers), nullptr);
  EXPECT_EQ(ServerAt("127.0.0.1:7480", {servers[1]})->pid, "18") << "the only one";
  EXPECT_EQ(ServerAt("127.0.0.1:7480", {servers[0]}), nullptr) << "it listens elsewhere";
  CheckOtherServers("127.0.0.1:7480", servers, findings_);
  ASSERT_EQ(findings_.size(), 2u);
  EXPECT_EQ(findings_[0].status, Status::kNote);
  EXPECT_EQ(findings_[0].what, "another sparsed runs here: process 17, at port 7470");
  findings_.clear();
  CheckOtherServers("127.0.0.1:7470", servers, findings_);
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].what, "another sparsed runs here: process 18");
}

TEST_F(Doctor, TheServerAtAUnixSocketIsNoOther) {
  const std::string table =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01  4711 /srv/s.sock\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03  4712 /srv/s.sock\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01  4713 i.sock\n"
      "0000000000000000: 00000002 00000000 00010000 0001 01  4714 @hidden\n"
      "0000000000000000: 00000003 00000000 00000000 0001 03  4715\n";
  for (const auto& [pid, inode] : {std::pair("17", "4711"), {"18", "4713"}}) {
    const std::string process = std::string("/") + pid;
    Write(process + "/comm", "sparsed\n");
    Write(process + "/net/unix", table);
    std::filesystem::create_directories(root_ + process + "/fd");
    std::filesystem::create_symlink(fmt::format("socket:[{}]", inode), root_ + process + "/fd/3");
    std::filesystem::create_symlink("socket:[4714]", root_ + process + "/fd/4");
    std::filesystem::create_symlink("/srv/work", root_ + process + "/cwd");
  }
  const std::vector<RunningServer> servers = RunningServers(root_);
  ASSERT_EQ(servers.size(), 2u);
  EXPECT_THAT(servers[0].sockets, testing::ElementsAre("/srv/s.sock"));
  EXPECT_THAT(servers[1].sockets, testing::ElementsAre("/srv/work/i.sock"));
  EXPECT_EQ(ServerAt("unix:/srv/s.sock", servers), &servers[0]);
  EXPECT_EQ(ServerAt("unix:///srv/./work/i.sock", servers), &servers[1]);
  EXPECT_EQ(ServerAt("unix:/srv/none.sock", servers), nullptr);
  EXPECT_EQ(ServerAt("unix:/srv/none.sock", {servers[0]}), nullptr) << "it listens elsewhere";
  EXPECT_EQ(ServerAt("127.0.0.1:7470", {servers[0]}), nullptr);
  EXPECT_EQ(ServerAt("unix:/srv/s.sock", {{"19", {}}})->pid, "19") << "where is not to be seen";
  CheckOtherServers("unix:/srv/s.sock", servers, findings_);
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_EQ(findings_[0].what, "another sparsed runs here: process 18, at unix:/srv/work/i.sock");
}

TEST_F(Doctor, WhoUsesAGpu) {
  const RunningServer asked = {"17", {7470}};
  EXPECT_EQ(DescribeGpuUse("GPU 0", {}, nullptr).status, Status::kOk);
  EXPECT_EQ(DescribeGpuUse("GPU 0", {{17, "sparsed"}}, &asked).what, "GPU 0");
  const Finding other = DescribeGpuUse("GPU 0", {{17, "sparsed"}, {18, "sparsed"}}, &asked);
  EXPECT_EQ(other.status, Status::kNote);
  EXPECT_EQ(other.what, "GPU 0; in use by another sparsed (18)");
  const Finding strangers =
      DescribeGpuUse("GPU 0", {{18, "sparsed"}, {19, "python"}, {20, ""}}, &asked);
  EXPECT_EQ(strangers.status, Status::kWarning);
  EXPECT_EQ(strangers.what,
            "GPU 0; in use by another sparsed (18), python (19), a process of another container or "
            "user (20)");
}

TEST_F(Doctor, ACardWithoutItsDriver) {
  Write("/sys/bus/pci/devices/0000:65:00.0/vendor", "0x10de\n");
  Write("/sys/bus/pci/devices/0000:65:00.0/class", "0x030200\n");
  Write("/sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n");
  CheckGpus(root_, nullptr, findings_);
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
