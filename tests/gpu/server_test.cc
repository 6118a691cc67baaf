// A whole server on the GPU, asked by several clients at once. Results against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "engine/execution/derived_patterns.h"
#include "kernels/cuda/cuda.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/diagonals.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/reference/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

void OnGpu(server::Config& config) { config.devices = {"cuda:0"}; }

std::vector<double> Wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// Sums of up to some hundred products of values in [-1, 1).
bool Near(const std::vector<float>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return false;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - expected[i]) <= 2e-4)) return false;
  }
  return true;
}

std::vector<double> Product(const Pattern& s, const std::vector<float>& values, bool transposed,
                            const std::vector<double>& b, int64_t k) {
  std::vector<double> c((transposed ? s.cols : s.rows) * k);
  reference::Spmm(s.view(), Wide(values).data(), transposed, b.data(), k, k, 1, 0, c.data());
  return c;
}

void PutBuffer(TestServer& server, const std::string& name, int64_t rows, int64_t cols,
               const std::vector<float>& values, int64_t leading_dimension = 0) {
  grpc::ClientContext context;
  v1::BufferInfo info;
  auto writer = server.buffers().Put(&context, &info);
  v1::PutBufferRequest request;
  request.mutable_header()->set_name(name);
  v1::DenseShape& shape = *request.mutable_header()->mutable_shape();
  shape.set_rows(rows);
  shape.set_cols(cols);
  shape.set_leading_dimension(leading_dimension);
  shape.set_type(v1::ELEMENT_TYPE_F32);
  writer->Write(request);
  WriteArray<v1::PutBufferRequest>(*writer, 0, 0, BytesOf(values));
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
}

std::vector<float> GetBuffer(TestServer& server, const std::string& name) {
  grpc::ClientContext context;
  v1::GetBufferRequest request;
  request.set_name(name);
  auto reader = server.buffers().Get(&context, request);
  v1::GetBufferReply reply;
  std::string bytes;
  while (reader->Read(&reply)) bytes += reply.chunk().data();
  EXPECT_TRUE(reader->Finish().ok());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

/// Of a stream's only request, number 1, which was written.
template <typename Stream>
Answer AnswerOf(Stream& stream) {
  stream.WritesDone();
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(stream, 1, &answers));
  EXPECT_TRUE(stream.Finish().ok());
  return answers[1];
}

/// What the server says of a matrix once it is prepared.
v1::MatrixInfo WhenReady(TestServer& server, const std::string& matrix) {
  v1::MatrixInfo info;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::GetMatrixRequest request;
    request.set_name(matrix);
    return server.catalog().Get(&context, request, &info).ok() &&
           info.state() == v1::MATRIX_STATE_READY;
  }));
  return info;
}

/// c = s * b, both held.
Answer SpmmHeld(TestServer& server, const std::string& matrix, const std::string& b,
                const std::string& c) {
  grpc::ClientContext context;
  auto stream = server.compute().Spmm(&context);
  v1::SpmmRequest request;
  v1::SpmmStart& start = *request.mutable_start();
  start.set_request_id(1);
  start.set_matrix(matrix);
  start.mutable_b()->set_buffer(b);
  start.mutable_result()->set_buffer(c);
  stream->Write(request);
  return AnswerOf(*stream);
}

TEST(GpuServer, SpmmOfSeveralWidthsBothWays) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Uniform(3000, 2000, 9, 11);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  for (const int64_t k : {1, 16, 33, 128, 300}) {
    for (const bool transposed : {false, true}) {
      const int64_t rows = transposed ? 3000 : 2000;
      const std::vector<float> b = FloatValues(rows * k, 5);
      grpc::ClientContext context;
      auto stream = server.compute().Spmm(&context);
      v1::SpmmRequest request = SpmmStartOf(1, "s", rows, k);
      request.mutable_start()->set_transpose(transposed);
      stream->Write(request);
      WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b), 100'003);
      stream->WritesDone();
      std::map<uint64_t, Answer> answers;
      ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
      const Answer& answer = answers[1];
      ASSERT_EQ(answer.code(), 0) << answer.message();
      EXPECT_NE(answer.begins.at(0).plan().find("cu"), std::string::npos);
      EXPECT_TRUE(Near(answer.Values<float>(0), Product(pattern, values, transposed, Wide(b), k)))
          << "K = " << k << (transposed ? ", transposed" : "");
      EXPECT_GT(answer.ends[0].timings().kernel_ns(), 0u);
    }
  }
}

TEST(GpuServer, AccumulatesAndScales) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Uniform(500, 400, 6, 12);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  for (const int64_t k : {40, 33, 3, 1}) {
    const std::vector<float> b = FloatValues(400 * k, 5), c0 = FloatValues(500 * k, 6);
    grpc::ClientContext context;
    auto stream = server.compute().Spmm(&context);
    v1::SpmmRequest request = SpmmStartOf(1, "s", 400, k);
    v1::SpmmStart& start = *request.mutable_start();
    start.set_alpha(0.5);
    start.set_beta(-2);
    v1::DenseShape& shape = *start.mutable_accumulate()->mutable_shape();
    shape.set_rows(500);
    shape.set_cols(k);
    shape.set_type(v1::ELEMENT_TYPE_F32);
    start.mutable_accumulate()->set_stream_array(4);
    stream->Write(request);
    WriteArray<v1::SpmmRequest>(*stream, 1, 4, BytesOf(c0), 4096);
    WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b), 4096);
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    ASSERT_EQ(answers[1].code(), 0) << answers[1].message();
    std::vector<double> expected = Wide(c0);
    reference::Spmm(pattern.view(), Wide(values).data(), false, Wide(b).data(), k, k, 0.5, -2,
                    expected.data());
    EXPECT_TRUE(Near(answers[1].Values<float>(0), expected)) << k;
  }
}

/// Widths that no vector divides: what the device has is padded, what clients see is not.
TEST(GpuServer, OddWidthsOfHeldOperandsWithGaps) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Uniform(300, 200, 9, 12);
  std::vector<float> values = MustUpload(server, "s", pattern);
  // Times the zeros behind B's rows, an infinity is no number.
  values[pattern.row_offsets[7]] = std::numeric_limits<float>::infinity();
  MustUpdate(server, "s", values);
  for (const int64_t k : {1, 2, 7, 33, 50}) {
    SCOPED_TRACE(k);
    const int64_t leading = k + 3;
    std::vector<float> b(199 * leading + k, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> c(299 * leading + k), d = FloatValues(200 * k, 8), dense;
    for (float& value : d) value = std::abs(value) + 0.1F;
    for (int64_t row = 0; row < 200; ++row) {
      for (int64_t j = 0; j < k; ++j) {
        b[row * leading + j] = 0.1F + static_cast<float>((row * k + j) % 17) / 16;
        dense.push_back(b[row * leading + j]);
      }
    }
    const std::string suffix = std::to_string(k);
    PutBuffer(server, "b" + suffix, 200, k, b, leading);
    PutBuffer(server, "c" + suffix, 300, k, c, leading);
    PutBuffer(server, "d" + suffix, 200, k, d);
    const std::vector<double> product = Product(pattern, values, false, Wide(dense), k);
    for (int turn = 0; turn < 2; ++turn) {
      ASSERT_EQ(SpmmHeld(server, "s", "b" + suffix, "c" + suffix).code(), 0);
    }
    const std::vector<float> got = GetBuffer(server, "c" + suffix);
    ASSERT_EQ(got.size(), c.size());
    for (int64_t row = 0; row < 300; ++row) {
      for (int64_t j = 0; j < (row < 299 ? leading : k); ++j) {
        const double expected = j < k ? product[row * k + j] : 0;
        const float there = got[row * leading + j];
        ASSERT_TRUE(there == expected || std::abs(there - expected) < 1e-4) << row << " " << j;
      }
    }
    // Of C as it is on the device: its infinite row stays infinite, and is no NaN.
    grpc::ClientContext context;
    auto stream = server.compute().Sddmm(&context);
    v1::SddmmRequest request;
    v1::SddmmStart& start = *request.mutable_start();
    start.set_request_id(1);
    start.set_matrix("s");
    start.set_unscaled(true);
    start.mutable_a()->set_buffer("c" + suffix);
    start.mutable_b()->set_buffer("d" + suffix);
    stream->Write(request);
    const Answer answer = AnswerOf(*stream);
    ASSERT_EQ(answer.code(), 0) << answer.message();
    std::vector<double> expected(pattern.nnz());
    reference::Sddmm(pattern.view(), nullptr, product.data(), k, Wide(d).data(), k, k,
                     expected.data());
    const std::vector<float> dots = answer.Values<float>(0);
    ASSERT_EQ(dots.size(), expected.size());
    for (size_t i = 0; i < dots.size(); ++i) {
      ASSERT_TRUE(dots[i] == expected[i] ||
                  std::abs(dots[i] - expected[i]) <= 1e-5 * (1 + std::abs(expected[i])))
          << i << ": " << dots[i] << ", expected " << expected[i];
    }
  }
}

TEST(GpuServer, Sddmm) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Uniform(800, 700, 8, 13);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  for (const int64_t k : {48, 33, 5, 1}) {
    const std::vector<float> a = FloatValues(800 * k, 5), b = FloatValues(700 * k, 6);
    grpc::ClientContext context;
    auto stream = server.compute().Sddmm(&context);
    for (const bool unscaled : {false, true}) {
      v1::SddmmRequest request;
      v1::SddmmStart& start = *request.mutable_start();
      const uint64_t id = unscaled ? 2 : 1;
      start.set_request_id(id);
      start.set_matrix("s");
      start.set_unscaled(unscaled);
      for (auto [operand, rows] : {std::pair(start.mutable_a(), 800), {start.mutable_b(), 700}}) {
        operand->mutable_shape()->set_rows(rows);
        operand->mutable_shape()->set_cols(k);
        operand->mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
      }
      start.mutable_a()->set_stream_array(0);
      start.mutable_b()->set_stream_array(1);
      stream->Write(request);
      WriteArray<v1::SddmmRequest>(*stream, id, 0, BytesOf(a));
      WriteArray<v1::SddmmRequest>(*stream, id, 1, BytesOf(b));
    }
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    ASSERT_TRUE(ReadUntilEnds(*stream, 2, &answers));
    for (const bool unscaled : {false, true}) {
      const Answer& answer = answers[unscaled ? 2 : 1];
      ASSERT_EQ(answer.code(), 0) << answer.message();
      std::vector<double> expected(pattern.nnz());
      reference::Sddmm(pattern.view(), unscaled ? nullptr : Wide(values).data(), Wide(a).data(), k,
                       Wide(b).data(), k, k, expected.data());
      EXPECT_TRUE(Near(answer.Values<float>(0), expected));
    }
  }
}

TEST(GpuServer, IterationsMoveNothing) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Band(4000, 1);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const int64_t k = 64;
  const std::vector<float> x = FloatValues(4000 * k, 5);
  PutBuffer(server, "x", 4000, k, x);
  PutBuffer(server, "y", 4000, k, x);
  ASSERT_EQ(SpmmHeld(server, "s", "x", "y").code(), 0);
  const int64_t in = server.engine().gpus().front()->bytes_in();
  const int64_t out = server.engine().gpus().front()->bytes_out();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(SpmmHeld(server, "s", "y", "x").code(), 0);
    ASSERT_EQ(SpmmHeld(server, "s", "x", "y").code(), 0);
  }
  EXPECT_EQ(server.engine().gpus().front()->bytes_in(), in);
  EXPECT_EQ(server.engine().gpus().front()->bytes_out(), out);
  // Both are results that the card has, which somebody pays for.
  EXPECT_GE(server.engine().gpus().front()->budget().owned()["default"], 2 * 4000 * k * 4);
  std::vector<double> expected = Wide(x);
  for (int i = 0; i < 7; ++i) expected = Product(pattern, values, false, expected, k);
  EXPECT_TRUE(Near(GetBuffer(server, "y"), expected));
  EXPECT_GT(server.engine().gpus().front()->bytes_out(), out);
}

/// Weights of edges that are computed, then multiplied with, whatever order their matrix came in.
TEST(GpuServer, AnSddmmsResultIsTheNextSpmmsValuesOnTheDevice) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Uniform(1000, 1000, 8, 15);
  const int64_t nnz = pattern.nnz(), k = 64;
  Pattern backwards = pattern;
  for (int64_t row = 0; row < pattern.rows; ++row) {
    const auto begin = backwards.column_indices.begin();
    std::reverse(begin + pattern.row_offsets[row], begin + pattern.row_offsets[row + 1]);
  }
  // The matrices' own values are in no result.
  const std::vector<float> nothing(nnz, std::numeric_limits<float>::quiet_NaN());
  v1::UploadHeader header = HeaderOf("backwards", backwards);
  header.set_sort(true);
  ASSERT_TRUE(Upload(server.catalog(), header, backwards, nothing).ok());
  ASSERT_TRUE(Upload(server.catalog(), HeaderOf("canonical", pattern), pattern, nothing).ok());
  const std::vector<float> a = FloatValues(1000 * k, 5), b = FloatValues(1000 * k, 6);
  PutBuffer(server, "a", 1000, k, a);
  PutBuffer(server, "b", 1000, k, b);
  std::vector<double> weights(nnz), c(1000 * k);
  reference::Sddmm(pattern.view(), nullptr, Wide(a).data(), k, Wide(b).data(), k, k,
                   weights.data());
  reference::Spmm(pattern.view(), weights.data(), false, Wide(b).data(), k, k, 1, 0, c.data());
  const engine::Device& gpu = *server.engine().gpus().front();
  for (const std::string matrix : {"canonical", "backwards"}) {
    SCOPED_TRACE(matrix);
    PutBuffer(server, "w", nnz, 1, nothing);
    PutBuffer(server, "c", 1000, k, std::vector<float>(1000 * k, nothing[0]));
    int64_t in = 0, out = 0;
    for (int turn = 0; turn < 3; ++turn) {
      v1::SddmmRequest sample;
      sample.mutable_start()->set_request_id(1);
      sample.mutable_start()->set_matrix(matrix);
      sample.mutable_start()->set_unscaled(true);
      sample.mutable_start()->mutable_a()->set_buffer("a");
      sample.mutable_start()->mutable_b()->set_buffer("b");
      sample.mutable_start()->mutable_result()->set_buffer("w");
      grpc::ClientContext sampling;
      auto sddmm = server.compute().Sddmm(&sampling);
      sddmm->Write(sample);
      const Answer sampled = AnswerOf(*sddmm);
      ASSERT_EQ(sampled.code(), 0) << sampled.message();
      v1::SpmmRequest product;
      product.mutable_start()->set_request_id(1);
      product.mutable_start()->set_matrix(matrix);
      product.mutable_start()->mutable_b()->set_buffer("b");
      product.mutable_start()->mutable_values()->set_buffer("w");
      product.mutable_start()->mutable_result()->set_buffer("c");
      grpc::ClientContext multiplying;
      auto spmm = server.compute().Spmm(&multiplying);
      spmm->Write(product);
      const Answer multiplied = AnswerOf(*spmm);
      ASSERT_EQ(multiplied.code(), 0) << multiplied.message();
      EXPECT_NE(multiplied.begins.at(0).plan().find("cu"), std::string::npos);
      if (turn == 0) {  // the pattern and the operands came
        in = gpu.bytes_in();
        out = gpu.bytes_out();
      }
    }
    EXPECT_EQ(gpu.bytes_in(), in);
    EXPECT_EQ(gpu.bytes_out(), out);
    const std::vector<float> got = GetBuffer(server, "c");
    ASSERT_EQ(got.size(), c.size());
    for (size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(got[i], c[i], 1e-3) << i;
  }
}

/// Takes what the budget has left, after evictions, but for some KiB.
std::vector<Buffer> FillUp(engine::Device& device) {
  MemorySource& memory = device.budget().Source(engine::MemoryUse::kPreparation);
  std::vector<Buffer> taken;
  for (size_t bytes = size_t{512} << 20; bytes >= size_t{64} << 10;) {
    absl::StatusOr<Buffer> buffer = memory.Allocate(bytes);
    if (buffer.ok()) {
      taken.push_back(*std::move(buffer));
    } else {
      bytes /= 2;
    }
  }
  return taken;
}

TEST(GpuServer, WhatDoesNotFitRunsInColumnBlocksOrOnTheCpu) {
  SKIP_WITHOUT_GPU();
  // Room for the start's measurement is taken from the same budget and given back.
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.device_memory_bytes = int64_t{520} << 20;
  });
  engine::Device& device = *server.engine().gpus().front();
  absl::StatusOr<Buffer> hog =
      device.budget().Source(engine::MemoryUse::kPreparation).Allocate(size_t{500} << 20);
  ASSERT_TRUE(hog.ok());
  const Pattern pattern = Band(40'000, 2);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const int64_t k = 131;  // 20 MB each way; no column block width divides it
  const std::vector<float> b = FloatValues(40'000 * k, 5);
  const std::vector<double> expected = Product(pattern, values, false, Wide(b), k);
  Answer answer = Spmm(server.compute(), "s", 40'000, k, b);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_NE(answer.begins.at(0).plan().find("blocks of"), std::string::npos)
      << answer.begins.at(0).plan();
  EXPECT_TRUE(Near(answer.Values<float>(0), expected));
  // Not even S fits.
  std::vector<Buffer> rest = FillUp(device);
  answer = Spmm(server.compute(), "s", 40'000, k, b);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_NE(answer.begins.at(0).plan().find("cpu."), std::string::npos);
  EXPECT_TRUE(Near(answer.Values<float>(0), expected));
  EXPECT_GT(device.residency().evictions(), 0);
  // With room again it is back.
  hog = absl::CancelledError("");
  rest.clear();
  answer = Spmm(server.compute(), "s", 40'000, k, b);
  EXPECT_EQ(answer.begins.at(0).plan().find("cpu."), std::string::npos);
  EXPECT_TRUE(Near(answer.Values<float>(0), expected));
}

v1::SpgemmStart SpgemmStart(const std::string& left, const std::string& right) {
  v1::SpgemmStart start;
  start.set_request_id(1);
  start.set_left(left);
  start.set_right(right);
  return start;
}

Answer Spgemm(TestServer& server, const v1::SpgemmStart& start) {
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  *request.mutable_start() = start;
  stream->Write(request);
  return AnswerOf(*stream);
}

Answer Spgemm(TestServer& server, const std::string& left, const std::string& right) {
  return Spgemm(server, SpgemmStart(left, right));
}

TEST(GpuServer, SpgemmInRowBlocks) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  // 11 M entries: several blocks.
  const Pattern s = Uniform(1000, 400, 30, 13), t = Uniform(400, 50'000, 400, 14);
  const std::vector<float> s_values = MustUpload(server, "s", s);
  const std::vector<float> t_values = MustUpload(server, "t", t);
  const Answer answer = Spgemm(server, "s", "t");
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_EQ(answer.begins.at(0).plan(), "csr * csr / cuda.csr.row_bins");
  EXPECT_GT(answer.ends[0].timings().kernel_ns(), 0u);
  const auto expected =
      reference::Spgemm(s.view(), Wide(s_values).data(), t.view(), Wide(t_values).data());
  const auto nnz = static_cast<int64_t>(expected.column_indices.size());
  EXPECT_EQ(answer.begins.at(0).nnz(), nnz);
  EXPECT_EQ(answer.ends[0].nnz(), nnz);
  EXPECT_TRUE(answer.Values<int64_t>(0) == expected.row_offsets);
  EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
  EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
}

TEST(GpuServer, SpgemmOfTransposesAndThenOfNewValues) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern s = Rmat(10, 8, 17), t = Rmat(10, 7, 18);
  std::vector<float> s_values = MustUpload(server, "s", s);
  const std::vector<float> t_values = MustUpload(server, "t", t);
  std::vector<int64_t> s_source, t_source;
  const Pattern s_transposed = Transpose(s, &s_source), t_transposed = Transpose(t, &t_source);
  const auto permuted = [](const std::vector<float>& values, const std::vector<int64_t>& source) {
    std::vector<double> result;
    for (const int64_t p : source) result.push_back(values[p]);
    return result;
  };
  v1::SpgemmStart start = SpgemmStart("s", "t");
  start.set_transpose_left(true);
  start.set_transpose_right(true);
  // Twice of the first values, then twice of others: all but once the rows' sizes are known.
  for (int run = 0; run < 4; ++run) {
    if (run == 2) {
      s_values = FloatValues(s.nnz(), 19);
      MustUpdate(server, "s", s_values);
    }
    const auto expected =
        reference::Spgemm(s_transposed.view(), permuted(s_values, s_source).data(),
                          t_transposed.view(), permuted(t_values, t_source).data());
    const Answer answer = Spgemm(server, start);
    ASSERT_EQ(answer.code(), 0) << answer.message();
    EXPECT_EQ(answer.begins.at(0).plan(), "transpose * transpose / cuda.csr.row_bins");
    EXPECT_EQ(answer.begins.at(0).nnz(), static_cast<int64_t>(expected.column_indices.size()));
    EXPECT_TRUE(answer.Values<int64_t>(0) == expected.row_offsets);
    EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
    EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
  }
  EXPECT_EQ(server.engine().executor().derived().sizes_found(), 3);
}

/// False if the pattern does not suit the pipeline.
bool GiveLayout(engine::Pattern& pattern, const std::string& pipeline) {
  const absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern.Csr();
  if (!csr.ok()) return false;
  BuildContext context;
  context.memory = &HeapMemory();
  absl::StatusOr<BuiltLayout> built =
      BuildLayout(*ParsePipeline(pipeline), ViewCsr(**csr), context);
  if (!built.ok() || built->skipped) return false;
  pattern.AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0);
  return true;
}

/// Has the pair multiplied by `kernel`, whatever trials would say, if it suits it.
void PlanFor(TestServer& server, const std::string& left, const std::string& right,
             std::string_view kernel) {
  engine::Catalog& catalog = server.engine().catalog();
  const auto s = catalog.Find("default", left), t = catalog.Find("default", right);
  ASSERT_TRUE(s.ok() && t.ok());
  engine::Plan plan;
  plan.signature = SignatureOf({.operation = Operation::kSpgemm, .device = DeviceKind::kCuda});
  plan.pair = {(*t)->pattern()->hash()};
  plan.kernel = kernel;
  const SpgemmKernel& planned = *FindSpgemmKernel(kernel);
  if (planned.layout_kind != kCsr) {
    const auto s_csr = (*s)->pattern()->Csr(), t_csr = (*t)->pattern()->Csr();
    ASSERT_TRUE(s_csr.ok() && t_csr.ok());
    const absl::StatusOr<std::string> pipeline =
        FormatPipeline(planned, ProblemOf(plan.signature), ViewCsr(**s_csr), ViewCsr(**t_csr));
    if (!pipeline.ok()) return;
    plan.pipeline = *pipeline;
    if (planned.left_too && !GiveLayout(*(*s)->pattern(), plan.pipeline)) return;
    if (!GiveLayout(*(*t)->pattern(), plan.pipeline)) return;
  }
  (*s)->pattern()->plans().Replace(
      std::make_shared<const engine::ActivePlan>(engine::ActivePlan{plan, nullptr}));
}

TEST(GpuServer, SpgemmByEveryKernelThatIsThere) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const std::map<std::string, Pattern> patterns = {{"band", Band(3000, 4)},
                                                   {"web", Rmat(10, 6, 3)}};
  for (const auto& [name, s] : patterns) {
    const std::vector<float> values = MustUpload(server, name, s);
    const auto expected =
        reference::Spgemm(s.view(), Wide(values).data(), s.view(), Wide(values).data());
    for (const SpgemmKernel& kernel : cuda::SpgemmKernels()) {
      if (!kernel.supports({.operation = Operation::kSpgemm, .device = DeviceKind::kCuda}))
        continue;
      PlanFor(server, name, name, kernel.name);
      const Answer answer = Spgemm(server, name, name);
      ASSERT_EQ(answer.code(), 0) << kernel.name << ": " << answer.message();
      const std::string& plan = answer.begins.at(0).plan();
      if (kernel.name == "cuda.csr.row_bins") {
        EXPECT_EQ(plan, "csr * csr / " + std::string(kernel.name)) << name;
      } else if (kernel.name == "cuda.dia.diagonals" && name == "band") {
        EXPECT_EQ(plan, "dia * dia / " + std::string(kernel.name)) << name;
      } else {
        EXPECT_NE(plan.find("cuda."), std::string::npos) << name << ": " << plan;
      }
      EXPECT_EQ(answer.begins.at(0).nnz(), static_cast<int64_t>(expected.column_indices.size()));
      EXPECT_TRUE(answer.Values<int64_t>(0) == expected.row_offsets) << plan;
      EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices) << plan;
      EXPECT_TRUE(Near(answer.Values<float>(2), expected.values)) << plan;
      EXPECT_EQ(server.engine().gpus().front()->budget().used(engine::MemoryUse::kRequests), 0);
    }
  }
}

TEST(GpuServer, SpgemmWhoseFormatFindsNoRoomIsLeftToTheDefaultKernel) {
  SKIP_WITHOUT_GPU();
  constexpr std::string_view kDiagonals = "cuda.dia.diagonals";
  TestServer server(OnGpu);
  // One entry a row, in eight diagonals by turns: by diagonals it is far larger.
  constexpr int32_t kRows = 20'000;
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < kRows; ++row) {
    entries.emplace_back(row, std::min(row + row % 8, kRows - 1));
  }
  const Pattern s = Band(kRows, 0), t = FromCoordinates(kRows, kRows, entries);
  const std::vector<float> s_values = MustUpload(server, "s", s);
  const std::vector<float> t_values = MustUpload(server, "t", t);
  const auto expected =
      reference::Spgemm(s.view(), Wide(s_values).data(), t.view(), Wide(t_values).data());
  engine::DeviceBudget& budget = server.engine().gpus().front()->budget();
  // Plain CSR is there already, and what finds room stays there.
  ASSERT_EQ(Spgemm(server, "s", "t").code(), 0);
  for (const bool has_room : {false, true}) {
    PlanFor(server, "s", "t", kDiagonals);
    absl::StatusOr<Buffer> hog = absl::CancelledError("");
    if (!has_room) {
      hog = budget.SpareSource(engine::MemoryUse::kPreparation)
                .Allocate(budget.limit() - budget.used() - 64 * kRows);
      ASSERT_TRUE(hog.ok()) << hog.status();
    }
    const Answer answer = Spgemm(server, "s", "t");
    ASSERT_EQ(answer.code(), 0) << answer.message();
    EXPECT_EQ(answer.begins.at(0).plan(), has_room ? "dia * dia / " + std::string(kDiagonals)
                                                   : "csr * csr / cuda.csr.row_bins");
    EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
    EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
    EXPECT_EQ(budget.used(engine::MemoryUse::kRequests), 0);
  }
}

/// On the GPU where it has a kernel for it, else on the CPU.
TEST(GpuServer, SpgemmInSemiringsAndUnderMasks) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern s = Rmat(9, 8, 20);
  const std::vector<float> values = MustUpload(server, "s", s);
  const Pattern mask = Uniform(s.rows, s.cols, 9, 21);
  MustUpload(server, "mask", mask);
  const CsrView mask_view = mask.view();
  const std::pair<Semiring, v1::Semiring> semirings[] = {
      {Semiring::kSumProduct, v1::SEMIRING_SUM_PRODUCT},
      {Semiring::kBoolean, v1::SEMIRING_BOOLEAN},
      {Semiring::kMinPlus, v1::SEMIRING_MIN_PLUS},
      {Semiring::kPlusPair, v1::SEMIRING_PLUS_PAIR}};
  for (const bool masked : {false, true}) {
    for (const auto& [semiring, asked] : semirings) {
      SCOPED_TRACE(testing::Message() << Name(semiring) << (masked ? " under a mask" : ""));
      v1::SpgemmStart start = SpgemmStart("s", "s");
      start.set_semiring(asked);
      if (masked) start.set_mask("mask");
      const Answer answer = Spgemm(server, start);
      ASSERT_EQ(answer.code(), 0) << answer.message();
      const Problem problem = {.operation = Operation::kSpgemm,
                               .device = DeviceKind::kCuda,
                               .semiring = semiring,
                               .masked = masked};
      const bool there = std::ranges::any_of(
          cuda::SpgemmKernels(), [&](const auto& kernel) { return kernel.supports(problem); });
      const std::string& plan = answer.begins.at(0).plan();
      EXPECT_TRUE(plan.starts_with(there ? "csr * csr / cuda." : "csr * csr / cpu.")) << plan;
      const auto expected =
          reference::Spgemm(s.view(), Wide(values).data(), s.view(), Wide(values).data(), semiring,
                            masked ? &mask_view : nullptr);
      EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
      EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
      EXPECT_EQ(server.engine().gpus().front()->budget().used(engine::MemoryUse::kRequests), 0);
    }
  }
}

TEST(GpuServer, SpgemmOfEmptyMatrices) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  MustUpload(server, "s", Pattern{3, 5, {0, 0, 0, 0}, {}});
  MustUpload(server, "t", Uniform(5, 7, 2, 15));
  const Answer answer = Spgemm(server, "s", "t");
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_EQ(answer.ends[0].nnz(), 0);
  EXPECT_EQ(answer.Values<int64_t>(0), (std::vector<int64_t>{0, 0, 0, 0}));
}

TEST(GpuServer, SpgemmThatDoesNotFitRunsOnTheCpu) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.device_memory_bytes = int64_t{520} << 20;
  });
  const Pattern s = Rmat(11, 8, 16);
  const std::vector<float> values = MustUpload(server, "s", s);
  const auto expected =
      reference::Spgemm(s.view(), Wide(values).data(), s.view(), Wide(values).data());
  std::vector<Buffer> rest = FillUp(*server.engine().gpus().front());
  Answer answer = Spgemm(server, "s", "s");
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_NE(answer.begins.at(0).plan().find("cpu."), std::string::npos);
  EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
  rest.clear();
  answer = Spgemm(server, "s", "s");
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_NE(answer.begins.at(0).plan().find("cuda."), std::string::npos);
  EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
  EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
}

TEST(GpuServer, GivesIdleMemoryBackToTheCard) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Band(100'000, 2);
  MustUpload(server, "s", pattern);
  const int64_t k = 512;
  const size_t operand = 100'000 * k * sizeof(float);  // 205 MB
  const std::vector<float> b = FloatValues(100'000 * k, 5);
  ASSERT_EQ(Spmm(server.compute(), "s", 100'000, k, b).code(), 0);
  const auto kept = [] {
    const cuda::PoolState pool = cuda::ReadPool().value();
    return pool.reserved - pool.used;
  };
  // What small buffers share blocks with stays.
  EXPECT_TRUE(Eventually([&] { return kept() < operand; })) << kept();
  // On a busy machine the time until then may pass before anybody looks.
  bool was_kept = false;
  for (int i = 0; i < 10 && !was_kept; ++i) {
    EXPECT_EQ(Spmm(server.compute(), "s", 100'000, k, b).code(), 0);
    was_kept = kept() >= operand;
  }
  EXPECT_TRUE(was_kept);
}

TEST(GpuServer, ResultsThatAreOnlyOnTheDeviceSurviveEviction) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.device_memory_bytes = int64_t{520} << 20;
  });
  const Pattern pattern = Band(20'000, 1);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const int64_t k = 64;
  const std::vector<float> x = FloatValues(20'000 * k, 5);
  PutBuffer(server, "x", 20'000, k, x);
  PutBuffer(server, "y", 20'000, k, x);
  ASSERT_EQ(SpmmHeld(server, "s", "x", "y").code(), 0);
  EXPECT_FALSE(FillUp(*server.engine().gpus().front()).empty());
  EXPECT_TRUE(Near(GetBuffer(server, "y"), Product(pattern, values, false, Wide(x), k)));
  ASSERT_EQ(SpmmHeld(server, "s", "y", "x").code(), 0);
}

TEST(GpuServer, PreparesOnTheDevice) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.preparation_workers = 1;
    config.preparation_threads = 2;
  });
  const Pattern pattern = Rmat(13, 8, 3);
  const std::vector<float> values = MustUpload(server, "s", pattern);
  const v1::MatrixInfo info = WhenReady(server, "s");
  ASSERT_EQ(info.state(), v1::MATRIX_STATE_READY);
  ASSERT_EQ(info.plans_size(), 1) << info.DebugString();
  EXPECT_EQ(info.plans(0).device(), "cuda");
  EXPECT_GT(info.measurements_size(), 1);
  for (const v1::Measurement& measurement : info.measurements()) {
    EXPECT_EQ(measurement.device(), "cuda:0");
    EXPECT_GT(measurement.gflops(), 0);
  }
  const int64_t k = 128;
  const std::vector<float> b = FloatValues(pattern.cols * k, 5);
  const Answer answer = Spmm(server.compute(), "s", pattern.cols, k, b);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_TRUE(Near(answer.Values<float>(0), Product(pattern, values, false, Wide(b), k)));
}

TEST(GpuServer, PairsAreTriedOnTheDevice) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.preparation_workers = 1;
    config.preparation_threads = 2;
  });
  const Pattern s = Band(20'000, 6), t = Uniform(20'000, 5000, 4, 7);
  std::map<std::string, std::vector<float>> values;
  values["s"] = MustUpload(server, "s", s);
  values["t"] = MustUpload(server, "t", t);
  WhenReady(server, "s");
  for (const auto& [right, pattern] : {std::pair("s", &s), std::pair("t", &t)}) {
    // The left one is plain CSR or in a layout; the right one's hash follows if it is another.
    const std::string hash = WhenReady(server, "t").pattern_hash();
    const auto is_of_pair = [&, square = right == std::string("s")](const std::string& pipeline) {
      return pipeline.find(" * ") != std::string::npos && pipeline.ends_with(hash) != square;
    };
    const auto expected = reference::Spgemm(s.view(), Wide(values["s"]).data(), pattern->view(),
                                            Wide(values[right]).data());
    // The first one asks for trials, the second one is served by what they found.
    std::string planned;
    for (int run = 0; run < 2; ++run) {
      const Answer answer = Spgemm(server, "s", right);
      ASSERT_EQ(answer.code(), 0) << answer.message();
      if (run == 1) {
        const std::string& plan = answer.begins.at(0).plan();
        EXPECT_TRUE(plan.ends_with(" / " + planned)) << plan;
        EXPECT_EQ(plan.starts_with("csr * csr / "), FindSpgemmKernel(planned)->layout_kind == kCsr)
            << plan;
      }
      EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
      EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
      ASSERT_TRUE(Eventually([&] {
        const v1::MatrixInfo info = WhenReady(server, "s");
        for (const auto& plan : info.plans()) {
          if (!is_of_pair(plan.recipe())) continue;
          EXPECT_EQ(plan.device(), "cuda");
          EXPECT_GT(plan.plan_ms(), 0);
          planned = plan.kernel();
        }
        return !planned.empty();
      })) << right;
    }
    std::set<std::string> measured;
    const v1::MatrixInfo info = WhenReady(server, "s");
    for (const v1::Measurement& m : info.measurements()) {
      if (!is_of_pair(m.recipe())) continue;
      EXPECT_EQ(m.device(), "cuda:0");
      EXPECT_GT(m.median_ms(), 0);
      EXPECT_GT(m.baseline_ms(), 0);
      EXPECT_GT(m.floor_share(), 0);
      measured.insert(m.kernel());
    }
    EXPECT_TRUE(measured.contains(std::string(cuda::SpgemmKernels().front().name))) << right;
    EXPECT_TRUE(measured.contains(planned)) << planned;
    for (const SpgemmKernel& kernel : cuda::SpgemmKernels()) {
      if (kernel.layout_kind != kDiagonals || right == std::string("t")) continue;
      EXPECT_TRUE(measured.contains(std::string(kernel.name))) << kernel.name;
    }
  }
  EXPECT_EQ(server.engine().gpus().front()->budget().used(engine::MemoryUse::kPreparation), 0);
}

TEST(GpuServer, PairsTriedOnTheDeviceAreKnownAfterARestart) {
  SKIP_WITHOUT_GPU();
  std::string folder = testing::TempDir() + "sparsed_pairs_XXXXXX";
  folder = mkdtemp(folder.data());
  const auto durable = [&](server::Config& config) {
    OnGpu(config);
    config.preparation_workers = 1;
    config.data_dir = folder;
  };
  const auto plan_of = [](const v1::MatrixInfo& info) {
    for (const auto& plan : info.plans()) {
      if (plan.recipe().find(" * ") != std::string::npos) return plan.kernel();
    }
    return std::string();
  };
  const auto times_of = [](const v1::MatrixInfo& info) {
    std::map<std::string, double> times;
    for (const v1::Measurement& m : info.measurements()) {
      if (m.recipe().find(" * ") != std::string::npos) times[m.kernel()] = m.median_ms();
    }
    return times;
  };
  std::string planned;
  std::map<std::string, double> times;
  for (int start = 0; start < 2; ++start) {
    TestServer server(durable);
    if (start == 0) MustUpload(server, "s", Band(20'000, 6));
    WhenReady(server, "s");
    ASSERT_EQ(Spgemm(server, "s", "s").code(), 0);
    v1::MatrixInfo info;
    ASSERT_TRUE(Eventually([&] {
      info = WhenReady(server, "s");
      return !plan_of(info).empty();
    }));
    if (start == 0) {
      planned = plan_of(info);
      times = times_of(info);
      EXPECT_FALSE(times.empty());
    } else {
      EXPECT_EQ(plan_of(info), planned);
      EXPECT_EQ(times_of(info), times) << "nothing is timed again";
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(GpuServer, TransposedPairsAreTriedOnTheDevice) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.preparation_workers = 1;
  });
  const Pattern s = Uniform(3000, 2000, 8, 9);
  const std::vector<float> values = MustUpload(server, "s", s);
  std::vector<int64_t> source;
  const Pattern transposed = Transpose(s, &source);
  std::vector<double> transposed_values;
  for (const int64_t p : source) transposed_values.push_back(values[p]);
  WhenReady(server, "s");
  v1::SpgemmStart start = SpgemmStart("s", "s");
  start.set_transpose_left(true);
  const auto expected =
      reference::Spgemm(transposed.view(), transposed_values.data(), s.view(), Wide(values).data());
  std::string planned;
  for (int run = 0; run < 2; ++run) {
    const Answer answer = Spgemm(server, start);
    ASSERT_EQ(answer.code(), 0) << answer.message();
    if (run == 1) {
      EXPECT_EQ(answer.begins.at(0).plan(), "transpose * csr / " + planned);
    }
    EXPECT_TRUE(answer.Values<int32_t>(1) == expected.column_indices);
    EXPECT_TRUE(Near(answer.Values<float>(2), expected.values));
    ASSERT_TRUE(Eventually([&] {
      const v1::MatrixInfo info = WhenReady(server, "s");
      for (const auto& plan : info.plans()) {
        if (plan.recipe() == "transpose * csr") planned = plan.kernel();
      }
      return !planned.empty();
    }));
  }
  EXPECT_NE(planned.find("cuda."), std::string::npos);
}

TEST(GpuServer, PairsThatFindNoMemoryOnTheDeviceAreTriedAgainLater) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.device_memory_bytes = int64_t{520} << 20;
    config.preparation_workers = 1;
  });
  const Pattern s = Band(20'000, 6);
  MustUpload(server, "s", s);
  WhenReady(server, "s");
  const std::vector<Buffer> rest = FillUp(*server.engine().gpus().front());
  const engine::MatrixLease matrix = server.engine().catalog().Find("default", "s").value();
  const Problem problem = {.operation = Operation::kSpgemm, .device = DeviceKind::kCuda};
  server.engine().executor().on_unknown_pair({matrix->pattern(), matrix->pattern()}, problem);
  const auto find = [&] {
    return matrix->pattern()->plans().Find(SignatureOf(problem),
                                           engine::PatternPair{matrix->pattern()->hash()});
  };
  ASSERT_TRUE(Eventually([&] { return find().exact; }));
  EXPECT_FALSE(find().decided());
  EXPECT_EQ(find().plan->plan.kernel, cuda::SpgemmKernels().front().name);
}

TEST(GpuServer, ReplacedValuesReachTheLayoutOfThePlan) {
  SKIP_WITHOUT_GPU();
  if (FindSpmmKernel("cuda.row_panels.fma") == nullptr) GTEST_SKIP() << "no kernel for row panels";
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.preparation_workers = 1;
    config.preparation_threads = 2;
  });
  const Pattern pattern = Band(50'000, 16);  // row panels win by far
  std::vector<float> values = MustUpload(server, "s", pattern);
  ASSERT_EQ(WhenReady(server, "s").state(), v1::MATRIX_STATE_READY);
  const int64_t k = 128;
  const std::vector<float> b = FloatValues(pattern.cols * k, 5);
  for (int version = 1; version <= 3; ++version) {
    const Answer answer = Spmm(server.compute(), "s", pattern.cols, k, b);
    ASSERT_EQ(answer.code(), 0) << answer.message();
    EXPECT_NE(answer.begins.at(0).plan().find("row_panels"), std::string::npos)
        << answer.begins.at(0).plan();
    EXPECT_TRUE(Near(answer.Values<float>(0), Product(pattern, values, false, Wide(b), k)))
        << "version " << version;
    values = FloatValues(pattern.nnz(), 100 + version);
    MustUpdate(server, "s", values);
  }
}

TEST(GpuServer, ManyClientsAtOnce) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern wide = Uniform(2000, 1500, 7, 21), square = Rmat(10, 8, 22);
  const std::vector<float> wide_values = MustUpload(server, "wide", wide);
  const std::vector<float> square_values = MustUpload(server, "square", square);
  std::atomic<int> wrong = 0, done = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      const auto stub = v1::Compute::NewStub(server.Connect());
      const bool is_wide = c % 2 == 0;
      const Pattern& pattern = is_wide ? wide : square;
      for (int i = 0; i < 25; ++i) {
        const int64_t k = 1 + (c * 13 + i * 7) % 96;
        const std::vector<float> b = FloatValues(pattern.cols * k, c * 100 + i);
        const Answer answer = Spmm(*stub, is_wide ? "wide" : "square", pattern.cols, k, b);
        const bool right =
            answer.code() == 0 &&
            Near(answer.Values<float>(0),
                 Product(pattern, is_wide ? wide_values : square_values, false, Wide(b), k));
        if (!right) ++wrong;
        ++done;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(done, 200);
}

TEST(GpuServer, PreparesWhileRequestsNeverEnd) {
  SKIP_WITHOUT_GPU();
  TestServer server([](server::Config& config) {
    OnGpu(config);
    config.preparation_workers = 1;
    config.preparation_threads = 1;
    config.metrics_listen = "127.0.0.1:0";
  });
  const Pattern busy = Uniform(2000, 1500, 7, 21);
  MustUpload(server, "busy", busy);
  WhenReady(server, "busy");
  std::atomic<bool> stop = false;
  std::atomic<int> failed = 0;
  std::vector<std::thread> clients;
  const int64_t k = 128;
  const std::vector<float> b = FloatValues(busy.cols * k, 5);
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&] {
      const auto stub = v1::Compute::NewStub(server.Connect());
      while (!stop) {
        if (Spmm(*stub, "busy", busy.cols, k, b).code() != 0) ++failed;
      }
    });
  }
  MustUpload(server, "s", Uniform(1000, 1000, 5, 22));
  EXPECT_EQ(WhenReady(server, "s").state(), v1::MATRIX_STATE_READY);
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_NE(server.Page("/metrics").find("sparsed_trial_wait_seconds_count{device=\"cuda:0\"}"),
            std::string::npos);
}

TEST(GpuServer, CancelledUploadsOfOperandsLeaveNothing) {
  SKIP_WITHOUT_GPU();
  TestServer server(OnGpu);
  const Pattern pattern = Uniform(2000, 1500, 7, 21);
  MustUpload(server, "s", pattern);
  const int64_t k = 256;
  const std::vector<float> b = FloatValues(1500 * k, 1);
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    auto stream = server.compute().Spmm(&context);
    stream->Write(SpmmStartOf(1, "s", 1500, k));
    WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b).substr(0, 1'000'000), 65536);
    context.TryCancel();
  }
  EXPECT_TRUE(Eventually([&] {
    return server.engine().gpus().front()->budget().used(engine::MemoryUse::kRequests) == 0;
  }));
}

}  // namespace
}  // namespace sparsed::test
