// Catalog.Explain: what it says of patterns whose answer is known, and how it refuses and ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "engine/execution/backend.h"
#include "kernels/pipeline.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

grpc::Status Explain(TestServer& server, const v1::ExplainRequest& request, v1::ExplainReply* reply,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  return server.catalog().Explain(&context, request, reply);
}

v1::ExplainRequest RequestOf(const std::string& name, int64_t k, int64_t cache_bytes) {
  v1::ExplainRequest request;
  request.set_name(name);
  request.set_k(k);
  request.set_cache_bytes(cache_bytes);
  return request;
}

/// A band whose rows and columns were renamed at random.
Pattern ShuffledBand(int32_t rows) {
  const int32_t stride = 2 * (rows * 31 / 100) + 1;
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t i = 0; i < rows; ++i) {
    for (int32_t j = std::max(0, i - 4); j < std::min(rows, i + 5); ++j) {
      entries.emplace_back(int64_t{i} * stride % rows, int64_t{j} * stride % rows);
    }
  }
  return FromCoordinates(rows, rows, entries);
}

/// That of the bytes which the operation moves, unless this machine, at the rates that were
/// measured on it, computes more slowly than it moves them.
void ExpectLimit(const v1::ExplainReply& reply, const v1::ExplainedOperation& operation,
                 const std::string& of_bytes) {
  const auto seconds = [&](double bytes) {
    return std::max(operation.stored().flops() / reply.flops_per_second(),
                    bytes / reply.bytes_per_second());
  };
  const double moved = operation.stored().moved_bytes();
  EXPECT_EQ(operation.limit(),
            seconds(moved) > moved / reply.bytes_per_second() ? "arithmetic" : of_bytes);
  EXPECT_DOUBLE_EQ(operation.greatest_gain(),
                   seconds(moved) / seconds(operation.stored().footprint_bytes()));
}

TEST(Explain, SaysWhatAnOrderCouldGain) {
  TestServer server;
  MustUpload(server, "band", Band(4096, 4));
  MustUpload(server, "shuffled", ShuffledBand(4096));
  v1::ExplainReply band, shuffled;
  ASSERT_TRUE(Explain(server, RequestOf("band", 64, 64 << 10), &band).ok());
  ASSERT_TRUE(Explain(server, RequestOf("shuffled", 64, 64 << 10), &shuffled).ok());
  EXPECT_EQ(band.device(), "cpu");
  EXPECT_EQ(band.cache_bytes(), 64 << 10);
  EXPECT_EQ(band.line_bytes(), 64);
  EXPECT_EQ(band.reordered_by(), "breadth_first");
  EXPECT_GT(band.bytes_per_second(), 0);
  EXPECT_GT(band.flops_per_second(), 0);
  ASSERT_EQ(band.operations_size(), 3);
  EXPECT_EQ(band.operations(0).k(), 1);
  EXPECT_EQ(band.operations(1).k(), 64);
  EXPECT_EQ(band.operations(2).operation(), v1::ProblemClass::SPGEMM);

  const v1::ExplainedOperation& in_order = band.operations(1);
  ExpectLimit(band, in_order, "bandwidth");
  const double footprint = in_order.stored().footprint_bytes();
  EXPECT_LT(in_order.stored().moved_bytes(), 1.05 * footprint);
  const v1::ExplainedOperation& mixed = shuffled.operations(1);
  ExpectLimit(shuffled, mixed, "cache_misses");
  EXPECT_DOUBLE_EQ(mixed.stored().footprint_bytes(), footprint);
  EXPECT_GT(mixed.stored().moved_bytes(), 2 * footprint);
  EXPECT_LT(mixed.reordered().moved_bytes(), 1.1 * footprint);
  EXPECT_GT(mixed.known_gain(), 0.9 * mixed.greatest_gain());
  // The band's square has 17 diagonals.
  EXPECT_DOUBLE_EQ(band.operations(2).stored().result_nnz(), 17 * 4096 - 2 * (8 * 9 / 2));
}

TEST(Explain, NamesOtherLimits) {
  TestServer server;
  MustUpload(server, "band", Band(1000, 2));
  MustUpload(server, "empty", FromCoordinates(5, 5, {}));
  std::vector<std::pair<int32_t, int32_t>> arrow;
  for (int32_t i = 0; i < 5000; ++i) arrow.emplace_back(0, i);
  arrow.emplace_back(17, 3);
  MustUpload(server, "one-row", FromCoordinates(5000, 5000, arrow));
  v1::ExplainReply reply;
  // The device's cache holds a small matrix.
  ASSERT_TRUE(Explain(server, RequestOf("band", 0, 0), &reply).ok());
  EXPECT_GT(reply.cache_bytes(), 1 << 20);
  EXPECT_EQ(reply.operations(1).k(), 128);
  EXPECT_EQ(reply.operations(0).limit(), "cache");
  ASSERT_TRUE(Explain(server, RequestOf("empty", 8, 0), &reply).ok());
  for (const auto& operation : reply.operations()) {
    EXPECT_EQ(operation.limit(), "nothing");
    EXPECT_EQ(operation.greatest_gain(), 1);
  }
  ASSERT_TRUE(Explain(server, RequestOf("one-row", 8, 1 << 10), &reply).ok());
  EXPECT_GT(reply.operations(0).stored().largest_row(), 0.99);
  EXPECT_EQ(reply.operations(0).limit(), reply.workers() > 2 ? "imbalance" : "bandwidth");
}

/// What the last level cache holds is limited by something else, of which rates tell what it is.
TEST(Explain, SaysWhatLimitsWhatIsInCache) {
  TestServer server;
  MustUpload(server, "band", Band(20000, 8));
  const auto of_band = [&](v1::ExplainReply& reply, int64_t cache_bytes = 1 << 30) {
    const grpc::Status status = Explain(server, RequestOf("band", 64, cache_bytes), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.operations(1);
  };
  const auto calibrate = [&](double cache_bytes_per_second, double flops_per_second) {
    engine::Calibration calibration;
    calibration.measured_unix_ns = 7;
    calibration.constants.cache_bytes_per_second = cache_bytes_per_second;
    calibration.constants.f32_flops_per_second = flops_per_second;
    server.engine().executor().backend({}).Use(calibration);
  };
  v1::ExplainReply reply;
  v1::ExplainedOperation band = of_band(reply);
  ASSERT_EQ(band.limit(), "cache");
  EXPECT_EQ(reply.calibrated_unix_ns(), 0);
  EXPECT_GT(reply.inner_cache_bytes(), 0);
  EXPECT_GT(reply.cache_bytes_per_second(), 0) << "measured where no calibration says it";
  EXPECT_NE(band.cache_limit(), "");
  EXPECT_GE(band.inner().moved_bytes(), 0.99 * band.stored().footprint_bytes());
  EXPECT_EQ(band.inner().flops(), band.stored().flops());

  calibrate(/*cache_bytes_per_second=*/1e9, /*flops_per_second=*/1e15);
  band = of_band(reply);
  EXPECT_EQ(reply.calibrated_unix_ns(), 7);
  EXPECT_EQ(reply.cache_bytes_per_second(), 1e9);
  EXPECT_EQ(band.cache_limit(), "cache_bandwidth");
  EXPECT_DOUBLE_EQ(band.greatest_gain(),
                   band.inner().moved_bytes() / band.inner().footprint_bytes());

  calibrate(/*cache_bytes_per_second=*/1e15, /*flops_per_second=*/1e9);
  band = of_band(reply);
  EXPECT_EQ(band.cache_limit(), "arithmetic");
  EXPECT_EQ(band.greatest_gain(), 1);

  band = of_band(reply, 64 << 10);
  EXPECT_NE(band.limit(), "cache");
  EXPECT_EQ(band.cache_limit(), "");
  EXPECT_FALSE(band.has_inner());
}

TEST(Explain, SaysWhereTheTimeOfRequestsWent) {
  TestServer server;
  MustUpload(server, "unused", Band(100, 2));
  MakeGood(server);
  ExpectGood(server);
  ExpectGood(server);
  v1::ExplainReply reply;
  // A record ends after its answer.
  ASSERT_TRUE(Eventually([&] {
    return Explain(server, RequestOf("good", 8, 0), &reply).ok() &&
           reply.requests().requests() > 1.5;
  }));
  EXPECT_EQ(reply.requests().requests(), 2);
  EXPECT_GT(reply.requests().mean().total_ns(), 0);
  EXPECT_LE(reply.requests().mean().kernel_ns(), reply.requests().mean().total_ns());
  EXPECT_EQ(reply.requests().transport(), "stream");
  EXPECT_THAT(reply.requests().finding(), HasSubstr(" is "));
  ASSERT_EQ(reply.requests().transports_size(), 1);
  EXPECT_EQ(reply.requests().transports(0).requests(), 2);
  EXPECT_EQ(reply.requests().transports(0).transport(), "stream");
  EXPECT_EQ(reply.requests().transports(0).finding(), reply.requests().finding());
  EXPECT_EQ(reply.type(), v1::ELEMENT_TYPE_F32);
  ASSERT_TRUE(Explain(server, RequestOf("unused", 8, 0), &reply).ok());
  EXPECT_FALSE(reply.has_requests());
}

TEST(Explain, WithoutAWidthItIsThatOfTheLastProducts) {
  TestServer server;
  MustUpload(server, "unused", Band(100, 2));
  MakeGood(server);
  ExpectGood(server);
  v1::ExplainReply reply;
  ASSERT_TRUE(Eventually([&] {
    return Explain(server, RequestOf("good", 0, 0), &reply).ok() && reply.has_requests();
  }));
  EXPECT_NE(reply.operations(1).k(), 128);
  EXPECT_GT(reply.operations(1).k(), 1);
  ASSERT_TRUE(Explain(server, RequestOf("unused", 0, 0), &reply).ok());
  EXPECT_EQ(reply.operations(1).k(), 128);
}

TEST(Explain, JudgesTheOrderThatServes) {
  TestServer server;
  MustUpload(server, "shuffled", ShuffledBand(4096));
  v1::ExplainReply reply;
  ASSERT_TRUE(Explain(server, RequestOf("shuffled", 64, 64 << 10), &reply).ok());
  const v1::ExplainedOperation before = reply.operations(1);
  EXPECT_EQ(before.order(), "");
  EXPECT_EQ(before.served().moved_bytes(), before.stored().moved_bytes());
  EXPECT_EQ(before.reordered_ms(), 0);

  const auto matrix = server.engine().catalog().Find("default", "shuffled");
  ASSERT_TRUE(matrix.ok());
  engine::Pattern& pattern = *(*matrix)->pattern();
  const auto csr = pattern.Csr();
  ASSERT_TRUE(csr.ok());
  BuildContext context;
  context.memory = &server.engine().budget().Source(engine::MemoryUse::kPreparation);
  auto built = BuildLayout(*ParsePipeline("breadth_first"), ViewCsr(**csr), context);
  ASSERT_TRUE(built.ok());
  ASSERT_FALSE(built->skipped);
  pattern.AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0);
  engine::ActivePlan active;
  active.plan.signature = SignatureOf({.k = 64});
  active.plan.pipeline = "breadth_first";
  active.plan.kernel = "cpu.csr.rows";
  active.plan.baseline_ms = 3;
  active.plan.plan_ms = 2;
  active.layout = pattern.FindLayout("breadth_first");
  pattern.plans().Replace(std::make_shared<const engine::ActivePlan>(active));
  engine::Measurement measurement;
  measurement.signature = active.plan.signature;
  measurement.k = 64;
  measurement.pipeline = active.plan.pipeline;
  measurement.kernel = active.plan.kernel;
  measurement.baseline_ms = 3;
  measurement.median_ms = 2;
  pattern.trials().Add(measurement);

  ASSERT_TRUE(Explain(server, RequestOf("shuffled", 64, 64 << 10), &reply).ok());
  const v1::ExplainedOperation& after = reply.operations(1);
  EXPECT_EQ(after.order(), "breadth_first");
  EXPECT_EQ(after.stored().moved_bytes(), before.stored().moved_bytes());
  EXPECT_EQ(after.served().moved_bytes(), before.reordered().moved_bytes());
  EXPECT_LT(after.known_gain(), 1.05);
  // Both 1 where something else than the memory's rate is the roof.
  EXPECT_LE(after.greatest_gain(), before.greatest_gain());
  EXPECT_EQ(after.measured_ms(), 2);
  EXPECT_EQ(after.baseline_ms(), 3);
  EXPECT_EQ(after.reordered_ms(), 2);
}

TEST(Explain, LeavesOutWhatAMatrixCannotDo) {
  TestServer server;
  MustUpload(server, "wide", Uniform(30, 500, 3, 1));
  v1::ExplainReply reply;
  ASSERT_TRUE(Explain(server, RequestOf("wide", 1, 0), &reply).ok());
  ASSERT_EQ(reply.operations_size(), 1);  // SpMM with k = 1 is SpMV, and it has no square
}

TEST(Explain, SaysWhichPlanServesAndWhatItTook) {
  TestServer server([](server::Config& config) { config.preparation_workers = 1; });
  const Pattern pattern = Band(2000, 4);
  v1::UploadHeader header = HeaderOf("band", pattern);
  header.add_expected()->set_operation(v1::ProblemClass::SPMM);
  header.mutable_expected(0)->set_k(64);
  ASSERT_TRUE(Upload(server.catalog(), header, pattern, FloatValues(pattern.nnz(), 1)).ok());
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::GetMatrixRequest request;
    request.set_name("band");
    v1::MatrixInfo info;
    return server.catalog().Get(&context, request, &info).ok() &&
           info.state() == v1::MATRIX_STATE_READY;
  }));
  v1::ExplainReply reply;
  ASSERT_TRUE(Explain(server, RequestOf("band", 64, 0), &reply).ok());
  const v1::ExplainedOperation measured = reply.operations(1);
  EXPECT_GT(measured.measured_ms(), 0);
  EXPECT_EQ(measured.trial_ms(), measured.measured_ms());
  EXPECT_EQ(measured.trial_k(), 64);
  EXPECT_EQ(measured.plan_k(), 64);
  EXPECT_EQ(measured.roof(), "cache");
  // Far above what any device could do in it.
  engine::Calibration calibration;
  calibration.constants.cache_bytes_per_second = 1e16;
  calibration.constants.f32_flops_per_second = 1e17;
  server.engine().executor().backend({}).Use(calibration);
  ASSERT_TRUE(Explain(server, RequestOf("band", 64, 0), &reply).ok());
  EXPECT_EQ(reply.operations(1).cache_limit(), "overhead");
  // Far below what its plan took: the rates are wrong, and nothing is bounded by them.
  calibration.constants.cache_bytes_per_second = 1e6;
  server.engine().executor().backend({}).Use(calibration);
  ASSERT_TRUE(Explain(server, RequestOf("band", 64, 0), &reply).ok());
  EXPECT_EQ(reply.operations(1).cache_limit(), "uncertain");
  EXPECT_GT(reply.operations(1).baseline_ms(), 0);
  calibration.constants.cache_bytes_per_second = 1e16;
  server.engine().executor().backend({}).Use(calibration);
  // What its plan took in the device's own cache says nothing of another.
  ASSERT_TRUE(Explain(server, RequestOf("band", 64, 1 << 30), &reply).ok());
  EXPECT_EQ(reply.operations(1).cache_limit(), "cache_bandwidth");
  EXPECT_GT(measured.roofline_share(), 0);
  // A K between two signatures is served by the nearest one's plan.
  ASSERT_TRUE(Explain(server, RequestOf("band", 100, 0), &reply).ok());
  const v1::ExplainedOperation& near = reply.operations(1);
  EXPECT_EQ(near.measured_ms(), 0);
  EXPECT_EQ(near.roofline_share(), 0);
  EXPECT_EQ(near.measured(), measured.measured());
  EXPECT_EQ(near.plan_k(), 64);
  EXPECT_EQ(near.trial_k(), 64);
  EXPECT_EQ(near.trial_ms(), measured.trial_ms());
  // Of no pair of patterns is anything known.
  EXPECT_EQ(reply.operations(2).measured(), "");
  // What was measured had the device's cache, not this one.
  ASSERT_TRUE(Explain(server, RequestOf("band", 64, 64 << 10), &reply).ok());
  EXPECT_EQ(reply.operations(1).measured_ms(), measured.measured_ms());
  EXPECT_EQ(reply.operations(1).roof(), "");
  EXPECT_EQ(reply.operations(1).roofline_share(), 0);
}

// What another process took from one measurement does not count against the best so far.
TEST(Explain, TheArithmeticRoofNeverFalls) {
  TestServer server;
  MustUpload(server, "band", Band(1000, 2));
  double last = 0;
  for (int i = 0; i < 8; ++i) {
    v1::ExplainReply reply;
    ASSERT_TRUE(Explain(server, RequestOf("band", 8, 0), &reply).ok());
    EXPECT_GT(reply.flops_per_second(), 0);
    EXPECT_GE(reply.flops_per_second(), last);
    last = reply.flops_per_second();
  }
}

TEST(Explain, RefusesWithASentence) {
  TestServer server;
  MakeGood(server);
  const struct {
    v1::ExplainRequest request;
    grpc::StatusCode code;
    const char* sentence;
  } cases[] = {
      {RequestOf("none", 8, 0), grpc::NOT_FOUND, "none"},
      {RequestOf("good", -1, 0), grpc::INVALID_ARGUMENT, "k = -1 is out of range [0, 65536]"},
      {RequestOf("good", 65537, 0), grpc::INVALID_ARGUMENT, "k = 65537"},
      {RequestOf("good", 8, -5), grpc::INVALID_ARGUMENT, "cache_bytes = -5"},
      {RequestOf("good", 8, (int64_t{1} << 40) + 1), grpc::INVALID_ARGUMENT, "cache_bytes"},
      {[] {
         v1::ExplainRequest request = RequestOf("good", 8, 0);
         request.set_device("tpu");
         return request;
       }(),
       grpc::INVALID_ARGUMENT, "device \"tpu\" is neither cpu nor a GPU such as cuda:0"},
      {[] {
         v1::ExplainRequest request = RequestOf("good", 8, 0);
         request.set_device("cuda:0");
         return request;
       }(),
       grpc::FAILED_PRECONDITION, "no GPU"},
  };
  for (const auto& c : cases) {
    v1::ExplainReply reply;
    const grpc::Status status = Explain(server, c.request, &reply);
    EXPECT_EQ(status.error_code(), c.code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(c.sentence));
  }
  ExpectGood(server);
}

TEST(Explain, EndsWithItsCallerAndFreesItsMemory) {
  TestServer server;
  MustUpload(server, "large", Rmat(17, 16, 1));
  const int64_t held = server.engine().budget().used();
  v1::ExplainReply reply;
  EXPECT_EQ(Explain(server, RequestOf("large", 128, 1 << 20), &reply, std::chrono::milliseconds(30))
                .error_code(),
            grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(server.ComesBackTo(held));
}

TEST(Explain, TakesFewAtOnce) {
  TestServer server;
  MustUpload(server, "large", Rmat(15, 16, 1));
  std::vector<std::thread> callers;
  std::atomic<int> answered{0}, refused{0}, others{0};
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      v1::ExplainReply reply;
      const grpc::Status status = Explain(server, RequestOf("large", 128, 1 << 20), &reply);
      ++(status.ok()                                       ? answered
         : status.error_code() == grpc::RESOURCE_EXHAUSTED ? refused
                                                           : others);
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(answered, 1);
  EXPECT_GE(refused, 1);
  EXPECT_EQ(others, 0);
  v1::ExplainReply reply;
  EXPECT_TRUE(
      Eventually([&] { return Explain(server, RequestOf("large", 1, 1 << 20), &reply).ok(); }));
}

}  // namespace
}  // namespace sparsed::test
