// What becomes of requests when memory is short at any point: each allocation that one makes fails
// in turn, alone and with all that follow it, on the CPU and on the stand-in. A right result or
// RESOURCE_EXHAUSTED; nothing stays behind, and the next request is served.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/reference/reference.h"
#include "tests/gpu/stand_in.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using cuda::stand_in::Step;

/// One allocation of host memory.
using Allocation = std::pair<size_t, MemoryUse>;

/// Refuses allocations of a budget by their number, and remembers those that it saw.
class Refusals {
 public:
  explicit Refusals(Budget& budget) : budget_(budget) {
    budget_.SetRefuse([this](size_t bytes, MemoryUse use) {
      std::lock_guard lock(mutex_);
      const auto number = static_cast<int64_t>(seen_.size());
      seen_.emplace_back(bytes, use);
      const bool refused = number >= first_ && number - first_ < count_;
      if (refused) ++refused_;
      return refused;
    });
  }
  ~Refusals() { budget_.SetRefuse(nullptr); }

  /// Of those from now on, number `first` and the `count - 1` after it are refused.
  void Refuse(int64_t first, int64_t count) {
    std::lock_guard lock(mutex_);
    first_ = first;
    count_ = count;
    refused_ = 0;
    seen_.clear();
  }
  /// How many were, since Refuse was called.
  int64_t refused() {
    std::lock_guard lock(mutex_);
    return refused_;
  }
  /// The first `count` that were made since then, or fewer.
  std::vector<Allocation> First(int64_t count) {
    std::lock_guard lock(mutex_);
    std::vector<Allocation> first = seen_;
    first.resize(std::min<size_t>(first.size(), count));
    return first;
  }

 private:
  Budget& budget_;
  std::mutex mutex_;
  int64_t first_ = 0, count_ = 0, refused_ = 0;
  std::vector<Allocation> seen_;
};

constexpr int64_t kAll = std::numeric_limits<int32_t>::max();

/// S is 150 x 120 and came in descending order of columns, T is 120 x 150. Held: B, C and A fit
/// them, "w" are other values of S, "into" and "onto" are for results.
class Allocations : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kRows = 150, kCols = 120, kK = 21, kGap = 3, kHeads = 3;

  static bool on_device() { return GetParam(); }

  std::unique_ptr<Engine> Open() {
    EngineOptions options;
    options.host_memory_bytes = options.preparation_memory_bytes = int64_t{256} << 20;
    // Of one worker slot, so that every request finds what the one before left.
    if (on_device()) options.gpu = DeviceOptions{.memory_bytes = int64_t{520} << 20, .slots = 1};
    options.preparation.enabled = false;
    std::unique_ptr<Engine> engine = Engine::Open(options, observer_).value();
    EXPECT_EQ(!engine->gpus().empty(), on_device());
    UploadHeader header = HeaderOf("s", s_);
    header.sort = true;
    EXPECT_TRUE(Send(engine->catalog(), header, s_.row_offsets, Mirrored(s_.column_indices),
                     Mirrored(s_values_))
                    .ok());
    EXPECT_TRUE(
        Send(engine->catalog(), HeaderOf("t", t_), t_.row_offsets, t_.column_indices, t_values_)
            .ok());
    EXPECT_TRUE(SendMatrix(engine->catalog(), "mask", mask_).ok());
    Hold(*engine, "a", {kRows, kK, kK, ElementType::kF32}, a_);
    Hold(*engine, "b", {kCols, kK, kK, ElementType::kF32}, b_);
    Hold(*engine, "w", {s_.nnz(), 1, 1, ElementType::kF32}, other_values_);
    Hold(*engine, "wide", {s_.nnz(), kHeads, kHeads, ElementType::kF32}, values_of_heads_);
    Hold(*engine, "into", {kRows, kK, kK + kGap, ElementType::kF32}, {});
    Hold(*engine, "onto", {s_.nnz(), 1, kGap, ElementType::kF32}, {});
    return engine;
  }

  /// Without `data`, of zeros.
  static void Hold(Engine& engine, const std::string& name, DenseShape shape,
                   const std::vector<float>& data) {
    auto put = engine.dense().BeginPut({"t", name, shape, /*zeros=*/data.empty(), false});
    ASSERT_TRUE(put.ok() && Feed(**put, 0, data).ok() && (*put)->Finish().ok());
  }

  template <typename T>
  std::vector<T> Mirrored(std::vector<T> elements) const {
    for (int64_t row = 0; row < kRows; ++row) {
      std::reverse(elements.begin() + s_.row_offsets[row],
                   elements.begin() + s_.row_offsets[row + 1]);
    }
    return elements;
  }

  /// Sends the arrays, each under its number, and waits for the end.
  template <typename Spec>
  absl::Status Run(Engine& engine, const Spec& spec, const std::shared_ptr<Result>& result,
                   const std::vector<const std::vector<float>*>& arrays = {}) const {
    absl::StatusOr<std::shared_ptr<Call>> call = engine.executor().Begin(spec, result);
    if (!call.ok()) {
      on_end_();
      return call.status();
    }
    absl::Status fed;
    for (uint32_t i = 0; i < arrays.size() && fed.ok(); ++i) {
      fed = FeedAndCommit(**call, i, *arrays[i]);
    }
    if (fed.ok()) {
      (*call)->Submit();
    } else {
      (*call)->Fail(fed);
    }
    const absl::Status end = result->Wait();
    plan_ = result->plan;
    on_end_();
    return end;
  }

  static std::vector<double> Wide(const std::vector<float>& data) {
    return {data.begin(), data.end()};
  }

  /// C = alpha * op(S) * B + beta * C.
  struct SpmmForm {
    bool transpose = false, held_operands = false, held_result = false;
    double beta = 0;
    int64_t gap = 0;
    bool other_values = false;
  };
  absl::Status Spmm(Engine& engine, const SpmmForm& form) const {
    const int64_t in = form.transpose ? kRows : kCols, out = form.transpose ? kCols : kRows;
    const std::vector<float>& b = form.transpose ? a_ : b_;
    const std::vector<float>& c = form.transpose ? b_ : a_;
    SpmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = std::string("s");
    spec.transpose = form.transpose;
    spec.alpha = 0.5;
    spec.beta = form.beta;
    std::vector<const std::vector<float>*> arrays;
    if (form.held_operands) {
      spec.b.held = form.transpose ? "a" : "b";
      if (form.beta != 0) spec.accumulate = OperandSpec{{}, form.transpose ? "b" : "a", 0};
    } else {
      spec.b.shape = DenseShape{in, kK, kK, ElementType::kF32};
      arrays.push_back(&b);
      if (form.beta != 0) {
        spec.accumulate = OperandSpec{DenseShape{out, kK, kK, ElementType::kF32}, "", 1};
        arrays.push_back(&c);
      }
    }
    if (form.other_values && form.held_operands) {
      spec.values = OperandSpec{{}, "w", 0};
    } else if (form.other_values) {
      const auto array = static_cast<uint32_t>(arrays.size());
      spec.values = OperandSpec{DenseShape{s_.nnz(), 1, 1, ElementType::kF32}, "", array};
      arrays.push_back(&other_values_);
    }
    if (form.held_result) spec.result.held = std::string("into");
    if (form.gap > 0) spec.result_leading_dimension = kK + form.gap;
    const HeldDenseLease before = engine.dense().Find("t", "into").value();
    const auto result = std::make_shared<Result>();
    const absl::Status status = Run(engine, spec, result, arrays);
    const HeldDenseLease after = engine.dense().Find("t", "into").value();
    EXPECT_EQ(before != after, status.ok() && form.held_result);
    if (!status.ok()) return status;
    std::vector<double> expected = Wide(c), magnitudes(expected.size());
    const std::vector<float> values = form.other_values ? Mirrored(other_values_) : s_values_;
    reference::Spmm(s_.view(), Wide(values).data(), form.transpose, Wide(b).data(), kK, kK,
                    spec.alpha, spec.beta, expected.data(), magnitudes.data());
    if (form.held_result) {
      ExpectSums<float>(WithoutGaps(HostElements(*after), kK, kK + kGap), expected, magnitudes,
                        kRows);
    } else {
      ExpectSums<float>(WithoutGaps(result->Elements<float>(), kK, kK + form.gap), expected,
                        magnitudes, kRows);
    }
    return status;
  }

  absl::Status Sddmm(Engine& engine, bool held_operands, bool held_result) const {
    SddmmSpec spec;
    spec.tenant = std::string("t");
    spec.matrix = std::string("s");
    std::vector<const std::vector<float>*> arrays;
    if (held_operands) {
      spec.a.held = std::string("a");
      spec.b.held = std::string("b");
    } else {
      spec.a.shape = DenseShape{kRows, kK, kK, ElementType::kF32};
      spec.b.shape = DenseShape{kCols, kK, kK, ElementType::kF32};
      spec.b.stream_array = 1;
      arrays = {&a_, &b_};
    }
    if (held_result) spec.result.held = std::string("onto");
    const HeldDenseLease before = engine.dense().Find("t", "onto").value();
    const auto result = std::make_shared<Result>();
    const absl::Status status = Run(engine, spec, result, arrays);
    const HeldDenseLease after = engine.dense().Find("t", "onto").value();
    EXPECT_EQ(before != after, status.ok() && held_result);
    if (!status.ok()) return status;
    std::vector<double> expected(s_.nnz()), magnitudes(s_.nnz());
    reference::Sddmm(s_.view(), Wide(s_values_).data(), Wide(a_).data(), kK, Wide(b_).data(), kK,
                     kK, expected.data(), magnitudes.data());
    ExpectSums<float>(
        held_result ? WithoutGaps(HostElements(*after), 1, kGap) : result->Elements<float>(),
        Mirrored(expected), Mirrored(magnitudes), kK);
    return status;
  }

  /// C = 0.5 * S * B - 2 * A with other values of S's, and S .* (A * B^T) into a buffer.
  absl::Status Chain(Engine& engine, bool held_operands) const {
    ChainSpec spec;
    spec.tenant = std::string("t");
    std::vector<const std::vector<float>*> arrays;
    if (held_operands) {
      spec.operands = {{{}, "a", 0}, {{}, "b", 0}, {{}, "w", 0}};
    } else {
      spec.operands = {{DenseShape{kRows, kK, kK, ElementType::kF32}, "", 0},
                       {DenseShape{kCols, kK, kK, ElementType::kF32}, "", 1},
                       {DenseShape{s_.nnz(), 1, 1, ElementType::kF32}, "", 2}};
      arrays = {&a_, &b_, &other_values_};
    }
    SpmmStep product;
    product.matrix = std::string("s");
    product.b = 1;
    product.values = 2;
    SddmmStep edges;
    edges.matrix = std::string("s");
    edges.a = 0;
    edges.b = 1;
    spec.steps = {product, SumStep{{{3, 0.5}, {0, -2}}}, edges};
    spec.results = {{4, {}, 0}, {5, {"onto", {}, {}}, 0}};
    const HeldDenseLease before = engine.dense().Find("t", "onto").value();
    const auto result = std::make_shared<Result>();
    const absl::Status status = Run(engine, spec, result, arrays);
    const HeldDenseLease after = engine.dense().Find("t", "onto").value();
    EXPECT_EQ(before != after, status.ok());
    if (!status.ok()) return status;
    std::vector<double> expected = Wide(a_), magnitudes(expected.size());
    reference::Spmm(s_.view(), Wide(Mirrored(other_values_)).data(), false, Wide(b_).data(), kK, kK,
                    0.5, -2, expected.data(), magnitudes.data());
    ExpectSums<float>(result->Elements<float>(), expected, magnitudes, kRows);
    expected.assign(s_.nnz(), 0);
    magnitudes.assign(s_.nnz(), 0);
    reference::Sddmm(s_.view(), Wide(s_values_).data(), Wide(a_).data(), kK, Wide(b_).data(), kK,
                     kK, expected.data(), magnitudes.data());
    ExpectSums<float>(WithoutGaps(HostElements(*after), 1, kGap), Mirrored(expected),
                      Mirrored(magnitudes), kK);
    return status;
  }

  /// Attention of heads, normalised once more, forth and back; of what comes of it the greatest
  /// over each row, and which they are; those and S * B with the heads' values into a buffer.
  absl::Status ChainOfHeads(Engine& engine, bool held_operands) const {
    ChainSpec spec;
    spec.tenant = std::string("t");
    std::vector<const std::vector<float>*> arrays;
    if (held_operands) {
      spec.operands = {{{}, "a", 0}, {{}, "b", 0}, {{}, "wide", 0}};
    } else {
      spec.operands = {{DenseShape{kRows, kK, kK, ElementType::kF32}, "", 0},
                       {DenseShape{kCols, kK, kK, ElementType::kF32}, "", 1},
                       {DenseShape{s_.nnz(), kHeads, kHeads, ElementType::kF32}, "", 2}};
      arrays = {&a_, &b_, &values_of_heads_};
    }
    SpmmStep product;
    product.matrix = std::string("s");
    product.b = 1;
    product.values = 2;
    SddmmStep scores;
    scores.matrix = std::string("s");
    scores.a = 0;
    scores.b = 1;
    scores.heads = kHeads;
    SoftmaxStep weights;
    weights.matrix = std::string("s");
    weights.value = 4;
    TotalStep total;
    total.matrix = std::string("s");
    total.value = 5;
    ScaleStep scaled;
    scaled.matrix = std::string("s");
    scaled.value = 5;
    scaled.rows = 6;
    SpmmStep back = product;
    back.transpose = true;
    back.b = 0;
    back.values = 7;
    ReduceStep greatest;
    greatest.matrix = std::string("s");
    greatest.reduction = Reduction::kMax;
    greatest.b = 8;
    greatest.arguments = true;
    spec.steps = {product, scores, weights,  total,
                  scaled,  back,   greatest, SumStep{{{3, 1}, {9, 0.5}}}};
    spec.results = {{11, {"into", {}, {}}, 0}, {10, {}, 0}};
    const HeldDenseLease before = engine.dense().Find("t", "into").value();
    const auto result = std::make_shared<Result>();
    const absl::Status status = Run(engine, spec, result, arrays);
    const HeldDenseLease after = engine.dense().Find("t", "into").value();
    EXPECT_EQ(before != after, status.ok());
    if (!status.ok()) return status;
    constexpr int64_t kWidth = kK / kHeads;
    // In canonical order.
    std::vector<double> weight(s_.nnz() * kHeads), expected(kRows * kK), back_again(kCols * kK);
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t begin = s_.row_offsets[row], end = s_.row_offsets[row + 1];
      std::vector<double> sums(kHeads);
      for (int64_t p = begin; p < end; ++p) {
        const int64_t col = s_.column_indices[p], sent = begin + end - 1 - p;
        for (int64_t j = 0; j < kK; ++j) {
          const int64_t head = j / kWidth;
          weight[p * kHeads + head] += s_values_[p] * double{a_[row * kK + j]} * b_[col * kK + j];
          expected[row * kK + j] +=
              double{values_of_heads_[sent * kHeads + head]} * b_[col * kK + j];
        }
        for (int64_t head = 0; head < kHeads; ++head) {
          double& w = weight[p * kHeads + head];
          sums[head] += w = std::exp(w);
        }
      }
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t j = 0; j < kK; ++j) {
          const int64_t head = j / kWidth;
          back_again[s_.column_indices[p] * kK + j] +=
              weight[p * kHeads + head] / sums[head] * a_[row * kK + j];
        }
      }
    }
    const std::vector<float> got = WithoutGaps(HostElements(*after), kK, kK + kGap);
    const std::vector<int64_t> which = result->Elements<int64_t>();
    EXPECT_EQ(which.size(), got.size());
    int wrong = 0;
    for (int64_t i = 0; i < kRows * kK && which.size() == got.size(); ++i) {
      const int64_t begin = s_.row_offsets[i / kK], end = s_.row_offsets[i / kK + 1];
      const auto value = [&](int64_t p) {
        return s_values_[p] * back_again[s_.column_indices[p] * kK + i % kK];
      };
      double most = value(begin);
      for (int64_t p = begin; p < end; ++p) most = std::max(most, value(p));
      const bool of_row = which[i] >= begin && which[i] < end;
      wrong += !of_row || std::abs(value(begin + end - 1 - which[i]) - most) > 1e-4 ||
               std::abs(got[i] - (expected[i] + 0.5 * most)) > 1e-4;
    }
    EXPECT_EQ(wrong, 0);
    return status;
  }

  /// op(S) * op(T) of matrices `left` and `right`.
  struct SpgemmForm {
    bool transposed = false, masked = false, kept = false;
  };
  absl::Status Spgemm(Engine& engine, const SpgemmForm& form) const {
    SpgemmSpec spec;
    spec.tenant = std::string("t");
    spec.left = form.transposed ? "t" : "s";
    spec.right = form.transposed ? "s" : "t";
    spec.transpose_left = spec.transpose_right = form.transposed;
    if (form.masked) spec.mask = std::string("mask");
    if (form.kept) spec.keep_as = std::string("kept");
    const auto result = std::make_shared<Result>();
    const absl::Status status = Run(engine, spec, result);
    absl::StatusOr<MatrixLease> kept = engine.catalog().Find("t", "kept");
    EXPECT_EQ(kept.ok(), status.ok() && form.kept) << status;
    if (!status.ok()) return status;
    std::vector<int64_t> s_source, t_source;
    const test::Pattern left = form.transposed ? test::Transpose(t_, &t_source) : s_;
    const test::Pattern right = form.transposed ? test::Transpose(s_, &s_source) : t_;
    std::vector<double> left_values = Wide(s_values_), right_values = Wide(t_values_);
    if (form.transposed) {
      left_values = Gathered(t_values_, t_source);
      right_values = Gathered(s_values_, s_source);
    }
    const CsrView mask = mask_.view();
    const reference::SparseResult expected =
        reference::Spgemm(left.view(), left_values.data(), right.view(), right_values.data(),
                          Semiring::kSumProduct, form.masked ? &mask : nullptr);
    if (!form.kept) {
      EXPECT_EQ(result->row_offsets, expected.row_offsets);
      EXPECT_EQ(result->column_indices, expected.column_indices);
      ExpectSums<float>(result->Elements<float>(), expected.values, expected.magnitudes, kCols);
      return status;
    }
    const CsrView csr = ViewCsr(**(*kept)->pattern()->Csr());
    EXPECT_TRUE(std::ranges::equal(csr.row_offsets, expected.row_offsets));
    EXPECT_TRUE(std::ranges::equal(csr.column_indices, expected.column_indices));
    ExpectSums<float>(engine::Elements<float>((*kept)->Values()), expected.values,
                      expected.magnitudes, kCols);
    kept = absl::NotFoundError("let go");
    EXPECT_TRUE(engine.catalog().Delete("t", "kept").ok());
    return status;
  }

  static std::vector<double> Gathered(const std::vector<float>& values,
                                      const std::vector<int64_t>& source) {
    std::vector<double> gathered;
    for (const int64_t from : source) gathered.push_back(values[from]);
    return gathered;
  }
  static std::vector<float> HostElements(const HeldDense& held) {
    return engine::Elements<float>(held.elements->Get());
  }
  /// `columns` of every `pitch` elements.
  static std::vector<float> WithoutGaps(const std::vector<float>& elements, int64_t columns,
                                        int64_t pitch) {
    std::vector<float> packed;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (static_cast<int64_t>(i) % pitch < columns) packed.push_back(elements[i]);
    }
    return packed;
  }

  using Request = std::function<absl::Status(Engine&)>;
  /// By what they are.
  std::map<std::string, Request> Requests() const {
    const auto spmm = [this](SpmmForm form) {
      return [this, form](Engine& engine) { return Spmm(engine, form); };
    };
    const auto sddmm = [this](bool held_operands, bool held_result) {
      return [=, this](Engine& engine) { return Sddmm(engine, held_operands, held_result); };
    };
    const auto spgemm = [this](SpgemmForm form) {
      return [this, form](Engine& engine) { return Spgemm(engine, form); };
    };
    return {
        {"spmm", spmm({})},
        {"spmm with gaps", spmm({.gap = 2})},
        {"spmm that accumulates", spmm({.beta = -2})},
        {"spmm that accumulates, with gaps", spmm({.beta = -2, .gap = 2})},
        {"spmm of buffers", spmm({.held_operands = true, .beta = -2})},
        {"spmm into a buffer", spmm({.held_result = true})},
        {"spmm, all of it held", spmm({.held_operands = true, .held_result = true, .beta = -2})},
        {"spmm of other values", spmm({.beta = -2, .other_values = true})},
        {"spmm of other values, all of it held",
         spmm({.held_operands = true, .held_result = true, .other_values = true})},
        {"spmm^T", spmm({.transpose = true})},
        {"spmm^T that accumulates", spmm({.transpose = true, .beta = -2})},
        {"spmm^T of buffers", spmm({.transpose = true, .held_operands = true})},
        {"sddmm", sddmm(false, false)},
        {"sddmm of buffers", sddmm(true, false)},
        {"sddmm into a buffer", sddmm(false, true)},
        {"sddmm, all of it held", sddmm(true, true)},
        {"chain", [this](Engine& engine) { return Chain(engine, false); }},
        {"chain of buffers", [this](Engine& engine) { return Chain(engine, true); }},
        {"chain of heads", [this](Engine& engine) { return ChainOfHeads(engine, false); }},
        {"chain of heads, of buffers",
         [this](Engine& engine) { return ChainOfHeads(engine, true); }},
        {"spgemm", spgemm({})},
        {"spgemm, kept", spgemm({.kept = true})},
        {"spgemm of transposes", spgemm({.transposed = true})},
        {"spgemm of transposes, kept", spgemm({.transposed = true, .kept = true})},
        {"spgemm under a mask", spgemm({.masked = true})},
        {"spgemm under a mask, kept", spgemm({.masked = true, .kept = true})},
    };
  }

  /// Bytes of memory in use, by use, of the host and of the device.
  static std::vector<int64_t> Used(Engine& engine) {
    std::vector<int64_t> used;
    for (int i = 0; i < kMemoryUses; ++i) {
      const auto use = static_cast<MemoryUse>(i);
      used.push_back(engine.budget().used(use));
      if (!engine.gpus().empty()) used.push_back(engine.gpus().front()->budget().used(use));
    }
    return used;
  }

  /// Nothing is in flight, and as much memory is in use as without any failure.
  static void ExpectAtRest(Engine& engine, const std::vector<int64_t>& used) {
    EXPECT_TRUE(Eventually([&] { return engine.executor().in_flight() == 0; }));
    // A call's memory goes after its end was told.
    EXPECT_TRUE(Eventually([&] { return Used(engine) == used; }))
        << testing::PrintToString(Used(engine)) << ", not " << testing::PrintToString(used);
    if (!engine.gpus().empty()) {
      EXPECT_TRUE(engine.gpus().front()->status().ok()) << engine.gpus().front()->status();
    }
  }

  /// It goes well, and where it should.
  void ExpectServed(Engine& engine, const Request& request) {
    const absl::Status status = request(engine);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_NE(plan_.find(on_device() ? " / cuda." : " / cpu."), std::string::npos) << plan_;
  }

  /// So that worker slots keep what they will need again: those of the CPU, too, where a request
  /// goes when the device has no room.
  void WarmUp(Engine& engine, const Request& request) {
    ExpectServed(engine, request);
    if (!on_device()) return;
    cuda::stand_in::Fail(Step::kAllocate, 0, kAll, absl::ResourceExhaustedError("told to"));
    const absl::Status status = request(engine);
    cuda::stand_in::Heal();
    EXPECT_TRUE(status.ok()) << status;
    ExpectServed(engine, request);
  }

  /// What is in use after each of the requests, one after the other, that went well.
  const std::map<std::string, std::vector<int64_t>>& UsedWhenWarm() {
    static std::map<bool, std::map<std::string, std::vector<int64_t>>> known;
    auto& used_after = known[on_device()];
    if (!used_after.empty()) return used_after;
    const std::unique_ptr<Engine> engine = Open();
    for (const auto& [name, request] : Requests()) {
      WarmUp(*engine, request);
      std::vector<int64_t>& used = used_after[name];
      // A call's memory goes after its end was told.
      EXPECT_TRUE(Eventually([&] {
        const std::vector<int64_t> before = std::exchange(used, Used(*engine));
        return before == used && engine->executor().in_flight() == 0;
      }));
    }
    return used_after;
  }

  mutable std::string plan_;  ///< of the last call
  /// Called when a call has ended, before its result is looked at.
  std::function<void()> on_end_ = [] {};
  Observer observer_;
  const test::Pattern s_ = test::Uniform(kRows, kCols, 6, 12),
                      t_ = test::Uniform(kCols, kRows, 5, 3),
                      mask_ = test::Uniform(kRows, kRows, 20, 8);
  const std::vector<float> s_values_ = FloatsOf(s_, 1), t_values_ = FloatsOf(t_, 2);
  const std::vector<float> a_ = Floats(kRows * kK, 6), b_ = Floats(kCols * kK, 5);
  const std::vector<float> other_values_ = Floats(s_.nnz(), 7);
  const std::vector<float> values_of_heads_ = Floats(s_.nnz() * kHeads, 9);

 private:
  static std::vector<float> Floats(int64_t count, uint64_t seed) {
    const std::vector<double> values = test::RandomValues(count, seed);
    return {values.begin(), values.end()};
  }
};

TEST_P(Allocations, OfHostMemoryFailInTurn) {
  const auto& used_after = UsedWhenWarm();
  const std::unique_ptr<Engine> engine = Open();
  Refusals refusals(engine->budget());
  int64_t first = 0, refused = 0;
  std::vector<Allocation> seen;
  on_end_ = [&] {
    refused = refusals.refused();
    seen = refusals.First(first + 1);
    refusals.Refuse(0, 0);
  };
  for (const auto& [name, request] : Requests()) {
    const std::vector<int64_t>& used = used_after.at(name);
    // At first without what worker slots keep; then each time after a request that went well.
    for (const auto& [warm, count] :
         {std::pair<bool, int64_t>(false, 1), {true, 1}, {true, kAll}}) {
      int runs = 0;
      std::vector<Allocation> before;
      for (first = 0;; ++first) {
        SCOPED_TRACE(testing::Message() << name << ", " << count << " from allocation " << first
                                        << (warm ? " on, after others" : " on, at first"));
        ASSERT_LT(++runs, 1000);
        refusals.Refuse(first, count);
        const absl::Status status = request(*engine);
        EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
        if (refused == 0) {
          EXPECT_TRUE(status.ok()) << status;
          break;
        }
        const std::vector<Allocation> made = seen;
        if (warm) {
          ExpectServed(*engine, request);
          ExpectAtRest(*engine, used);
        }
        // What was kept meanwhile is not allocated again: the numbers are others.
        const size_t same = std::min(before.size(), made.size());
        if (std::equal(before.begin(), before.begin() + same, made.begin())) {
          before = made;
        } else {
          before.clear();
          first = -1;
        }
        if (HasFailure()) return;
      }
      // On the device, what is held needs no memory of the host.
      EXPECT_TRUE(runs > 1 || on_device()) << name << " allocates nothing";
      WarmUp(*engine, request);
      ExpectAtRest(*engine, used);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, Allocations, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "StandIn" : "Cpu"; });

class DeviceAllocations : public Allocations {};

TEST_P(DeviceAllocations, FailInTurn) {
  const auto& used_after = UsedWhenWarm();
  const std::unique_ptr<Engine> engine = Open();
  int failed = 0;
  const auto count_failures = [&] {
    failed = cuda::stand_in::Failed(Step::kAllocate);
    cuda::stand_in::Heal();
  };
  for (const auto& [name, request] : Requests()) {
    on_end_ = count_failures;
    for (const int64_t count : {int64_t{1}, kAll}) {
      int first = 0;
      do {
        SCOPED_TRACE(testing::Message() << name << ", " << count << " from allocation " << first);
        // Nothing is there yet.
        while (engine->gpus().front()->residency().Evict(kAll, /*at_once=*/false)) {
        }
        cuda::stand_in::Fail(Step::kAllocate, first, static_cast<int>(count),
                             absl::ResourceExhaustedError("told to"));
        const absl::Status status = request(*engine);
        EXPECT_TRUE(status.ok()) << status << ": the CPU could have done it";
        if (HasFailure()) return;
      } while (failed > 0 && ++first < 1000);
      EXPECT_GT(first, 0) << name << " allocates nothing";
      EXPECT_LT(first, 1000);
    }
    on_end_ = [] {};
    WarmUp(*engine, request);
    ExpectAtRest(*engine, used_after.at(name));
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, DeviceAllocations, ::testing::Values(true),
                         [](const auto&) { return "StandIn"; });

}  // namespace
}  // namespace sparsed::engine
