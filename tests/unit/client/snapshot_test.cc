// Snapshots of a server that works: saved while clients upload, replace and delete, restored bit
// for bit, and only by who may.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/said.h"

namespace sparsed::test {
namespace {

using testing::HasSubstr;

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class SnapshotTest : public SparsectlTest {
 protected:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
};

TEST_F(SnapshotTest, SavedWhileOthersWriteAndRestoredBitForBit) {
  ServerProcess server({"--data-dir=" + Path("data")});
  const Client client = Connect(server);
  Use(server);
  std::map<std::string, CsrMatrix> fixed;
  for (const char* name : {"a", "b", "c"}) {
    fixed[name] = RandomMatrix(200, 150, static_cast<unsigned>(name[0]));
    ASSERT_TRUE(client.Upload(name, fixed[name].View()).ok());
  }
  const std::vector<float> dense = RandomDense(50 * 8, 4);
  ASSERT_TRUE(client.PutDense("x", DenseView(dense.data(), 50, 8), {.durable = true}).ok());
  // "first" and "second" get the same values, one after the other.
  const CsrMatrix moving = RandomMatrix(100, 100, 9);
  ASSERT_TRUE(client.Upload("first", moving.View()).ok());
  ASSERT_TRUE(client.Upload("second", moving.View()).ok());
  std::atomic<bool> ended = false;
  std::thread writer([&] {
    std::vector<float> values = F32(moving);
    for (int i = 1; !ended; ++i) {
      std::fill(values.begin(), values.end(), static_cast<float>(i));
      for (const char* name : {"first", "second"}) {
        EXPECT_TRUE(client.MatrixNamed(name).UpdateValues(values, {.durable = true}).ok());
      }
    }
  });
  std::thread uploader([&] {
    for (int i = 0; !ended; ++i) {
      const std::string name = fmt::format("u{}", i % 8);
      EXPECT_TRUE(client
                      .Upload(name, RandomMatrix(60, 60, static_cast<unsigned>(i)).View(),
                              {.replace = true})
                      .ok());
      if (i % 3 == 2) {
        EXPECT_TRUE(client.MatrixNamed(name).Delete().ok());
      }
    }
  });
  for (int i = 0; i < 5; ++i) {
    ExpectSays(fmt::format("snapshot save s{}", i), 0, "holds ");
  }
  ended = true;
  writer.join();
  uploader.join();
  ExpectSays("snapshot verify s4 --list", 0, "whole     every checksum matches");
  EXPECT_EQ(std::filesystem::status(Path("s0")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  server.End(SIGKILL);
  for (int i = 0; i < 5; ++i) {
    const std::string directory = fmt::format("restored{}", i);
    ExpectSays(fmt::format("snapshot restore s{} --data-dir={}", i, directory), 0, "restored  ");
    ServerProcess again({"--data-dir=" + Path(directory)});
    const Client restored = Connect(again);
    for (const auto& [name, matrix] : fixed) {
      const auto download = restored.MatrixNamed(name).Download();
      ASSERT_TRUE(download.ok()) << download.status();
      EXPECT_EQ(download->row_offsets, matrix.row_offsets);
      EXPECT_EQ(download->column_indices, matrix.column_indices);
      EXPECT_EQ(F32(*download), F32(matrix));
    }
    std::vector<float> read(dense.size());
    ASSERT_TRUE(restored.DenseNamed("x").Read(MutableDenseView(read.data(), 50, 8)).ok());
    EXPECT_EQ(read, dense);
    const auto first = restored.MatrixNamed("first").Download();
    const auto second = restored.MatrixNamed("second").Download();
    ASSERT_TRUE(first.ok() && second.ok());
    // Before the first update.
    if (F32(*first) == F32(moving)) continue;
    const float of_first = F32(*first)[0], of_second = F32(*second)[0];
    EXPECT_EQ(std::ranges::count(F32(*first), of_first), first->nnz()) << "of two moments";
    EXPECT_TRUE(of_first == of_second || of_first == of_second + 1 || of_first == 1)
        << of_first << " " << of_second;
    // It goes on from there.
    EXPECT_TRUE(restored.Upload("new", fixed["a"].View()).ok());
  }
}

TEST_F(SnapshotTest, WhatIsRefusedSaysWhy) {
  ServerProcess server({"--data-dir=" + Path("data")});
  const Client client = Connect(server);
  Use(server);
  ASSERT_TRUE(client.Upload("a", RandomMatrix(50, 50, 1).View()).ok());
  ExpectSays("snapshot save .", 0, "./sparsed-2");
  ExpectSays("snapshot save s", 0, "1 matrix of 1 pattern");
  ExpectSays("snapshot save s", 6, "s is there already; --replace");
  ExpectSays("-o json snapshot save s --replace", 0, R"("matrices":1)");
  ExpectSays("snapshot save - > t 2> said; cat said", 0, "saved     standard output");
  ExpectSays("snapshot verify t", 0, "whole");
  ExpectSays("snapshot verify - < s", 0, "whole");
  ExpectSays("-o json snapshot verify s --list", 0,
             R"("kind":"matrix","tenant":"default","name":"a")");
  ExpectSays("snapshot save /proc/nothing/s", 3, "cannot create");
  ExpectSays("snapshot save", 2, "FILE|DIR is missing");
  ExpectSays("snapshot save s --limit-rate=10", 2, "--limit-rate");
  ExpectSays("snapshot save s --limit-rate=999KB", 2, "\"999000\" is not a whole number from");
  ExpectSays("snapshot save s --limit-rate=976KiB", 2, "\"999424\" is not a whole number from");
  ExpectSays("snapshot save s --replace --limit-rate=1MB", 0, "1 matrix of 1 pattern");
  ExpectSays("snapshot save s --replace --limit-rate=1m", 0, "1 matrix of 1 pattern");
  ExpectSays("snapshot save s --limit-rate=1Mbit", 2, "'1Mbit' is not a size");
  ExpectSays("snapshot", 2, "snapshot lacks its COMMAND");
  ExpectSays("snapshot restore s", 2, "--data-dir is missing");
  ExpectSays("snapshot restore s --data-dir=data", 6, "is not empty");
  // As upload has it.
  ExpectSays("upload nothing", 3, "cannot open nothing: No such file");
  ExpectSays("snapshot verify nothing", 3, "cannot open nothing: No such file");
  ExpectSays("snapshot restore nothing --data-dir=new", 3, "cannot open nothing: No such file");
  ExpectSays("snapshot restore s --data-dir=no/new", 3, "No such file");
  ExpectSays("upload data", 3, "cannot be read: Is a directory");
  ExpectSays("snapshot verify data", 3, "data cannot be read: Is a directory");
  ExpectSays("snapshot verify data/catalog.sqlite", 3, "it is no snapshot of sparsed's");
  std::ofstream(folder_ + "/short.txt") << "0 1\n";
  ExpectSays("snapshot verify short.txt", 3, "it is no snapshot of sparsed's");
  ExpectSays("-s unix:/nowhere snapshot save s", 5, "/nowhere");
  std::string bytes = ContentsOf(Path("s"));
  std::ofstream(Path("torn"), std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  ExpectSays("snapshot verify torn", 9, "torn: it is damaged at byte");
  ExpectSays("snapshot restore torn --data-dir=new", 9, "it ends here, before its end");
  EXPECT_FALSE(std::filesystem::exists(Path("new")));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(Path("flipped"), std::ios::binary) << bytes;
  ExpectSays("snapshot restore flipped --data-dir=new", 9, "it is damaged at byte");
  EXPECT_FALSE(std::filesystem::exists(Path("new")));
  if (std::filesystem::exists("/dev/full")) {
    ExpectSays("snapshot save - > /dev/full 2> said; code=$?; cat said; exit $code", 7,
               "cannot write to standard output: No space left");
    ExpectSays("snapshot save - > /dev/full", 7, "");  // nor can it say so
  }
  ServerProcess in_memory;
  Connect(in_memory);
  Use(in_memory);
  ExpectSays("snapshot save s --replace", 6, "--in-memory");
  EXPECT_FALSE(ContentsOf(Path("s")).empty()) << "the old one stays";
}

TEST_F(SnapshotTest, DamagedArraysAreToldAndTheRestIsSaved) {
  ServerProcess server({"--data-dir=" + Path("data")});
  const Client client = Connect(server);
  Use(server);
  ASSERT_TRUE(client.Upload("a", RandomMatrix(50, 50, 1).View()).ok());
  ASSERT_TRUE(client.Upload("b", RandomMatrix(50, 50, 2).View()).ok());
  const std::string blob = Path("data/blobs/0000000000000003.blob");
  std::string bytes = ContentsOf(blob);
  ASSERT_GT(bytes.size(), 100);
  bytes[80] = static_cast<char>(bytes[80] ^ 1);
  std::ofstream(blob, std::ios::binary) << bytes;
  const Said said = Run("snapshot save s");
  EXPECT_EQ(said.exit_code, 9) << said.text;
  EXPECT_THAT(said.text, HasSubstr("0000000000000003.blob is damaged at byte 64"));
  EXPECT_THAT(said.text, HasSubstr("the snapshot is whole, but 1 of the server's arrays"));
  ExpectSays("snapshot verify s", 9, "damaged   when it was taken: ");
  ExpectSays("snapshot restore s --data-dir=restored", 9, "damaged   when it was taken: ");
  ServerProcess again({"--data-dir=" + Path("restored")});
  const Client restored = Connect(again);
  const absl::Status damaged = restored.MatrixNamed("a").Download().status();
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_TRUE(restored.MatrixNamed("b").Download().ok());
}

TEST_F(SnapshotTest, IsForOperatorsAndInTheAuditLog) {
  const auto line = [this](const std::string& name, const std::string& role) {
    const Said said = Run(fmt::format("token new {} --tenant=t --role={}", name, role));
    EXPECT_EQ(said.exit_code, 0) << said.text;
    std::ofstream(Path(name)) << said.text.substr(0, said.text.find('\n') + 1);
    std::filesystem::permissions(Path(name), std::filesystem::perms::owner_read);
    return said.text.substr(said.text.find("  - {"));
  };
  const std::string lines = line("operator", "operator") + line("user", "user");
  std::ofstream(Path("access.yaml")) << "tokens:\n" << lines;
  std::filesystem::permissions(Path("access.yaml"), std::filesystem::perms::owner_read |
                                                        std::filesystem::perms::owner_write);
  ServerProcess server({"--data-dir=" + Path("data"), "--access-file=" + Path("access.yaml"),
                        "--audit-log=" + Path("audit.jsonl")});
  Connect(server, {.token_file = Path("operator")});
  Use(server);
  ExpectSays("--token-file=user snapshot save s", 10, "a snapshot of what all tenants have");
  ExpectSays("--token-file=operator snapshot save s", 0, "saved     s");
  Eventually([&] { return ContentsOf(Path("audit.jsonl")).find("\"OK\"") != std::string::npos; });
  const std::string audit = ContentsOf(Path("audit.jsonl"));
  EXPECT_THAT(audit, HasSubstr(R"("caller":"token user","operation":"save_snapshot")"));
  EXPECT_THAT(audit, HasSubstr(R"("status":"PERMISSION_DENIED")"));
  EXPECT_THAT(audit, HasSubstr(R"("caller":"token operator","operation":"save_snapshot")"));
}

TEST_F(SnapshotTest, OneAtATimeAndGoneWithItsReader) {
  ServerProcess server({"--data-dir=" + Path("data")});
  const Client client = Connect(server);
  // More than what lies between the two ends.
  const std::vector<float> dense(size_t{8} << 20);
  ASSERT_TRUE(
      client.PutDense("x", DenseView(dense.data(), 8 << 10, 1 << 10), {.durable = true}).ok());
  std::atomic<bool> begun = false, go_on = false;
  std::thread slow([&] {
    const absl::Status stopped =
        client.SaveSnapshot([&](const SnapshotBytes& bytes) -> absl::Status {
          EXPECT_GT(bytes.expected, 32 << 20);
          begun = true;
          Eventually([&] { return go_on.load(); });
          return absl::CancelledError("enough");
        });
    EXPECT_EQ(stopped.message(), "enough");
  });
  Eventually([&] { return begun.load(); });
  const ClientOptions once = {.max_attempts = 1};
  const absl::Status second =
      Connect(server, once).SaveSnapshot([](const SnapshotBytes&) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("another snapshot is being taken"));
  // What is deleted meanwhile is gone from the disk once the snapshot is.
  ASSERT_TRUE(client.DenseNamed("x").Delete().ok());
  EXPECT_FALSE(std::filesystem::is_empty(Path("data/blobs")));
  go_on = true;
  slow.join();
  EXPECT_TRUE(Eventually([&] { return std::filesystem::is_empty(Path("data/blobs")); }));
  EXPECT_TRUE(Eventually([&] {
    return client.SaveSnapshot([](const SnapshotBytes&) { return absl::OkStatus(); }).ok();
  }));
}

}  // namespace
}  // namespace sparsed::test
