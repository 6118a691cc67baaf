// Request ids, traces and slow requests, as callers see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

std::string IdIn(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto [begin, end] = metadata.equal_range("x-request-id");
  if (begin == end || std::next(begin) != end) return "not one";
  return {begin->second.data(), begin->second.size()};
}

TEST(RequestIds, EveryCallIsToldItsOwn) {
  TestServer server;
  std::set<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::ServerInfo info;
    ASSERT_TRUE(server.admin().GetServerInfo(&context, {}, &info).ok());
    ids.insert(IdIn(context.GetServerTrailingMetadata()));
    EXPECT_EQ(IdIn(context.GetServerInitialMetadata()), IdIn(context.GetServerTrailingMetadata()));
  }
  EXPECT_EQ(ids.size(), 3) << "an id was given twice";
}

TEST(RequestIds, ACallersOwnIsTakenIfItIsOne) {
  TestServer server;
  const auto told = [&](const std::string& said) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", said);
    v1::MatrixInfo info;
    v1::GetMatrixRequest request;
    request.set_name("nobody");
    EXPECT_EQ(server.catalog().Get(&context, request, &info).error_code(),
              grpc::StatusCode::NOT_FOUND);
    return IdIn(context.GetServerTrailingMetadata());
  };
  EXPECT_EQ(told("step-17"), "step-17");
  EXPECT_NE(told("two words"), "two words");
  EXPECT_NE(told(std::string(65, 'x')), std::string(65, 'x'));
}

TEST(RequestIds, RequestsOfAStreamHaveTheStreamsWithTheirOwn) {
  TestServer server;
  MakeGood(server);
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "stream-1");
  auto stream = server.compute().Spmm(&context);
  v1::SpmmRequest bad = SpmmStartOf(7, "nobody", 1, 1);
  ASSERT_TRUE(stream->Write(bad));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[7].code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(answers[7].ends.front().timings().request_id(), "stream-1/7");
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

/// Those that the caller may see.
std::vector<v1::SlowRequest> Slow(TestServer& server, int limit = 0,
                                  const std::string& operation = "") {
  grpc::ClientContext context;
  v1::ListSlowRequest request;
  request.set_limit(limit);
  request.set_operation(operation);
  v1::ListSlowReply reply;
  const grpc::Status status = server.admin().ListSlow(&context, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {reply.requests().begin(), reply.requests().end()};
}

TEST(SlowRequests, HaveWhatTheRequestWas) {
  TestServer server;
  const Pattern pattern = Uniform(40, 30, 5, 1);
  MustUpload(server, "graph", pattern);
  const auto b = FloatValues(int64_t{30} * 8, 2);
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  v1::SpmmRequest start = SpmmStartOf(3, "graph", 30, 8);
  start.mutable_start()->set_alpha(2);
  start.mutable_start()->mutable_trace()->set_traceparent(
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  ASSERT_TRUE(stream->Write(start));
  ASSERT_TRUE(WriteArray<v1::SpmmRequest>(*stream, 3, 0, BytesOf(b)));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  ASSERT_EQ(answers[3].code(), 0) << answers[3].message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());

  bool product = false, upload = false;
  ASSERT_TRUE(Eventually([&] { return Slow(server).size() >= 2; }));
  uint64_t before = std::numeric_limits<uint64_t>::max();
  for (const v1::SlowRequest& slow : Slow(server)) {
    EXPECT_LE(slow.timings().total_ns(), before) << "the slowest come first";
    before = slow.timings().total_ns();
    EXPECT_EQ(slow.subject(), "graph");
    EXPECT_EQ(slow.tenant(), "default");
    EXPECT_EQ(slow.code(), "OK");
    EXPECT_GT(slow.timings().total_ns(), 0);
    EXPECT_GT(slow.ended_unix_ns(), int64_t{1} << 60);
    if (slow.operation() == "upload") {
      upload = true;
      EXPECT_THAT(slow.parameters(), HasSubstr("40x30"));
    } else {
      product = true;
      EXPECT_EQ(slow.operation(), "spmm");
      EXPECT_EQ(slow.k(), 8);
      EXPECT_EQ(slow.parameters(), "alpha=2");
      EXPECT_EQ(slow.plan(), answers[3].begins.empty() ? answers[3].ends[0].begin().plan()
                                                       : answers[3].begins[0].plan());
      EXPECT_EQ(slow.transport(), "stream");
      EXPECT_EQ(slow.bytes_in(), b.size() * sizeof(float));
      EXPECT_EQ(slow.bytes_out(), 40 * 8 * sizeof(float));
      EXPECT_EQ(slow.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
      EXPECT_EQ(slow.request_id(), answers[3].ends.front().timings().request_id());
    }
  }
  EXPECT_TRUE(product && upload);
  EXPECT_EQ(Slow(server, 1).size(), 1);
}

TEST(SlowRequests, ALimitIsOne) {
  TestServer server;
  for (const int limit : {-1, 101}) {
    grpc::ClientContext context;
    v1::ListSlowRequest request;
    request.set_limit(limit);
    v1::ListSlowReply reply;
    const grpc::Status status = server.admin().ListSlow(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("1 to 100"));
  }
}

TEST(SlowRequests, AnOperationIsOne) {
  TestServer server;
  grpc::ClientContext context;
  v1::ListSlowRequest request;
  request.set_operation("spmv");
  v1::ListSlowReply reply;
  const grpc::Status status = server.admin().ListSlow(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("operation 'spmv' is none"));
}

TEST(SlowRequests, WhatClientsChoseIsText) {
  TestServer server;
  grpc::ClientContext context;
  v1::MatrixInfo info;
  v1::GetMatrixRequest request;
  request.set_name("a\nb\x1b[31m");
  EXPECT_FALSE(server.catalog().Get(&context, request, &info).ok());
  EXPECT_TRUE(Slow(server).empty()) << "it only asks what the server knows";
  const auto slow = Slow(server, 0, "get");
  ASSERT_EQ(slow.size(), 1);
  EXPECT_EQ(slow.front().subject(), "a\\x0ab\\x1b[31m");
  EXPECT_NE(slow.front().code(), "OK");
}

TEST(Errors, AreCountedByWhoseDoingTheyWere) {
  TestServer server(WithPages);
  grpc::ClientContext context;
  v1::MatrixInfo info;
  v1::GetMatrixRequest request;
  request.set_name("nobody");
  EXPECT_FALSE(server.catalog().Get(&context, request, &info).ok());
  const std::string metrics = server.Page("/metrics");
  EXPECT_THAT(metrics, HasSubstr("sparsed_request_errors_total{cause=\"caller\",kind=\"status\","
                                 "op=\"get\",tenant=\"default\"} 1"));
  EXPECT_THAT(metrics, testing::Not(HasSubstr("cause=\"server\"")));
}

}  // namespace
}  // namespace sparsed::test
