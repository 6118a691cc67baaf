// What tests of the client library with a server process need: a patient Connect, and folders.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "sparsed/client.h"
#include "tests/unit/client/client_matrices.h"
#include "tests/unit/client/eventually.h"
#include "tests/unit/client/server_process.h"

namespace sparsed::test {

inline Client Connect(const ServerProcess& server, const ClientOptions& options = {}) {
  std::optional<Client> client;
  Eventually([&] {
    auto connected = Client::Connect(server.address(), options);
    if (connected.ok()) client = *std::move(connected);
    return connected.ok();
  });
  if (!client) {
    ADD_FAILURE() << "no server at " << server.address();
    std::abort();
  }
  return *std::move(client);
}

/// A folder for the local socket and, maybe, more, that goes with it.
class Folder {
 public:
  Folder() {
    std::string name = testing::TempDir() + "sparsed_shared_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string local() const { return "--local-listen=unix:" + path_ + "/local"; }

 private:
  std::string path_;
};

/// That the server counts as shared with processes of its machine.
inline int64_t SharedBytes(const Client& client) {
  const auto stats = client.GetStats();
  EXPECT_TRUE(stats.ok()) << stats.status();
  return stats.ok() ? stats->memory_bytes.at("shared") : -1;
}

}  // namespace sparsed::test
