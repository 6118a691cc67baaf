// A folder of files to read and write matrices in.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/matrix_file.h"

namespace sparsed::cli {

class FormatFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "formats_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  std::string Write(const std::string& bytes, const std::string& name = "file") const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  std::string Slurp(const std::string& name) const {
    std::ostringstream bytes;
    bytes << std::ifstream(Path(name), std::ios::binary).rdbuf();
    return bytes.str();
  }

  static ReadOptions Exact() {
    ReadOptions options;
    options.type = ValueType::kF64;
    return options;
  }
  absl::StatusOr<MatrixFile> Read(const std::string& bytes,
                                  const ReadOptions& options = Exact()) const {
    return ReadMatrixFile(Write(bytes), options);
  }
  /// The sentence that the bytes are refused with, without the folder.
  std::string Refusal(const std::string& bytes, const ReadOptions& options = Exact()) const {
    const auto read = Read(bytes, options);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << read.status();
    const std::string message(read.status().message());
    EXPECT_TRUE(message.starts_with(folder_.string())) << message;
    return message.substr(std::min(message.size(), folder_.string().size() + 1));
  }

  std::filesystem::path folder_;
};

inline std::vector<double> Values(const CsrMatrix& matrix) {
  return std::get<std::vector<double>>(matrix.values);
}

}  // namespace sparsed::cli
