// Where the time of requests went, in sentences.
#include "server/telemetry/time_spent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace sparsed::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kMillisecond = 1'000'000;

StageRecord Product(uint64_t total_ms, std::initializer_list<std::pair<Phase, uint64_t>> phases,
                    uint64_t stream_bytes = 100'000'000) {
  StageRecord record;
  record.total_ns = total_ms * kMillisecond;
  for (const auto& [phase, milliseconds] : phases) record[phase] = milliseconds * kMillisecond;
  record.stream_bytes_in = stream_bytes;
  return record;
}

std::string FindingOf(const StageRecord& record) {
  TimeSpent time;
  time.Add(record);
  return Finding(time, "graph");
}

TEST(TimeSpent, NamesWhatMostOfItIsAndWhatHelps) {
  const std::string wire =
      FindingOf(Product(300, {{Phase::kReceive, 100}, {Phase::kSend, 110}, {Phase::kKernel, 80}}));
  EXPECT_THAT(wire, StartsWith("Most of it, 70 %, is operands and results on their way"));
  EXPECT_THAT(wire, HasSubstr("sparsectl spmm graph --operand=@X --keep-as=Y"));
  EXPECT_THAT(wire, HasSubstr("That saves at most 70 %, 209.800 ms of a request."));
  EXPECT_THAT(wire, HasSubstr("Next, 27 %, is the multiplication (kernel)."));
  EXPECT_THAT(wire, Not(HasSubstr("overlap")));
  const std::string kernel = FindingOf(Product(100, {{Phase::kKernel, 95}, {Phase::kSend, 5}}));
  EXPECT_THAT(kernel, StartsWith("Most of it, 95 %, is the multiplication (kernel). Its plan "
                                 "and what was tried: sparsectl show graph."));
  EXPECT_THAT(kernel, AllOf(Not(HasSubstr("Next")), Not(HasSubstr("saves"))));
  EXPECT_THAT(FindingOf(Product(100, {{Phase::kQueue, 80}})),
              HasSubstr("waiting for a worker slot"));
  const std::string setup = FindingOf(Product(100, {{Phase::kSetup, 80}}));
  EXPECT_THAT(setup, HasSubstr("raise --host-memory"));
  EXPECT_THAT(setup, Not(HasSubstr("disk"))) << "a server in memory has none";
  EXPECT_THAT(FindingOf(Product(100, {{Phase::kToDevice, 40}, {Phase::kFromDevice, 41}})),
              StartsWith("Most of it, 81 %, is copies to and from the GPU"));
  EXPECT_THAT(FindingOf(Product(100, {{Phase::kKernel, 10}})),
              StartsWith("Most of it, 90 %, is between the phases"));
  EXPECT_THAT(
      FindingOf(Product(100, {{Phase::kKernel, 40}, {Phase::kQueue, 35}, {Phase::kSend, 25}})),
      StartsWith("The largest part, 40 %, is the multiplication"));
}

TEST(TimeSpent, PhasesThatOverlapAreNoMoreThanAll) {
  EXPECT_THAT(FindingOf(Product(100, {{Phase::kReceive, 150}, {Phase::kKernel, 50}})),
              AllOf(StartsWith("Most of it, 75 %, is operands"),
                    EndsWith("Phases overlap: shares are of their sum.")));
}

/// A request of microseconds: what its phases take is mostly there whatever one does.
StageRecord Quick(std::initializer_list<std::pair<Phase, uint64_t>> microseconds,
                  uint64_t stream_bytes) {
  StageRecord record = Product(0, microseconds, stream_bytes);
  for (uint64_t& ns : record.phase_ns) ns /= 1000;
  for (const uint64_t ns : record.phase_ns) record.total_ns += ns;
  return record;
}

TEST(TimeSpent, WhatIsQuickGetsNoAdvice) {
  const StageRecord small = Quick({{Phase::kReceive, 90},
                                   {Phase::kQueue, 40},
                                   {Phase::kSetup, 130},
                                   {Phase::kKernel, 20},
                                   {Phase::kSend, 20}},
                                  6400);
  EXPECT_EQ(FindingOf(small),
            "Nothing here is slow: a request takes 0.300 ms, of which 43 % is making ready what it "
            "needs (setup).");
  StageRecord held = Quick({{Phase::kQueue, 30}, {Phase::kSetup, 140}, {Phase::kKernel, 20}}, 0);
  held.held_bytes_in = 6400;
  EXPECT_THAT(FindingOf(held), StartsWith("Nothing here is slow: a request takes 0.190 ms"));
  // Megabytes are another matter, although the request is not a long one.
  EXPECT_THAT(FindingOf(Quick({{Phase::kReceive, 800}, {Phase::kKernel, 200}}, 4'000'000)),
              AllOf(StartsWith("Most of it, 80 %, is operands"), HasSubstr("buffers put"),
                    HasSubstr("saves at most 60 %, 0.600 ms")));
  // So is a part that is worth it beside a larger one that is not, by its own share.
  EXPECT_THAT(FindingOf(Quick({{Phase::kSetup, 500}, {Phase::kQueue, 490}}, 6400)),
              StartsWith("A part, 49 %, is waiting for a worker slot"));
}

TEST(TimeSpent, WhoHadTheWorkerSlotsIsSaid) {
  StageRecord record = Product(100, {{Phase::kQueue, 90}});
  EXPECT_THAT(FindingOf(record), HasSubstr("wider products"));
  record.queue_others_ns = 50 * kMillisecond;
  EXPECT_THAT(FindingOf(record),
              AllOf(HasSubstr("Other tenants' requests had it"), Not(HasSubstr("wider"))));
  record.queue_others_ns = 30 * kMillisecond;
  record.queue_trials_ns = 60 * kMillisecond;
  EXPECT_THAT(FindingOf(record),
              AllOf(HasSubstr("Autotuning had it"), Not(HasSubstr("Other tenants"))));
}

TEST(TimeSpent, FewBytesAreNotWhatTakesLong) {
  const std::string late = FindingOf(Product(100, {{Phase::kReceive, 90}}, 6400));
  EXPECT_THAT(late, AllOf(StartsWith("Most of it, 90 %, is operands"), HasSubstr("are 6.2 KiB"),
                          HasSubstr("the caller sends or takes them late"),
                          Not(HasSubstr("buffers")), Not(HasSubstr("saves"))));
}

TEST(TimeSpent, AShardReceivesRowsOfOtherNodes) {
  StageRecord record = Product(100, {{Phase::kReceive, 90}, {Phase::kKernel, 10}}, 0);
  record.held_bytes_in = 1000;
  TimeSpent time;
  time.Add(record);
  EXPECT_THAT(Finding(time, "shards:0123456789abcdef/1"),
              AllOf(HasSubstr("the rows that other nodes have"), HasSubstr("--partition=metis"),
                    Not(HasSubstr("chain"))));
  EXPECT_THAT(Finding(time, "graph"), HasSubstr("chain"));
  TimeSpent streamed;
  streamed.Add(Product(100, {{Phase::kReceive, 90}}));
  EXPECT_THAT(Finding(streamed, "shards:0123456789abcdef/1"), HasSubstr("--for=MATRIX"));
}

TEST(TimeSpent, OfNothingSaysNothing) {
  EXPECT_EQ(Finding({}, "graph"), "");
  EXPECT_EQ(FindingOf(Product(0, {})), "");
}

TEST(TimeSpent, WhatTheServerHoldsIsNotToBePutThere) {
  StageRecord held = Product(3, {{Phase::kSend, 2}, {Phase::kKernel, 1}}, 0);
  held.held_bytes_in = 2000;
  EXPECT_THAT(FindingOf(held),
              AllOf(HasSubstr("The server keeps them already"), Not(HasSubstr("buffers put"))));
}

TEST(TimeSpent, RequestsAddUp) {
  TimeSpent time;
  time.Add(Product(100, {{Phase::kKernel, 90}}, 5000));
  StageRecord held = Product(10, {{Phase::kKernel, 5}}, 0);
  held.held_bytes_in = 2000;
  held.held_bytes_out = 400;
  time.Add(held);
  EXPECT_DOUBLE_EQ(time.requests, 2);
  EXPECT_DOUBLE_EQ(time.seconds, 0.11);
  EXPECT_DOUBLE_EQ(time[Phase::kKernel], 0.095);
  EXPECT_EQ(TransportOf(time), "stream");
  for (int i = 0; i < 2; ++i) time.Add(held);
  EXPECT_EQ(TransportOf(time), "held");
  EXPECT_EQ(TransportOf(TimeSpent()), "");
}

TEST(TimeSpent, TheMiddleLeavesOutWhatIsUnlikeTheOthers) {
  std::vector<TimeSpent> requests;
  EXPECT_EQ(MiddleOf(requests).requests, 0);
  for (const uint64_t total_ms : {85, 3, 3, 3, 2, 3, 1, 13}) {
    requests.emplace_back().Add(Product(total_ms, {{Phase::kKernel, 1}}));
  }
  const TimeSpent middle = MiddleOf(requests);
  EXPECT_DOUBLE_EQ(middle.requests, 4);
  EXPECT_DOUBLE_EQ(middle.seconds, 0.012);
  requests.resize(3);
  EXPECT_DOUBLE_EQ(MiddleOf(requests).seconds, 0.091) << "of few all count";
}

}  // namespace
}  // namespace sparsed::server
