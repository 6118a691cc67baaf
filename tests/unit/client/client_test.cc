// The client library against the server's program.
#include "sparsed/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/server_process.h"

namespace sparsed::test {
namespace {

TEST(Client, NobodyThere) {
  const auto client = Client::Connect("unix:/nonexistent/socket", {.max_attempts = 2});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()),
              testing::HasSubstr("unix:/nonexistent/socket"));
}

TEST(Client, MatricesThereAndBack) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 4096});
  const CsrMatrix sent = RandomMatrix(120, 90, 1);
  int64_t reported = 0;
  const Matrix matrix =
      Upload(client, "m", sent, {.progress = [&reported](int64_t bytes, int64_t total) {
               EXPECT_LE(bytes, total);
               reported = bytes;
             }});
  EXPECT_GT(reported, 0);
  const auto info = matrix.Info();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->rows, 120);
  EXPECT_EQ(info->nnz, sent.nnz());
  const auto got = matrix.Download();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->row_offsets, sent.row_offsets);
  EXPECT_EQ(got->column_indices, sent.column_indices);
  EXPECT_EQ(got->values, sent.values);

  EXPECT_EQ(client.Upload("m", sent.View()).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(client.Upload("m", sent.View(), {.replace = true}).ok());
  EXPECT_EQ(client.ListMatrices("m")->size(), 1u);
  EXPECT_EQ(client.ListMatrices("x")->size(), 0u);
  EXPECT_TRUE(matrix.Delete().ok());
  EXPECT_EQ(matrix.Info().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(matrix.Download().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(matrix.WaitReady().code(), absl::StatusCode::kNotFound);
}

TEST(Client, APatternIsNotSentTwice) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix sent = RandomMatrix(60, 60, 2);
  const auto hash = Upload(client, "first", sent).Info()->pattern_hash;
  int64_t bytes_sent = 0;
  const auto progress = [&bytes_sent](int64_t bytes, int64_t) { bytes_sent = bytes; };
  const Matrix second =
      Upload(client, "second", sent, {.pattern_hash = hash, .progress = progress});
  EXPECT_EQ(bytes_sent, sent.nnz() * 4) << "the values alone";
  EXPECT_EQ(second.Download()->column_indices, sent.column_indices);
}

TEST(Client, WrongUploads) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix good = RandomMatrix(10, 10, 3);
  CsrMatrix bad = good;
  bad.row_offsets.pop_back();
  EXPECT_EQ(client.Upload("m", bad.View()).status().code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  std::get<std::vector<float>>(bad.values).pop_back();
  EXPECT_EQ(client.Upload("m", bad.View()).status().code(), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.column_indices.front() = 10;
  EXPECT_EQ(client.Upload("m", bad.View()).status().code(), absl::StatusCode::kInvalidArgument);
  // Refused while the server waits for nothing more: the patterns are never sent.
  EXPECT_FALSE(client.Upload("bad name", good.View(), {.pattern_hash = "0"}).ok());
}

TEST(Client, UpdateValuesChangesTheProduct) {
  ServerProcess server;
  const auto client = Connect(server);
  CsrMatrix s = RandomMatrix(40, 30, 4);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> fresh = RandomDense(s.nnz(), 5);
  const auto version = matrix.UpdateValues(std::span(fresh));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 2u);
  EXPECT_EQ(matrix.UpdateValues(std::span(fresh), {.if_version = 1}).status().code(),
            absl::StatusCode::kAborted);
  s.values = fresh;
  const std::vector<float> b = RandomDense(30 * 3, 6);
  std::vector<float> c(40 * 3, kPoison);
  ASSERT_TRUE(matrix.Spmm(DenseView(b.data(), 30, 3), MutableDenseView(c.data(), 40, 3)).ok());
  EXPECT_EQ(c, Multiply(s, false, b, 3));
}

TEST(Client, SpmmOfAllKinds) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 4096});
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{70, 50}, {1, 50}, {70, 1}, {0, 5}, {5, 0}}) {
    const CsrMatrix s = RandomMatrix(rows, cols, 7);
    const Matrix matrix = Upload(client, "m", s, {.replace = true});
    for (const int64_t k : {1, 33}) {
      for (const bool transpose : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << " K " << k << " " << transpose);
        const int64_t in = transpose ? rows : cols;
        const int64_t out = transpose ? cols : rows;
        const std::vector<float> b = RandomDense(in * k, 8);
        std::vector<float> c(static_cast<size_t>(out * k), kPoison);
        const auto result =
            matrix.Spmm(DenseView(b.data(), in, k), MutableDenseView(c.data(), out, k),
                        {.transpose = transpose});
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_FALSE(result->plan.empty());
        EXPECT_EQ(c, Multiply(s, transpose, b, k));
      }
    }
  }
}

TEST(Client, GapsBetweenRowsAreLeftAlone) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 4096});
  const CsrMatrix s = RandomMatrix(90, 80, 9);
  const Matrix matrix = Upload(client, "m", s);
  constexpr int64_t kWidth = 13;
  constexpr int64_t kStride = 17;
  const std::vector<float> packed = RandomDense(80 * kWidth, 10);
  std::vector<float> b(80 * kStride, kPoison);
  for (int64_t i = 0; i < 80 * kWidth; ++i) b[i / kWidth * kStride + i % kWidth] = packed[i];
  std::vector<float> c(90 * kStride, -77);
  ASSERT_TRUE(matrix
                  .Spmm(DenseView(b.data(), 80, kWidth, kStride),
                        MutableDenseView(c.data(), 90, kWidth, kStride))
                  .ok());
  const std::vector<float> expected = Multiply(s, false, packed, kWidth);
  for (int64_t i = 0; i < 90 * kStride; ++i) {
    const int64_t col = i % kStride;
    EXPECT_EQ(c[i], col < kWidth ? expected[i / kStride * kWidth + col] : -77);
  }
}

TEST(Client, AlphaBetaAndAccumulate) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(30, 30, 11);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> b = RandomDense(30 * 4, 12);
  const std::vector<float> old = RandomDense(30 * 4, 13);
  std::vector<float> expected = Multiply(s, false, b, 4);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2 * expected[i] - 3 * old[i];

  std::vector<float> c(30 * 4, kPoison);
  ASSERT_TRUE(matrix
                  .Spmm(DenseView(b.data(), 30, 4), MutableDenseView(c.data(), 30, 4),
                        {.alpha = 2, .beta = -3, .accumulate = DenseView(old.data(), 30, 4)})
                  .ok());
  EXPECT_EQ(c, expected);
  c = old;  // in place
  ASSERT_TRUE(matrix
                  .Spmm(DenseView(b.data(), 30, 4), MutableDenseView(c.data(), 30, 4),
                        {.alpha = 2, .beta = -3, .accumulate = {}})
                  .ok());
  EXPECT_EQ(c, expected);
}

TEST(Client, WrongShapesAndNames) {
  ServerProcess server;
  const auto client = Connect(server);
  const Matrix matrix = Upload(client, "m", RandomMatrix(30, 20, 14));
  std::vector<float> b(1000, 1);
  std::vector<float> c(1000, kPoison);
  std::vector<double> doubles(1000, 1);
  const auto code = [&](const DenseView& in, const MutableDenseView& out) {
    return matrix.Spmm(in, out).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(DenseView(b.data(), 21, 4), MutableDenseView(c.data(), 30, 4)), kInvalid);
  EXPECT_EQ(code(DenseView(b.data(), 20, 4), MutableDenseView(c.data(), 31, 4)), kInvalid);
  EXPECT_EQ(code(DenseView(b.data(), 20, 4), MutableDenseView(c.data(), 30, 5)), kInvalid);
  EXPECT_EQ(code(DenseView(b.data(), 20, 0), MutableDenseView(c.data(), 30, 0)), kInvalid);
  EXPECT_EQ(code(DenseView(b.data(), 20, 4, 3), MutableDenseView(c.data(), 30, 4)), kInvalid);
  EXPECT_EQ(code(DenseView(b.data(), 20, 4), MutableDenseView(doubles.data(), 30, 4)), kInvalid);
  EXPECT_EQ(code(DenseView(doubles.data(), 20, 4), MutableDenseView(doubles.data(), 30, 4)),
            kInvalid);
  EXPECT_EQ(client.MatrixNamed("none")
                .Spmm(DenseView(b.data(), 20, 4), MutableDenseView(c.data(), 30, 4))
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  // The stream goes on.
  EXPECT_TRUE(matrix.Spmm(DenseView(b.data(), 20, 4), MutableDenseView(c.data(), 30, 4)).ok());
}

TEST(Client, Sddmm) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(50, 40, 15);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> a = RandomDense(50 * 9, 16);
  const std::vector<float> b = RandomDense(40 * 9, 17);
  for (const bool unscaled : {false, true}) {
    std::vector<float> values(static_cast<size_t>(s.nnz()), kPoison);
    const auto result = matrix.Sddmm(DenseView(a.data(), 50, 9), DenseView(b.data(), 40, 9),
                                     MutableDenseView(std::span(values)), {.unscaled = unscaled});
    ASSERT_TRUE(result.ok()) << result.status();
    for (int64_t row = 0; row < 50; ++row) {
      for (int64_t i = s.row_offsets[row]; i < s.row_offsets[row + 1]; ++i) {
        float dot = 0;
        for (int j = 0; j < 9; ++j) dot += a[row * 9 + j] * b[s.column_indices[i] * 9 + j];
        EXPECT_EQ(values[i], unscaled ? dot : dot * F32(s)[i]);
      }
    }
  }
  std::vector<float> few(static_cast<size_t>(s.nnz()) - 1);
  EXPECT_EQ(matrix
                .Sddmm(DenseView(a.data(), 50, 9), DenseView(b.data(), 40, 9),
                       MutableDenseView(std::span(few)))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

/// S's rows with their columns from right to left, and where each nonzero went.
std::pair<CsrMatrix, std::vector<size_t>> Backwards(const CsrMatrix& s) {
  CsrMatrix result = s;
  std::vector<float> values = F32(s);
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto reverse = [&](auto& array) {
      std::reverse(array.begin() + s.row_offsets[row], array.begin() + s.row_offsets[row + 1]);
    };
    reverse(result.column_indices);
    reverse(values);
    reverse(order);
  }
  result.values = values;
  return {result, order};
}

TEST(Client, CallsBringValuesOfTheirOwn) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 256});
  const CsrMatrix canonical = RandomMatrix(50, 40, 61);
  const auto [backwards, order] = Backwards(canonical);
  const Matrix sorted = Upload(client, "sorted", canonical);
  const Matrix unsorted = Upload(client, "unsorted", backwards, {.sort = true});
  const auto nnz = static_cast<int64_t>(order.size());
  const std::vector<float> mine = RandomDense(nnz, 62);
  const std::vector<float> b = RandomDense(40 * 3, 63), bt = RandomDense(50 * 3, 64);
  std::vector<float> with_gaps(static_cast<size_t>(2 * nnz), kPoison);
  for (int64_t i = 0; i < nnz; ++i) with_gaps[2 * i] = mine[i];
  const auto held = client.PutDense("mine", DenseView(mine.data(), nnz, 1));
  ASSERT_TRUE(held.ok()) << held.status();

  for (const Matrix* const matrix : {&sorted, &unsorted}) {
    CsrMatrix s = canonical;
    std::vector<float> values = mine;
    for (int64_t i = 0; i < nnz && matrix == &unsorted; ++i) values[order[i]] = mine[i];
    s.values = values;
    const std::vector<Operand> operands = {DenseView(mine.data(), nnz, 1),
                                           DenseView(with_gaps.data(), nnz, 1, 2), *held};
    for (const Operand& operand : operands) {
      std::vector<float> c(50 * 3, kPoison), ct(40 * 3, kPoison);
      const auto result = matrix->Spmm(DenseView(b.data(), 40, 3),
                                       MutableDenseView(c.data(), 50, 3), {.values = operand});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(c, Multiply(s, false, b, 3));
      ASSERT_TRUE(matrix
                      ->Spmm(DenseView(bt.data(), 50, 3), MutableDenseView(ct.data(), 40, 3),
                             {.transpose = true, .values = operand})
                      .ok());
      EXPECT_EQ(ct, Multiply(s, true, bt, 3));
    }
  }
}

TEST(Client, AnSddmmsHeldResultIsTheNextSpmmsValues) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix canonical = RandomMatrix(50, 40, 65);
  const auto [backwards, order] = Backwards(canonical);
  const Matrix matrix = Upload(client, "s", backwards, {.sort = true});
  const auto nnz = static_cast<int64_t>(order.size());
  const std::vector<float> a = RandomDense(50 * 2, 66), b = RandomDense(40 * 2, 67);
  const DenseView left(a.data(), 50, 2), right(b.data(), 40, 2);
  CsrMatrix s = canonical;
  std::vector<float> values = F32(s);
  const auto sample = [&] {
    for (int64_t row = 0; row < 50; ++row) {
      for (int64_t i = s.row_offsets[row]; i < s.row_offsets[row + 1]; ++i) {
        const int32_t col = s.column_indices[i];
        values[i] *= a[row * 2] * b[col * 2] + a[row * 2 + 1] * b[col * 2 + 1];
      }
    }
    s.values = values;
  };
  const std::vector<float> poison(static_cast<size_t>(nnz), kPoison);
  const auto weights = client.PutDense("weights", DenseView(poison.data(), nnz, 1));
  ASSERT_TRUE(weights.ok()) << weights.status();
  // Then once more, of themselves and in their place.
  for (const SddmmOptions& sddmm : {SddmmOptions{}, SddmmOptions{.values = *weights}}) {
    const auto sampled = matrix.Sddmm(left, right, *weights, sddmm);
    ASSERT_TRUE(sampled.ok()) << sampled.status();
    sample();
    std::vector<float> c(50 * 2, kPoison);
    const auto product =
        matrix.Spmm(right, MutableDenseView(c.data(), 50, 2), {.values = *weights});
    ASSERT_TRUE(product.ok()) << product.status();
    EXPECT_EQ(c, Multiply(s, false, b, 2));
  }
  // Values and result in the same memory of the caller's.
  std::vector<float> mine(static_cast<size_t>(nnz));
  ASSERT_TRUE(weights->Read(MutableDenseView(std::span(mine))).ok());
  ASSERT_TRUE(matrix
                  .Sddmm(left, right, MutableDenseView(std::span(mine)),
                         {.values = DenseView(mine.data(), nnz, 1)})
                  .ok());
  sample();
  for (int64_t i = 0; i < nnz; ++i) EXPECT_EQ(mine[i], values[order[i]]);
}

TEST(Client, WrongValuesOfACall) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(30, 20, 68);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> b(600, 1);
  const std::vector<double> doubles(600, 1);
  std::vector<float> c(600, kPoison);
  const auto expect = [&](const Operand& values, absl::StatusCode code, const char* sentence) {
    const auto spmm = matrix.Spmm(DenseView(b.data(), 20, 1), MutableDenseView(c.data(), 30, 1),
                                  {.values = values});
    EXPECT_EQ(spmm.status().code(), code) << spmm.status();
    EXPECT_THAT(std::string(spmm.status().message()), testing::HasSubstr(sentence));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  expect(DenseView(b.data(), s.nnz() - 1, 1), kInvalid, "operand values is ");
  expect(DenseView(b.data(), s.nnz(), 1, -1), kInvalid, "SpmmOptions::values is ");
  expect(DenseView(doubles.data(), s.nnz(), 1), kInvalid,
         "SpmmOptions::values is f64, what came before it f32");
  expect(client.DenseNamed("nobody"), absl::StatusCode::kNotFound, "'nobody'");
  const auto sddmm = matrix.Sddmm(DenseView(b.data(), 30, 1), DenseView(b.data(), 20, 1),
                                  MutableDenseView(c.data(), s.nnz(), 1),
                                  {.unscaled = true, .values = DenseView(b.data(), s.nnz(), 1)});
  EXPECT_EQ(sddmm.status().code(), kInvalid);
  EXPECT_THAT(std::string(sddmm.status().message()), testing::HasSubstr("unscaled"));
}

TEST(Client, SpgemmCollectedKeptAndBlockByBlock) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(200, 150, 18);
  const CsrMatrix t = RandomMatrix(150, 170, 19);
  const Matrix left = Upload(client, "s", s);
  const Matrix right = Upload(client, "t", t);
  const std::vector<float> expected = Multiply(s, t);

  SpgemmResult how;
  const auto collected = left.SpgemmCollect(right, &how);
  ASSERT_TRUE(collected.ok()) << collected.status();
  EXPECT_EQ(Dense(*collected), expected);
  EXPECT_EQ(how.nnz, collected->nnz());
  EXPECT_EQ(how.rows, 200);

  const auto kept = left.SpgemmKeep(right, "c");
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(Dense(*client.MatrixNamed("c").Download()), expected);
  EXPECT_EQ(left.SpgemmKeep(right, "c").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(left.SpgemmKeep(right, "c", {.replace = true}).ok());

  const std::thread::id here = std::this_thread::get_id();
  int64_t next_row = 0;
  ASSERT_TRUE(left.Spgemm(right,
                          [&](const RowBlock& block) {
                            EXPECT_EQ(std::this_thread::get_id(), here);
                            EXPECT_EQ(block.row_begin, next_row);
                            next_row += block.rows;
                            return absl::OkStatus();
                          })
                  .ok());
  EXPECT_EQ(next_row, 200);

  const auto stopped =
      left.Spgemm(right, [](const RowBlock&) { return absl::DataLossError("no room for it"); });
  EXPECT_EQ(stopped.status(), absl::DataLossError("no room for it"));
  // Also when everything had come before the callback was asked.
  auto late = left.SpgemmAsync(
      right, [](const RowBlock&) { return absl::DataLossError("no room for it"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(late.Wait().status(), absl::DataLossError("no room for it"));
  EXPECT_EQ(left.SpgemmCollect(left).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Client, SpgemmOfEveryKind) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 22);
  const CsrMatrix m = RandomMatrix(40, 40, 23);
  const Matrix matrix = Upload(client, "s", s);
  Upload(client, "m", m);
  // How many columns each pair of rows of S shares, where M has an entry.
  const auto has = [](const CsrMatrix& matrix, int64_t row, int32_t column) {
    return std::binary_search(matrix.column_indices.begin() + matrix.row_offsets[row],
                              matrix.column_indices.begin() + matrix.row_offsets[row + 1], column);
  };
  std::vector<float> expected(40 * 40);
  for (int64_t i = 0; i < 40; ++i) {
    for (int32_t j = 0; j < 40; ++j) {
      for (int32_t k = 0; k < 30 && has(m, i, j); ++k) {
        expected[i * 40 + j] += has(s, i, k) && has(s, j, k);
      }
    }
  }
  const SpgemmOptions spgemm = {
      .transpose_right = true, .semiring = Semiring::kPlusPair, .mask = "m"};
  const auto collected = matrix.SpgemmCollect(matrix, spgemm);
  ASSERT_TRUE(collected.ok()) << collected.status();
  EXPECT_EQ(Dense(*collected), expected);
  const auto kept = matrix.SpgemmKeep(matrix, "c", {.spgemm = spgemm});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(Dense(*client.MatrixNamed("c").Download()), expected);
  EXPECT_EQ(matrix.SpgemmCollect(matrix, {.transpose_left = true, .mask = "m"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(matrix.SpgemmCollect(matrix, {.transpose_left = true, .mask = "x"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Client, HeldDenseMatricesAreOperandsAndDestinations) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 4096});
  const CsrMatrix s = RandomMatrix(64, 64, 20);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> b = RandomDense(64 * 5, 21);
  const auto x = client.PutDense("x", DenseView(b.data(), 64, 5));
  ASSERT_TRUE(x.ok()) << x.status();
  const auto y = client.PutZeros("y", ValueType::kF32, 64, 5);
  ASSERT_TRUE(y.ok()) << y.status();
  const auto into = matrix.Spmm(*x, *y);
  ASSERT_TRUE(into.ok()) << into.status();

  std::vector<float> c(64 * 8, -7);
  const auto info = y->Read(MutableDenseView(c.data(), 64, 5, 8));
  ASSERT_TRUE(info.ok()) << info.status();
  const std::vector<float> expected = Multiply(s, false, b, 5);
  for (int64_t i = 0; i < 64 * 8; ++i) {
    EXPECT_EQ(c[i], i % 8 < 5 ? expected[i / 8 * 5 + i % 8] : -7);
  }
  EXPECT_EQ(y->Read(MutableDenseView(c.data(), 5, 64)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(y->Info()->cols, 5);
  EXPECT_EQ(client.ListDense()->size(), 2u);
  EXPECT_TRUE(x->Delete().ok());
  EXPECT_EQ(x->Info().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(matrix.Spmm(*x, *y).status().code(), absl::StatusCode::kNotFound);
}

TEST(Client, HeldDenseMatricesHaveOwnersAndTimesToLive) {
  ServerProcess server({"--buffer-time-to-live=0"});
  const auto client = Connect(server);
  const auto info_of = [&](const PutOptions& put) {
    return client.PutZeros("x", ValueType::kF32, 2, 3, put)->Info();
  };
  const auto plain = info_of({});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->tenant, "default");
  EXPECT_EQ(plain->owner, "");
  EXPECT_FALSE(plain->time_to_live.has_value());
  EXPECT_GE(plain->idle.count(), 0);
  const auto mine = info_of({.owner = "train-17", .time_to_live = std::chrono::minutes(5)});
  ASSERT_TRUE(mine.ok()) << mine.status();
  EXPECT_EQ(mine->owner, "train-17");
  EXPECT_EQ(mine->time_to_live, std::chrono::minutes(5));
  const auto renewed = client.DenseNamed("x").Renew();
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->owner, "train-17");
  EXPECT_EQ(client.DenseNamed("nobody").Renew().status().code(), absl::StatusCode::kNotFound);
  for (const std::chrono::nanoseconds wrong :
       {std::chrono::nanoseconds(0), std::chrono::nanoseconds(-1),
        std::chrono::nanoseconds(std::chrono::hours(24 * 367))}) {
    const auto refused =
        client.PutZeros("x", ValueType::kF32, 2, 3, {.time_to_live = wrong}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  }
}

template <typename Half>
std::vector<Half> Halves(const std::vector<float>& values) {
  std::vector<Half> halves;
  for (const float value : values) halves.emplace_back(value);
  return halves;
}

template <typename Half>
void ExpectBits(const std::vector<Half>& got, const std::vector<Half>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, expected[i].bits) << i;
}

/// All that a matrix of a 16-bit type can be asked for.
template <typename Half>
void ExpectServed(ValueType type) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 4095});
  const CsrMatrix wide = RandomMatrix(70, 50, 7);
  CsrMatrix s = wide;
  s.values = Halves<Half>(F32(wide));
  EXPECT_EQ(s.type(), type);
  const Matrix matrix = Upload(
      client, "m", s, {.expected = {{.operation = Operation::kSpmm, .k = 9, .allow_tf32 = true}}});
  EXPECT_EQ(matrix.Info()->type, type);
  const auto downloaded = matrix.Download();
  ASSERT_TRUE(downloaded.ok()) << downloaded.status();
  ExpectBits(std::get<std::vector<Half>>(downloaded->values),
             std::get<std::vector<Half>>(s.values));

  for (const bool transpose : {false, true}) {
    const int64_t in = transpose ? 70 : 50, out = transpose ? 50 : 70, k = 9;
    const std::vector<float> b = RandomDense(in * k, 8);
    const std::vector<Half> halves = Halves<Half>(b);
    std::vector<Half> c(static_cast<size_t>(out * k), Half(kPoison));
    const auto result =
        matrix.Spmm(DenseView(halves.data(), in, k), MutableDenseView(c.data(), out, k),
                    {.transpose = transpose, .allow_tf32 = true});
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectBits(c, Halves<Half>(Multiply(wide, transpose, b, k)));

    const auto held = client.PutDense("b", DenseView(halves.data(), in, k));
    ASSERT_TRUE(held.ok()) << held.status();
    const auto into = client.PutZeros("c", type, out, k);
    ASSERT_TRUE(into.ok()) << into.status();
    ASSERT_TRUE(matrix.Spmm(*held, *into, {.transpose = transpose}).ok());
    std::vector<Half> read(c.size());
    ASSERT_TRUE(into->Read(MutableDenseView(read.data(), out, k)).ok());
    ExpectBits(read, c);
  }

  const std::vector<Half> a = Halves<Half>(RandomDense(70, 9)), b(50, Half(1));
  std::vector<Half> values(static_cast<size_t>(s.nnz()), Half(kPoison));
  const auto sampled = matrix.Sddmm(DenseView(a.data(), 70, 1), DenseView(b.data(), 50, 1),
                                    MutableDenseView(std::span(values)), {.unscaled = true});
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  for (int64_t row = 0; row < 70; ++row) {
    for (int64_t i = s.row_offsets[row]; i < s.row_offsets[row + 1]; ++i) {
      EXPECT_EQ(values[i].bits, a[row].bits);
    }
  }
  ASSERT_TRUE(matrix.UpdateValues(std::span<const Half>(values)).ok());
  ExpectBits(std::get<std::vector<Half>>(matrix.Download()->values), values);

  const std::vector<float> floats(50);
  std::vector<float> c(70);
  const auto wrong =
      matrix.Spmm(DenseView(floats.data(), 50, 1), MutableDenseView(c.data(), 70, 1));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.status().message()),
              testing::HasSubstr(std::string("operand B is f32, but matrix 'm' is ") + Name(type)));
  const auto square = matrix.SpgemmCollect(Upload(client, "t", [&] {
    CsrMatrix t = RandomMatrix(50, 3, 1);
    t.values = Halves<Half>(F32(t));
    return t;
  }()));
  EXPECT_EQ(square.status().code(), absl::StatusCode::kUnimplemented) << square.status();
}

TEST(Client, MatricesOfF16) { ExpectServed<Float16>(ValueType::kF16); }
TEST(Client, MatricesOfBF16) { ExpectServed<BFloat16>(ValueType::kBF16); }

TEST(Client, ListsOfManyPages) {
  ServerProcess server;
  const auto client = Connect(server);
  constexpr int kMatrices = 6000;  // their entries take more than a page of a MiB
  const std::string prefix(200, 'x');
  std::vector<Call<DenseMatrix>> puts;
  for (int i = 0; i < kMatrices; ++i) {
    puts.push_back(client.PutZerosAsync(prefix + std::to_string(10000 + i), ValueType::kF32, 1, 1));
    if (i >= 50) {
      ASSERT_TRUE(puts[i - 50].Wait().ok());
    }
  }
  for (int i = kMatrices - 50; i < kMatrices; ++i) ASSERT_TRUE(puts[i].Wait().ok());
  const auto all = client.ListDense();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), size_t{kMatrices});
  for (int i = 0; i < kMatrices; ++i) {
    EXPECT_EQ((*all)[i].name, prefix + std::to_string(10000 + i));
  }
}

TEST(Client, ManyCallsShareAStream) {
  ServerProcess server({"--max-requests-per-stream=4"});
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(50, 50, 22);
  const Matrix matrix = Upload(client, "m", s);
  constexpr int kCalls = 100;
  std::vector<std::vector<float>> bs;
  std::vector<std::vector<float>> cs(kCalls, std::vector<float>(50 * 6, kPoison));
  std::vector<Call<ComputeResult>> calls;
  for (int i = 0; i < kCalls; ++i) bs.push_back(RandomDense(50 * 6, 100 + i));
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(
        matrix.SpmmAsync(DenseView(bs[i].data(), 50, 6), MutableDenseView(cs[i].data(), 50, 6)));
  }
  for (int i = 0; i < kCalls; ++i) {
    const auto result = calls[i].Wait();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(cs[i], Multiply(s, false, bs[i], 6));
  }
}

TEST(Client, CancelledCallsTakeNoRoomFromOthers) {
  ServerProcess server({"--max-requests-per-stream=2"});
  const auto client = Connect(server, {.max_chunk_bytes = 4096});
  const CsrMatrix s = RandomMatrix(50, 400, 31);
  const Matrix matrix = Upload(client, "m", s);
  constexpr int64_t kColumns = 1024;
  const std::vector<float> b = RandomDense(400 * kColumns, 32);
  const std::vector<float> expected = Multiply(s, false, b, kColumns);
  std::vector<std::vector<float>> cs(12, std::vector<float>(50 * kColumns, kPoison));
  std::vector<Call<ComputeResult>> calls;
  const auto spmm = [&](size_t i, const CallOptions& options = {}) {
    calls.push_back(matrix.SpmmAsync(DenseView(b.data(), 400, kColumns),
                                     MutableDenseView(cs[i].data(), 50, kColumns), {}, options));
  };
  // The first two end with their operands on the way and others waiting for their places.
  server.Pause();
  spmm(0);
  spmm(1, {.timeout = std::chrono::milliseconds(2)});
  for (size_t i = 2; i < cs.size(); ++i) spmm(i);
  calls[0].Cancel();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // past the deadline
  server.Resume();
  EXPECT_EQ(calls[0].Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls[1].Wait().status().code(), absl::StatusCode::kDeadlineExceeded);
  for (size_t i = 2; i < cs.size(); ++i) {
    const auto result = calls[i].Wait();
    ASSERT_TRUE(result.ok()) << i << ": " << result.status();
    EXPECT_EQ(cs[i], expected);
  }
}

TEST(Client, AFrozenServerIsGivenUpForLost) {
  ServerProcess server({}, FreeTcpAddress());
  const auto client =
      Connect(server, {.max_attempts = 1, .keepalive = std::chrono::milliseconds(300)});
  constexpr int64_t kColumns = 65536;
  const Matrix matrix = Upload(client, "m", RandomMatrix(50, 400, 31));
  const std::vector<float> b = RandomDense(400 * kColumns, 32);
  std::vector<float> c(50 * kColumns, kPoison);
  server.Pause();
  // Most of the operand fits neither the socket nor gRPC's window: the memory comes back only when
  // the connection is given up.
  const auto result =
      matrix.Spmm(DenseView(b.data(), 400, kColumns), MutableDenseView(c.data(), 50, kColumns), {},
                  {.timeout = std::chrono::milliseconds(10)});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  server.Resume();
}

TEST(Client, ThreadsShareAClient) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 40, 23);
  const Matrix matrix = Upload(client, "m", s);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 20; ++i) {
        const std::vector<float> b = RandomDense(40 * 3, t * 100 + i);
        std::vector<float> c(40 * 3, kPoison);
        const auto result =
            matrix.Spmm(DenseView(b.data(), 40, 3), MutableDenseView(c.data(), 40, 3));
        if (!result.ok() || c != Multiply(s, false, b, 3)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Client, CancelledAndForgottenCallsGiveTheMemoryBack) {
  ServerProcess server;
  const auto client = Connect(server, {.max_chunk_bytes = 4096});
  const CsrMatrix s = RandomMatrix(400, 400, 24);
  const Matrix matrix = Upload(client, "m", s);
  for (int i = 0; i < 30; ++i) {
    auto b = std::make_unique<std::vector<float>>(RandomDense(400 * 256, 25));
    auto c = std::make_unique<std::vector<float>>(400 * 256, kPoison);
    auto call =
        matrix.SpmmAsync(DenseView(b->data(), 400, 256), MutableDenseView(c->data(), 400, 256));
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    if (i % 2 == 0) {
      call.Cancel();
      const auto result = call.Wait();
      EXPECT_TRUE(result.ok() || absl::IsCancelled(result.status())) << result.status();
      b.reset();
      c.reset();
    }
  }
  std::vector<float> b = RandomDense(400, 26);
  std::vector<float> c(400, kPoison);
  ASSERT_TRUE(matrix.Spmm(DenseView(b.data(), 400, 1), MutableDenseView(c.data(), 400, 1)).ok());
  EXPECT_EQ(c, Multiply(s, false, b, 1));
}

TEST(Client, Deadlines) {
  ServerProcess server;
  const auto client = Connect(server);
  const Matrix matrix = Upload(client, "m", RandomMatrix(300, 300, 27));
  const CallOptions none{.timeout = std::chrono::nanoseconds(1)};
  std::vector<float> b(300 * 64, 1);
  std::vector<float> c(300 * 64);
  constexpr auto kExceeded = absl::StatusCode::kDeadlineExceeded;
  EXPECT_EQ(matrix.Spmm(DenseView(b.data(), 300, 64), MutableDenseView(c.data(), 300, 64), {}, none)
                .status()
                .code(),
            kExceeded);
  EXPECT_EQ(matrix.Info(none).status().code(), kExceeded);
  EXPECT_EQ(matrix.Download(none).status().code(), kExceeded);
  EXPECT_EQ(matrix.SpgemmCollect(matrix, nullptr, none).status().code(), kExceeded);
  const CallOptions long_enough{.timeout = std::chrono::hours(1)};
  EXPECT_TRUE(
      matrix
          .Spmm(DenseView(b.data(), 300, 64), MutableDenseView(c.data(), 300, 64), {}, long_enough)
          .ok());
}

TEST(Client, WatchesAPreparation) {
  ServerProcess server;
  const auto client = Connect(server);
  const Matrix matrix = Upload(client, "m", RandomMatrix(300, 300, 30),
                               {.expected = {{Operation::kSpmm, false, 16}}});
  int steps = 0;
  ASSERT_TRUE(matrix.WaitReady([&steps](const Progress&) { ++steps; }).ok());
  EXPECT_GT(steps, 0);
  EXPECT_EQ(matrix.Info()->state, MatrixState::kReady);

  auto follow = matrix.WatchAsync([](const Progress&) {});
  EXPECT_FALSE(follow.WaitFor(std::chrono::milliseconds(50)));
  follow.Cancel();
  EXPECT_EQ(follow.Wait().code(), absl::StatusCode::kCancelled);
}

TEST(Client, PreparesFurtherSignaturesAndOnceMore) {
  ServerProcess server;
  const auto client = Connect(server);
  const Matrix matrix = Upload(client, "m", RandomMatrix(300, 300, 30),
                               {.expected = {{Operation::kSpmm, false, 16}}});
  ASSERT_TRUE(matrix.WaitReady().ok());
  const auto before = matrix.Info();
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_EQ(before->plans.size(), 1u);
  ASSERT_TRUE(matrix.Prepare({.expected = {{Operation::kSpmm, true, 16}}}).ok());
  ASSERT_TRUE(matrix.WaitReady().ok());
  EXPECT_EQ(matrix.Info()->plans.size(), 2u);
  ASSERT_TRUE(matrix.PrepareAsync({.again = true}).Wait().ok());
  ASSERT_TRUE(matrix.WaitReady().ok());
  const auto again = matrix.Info();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->plans.size(), 2u);
  EXPECT_GT(again->preparation_seconds, before->preparation_seconds);
  EXPECT_EQ(matrix.Prepare({.expected = {{Operation::kSpmm, false, 0}}}).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(
      matrix.Prepare({.expected = {{Operation::kSpmm, false, 16}}, .pipeline = "dcsr"}).ok());
  ASSERT_TRUE(matrix.WaitReady().ok());
  const auto asked = matrix.Info();
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_TRUE(std::any_of(asked->measurements.begin(), asked->measurements.end(),
                          [](const Measurement& m) { return m.pipeline == "dcsr"; }));
  EXPECT_EQ(matrix.Prepare({.kernel = "cpu.fast"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.MatrixNamed("x").Prepare().code(), absl::StatusCode::kNotFound);
}

TEST(Client, FeaturesOfAPreparedMatrix) {
  ServerProcess server;
  const auto client = Connect(server);
  const CsrMatrix s = RandomMatrix(300, 200, 30);
  const Matrix matrix = Upload(client, "m", s);
  ASSERT_TRUE(matrix.WaitReady().ok());
  const auto features = matrix.Features();
  ASSERT_TRUE(features.ok()) << features.status();
  ASSERT_FALSE(features->empty());
  EXPECT_EQ(features->values.front().name, "rows");
  EXPECT_EQ(features->values.front().value, 300);
  EXPECT_EQ(features->distances.size(), 17u);
  ASSERT_EQ(features->density_map.size(), 128u * 128u);
  EXPECT_EQ(std::accumulate(features->density_map.begin(), features->density_map.end(), int64_t{0}),
            s.nnz());
  EXPECT_EQ(client.MatrixNamed("x").Features().status().code(), absl::StatusCode::kNotFound);
}

TEST(Client, MeasurementsAndDecisionsOfAPreparedMatrix) {
  ServerProcess server;
  const auto client = Connect(server);
  const auto none = client.ListMeasurements();
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
  const Matrix matrix = Upload(client, "m", RandomMatrix(300, 200, 30));
  ASSERT_TRUE(matrix.WaitReady().ok());
  const auto info = matrix.Info();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->detail, "");
  ASSERT_FALSE(info->decisions.empty());
  EXPECT_FALSE(info->decisions.front().tried) << "too few nonzeros for anything";
  EXPECT_NE(info->decisions.front().reason, "");
  const auto measured = client.ListMeasurements("m");
  ASSERT_TRUE(measured.ok()) << measured.status();
  ASSERT_EQ(measured->size(), 1u);
  EXPECT_EQ(measured->front().pattern_hash, info->pattern_hash);
  EXPECT_EQ(measured->front().features.values.size(), 47u);
  ASSERT_EQ(measured->front().measurements.size(), info->measurements.size());
  const Measurement& m = measured->front().measurements.front();
  EXPECT_EQ(m.type, ValueType::kF32);
  EXPECT_GT(m.roofline_ms, 0);
  EXPECT_GT(m.baseline_ms, 0);
  EXPECT_EQ(client.ListMeasurements("x").status().code(), absl::StatusCode::kNotFound);
}

TEST(Client, NothingIsDurableInMemory) {
  ServerProcess server;
  const auto client = Connect(server);
  const Matrix matrix = Upload(client, "m", RandomMatrix(5, 5, 31));
  const auto info = matrix.Info();
  ASSERT_TRUE(info.ok());
  const std::vector<float> values(static_cast<size_t>(info->nnz), 1);
  const auto refused = matrix.UpdateValues(std::span(values), {.durable = true});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(matrix.UpdateValues(std::span(values)).ok());
}

TEST(Client, ServerInfoAndStats) {
  ServerProcess server;
  const auto client = Connect(server);
  const auto info = client.GetServerInfo();
  ASSERT_TRUE(info.ok());
  EXPECT_FALSE(info->devices.empty());
  Upload(client, "m", RandomMatrix(5, 5, 31));
  const auto stats = client.GetStats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->matrices, 1);
}

TEST(Client, ResultsAreTakenOnce) {
  ServerProcess server;
  const auto client = Connect(server);
  auto call = client.GetStatsAsync();
  EXPECT_TRUE(call.Wait().ok());
  EXPECT_TRUE(call.Done());
  EXPECT_EQ(call.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sparsed::test
