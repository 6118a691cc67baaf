// Random operations on an engine over a directory, each checked against a model in memory: matrices
// and buffers come and go, products of all kinds are begun, left waiting, cancelled and
// finished, memory is short now and then, what the disk has leaves it, and the engine is started
// anew.
//
// SPARSED_SEED=N repeats a run (but for what the preparation does meanwhile), SPARSED_STEPS=N makes
// it longer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/unit/engine/calls.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Numbers of a type, as doubles.
using Numbers = std::vector<double>;

/// What the engine should know of a matrix. Values are in canonical order.
struct ModelMatrix {
  test::Pattern pattern;
  ElementType type = ElementType::kF32;
  bool mirrored = false;  ///< the caller has each row's columns in descending order
  Numbers values, stored;
  uint64_t version = 0, stored_version = 0;
};

/// Of a buffer; the numbers without the gaps between rows.
struct ModelDense {
  DenseShape shape;
  Numbers elements;
  uint64_t put = 0;  ///< which Put it came from
};

/// A call that was begun, and what must become of it.
struct Begun {
  std::string text;
  std::shared_ptr<Call> call;
  std::shared_ptr<Result> result;
  std::vector<std::pair<uint32_t, Numbers>> arrays;  ///< to be sent
  ElementType type = ElementType::kF32;
  std::function<void(const Begun&)> check;  ///< of one that went well
  std::string writes;                       ///< the buffer that takes the result
  uint64_t put = 0;                         ///< which Put that came from
  std::string keeps;                        ///< the matrix that the result becomes
  bool replaces = false;                    ///< whatever has that name
  bool cancelled = false;
  bool cancelled_late = false;  ///< it may have ended before
};

constexpr int64_t kSizes[] = {1, 6, 33, 70};
constexpr int64_t kWidths[] = {1, 3, 8, 20};

/// The engine and its model.
class Machine {
 public:
  explicit Machine(uint64_t seed) : random_(seed) { Open(); }

  void Step();
  /// Ends what is under way, deletes everything and looks at what is left.
  void Finish();

 private:
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  template <typename T, size_t n>
  T OneOf(const T (&choices)[n]) {
    return choices[Below(n)];
  }
  std::string MatrixName() { return "m" + std::to_string(Below(6)); }
  std::string DenseName() { return "d" + std::to_string(Below(8)); }
  /// Numbers that the type has.
  Numbers Random(int64_t count, ElementType type) {
    Numbers numbers = test::RandomValues(count, random_());
    if (type == ElementType::kF32) {
      for (double& x : numbers) x = static_cast<float>(x);
    }
    return numbers;
  }

  void Open();
  void Upload();
  void Update();
  void DeleteMatrix();
  /// Rename or copy.
  void NameMatrix();
  void Put();
  void DeleteDense();
  void Spmm();
  void Sddmm();
  void Spgemm();
  void FinishOne();
  void FinishMany();
  void Prepare();
  void Restart();
  void Compare();

  test::Pattern RandomPattern();
  std::string SomeMatrix();
  /// A buffer of the shape, or numbers to send as array `array`.
  Numbers Operand(OperandSpec& spec, int64_t rows, int64_t cols, ElementType type, uint32_t array,
                  Begun& begun);
  std::string SomeHeld(int64_t rows, int64_t cols, ElementType type);
  /// Begins it, where the model has nothing against it.
  template <typename Spec>
  void Begin(const Spec& spec, Begun begun, const absl::Status& expected);
  /// Sends its operands and submits it, or cancels it some time.
  void Submit(Begun& begun);
  /// Waits for its end and looks at it.
  void Await(const Begun& begun);
  /// That `status` is what was expected; where memory was short it may be a refusal.
  bool Went(const absl::Status& status, const absl::Status& expected);
  uint64_t Newer(const std::string& name, uint64_t version);
  /// How it should end.
  absl::Status Expected(const Begun& begun) const;
  /// What was written, or streamed in `shape`: within the bounds of sums of `terms` products.
  void CheckDense(const Begun& begun, const DenseShape& shape, const Numbers& expected,
                  const Numbers& magnitudes, int64_t terms);

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  Observer observer_;
  std::unique_ptr<Engine> engine_;
  std::map<std::string, ModelMatrix> matrices_;
  std::map<std::string, ModelDense> dense_, stored_dense_;
  std::map<std::string, uint64_t> newest_;  ///< versions that matrices ever had
  std::vector<Begun> begun_;
  uint64_t puts_ = 0;
  bool short_of_memory_ = false;
};

/// Calls `f` with a zero of the type.
template <typename F>
decltype(auto) VisitWide(ElementType type, F&& f) {
  return type == ElementType::kF32 ? f(float{}) : f(double{});
}

template <typename T>
std::vector<T> Narrow(const Numbers& numbers) {
  return {numbers.begin(), numbers.end()};
}

template <typename T>
std::vector<T> Mirrored(const test::Pattern& pattern, std::vector<T> elements) {
  for (int64_t row = 0; row < pattern.rows; ++row) {
    std::reverse(elements.begin() + pattern.row_offsets[row],
                 elements.begin() + pattern.row_offsets[row + 1]);
  }
  return elements;
}

/// As the caller has them.
Numbers InCallersOrder(const ModelMatrix& matrix, const Numbers& canonical) {
  return matrix.mirrored ? Mirrored(matrix.pattern, canonical) : canonical;
}

Numbers WithGaps(const DenseShape& shape, const Numbers& elements) {
  Numbers spread(shape.elements(), 7.0);
  for (int64_t i = 0; i < shape.rows * shape.cols; ++i) {
    spread[i / shape.cols * shape.leading_dimension + i % shape.cols] = elements[i];
  }
  return spread;
}

Numbers WithoutGaps(const DenseShape& shape, const Numbers& spread) {
  Numbers elements;
  for (int64_t i = 0; i < shape.rows * shape.cols; ++i) {
    elements.push_back(spread[i / shape.cols * shape.leading_dimension + i % shape.cols]);
  }
  return elements;
}

Numbers NumbersOf(const absl::StatusOr<Array>& array) {
  EXPECT_TRUE(array.ok()) << array.status();
  if (!array.ok()) return {};
  return VisitWide(array->type, [&]<typename T>(T) {
    const auto elements = array->As<T>();
    return Numbers(elements.begin(), elements.end());
  });
}

/// Everything of the matrix, as its pattern, values and order say.
void ExpectSame(const Matrix& matrix, const ModelMatrix& model) {
  EXPECT_EQ(matrix.version(), model.version);
  EXPECT_EQ(matrix.type(), model.type);
  EXPECT_EQ(NumbersOf(matrix.Values()), model.values);
  const auto csr = matrix.pattern()->Csr();
  ASSERT_TRUE(csr.ok()) << csr.status();
  const CsrView view = ViewCsr(**csr);
  EXPECT_EQ(view.cols, model.pattern.cols);
  EXPECT_TRUE(std::ranges::equal(view.row_offsets, model.pattern.row_offsets));
  EXPECT_TRUE(std::ranges::equal(view.column_indices, model.pattern.column_indices));
}

void Machine::Open() {
  EngineOptions options;
  options.data_dir = directory_.path();
  options.host_memory_bytes = options.preparation_memory_bytes = int64_t{256} << 20;
  options.gpu = DeviceOptions{.memory_bytes = int64_t{520} << 20};  // where there is one
  options.scrub_interval_seconds = 0;
  options.execution.slots = 2;
  options.execution.batch_wait = std::chrono::microseconds(Chance(0.5) ? 200 : 0);
  options.preparation.trial_budget_ms = 5;
  options.preparation.default_signatures = {{Operation::kSpmm, false, ElementType::kF32, 8}};
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(options, observer_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  engine_ = *std::move(engine);
}

void Machine::Step() {
  // From any thread, under the budget's lock.
  short_of_memory_ = Chance(0.1);
  if (short_of_memory_) {
    engine_->budget().SetRefuse([seed = random_(), count = uint64_t{0}](size_t, MemoryUse) mutable {
      return std::mt19937_64(seed + count++)() % 8 == 0;
    });
  }
  // As if somebody needed the room.
  if (Chance(0.3)) {
    for (int64_t count = Below(30); count > 0; --count) engine_->budget().evictions()->EvictOne();
  }
  const int64_t turn = Below(100);
  if (turn < 9) {
    Upload();
  } else if (turn < 18) {
    Update();
  } else if (turn < 22) {
    Chance(0.6) ? DeleteMatrix() : NameMatrix();
  } else if (turn < 31) {
    Put();
  } else if (turn < 34) {
    DeleteDense();
  } else if (turn < 45) {
    Spmm();
  } else if (turn < 53) {
    Sddmm();
  } else if (turn < 62) {
    Spgemm();
  } else if (turn < 89) {
    FinishOne();
  } else if (turn < 92 || begun_.size() > 20) {
    FinishMany();
  } else if (turn < 95) {
    Prepare();
  }
  engine_->budget().SetRefuse(nullptr);
  short_of_memory_ = false;
  if (turn == 98) Compare();
  if (turn == 99 && Chance(0.5)) Restart();
}

bool Machine::Went(const absl::Status& status, const absl::Status& expected) {
  if (short_of_memory_ && absl::IsResourceExhausted(status)) return false;
  EXPECT_EQ(status.code(), expected.code()) << status;
  return status.ok();
}

uint64_t Machine::Newer(const std::string& name, uint64_t version) {
  EXPECT_GT(version, newest_[name]) << name;
  return newest_[name] = version;
}

test::Pattern Machine::RandomPattern() {
  const int64_t rows = OneOf(kSizes), cols = OneOf(kSizes);
  // Few, so that matrices share them.
  switch (Below(4)) {
    case 0:
      return test::Band(rows, 2);
    case 1:
      return test::FromCoordinates(rows, cols, {});
    case 2:
      return test::Uniform(rows, cols, (cols + 2) / 3, 5);
    default:
      return test::FromCoordinates(rows, cols,
                                   {{0, 0}, {rows - 1, cols - 1}, {rows / 2, 0}, {0, cols / 2}});
  }
}

void Machine::Upload() {
  const std::string name = MatrixName();
  SCOPED_TRACE("upload " + name);
  ModelMatrix model;
  model.pattern = RandomPattern();
  model.type = Chance(0.7) ? ElementType::kF32 : ElementType::kF64;
  model.mirrored = Chance(0.3);
  UploadHeader header = HeaderOf(name, model.pattern);
  header.type = model.type;
  header.sort = model.mirrored;
  header.replace = Chance(0.6);
  header.values_are_ones = Chance(0.1);
  for (const auto& [other, known] : matrices_) {  // its pattern need not be sent
    if (known.pattern.row_offsets != model.pattern.row_offsets ||
        known.pattern.column_indices != model.pattern.column_indices ||
        known.pattern.cols != model.pattern.cols || Chance(0.5)) {
      continue;
    }
    header.pattern_hash = engine_->catalog().Find("t", other).value()->pattern()->hash();
  }
  model.values = header.values_are_ones ? Numbers(model.pattern.nnz(), 1)
                                        : Random(model.pattern.nnz(), model.type);
  model.stored = model.values;
  const bool taken = matrices_.contains(name) && !header.replace;
  const absl::StatusOr<MatrixLease> sent = VisitWide(model.type, [&]<typename T>(T) {
    return Send(engine_->catalog(), header, model.pattern.row_offsets,
                model.mirrored ? Mirrored(model.pattern, model.pattern.column_indices)
                               : model.pattern.column_indices,
                Narrow<T>(InCallersOrder(model, model.values)));
  });
  if (!Went(sent.status(), taken ? absl::AlreadyExistsError("") : absl::OkStatus())) return;
  model.version = model.stored_version = Newer(name, (*sent)->version());
  EXPECT_TRUE((*sent)->durable());
  matrices_[name] = std::move(model);
  engine_->budget().SetRefuse(nullptr);  // the matrix is looked at
  ExpectSame(**sent, matrices_[name]);
}

void Machine::Update() {
  const std::string name = MatrixName();
  SCOPED_TRACE("update " + name);
  UpdateHeader header = {"t", name, ElementType::kF32, Chance(0.4), 0};
  const auto found = matrices_.find(name);
  absl::Status expected = absl::NotFoundError("");
  Numbers values;
  if (found != matrices_.end()) {
    expected = absl::OkStatus();
    header.type = found->second.type;
    values = Random(found->second.pattern.nnz(), header.type);
    if (Chance(0.2)) header.if_version = found->second.version;
    if (Chance(0.1)) {
      header.if_version = found->second.version + 1;
      expected = absl::AbortedError("");
    }
  }
  const auto update = [&]() -> absl::StatusOr<MatrixLease> {
    auto begun = engine_->catalog().BeginUpdate(header);
    if (!begun.ok()) return begun.status();
    const Numbers sent = InCallersOrder(found->second, values);
    const absl::Status fed =
        VisitWide(header.type, [&]<typename T>(T) { return Feed(**begun, 0, Narrow<T>(sent)); });
    if (!fed.ok()) return fed;
    return (*begun)->Finish(2);
  };
  const absl::StatusOr<MatrixLease> updated = update();
  if (!Went(updated.status(), expected)) return;
  ModelMatrix& model = found->second;
  model.values = values;
  model.version = Newer(name, (*updated)->version());
  EXPECT_EQ((*updated)->durable(), header.durable);
  if (header.durable) {
    model.stored = values;
    model.stored_version = model.version;
  }
  engine_->budget().SetRefuse(nullptr);  // the matrix is looked at
  ExpectSame(**updated, model);
}

void Machine::DeleteMatrix() {
  const std::string name = MatrixName();
  SCOPED_TRACE("delete " + name);
  const absl::Status deleted = engine_->catalog().Delete("t", name);
  const bool there = matrices_.contains(name);
  if (Went(deleted, there ? absl::OkStatus() : absl::NotFoundError(""))) matrices_.erase(name);
}

void Machine::NameMatrix() {
  const std::string name = MatrixName(), to = MatrixName();
  const bool copy = Chance(0.5), replace = copy && Chance(0.5);
  SCOPED_TRACE(fmt::format("{} {} {}", copy ? "copy" : "rename", name, to));
  Catalog& catalog = engine_->catalog();
  const absl::Status expected = !matrices_.contains(name) ? absl::NotFoundError("")
                                : name == to || (matrices_.contains(to) && !replace)
                                    ? absl::AlreadyExistsError("")
                                    : absl::OkStatus();
  const absl::StatusOr<MatrixLease> named =
      copy ? catalog.Copy("t", name, to, replace, 2) : catalog.Rename("t", name, to, 2);
  if (!Went(named.status(), expected)) return;
  ModelMatrix model = matrices_.at(name);
  // Whatever it was before, it is durable now.
  model.version = model.stored_version = Newer(to, (*named)->version());
  model.stored = model.values;
  EXPECT_TRUE((*named)->durable());
  if (!copy) matrices_.erase(name);
  matrices_.insert_or_assign(to, model);
  engine_->budget().SetRefuse(nullptr);  // the matrix is looked at
  ExpectSame(**named, model);
}

void Machine::Put() {
  const std::string name = DenseName();
  SCOPED_TRACE("put " + name);
  ModelDense model;
  model.shape.rows = OneOf(kSizes);
  model.shape.cols = OneOf(kWidths);
  model.shape.type = Chance(0.7) ? ElementType::kF32 : ElementType::kF64;
  // For a result of SDDMM.
  if (Chance(0.3) && !matrices_.empty()) {
    const ModelMatrix& matrix = matrices_[SomeMatrix()];
    model.shape = {matrix.pattern.nnz(), 1, 1, matrix.type};
  }
  model.shape.leading_dimension = model.shape.cols + (Chance(0.3) ? Below(5) : 0);
  const bool zeros = Chance(0.3), durable = Chance(0.3);
  const int64_t count = model.shape.rows * model.shape.cols;
  model.elements = zeros ? Numbers(count, 0) : Random(count, model.shape.type);
  model.put = ++puts_;
  const auto put = [&]() -> absl::StatusOr<HeldDenseLease> {
    auto begun = engine_->dense().BeginPut({"t", name, model.shape, zeros, durable});
    if (!begun.ok()) return begun.status();
    if (zeros) return (*begun)->Finish();
    const Numbers sent = WithGaps(model.shape, model.elements);
    const absl::Status fed = VisitWide(
        model.shape.type, [&]<typename T>(T) { return Feed(**begun, 0, Narrow<T>(sent)); });
    if (!fed.ok()) return fed;
    return (*begun)->Finish();
  };
  if (!Went(put().status(), absl::OkStatus())) return;
  dense_[name] = model;
  if (durable) {
    stored_dense_[name] = model;
  } else {
    stored_dense_.erase(name);
  }
}

void Machine::DeleteDense() {
  const std::string name = DenseName();
  SCOPED_TRACE("delete " + name);
  const absl::Status deleted = engine_->dense().Delete("t", name);
  const bool there = dense_.contains(name);
  if (!Went(deleted, there ? absl::OkStatus() : absl::NotFoundError(""))) return;
  dense_.erase(name);
  stored_dense_.erase(name);
}

std::string Machine::SomeMatrix() {
  if (matrices_.empty()) return "none";
  return std::next(matrices_.begin(), Below(static_cast<int64_t>(matrices_.size())))->first;
}

std::string Machine::SomeHeld(int64_t rows, int64_t cols, ElementType type) {
  std::vector<std::string> names;
  for (const auto& [name, held] : dense_) {
    if (held.shape.rows == rows && held.shape.cols == cols && held.shape.type == type) {
      names.push_back(name);
    }
  }
  return names.empty() ? "" : names[Below(static_cast<int64_t>(names.size()))];
}

Numbers Machine::Operand(OperandSpec& spec, int64_t rows, int64_t cols, ElementType type,
                         uint32_t array, Begun& begun) {
  if (Chance(0.6)) spec.held = SomeHeld(rows, cols, type);
  if (!spec.held.empty()) {
    begun.text += " with " + spec.held;
    return dense_[spec.held].elements;
  }
  const Numbers elements = Random(rows * cols, type);
  spec.shape = DenseShape{rows, cols, cols + (Chance(0.3) ? Below(5) : 0), type};
  spec.stream_array = array;
  begun.arrays.emplace_back(array, WithGaps(*spec.shape, elements));
  return elements;
}

void Machine::CheckDense(const Begun& begun, const DenseShape& shape, const Numbers& expected,
                         const Numbers& magnitudes, int64_t terms) {
  Numbers got;
  const std::string& held = begun.writes;
  if (held.empty()) {
    VisitWide(begun.type, [&]<typename T>(T) {
      const std::vector<T> elements = begun.result->Elements<T>();
      ASSERT_EQ(static_cast<int64_t>(elements.size()), shape.elements());
      got = WithoutGaps(shape, Numbers(elements.begin(), elements.end()));
    });
  } else {
    const HeldDenseLease now = engine_->dense().Find("t", held).value();
    got = WithoutGaps(dense_[held].shape, NumbersOf(now->elements->Get()));
    dense_[held].elements = got;
    EXPECT_FALSE(now->durable);
  }
  VisitWide(begun.type,
            [&]<typename T>(T) { ExpectSums<T>(Narrow<T>(got), expected, magnitudes, terms); });
}

void Machine::Spmm() {
  SpmmSpec spec;
  spec.tenant = "t";
  spec.matrix = Chance(0.95) ? SomeMatrix() : MatrixName();
  Begun begun;
  begun.text = "spmm of " + spec.matrix;
  const auto found = matrices_.find(spec.matrix);
  if (found == matrices_.end()) {
    spec.b.shape = DenseShape{1, 1, 1, ElementType::kF32};
    Begin(spec, std::move(begun), absl::NotFoundError(""));
    return;
  }
  const ModelMatrix s = found->second;
  begun.type = s.type;
  spec.transpose = Chance(0.4);
  spec.alpha = OneOf({1.0, -0.5});
  spec.beta = OneOf({0.0, 0.0, 1.0, -2.0});
  const int64_t in = spec.transpose ? s.pattern.rows : s.pattern.cols;
  const int64_t out = spec.transpose ? s.pattern.cols : s.pattern.rows;
  const int64_t k = OneOf(kWidths);
  const Numbers b = Operand(spec.b, in, k, s.type, 0, begun);
  Numbers c(out * k, 0);
  if (spec.beta != 0) c = Operand(spec.accumulate.emplace(), out, k, s.type, 1, begun);
  if (Chance(0.4)) spec.result.held = SomeHeld(out, k, s.type);
  if (spec.result.held.empty() && Chance(0.2)) spec.result_leading_dimension = k + Below(4);
  begun.writes = spec.result.held;
  Numbers magnitudes(out * k);
  reference::Spmm(s.pattern.view(), s.values.data(), spec.transpose, b.data(), k, k, spec.alpha,
                  spec.beta, c.data(), magnitudes.data());
  const int64_t pitch = spec.result_leading_dimension == 0 ? k : spec.result_leading_dimension;
  begun.check = [=, this, version = s.version, terms = in](const Begun& ended) {
    EXPECT_EQ(ended.result->end().version, version);
    CheckDense(ended, {out, k, pitch, ended.type}, c, magnitudes, terms);
  };
  Begin(spec, std::move(begun), absl::OkStatus());
}

void Machine::Sddmm() {
  SddmmSpec spec;
  spec.tenant = "t";
  spec.matrix = SomeMatrix();
  Begun begun;
  begun.text = "sddmm of " + spec.matrix;
  const auto found = matrices_.find(spec.matrix);
  if (found == matrices_.end()) return;
  const ModelMatrix s = found->second;
  begun.type = s.type;
  spec.unscaled = Chance(0.2);
  const int64_t k = OneOf(kWidths);
  const Numbers a = Operand(spec.a, s.pattern.rows, k, s.type, 0, begun);
  const Numbers b = Operand(spec.b, s.pattern.cols, k, s.type, 1, begun);
  if (Chance(0.5)) spec.result.held = SomeHeld(s.pattern.nnz(), 1, s.type);
  begun.writes = spec.result.held;
  Numbers expected(s.pattern.nnz()), magnitudes(s.pattern.nnz());
  reference::Sddmm(s.pattern.view(), spec.unscaled ? nullptr : s.values.data(), a.data(), k,
                   b.data(), k, k, expected.data(), magnitudes.data());
  expected = InCallersOrder(s, expected);
  magnitudes = InCallersOrder(s, magnitudes);
  begun.check = [=, this, version = s.version, nnz = s.pattern.nnz()](const Begun& ended) {
    EXPECT_EQ(ended.result->end().version, version);
    CheckDense(ended, {nnz, 1, 1, ended.type}, expected, magnitudes, k);
  };
  Begin(spec, std::move(begun), absl::OkStatus());
}

/// The matrix, or its transpose.
std::pair<test::Pattern, Numbers> Factor(const ModelMatrix& matrix, bool transpose) {
  if (!transpose) return {matrix.pattern, matrix.values};
  std::vector<int64_t> source;
  test::Pattern pattern = test::Transpose(matrix.pattern, &source);
  Numbers values;
  for (const int64_t from : source) values.push_back(matrix.values[from]);
  return {std::move(pattern), std::move(values)};
}

void Machine::Spgemm() {
  SpgemmSpec spec;
  spec.tenant = "t";
  spec.left = SomeMatrix();
  spec.right = SomeMatrix();
  const auto left = matrices_.find(spec.left), right = matrices_.find(spec.right);
  if (left == matrices_.end()) return;
  spec.transpose_left = Chance(0.3);
  spec.transpose_right = Chance(0.3);
  spec.semiring = OneOf({Semiring::kSumProduct, Semiring::kSumProduct, Semiring::kBoolean,
                         Semiring::kMinPlus, Semiring::kPlusPair});
  const auto [s, s_values] = Factor(left->second, spec.transpose_left);
  const auto [t, t_values] = Factor(right->second, spec.transpose_right);
  Begun begun;
  begun.text = "spgemm of " + spec.left + " and " + spec.right;
  begun.type = left->second.type;
  if (s.cols != t.rows || begun.type != right->second.type) {
    Begin(spec, std::move(begun), absl::InvalidArgumentError(""));
    return;
  }
  std::optional<test::Pattern> mask;
  for (const auto& [name, matrix] : matrices_) {
    if (matrix.pattern.rows != s.rows || matrix.pattern.cols != t.cols || Chance(0.8)) continue;
    spec.mask = name;
    mask = matrix.pattern;
  }
  spec.count_first = Chance(0.3);
  if (Chance(0.4)) spec.keep_as = MatrixName();
  spec.replace = begun.replaces = Chance(0.5);
  begun.keeps = spec.keep_as;
  const CsrView view = mask ? mask->view() : CsrView{};
  const reference::SparseResult product = reference::Spgemm(
      s.view(), s_values.data(), t.view(), t_values.data(), spec.semiring, mask ? &view : nullptr);
  const test::Pattern pattern{s.rows, t.cols, product.row_offsets, product.column_indices};
  begun.check = [=, this, terms = s.cols](const Begun& ended) {
    EXPECT_EQ(ended.result->end().nnz, pattern.nnz());
    ModelMatrix model{pattern, ended.type, false, {}, {}, 0, 0};
    MatrixLease kept;
    if (ended.keeps.empty()) {
      EXPECT_EQ(ended.result->row_offsets, pattern.row_offsets);
      EXPECT_EQ(ended.result->column_indices, pattern.column_indices);
    } else {
      kept = engine_->catalog().Find("t", ended.keeps).value();
      model.values = model.stored = NumbersOf(kept->Values());
      model.version = model.stored_version = Newer(ended.keeps, kept->version());
      ExpectSame(*kept, model);
      matrices_[ended.keeps] = model;
    }
    VisitWide(ended.type, [&]<typename T>(T) {
      ExpectSums<T>(kept == nullptr ? ended.result->Elements<T>() : Narrow<T>(model.values),
                    product.values, product.magnitudes, terms);
    });
  };
  const bool taken = matrices_.contains(spec.keep_as) && !spec.replace;
  Begin(spec, std::move(begun), taken ? absl::AlreadyExistsError("") : absl::OkStatus());
}

template <typename Spec>
void Machine::Begin(const Spec& spec, Begun begun, const absl::Status& expected) {
  SCOPED_TRACE("begin " + begun.text);
  // One call at a time may write a buffer.
  const bool written =
      !begun.writes.empty() &&
      std::ranges::any_of(begun_, [&](const Begun& other) { return other.writes == begun.writes; });
  if (!begun.writes.empty()) begun.put = dense_[begun.writes].put;
  begun.result = std::make_shared<Result>();
  absl::StatusOr<std::shared_ptr<Call>> call = engine_->executor().Begin(spec, begun.result);
  if (!Went(call.status(), written ? absl::AbortedError("") : expected)) return;
  begun.call = *std::move(call);
  if (Chance(0.5)) {
    begun_.push_back(std::move(begun));
  } else {
    Submit(begun);
    Await(begun);
  }
}

absl::Status Machine::Expected(const Begun& begun) const {
  if (!begun.writes.empty()) {
    const auto held = dense_.find(begun.writes);
    if (held == dense_.end()) return absl::NotFoundError("");
    if (held->second.put != begun.put) return absl::AbortedError("");
  }
  if (!begun.keeps.empty() && !begun.replaces && matrices_.contains(begun.keeps)) {
    return absl::AlreadyExistsError("");
  }
  return absl::OkStatus();
}

void Machine::Submit(Begun& begun) {
  begun.cancelled = Chance(0.1);
  absl::Status fed;
  for (const auto& [array, elements] : begun.arrays) {
    if (!fed.ok() || (begun.cancelled && Chance(0.5))) break;
    fed = VisitWide(begun.type, [&]<typename T>(T) {
      return FeedAndCommit(*begun.call, array, Narrow<T>(elements));
    });
  }
  if (!begun.cancelled && !fed.ok()) {
    begun.call->Fail(fed);
    return;
  }
  const bool runs = begun.call->complete();
  if (runs) begun.call->Submit();
  if (begun.cancelled) begun.call->Cancel();
  begun.cancelled_late = runs && begun.cancelled;
}

void Machine::Await(const Begun& begun) {
  SCOPED_TRACE("end " + begun.text);
  const absl::Status ended = begun.result->Wait();
  engine_->budget().SetRefuse(nullptr);  // the result is looked at
  absl::Status expected = Expected(begun);
  if (begun.cancelled && !(begun.cancelled_late && ended.code() == expected.code())) {
    expected = absl::CancelledError("");
  }
  if (Went(ended, expected)) begun.check(begun);
}

void Machine::FinishOne() {
  if (begun_.empty()) return;
  const auto one = begun_.begin() + Below(static_cast<int64_t>(begun_.size()));
  Begun begun = std::move(*one);
  begun_.erase(one);
  Submit(begun);
  Await(begun);
}

void Machine::FinishMany() {
  // Matrices that several of them become are whichever's ended last.
  const auto many = std::partition(begun_.begin(), begun_.end(),
                                   [](const Begun& begun) { return !begun.keeps.empty(); });
  for (auto begun = many; begun != begun_.end(); ++begun) Submit(*begun);
  for (auto begun = many; begun != begun_.end(); ++begun) Await(*begun);
  begun_.erase(many, begun_.end());
}

void Machine::Prepare() {
  const auto found = matrices_.find(SomeMatrix());
  if (found == matrices_.end()) return;
  std::vector<ProblemSignature> signatures;
  for (int64_t i = Below(3); i > 0; --i) {
    const bool spmm = Chance(0.7);
    signatures.push_back({spmm ? Operation::kSpmm : Operation::kSddmm, spmm && Chance(0.5),
                          found->second.type, OneOf({1, 8, 32})});
  }
  const absl::Status asked = engine_->preparation().Request(
      engine_->catalog().Find("t", found->first).value(), signatures, /*again=*/Chance(0.3));
  EXPECT_TRUE(asked.ok()) << asked;
}

void Machine::Compare() {
  std::vector<std::string> names;
  for (const MatrixLease& matrix : engine_->catalog().List("t", "")) {
    names.push_back(matrix->name());
    SCOPED_TRACE("compare " + matrix->name());
    ASSERT_TRUE(matrices_.contains(matrix->name()));
    ExpectSame(*matrix, matrices_[matrix->name()]);
  }
  EXPECT_EQ(names.size(), matrices_.size());
  names.clear();
  for (const HeldDenseLease& held : engine_->dense().List("t", "")) {
    names.push_back(held->name);
    SCOPED_TRACE("compare " + held->name);
    ASSERT_TRUE(dense_.contains(held->name));
    const ModelDense& model = dense_[held->name];
    EXPECT_EQ(held->shape.leading_dimension, model.shape.leading_dimension);
    EXPECT_EQ(WithoutGaps(model.shape, NumbersOf(held->elements->Get())), model.elements);
  }
  EXPECT_EQ(names.size(), dense_.size());
  EXPECT_EQ(engine_->executor().in_flight(), static_cast<int64_t>(begun_.size()));
}

void Machine::Restart() {
  engine_->executor().Close();
  for (const Begun& begun : begun_) {
    SCOPED_TRACE("restart during " + begun.text);
    EXPECT_TRUE(absl::IsUnavailable(begun.result->Wait()));
  }
  begun_.clear();
  engine_.reset();
  for (auto& [name, matrix] : matrices_) {
    matrix.values = matrix.stored;
    matrix.version = matrix.stored_version;
  }
  dense_ = stored_dense_;
  for (auto& [name, held] : dense_) held.put = ++puts_;
  Open();
  Compare();
}

void Machine::Finish() {
  while (!begun_.empty()) FinishOne();
  Compare();
  for (const auto& [name, matrix] : matrices_) {
    EXPECT_TRUE(engine_->catalog().Delete("t", name).ok());
  }
  for (const auto& [name, held] : dense_) EXPECT_TRUE(engine_->dense().Delete("t", name).ok());
  EXPECT_TRUE(Eventually([&] { return engine_->preparation().pending() == 0; }));
  while (engine_->budget().evictions()->EvictOne()) {
  }
  const Budget& budget = engine_->budget();
  for (const MemoryUse use :
       {MemoryUse::kMatrices, MemoryUse::kLayouts, MemoryUse::kBuffers, MemoryUse::kPreparation}) {
    EXPECT_TRUE(Eventually([&] { return budget.used(use) == 0; }))
        << budget.used(use) << " bytes for " << Name(use);
  }
  EXPECT_EQ(engine_->catalog().patterns(), 0);
  EXPECT_EQ(engine_->executor().in_flight(), 0);
}

TEST(RandomOperations, AgreeWithTheModel) {
  const uint64_t seed = FromEnvironment("SPARSED_SEED", std::random_device()());
  const uint64_t steps = FromEnvironment("SPARSED_STEPS", 800);
  std::printf("SPARSED_SEED=%llu SPARSED_STEPS=%llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(steps));
  Machine machine(seed);
  for (uint64_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step << " of seed " << seed);
    machine.Step();
  }
  if (!testing::Test::HasFailure()) machine.Finish();
}

}  // namespace
}  // namespace sparsed::engine
