// Clients that send nothing more, or take nothing: what they hold comes back in bounded time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tests/fault/raw_http2.h"
#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

/// Short enough to wait for, long enough for a busy machine to bring what was sent.
constexpr double kIdle = 0.5;

void Impatient(server::Config& config) {
  config.receive_idle_seconds = kIdle;
  config.send_idle_seconds = kIdle;
}

/// As GetStats says.
int64_t InFlight(TestServer& server, const std::string& operation, const std::string& activity,
                 int64_t* bytes = nullptr) {
  grpc::ClientContext context;
  v1::Stats stats;
  EXPECT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
  for (const v1::RequestsInFlight& requests : stats.in_flight()) {
    if (requests.operation() != operation || requests.activity() != activity) continue;
    if (bytes != nullptr) *bytes = requests.bytes();
    EXPECT_GE(requests.oldest_seconds(), 0);
    return requests.count();
  }
  return 0;
}

/// A matrix of 1000 nonzeros.
v1::UploadRequest UploadHeaderOf1000() {
  v1::UploadRequest request;
  *request.mutable_header() = HeaderOf("silent", Uniform(100, 100, 10, 1));
  return request;
}

TEST(Silence, EndsAnUpload) {
  TestServer server(Impatient);
  grpc::ClientContext context;
  auto stream = server.catalog().Upload(&context);
  stream->Write(UploadHeaderOf1000());
  WriteArray<v1::UploadRequest>(*stream, 0, 2, std::string(100, 'x'));
  v1::UploadReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("100 bytes of the upload are here"));
  EXPECT_THAT(status.error_message(), HasSubstr("0.5 s (--receive-idle)"));
  EXPECT_TRUE(server.ComesBackTo(0));
}

TEST(Silence, EndsAnUploadThatNeverBegan) {
  TestServer server(Impatient);
  grpc::ClientContext context;
  auto stream = server.catalog().Upload(&context);
  v1::UploadReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST(Silence, OfMessagesWithoutBytes) {
  TestServer server(Impatient);
  grpc::ClientContext context;
  auto stream = server.catalog().Upload(&context);
  stream->Write(UploadHeaderOf1000());
  while (stream->Write(ChunkOf<v1::UploadRequest>(0, 2, 0, ""))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST(Silence, EndsAPutAndAnUpdate) {
  TestServer server(Impatient);
  MakeGood(server);
  grpc::ClientContext put_context;
  v1::BufferInfo held;
  auto put = server.buffers().Put(&put_context, &held);
  v1::PutBufferRequest put_request;
  put_request.mutable_header()->set_name("silent");
  put_request.mutable_header()->mutable_shape()->set_rows(1000);
  put_request.mutable_header()->mutable_shape()->set_cols(1000);
  put_request.mutable_header()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
  put->Write(put_request);
  const grpc::Status status = put->Finish();
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("0 bytes of the put are here"));

  grpc::ClientContext update_context;
  v1::UpdateValuesReply updated;
  auto update = server.catalog().UpdateValues(&update_context, &updated);
  v1::UpdateValuesRequest update_request;
  update_request.mutable_header()->set_name("good");
  update_request.mutable_header()->set_type(v1::ELEMENT_TYPE_F32);
  update->Write(update_request);
  EXPECT_EQ(update->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  ExpectGood(server);
}

TEST(Silence, EndsARequestWithoutItsOperandAndNotItsStream) {
  TestServer server(Impatient);
  MakeGood(server);
  const int64_t before = server.engine().budget().used();
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  stream->Write(SpmmStartOf(1, "good", 50, 3));
  stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 0, std::string(12, 'x')));
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(answers[1].message(), HasSubstr("operand B has 12 of 600 bytes"));
  EXPECT_THAT(answers[1].message(), HasSubstr("(--receive-idle)"));
  EXPECT_TRUE(server.ComesBackTo(before));
  // What comes after all does no harm.
  const std::vector<float> b = FloatValues(50 * 3, 2);
  stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 12, std::string(12, 'x')));
  stream->Write(SpmmStartOf(2, "good", 50, 3));
  WriteArray<v1::SpmmRequest>(*stream, 2, 0, BytesOf(b));
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[2].code(), 0) << answers[2].message();
}

/// Does not end streams on which something comes, however long it takes.
TEST(Silence, IsNoSlowness) {
  TestServer server([](server::Config& config) {
    Impatient(config);
    config.receive_idle_seconds = 3;
  });
  const Pattern pattern = Uniform(100, 100, 10, 1);
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  grpc::ClientContext context;
  auto stream = server.catalog().Upload(&context);
  v1::UploadRequest request;
  *request.mutable_header() = HeaderOf("slow", pattern);
  stream->Write(request);
  WriteArray<v1::UploadRequest>(*stream, 0, 0, BytesOf(pattern.row_offsets));
  WriteArray<v1::UploadRequest>(*stream, 0, 1, BytesOf(pattern.column_indices));
  for (size_t part = 0; part < 8; ++part) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ASSERT_TRUE(stream->Write(
        ChunkOf<v1::UploadRequest>(0, 2, part * 500, BytesOf(values).substr(part * 500, 500))));
  }
  stream->WritesDone();
  v1::UploadReply reply;
  EXPECT_TRUE(stream->Read(&reply));
  EXPECT_TRUE(stream->Finish().ok());
}

/// Nobody reads what comes of `stream`.
template <typename Stream>
void ExpectGivenUp(TestServer& server, const std::string& operation, Stream& stream,
                   int64_t before) {
  ASSERT_TRUE(Eventually([&] { return InFlight(server, operation, "sending") == 1; }));
  EXPECT_TRUE(server.ComesBackTo(before));
  v1::ComputeReply reply;
  while (stream.Read(&reply)) {
  }
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("took nothing"));
  EXPECT_THAT(status.error_message(), HasSubstr("(--send-idle)"));
}

TEST(Unread, ResultsAreGivenUp) {
  TestServer server(Impatient);
  MakeGood(server);
  const int64_t before = server.engine().budget().used();
  constexpr int64_t kWidth = 1 << 17;
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  const std::vector<float> b = FloatValues(50 * kWidth, 2);
  stream->Write(SpmmStartOf(1, "good", 50, kWidth));
  WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b));
  ExpectGivenUp(server, "spmm", *stream, before);
  ExpectGood(server);
}

TEST(Unread, RepliesOfOneMessageAreGivenUp) {
  TestServer server([](server::Config& config) {
    Impatient(config);
    config.listen = {"127.0.0.1:0"};
  });
  RawHttp2 client(server.address());
  // Streams begin without a window: not a byte of a message may be sent.
  client.Send(Http2Frame(kSettingsFrame, 0, 0, std::string("\0\4\0\0\0\0", 6)));
  uint32_t stream = 1;
  int calls = 0;
  for (const char* method :
       {"/sparsed.v1.Catalog/List", "/sparsed.v1.Buffers/List", "/sparsed.v1.Admin/GetStats",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    client.Send(Http2Frame(kHeadersFrame, kEndHeadersFlag, stream, CallHeaders(method)));
    // An empty message; the reflection's stream stays open.
    const bool last = ++calls < 4;
    client.Send(Http2Frame(kDataFrame, last ? kEndStreamFlag : 0, stream, std::string(5, '\0')));
    stream += 2;
  }
  EXPECT_TRUE(Eventually([&] {
    client.Read();
    return client.ended() >= calls;
  })) << client.ended();
  EXPECT_TRUE(client.open());
}

TEST(Unread, APausedProductIsGivenUp) {
  TestServer server(Impatient);
  MustUpload(server, "wide", Uniform(20000, 20000, 24, 6));
  const int64_t before = server.engine().budget().used();
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_left("wide");
  request.mutable_start()->set_right("wide");
  stream->Write(request);
  // Sizes of rows may stay for the next product.
  ExpectGivenUp(server, "spgemm", *stream, before + (32 << 20));
}

TEST(Unread, HeldMatricesAreGivenUp) {
  TestServer server(Impatient);
  grpc::ClientContext put_context;
  v1::BufferInfo held;
  auto put = server.buffers().Put(&put_context, &held);
  v1::PutBufferRequest header;
  header.mutable_header()->set_name("zeros");
  header.mutable_header()->mutable_shape()->set_rows(1 << 13);
  header.mutable_header()->mutable_shape()->set_cols(1 << 11);
  header.mutable_header()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
  header.mutable_header()->set_zeros(true);
  put->Write(header);
  put->WritesDone();
  ASSERT_TRUE(put->Finish().ok());
  grpc::ClientContext context;
  v1::GetBufferRequest request;
  request.set_name("zeros");
  auto reader = server.buffers().Get(&context, request);
  EXPECT_TRUE(Eventually([&] { return InFlight(server, "get_buffer", "sending") == 1; }));
  EXPECT_TRUE(Eventually([&] { return InFlight(server, "get_buffer", "sending") == 0; }));
  v1::GetBufferReply part;
  while (reader->Read(&part)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST(Deadline, HoldsToTheLastByte) {
  TestServer server;
  MakeGood(server);
  constexpr int64_t kWidth = 1 << 17;
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  const std::vector<float> b = FloatValues(50 * kWidth, 2);
  v1::SpmmRequest start = SpmmStartOf(1, "good", 50, kWidth);
  constexpr auto kTimeout = std::chrono::seconds(4);  // the product itself is done long before
  start.mutable_start()->set_timeout_ns(std::chrono::nanoseconds(kTimeout).count());
  stream->Write(start);
  WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b));
  int64_t bytes = 0;
  ASSERT_TRUE(Eventually([&] { return InFlight(server, "spmm", "sending", &bytes) == 1; }));
  EXPECT_GT(bytes, 1 << 20);
  std::this_thread::sleep_for(kTimeout);
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_THAT(answers[1].message(), HasSubstr("before its result was taken"));
  // The stream lives.
  stream->Write(SpmmStartOf(2, "good", 50, 3));
  WriteArray<v1::SpmmRequest>(*stream, 2, 0, BytesOf(b).substr(0, 600));
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[2].code(), 0) << answers[2].message();
}

TEST(Stats, ShowWhatIsInFlight) {
  TestServer server(WithPages);
  MakeGood(server);
  grpc::ClientContext upload_context, spmm_context;
  auto upload = server.catalog().Upload(&upload_context);
  upload->Write(UploadHeaderOf1000());
  WriteArray<v1::UploadRequest>(*upload, 0, 2, std::string(100, 'x'));
  auto stream = server.compute().Spmm(&spmm_context);
  stream->Write(SpmmStartOf(1, "good", 50, 3));
  stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 0, std::string(12, 'x')));
  int64_t upload_bytes = 0, spmm_bytes = 0;
  EXPECT_TRUE(Eventually([&] {
    return InFlight(server, "upload", "receiving", &upload_bytes) == 1 && upload_bytes == 100 &&
           InFlight(server, "spmm", "receiving", &spmm_bytes) == 1 && spmm_bytes == 12;
  })) << upload_bytes
      << " " << spmm_bytes;
  const std::string page = server.Page("/metrics");
  for (const char* sample : {"sparsed_in_flight_requests{op=\"upload\",activity=\"receiving\"} 1",
                             "sparsed_in_flight_bytes{op=\"spmm\",activity=\"receiving\"} 12",
                             "sparsed_in_flight_oldest_seconds{op=\"spmm\","}) {
    EXPECT_THAT(page, HasSubstr(sample));
  }
  upload_context.TryCancel();
  spmm_context.TryCancel();
  EXPECT_TRUE(Eventually([&] {
    return InFlight(server, "upload", "receiving") + InFlight(server, "spmm", "receiving") == 0;
  }));
}

}  // namespace
}  // namespace sparsed::test
