// Spmm, Sddmm and Spgemm over the wire: right results, orderly replies.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <thread>

#include "engine/execution/executor.h"
#include "kernels/reference/reference.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

std::vector<double> Wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-4) << "at " << i;
}

v1::DenseShape Shape(int64_t rows, int64_t cols) {
  v1::DenseShape shape;
  shape.set_rows(rows);
  shape.set_cols(cols);
  shape.set_type(v1::ELEMENT_TYPE_F32);
  return shape;
}

TEST(Compute, SpmmOfSeveralWidthsMatchesTheReference) {
  TestServer server;
  const Pattern pattern = Uniform(300, 200, 7, 11);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  for (const int64_t k : {1, 16, 33}) {
    const std::vector<float> b = FloatValues(200 * k, 5);
    const Answer answer = Spmm(server.compute(), "s", 200, k, b);
    ASSERT_EQ(answer.code(), 0) << answer.message();
    ASSERT_EQ(answer.begins.size(), 1u);
    EXPECT_EQ(answer.begins[0].rows(), 300);
    EXPECT_EQ(answer.begins[0].cols(), k);
    EXPECT_NE(answer.begins[0].plan().find("csr / cpu"), std::string::npos);
    ASSERT_EQ(answer.begins[0].arrays_size(), 1);
    EXPECT_EQ(answer.begins[0].arrays(0).name(), "dense");
    std::vector<double> expected(300 * k);
    reference::Spmm(pattern.view(), Wide(values).data(), false, Wide(b).data(), k, k, 1, 0,
                    expected.data());
    ExpectNear(answer.Values<float>(0), expected);
    const v1::Timings& timings = answer.ends[0].timings();
    EXPECT_GT(timings.kernel_ns(), 0u);
    EXPECT_GT(timings.receive_ns(), 0u);
    EXPECT_GT(timings.send_ns(), 0u);
    EXPECT_GE(timings.total_ns(), timings.receive_ns() + timings.queue_ns() + timings.kernel_ns());
    EXPECT_EQ(answer.ends[0].version(), 1u);
  }
}

TEST(Compute, WhoWaitedForAutotuningIsToldSo) {
  TestServer server(WithPages);
  const Pattern pattern = Uniform(30, 20, 3, 11);
  MustUpload(server, "s", pattern);
  engine::Executor& executor = server.engine().executor();
  std::promise<void> begun, enough;
  std::thread trial([&] {
    EXPECT_TRUE(executor
                    .RunIdle(
                        DeviceId{},
                        [&](engine::WorkerSlot&) {
                          begun.set_value();
                          enough.get_future().wait();
                        },
                        nullptr)
                    .ok());
  });
  begun.get_future().wait();
  std::thread release([&] {
    EXPECT_TRUE(Eventually([&] { return executor.queue_depth(DeviceId{}) == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    enough.set_value();
  });
  const Answer answer = Spmm(server.compute(), "s", 20, 4, FloatValues(20 * 4, 5));
  trial.join();
  release.join();
  ASSERT_EQ(answer.code(), 0) << answer.message();
  const v1::Timings& timings = answer.ends[0].timings();
  const auto queue = static_cast<double>(timings.queue_ns());
  EXPECT_GE(queue, 2e6);
  EXPECT_GE(timings.queue_trials_ns(), 1'999'000u);
  EXPECT_LE(timings.queue_trials_ns(), timings.queue_ns());
  EXPECT_EQ(timings.queue_others_ns(), 0u);
  v1::ListSlowReply slow;
  grpc::ClientContext context;
  v1::ListSlowRequest of;
  of.set_operation("spmm");
  ASSERT_TRUE(server.admin().ListSlow(&context, of, &slow).ok());
  ASSERT_EQ(slow.requests_size(), 1);
  EXPECT_EQ(slow.requests(0).timings().queue_trials_ns(), timings.queue_trials_ns());
  const std::string metric = "sparsed_slot_wait_behind_seconds_total{device=\"cpu\",behind=\"";
  const double trials = 1e-9 * static_cast<double>(timings.queue_trials_ns());
  EXPECT_NEAR(server.Sample(metric + "trials\"}"), trials, 1e-6);
  EXPECT_EQ(server.Sample(metric + "others\"}"), 0);
}

TEST(Compute, SpmmTransposedScaledAndAccumulated) {
  TestServer server;
  const Pattern pattern = Uniform(120, 90, 6, 12);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const int64_t k = 9;
  const std::vector<float> b = FloatValues(120 * k, 5), c0 = FloatValues(90 * k, 6);
  v1::SpmmRequest request = SpmmStartOf(1, "s", 120, k);
  v1::SpmmStart& start = *request.mutable_start();
  start.set_transpose(true);
  start.set_alpha(0.5);
  start.set_beta(-2);
  *start.mutable_accumulate()->mutable_shape() = Shape(90, k);
  start.mutable_accumulate()->set_stream_array(4);

  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  stream->Write(request);
  // The order of arrays and chunks is free.
  const std::string_view bytes = BytesOf(b);
  stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 101, bytes.substr(101)));
  WriteArray<v1::SpmmRequest>(*stream, 1, 4, BytesOf(c0), 7);
  stream->Write(ChunkOf<v1::SpmmRequest>(1, 0, 0, bytes.substr(0, 101)));
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(answers[1].code(), 0) << answers[1].message();
  std::vector<double> expected = Wide(c0);
  reference::Spmm(pattern.view(), Wide(values).data(), true, Wide(b).data(), k, k, 0.5, -2,
                  expected.data());
  ExpectNear(answers[1].Values<float>(0), expected);
}

TEST(Compute, LargeResultsComeInChunksThatAnyClientTakes) {
  TestServer server;
  const Pattern pattern = Band(20000, 2);
  const std::vector<float> values = MustUpload(server, "band", pattern);
  const int64_t k = 64;
  const std::vector<float> b = FloatValues(20000 * k, 5);
  const Answer answer = Spmm(server.compute(), "band", 20000, k, b);  // 5 MB each way
  ASSERT_EQ(answer.code(), 0) << answer.message();
  std::vector<double> expected(20000 * k);
  reference::Spmm(pattern.view(), Wide(values).data(), false, Wide(b).data(), k, k, 1, 0,
                  expected.data());
  ExpectNear(answer.Values<float>(0), expected);
}

TEST(Compute, SddmmScaledAndUnscaled) {
  TestServer server;
  const Pattern pattern = Uniform(80, 70, 4, 13);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const int64_t k = 17;
  const std::vector<float> a = FloatValues(80 * k, 5), b = FloatValues(70 * k, 6);
  grpc::ClientContext context;
  auto stream = server.compute().Sddmm(&context);
  for (const bool unscaled : {false, true}) {
    v1::SddmmRequest request;
    v1::SddmmStart& start = *request.mutable_start();
    const uint64_t id = unscaled ? 2 : 1;
    start.set_request_id(id);
    start.set_matrix("s");
    start.set_unscaled(unscaled);
    *start.mutable_a()->mutable_shape() = Shape(80, k);
    *start.mutable_b()->mutable_shape() = Shape(70, k);
    start.mutable_a()->set_stream_array(0);
    start.mutable_b()->set_stream_array(1);
    stream->Write(request);
    WriteArray<v1::SddmmRequest>(*stream, id, 0, BytesOf(a));
    WriteArray<v1::SddmmRequest>(*stream, id, 1, BytesOf(b));
  }
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 2, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  for (const bool unscaled : {false, true}) {
    const Answer& answer = answers[unscaled ? 2 : 1];
    ASSERT_EQ(answer.code(), 0) << answer.message();
    std::vector<double> expected(pattern.nnz());
    reference::Sddmm(pattern.view(), unscaled ? nullptr : Wide(values).data(), Wide(a).data(), k,
                     Wide(b).data(), k, k, expected.data());
    ExpectNear(answer.Values<float>(0), expected);
  }
}

/// All that a matrix of a 16-bit type is asked for; chunks are of odd numbers of bytes.
template <typename T>
void ExpectProductsOf16Bits(v1::ElementType type) {
  TestServer server;
  const Pattern pattern = Uniform(60, 45, 5, 11);
  const std::vector<T> values = SmallIntegers<T>(pattern.nnz(), 3);
  v1::UploadHeader header = HeaderOf("s", pattern);
  header.set_type(type);
  v1::ProblemClass& expected_signature = *header.add_expected();
  expected_signature.set_operation(v1::ProblemClass::SPMM);
  expected_signature.set_k(9);
  expected_signature.set_allow_tf32(true);
  v1::MatrixInfo info;
  const grpc::Status uploaded =
      UploadBytes(server.catalog(), header, pattern, BytesOf(values), 13, &info);
  ASSERT_TRUE(uploaded.ok()) << uploaded.error_message();
  EXPECT_EQ(info.type(), type);
  EXPECT_EQ(info.csr_bytes(), 61 * 8 + pattern.nnz() * 6);

  const int64_t k = 9;
  for (const bool transpose : {false, true}) {
    const int64_t in = transpose ? 60 : 45, out = transpose ? 45 : 60;
    const std::vector<T> b = SmallIntegers<T>(in * k, 5), c0 = SmallIntegers<T>(out * k, 2);
    v1::SpmmRequest request = SpmmStartOf(1, "s", in, k);
    v1::SpmmStart& start = *request.mutable_start();
    start.mutable_b()->mutable_shape()->set_type(type);
    start.set_transpose(transpose);
    start.set_alpha(0.5);
    start.set_beta(-2);
    start.set_allow_tf32(true);
    *start.mutable_accumulate()->mutable_shape() = Shape(out, k);
    start.mutable_accumulate()->mutable_shape()->set_type(type);
    start.mutable_accumulate()->set_stream_array(1);
    grpc::ClientContext context;
    auto stream = server.compute().Spmm(&context);
    stream->Write(request);
    WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b), 7);
    WriteArray<v1::SpmmRequest>(*stream, 1, 1, BytesOf(c0), 101);
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    EXPECT_TRUE(stream->Finish().ok());
    ASSERT_EQ(answers[1].code(), 0) << answers[1].message();
    EXPECT_EQ(answers[1].begins.at(0).arrays(0).type(), type);
    std::vector<double> expected = Widened(c0);
    reference::Spmm(pattern.view(), Widened(values).data(), transpose, Widened(b).data(), k, k, 0.5,
                    -2, expected.data());
    EXPECT_EQ(Widened(answers[1].Values<T>(0)), expected);
  }

  const std::vector<T> a = SmallIntegers<T>(60 * k, 4), b = SmallIntegers<T>(45 * k, 6);
  v1::SddmmRequest request;
  v1::SddmmStart& start = *request.mutable_start();
  start.set_request_id(2);
  start.set_matrix("s");
  *start.mutable_a()->mutable_shape() = Shape(60, k);
  *start.mutable_b()->mutable_shape() = Shape(45, k);
  start.mutable_a()->mutable_shape()->set_type(type);
  start.mutable_b()->mutable_shape()->set_type(type);
  start.mutable_a()->set_stream_array(0);
  start.mutable_b()->set_stream_array(1);
  grpc::ClientContext context;
  auto stream = server.compute().Sddmm(&context);
  stream->Write(request);
  WriteArray<v1::SddmmRequest>(*stream, 2, 0, BytesOf(a), 3);
  WriteArray<v1::SddmmRequest>(*stream, 2, 1, BytesOf(b), 5);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(answers[2].code(), 0) << answers[2].message();
  std::vector<double> expected(pattern.nnz());
  reference::Sddmm(pattern.view(), Widened(values).data(), Widened(a).data(), k, Widened(b).data(),
                   k, k, expected.data());
  // Products of three may need more bits than bf16 has: rounded once, as T rounds.
  for (double& value : expected) value = static_cast<float>(T(static_cast<float>(value)));
  EXPECT_EQ(Widened(answers[2].Values<T>(0)), expected);
}

TEST(Compute, ProductsOfF16) { ExpectProductsOf16Bits<Float16>(v1::ELEMENT_TYPE_F16); }
TEST(Compute, ProductsOfBF16) { ExpectProductsOf16Bits<BFloat16>(v1::ELEMENT_TYPE_BF16); }

TEST(Compute, SpgemmInRowBlocksAndKept) {
  TestServer server;
  const Pattern pattern = Rmat(10, 8, 3);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const auto expected =
      reference::Spgemm(pattern.view(), Wide(values).data(), pattern.view(), Wide(values).data());
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  v1::SpgemmStart& start = *request.mutable_start();
  start.set_request_id(1);
  start.set_left("s");
  start.set_right("s");
  start.set_count_first(true);
  stream->Write(request);
  start.set_request_id(2);
  start.set_keep_as("product");
  stream->Write(request);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 2, &answers));
  EXPECT_TRUE(stream->Finish().ok());

  const Answer& streamed = answers[1];
  ASSERT_EQ(streamed.code(), 0) << streamed.message();
  const auto nnz = static_cast<int64_t>(expected.column_indices.size());
  EXPECT_EQ(streamed.begins.at(0).nnz(), nnz);
  EXPECT_EQ(streamed.ends[0].nnz(), nnz);
  int64_t next_row = 0, next_nnz = 0;
  for (const v1::RowBlock& block : streamed.blocks) {
    EXPECT_EQ(block.row_begin(), next_row);
    EXPECT_EQ(block.nnz_begin(), next_nnz);
    next_row += block.rows();
    next_nnz += block.nnz();
  }
  EXPECT_EQ(next_row, pattern.rows);
  EXPECT_EQ(next_nnz, nnz);
  EXPECT_EQ(streamed.Values<int64_t>(0), expected.row_offsets);
  EXPECT_EQ(streamed.Values<int32_t>(1), expected.column_indices);
  ExpectNear(streamed.Values<float>(2), expected.values);

  EXPECT_EQ(answers[2].code(), 0) << answers[2].message();
  EXPECT_TRUE(answers[2].arrays.empty());
  grpc::ClientContext get_context;
  v1::GetMatrixRequest get;
  get.set_name("product");
  v1::MatrixInfo info;
  ASSERT_TRUE(server.catalog().Get(&get_context, get, &info).ok());
  EXPECT_EQ(info.nnz(), nnz);
}

TEST(Compute, HeldOperandsMoveNothing) {
  TestServer server;
  const Pattern pattern = Uniform(50, 50, 5, 14);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const int64_t k = 8;
  const std::vector<float> x = FloatValues(50 * k, 5);
  for (const char* name : {"x", "y"}) {
    grpc::ClientContext context;
    v1::BufferInfo info;
    auto writer = server.buffers().Put(&context, &info);
    v1::PutBufferRequest put;
    put.mutable_header()->set_name(name);
    *put.mutable_header()->mutable_shape() = Shape(50, k);
    put.mutable_header()->set_zeros(name == std::string("y"));
    writer->Write(put);
    if (name == std::string("x")) WriteArray<v1::PutBufferRequest>(*writer, 0, 0, BytesOf(x));
    writer->WritesDone();
    ASSERT_TRUE(writer->Finish().ok());
  }
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  v1::SpmmRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_matrix("s");
  request.mutable_start()->mutable_b()->set_buffer("x");
  request.mutable_start()->mutable_result()->set_buffer("y");
  stream->Write(request);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(answers[1].code(), 0) << answers[1].message();
  EXPECT_EQ(answers[1].begins.at(0).arrays_size(), 0);

  grpc::ClientContext get_context;
  v1::GetBufferRequest get;
  get.set_name("y");
  auto reader = server.buffers().Get(&get_context, get);
  v1::GetBufferReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  EXPECT_EQ(reply.info().version(), 2u);
  ASSERT_TRUE(reader->Read(&reply));
  std::vector<float> y(50 * k);
  ASSERT_EQ(reply.chunk().data().size(), y.size() * sizeof(float));
  std::copy_n(reply.chunk().data().data(), reply.chunk().data().size(),
              reinterpret_cast<char*>(y.data()));
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_TRUE(reader->Finish().ok());
  std::vector<double> expected(50 * k);
  reference::Spmm(pattern.view(), Wide(values).data(), false, Wide(x).data(), k, k, 1, 0,
                  expected.data());
  ExpectNear(y, expected);
}

TEST(Compute, OneStreamCarriesManyRequests) {
  TestServer server;
  const Pattern pattern = Uniform(100, 100, 5, 15);
  MustUpload(server, "s", pattern);
  const std::vector<float> b = FloatValues(100 * 16, 5);
  Spmm(server.compute(), "s", 100, 16, b);  // worker slots keep their workspace
  const int64_t before = server.engine().budget().used();
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  for (int round = 0; round < 20; ++round) {
    for (uint64_t id = 0; id < 16; ++id) stream->Write(SpmmStartOf(id, "s", 100, 16));
    for (uint64_t id = 16; id-- > 0;) WriteArray<v1::SpmmRequest>(*stream, id, 0, BytesOf(b), 900);
    std::map<uint64_t, Answer> answers;
    ASSERT_TRUE(ReadUntilEnds(*stream, 16, &answers));
    for (const auto& [id, answer] : answers) {
      EXPECT_EQ(answer.code(), 0) << answer.message();
      EXPECT_EQ(answer.arrays.at(0), answers[0].arrays.at(0));
    }
  }
  stream->WritesDone();
  v1::ComputeReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(server.ComesBackTo(before));
}

TEST(Compute, EmptyMatricesAndOperands) {
  TestServer server;
  Pattern none;
  none.rows = 3;
  none.cols = 0;
  none.row_offsets = {0, 0, 0, 0};
  MustUpload(server, "empty", none);
  const Answer answer = Spmm(server.compute(), "empty", 0, 2, {});
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_EQ(answer.Values<float>(0), std::vector<float>(6, 0.f));
}

}  // namespace
}  // namespace sparsed::test
