#include "tests/fault/bystander.h"

#include <sparsed/client.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <vector>

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::milliseconds(50);

}  // namespace

absl::Status OneClientWorks(const std::string& address, double seconds) {
  const auto time = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  // gRPC gives up an attempt to connect after a second, which a busy machine may take.
  const auto client = Client::Connect(address, {.connect_timeout = time, .max_attempts = 3});
  if (!client.ok()) return client.status();
  const std::vector<int64_t> offsets = {0, 1, 2};
  const std::vector<int32_t> columns = {0, 1};
  const std::vector<float> values = {2, 3};
  CsrView matrix{.rows = 2,
                 .cols = 2,
                 .row_offsets = std::span<const int64_t>(offsets),
                 .column_indices = columns,
                 .values = std::span<const float>(values)};
  UploadOptions replace;
  replace.replace = true;
  const CallOptions limit{.timeout = time};
  const auto uploaded = client->Upload("bystander", matrix, replace, limit);
  if (!uploaded.ok()) return uploaded.status();
  const std::vector<float> b = {5, 7};
  std::vector<float> c(2);
  const auto done =
      uploaded->Spmm(DenseView(b.data(), 2, 1), MutableDenseView(c.data(), 2, 1), {}, limit);
  if (!done.ok()) return done.status();
  if (c != std::vector<float>{10, 21}) return absl::DataLossError("a wrong product");
  return absl::OkStatus();
}

Bystander::Bystander(const std::string& address)
    : address_(address), thread_([this] {
        while (!stopping_) {
          const auto begin = Clock::now();
          const absl::Status status = OneClientWorks(address_, 30);
          const std::chrono::duration<double> took = Clock::now() - begin;
          slowest_seconds_ = std::max(slowest_seconds_.load(), took.count());
          ++(status.ok() ? served_ : failed_);
          if (!status.ok()) std::cout << "a bystander: " << status << std::endl;
          std::this_thread::sleep_for(kPause);
        }
      }) {}

Bystander::~Bystander() {
  stopping_ = true;
  thread_.join();
}

}  // namespace sparsed::test
