// Servers of a cluster with a real etcd, in this process.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc/test_etcd.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {

/// Skips where no etcd is installed.
class TestNodes : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestEtcd::Installed()) GTEST_SKIP() << TestEtcd::kMissing;
    etcd_ = std::make_unique<TestEtcd>();
    std::string folder = testing::TempDir() + "sparsed_nodes_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  void TearDown() override {
    nodes_.clear();
    etcd_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  /// node-0, node-1, ..., so many more, which all know each other when this returns.
  void Start(int count, int replicas) {
    for (int more = 0; more < count; ++more) {
      const size_t i = nodes_.size();
      const std::string address = fmt::format("127.0.0.1:{}", FreePort());
      addresses_.push_back(address);
      nodes_.push_back(std::make_unique<TestServer>([&](server::Config& config) {
        config.listen = {address};
        config.advertise = address;
        config.node = fmt::format("node-{}", i);
        config.etcd = {etcd_->address()};
        config.replicas = replicas;
        config.cluster_settle_seconds = settle_seconds_;
        config.data_dir = folder_ + "/" + config.node;
        WithPages(config);
      }));
    }
    ASSERT_TRUE(Eventually([&] {
      return std::ranges::all_of(nodes_, [&](const auto& node) {
        grpc::ClientContext context;
        v1::ServerInfo info;
        const grpc::Status status =
            node->admin().GetServerInfo(&context, v1::GetServerInfoRequest(), &info);
        return status.ok() && std::cmp_equal(info.node_addresses_size(), nodes_.size());
      });
    }));
  }

  double settle_seconds_ = 0;  ///< of nodes that are started then
  std::unique_ptr<TestEtcd> etcd_;
  std::string folder_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<TestServer>> nodes_;
};

}  // namespace sparsed::test
