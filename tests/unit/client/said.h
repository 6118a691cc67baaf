// What sparsectl says and exits with.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/unit/client/client_testing.h"

namespace sparsed::test {

struct Said {
  int exit_code = -1;
  std::string text;  ///< on both outputs
};

/// Runs it in a folder of its own.
class SparsectlTest : public testing::Test {
 protected:
  /// `words` are the shell's.
  Said Run(const std::string& words) const {
    const std::string command =
        fmt::format("cd '{}' && {} {} {} 2>&1", folder_, environment_, SPARSECTL_PROGRAM, words);
    Said said;
    std::FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    size_t size = 0;
    while ((size = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
      said.text.append(buffer.data(), size);
    }
    said.exit_code = WEXITSTATUS(pclose(pipe));
    return said;
  }
  void ExpectSays(const std::string& words, int exit_code, const std::string& sentence) const {
    const Said said = Run(words);
    EXPECT_EQ(said.exit_code, exit_code) << words << "\n" << said.text;
    EXPECT_THAT(said.text, testing::HasSubstr(sentence)) << words;
  }
  /// The server that it asks.
  void Use(const ServerProcess& server) {
    environment_ = "SPARSED_SERVER='" + server.address() + "'";
  }

 private:
  const Folder temporary_;
  std::string environment_;

 protected:
  const std::string folder_ = temporary_.path();
};

}  // namespace sparsed::test
