// SpGEMM's requests over the wire: transposed factors, semirings, masks, and what is kept for the
// next request of the same patterns. Against kernels/reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "engine/execution/derived_patterns.h"
#include "kernels/reference/reference.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

constexpr std::pair<Semiring, v1::Semiring> kSemirings[] = {
    {Semiring::kSumProduct, v1::SEMIRING_UNSPECIFIED},
    {Semiring::kSumProduct, v1::SEMIRING_SUM_PRODUCT},
    {Semiring::kBoolean, v1::SEMIRING_BOOLEAN},
    {Semiring::kMinPlus, v1::SEMIRING_MIN_PLUS},
    {Semiring::kPlusPair, v1::SEMIRING_PLUS_PAIR}};

struct Stored {
  Pattern pattern;
  std::vector<double> values;
};

Stored TransposeOf(const Stored& matrix) {
  std::vector<int64_t> source;
  Stored transposed = {Transpose(matrix.pattern, &source), {}};
  for (const int64_t p : source) transposed.values.push_back(matrix.values[p]);
  return transposed;
}

v1::SpgemmStart Start(const std::string& left, const std::string& right) {
  v1::SpgemmStart start;
  start.set_request_id(1);
  start.set_left(left);
  start.set_right(right);
  return start;
}

Answer Send(TestServer& server, const v1::SpgemmStart& start) {
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  *request.mutable_start() = start;
  stream->Write(request);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  return answers[1];
}

class SpgemmRequests : public testing::Test {
 protected:
  void Put(const std::string& name, const Pattern& pattern) {
    const std::vector<float> values = MustUpload(server_, name, pattern);
    stored_[name] = {pattern, {values.begin(), values.end()}};
  }

  void Update(const std::string& name, uint64_t seed) {
    const std::vector<float> values = FloatValues(stored_[name].pattern.nnz(), seed);
    MustUpdate(server_, name, values);
    stored_[name].values = {values.begin(), values.end()};
  }

  Answer Send(const v1::SpgemmStart& start) { return sparsed::test::Send(server_, start); }

  /// The product over what was uploaded.
  reference::SparseResult Expected(const v1::SpgemmStart& start, Semiring semiring) {
    Stored s = stored_.at(start.left());
    Stored t = stored_.at(start.right());
    if (start.transpose_left()) s = TransposeOf(s);
    if (start.transpose_right()) t = TransposeOf(t);
    const CsrView mask = start.mask().empty() ? CsrView() : stored_.at(start.mask()).pattern.view();
    return reference::Spgemm(s.pattern.view(), s.values.data(), t.pattern.view(), t.values.data(),
                             semiring, start.mask().empty() ? nullptr : &mask);
  }

  void ExpectProduct(const v1::SpgemmStart& start, Semiring semiring = Semiring::kSumProduct) {
    SCOPED_TRACE(start.ShortDebugString());
    const reference::SparseResult expected = Expected(start, semiring);
    const Answer answer = Send(start);
    ASSERT_EQ(answer.code(), 0) << answer.message();
    const auto nnz = static_cast<int64_t>(expected.column_indices.size());
    EXPECT_EQ(answer.ends[0].nnz(), nnz);
    const int64_t announced = answer.begins.at(0).nnz();
    EXPECT_TRUE(announced == nnz || (announced == -1 && !start.count_first())) << announced;
    // Element 0 is not sent; Answer leaves room for it.
    EXPECT_EQ(answer.Values<int64_t>(0), expected.row_offsets);
    ASSERT_EQ(nnz == 0 ? std::vector<int32_t>() : answer.Values<int32_t>(1),
              expected.column_indices);
    const std::vector<float> values = nnz == 0 ? std::vector<float>() : answer.Values<float>(2);
    for (int64_t i = 0; i < nnz; ++i) {
      ASSERT_NEAR(values[i], expected.values[i], 1e-5 * expected.magnitudes[i]) << i;
    }
  }

  void ExpectRefused(const v1::SpgemmStart& start, int code, const std::string& sentence) {
    const Answer answer = Send(start);
    EXPECT_EQ(answer.code(), code) << answer.message();
    EXPECT_THAT(answer.message(), HasSubstr(sentence));
  }

  const engine::DerivedPatterns& derived() { return server_.engine().executor().derived(); }

  TestServer server_;
  std::map<std::string, Stored> stored_;
};

TEST_F(SpgemmRequests, TransposedFactors) {
  Put("s", Uniform(60, 90, 7, 1));
  Put("t", Uniform(90, 50, 6, 2));
  Put("t_transposed", Transpose(stored_["t"].pattern));
  Put("s_transposed", Transpose(stored_["s"].pattern));
  for (const bool transpose_left : {false, true}) {
    for (const bool transpose_right : {false, true}) {
      v1::SpgemmStart start =
          Start(transpose_left ? "s_transposed" : "s", transpose_right ? "t_transposed" : "t");
      start.set_transpose_left(transpose_left);
      start.set_transpose_right(transpose_right);
      ExpectProduct(start);
      start.set_count_first(true);
      ExpectProduct(start);
    }
  }
}

TEST_F(SpgemmRequests, AMatrixTimesItsOwnTranspose) {
  Put("s", Rmat(9, 6, 3));
  Put("wide", Uniform(20, 300, 30, 4));
  for (const std::string name : {"s", "wide"}) {
    v1::SpgemmStart outer = Start(name, name);
    outer.set_transpose_right(true);
    ExpectProduct(outer);
    v1::SpgemmStart inner = Start(name, name);
    inner.set_transpose_left(true);
    ExpectProduct(inner);
  }
}

TEST_F(SpgemmRequests, ATransposeIsKeptAndSeesNewValues) {
  Put("s", Uniform(80, 70, 5, 5));
  v1::SpgemmStart start = Start("s", "s");
  start.set_transpose_left(true);
  EXPECT_EQ(derived().bytes(), 0);
  ExpectProduct(start);
  const int64_t kept = derived().bytes();
  EXPECT_GT(kept, 0);
  Update("s", 6);
  ExpectProduct(start);
  EXPECT_EQ(derived().bytes(), kept);
}

TEST_F(SpgemmRequests, SemiringsWithAndWithoutAMask) {
  Put("s", Rmat(8, 6, 7));
  Put("t", Rmat(8, 5, 8));
  Put("m", Rmat(8, 9, 9));
  for (const auto& [semiring, wire] : kSemirings) {
    v1::SpgemmStart start = Start("s", "t");
    start.set_semiring(wire);
    ExpectProduct(start, semiring);
    start.set_mask("m");
    ExpectProduct(start, semiring);
    start.set_transpose_left(true);
    start.set_count_first(true);
    ExpectProduct(start, semiring);
  }
}

TEST_F(SpgemmRequests, AMaskOfAnotherTypeAndOneThatIsEmpty) {
  Put("s", Uniform(30, 40, 5, 10));
  Put("t", Uniform(40, 20, 5, 11));
  const Pattern mask = Uniform(30, 20, 6, 12);
  v1::UploadHeader header = HeaderOf("half", mask);
  header.set_type(v1::ELEMENT_TYPE_F16);
  const std::vector<uint16_t> zeros(static_cast<size_t>(mask.nnz()), 0);
  ASSERT_TRUE(UploadBytes(server_.catalog(), header, mask, BytesOf(zeros), 1 << 20).ok());
  stored_["half"] = {mask, {}};
  v1::SpgemmStart start = Start("s", "t");
  start.set_mask("half");
  ExpectProduct(start);
  Put("empty", FromCoordinates(30, 20, {}));
  start.set_mask("empty");
  ExpectProduct(start);
}

TEST_F(SpgemmRequests, AKeptResultIsThatOfItsRequest) {
  Put("s", Uniform(50, 60, 6, 13));
  Put("m", Uniform(50, 50, 20, 14));
  v1::SpgemmStart start = Start("s", "s");
  start.set_transpose_right(true);
  start.set_semiring(v1::SEMIRING_PLUS_PAIR);
  start.set_mask("m");
  start.set_keep_as("c");
  const Answer answer = Send(start);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  const reference::SparseResult expected = Expected(start, Semiring::kPlusPair);
  ASSERT_EQ(answer.ends[0].nnz(), static_cast<int64_t>(expected.values.size()));
  // c times the identity is what c has.
  stored_["c"] = {{50, 50, expected.row_offsets, expected.column_indices}, expected.values};
  const Pattern identity = Band(50, 0);
  ASSERT_TRUE(
      Upload(server_.catalog(), HeaderOf("identity", identity), identity, std::vector<float>(50, 1))
          .ok());
  stored_["identity"] = {identity, std::vector<double>(50, 1)};
  ExpectProduct(Start("c", "identity"));
}

TEST_F(SpgemmRequests, OnlyTheNumericPhaseIsDoneAgain) {
  Put("s", Rmat(9, 6, 15));
  Put("t", Rmat(9, 5, 16));
  Put("m", Rmat(9, 9, 17));
  v1::SpgemmStart masked = Start("s", "t");
  masked.set_mask("m");
  for (const v1::SpgemmStart& start : {Start("s", "t"), Start("t", "s"), masked}) {
    const int64_t computed = derived().sizes_computed(), found = derived().sizes_found();
    ExpectProduct(start);
    EXPECT_EQ(derived().sizes_computed(), computed + 1);
    EXPECT_EQ(derived().sizes_found(), found);
    Update("s", 18);
    Update("t", 19);
    ExpectProduct(start);
    // The semiring makes no difference to where entries are; that they are known is told.
    v1::SpgemmStart counting = start;
    counting.set_semiring(v1::SEMIRING_PLUS_PAIR);
    ExpectProduct(counting, Semiring::kPlusPair);
    EXPECT_EQ(Send(start).begins.at(0).nnz(), Send(start).ends.at(0).nnz());
    EXPECT_EQ(derived().sizes_computed(), computed + 1);
    EXPECT_EQ(derived().sizes_found(), found + 4);
  }
}

TEST_F(SpgemmRequests, AReplacedPatternIsNotTakenForTheOldOne) {
  Put("s", Uniform(200, 200, 6, 20));
  v1::SpgemmStart start = Start("s", "s");
  start.set_transpose_left(true);
  ExpectProduct(start);
  for (uint64_t seed = 21; seed < 24; ++seed) {
    const Pattern other = Uniform(200, 200, 4 + static_cast<int64_t>(seed), seed);
    v1::UploadHeader header = HeaderOf("s", other);
    header.set_replace(true);
    const std::vector<float> values = FloatValues(other.nnz(), seed);
    ASSERT_TRUE(Upload(server_.catalog(), header, other, values).ok());
    stored_["s"] = {other, {values.begin(), values.end()}};
    const int64_t found = derived().sizes_found();
    ExpectProduct(start);
    EXPECT_EQ(derived().sizes_found(), found);
  }
}

TEST_F(SpgemmRequests, WhatDoesNotFitTogetherIsRefused) {
  Put("s", Uniform(20, 30, 4, 25));
  Put("m", Uniform(20, 30, 4, 26));
  ExpectRefused(Start("s", "s"), grpc::INVALID_ARGUMENT,
                "'s' is 20 x 30 and 's' is 20 x 30: the columns of the left must be the rows");
  v1::SpgemmStart start = Start("s", "s");
  start.set_transpose_left(true);
  start.set_transpose_right(true);
  ExpectRefused(start, grpc::INVALID_ARGUMENT,
                "'s' transposed is 30 x 20 and 's' transposed is 30 x 20");
  start.set_transpose_left(false);
  start.set_mask("m");
  ExpectRefused(start, grpc::INVALID_ARGUMENT,
                "the mask 'm' is 20 x 30, but the result is 20 x 20");
  start.set_mask("nobody");
  ExpectRefused(start, grpc::NOT_FOUND, "nobody");
  start.clear_mask();
  start.set_semiring(static_cast<v1::Semiring>(17));
  ExpectRefused(start, grpc::INVALID_ARGUMENT, "semiring 17 is unknown");
  start.set_semiring(v1::SEMIRING_BOOLEAN);
  ExpectProduct(start, Semiring::kBoolean);
}

TEST(SpgemmMemory, AResultThatCanNeverBeKeptIsRefusedInASentence) {
  TestServer server([](server::Config& config) {
    config.host_memory_bytes = int64_t{64} << 20;
    config.preparation_memory_bytes = int64_t{1} << 20;
  });
  const Pattern pattern = Uniform(3000, 3000, 60, 27);  // some 6 million entries in its square
  MustUpload(server, "s", pattern);
  const v1::SpgemmStart streamed = Start("s", "s");
  v1::SpgemmStart kept = streamed;
  kept.set_keep_as("c");
  const auto used = [&] { return server.engine().budget().used(engine::MemoryUse::kRequests); };
  ASSERT_EQ(Send(server, kept).code(), grpc::RESOURCE_EXHAUSTED);
  ASSERT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
  const int64_t workspaces = used();
  EXPECT_LT(workspaces, 1 << 20);
  Answer answer = Send(server, kept);
  EXPECT_EQ(answer.code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.message(), HasSubstr("'c' would have at least "));
  EXPECT_THAT(answer.message(), HasSubstr("receive it as it comes instead"));
  answer = Send(server, streamed);
  ASSERT_EQ(answer.code(), 0) << answer.message() << " used " << used();
  answer = Send(server, kept);
  EXPECT_EQ(answer.code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.message(), testing::Not(HasSubstr("at least"))) << "its size is known by now";
  EXPECT_TRUE(Eventually([&] { return used() <= workspaces; })) << used();
}

/// A client that is slower than the kernel: its share of memory is never passed.
TEST(SpgemmMemory, AProductThatIsReadLateWaits) {
  TestServer server([](server::Config& config) {
    config.host_memory_bytes = int64_t{64} << 20;
    config.preparation_memory_bytes = int64_t{1} << 20;
  });
  MustUpload(server, "s", Uniform(3000, 3000, 60, 27));
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  *request.mutable_start() = Start("s", "s");
  stream->Write(request);
  stream->WritesDone();
  const engine::Executor& executor = server.engine().executor();
  double busy = -1;
  EXPECT_TRUE(Eventually([&] {  // it computes no more
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const double before = std::exchange(busy, executor.busy_seconds({}));
    return busy > 0 && busy == before;
  }));
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  EXPECT_GT(answers[1].ends.at(0).nnz(), 5'000'000);
}

/// What is kept for later shows in the metrics, and gives way to what is needed now.
TEST(SpgemmMemory, WhatIsKeptIsGivenUpForRequests) {
  constexpr int64_t kMemory = int64_t{16} << 20;
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.host_memory_bytes = kMemory;
    config.preparation_memory_bytes = int64_t{1} << 20;
  });
  const Pattern pattern = Uniform(2000, 2000, 40, 27);
  MustUpload(server, "s", pattern);
  v1::SpgemmStart start = Start("s", "s");
  start.set_transpose_left(true);
  start.set_mask("s");
  const Answer answer = Send(server, start);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  EXPECT_GT(server.engine().executor().derived().bytes(), 0);
  EXPECT_THAT(server.Page("/metrics"),
              HasSubstr("sparsed_spgemm_row_sizes_total{from=\"computed\"} 1"));
  engine::Budget& budget = server.engine().budget();
  EXPECT_TRUE(Eventually([&] { return server.engine().executor().in_flight() == 0; }));
  std::vector<Buffer> taken;
  // Nothing goes for what would not fit all the same: to the end in small steps.
  for (size_t bytes = 256 << 10; bytes >= 4 << 10;) {
    absl::StatusOr<Buffer> buffer = budget.Source(engine::MemoryUse::kRequests).Allocate(bytes);
    if (buffer.ok()) {
      taken.push_back(*std::move(buffer));
    } else {
      bytes /= 2;
    }
  }
  EXPECT_EQ(server.engine().executor().derived().bytes(), 0);
}

}  // namespace
}  // namespace sparsed::test
