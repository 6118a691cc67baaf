// Requests of several clients that run as one, over the wire.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

constexpr int64_t kRows = 60, kCols = 50;

/// A client with a connection of its own and one product, of numbers of its own.
class Asker {
 public:
  Asker(TestServer& server, int64_t k, uint64_t seed)
      : k_(k),
        b_(FloatValues(kCols * k, seed)),
        stub_(v1::Compute::NewStub(server.Connect())),
        stream_(stub_->Spmm(&context_)) {
    EXPECT_TRUE(stream_->Write(SpmmStartOf(1, "s", kCols, k)));
  }

  void SendOperand() {
    EXPECT_TRUE(WriteArray<v1::SpmmRequest>(*stream_, 1, 0, BytesOf(b_)));
    EXPECT_TRUE(stream_->WritesDone());
  }
  void Cancel() {
    v1::SpmmRequest request;
    request.mutable_cancel()->set_request_id(1);
    EXPECT_TRUE(stream_->Write(request));
  }
  Answer Await() {
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream_, 1, &answers));
    return answers[1];
  }
  void ExpectRight(const Pattern& s, const std::vector<float>& values, const Answer& answer) {
    ASSERT_EQ(answer.code(), 0) << answer.message();
    std::vector<double> expected(kRows * k_);
    const std::vector<double> wide(values.begin(), values.end()), b(b_.begin(), b_.end());
    reference::Spmm(s.view(), wide.data(), false, b.data(), k_, k_, 1, 0, expected.data());
    const std::vector<float> got = answer.Values<float>(0);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-4) << "at " << i;
  }

 private:
  const int64_t k_;
  const std::vector<float> b_;
  grpc::ClientContext context_;
  const std::unique_ptr<v1::Compute::Stub> stub_;
  const std::unique_ptr<SpmmStream> stream_;
};

/// Longer than the test: the worker slot waits for who is coming, not for the time to pass.
void WithBatches(server::Config& config) {
  WithPages(config);
  config.batch_wait_microseconds = int64_t{3600} * 1'000'000;
}

TEST(Batch, RequestsOfSeveralClientsRunAsOne) {
  TestServer server(WithBatches);
  const Pattern pattern = Uniform(kRows, kCols, 7, 11);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < 5; ++i) askers.push_back(std::make_unique<Asker>(server, 3 + 4 * i, i));
  // All are coming before the first is there.
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 5; }));
  for (const auto& asker : askers) asker->SendOperand();
  for (const auto& asker : askers) {
    const Answer answer = asker->Await();
    asker->ExpectRight(pattern, values, answer);
    ASSERT_EQ(answer.begins.size(), 1u);
    EXPECT_NE(answer.begins[0].plan().find("csr / cpu"), std::string::npos);
    EXPECT_EQ(answer.ends[0].batch(), 5);
    EXPECT_EQ(answer.ends[0].version(), 1u);
    EXPECT_GT(answer.ends[0].timings().kernel_ns(), 0u);
    EXPECT_GT(answer.ends[0].timings().receive_ns(), 0u);
  }
  // One who is alone waits for nobody.
  Asker alone(server, 4, 9);
  alone.SendOperand();
  const Answer answer = alone.Await();
  alone.ExpectRight(pattern, values, answer);
  EXPECT_EQ(answer.ends[0].batch(), 1);
  const std::string metrics = server.Page("/metrics");
  EXPECT_NE(metrics.find("sparsed_batch_requests_count{device=\"cpu\"} 1\n"), std::string::npos);
  EXPECT_NE(metrics.find("sparsed_batch_requests_sum{device=\"cpu\"} 5\n"), std::string::npos);
}

TEST(Batch, OneThatIsCancelledLeavesTheOthersAlone) {
  TestServer server(WithBatches);
  const Pattern pattern = Uniform(kRows, kCols, 7, 11);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  Asker first(server, 4, 1), cancelled(server, 4, 2), last(server, 4, 3);
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 3; }));
  first.SendOperand();
  cancelled.Cancel();
  EXPECT_EQ(cancelled.Await().code(), static_cast<int>(grpc::StatusCode::CANCELLED));
  last.SendOperand();
  for (Asker* const asker : {&first, &last}) {
    const Answer answer = asker->Await();
    asker->ExpectRight(pattern, values, answer);
    EXPECT_EQ(answer.ends[0].batch(), 2);
  }
}

TEST(Batch, IsOffByDefault) {
  EXPECT_EQ(server::Config().batch_wait_microseconds, 0);
  TestServer server(WithPages);
  MustUpload(server, "s", Uniform(kRows, kCols, 7, 11));
  Asker one(server, 4, 1), other(server, 4, 2);
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 2; }));
  one.SendOperand();
  other.SendOperand();
  EXPECT_EQ(one.Await().ends.at(0).batch(), 1);
  EXPECT_EQ(other.Await().ends.at(0).batch(), 1);
  EXPECT_NE(server.Page("/metrics").find("sparsed_batch_requests_count{device=\"cpu\"} 0\n"),
            std::string::npos);
}

}  // namespace
}  // namespace sparsed::test
