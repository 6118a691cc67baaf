// A card's block scheduler lets short products pass long ones, and nothing else changes: needs a
// GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

class ShortRequests : public ::testing::Test {
 protected:
  static constexpr int64_t kHugeWidth = 256, kTinyWidth = 8;

  void SetUp() override {
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{16} << 30;
    options.gpu = DeviceOptions{};
    options.preparation.enabled = false;
    engine_ = Engine::Open(options, observer_).value();
    if (engine_->gpus().empty()) GTEST_SKIP() << engine_->devices().back().unavailable;
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "huge", huge_).ok());
    ASSERT_TRUE(SendMatrix(engine_->catalog(), "tiny", tiny_).ok());
    Hold("huge.b", huge_.cols, kHugeWidth);
    Hold("tiny.b", tiny_.cols, kTinyWidth);
  }

  void Hold(const std::string& name, int64_t rows, int64_t k) {
    const std::vector<double> random = test::RandomValues(rows * k, 7);
    const std::vector<float> data(random.begin(), random.end());
    auto put = engine_->dense().BeginPut(
        {"t", name, {rows, k, k, ElementType::kF32}, /*zeros=*/false, false});
    ASSERT_TRUE(put.ok()) << put.status();
    const size_t bytes = data.size() * sizeof(float);
    auto to = (*put)->Claim(0, 0, bytes);
    ASSERT_TRUE(to.ok()) << to.status();
    std::memcpy(*to, data.data(), bytes);
    ASSERT_TRUE((*put)->Finish().ok());
  }
  std::shared_ptr<Result> Submit(const std::string& name) {
    SpmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = name;
    spec.b.held = name + ".b";
    auto result = std::make_shared<Result>();
    auto call = engine_->executor().Begin(spec, result);
    EXPECT_TRUE(call.ok()) << call.status();
    if (call.ok()) (*call)->Submit();
    return result;
  }

  const test::Pattern huge_ = test::Rmat(18, 16, 3), tiny_ = test::Uniform(3000, 3000, 8, 4);
  Observer observer_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ShortRequests, GoBeforeLongOnesAndBothAreWhatTheyAreAlone) {
  const auto huge_alone = Submit("huge"), tiny_alone = Submit("tiny");
  ASSERT_TRUE(huge_alone->Wait().ok()) << huge_alone->end().status;
  ASSERT_TRUE(tiny_alone->Wait().ok()) << tiny_alone->end().status;
  ASSERT_FALSE(huge_alone->bytes.empty());

  const DeviceId device = engine_->gpus().front()->id();
  const int64_t beside = engine_->executor().slot_waits(device).beside;
  std::vector<std::shared_ptr<Result>> huge;
  for (int i = 0; i < 12; ++i) huge.push_back(Submit("huge"));
  const auto tiny = Submit("tiny");
  EXPECT_TRUE(tiny->Wait().ok());
  EXPECT_GT(engine_->executor().in_flight(), 0) << "it waited for all of them";
  EXPECT_TRUE(tiny->bytes == tiny_alone->bytes);
  EXPECT_GT(engine_->executor().slot_waits(device).beside, beside);
  for (const auto& one : huge) {
    EXPECT_TRUE(one->Wait().ok());
    EXPECT_TRUE(one->bytes == huge_alone->bytes);
  }
}

}  // namespace
}  // namespace sparsed::engine
