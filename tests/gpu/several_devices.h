// An engine with two cards or more, and products of buffers on it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/reference/reference.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {

inline constexpr int64_t kRows = 500, kK = 24;

class SeveralDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{512} << 20;
    options.gpu = DeviceOptions{.memory_bytes = int64_t{1} << 30};
    options.gpu_ordinals.clear();
    for (int card = 0; card < cards(); ++card) options.gpu_ordinals.push_back(card);
    options.preparation.enabled = false;
    engine_ = Engine::Open(options, observer_).value();
    if (static_cast<int>(engine_->gpus().size()) < cards()) {
      GTEST_SKIP() << engine_->devices().back().unavailable;
    }
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "s", pattern_).ok());
  }

  virtual int cards() const { return 2; }
  HeldDenseLease Find(const std::string& name) { return engine_->dense().Find("t", name).value(); }
  template <typename T = float>
  std::vector<T> Whole(const std::string& name) {
    return Elements<T>(Find(name)->elements->Get());
  }
  std::string InRows() const { return "rows over " + std::to_string(cards()) + " GPUs"; }
  /// Zeros without `data`.
  template <typename T>
  absl::Status Put(PutHeader header, const std::vector<T>& data) {
    header.tenant = "t";
    header.zeros = data.empty();
    auto put = engine_->dense().BeginPut(std::move(header));
    if (!put.ok()) return put.status();
    if (!data.empty()) {
      if (absl::Status s = Feed(**put, 0, data); !s.ok()) return s;
    }
    return (*put)->Finish().status();
  }
  template <typename Spec>
  absl::Status Compute(Spec spec, const std::shared_ptr<Result>& sink) {
    auto call = engine_->executor().Begin(std::move(spec), sink);
    if (!call.ok()) return call.status();
    EXPECT_TRUE((*call)->complete());
    (*call)->Submit();
    return sink->Wait();
  }
  static SpmmSpec Spmm(const std::string& b, const std::string& c,
                       const std::string& matrix = "s") {
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = matrix;
    spec.b.held = b;
    spec.result.held = c;
    return spec;
  }
  void Hold(const std::string& name, const std::vector<float>& data,
            Distribution distribution = Distribution::kWhole, int64_t k = kK) {
    PutHeader header;
    header.name = name;
    header.shape = {kRows, k, k, ElementType::kF32};
    header.distribution = distribution;
    const absl::Status put = Put(std::move(header), data);
    ASSERT_TRUE(put.ok()) << put;
  }
  absl::StatusOr<std::shared_ptr<Call>> Begin(const std::string& b, const std::string& c,
                                              const std::shared_ptr<Result>& sink) {
    SpmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = std::string("s");
    if (b.empty()) {
      spec.b.shape = DenseShape{kRows, kK, kK, ElementType::kF32};
    } else {
      spec.b.held = b;
    }
    spec.result.held = c;
    return engine_->executor().Begin(spec, sink);
  }
  static absl::Status Finish(Call& call, const std::vector<float>& b, Result& sink) {
    if (!b.empty()) {
      const size_t size = b.size() * sizeof(float);
      absl::StatusOr<ClaimedBytes> to = call.Claim(0, 0, size);
      if (!to.ok()) return to.status();
      std::memcpy(to->data(), b.data(), size);
      if (absl::Status s = to->Commit(); !s.ok()) return s;
    }
    call.Submit();
    return sink.Wait();
  }
  /// The device that a product of buffers ran on.
  std::string Multiply(const std::string& b, const std::string& c) {
    const auto sink = std::make_shared<Result>();
    auto call = Begin(b, c, sink);
    EXPECT_TRUE(call.ok()) << call.status();
    if (!call.ok()) return "";
    const absl::Status ended = Finish(**call, {}, *sink);
    EXPECT_TRUE(ended.ok()) << ended;
    return observer_.last();
  }

  std::vector<double> Product(const std::vector<double>& b) const {
    const std::vector<float> floats = FloatsOf(pattern_);
    const std::vector<double> values(floats.begin(), floats.end());
    std::vector<double> c(kRows * kK);
    reference::Spmm(pattern_.view(), values.data(), false, b.data(), kK, kK, 1, 0, c.data());
    return c;
  }
  static void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
    }
    EXPECT_LE(worst, 1e-4);
  }
  static std::vector<float> Random(uint64_t seed) {
    const std::vector<double> values = test::RandomValues(kRows * kK, seed);
    return {values.begin(), values.end()};
  }

  class Listener final : public Observer {
   public:
    void OnKernelRun(const KernelRun& run) override {
      std::lock_guard lock(mutex_);
      last_ = run.device;
      ++runs_[last_];
    }
    void OnDistributed(int64_t /*parts*/) override {
      std::lock_guard lock(mutex_);
      ++distributed_;
    }
    void OnMovedByHost(int64_t bytes) override {
      std::lock_guard lock(mutex_);
      moved_by_host_ += bytes;
    }
    int distributed() {
      std::lock_guard lock(mutex_);
      return distributed_;
    }
    int64_t moved_by_host() {
      std::lock_guard lock(mutex_);
      return moved_by_host_;
    }
    std::string last() {
      std::lock_guard lock(mutex_);
      return last_;
    }
    std::map<std::string, int> runs() {
      std::lock_guard lock(mutex_);
      return runs_;
    }

   private:
    std::mutex mutex_;
    std::string last_;
    std::map<std::string, int> runs_;
    int distributed_ = 0;
    int64_t moved_by_host_ = 0;
  };

  const test::Pattern pattern_ = test::Uniform(kRows, kRows, 6, 12);
  Listener observer_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace sparsed::engine
