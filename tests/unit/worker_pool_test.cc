// Threads for what blocks: tenants take turns.
#include "server/rpc/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace sparsed::server {
namespace {

using namespace std::chrono_literals;

/// Tenant "a" has one of the pool's threads, from now until `go`.
void KeepBusy(WorkerPool& pool, const std::atomic<bool>& go) {
  const auto taken = std::make_shared<std::atomic<bool>>(false);
  EXPECT_TRUE(pool.Run("a",
                       [taken, &go] {
                         *taken = true;
                         while (!go) std::this_thread::sleep_for(1ms);
                       })
                  .ok());
  while (!*taken) std::this_thread::sleep_for(1ms);
}

TEST(WorkerPoolTest, TenantsTakeTurns) {
  std::string order;
  {
    WorkerPool pool(1, 100);
    std::atomic<bool> go = false;
    KeepBusy(pool, go);
    const auto add = [&](const std::string& tenant) {
      EXPECT_TRUE(pool.Run(tenant, [&order, tenant] { order += tenant; }).ok());
    };
    for (int i = 0; i < 4; ++i) add("a");
    for (int i = 0; i < 2; ++i) add("b");
    add("c");
    go = true;
  }
  EXPECT_EQ(order, "bcabaaa");
}

TEST(WorkerPoolTest, NoTenantHasAllThreads) {
  std::atomic<bool> go = false;
  std::atomic<int> of_a = 0;
  std::atomic<bool> of_b = false;
  WorkerPool pool(3, 100);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(pool.Run("a",
                         [&] {
                           ++of_a;
                           while (!go) std::this_thread::sleep_for(1ms);
                         })
                    .ok());
  }
  EXPECT_TRUE(pool.Run("b", [&] { of_b = true; }).ok());
  while (!of_b || of_a < 2) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(of_a, 2);
  go = true;
}

TEST(WorkerPoolTest, OneTenantMayHaveAllOrFew) {
  for (const int most : {1, 2, 3}) {
    std::atomic<bool> go = false;
    std::atomic<int> of_a = 0;
    std::atomic<int> of_b = 0;
    WorkerPool pool(3, 100, most);
    const auto take = [&](const char* tenant, std::atomic<int>& count) {
      EXPECT_TRUE(pool.Run(tenant,
                           [&] {
                             ++count;
                             while (!go) std::this_thread::sleep_for(1ms);
                           })
                      .ok());
    };
    for (int i = 0; i < 10; ++i) take("a", of_a);
    while (of_a < most) std::this_thread::sleep_for(1ms);
    // The others get what is left.
    for (int i = 0; i < 3 - most; ++i) take(i == 0 ? "b" : "c", of_b);
    while (of_b < 3 - most) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(of_a, most);
    go = true;
  }
}

TEST(WorkerPoolTest, WhatIsTooMuchIsRefused) {
  WorkerPool pool(1, 2);
  std::atomic<bool> go = false;
  KeepBusy(pool, go);
  EXPECT_TRUE(pool.Run("a", [] {}).ok());
  EXPECT_TRUE(pool.Run("b", [] {}).ok());
  EXPECT_EQ(pool.Run("c", [] {}).code(), absl::StatusCode::kResourceExhausted);
  go = true;
}

}  // namespace
}  // namespace sparsed::server
