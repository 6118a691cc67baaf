// A server that lies: every call ends with a clear status and touches nothing but its own memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "sparsed/client.h"
#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/catalog.pb.h"
#include "sparsed/v1/compute.pb.h"
#include "tests/unit/client/scripted_server.h"

namespace sparsed::test {
namespace {

using absl::StatusCode;
using grpc::ByteBuffer;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr auto kF32 = v1::ELEMENT_TYPE_F32;
constexpr auto kF64 = v1::ELEMENT_TYPE_F64;
constexpr auto kI32 = v1::ELEMENT_TYPE_I32;
constexpr auto kI64 = v1::ELEMENT_TYPE_I64;

/// What the server says, and how the call must end.
struct Case {
  const char* what;
  std::vector<ByteBuffer> replies;
  StatusCode code = StatusCode::kInternal;
};

ByteBuffer Garbage() {
  const grpc::Slice slice("\xff\xff\xff\xff");
  return {&slice, 1};
}

ByteBuffer Chunk(uint64_t id, uint32_t array, uint64_t offset, size_t size) {
  return wire::EncodeChunk(id, array, offset, grpc::Slice(std::string(size, '\x01')));
}

template <typename T>
ByteBuffer Chunk(uint64_t id, uint32_t array, uint64_t offset, const std::vector<T>& elements) {
  return wire::EncodeChunk(id, array, offset,
                           grpc::Slice(elements.data(), elements.size() * sizeof(T)));
}

using Arrays = std::vector<std::pair<v1::ElementType, int64_t>>;

ByteBuffer Begin(uint64_t id, int64_t rows, int64_t cols, const Arrays& arrays, int64_t nnz = -1) {
  v1::ComputeReply reply;
  v1::Begin& begin = *reply.mutable_begin();
  begin.set_request_id(id);
  begin.set_plan("a plan");
  begin.set_rows(rows);
  begin.set_cols(cols);
  begin.set_nnz(nnz);
  for (const auto& [type, length] : arrays) {
    v1::ArrayHeader& array = *begin.add_arrays();
    array.set_type(type);
    array.set_length(length);
  }
  return wire::Encode(reply);
}

ByteBuffer Block(uint64_t id, int64_t row_begin, int64_t rows, int64_t nnz_begin, int64_t nnz) {
  v1::ComputeReply reply;
  v1::RowBlock& block = *reply.mutable_block();
  block.set_request_id(id);
  block.set_row_begin(row_begin);
  block.set_rows(rows);
  block.set_nnz_begin(nnz_begin);
  block.set_nnz(nnz);
  return wire::Encode(reply);
}

ByteBuffer End(uint64_t id, int32_t code = 0, int64_t nnz = 0) {
  v1::ComputeReply reply;
  reply.mutable_end()->set_request_id(id);
  reply.mutable_end()->mutable_status()->set_code(code);
  if (code != 0) reply.mutable_end()->mutable_status()->set_message("no");
  reply.mutable_end()->set_nnz(nnz);
  return wire::Encode(reply);
}

/// Memory with a fence around it.
class Fenced {
 public:
  explicit Fenced(size_t floats) : memory_(floats + 2 * kFence, kUntouched) {}
  ~Fenced() {
    const auto is_untouched = [](float value) { return value == kUntouched; };
    EXPECT_TRUE(std::all_of(memory_.begin(), memory_.begin() + kFence, is_untouched));
    EXPECT_TRUE(std::all_of(memory_.end() - kFence, memory_.end(), is_untouched));
  }
  float* data() { return memory_.data() + kFence; }

 private:
  static constexpr size_t kFence = 1024;
  static constexpr float kUntouched = -7.5F;
  std::vector<float> memory_;
};

/// Lets `call` meet each of the cases; the server closes the stream after its replies.
template <typename Call>
void Meet(const std::string& method, const std::vector<Case>& cases, const Call& call) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    ScriptedServer server({{"/sparsed.v1." + method, {.replies = c.replies}}});
    const auto client = Client::Connect(
        server.address(), {.max_attempts = 2, .initial_backoff = std::chrono::milliseconds(1)});
    ASSERT_TRUE(client.ok()) << client.status();
    const absl::Status status = call(*client);
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_EQ(status.message().empty(), status.ok());
  }
}

TEST(HostileServer, Spmm) {
  const Arrays result = {{kF32, 8}};
  const ByteBuffer begin = Begin(1, 4, 2, result);
  const std::vector<float> b(6, 1);
  Meet("Compute/Spmm",
       {{"honest", {begin, Chunk(1, 0, 16, 16), Chunk(1, 0, 0, 16), End(1)}, StatusCode::kOk},
        {"nothing", {}, StatusCode::kUnavailable},
        {"garbage", {Garbage()}},
        {"garbage later", {begin, Chunk(1, 0, 0, 16), Garbage()}},
        {"no request of this id", {Begin(7, 4, 2, result)}},
        {"request 0", {Begin(0, 4, 2, result)}},
        {"a chunk for nobody", {begin, Chunk(1ULL << 60, 0, 0, 16)}},
        {"the end of nothing", {End(2)}},
        {"a row block", {begin, Block(1, 0, 4, 0, 8), End(1)}},
        {"too many rows", {Begin(1, 5, 2, {{kF32, 10}})}, StatusCode::kInvalidArgument},
        {"negative rows", {Begin(1, -4, 2, result)}, StatusCode::kInvalidArgument},
        {"too long", {Begin(1, 4, 2, {{kF32, 9}})}, StatusCode::kInvalidArgument},
        {"negative", {Begin(1, 4, 2, {{kF32, -8}})}, StatusCode::kInvalidArgument},
        {"wraps", {Begin(1, 4, 2, {{kF32, (1LL << 62) + 8}})}, StatusCode::kInvalidArgument},
        {"wider values", {Begin(1, 4, 2, {{kF64, 4}})}, StatusCode::kInvalidArgument},
        {"no values", {Begin(1, 4, 2, {{kI32, 8}})}, StatusCode::kInvalidArgument},
        {"no array", {Begin(1, 4, 2, {})}},
        {"two arrays", {Begin(1, 4, 2, {{kF32, 8}, {kF32, 8}})}},
        {"begins twice", {begin, begin}},
        {"bytes before the begin", {Chunk(1, 0, 0, 32), begin, End(1)}},
        {"another array", {begin, Chunk(1, 1, 0, 32)}},
        {"too many bytes", {begin, Chunk(1, 0, 0, 36)}},
        {"far too many bytes", {begin, Chunk(1, 0, 0, 3 << 20)}},
        {"past the end", {begin, Chunk(1, 0, 28, 8)}},
        {"far away", {begin, Chunk(1, 0, 1ULL << 40, 8)}},
        {"offset wraps", {begin, Chunk(1, 0, ~0ULL - 3, 8)}},
        {"twice", {begin, Chunk(1, 0, 0, 16), Chunk(1, 0, 12, 16)}},
        {"half of it", {begin, Chunk(1, 0, 0, 16), End(1)}},
        {"nothing of it", {begin, End(1)}},
        {"ends before it begins", {End(1)}},
        {"breaks off", {begin, Chunk(1, 0, 0, 16)}, StatusCode::kUnavailable},
        {"fails", {begin, End(1, 5)}, StatusCode::kNotFound},
        {"fails in a new way", {begin, End(1, 999)}, StatusCode::kUnknown},
        {"fails below zero", {begin, End(1, -1)}, StatusCode::kUnknown},
        {"goes on after the end",
         {begin, Chunk(1, 0, 0, 32), End(1), End(1), begin, Chunk(1, 0, 0, 3 << 20)},
         StatusCode::kOk}},
       [&](const Client& client) {
         Fenced c(8);
         return client.MatrixNamed("m")
             .Spmm(DenseView(b.data(), 3, 2), MutableDenseView(c.data(), 4, 2))
             .status();
       });
}

TEST(HostileServer, SpmmBetweenGaps) {
  const std::vector<float> b(6, 1);
  const ByteBuffer begin = Begin(1, 4, 2, {{kF32, 8}});
  Meet("Compute/Spmm",
       {{"odd pieces",
         {begin, Chunk(1, 0, 0, 1), Chunk(1, 0, 1, 10), Chunk(1, 0, 12, 20), Chunk(1, 0, 11, 1),
          End(1)},
         StatusCode::kOk},
        {"past the end", {begin, Chunk(1, 0, 31, 2)}}},
       [&](const Client& client) {
         std::vector<float> c(4 * 3 - 1, -1);  // no gap after the last row
         const absl::Status status =
             client.MatrixNamed("m")
                 .Spmm(DenseView(b.data(), 3, 2), MutableDenseView(c.data(), 4, 2, 3))
                 .status();
         EXPECT_EQ(c[2], -1);
         EXPECT_EQ(c[5], -1);
         EXPECT_EQ(c[8], -1);
         return status;
       });
}

TEST(HostileServer, ResultsThatStayThere) {
  Meet("Compute/Spmm",
       {{"honest", {Begin(1, 4, 2, {}), End(1)}, StatusCode::kOk},
        {"announces bytes", {Begin(1, 4, 2, {{kF32, 8}})}},
        {"sends bytes", {Begin(1, 4, 2, {}), Chunk(1, 0, 0, 8)}}},
       [](const Client& client) {
         return client.MatrixNamed("m")
             .Spmm(client.DenseNamed("b"), client.DenseNamed("c"))
             .status();
       });
}

TEST(HostileServer, Sddmm) {
  const std::vector<float> a(6, 1);
  Meet("Compute/Sddmm",
       {{"honest", {Begin(1, 5, 1, {{kF32, 5}}), Chunk(1, 0, 0, 20), End(1)}, StatusCode::kOk},
        {"too few values", {Begin(1, 4, 1, {{kF32, 4}})}, StatusCode::kInvalidArgument},
        {"too many values", {Begin(1, 6, 1, {{kF32, 6}})}, StatusCode::kInvalidArgument},
        {"other values", {Begin(1, 5, 1, {{kI64, 5}})}, StatusCode::kInvalidArgument},
        {"too many bytes", {Begin(1, 5, 1, {{kF32, 5}}), Chunk(1, 0, 4, 20)}}},
       [&](const Client& client) {
         Fenced values(5);
         return client.MatrixNamed("m")
             .Sddmm(DenseView(a.data(), 3, 2), DenseView(a.data(), 3, 2),
                    MutableDenseView(std::span(values.data(), 5)))
             .status();
       });
}

TEST(HostileServer, SilenceEndsAtTheDeadline) {
  const std::vector<float> b(6, 1);
  const ByteBuffer begin = Begin(1, 4, 2, {{kF32, 8}});
  ScriptedServer server({{"/sparsed.v1.Compute/Spmm", {.replies = {begin}, .end = {}}},
                         {"/sparsed.v1.Compute/Spgemm", {.replies = {}, .end = {}}},
                         {"/sparsed.v1.Catalog/Get", {.replies = {}, .end = {}}}});
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  const Matrix m = client->MatrixNamed("m");
  const CallOptions soon{.timeout = std::chrono::milliseconds(100)};
  Fenced c(8);
  EXPECT_EQ(
      m.Spmm(DenseView(b.data(), 3, 2), MutableDenseView(c.data(), 4, 2), {}, soon).status().code(),
      StatusCode::kDeadlineExceeded);
  EXPECT_EQ(m.SpgemmCollect(m, nullptr, soon).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(m.Info(soon).status().code(), StatusCode::kDeadlineExceeded);
  auto forgotten = m.SpmmAsync(DenseView(b.data(), 3, 2), MutableDenseView(c.data(), 4, 2));
}

TEST(HostileServer, Spgemm) {
  // 1 0 2
  // 0 3 0
  const Arrays csr = {{kI64, 3}, {kI32, -1}, {kF32, -1}};
  const ByteBuffer begin = Begin(1, 2, 3, csr);
  const ByteBuffer block = Block(1, 0, 2, 0, 3);
  const ByteBuffer offsets = Chunk(1, 0, 8, std::vector<int64_t>{2, 3});
  const ByteBuffer columns = Chunk(1, 1, 0, std::vector<int32_t>{0, 2, 1});
  const ByteBuffer values = Chunk(1, 2, 0, std::vector<float>{1, 2, 3});
  const ByteBuffer end = End(1, 0, 3);
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() - 1;
  std::vector<Case> cases = {
      {"honest", {begin, block, values, offsets, columns, end}, StatusCode::kOk},
      {"nothing", {}},
      {"garbage", {Garbage()}},
      {"another id", {Begin(2, 2, 3, csr)}},
      {"another id of a block", {begin, Block(0, 0, 2, 0, 3)}},
      {"another id of a chunk", {begin, block, Chunk(2, 0, 8, 16)}},
      {"another id of the end", {begin, End(3)}},
      {"no arrays", {Begin(1, 2, 3, {})}},
      {"other offsets", {Begin(1, 2, 3, {{kI32, 3}, {kI32, 3}, {kF32, 3}})}},
      {"other columns", {Begin(1, 2, 3, {{kI64, 3}, {kI64, 3}, {kF32, 3}})}},
      {"other values", {Begin(1, 2, 3, {{kI64, 3}, {kI32, 3}, {kI64, 3}})}},
      {"begins twice", {begin, begin}},
      {"negative rows", {Begin(1, -1, 3, csr)}},
      {"huge rows", {Begin(1, kHuge, 3, csr)}},
      {"huge columns", {Begin(1, 2, kHuge, csr)}},
      {"negative nonzeros", {Begin(1, 2, 3, csr, -2)}},
      {"too many nonzeros", {Begin(1, 2, 3, csr, 7)}},
      {"a block before the begin", {block}},
      {"a chunk before the block", {begin, offsets}},
      {"no rows", {begin, Block(1, 0, 0, 0, 0)}},
      {"negative rows of a block", {begin, Block(1, 0, -2, 0, 3)}},
      {"too many rows of a block", {begin, Block(1, 0, 3, 0, 3)}},
      {"huge rows of a block", {begin, Block(1, 0, kHuge, 0, 3)}},
      {"not the next row", {begin, Block(1, 1, 1, 0, 3)}},
      {"not the next nonzero", {begin, Block(1, 0, 2, 1, 3)}},
      {"negative nonzeros of a block", {begin, Block(1, 0, 2, 0, -3)}},
      {"too many nonzeros of a block", {begin, Block(1, 0, 2, 0, 7)}},
      {"sizes that wrap", {Begin(1, kMax, kMax, csr), Block(1, 0, kMax, 0, 1LL << 61)}},
      {"a huge block and no bytes", {Begin(1, kMax, kMax, csr), Block(1, 0, kMax, 0, 1LL << 40)}},
      {"two blocks at once", {begin, Block(1, 0, 1, 0, 2), Block(1, 1, 1, 2, 1)}},
      {"a fourth array", {begin, block, Chunk(1, 3, 0, 4)}},
      {"too many columns", {begin, block, Chunk(1, 1, 0, 16)}},
      {"a gap", {begin, block, Chunk(1, 1, 4, 8)}},
      {"twice", {begin, block, columns, columns}},
      {"offset wraps", {begin, block, Chunk(1, 2, ~0ULL - 3, 8)}},
      {"the offset of row 0", {begin, block, Chunk(1, 0, 0, 16)}},
      {"descending rows",
       {begin, block, Chunk(1, 0, 8, std::vector<int64_t>{4, 3}), columns, values, end}},
      {"rows beyond the block",
       {begin, block, Chunk(1, 0, 8, std::vector<int64_t>{2, 4}), columns, values, end}},
      {"negative offsets",
       {begin, block, Chunk(1, 0, 8, std::vector<int64_t>{-1, 3}), columns, values, end}},
      {"a column out of range",
       {begin, block, offsets, Chunk(1, 1, 0, std::vector<int32_t>{0, 3, 1}), values, end}},
      {"a negative column",
       {begin, block, offsets, Chunk(1, 1, 0, std::vector<int32_t>{0, -1, 1}), values, end}},
      {"half a block", {begin, block, offsets, columns, end}},
      {"half the rows",
       {begin, Block(1, 0, 1, 0, 2), Chunk(1, 0, 8, std::vector<int64_t>{2}),
        Chunk(1, 1, 0, std::vector<int32_t>{0, 2}), Chunk(1, 2, 0, 8), End(1, 0, 2)}},
      {"another count", {begin, block, values, offsets, columns, End(1, 0, 4)}},
      {"no end", {begin, block, values, offsets, columns}},
      {"fails", {begin, End(1, 8)}, StatusCode::kResourceExhausted}};
  Meet("Compute/Spgemm", cases, [](const Client& client) {
    const Matrix m = client.MatrixNamed("m");
    return m.SpgemmCollect(m).status();
  });
  Meet("Compute/Spgemm",
       {{"honest", {Begin(1, 2, 3, {}), End(1, 0, 3)}, StatusCode::kOk},
        {"announces arrays", {begin}},
        {"sends a block", {Begin(1, 2, 3, {}), block}},
        {"no begin", {end}},
        {"nothing", {}}},
       [](const Client& client) {
         const Matrix m = client.MatrixNamed("m");
         return m.SpgemmKeep(m, "c").status();
       });
}

ByteBuffer DownloadHeader(int64_t rows, int64_t cols, int64_t nnz, const Arrays& arrays) {
  v1::DownloadReply reply;
  v1::MatrixInfo& matrix = *reply.mutable_header()->mutable_matrix();
  matrix.set_rows(rows);
  matrix.set_cols(cols);
  matrix.set_nnz(nnz);
  matrix.set_type(kF32);
  for (const auto& [type, length] : arrays) {
    v1::ArrayHeader& array = *reply.mutable_header()->add_arrays();
    array.set_type(type);
    array.set_length(length);
  }
  return wire::Encode(reply);
}

TEST(HostileServer, Download) {
  const ByteBuffer header = DownloadHeader(2, 3, 3, {{kI64, 3}, {kI32, 3}, {kF32, 3}});
  const ByteBuffer offsets = Chunk(0, 0, 0, std::vector<int64_t>{0, 2, 3});
  const ByteBuffer columns = Chunk(0, 1, 0, std::vector<int32_t>{0, 2, 1});
  const ByteBuffer values = Chunk(0, 2, 0, std::vector<float>{1, 2, 3});
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() - 1;
  Meet("Catalog/Download",
       {{"honest", {header, values, columns, offsets}, StatusCode::kOk},
        {"in odd pieces",
         {header, Chunk(0, 2, 0, 5), Chunk(0, 2, 5, 7), columns, offsets},
         StatusCode::kOk},
        {"nothing", {}},
        {"garbage", {Garbage()}},
        {"header alone", {header}},
        {"bytes before the header", {offsets}},
        {"two headers", {header, header}},
        {"negative rows", {DownloadHeader(-1, 3, 0, {{kI64, 0}, {kI32, 0}, {kF32, 0}})}},
        {"huge rows", {DownloadHeader(kHuge, 3, 0, {{kI64, kHuge}, {kI32, 0}, {kF32, 0}})}},
        {"huge nonzeros", {DownloadHeader(2, 3, kHuge, {{kI64, 3}, {kI32, kHuge}, {kF32, kHuge}})}},
        {"negative nonzeros", {DownloadHeader(2, 3, -3, {{kI64, 3}, {kI32, -3}, {kF32, -3}})}},
        {"the largest matrix and no bytes",
         {DownloadHeader(kMax, kMax, 1LL << 58,
                         {{kI64, kMax + 1}, {kI32, 1LL << 58}, {kF32, 1LL << 58}})}},
        {"other lengths", {DownloadHeader(2, 3, 3, {{kI64, 2}, {kI32, 3}, {kF32, 3}})}},
        {"other types", {DownloadHeader(2, 3, 3, {{kI32, 3}, {kI32, 3}, {kF32, 3}})}},
        {"other values", {DownloadHeader(2, 3, 3, {{kI64, 3}, {kI32, 3}, {kF64, 3}})}},
        {"two arrays", {DownloadHeader(2, 3, 3, {{kI64, 3}, {kI32, 3}})}},
        {"a fourth array", {header, Chunk(0, 3, 0, 4)}},
        {"too many bytes", {header, Chunk(0, 1, 0, 16)}},
        {"far away", {header, Chunk(0, 1, 1ULL << 40, 4)}},
        {"offset wraps", {header, Chunk(0, 1, ~0ULL - 3, 8)}},
        {"twice", {header, columns, columns}},
        {"descending rows",
         {header, Chunk(0, 0, 0, std::vector<int64_t>{0, 5, 3}), columns, values}},
        {"a column out of range",
         {header, offsets, Chunk(0, 1, 0, std::vector<int32_t>{0, 3, 1}), values}}},
       [](const Client& client) { return client.MatrixNamed("m").Download().status(); });
}

ByteBuffer Held(int64_t rows, int64_t cols, int64_t leading_dimension, v1::ElementType type) {
  v1::GetBufferReply reply;
  v1::DenseShape& shape = *reply.mutable_info()->mutable_shape();
  shape.set_rows(rows);
  shape.set_cols(cols);
  shape.set_leading_dimension(leading_dimension);
  shape.set_type(type);
  return wire::Encode(reply);
}

TEST(HostileServer, HeldMatrices) {
  const ByteBuffer info = Held(3, 2, 4, kF32);  // (3 - 1) * 4 + 2 elements
  Meet("Buffers/Get",
       {{"honest", {info, Chunk(0, 0, 30, 10), Chunk(0, 0, 0, 30)}, StatusCode::kOk},
        {"nothing", {}},
        {"garbage", {Garbage()}},
        {"info alone", {info}},
        {"bytes alone", {Chunk(0, 0, 0, 40)}},
        {"info twice", {info, info}},
        {"more rows", {Held(4, 2, 2, kF32)}, StatusCode::kInvalidArgument},
        {"negative columns", {Held(3, -2, 2, kF32)}, StatusCode::kInvalidArgument},
        {"wider values", {Held(3, 2, 2, kF64)}, StatusCode::kInvalidArgument},
        {"no values", {Held(3, 2, 2, kI32)}},
        {"rows that overlap", {Held(3, 2, 1, kF32)}},
        {"negative stride", {Held(3, 2, -4, kF32)}},
        {"huge stride", {Held(3, 2, kHuge, kF32)}},
        {"large stride and no bytes", {Held(3, 2, 1LL << 58, kF32)}},
        {"another array", {info, Chunk(0, 1, 0, 40)}},
        {"too many bytes", {info, Chunk(0, 0, 0, 44)}},
        {"past the end", {info, Chunk(0, 0, 36, 8)}},
        {"offset wraps", {info, Chunk(0, 0, ~0ULL - 3, 8)}},
        {"twice", {info, Chunk(0, 0, 0, 20), Chunk(0, 0, 16, 24)}}},
       [](const Client& client) {
         Fenced into(6);
         return client.DenseNamed("b").Read(MutableDenseView(into.data(), 3, 2)).status();
       });
}

TEST(HostileServer, CallsWithOneReply) {
  const std::vector<Case> cases = {
      {"nothing", {}},
      {"garbage", {Garbage()}},
      {"garbage behind a reply", {wire::Encode(v1::MatrixInfo()), Garbage()}}};
  const std::vector<float> ones(4, 1);
  Meet("Catalog/Get", cases, [](const Client& x) { return x.MatrixNamed("m").Info().status(); });
  Meet("Catalog/List", cases, [](const Client& x) { return x.ListMatrices().status(); });
  v1::ListMatricesReply page;
  page.set_next_page_token("a");
  Meet("Catalog/List", {{"the same page for ever", {wire::Encode(page)}}},
       [](const Client& x) { return x.ListMatrices().status(); });
  Meet("Catalog/ListMeasurements",
       {{"garbage", {Garbage()}},
        {"garbage behind a reply", {wire::Encode(v1::PatternMeasurements()), Garbage()}}},
       [](const Client& x) { return x.ListMeasurements().status(); });
  Meet("Catalog/Delete", cases, [](const Client& x) { return x.MatrixNamed("m").Delete(); });
  Meet("Admin/GetStats", cases, [](const Client& x) { return x.GetStats().status(); });
  Meet("Buffers/Put", cases,
       [&](const Client& x) { return x.PutDense("b", DenseView(ones.data(), 2, 2)).status(); });
  Meet("Catalog/UpdateValues", cases, [&](const Client& x) {
    return x.MatrixNamed("m").UpdateValues(std::span<const float>(ones)).status();
  });
}

TEST(HostileServer, Uploads) {
  v1::UploadReply unknown;
  unknown.mutable_pattern()->set_known(false);
  v1::UploadReply stored;
  stored.mutable_matrix();
  const std::vector<int64_t> offsets = {0, 2};
  const std::vector<int32_t> columns = {0, 1};
  const std::vector<float> values = {1, 2};
  const CsrView view{.rows = 1,
                     .cols = 2,
                     .row_offsets = std::span(offsets),
                     .column_indices = columns,
                     .values = std::span(values)};
  const std::vector<Case> cases = {
      {"nothing", {}},
      {"garbage", {Garbage()}},
      {"asks for the pattern twice", {wire::Encode(unknown), wire::Encode(unknown)}},
      {"asks for the pattern behind the end",
       {wire::Encode(stored), wire::Encode(unknown)},
       StatusCode::kOk}};
  for (const char* hash : {"", "a hash"}) {
    Meet("Catalog/Upload", cases, [&](const Client& client) {
      return client.Upload("m", view, {.pattern_hash = hash}).status();
    });
  }
}

TEST(HostileServer, Watch) {
  v1::WatchReply preparing;
  preparing.set_state(v1::MATRIX_STATE_PREPARING);
  preparing.set_done(-5);
  v1::WatchReply ready;
  ready.set_state(v1::MATRIX_STATE_READY);
  Meet("Catalog/Watch",
       {{"honest", {wire::Encode(preparing), wire::Encode(ready)}, StatusCode::kOk},
        {"nothing", {}},
        {"garbage", {Garbage()}},
        {"ends early", {wire::Encode(preparing)}}},
       [](const Client& client) {
         return client.MatrixNamed("m").WaitReady([](const Progress&) {});
       });
}

TEST(HostileServer, WhatItAllows) {
  v1::ServerInfo info;
  info.set_max_chunk_bytes(-1);
  info.set_max_requests_per_stream(-1);
  const ByteBuffer begin = Begin(1, 4, 2, {{kF32, 8}});
  const Answers answers = {
      {"/sparsed.v1.Admin/GetServerInfo", {.replies = {wire::Encode(info)}}},
      {"/sparsed.v1.Compute/Spmm", {.replies = {begin, Chunk(1, 0, 0, 32), End(1)}}}};
  ScriptedServer server(answers);
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<float> b(6, 1);
  Fenced c(8);
  EXPECT_TRUE(client->MatrixNamed("m")
                  .Spmm(DenseView(b.data(), 3, 2), MutableDenseView(c.data(), 4, 2))
                  .ok());

  ScriptedServer garbage({{"/sparsed.v1.Admin/GetServerInfo", {.replies = {Garbage()}}}});
  EXPECT_EQ(Client::Connect(garbage.address()).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace sparsed::test
