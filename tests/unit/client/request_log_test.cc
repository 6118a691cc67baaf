// Recorded requests: what is read from them, and what is said of bad lines.
#include "client/cli/request_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace sparsed::cli {
namespace {

using std::chrono::nanoseconds;
using testing::HasSubstr;

class RequestLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "requests_XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<RequestLog> Read(const std::string& text, const std::string& tenant = "") const {
    std::ofstream(folder_ + "/log") << text;
    return ReadRequestLog(folder_ + "/log", tenant);
  }
  /// Of what follows one good line.
  std::string Sentence(const std::string& line) const {
    const auto log = Read(std::string(kGood) + line + "\n");
    EXPECT_TRUE(absl::IsInvalidArgument(log.status())) << line << ": " << log.status();
    return std::string(log.status().message());
  }

  static constexpr const char* kGood =
      R"({"time":"2026-01-31T12:00:01.000Z","level":"debug","event":"request","op":"spmm",)"
      R"("tenant":"a","subject":"web","code":"OK","total_ms":250.5,"k":64})"
      "\n";
  std::string folder_;
};

TEST_F(RequestLogTest, WhatIsRecordedIsReadAgain) {
  SlowRequest request;
  request.ended = std::chrono::system_clock::time_point(std::chrono::seconds(1'700'000'000));
  request.tenant = "a";
  request.operation = "spmm";
  request.subject = "web";
  request.code = "OK";
  request.k = 128;
  request.parameters = "transpose beta=1 allow_tf32";
  request.timings.total = std::chrono::milliseconds(10);
  std::string text = RequestLine(request);
  // One that began before the other and ended after it.
  request.ended += std::chrono::milliseconds(1);
  request.timings.total = std::chrono::milliseconds(20);
  request.operation = "sddmm";
  request.parameters = "unscaled";
  text += RequestLine(request);
  request.operation = "spgemm";
  request.k = 0;
  request.parameters = "right=T transpose_left transpose_right semiring=boolean mask=M count_first";
  request.timings.total = std::chrono::milliseconds(1);
  text += RequestLine(request);
  request.operation = "upload";
  text += RequestLine(request);
  request.operation = "spmm";
  request.code = "NOT_FOUND";
  text += RequestLine(request);
  const auto log = Read(text);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_EQ(log->requests.size(), 3);
  EXPECT_EQ(log->requests[0].arrived, nanoseconds(0));
  EXPECT_EQ(log->requests[1].arrived, std::chrono::milliseconds(9));
  EXPECT_EQ(log->requests[2].arrived, std::chrono::milliseconds(19));
  const ProductKind& sddmm = log->kinds[log->requests[0].kind];
  EXPECT_EQ(sddmm.operation, Operation::kSddmm);
  EXPECT_TRUE(sddmm.unscaled);
  const ProductKind& spmm = log->kinds[log->requests[1].kind];
  EXPECT_EQ(spmm.matrix, "web");
  EXPECT_EQ(spmm.k, 128);
  EXPECT_TRUE(spmm.transpose);
  EXPECT_TRUE(spmm.allow_tf32);
  const ProductKind& spgemm = log->kinds[log->requests[2].kind];
  EXPECT_EQ(spgemm.right, "T");
  EXPECT_EQ(spgemm.mask, "M");
  EXPECT_TRUE(spgemm.transpose && spgemm.transpose_right && spgemm.count_first);
  EXPECT_EQ(spgemm.semiring, Semiring::kBoolean);
  EXPECT_EQ(log->left_out.at("made no product: upload"), 1);
  EXPECT_EQ(log->left_out.at("ended with NOT_FOUND"), 1);
  EXPECT_EQ(log->tenants.at("a"), 3);
}

TEST_F(RequestLogTest, AServersLogIsOne) {
  const auto log =
      Read(std::string(kGood) +
           R"({"time":"2026-01-31T12:00:00.000Z","level":"info","event":"serving","version":"1"})"
           "\n\n"
           R"({"time":"2026-01-31T12:00:02.000Z","event":"request","op":"spmm","tenant":"b",)"
           R"("subject":"web","code":"RESOURCE_EXHAUSTED","total_ms":0,"k":64})"
           "\n");
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_EQ(log->requests.size(), 2);
  EXPECT_EQ(log->kinds.size(), 1) << "the same product, of whomever";
  EXPECT_EQ(log->requests[1].arrived, nanoseconds(1'250'500'000));
  EXPECT_EQ(log->tenants.size(), 2);
  const auto of_b = Read(kGood, "b");
  EXPECT_TRUE(absl::IsInvalidArgument(of_b.status())) << of_b.status();
  EXPECT_THAT(std::string(of_b.status().message()), HasSubstr("of tenant b"));
}

TEST_F(RequestLogTest, BadLinesAreTold) {
  EXPECT_EQ(Sentence("spmm web"), folder_ + "/log:2: it is no object of JSON");
  EXPECT_THAT(Sentence("[1]"), HasSubstr("log:2: it is no object of JSON"));
  EXPECT_THAT(Sentence(R"({"event":1})"), HasSubstr(R"("event" is 1, expected a text)"));
  EXPECT_THAT(Sentence("{}"), HasSubstr(R"(a request without "op")"));
  const auto with = [](const std::string& rest) {
    return fmt::format(R"({{"op":"spmm","arrived_unix_ns":5,"subject":"web"{}}})", rest);
  };
  EXPECT_THAT(Sentence(with("")), HasSubstr(R"(a request without "k")"));
  for (const char* k : {"0", "-1", "65537", "\"x\"", "1e99"}) {
    EXPECT_THAT(Sentence(with(fmt::format(R"(,"k":{})", k))),
                HasSubstr("expected a number from 1 to 65536"));
  }
  EXPECT_THAT(Sentence(with(R"(,"k":8,"parameters":"upside_down")")),
              HasSubstr(R"("parameters" has "upside_down", which no spmm has)"));
  EXPECT_THAT(Sentence(R"({"op":"spmm","subject":"","k":8,"arrived_unix_ns":5})"),
              HasSubstr(R"(empty "subject")"));
  EXPECT_THAT(Sentence(R"({"op":"spmm","subject":"web","k":8,"arrived_unix_ns":-5})"),
              HasSubstr("expected nanoseconds"));
  EXPECT_THAT(Sentence(R"({"op":"spmm","subject":"web","k":8})"), HasSubstr(R"(without "time")"));
  EXPECT_THAT(Sentence(R"({"op":"spmm","time":"noon","total_ms":1,"subject":"web","k":8})"),
              HasSubstr(R"("time" is "noon", expected one such as)"));
  EXPECT_THAT(Sentence(R"({"op":"spmm","time":"2026-01-31T12:00:01Z","total_ms":-1})"),
              HasSubstr(R"("total_ms" is -1)"));
  EXPECT_THAT(Sentence(R"({"op":"spgemm","arrived_unix_ns":5,"subject":"web"})"),
              HasSubstr("an spgemm without \"right=NAME\""));
  EXPECT_THAT(
      Sentence(R"({"op":"spgemm","arrived_unix_ns":5,"subject":"w","parameters":"semiring=x"})"),
      HasSubstr("none of sum-product, boolean"));
  EXPECT_TRUE(absl::IsInvalidArgument(Read("").status()));
  EXPECT_FALSE(ReadRequestLog(folder_ + "/nothing", "").ok());
}

TEST_F(RequestLogTest, NestingMayBeDeep) {
  const std::string open(400'000, '['), close(400'000, ']');
  EXPECT_THAT(Sentence(fmt::format(R"({{"op":{}{}}})", open, close)),
              HasSubstr(R"("op" is an array, expected a text)"));
  EXPECT_THAT(Sentence(R"({"op":)" + open), HasSubstr("it is no object of JSON"));
  EXPECT_THAT(Sentence(fmt::format(R"({{"op":"spmm","arrived_unix_ns":{}{}}})", open, close)),
              HasSubstr(R"("arrived_unix_ns" is an array, expected nanoseconds)"));
  EXPECT_THAT(Sentence(R"({"op":"spmm","arrived_unix_ns":5,"subject":"web","k":{"a":1}})"),
              HasSubstr(R"("k" is an object, expected a number from 1 to 65536)"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  const auto log =
      Read(fmt::format(R"({{"op":"spmm","arrived_unix_ns":5,"subject":"web","k":8,"x":{}1{}}})",
                       objects, std::string(100'000, '}')));
  EXPECT_TRUE(log.ok()) << log.status();
}

TEST_F(RequestLogTest, TimesAreThoseThatNanosecondsHold) {
  for (const char* time :
       {"infinite-past", "infinite-future", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00Z", "2262-04-12T00:00:00Z", "9999-12-31T23:59:59Z"}) {
    EXPECT_THAT(Sentence(fmt::format(
                    R"({{"op":"spmm","time":"{}","total_ms":1,"subject":"web","k":8}})", time)),
                HasSubstr(fmt::format(R"("time" is "{}", expected one from 1970 to 2262)", time)));
  }
  const auto log =
      Read(R"({"op":"spmm","time":"2262-04-11T00:00:00Z","total_ms":1,"subject":"web","k":8})"
           "\n"
           R"({"op":"spmm","arrived_unix_ns":0,"subject":"web","k":8})"
           "\n");
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_GT(log->requests[1].arrived, std::chrono::hours(292 * 365 * 24));
}

TEST_F(RequestLogTest, ASlowReplayHasAnEnd) {
  const std::vector<RecordedRequest> requests = {{nanoseconds(100), 0},
                                                 {std::chrono::hours(24) + nanoseconds(100), 0}};
  const auto twice = ScheduleOf(requests, 2);
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_THAT(*twice, testing::ElementsAre(nanoseconds(0), std::chrono::hours(12)));
  const absl::Status slow = ScheduleOf(requests, 0.001).status();
  EXPECT_TRUE(absl::IsInvalidArgument(slow)) << slow;
  EXPECT_THAT(std::string(slow.message()), HasSubstr("would be due after 1000 days"));
  const absl::Status ever =
      ScheduleOf(std::vector<RecordedRequest>{{nanoseconds(0), 0}, {nanoseconds::max(), 0}}, 0.001)
          .status();
  EXPECT_THAT(std::string(ever.message()), HasSubstr("no replay takes more than 366"));
}

}  // namespace
}  // namespace sparsed::cli
