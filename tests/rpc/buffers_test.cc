// Buffers over the wire.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <thread>

#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

v1::PutBufferRequest HeaderOfBuffer(const std::string& name, int64_t rows, int64_t cols,
                                    int64_t leading_dimension = 0) {
  v1::PutBufferRequest request;
  request.mutable_header()->set_name(name);
  v1::DenseShape& shape = *request.mutable_header()->mutable_shape();
  shape.set_rows(rows);
  shape.set_cols(cols);
  shape.set_leading_dimension(leading_dimension);
  shape.set_type(v1::ELEMENT_TYPE_F32);
  return request;
}

grpc::Status Put(TestServer& server, const v1::PutBufferRequest& header, std::string_view bytes,
                 v1::BufferInfo* info) {
  grpc::ClientContext context;
  auto writer = server.buffers().Put(&context, info);
  writer->Write(header);
  WriteArray<v1::PutBufferRequest>(*writer, 0, 0, bytes);
  writer->WritesDone();
  return writer->Finish();
}

grpc::Status GetBytes(TestServer& server, const std::string& name, std::string* bytes) {
  grpc::ClientContext context;
  v1::GetBufferRequest request;
  request.set_name(name);
  auto reader = server.buffers().Get(&context, request);
  v1::GetBufferReply reply;
  bytes->clear();
  while (reader->Read(&reply)) {
    if (!reply.has_chunk()) continue;
    EXPECT_EQ(reply.chunk().offset(), bytes->size());
    *bytes += reply.chunk().data();
  }
  return reader->Finish();
}

TEST(Buffers, PutGetListDelete) {
  TestServer server;
  const std::vector<float> values = FloatValues(700 * 500, 1);  // more than one chunk back
  v1::BufferInfo info;
  ASSERT_TRUE(Put(server, HeaderOfBuffer("x", 700, 500), BytesOf(values), &info).ok());
  EXPECT_EQ(info.name(), "x");
  EXPECT_EQ(info.bytes(), 700 * 500 * 4);
  EXPECT_EQ(info.shape().leading_dimension(), 500);
  EXPECT_EQ(info.version(), 1u);
  std::string bytes;
  ASSERT_TRUE(GetBytes(server, "x", &bytes).ok());
  EXPECT_EQ(bytes, BytesOf(values));

  v1::PutBufferRequest zeros = HeaderOfBuffer("zeros", 3, 2, 5);
  zeros.mutable_header()->set_zeros(true);
  // Without several GPUs it is whole.
  zeros.mutable_header()->set_distribution(v1::DISTRIBUTION_COLUMNS);
  ASSERT_TRUE(Put(server, zeros, {}, &info).ok());
  EXPECT_EQ(info.distribution(), v1::DISTRIBUTION_WHOLE);
  EXPECT_EQ(info.parts(), 0);
  ASSERT_TRUE(GetBytes(server, "zeros", &bytes).ok());
  EXPECT_EQ(bytes, std::string(12 * 4, '\0'));

  grpc::ClientContext context;
  v1::ListBuffersReply list;
  ASSERT_TRUE(server.buffers().List(&context, v1::ListBuffersRequest(), &list).ok());
  ASSERT_EQ(list.buffers_size(), 2);
  EXPECT_EQ(list.buffers(0).name(), "x");

  for (const char* name : {"x", "zeros"}) {
    for (const grpc::StatusCode expected : {grpc::OK, grpc::NOT_FOUND}) {
      grpc::ClientContext delete_context;
      v1::DeleteBufferRequest request;
      request.set_name(name);
      v1::DeleteBufferReply reply;
      EXPECT_EQ(server.buffers().Delete(&delete_context, request, &reply).error_code(), expected);
    }
  }
  EXPECT_EQ(GetBytes(server, "x", &bytes).error_code(), grpc::NOT_FOUND);
  EXPECT_TRUE(server.ComesBackTo(0));
}

grpc::Status Renew(TestServer& server, const std::string& name, v1::BufferInfo* info) {
  grpc::ClientContext context;
  v1::RenewBufferRequest request;
  request.set_name(name);
  return server.buffers().Renew(&context, request, info);
}

v1::PutBufferRequest ZerosFor(const std::string& name, const std::string& owner,
                              int64_t time_to_live_ns) {
  v1::PutBufferRequest request = HeaderOfBuffer(name, 250, 1);
  request.mutable_header()->set_zeros(true);
  request.mutable_header()->set_owner(owner);
  request.mutable_header()->set_time_to_live_ns(time_to_live_ns);
  return request;
}

TEST(Buffers, OwnersAndTimesToLive) {
  constexpr int64_t kMinute = 60'000'000'000;
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.buffer_time_to_live_seconds = 120;
  });
  v1::BufferInfo info;
  ASSERT_TRUE(Put(server, ZerosFor("x", "alice/train-17", 10 * kMinute), {}, &info).ok());
  EXPECT_EQ(info.tenant(), "default");
  EXPECT_EQ(info.owner(), "alice/train-17");
  EXPECT_EQ(info.time_to_live_ns(), 10 * kMinute);
  EXPECT_GE(info.idle_ns(), 0);
  ASSERT_TRUE(Put(server, ZerosFor("y", "", 0), {}, &info).ok());
  EXPECT_EQ(info.owner(), "");
  EXPECT_EQ(info.time_to_live_ns(), 2 * kMinute) << "the server's";
  ASSERT_TRUE(Renew(server, "x", &info).ok());
  EXPECT_EQ(info.owner(), "alice/train-17");

  grpc::ClientContext context;
  v1::ListBuffersReply list;
  ASSERT_TRUE(server.buffers().List(&context, v1::ListBuffersRequest(), &list).ok());
  ASSERT_EQ(list.buffers_size(), 2);
  EXPECT_EQ(list.buffers(0).owner(), "alice/train-17");
  EXPECT_EQ(list.buffers(0).time_to_live_ns(), 10 * kMinute);

  const auto has = [&](const std::string& sample) {
    return server.Page("/metrics").find(sample) != std::string::npos;
  };
  EXPECT_TRUE(has("sparsed_buffers{tenant=\"default\"} 2"));
  EXPECT_TRUE(has("sparsed_buffer_bytes{tenant=\"default\"} 6096"));
  EXPECT_TRUE(has("sparsed_buffers_expired_total{tenant=\"default\"} 0"));
  EXPECT_FALSE(has("sparsed_buffer_limit_bytes")) << "without a quota";

  ASSERT_TRUE(Put(server, ZerosFor("short", "", 1), {}, &info).ok());
  grpc::Status gone;
  ASSERT_TRUE(Eventually([&] {
    server.engine().dense().Expire();
    gone = Renew(server, "short", &info);
    return gone.error_code() == grpc::NOT_FOUND &&
           gone.error_message().find("'short' expired: nothing used it") != std::string::npos;
  })) << gone.error_message();
  std::string bytes;
  EXPECT_EQ(GetBytes(server, "short", &bytes).error_message(), gone.error_message());
  EXPECT_TRUE(has("sparsed_buffers_expired_total{tenant=\"default\"} 1"));
  gone = Renew(server, "nobody", &info);
  EXPECT_EQ(gone.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(gone.error_message(), "there is no buffer named 'nobody'");
}

TEST(Buffers, EveryUseOverTheWireBeginsTheTimeAnew) {
  using Clock = std::chrono::steady_clock;
  TestServer server;
  MustUpload(server, "s", Uniform(250, 250, 5, 14));
  v1::BufferInfo info;
  for (const char* name : {"x", "y"}) {
    ASSERT_TRUE(Put(server, ZerosFor(name, "", 0), {}, &info).ok());
  }
  const auto idle_of = [&](int index) {
    grpc::ClientContext context;
    v1::ListBuffersReply list;
    EXPECT_TRUE(server.buffers().List(&context, v1::ListBuffersRequest(), &list).ok());
    return std::chrono::nanoseconds(list.buffers(index).idle_ns());
  };
  const auto is_used_by = [&](const char* what, std::initializer_list<int> which, auto use) {
    SCOPED_TRACE(what);
    constexpr std::chrono::milliseconds kPause(20);
    std::this_thread::sleep_for(kPause);
    // To look at the list is none.
    for (const int index : which) EXPECT_GE(idle_of(index), kPause);
    for (const int index : which) EXPECT_GE(idle_of(index), kPause);
    const Clock::time_point began = Clock::now();
    use();
    for (const int index : which) {
      const std::chrono::nanoseconds idle = idle_of(index);
      EXPECT_LE(idle, Clock::now() - began) << index;
    }
  };
  is_used_by("Renew", {0}, [&] { EXPECT_TRUE(Renew(server, "x", &info).ok()); });
  is_used_by("Get", {0}, [&] {
    std::string bytes;
    EXPECT_TRUE(GetBytes(server, "x", &bytes).ok());
  });
  is_used_by("Put", {0}, [&] { EXPECT_TRUE(Put(server, ZerosFor("x", "", 0), {}, &info).ok()); });
  is_used_by("operand and destination", {0, 1}, [&] {
    grpc::ClientContext context;
    const auto stream = server.compute().Spmm(&context);
    v1::SpmmRequest request;
    request.mutable_start()->set_request_id(1);
    request.mutable_start()->set_matrix("s");
    request.mutable_start()->mutable_b()->set_buffer("x");
    request.mutable_start()->mutable_result()->set_buffer("y");
    stream->Write(request);
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  });
}

TEST(Buffers, WhatAJobThatDiedLeftBehindGoesByItself) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.buffer_time_to_live_seconds = 0.1;
    config.buffer_memory_bytes = 4000;
  });
  {
    // The job's own connection; it never comes back.
    const auto stub = v1::Buffers::NewStub(server.Connect());
    grpc::ClientContext context;
    v1::BufferInfo info;
    const auto writer = stub->Put(&context, &info);
    writer->Write(ZerosFor("x", "train-17", 0));
    writer->WritesDone();
    ASSERT_TRUE(writer->Finish().ok());
  }
  const std::string expired = "sparsed_buffers_expired_total{tenant=\"default\"} 1";
  EXPECT_TRUE(Eventually([&] {
    return server.Page("/metrics").find(expired) != std::string::npos;
  })) << "nobody asks for it";
  EXPECT_TRUE(server.ComesBackTo(0));
  v1::BufferInfo info;
  EXPECT_TRUE(Put(server, ZerosFor("y", "", 0), {}, &info).ok()) << "nor does it count";
}

TEST(Buffers, AQuotaForEachTenant) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.buffer_memory_bytes = 4000;
  });
  v1::BufferInfo info;
  ASSERT_TRUE(Put(server, ZerosFor("x", "", 0), {}, &info).ok());
  const grpc::Status refused = Put(server, ZerosFor("y", "", 0), {}, &info);
  EXPECT_EQ(refused.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("952 of 4000 are free (--buffer-memory)"),
            std::string::npos)
      << refused.error_message();
  EXPECT_EQ(refused.error_details(), "") << "no RetryInfo: to wait does not help";
  EXPECT_TRUE(Put(server, ZerosFor("x", "", 0), {}, &info).ok()) << "in its place";
  const std::string page = server.Page("/metrics");
  for (const char* sample :
       {"sparsed_buffer_limit_bytes 4000", "sparsed_buffers_refused_total{tenant=\"default\"} 1"}) {
    EXPECT_NE(page.find(sample), std::string::npos) << sample;
  }
}

TEST(Buffers, ListsMoreThanOneReplyHolds) {
  TestServer server;
  const std::string prefix(200, 'b');
  constexpr int kBuffers = 6000;  // a MiB and more
  for (int i = 0; i < kBuffers; ++i) {
    engine::PutHeader header;
    header.tenant = "default";
    header.name = fmt::format("{}{:04}", prefix, i);
    header.shape = {1, 1, 1, ElementType::kF32};
    header.zeros = true;
    ASSERT_TRUE((*server.engine().dense().BeginPut(header))->Finish().ok());
  }
  v1::ListBuffersRequest request;
  int pages = 0, seen = 0;
  do {
    grpc::ClientContext context;
    v1::ListBuffersReply list;
    ASSERT_TRUE(server.buffers().List(&context, request, &list).ok());
    EXPECT_LE(list.ByteSizeLong(), size_t{2} << 20);
    for (const auto& buffer : list.buffers()) {
      EXPECT_EQ(buffer.name(), fmt::format("{}{:04}", prefix, seen++));
    }
    request.set_page_token(list.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, kBuffers);
  EXPECT_GT(pages, 1);
}

TEST(Buffers, BadInputIsRefusedInASentence) {
  TestServer server;
  v1::BufferInfo info;
  const std::string bytes(24, '\1');
  const auto refused = [&](const v1::PutBufferRequest& header, std::string_view data,
                           std::string_view word) {
    const grpc::Status status = Put(server, header, data, &info);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_message().find(word), std::string::npos) << status.error_message();
  };
  refused(HeaderOfBuffer("x", 3, 2), bytes.substr(0, 20), "[20, 24) of 24 never arrived");
  refused(HeaderOfBuffer("x", 3, 2), bytes + "more", "array");
  refused(HeaderOfBuffer("x", 3, 0), {}, "0 columns");
  refused(HeaderOfBuffer("x", -3, 2), {}, "rows");
  refused(HeaderOfBuffer("x", 3, 2, 1), {}, "leading dimension");
  refused(HeaderOfBuffer("x", int64_t{1} << 62, int64_t{1} << 62), {}, "");
  refused(HeaderOfBuffer("no name", 3, 2), bytes, "name");
  refused(v1::PutBufferRequest(), {}, "neither header nor chunk");
  refused(ChunkOf<v1::PutBufferRequest>(0, 0, 0, bytes), {}, "before");
  v1::PutBufferRequest typeless = HeaderOfBuffer("x", 3, 2);
  typeless.mutable_header()->mutable_shape()->set_type(static_cast<v1::ElementType>(99));
  refused(typeless, bytes, "99");
  refused(ZerosFor("x", "", -1), {}, "time to live of -1 ns");
  refused(ZerosFor("x", "", std::numeric_limits<int64_t>::min()), {}, "time to live");
  refused(ZerosFor("x", "", std::numeric_limits<int64_t>::max()), {}, "(366 days)");
  refused(ZerosFor("x", std::string(256, 'a'), 0), {}, "owner name has 256 bytes");
  refused(ZerosFor("x", "a\tb", 0), {}, "owner name has byte 0x09");
  EXPECT_EQ(Renew(server, "a\tb", &info).error_code(), grpc::INVALID_ARGUMENT);
  v1::PutBufferRequest elsewhere = ZerosFor("x", "", 0);
  elsewhere.mutable_header()->set_distribution(static_cast<v1::Distribution>(7));
  refused(elsewhere, {}, "distribution 7 of buffer 'x' is none that this server knows");
  v1::PutBufferRequest of_none = ZerosFor("x", "", 0);
  of_none.mutable_header()->set_distribution(v1::DISTRIBUTION_ROWS);
  of_none.mutable_header()->set_rows_of("none");
  EXPECT_EQ(Put(server, of_none, {}, &info).error_code(), grpc::NOT_FOUND);
  const grpc::Status large =
      Put(server, HeaderOfBuffer("x", int64_t{1} << 20, 1 << 12), {}, &info);  // 16 GiB
  EXPECT_EQ(large.error_code(), grpc::RESOURCE_EXHAUSTED) << large.error_message();
  EXPECT_TRUE(server.ComesBackTo(0));
  MakeGood(server);
  ExpectGood(server);
}

}  // namespace
}  // namespace sparsed::test
