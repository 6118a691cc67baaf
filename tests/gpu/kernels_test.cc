// Every GPU kernel against kernels/reference: outputs, their padding, and workspaces start as NaN,
// and what is behind and between them must stay so.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/formats/aspt.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/reference/reference.h"
#include "tests/generate.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/dense_harness.h"
#include "tests/matrix_market.h"
#include "tests/matrix_pack.h"

namespace sparsed::test {

void PrintTo(const NamedPattern& pattern, std::ostream* out) { *out << pattern.name; }

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr int64_t kGuard = 64;

struct GpuCase {
  int64_t k = 1;
  bool transposed = false;
  double alpha = 1, beta = 0;
  int64_t padding = 0;
  int64_t offset = 0;
  bool unscaled = false;
  bool allow_tf32 = false;
};

template <typename T>
double Wide(T value) {
  return static_cast<SumOf<T>>(value);
}
template <typename T>
T Stored(double value) {
  return static_cast<T>(static_cast<SumOf<T>>(value));
}

/// A row-major matrix surrounded and padded by NaN, here and on the device.
template <typename T>
class Operand {
 public:
  Operand(int64_t rows, int64_t cols, const GpuCase& c)
      : rows_(rows),
        cols_(cols),
        leading_(cols + c.padding),
        begin_(kGuard + c.offset),
        host_(begin_ + rows * leading_ + kGuard, Stored<T>(kNan)) {}

  /// Random values rounded to T; returns them without padding.
  std::vector<double> Fill(uint64_t seed) {
    std::vector<double> copy = RandomValues(rows_ * cols_, seed);
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      T& value = host_[begin_ + i / cols_ * leading_ + i % cols_];
      value = Stored<T>(copy[i]);
      copy[i] = Wide(value);
    }
    return copy;
  }
  void Upload(Gpu& gpu) { device_ = gpu.Upload(host_.data(), host_.size() * sizeof(T)); }
  void Download(Gpu& gpu) { gpu.Download(host_.data(), device_.data(), host_.size() * sizeof(T)); }
  T* device() { return reinterpret_cast<T*>(device_.mutable_data()) + begin_; }
  ConstDense view() { return {device(), rows_, cols_, leading_}; }
  Dense mutable_view() { return {device(), rows_, cols_, leading_}; }
  double at(int64_t row, int64_t col) const { return Wide(host_[begin_ + row * leading_ + col]); }
  int64_t CountPaddingTouched() const {
    int64_t touched = 0;
    for (int64_t i = -begin_; i < rows_ * leading_ + kGuard; ++i) {
      const bool inside = i >= 0 && i < rows_ * leading_ && i % leading_ < cols_;
      touched += !inside && !std::isnan(Wide(host_[begin_ + i]));
    }
    return touched;
  }
  bool SameBits(const Operand& other) const {
    return std::memcmp(host_.data(), other.host_.data(), host_.size() * sizeof(T)) == 0;
  }

 private:
  int64_t rows_, cols_, leading_, begin_;
  std::vector<T> host_;
  Buffer device_;
};

/// Exactly as many bytes as asked for, with a guard behind.
class Workspace {
 public:
  Workspace(Gpu& gpu, size_t bytes) : bytes_(bytes), buffer_(gpu.Allocate(bytes + kGuardBytes)) {
    Must(gpu.stream().Fill(buffer_.mutable_data(), 0xff, bytes + kGuardBytes));
  }
  std::span<std::byte> span() { return {buffer_.mutable_data(), bytes_}; }
  bool guard_intact(Gpu& gpu) const {
    std::vector<unsigned char> guard(kGuardBytes);
    gpu.Download(guard.data(), buffer_.data() + bytes_, kGuardBytes);
    return std::all_of(guard.begin(), guard.end(), [](unsigned char b) { return b == 0xff; });
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  size_t bytes_;
  Buffer buffer_;
};

/// How far a sum of `terms` products, `expected`, may be off (dense_harness.cc has the same for
/// CPUs).
template <typename T>
double Bound(int64_t terms, double magnitude, double expected, const Accuracy& accuracy) {
  using Sum = SumOf<T>;
  const double u = std::numeric_limits<Sum>::epsilon() / 2;
  const double roundings = static_cast<double>(terms + 4) * accuracy.addition;
  const double bound = roundings * (u * 1.01 * magnitude + std::numeric_limits<Sum>::denorm_min()) +
                       accuracy.product * magnitude;
  if (!kIsHalf<T>) return bound;
  const double stored = std::is_same_v<T, Float16> ? 0x1p-11 : 0x1p-8;
  const double subnormal = std::is_same_v<T, Float16> ? 0x1p-25 : 0;
  const double rounding = std::max((std::abs(expected) + bound) * stored, subnormal);
  return bound + rounding;
}

/// Whether it computes anything otherwise where f32 may be rounded to TF32.
bool HeedsTf32(const SpmmKernel& kernel) {
  Problem problem = {
      .operation = Operation::kSpmm, .type = ElementType::kF32, .device = DeviceKind::kCuda};
  const Accuracy exact = kernel.accuracy(problem);
  problem.allow_tf32 = true;
  return kernel.accuracy(problem) != exact;
}

template <typename T>
std::vector<double> Rounded(const std::vector<double>& values) {
  std::vector<double> rounded;
  for (const double value : values) rounded.push_back(Wide(Stored<T>(value)));
  return rounded;
}

struct Subject {
  const Pattern& pattern;
  const std::vector<double>& values;
  const Layout& host;
  const Layout& device;
};

/// The values in the layout's order, placed there by the device.
template <typename T>
Buffer PlaceOnDevice(Gpu& gpu, const Subject& subject) {
  std::vector<T> rounded;
  for (const double value : subject.values) rounded.push_back(Stored<T>(value));
  const Buffer csr_values = gpu.Upload(rounded.data(), rounded.size() * sizeof(T));
  const size_t bytes = subject.host.value_slots * sizeof(T);
  Buffer slots = gpu.Allocate(bytes);
  Must(gpu.stream().Fill(slots.mutable_data(), 0xff, bytes));
  Must(cuda::PlaceValues(gpu.stream(), subject.device, ElementTypeOf<T>(), csr_values.data(),
                         slots.mutable_data()));
  Must(gpu.stream().Synchronize());
  return slots;
}

template <typename T>
void ExpectSpmm(Gpu& gpu, const Subject& subject, const GpuCase& c) {
  const Pattern shape = c.transposed ? Transpose(subject.pattern) : subject.pattern;
  Operand<T> b(shape.cols, c.k, c);
  const std::vector<double> b_copy = b.Fill(101);
  b.Upload(gpu);
  Operand<T> poisoned(shape.rows, c.k, c);
  std::vector<double> expected(shape.rows * c.k, kNan);
  if (c.beta != 0) expected = poisoned.Fill(102);
  std::vector<double> magnitude(expected.size());
  reference::Spmm(subject.pattern.view(), Rounded<T>(subject.values).data(), c.transposed,
                  b_copy.data(), c.k, c.k, c.alpha, c.beta, expected.data(), magnitude.data());
  const Buffer slots = PlaceOnDevice<T>(gpu, subject);
  const Problem problem = {.operation = Operation::kSpmm,
                           .transposed = c.transposed != subject.host.transposed,
                           .type = ElementTypeOf<T>(),
                           .k = c.k,
                           .device = DeviceKind::kCuda,
                           .allow_tf32 = c.allow_tf32};
  for (const SpmmKernel& kernel : SpmmKernels()) {
    if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != subject.host.kind ||
        !kernel.supports(problem, subject.device)) {
      continue;
    }
    if (c.allow_tf32 && !HeedsTf32(kernel)) continue;
    SCOPED_TRACE(std::string(kernel.name));
    std::optional<Operand<T>> first;
    std::shared_ptr<void> prepared;  // after the first run, if there is something to prepare
    const int runs = kernel.prepare != nullptr ? 3 : kernel.deterministic ? 2 : 1;
    // What was prepared must not remember where the values were.
    Buffer first_values = kernel.prepare != nullptr ? PlaceOnDevice<T>(gpu, subject) : slots;
    for (int run = 0; run < runs; ++run) {
      Operand<T> result = poisoned;
      result.Upload(gpu);
      Workspace workspace(gpu, kernel.workspace(problem, subject.device, 1));
      const SpmmArguments arguments = {
          subject.device, run == 0 ? first_values.data() : slots.data(),
          b.view(),       result.mutable_view(),
          c.alpha,        c.beta};
      const Context context = {
          .workspace = prepared == nullptr ? workspace.span() : std::span<std::byte>(),
          .stream = gpu.stream().handle(),
          .prepared = prepared.get()};
      const absl::Status status = kernel.run(context, problem, arguments);
      ASSERT_TRUE(status.ok()) << status;
      if (kernel.prepare != nullptr && prepared == nullptr) {
        prepared = kernel.prepare(context, problem, arguments, gpu.memory()).value();
        ASSERT_TRUE(gpu.stream().Fill(first_values.mutable_data(), 0xff, first_values.size()).ok());
      }
      ASSERT_TRUE(gpu.stream().Synchronize().ok());
      EXPECT_TRUE(workspace.guard_intact(gpu));
      result.Download(gpu);
      EXPECT_EQ(result.CountPaddingTouched(), 0);
      int64_t wrong = 0;
      std::string example;
      for (int64_t row = 0; row < shape.rows; ++row) {
        const int64_t terms = shape.row_offsets[row + 1] - shape.row_offsets[row];
        for (int64_t j = 0; j < c.k; ++j) {
          const int64_t i = row * c.k + j;
          const double error = std::abs(result.at(row, j) - expected[i]);
          if (error <= Bound<T>(terms, magnitude[i], expected[i], kernel.accuracy(problem))) {
            continue;
          }
          if (wrong++ == 0) {
            example = fmt::format("({}, {}): got {}, expected {}", row, j, result.at(row, j),
                                  expected[i]);
          }
        }
      }
      EXPECT_EQ(wrong, 0) << example;
      if (first && kernel.deterministic) {
        EXPECT_TRUE(first->SameBits(result)) << "two runs differ";
      } else {
        first = std::move(result);
      }
    }
  }
}

template <typename T>
void ExpectSddmm(Gpu& gpu, const Subject& subject, const GpuCase& c) {
  const Pattern& pattern = subject.pattern;
  Operand<T> a(pattern.rows, c.k, c), b(pattern.cols, c.k, c);
  const std::vector<double> a_copy = a.Fill(103), b_copy = b.Fill(104);
  a.Upload(gpu);
  b.Upload(gpu);
  std::vector<double> expected(pattern.nnz(), kNan), magnitude(pattern.nnz());
  const std::vector<double> rounded = Rounded<T>(subject.values);
  reference::Sddmm(pattern.view(), c.unscaled ? nullptr : rounded.data(), a_copy.data(), c.k,
                   b_copy.data(), c.k, c.k, expected.data(), magnitude.data());
  const Buffer slots = PlaceOnDevice<T>(gpu, subject);
  const Problem problem = {.operation = Operation::kSddmm,
                           .type = ElementTypeOf<T>(),
                           .k = c.k,
                           .device = DeviceKind::kCuda};
  for (const SddmmKernel& kernel : SddmmKernels()) {
    if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != subject.host.kind ||
        !kernel.supports(problem, subject.device)) {
      continue;
    }
    SCOPED_TRACE(std::string(kernel.name));
    std::shared_ptr<void> prepared;  // after the first run, if there is something to prepare
    for (int run = 0; run < (kernel.prepare != nullptr ? 3 : 1); ++run) {
      Operand<T> out(1, pattern.nnz(), GpuCase{});
      out.Upload(gpu);
      Workspace workspace(gpu, kernel.workspace(problem, subject.device, 1));
      const SddmmArguments arguments = {subject.device, c.unscaled ? nullptr : slots.data(),
                                        a.view(), b.view(), out.device()};
      const Context context = {
          .workspace = prepared == nullptr ? workspace.span() : std::span<std::byte>(),
          .stream = gpu.stream().handle(),
          .prepared = prepared.get()};
      const absl::Status status = kernel.run(context, problem, arguments);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(gpu.stream().Synchronize().ok());
      EXPECT_TRUE(workspace.guard_intact(gpu));
      out.Download(gpu);
      EXPECT_EQ(out.CountPaddingTouched(), 0);
      int64_t wrong = 0;
      for (int64_t p = 0; p < pattern.nnz(); ++p) {
        // The vendor multiplies with S afterwards, which rounds once more.
        wrong += !(std::abs(out.at(0, p) - expected[p]) <=
                   Bound<T>(c.k + 1, magnitude[p], expected[p], kernel.accuracy(problem)));
      }
      EXPECT_EQ(wrong, 0);
      if (kernel.prepare != nullptr && prepared == nullptr) {
        prepared = kernel.prepare(context, problem, arguments, gpu.memory()).value();
      }
    }
  }
}

void ExpectAll(Gpu& gpu, const Subject& subject, const GpuCase& c) {
  SCOPED_TRACE(fmt::format("k={} transposed={} beta={} padding={} offset={} layout {}", c.k,
                           c.transposed, c.beta, c.padding, c.offset, subject.host.pipeline));
  for (const ElementType type :
       {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
    SCOPED_TRACE(std::string(Name(type)));
    VisitFloat(type, [&]<typename T>(T) {
      ExpectSpmm<T>(gpu, subject, c);
      if (!c.transposed) ExpectSddmm<T>(gpu, subject, c);
    });
  }
  SCOPED_TRACE("tf32");
  GpuCase rounded = c;
  rounded.allow_tf32 = true;
  ExpectSpmm<float>(gpu, subject, rounded);
  // It says nothing of other types.
  ExpectSpmm<double>(gpu, subject, rounded);
  ExpectSpmm<Float16>(gpu, subject, rounded);
}

Layout LayoutOf(const char* pipeline, const Pattern& pattern) {
  BuildContext context;
  context.threads = 2;
  context.memory = &HeapMemory();
  return BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), context).value().layout;
}

/// Tiles whose remainder has an order of its own.
Layout SecondRound(const Pattern& pattern, const std::vector<int32_t>& row_order,
                   const AsptOptions& options) {
  BuildContext context;
  context.memory = &HeapMemory();
  CsrView csr = pattern.view();
  csr.row_order = row_order;
  Layout layout = BuildAspt(csr, options, context).value();
  const std::vector<int32_t> order = RandomOrder(pattern.rows, 9);
  Array array =
      AllocateArray(HeapMemory(), "", ElementType::kI32, static_cast<int64_t>(order.size()))
          .value();
  std::copy(order.begin(), order.end(), array.MutableAs<int32_t>().begin());
  Must(PermuteRemainder(layout, std::move(array), context));
  return layout;
}

class GpuKernels : public testing::Test {
 protected:
  void SetUp() override {
    if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  }
  void Check(const Pattern& pattern, const std::vector<GpuCase>& cases) {
    const std::vector<double> values = RandomValues(pattern.nnz(), 7);
    const Layout layouts[] = {
        PlainLayout(pattern),
        PermutedLayout(pattern, RandomOrder(pattern.rows, 5)),
        PermutedLayout(pattern, {}, true),
        LayoutOf("row_panels(force)", pattern),
        LayoutOf("transpose > row_panels(force)", pattern),
        LayoutOf("lsh_cluster(force) > row_panels(force)", pattern),
        LayoutOf("row_panels(force,rows=16)", pattern),
        LayoutOf("transpose > lsh_cluster(force) > row_panels(force,rows=16)", pattern),
        LayoutOf("aspt(panel=64,min_dense=2)", pattern),
        LayoutOf("lsh_cluster(force) > aspt(panel=256,min_dense=2)", pattern),
        SecondRound(pattern, {}, {16, 2}),
        SecondRound(pattern, RandomOrder(pattern.rows, 5), {256, 3}),
        SecondRound(pattern, {}, {7, 1000}),
        LayoutOf("transpose > aspt(panel=7,min_dense=1)", pattern),
        LayoutOf("coo_panels", pattern),
        LayoutOf("dcsr", pattern),
        LayoutOf("transpose > plain_sort > dcsr", pattern),
        LayoutOf("row_segments(force,min_heavy=2)", pattern),
        LayoutOf("row_segments(force,panel=32,min_heavy=1,coarsen=1)", pattern),
        LayoutOf("plain_sort > row_segments(force,min_heavy=3,coarsen=2)", pattern),
        LayoutOf("transpose > row_segments(force,panel=64,min_heavy=2,"
                 "coarsen=4)",
                 pattern),
        LayoutOf("transpose > coo_panels(rows=7)", pattern)};
    for (const Layout& layout : layouts) {
      const Layout device = Gpu::Get()->Upload(layout);
      for (const GpuCase& c : cases) {
        ExpectAll(*Gpu::Get(), {pattern, values, layout, device}, c);
        if (HasFatalFailure()) return;
      }
    }
  }
};

/// One by one, so that each ends in reasonable time beneath compute-sanitizer (tests/gpu/sanitize).
class GpuKernelsOfWidth : public GpuKernels, public testing::WithParamInterface<int64_t> {};
TEST_P(GpuKernelsOfWidth, Compute) {
  const std::vector<GpuCase> cases = {
      {.k = GetParam()}, {.k = GetParam(), .transposed = true, .alpha = -0.5, .beta = 2}};
  Check(Rmat(9, 8, 13), cases);
  Check(Band(300, 15), cases);
}
INSTANTIATE_TEST_SUITE_P(K, GpuKernelsOfWidth,
                         testing::Values(1, 3, 8, 31, 32, 33, 64, 100, 128, 256, 512, 1000),
                         testing::PrintToStringParamName());

class GpuKernelsOnOddPattern : public GpuKernels,
                               public testing::WithParamInterface<NamedPattern> {};
TEST_P(GpuKernelsOnOddPattern, Compute) {
  Check(GetParam().pattern, {{.k = 1},
                             {.k = 1, .alpha = 2, .beta = -1, .padding = 2, .offset = 1},
                             {.k = 1, .transposed = true, .padding = 1},
                             {.k = 33, .alpha = 2, .beta = -1},
                             {.k = 32, .transposed = true},
                             {.k = 64, .padding = 4},
                             {.k = 128, .alpha = 0.5, .beta = 3, .padding = 3, .offset = 1},
                             {.k = 40, .unscaled = true}});
}
INSTANTIATE_TEST_SUITE_P(Each, GpuKernelsOnOddPattern, testing::ValuesIn(OddPatterns()),
                         [](const testing::TestParamInfo<NamedPattern>& pattern) {
                           std::string name = pattern.param.name;
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

TEST_F(GpuKernels, ComputeLongRowsAndColumns) {
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t i = 0; i < 100'000; ++i) {
    entries.emplace_back(7, i);
    if (i < 3000) entries.insert(entries.end(), {{i, 5}, {i, i}});
  }
  Check(FromCoordinates(3000, 100'000, std::move(entries)),
        {{.k = 1}, {.k = 8}, {.k = 32}, {.k = 100, .beta = 1}, {.k = 8, .transposed = true}});
}

/// Enough nonzeros for the larger parts of SpMV: rows of all lengths, one over hundreds of parts,
/// and empty ones.
TEST_F(GpuKernels, MultiplyAVectorWithManyNonzeros) {
  constexpr int32_t kRows = 150'000, kCols = 700'000;
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < kRows; ++row) {
    const int32_t length = row == 77'777     ? kCols
                           : row % 3 == 0    ? 0
                           : row % 1000 == 1 ? 3000
                                             : row % 20;
    for (int32_t i = 0; i < length; ++i) {
      entries.emplace_back(row,
                           static_cast<int32_t>((int64_t{i} * (kCols / length) + row) % kCols));
    }
  }
  const Pattern pattern = FromCoordinates(kRows, kCols, std::move(entries));
  const std::vector<double> values = RandomValues(pattern.nnz(), 7);
  const Layout layouts[] = {PlainLayout(pattern),
                            PermutedLayout(pattern, RandomOrder(pattern.rows, 5)),
                            LayoutOf("dcsr", pattern)};
  for (const Layout& layout : layouts) {
    const Layout device = Gpu::Get()->Upload(layout);
    const Subject subject = {pattern, values, layout, device};
    for (const GpuCase& c : {GpuCase{.k = 1}, {.k = 1, .alpha = -2, .beta = 0.5, .padding = 1}}) {
      ExpectSpmm<float>(*Gpu::Get(), subject, c);
      ExpectSpmm<double>(*Gpu::Get(), subject, c);
      ExpectSpmm<Float16>(*Gpu::Get(), subject, c);
      ExpectSpmm<BFloat16>(*Gpu::Get(), subject, c);
    }
  }
}

/// One row of B in infinities: what it holds reaches only the rows of C that use it, whatever is
/// stored for the others; a stored zero times infinity is NaN. Near the largest number, nothing
/// becomes infinite before its time.
template <typename T, int64_t kK = 72>
void ExpectInfinities(const Pattern& pattern, bool allow_tf32) {
  constexpr int64_t kFirst = kK == 1 ? 0 : 8, kLast = kK == 1 ? 1 : 32;
  Gpu& gpu = *Gpu::Get();
  std::vector<T> values(pattern.nnz(), Stored<T>(1)), b(pattern.cols * kK, Stored<T>(1));
  const std::set<int32_t> odd = {3, 100, 411};
  for (const int32_t row : odd) {
    for (int64_t j = kFirst; j < kLast; ++j) b[row * kK + j] = Stored<T>(kInfinite);
  }
  if (std::is_same_v<T, float> && kK > 40) b[*odd.begin() * kK + 40] = Stored<T>(kLargest);
  std::vector<char> expected;  // 0: finite, 1: infinite, 2: NaN
  for (int64_t row = 0; row < pattern.rows; ++row) {
    char kind = 0;
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      if (!odd.contains(pattern.column_indices[p])) continue;
      if (row % 2 == 0) values[p] = Stored<T>(0);
      kind = row % 2 == 0 ? 2 : 1;
    }
    expected.push_back(kind);
  }
  const Buffer b_device = gpu.Upload(b.data(), b.size() * sizeof(T));
  const Problem problem = {.operation = Operation::kSpmm,
                           .type = ElementTypeOf<T>(),
                           .k = kK,
                           .device = DeviceKind::kCuda,
                           .allow_tf32 = allow_tf32};
  for (const char* pipeline : {"csr", "row_panels(force)", "aspt(panel=64,min_dense=2)", "dcsr",
                               "row_segments(force,min_heavy=2)"}) {
    const Layout host = LayoutOf(pipeline, pattern);
    const Layout layout = gpu.Upload(host);
    std::vector<T> slots(host.value_slots), c(pattern.rows * kK);
    PlaceValues(host, ElementTypeOf<T>(), values.data(), slots.data(), 1);
    const Buffer slots_device = gpu.Upload(slots.data(), slots.size() * sizeof(T));
    for (const SpmmKernel& kernel : SpmmKernels()) {
      if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != host.kind ||
          !kernel.supports(problem, layout) || kernel.from_library) {
        continue;
      }
      SCOPED_TRACE(std::string(kernel.name));
      Buffer result = gpu.Upload(c.data(), c.size() * sizeof(T));
      Workspace workspace(gpu, kernel.workspace(problem, layout, 1));
      ASSERT_TRUE(kernel
                      .run({.workspace = workspace.span(), .stream = gpu.stream().handle()},
                           problem,
                           {layout,
                            slots_device.data(),
                            {b_device.data(), pattern.cols, kK, kK},
                            {result.mutable_data(), pattern.rows, kK, kK}})
                      .ok());
      gpu.Download(c.data(), result.data(), c.size() * sizeof(T));
      int64_t wrong = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(c.size()); ++i) {
        const double got = Wide(c[i]);
        const int kind = std::isnan(got) ? 2 : std::isinf(got) ? 1 : 0;
        wrong += kind != (i % kK >= kFirst && i % kK < kLast ? expected[i / kK] : 0);
      }
      EXPECT_EQ(wrong, 0);
    }
  }
}

TEST_F(GpuKernels, KeepInfinitiesWhereTheyBelong) {
  for (const Pattern& pattern : {Rmat(9, 8, 13), Band(17'000, 3)}) {
    for (const ElementType type :
         {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
      SCOPED_TRACE(std::string(Name(type)));
      VisitFloat(type, [&]<typename T>(T) {
        ExpectInfinities<T>(pattern, false);
        ExpectInfinities<T, 1>(pattern, false);
      });
    }
    SCOPED_TRACE("tf32");
    ExpectInfinities<float>(pattern, true);
  }
}

TEST_F(GpuKernels, ComputeManyShortPanels) {
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < 17'000; ++row) {
    if (row % 1000 < 40) continue;  // whole panels without nonzeros
    for (int32_t j = 0; j < row % 7; ++j) entries.emplace_back(row, (row + j * j * 11) % 5000);
  }
  const Pattern pattern = FromCoordinates(17'000, 5000, std::move(entries));
  const std::vector<double> values = RandomValues(pattern.nnz(), 7);
  for (const char* pipeline : {"row_panels(force)", "group_rows > row_panels(force)",
                               "row_panels(force,rows=16)", "aspt(panel=128,min_dense=1)"}) {
    const Layout layout = LayoutOf(pipeline, pattern);
    const Layout device = Gpu::Get()->Upload(layout);
    for (const GpuCase& c : {GpuCase{.k = 65}, GpuCase{.k = 128, .alpha = 0.5, .beta = 3},
                             GpuCase{.k = 200, .padding = 3, .offset = 1}}) {
      ExpectAll(*Gpu::Get(), {pattern, values, layout, device}, c);
      if (HasFatalFailure()) return;
    }
  }
}

/// Some of the shared data; on a machine without it, from SPARSED_TEST_MATRICES: a folder of Matrix
/// Market files or what `sparsed_bench pack` made of them.
std::vector<NamedPattern> RealMatrices() {
  const std::set<std::string> names = {"vibrobox", "email-Enron", "delaunay_n16"};
  const char* const given = std::getenv("SPARSED_TEST_MATRICES");
  const std::string place = given != nullptr ? given : SPARSED_SHARED_DATA;
  std::vector<NamedPattern> matrices;
  if (given != nullptr && std::filesystem::is_regular_file(place)) {
    absl::StatusOr<std::vector<NamedPattern>> pack = ReadMatrixPack(place);
    Must(pack.status());
    matrices = *std::move(pack);
    std::erase_if(matrices, [&](const NamedPattern& m) { return !names.contains(m.name); });
    return matrices;
  }
  for (const std::string& name : names) {
    std::optional<Matrix> matrix = ReadMatrixMarket(place + "/" + name + ".mtx.gz");
    if (matrix) matrices.push_back({name, std::move(matrix->pattern)});
  }
  return matrices;
}

TEST_F(GpuKernels, ComputeRealMatrices) {
  const std::vector<NamedPattern> matrices = RealMatrices();
  if (matrices.empty()) GTEST_SKIP() << "no real matrices here";
  for (const NamedPattern& matrix : matrices) {
    SCOPED_TRACE(matrix.name);
    std::vector<GpuCase> cases = {{.k = 32}};
    if (matrix.pattern.rows < 20'000) cases.push_back({.k = 128});  // the reference takes its time
    Check(matrix.pattern, cases);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sparsed::test
