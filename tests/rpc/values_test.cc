// SpMM and SDDMM with S's values of the request: right products, whatever the matrix's own are.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/reference/reference.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using Arrays = std::vector<std::pair<uint32_t, std::string_view>>;

template <typename T>
constexpr v1::ElementType kType = v1::ELEMENT_TYPE_F32;
template <>
constexpr v1::ElementType kType<double> = v1::ELEMENT_TYPE_F64;
template <>
constexpr v1::ElementType kType<Float16> = v1::ELEMENT_TYPE_F16;

template <typename T>
const T kNaN = T(std::numeric_limits<float>::quiet_NaN());

/// A pattern, and the order that its nonzeros are sent in.
struct Sent {
  Pattern canonical, as_sent;
  std::vector<int64_t> order;  ///< the i-th of `canonical` is number order[i] of `as_sent`

  template <typename V>
  std::vector<V> Canonical(const std::vector<V>& sent) const {
    std::vector<V> values;
    for (const int64_t from : order) values.push_back(sent[from]);
    return values;
  }
  template <typename V>
  std::vector<V> AsSent(const std::vector<V>& canonical_values) const {
    std::vector<V> values(order.size());
    for (size_t i = 0; i < order.size(); ++i) values[order[i]] = canonical_values[i];
    return values;
  }
};

Sent InOrder(const Pattern& pattern) {
  Sent sent = {pattern, pattern, std::vector<int64_t>(pattern.nnz())};
  std::iota(sent.order.begin(), sent.order.end(), 0);
  return sent;
}

Sent Shuffled(const Pattern& pattern, uint64_t seed) {
  Sent sent = InOrder(pattern);
  for (int64_t row = 0; row < pattern.rows; ++row) {
    const int64_t begin = pattern.row_offsets[row];
    const std::vector<int32_t> places = RandomOrder(pattern.row_offsets[row + 1] - begin, seed++);
    for (size_t i = 0; i < places.size(); ++i) {
      sent.order[begin + i] = begin + places[i];
      sent.as_sent.column_indices[begin + places[i]] = pattern.column_indices[begin + i];
    }
  }
  return sent;
}

v1::DenseShape Shape(v1::ElementType type, int64_t rows, int64_t cols) {
  v1::DenseShape shape;
  shape.set_rows(rows);
  shape.set_cols(cols);
  shape.set_type(type);
  return shape;
}

v1::Operand Streamed(uint32_t array, const v1::DenseShape& shape) {
  v1::Operand operand;
  *operand.mutable_shape() = shape;
  operand.set_stream_array(array);
  return operand;
}

v1::Operand Held(const std::string& name) {
  v1::Operand operand;
  operand.set_buffer(name);
  return operand;
}

void MustUploadAs(TestServer& server, const std::string& name, const Sent& s, v1::ElementType type,
                  std::string_view values) {
  v1::UploadHeader header = HeaderOf(name, s.as_sent);
  header.set_type(type);
  header.set_sort(true);
  header.set_replace(true);
  const grpc::Status status =
      UploadBytes(server.catalog(), header, s.as_sent, values, 1 << 20, nullptr);
  ASSERT_TRUE(status.ok()) << status.error_message();
}

void Put(TestServer& server, const std::string& name, const v1::DenseShape& shape,
         std::string_view bytes) {
  grpc::ClientContext context;
  v1::BufferInfo info;
  auto writer = server.buffers().Put(&context, &info);
  v1::PutBufferRequest request;
  request.mutable_header()->set_name(name);
  *request.mutable_header()->mutable_shape() = shape;
  writer->Write(request);
  WriteArray<v1::PutBufferRequest>(*writer, 0, 0, bytes);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
}

template <typename T>
std::vector<T> Get(TestServer& server, const std::string& name) {
  grpc::ClientContext context;
  v1::GetBufferRequest request;
  request.set_name(name);
  auto reader = server.buffers().Get(&context, request);
  v1::GetBufferReply reply;
  std::string bytes;
  while (reader->Read(&reply)) bytes += reply.chunk().data();
  EXPECT_TRUE(reader->Finish().ok());
  std::vector<T> values(bytes.size() / sizeof(T));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

/// One request on a stream of its own, and what it announced.
template <typename Request, typename Stream, typename Start>
Answer AskOn(Stream stream, const Start& start, const Arrays& arrays) {
  Request request;
  *request.mutable_start() = start;
  stream->Write(request);
  for (const auto& [array, bytes] : arrays) {
    WriteArray<Request>(*stream, start.request_id(), array, bytes, 101);
  }
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  return answers[start.request_id()];
}

Answer Ask(TestServer& server, const v1::SpmmStart& start, const Arrays& arrays) {
  grpc::ClientContext context;
  return AskOn<v1::SpmmRequest>(server.compute().Spmm(&context), start, arrays);
}
Answer Ask(TestServer& server, const v1::SddmmStart& start, const Arrays& arrays) {
  grpc::ClientContext context;
  return AskOn<v1::SddmmRequest>(server.compute().Sddmm(&context), start, arrays);
}

template <typename Start>
Start StartOf(const std::string& matrix) {
  Start start;
  start.set_request_id(3);
  start.set_matrix(matrix);
  return start;
}

/// Of matrix "s", whose own values are not to be used, with values that are streamed or held ("w").
template <typename T>
void ExpectSpmm(TestServer& server, const Sent& s, const std::vector<T>& values, bool transpose,
                bool held) {
  const int64_t k = 5;
  const Pattern& pattern = s.canonical;
  const int64_t in = transpose ? pattern.rows : pattern.cols;
  const int64_t out = transpose ? pattern.cols : pattern.rows;
  const std::vector<T> b = SmallIntegers<T>(in * k, 5), old = SmallIntegers<T>(out * k, 2);
  auto start = StartOf<v1::SpmmStart>("s");
  start.set_transpose(transpose);
  start.set_alpha(0.5);
  start.set_beta(-2);
  *start.mutable_b() = Streamed(0, Shape(kType<T>, in, k));
  *start.mutable_accumulate() = Streamed(1, Shape(kType<T>, out, k));
  Arrays arrays = {{0, BytesOf(b)}, {1, BytesOf(old)}};
  if (held) {
    *start.mutable_values() = Held("w");
    Put(server, "c", Shape(kType<T>, out, k), BytesOf(std::vector<T>(out * k, kNaN<T>)));
    start.mutable_result()->set_buffer("c");
  } else {
    *start.mutable_values() = Streamed(7, Shape(kType<T>, pattern.nnz(), 1));
    arrays.insert(arrays.begin(), {7, BytesOf(values)});
  }
  const Answer answer = Ask(server, start, arrays);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  std::vector<double> expected = Widened(old);
  reference::Spmm(pattern.view(), s.Canonical(Widened(values)).data(), transpose, Widened(b).data(),
                  k, k, 0.5, -2, expected.data());
  EXPECT_EQ(Widened(held ? Get<T>(server, "c") : answer.Values<T>(0)), expected);
}

template <typename T>
void ExpectSddmm(TestServer& server, const Sent& s, const std::vector<T>& values, bool held) {
  const int64_t k = 5;
  const Pattern& pattern = s.canonical;
  const std::vector<T> a = SmallIntegers<T>(pattern.rows * k, 4);
  const std::vector<T> b = SmallIntegers<T>(pattern.cols * k, 6);
  auto start = StartOf<v1::SddmmStart>("s");
  *start.mutable_a() = Streamed(0, Shape(kType<T>, pattern.rows, k));
  *start.mutable_b() = Streamed(1, Shape(kType<T>, pattern.cols, k));
  Arrays arrays = {{0, BytesOf(a)}, {1, BytesOf(b)}};
  if (held) {
    *start.mutable_values() = Held("w");
    Put(server, "o", Shape(kType<T>, pattern.nnz(), 1),
        BytesOf(std::vector<T>(pattern.nnz(), kNaN<T>)));
    start.mutable_result()->set_buffer("o");
  } else {
    *start.mutable_values() = Streamed(2, Shape(kType<T>, pattern.nnz(), 1));
    arrays.emplace_back(2, BytesOf(values));
  }
  const Answer answer = Ask(server, start, arrays);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  std::vector<double> expected(pattern.nnz());
  reference::Sddmm(pattern.view(), s.Canonical(Widened(values)).data(), Widened(a).data(), k,
                   Widened(b).data(), k, k, expected.data());
  EXPECT_EQ(Widened(held ? Get<T>(server, "o") : answer.Values<T>(0)), s.AsSent(expected));
}

/// Numbers are small integers: everything is exact.
template <typename T>
void ExpectProducts() {
  TestServer server;
  const Pattern one_row = FromRows(9, {{0, 3, 4, 8}});
  for (const Sent& s : {InOrder(Uniform(60, 45, 5, 11)), Shuffled(Uniform(45, 60, 6, 12), 1),
                        Shuffled(Rmat(7, 5, 13), 2), InOrder(one_row), Shuffled(one_row, 3)}) {
    SCOPED_TRACE(testing::Message() << s.canonical.rows << " x " << s.canonical.cols);
    const int64_t nnz = s.canonical.nnz();
    MustUploadAs(server, "s", s, kType<T>, BytesOf(std::vector<T>(nnz, kNaN<T>)));
    const std::vector<T> values = SmallIntegers<T>(nnz, 3);
    Put(server, "w", Shape(kType<T>, nnz, 1), BytesOf(values));
    for (const bool held : {false, true}) {
      ExpectSpmm(server, s, values, /*transpose=*/false, held);
      ExpectSpmm(server, s, values, /*transpose=*/true, held);
      ExpectSddmm(server, s, values, held);
    }
    EXPECT_EQ(Widened(Get<T>(server, "w")), Widened(values));
  }
}

TEST(ComputeValues, ProductsOfF32) { ExpectProducts<float>(); }
TEST(ComputeValues, ProductsOfF64) { ExpectProducts<double>(); }
TEST(ComputeValues, ProductsOfF16) { ExpectProducts<Float16>(); }

TEST(ComputeValues, OfNoNonzeros) {
  TestServer server;
  const Pattern none = FromRows(4, {{}, {}, {}});
  MustUploadAs(server, "s", InOrder(none), v1::ELEMENT_TYPE_F32, "");
  auto start = StartOf<v1::SpmmStart>("s");
  *start.mutable_b() = Streamed(0, Shape(v1::ELEMENT_TYPE_F32, 4, 2));
  *start.mutable_values() = Streamed(1, Shape(v1::ELEMENT_TYPE_F32, 0, 1));
  const std::vector<float> b(8, 1);
  const Answer answer = Ask(server, start, {{0, BytesOf(b)}});
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_EQ(answer.Values<float>(0), std::vector<float>(6, 0));
}

/// As a layer that learns weights of edges does: O = S .* (A * B^T) stays and is S's values of the
/// product after it; then O = O .* (A * B^T) in its place.
TEST(ComputeValues, AnSddmmsResultIsTheNextProductsValues) {
  TestServer server(WithPages);
  const int64_t k = 6;
  uint64_t version = 0;
  for (const Sent& s : {InOrder(Uniform(50, 40, 5, 21)), Shuffled(Uniform(50, 40, 5, 22), 4)}) {
    const Pattern& pattern = s.canonical;
    const int64_t nnz = pattern.nnz();
    const std::vector<float> own = SmallIntegers<float>(nnz, 5);
    MustUploadAs(server, "s", s, v1::ELEMENT_TYPE_F32, BytesOf(own));
    ++version;
    Put(server, "w", Shape(v1::ELEMENT_TYPE_F32, nnz, 1),
        BytesOf(std::vector<float>(nnz, kNaN<float>)));
    const std::vector<float> a = SmallIntegers<float>(50 * k, 4);
    const std::vector<float> b = SmallIntegers<float>(40 * k, 6);
    auto sddmm = StartOf<v1::SddmmStart>("s");
    *sddmm.mutable_a() = Streamed(0, Shape(v1::ELEMENT_TYPE_F32, 50, k));
    *sddmm.mutable_b() = Streamed(1, Shape(v1::ELEMENT_TYPE_F32, 40, k));
    sddmm.mutable_result()->set_buffer("w");
    auto spmm = StartOf<v1::SpmmStart>("s");
    *spmm.mutable_b() = Streamed(0, Shape(v1::ELEMENT_TYPE_F32, 40, k));
    *spmm.mutable_values() = Held("w");

    std::vector<double> weights = s.Canonical(Widened(own));
    for (int step = 0; step < 3; ++step) {
      std::vector<double> next(nnz), c(50 * k);
      reference::Sddmm(pattern.view(), weights.data(), Widened(a).data(), k, Widened(b).data(), k,
                       k, next.data());
      weights = next;
      reference::Spmm(pattern.view(), weights.data(), false, Widened(b).data(), k, k, 1, 0,
                      c.data());
      const Answer sampled = Ask(server, sddmm, {{0, BytesOf(a)}, {1, BytesOf(b)}});
      ASSERT_EQ(sampled.code(), 0) << sampled.message();
      EXPECT_EQ(Widened(Get<float>(server, "w")), s.AsSent(weights));
      const Answer product = Ask(server, spmm, {{0, BytesOf(b)}});
      ASSERT_EQ(product.code(), 0) << product.message();
      EXPECT_EQ(Widened(product.Values<float>(0)), c);
      EXPECT_EQ(product.ends[0].version(), version);
      *sddmm.mutable_values() = Held("w");
    }
    // The matrix has its own still.
    const Answer product = Spmm(server.compute(), "s", 40, k, b);
    std::vector<double> c(50 * k);
    reference::Spmm(pattern.view(), s.Canonical(Widened(own)).data(), false, Widened(b).data(), k,
                    k, 1, 0, c.data());
    EXPECT_EQ(Widened(product.Values<float>(0)), c);
  }
  // Three products and two of three SDDMMs read "w" on each matrix, 250 values of 4 bytes.
  EXPECT_NE(server.Page("/metrics")
                .find("sparsed_transfer_bytes_total{direction=\"in\",path=\"held\"} 10000\n"),
            std::string::npos);
}

TEST(ComputeValues, ThatCannotBeAreRefusedInASentence) {
  TestServer server;
  const Pattern pattern = Uniform(30, 20, 5, 1);  // 150 nonzeros
  MustUpload(server, "s", pattern);
  const std::vector<float> b = FloatValues(20 * 2, 2), a = FloatValues(30 * 2, 3);
  const std::vector<float> values = FloatValues(150, 4);
  const auto type = v1::ELEMENT_TYPE_F32;
  Put(server, "few", Shape(type, 149, 1), BytesOf(values).substr(4));
  auto spmm = StartOf<v1::SpmmStart>("s");
  *spmm.mutable_b() = Streamed(0, Shape(type, 20, 2));
  auto sddmm = StartOf<v1::SddmmStart>("s");
  *sddmm.mutable_a() = Streamed(0, Shape(type, 30, 2));
  *sddmm.mutable_b() = Streamed(1, Shape(type, 20, 2));
  const auto good = Streamed(5, Shape(type, 150, 1));
  const auto ask = [&](const v1::Operand& operand) {
    *spmm.mutable_values() = operand;
    return Ask(server, spmm, {{0, BytesOf(b)}, {5, BytesOf(values)}});
  };
  ASSERT_EQ(ask(good).code(), 0);
  const int64_t before = server.engine().budget().used();

  const auto expect = [&](const Answer& answer, grpc::StatusCode code, std::string_view sentence) {
    EXPECT_EQ(answer.code(), code) << answer.message();
    EXPECT_NE(answer.message().find(sentence), std::string::npos) << answer.message();
    EXPECT_TRUE(answer.arrays.empty());
  };
  const auto bad = grpc::INVALID_ARGUMENT;
  expect(ask(Streamed(5, Shape(type, 149, 1))), bad, "operand values is 149 x 1, expected 150 x 1");
  expect(ask(Streamed(5, Shape(type, 1, 150))), bad, "operand values is 1 x 150, expected 150 x 1");
  expect(ask(Streamed(5, Shape(v1::ELEMENT_TYPE_F64, 150, 1))), bad,
         "operand values is f64, but matrix 's' is f32");
  v1::Operand apart = good;
  apart.mutable_shape()->set_leading_dimension(2);
  expect(ask(apart), bad, "one value after the other");
  expect(ask(Streamed(0, Shape(type, 150, 1))), bad, "announced as array 0");
  expect(ask(Held("few")), bad, "operand values is 149 x 1, expected 150 x 1");
  expect(ask(Held("nothing")), grpc::NOT_FOUND, "'nothing'");
  expect(ask(v1::Operand()), bad,
         "operand values has neither a stream_array nor the name of a buffer");
  v1::Operand shapeless = good;
  shapeless.clear_shape();
  expect(ask(shapeless), bad, "operand values comes in the stream, but its shape is missing");

  // What was announced and never came.
  *spmm.mutable_values() = good;
  expect(Ask(server, spmm, {{0, BytesOf(b)}, {5, BytesOf(values).substr(0, 599)}}), bad,
         "the stream was closed before");

  sddmm.set_unscaled(true);
  for (const v1::Operand& operand : {good, Held("few")}) {
    *sddmm.mutable_values() = operand;
    expect(Ask(server, sddmm, {{0, BytesOf(a)}, {1, BytesOf(b)}}), bad,
           "S's values are sent, but the product is unscaled");
  }
  EXPECT_TRUE(server.ComesBackTo(before));
  EXPECT_EQ(ask(good).code(), 0);
}

}  // namespace
}  // namespace sparsed::test
