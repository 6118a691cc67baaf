// What calls are known by: request ids, traces, and which requests count as slow.
#include "server/telemetry/call_origin.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "server/config/otlp_endpoint.h"
#include "server/telemetry/slow_requests.h"

namespace sparsed::server {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpan[] = "00f067aa0ba902b7";

std::string Parent(const std::string& version = "00", const std::string& flags = "01") {
  return version + "-" + kTrace + "-" + kSpan + "-" + flags;
}

TEST(TraceContext, IsReadAsTheStandardHasIt) {
  const auto context = ParseTraceContext(Parent(), "vendor=1,other=2");
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kSpan);
  EXPECT_EQ(context->state, "vendor=1,other=2");
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(ParseTraceContext(Parent("00", "00"), "")->sampled);
  EXPECT_TRUE(ParseTraceContext(Parent("00", "0b"), "")->sampled);
  EXPECT_FALSE(ParseTraceContext(Parent("00", "fe"), "")->sampled);
  // Of later versions what is known of them.
  EXPECT_TRUE(ParseTraceContext(Parent("01"), "").has_value());
  EXPECT_TRUE(ParseTraceContext(Parent("01") + "-more", "").has_value());
}

TEST(TraceContext, WhatIsMalformedCountsAsAbsent) {
  const std::string zeros(32, '0');
  for (const std::string& parent :
       {std::string(), std::string("00"), Parent("ff"), Parent() + "-more", Parent("0g"),
        Parent("00", "0"), "00-" + zeros + "-" + kSpan + "-01",
        std::string("00-") + kTrace + "-0000000000000000-01",
        std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-") + kSpan + "-01",
        std::string("00_") + kTrace + "-" + kSpan + "-01", Parent("01") + "more",
        std::string(100000, '-')}) {
    EXPECT_FALSE(ParseTraceContext(parent, "").has_value()) << parent.substr(0, 100);
  }
  EXPECT_EQ(ParseTraceContext(Parent(), std::string(513, 'a'))->state, "");
  EXPECT_EQ(ParseTraceContext(Parent(), "a=\n")->state, "");
}

TEST(TraceContext, NewIdsAreOnes) {
  std::set<std::string> spans;
  for (int i = 0; i < 1000; ++i) spans.insert(NewSpanId());
  EXPECT_EQ(spans.size(), 1000);
  EXPECT_TRUE(ParseTraceContext("00-" + NewTraceId() + "-" + NewSpanId() + "-01", "").has_value());
}

TEST(RequestId, WhatACallerMaySay) {
  EXPECT_TRUE(IsRequestId("job-17.step_3:a"));
  EXPECT_TRUE(IsRequestId(std::string(64, 'x')));
  for (const std::string& text :
       {std::string(), std::string(65, 'x'), std::string("a b"), std::string("a/b"),
        std::string("a\n"), std::string("\xc3\xa4")}) {
    EXPECT_FALSE(IsRequestId(text)) << text;
  }
  const std::string first = NewRequestId(), second = NewRequestId();
  EXPECT_NE(first, second);
  EXPECT_TRUE(IsRequestId(first)) << first;
}

TEST(RequestId, TellsNothingOfOthers) {
  std::set<std::string> ids, beginnings;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewRequestId();
    EXPECT_EQ(id.size(), 16) << id;
    ids.insert(id);
    beginnings.insert(id.substr(0, 8));
  }
  EXPECT_EQ(ids.size(), 1000);
  EXPECT_GT(beginnings.size(), 990) << "they have something in common";
}

TEST(OtlpEndpoint, IsAPlainUrl) {
  EXPECT_EQ(ParseOtlpEndpoint("http://127.0.0.1:4318")->address, "127.0.0.1:4318");
  EXPECT_EQ(ParseOtlpEndpoint("http://127.0.0.1:4318/")->path, "/v1/traces");
  EXPECT_EQ(ParseOtlpEndpoint("http://[::1]:4318/otlp/v1/traces")->path, "/otlp/v1/traces");
  for (const char* url : {"", "127.0.0.1:4318", "https://host:4318", "http://host",
                          "http://host:70000", "http://user@host:1", "http://host:1/a b",
                          "http://host:0", "http://unix:/x:1", "http://host:1/?a=b"}) {
    EXPECT_FALSE(ParseOtlpEndpoint(url).ok()) << url;
  }
}

StageRecord Request(const std::string& tenant, uint64_t total_ns, Op op = Op::kSpmm) {
  StageRecord record;
  record.op = op;
  record.tenant = tenant;
  record.total_ns = total_ns;
  return record;
}

TEST(SlowRequests, TheSlowestOfEachTenantStay) {
  SlowRequests slow;
  const auto now = SlowRequests::Clock::now();
  slow.Add(Request("calm", 5), now);
  for (uint64_t i = 1; i <= 1000; ++i) slow.Add(Request("busy", i), now);
  const std::string busy = "busy", calm = "calm", nobody = "nobody";
  const auto of_busy = slow.List({.tenant = &busy}, now);
  ASSERT_EQ(of_busy.size(), SlowRequests::kMostOfTenant);
  EXPECT_EQ(of_busy.front().record.total_ns, 1000);
  EXPECT_EQ(of_busy.back().record.total_ns, 1000 - SlowRequests::kMostOfTenant + 1);
  ASSERT_EQ(slow.List({.tenant = &calm}, now).size(), 1);
  EXPECT_EQ(slow.List({}, now).size(), SlowRequests::kMostOfTenant + 1);
  EXPECT_TRUE(slow.List({.tenant = &nobody}, now).empty());
}

TEST(SlowRequests, AreOfTheLastHour) {
  SlowRequests slow;
  const auto now = SlowRequests::Clock::now();
  for (uint64_t i = 0; i < SlowRequests::kMostOfTenant; ++i) slow.Add(Request("t", 100 + i), now);
  const auto later = now + SlowRequests::kKept + std::chrono::seconds(1);
  EXPECT_TRUE(slow.List({}, later).empty());
  // What is gone takes nobody's place.
  slow.Add(Request("t", 1), later);
  ASSERT_EQ(slow.List({}, later).size(), 1);
  EXPECT_EQ(slow.List({}, later).front().record.total_ns, 1);
}

TEST(SlowRequests, TenantsAreBounded) {
  SlowRequests slow;
  const auto now = SlowRequests::Clock::now();
  for (size_t i = 0; i < 3 * SlowRequests::kMostTenants; ++i) {
    for (uint64_t n = 0; n < 3; ++n) {
      slow.Add(Request(fmt::format("t{}", i), 1 + n), now + std::chrono::seconds(i));
    }
  }
  const auto end = now + std::chrono::minutes(5);
  EXPECT_EQ(slow.List({}, end).size(), SlowRequests::kMostListed);
  const std::string first = "t0", last = fmt::format("t{}", 3 * SlowRequests::kMostTenants - 1);
  EXPECT_TRUE(slow.List({.tenant = &first}, end).empty());
  EXPECT_EQ(slow.List({.tenant = &last}, end).size(), 3);
}

TEST(SlowRequests, WhatWaitsForEventsIsNoneOfThem) {
  SlowRequests slow;
  for (const Op op : {Op::kWatch, Op::kSaveSnapshot, Op::kWatchRequests, Op::kCalibrate}) {
    slow.Add(Request("t", 1'000'000'000, op));
    EXPECT_TRUE(slow.List({.op = op}).empty()) << Name(op);
  }
  EXPECT_TRUE(slow.List({}).empty());
}

/// Who asks why something is slow does not push it out.
TEST(SlowRequests, StatusCallsAreApart) {
  SlowRequests slow;
  slow.Add(Request("t", 1000, Op::kSpmm));
  for (size_t i = 0; i < 2 * SlowRequests::kMostOfTenant; ++i) {
    slow.Add(Request("t", 1'000'000'000, Op::kExplain));
    slow.Add(Request("t", 1'000'000, Op::kList));
  }
  ASSERT_EQ(slow.List({}).size(), 1);
  EXPECT_EQ(slow.List({}).front().record.op, Op::kSpmm);
  EXPECT_EQ(slow.List({.op = Op::kSpmm}).size(), 1);
  EXPECT_EQ(slow.List({.op = Op::kExplain}).size(),
            SlowRequests::kMostOfTenant - SlowRequests::kOfOperation);
  EXPECT_EQ(slow.List({.op = Op::kList}).size(), SlowRequests::kOfOperation);
  EXPECT_TRUE(slow.List({.op = Op::kUpload}).empty());
}

TEST(SlowRequests, TheSlowestOfEachOperationStaysUnlessItWasQuick) {
  constexpr uint64_t kMs = 1'000'000;
  SlowRequests slow;
  for (uint64_t i = 1; i <= 10; ++i) slow.Add(Request("t", i * kMs, Op::kUpload));
  for (uint64_t i = 1; i <= 10; ++i) slow.Add(Request("t", i * 1000, Op::kRename));
  for (uint64_t i = 0; i < 100; ++i) slow.Add(Request("t", (1000 + i) * kMs, Op::kSpmm));
  for (uint64_t i = 1; i <= 10; ++i) slow.Add(Request("t", (100 + i) * kMs, Op::kDelete));
  for (const auto& [op, slowest] :
       {std::pair(Op::kUpload, uint64_t{10}), std::pair(Op::kDelete, uint64_t{110})}) {
    const auto of_op = slow.List({.op = op});
    ASSERT_EQ(of_op.size(), SlowRequests::kOfOperation) << Name(op);
    EXPECT_EQ(of_op.front().record.total_ns, slowest * kMs);
  }
  EXPECT_TRUE(slow.List({.op = Op::kRename}).empty());
  const auto all = slow.List({});
  ASSERT_EQ(all.size(), SlowRequests::kMostOfTenant);
  EXPECT_EQ(all.front().record.total_ns, 1099 * kMs);
  // Of more operations than there are places, some of all that fit.
  for (int op = 0; op < kOps; ++op) {
    for (uint64_t i = 0; i < 50; ++i) slow.Add(Request("t", 1000 * kMs - i, static_cast<Op>(op)));
  }
  EXPECT_EQ(slow.List({}).size(), SlowRequests::kMostOfTenant);
  EXPECT_FALSE(slow.List({.op = Op::kSpmm}).empty());
  EXPECT_FALSE(slow.List({.op = Op::kUpload}).empty());
}

/// A tour through many operations, quick ones most of them, does not push out slow products.
TEST(SlowRequests, SlowOnesStayAmongManyOperations) {
  constexpr uint64_t kMs = 1'000'000;
  SlowRequests slow;
  const std::array tour = {Op::kSddmm, Op::kSpgemm, Op::kDownload, Op::kCopy,   Op::kRename,
                           Op::kShare, Op::kDelete, Op::kUpload,   Op::kPrepare};
  for (uint64_t round = 1; round <= 4; ++round) {
    for (const Op op : tour) slow.Add(Request("t", round * kMs / 2, op));
  }
  for (uint64_t i = 0; i < 20; ++i) slow.Add(Request("t", (300 + i) * kMs, Op::kSpmm));
  EXPECT_EQ(slow.List({.op = Op::kSpmm}).size(), 20);
  EXPECT_EQ(slow.List({}).front().record.total_ns, 319 * kMs);
}

TEST(TraceScope, IsThatOfTheInnermost) {
  const TraceContext outer{kTrace, "00f067aa0ba902b7", "", true};
  EXPECT_FALSE(TraceScope::Current().traced());
  {
    const TraceScope scope(outer);
    EXPECT_EQ(TraceParentOf(TraceScope::Current()),
              "00-" + outer.trace_id + "-00f067aa0ba902b7-01");
    {
      const TraceScope none((TraceContext()));
      EXPECT_FALSE(TraceScope::Current().traced());
    }
    EXPECT_EQ(TraceScope::Current().trace_id, outer.trace_id);
  }
  EXPECT_FALSE(TraceScope::Current().traced());
}

TEST(TraceParentOf, HasASpanOfItsOwnWhereTheTraceHasNone) {
  const TraceContext made{NewTraceId(), "", "", false};
  const auto read = ParseTraceContext(TraceParentOf(made), "");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->trace_id, made.trace_id);
  EXPECT_FALSE(read->sampled);
}

TEST(Ops, HaveNamesThatAreReadBack) {
  for (int i = 0; i < kOps; ++i) {
    const auto op = static_cast<Op>(i);
    EXPECT_EQ(ParseOp(Name(op)), op);
  }
  for (const Op op : {Op::kGet, Op::kGetStats, Op::kListSlow}) EXPECT_EQ(KindOf(op), "status");
  // Explain computes.
  for (const Op op : {Op::kSpmm, Op::kUpload, Op::kExplain}) EXPECT_EQ(KindOf(op), "work");
  EXPECT_EQ(ParseOp("spmv"), std::nullopt);
  EXPECT_EQ(ParseOp(""), std::nullopt);
}

}  // namespace
}  // namespace sparsed::server
