#include "tests/rpc/test_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <thread>

#include "kernels/reference/reference.h"

namespace sparsed::test {

TestServer::TestServer(const std::function<void(server::Config&)>& adjust) {
  std::string folder = testing::TempDir() + "sparsed_rpc_XXXXXX";
  folder_ = mkdtemp(folder.data());
  server::Config config;
  config.listen = {"unix:" + folder_ + "/socket"};
  config.devices = {"cpu"};
  config.metrics_listen.clear();
  config.host_memory_bytes = int64_t{1} << 30;
  config.preparation_memory_bytes = int64_t{256} << 20;
  config.preparation_workers = 0;
  if (adjust) adjust(config);
  auto server = server::Server::Start(config);
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  server_ = *std::move(server);
  channel_ = Connect();
  catalog_ = v1::Catalog::NewStub(channel_);
  compute_ = v1::Compute::NewStub(channel_);
  buffers_ = v1::Buffers::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
}

TestServer::~TestServer() {
  server_.reset();
  std::filesystem::remove_all(folder_);
}

std::shared_ptr<grpc::Channel> TestServer::Connect(grpc::ChannelArguments arguments) const {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
}

std::string TestServer::Page(const std::string& path, std::string* head) const {
  const std::string& address = server_->metrics_address();
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string reply(1 << 16, '\0');
  size_t size = 0;
  for (ssize_t n; (n = read(fd, reply.data() + size, reply.size() - size)) > 0;) {
    size += static_cast<size_t>(n);
    if (reply.size() - size < 4096) reply.resize(2 * reply.size());
  }
  close(fd);
  reply.resize(size);
  const size_t body = reply.find("\r\n\r\n");
  if (body == std::string::npos) return {};
  if (head != nullptr) *head = reply.substr(0, body);
  return reply.substr(body + 4);
}

double TestServer::Sample(const std::string& name) const {
  const std::string page = Page("/metrics");
  const size_t at = page.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(page.substr(at + name.size() + 2));
}

bool TestServer::ComesBackTo(int64_t bytes) {
  const auto used = [&] { return engine().budget().used(); };
  const bool back =
      Eventually([&] { return engine().executor().in_flight() == 0 && used() <= bytes; });
  if (!back) {
    std::cerr << engine().executor().in_flight() << " calls in flight, " << used()
              << " bytes in use, not " << bytes << "\n";
  }
  return back;
}

void WithPages(server::Config& config) { config.metrics_listen = "127.0.0.1:0"; }

bool Eventually(const std::function<bool()>& condition) {
  // Long enough for a machine that builds something else meanwhile.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

v1::UploadHeader HeaderOf(const std::string& name, const Pattern& pattern) {
  v1::UploadHeader header;
  header.set_name(name);
  header.set_rows(pattern.rows);
  header.set_cols(pattern.cols);
  header.set_nnz(pattern.nnz());
  header.set_type(v1::ELEMENT_TYPE_F32);
  header.set_row_offsets_type(v1::ELEMENT_TYPE_I64);
  return header;
}

std::vector<float> FloatValues(int64_t count, uint64_t seed) {
  const std::vector<double> values = RandomValues(count, seed);
  return {values.begin(), values.end()};
}

grpc::Status Upload(v1::Catalog::Stub& stub, const v1::UploadHeader& header, const Pattern& pattern,
                    const std::vector<float>& values, v1::MatrixInfo* info) {
  return UploadBytes(stub, header, pattern, BytesOf(values), 1 << 20, info);
}

grpc::Status UploadBytes(v1::Catalog::Stub& stub, const v1::UploadHeader& header,
                         const Pattern& pattern, std::string_view values, size_t chunk_bytes,
                         v1::MatrixInfo* info) {
  grpc::ClientContext context;
  auto stream = stub.Upload(&context);
  v1::UploadRequest request;
  *request.mutable_header() = header;
  stream->Write(request);
  WriteArray<v1::UploadRequest>(*stream, 0, 0, BytesOf(pattern.row_offsets));
  WriteArray<v1::UploadRequest>(*stream, 0, 1, BytesOf(pattern.column_indices));
  WriteArray<v1::UploadRequest>(*stream, 0, 2, values, chunk_bytes);
  stream->WritesDone();
  v1::UploadReply reply;
  while (stream->Read(&reply)) {
    if (reply.has_matrix() && info != nullptr) *info = reply.matrix();
  }
  return stream->Finish();
}

std::vector<float> MustUpload(TestServer& server, const std::string& name, const Pattern& pattern) {
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  const grpc::Status status = Upload(server.catalog(), HeaderOf(name, pattern), pattern, values);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return values;
}

void MustUpdate(TestServer& server, const std::string& name, const std::vector<float>& values) {
  grpc::ClientContext context;
  v1::UpdateValuesReply reply;
  auto writer = server.catalog().UpdateValues(&context, &reply);
  v1::UpdateValuesRequest request;
  request.mutable_header()->set_name(name);
  request.mutable_header()->set_type(v1::ELEMENT_TYPE_F32);
  writer->Write(request);
  WriteArray<v1::UpdateValuesRequest>(*writer, 0, 0, BytesOf(values));
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

void Answer::Add(const v1::ComputeReply& reply) {
  if (reply.has_begin()) begins.push_back(reply.begin());
  if (reply.has_block()) blocks.push_back(reply.block());
  if (reply.has_end()) ends.push_back(reply.end());
  if (reply.has_end() && reply.end().has_begin()) begins.push_back(reply.end().begin());
  if (!reply.has_chunk()) return;
  const v1::Chunk& chunk = reply.chunk();
  if (arrays.size() <= chunk.array()) arrays.resize(chunk.array() + 1);
  std::string& array = arrays[chunk.array()];
  if (array.size() < chunk.offset() + chunk.data().size()) {
    array.resize(chunk.offset() + chunk.data().size());
  }
  array.replace(chunk.offset(), chunk.data().size(), chunk.data());
}

uint64_t RequestOf(const v1::ComputeReply& reply) {
  switch (reply.part_case()) {
    case v1::ComputeReply::kBegin:
      return reply.begin().request_id();
    case v1::ComputeReply::kEnd:
      return reply.end().request_id();
    case v1::ComputeReply::kBlock:
      return reply.block().request_id();
    default:
      return reply.chunk().request_id();
  }
}

v1::SpmmRequest SpmmStartOf(uint64_t id, const std::string& matrix, int64_t rows, int64_t k) {
  v1::SpmmRequest request;
  v1::SpmmStart& start = *request.mutable_start();
  start.set_request_id(id);
  start.set_matrix(matrix);
  v1::DenseShape& shape = *start.mutable_b()->mutable_shape();
  shape.set_rows(rows);
  shape.set_cols(k);
  shape.set_type(v1::ELEMENT_TYPE_F32);
  start.mutable_b()->set_stream_array(0);
  return request;
}

Answer Spmm(v1::Compute::Stub& stub, const std::string& matrix, int64_t rows, int64_t k,
            const std::vector<float>& b) {
  grpc::ClientContext context;
  auto stream = stub.Spmm(&context);
  stream->Write(SpmmStartOf(7, matrix, rows, k));
  WriteArray<v1::SpmmRequest>(*stream, 7, 0, BytesOf(b));
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ReadUntilEnds(*stream, 1, &answers);
  EXPECT_TRUE(stream->Finish().ok());
  return answers[7];
}

namespace {
Pattern GoodPattern() { return Uniform(60, 50, 5, 3); }
}  // namespace

void MakeGood(TestServer& server) { MustUpload(server, "good", GoodPattern()); }

void ExpectGood(TestServer& server) {
  const Pattern pattern = GoodPattern();
  const std::vector<float> values = FloatValues(pattern.nnz(), 1);
  const std::vector<float> b = FloatValues(50 * 3, 2);
  const Answer answer = Spmm(server.compute(), "good", 50, 3, b);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  std::vector<double> expected(60 * 3);
  const std::vector<double> s(values.begin(), values.end()), wide(b.begin(), b.end());
  reference::Spmm(pattern.view(), s.data(), false, wide.data(), 3, 3, 1, 0, expected.data());
  const std::vector<float> c = answer.Values<float>(0);
  ASSERT_EQ(c.size(), expected.size());
  for (size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(c[i], expected[i], 1e-5);
}

}  // namespace sparsed::test
