#include "tests/bench/gpu/spgemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/kernel_table.h"
#include "tests/bench/gpu/cusparse_spgemm.h"
#include "tests/product_formats.h"

namespace sparsed::test {
namespace {

using Json = nlohmann::ordered_json;

/// C on the device.
struct Result {
  int64_t products = 0;
  int64_t nnz = 0;
  size_t peak_bytes = 0;  ///< of all that was allocated, which is C and what only serves to make it
  Buffer row_begin, columns, values;
};

/// Counts what a kernel takes.
class CountedMemory final : public MemorySource {
 public:
  explicit CountedMemory(MemorySource& from) : from_(from) {}
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    bytes_ += bytes;
    return from_.Allocate(bytes);
  }
  size_t bytes() const { return bytes_; }

 private:
  MemorySource& from_;
  size_t bytes_ = 0;
};

template <typename T>
T* As(Buffer& buffer) {
  return reinterpret_cast<T*>(buffer.mutable_data());
}

/// S, T and a kernel.
struct Multiplication {
  Device& device;
  const SpgemmKernel& kernel;
  Problem problem;
  SpgemmArguments arguments;

  int64_t rows() const { return arguments.left.rows; }

  /// Everything from CSR to CSR. `phases`, if not null, receives the milliseconds of preparation
  /// (if there is one), analysis, symbolic and numeric phase. FAILED_PRECONDITION: the matrices
  /// don't suit the kernel.
  absl::StatusOr<Result> Run(std::vector<double>* phases) {
    absl::Status status;
    CountedMemory memory(device);  // until the end, nothing is given back
    const auto allocate = [&](size_t bytes) {
      absl::StatusOr<Buffer> buffer = memory.Allocate(bytes);
      if (!buffer.ok()) {
        if (status.ok()) status = buffer.status();
        return Buffer();
      }
      return *std::move(buffer);
    };
    const auto phase = [&](const std::function<absl::Status()>& work) {
      if (!status.ok()) return;
      if (phases == nullptr) {
        status = work();
        return;
      }
      const absl::StatusOr<double> ms = device.Milliseconds(work);
      status = ms.status();
      if (ms.ok()) phases->push_back(*ms);
    };
    const auto words = [](int64_t count) { return static_cast<size_t>(count) * sizeof(int64_t); };
    const absl::StatusOr<size_t> sum_bytes = cuda::RunningSumWorkspace(rows());
    if (!sum_bytes.ok()) return sum_bytes.status();
    Result result;
    Buffer counts = allocate(words(rows()));
    Buffer products = allocate(words(1));
    result.row_begin = allocate(words(rows() + 1));
    Buffer workspace =
        allocate(std::max(*sum_bytes, kernel.workspace(problem, arguments, /*threads=*/1)));
    if (!status.ok()) return status;
    Context context = device.ContextWith({workspace.mutable_data(), workspace.size()});
    std::shared_ptr<void> prepared;
    if (kernel.prepare != nullptr) {
      phase([&] {
        absl::StatusOr<std::shared_ptr<void>> made =
            kernel.prepare(context, problem, arguments, memory);
        if (made.ok()) prepared = *std::move(made);
        return made.status();
      });
      context.prepared = prepared.get();
    }
    const std::span<int64_t> row_nnz = {As<int64_t>(counts), static_cast<size_t>(rows())};
    phase([&] { return kernel.analyse(context, arguments, row_nnz, As<int64_t>(products)); });
    phase([&] { return kernel.symbolic(context, arguments, {0, rows()}, row_nnz); });
    if (status.ok()) {
      status = cuda::RunningSum(context, row_nnz.data(), rows(), As<int64_t>(result.row_begin));
    }
    if (status.ok()) {
      status = device.Copy(&result.nnz, result.row_begin.data() + words(rows()), words(1));
    }
    if (status.ok()) status = device.Copy(&result.products, products.data(), words(1));
    if (status.ok()) status = device.Finish();
    if (!status.ok()) return status;
    result.columns = allocate(static_cast<size_t>(result.nnz) * sizeof(int32_t));
    result.values = allocate(static_cast<size_t>(result.nnz) * SizeOf(problem.type));
    phase([&] {
      return kernel.numeric(context, problem, arguments, {0, rows()},
                            {As<int64_t>(result.row_begin), static_cast<size_t>(rows() + 1)},
                            As<int32_t>(result.columns), result.values.mutable_data(), row_nnz);
    });
    if (!status.ok()) return status;
    result.peak_bytes = memory.bytes();
    return result;
  }
};

/// The operands on the host, values of type T.
template <typename T>
struct Operands {
  const Pattern& s;
  Pattern t;
  std::vector<T> s_values, t_values;

  /// S times `other`, or else S^T or S.
  Operands(const Pattern& pattern, const Pattern* other, bool transposed) : s(pattern) {
    const std::vector<double> values = RandomValues(s.nnz(), 7);
    s_values.assign(values.begin(), values.end());
    if (other != nullptr) {
      t = *other;
      const std::vector<double> others = RandomValues(t.nnz(), 8);
      t_values.assign(others.begin(), others.end());
      return;
    }
    if (!transposed) {
      t = s;
      t_values = s_values;
      return;
    }
    std::vector<int64_t> source;
    t = Transpose(s, &source);
    for (const int64_t p : source) t_values.push_back(s_values[p]);
  }

  /// Whether rows here and there, the one of most products among them, are what they should be.
  absl::StatusOr<bool> AreRight(Device& device, Result& result) const {
    std::vector<int64_t> row_begin(s.rows + 1);
    absl::Status status =
        device.Copy(row_begin.data(), result.row_begin.data(), row_begin.size() * sizeof(int64_t));
    if (status.ok()) status = device.Finish();
    if (!status.ok()) return status;
    std::vector<int64_t> rows = {0};
    int64_t most = -1;
    for (int64_t row = 0; row < s.rows; ++row) {
      int64_t products = 0;
      for (int64_t j = s.row_offsets[row]; j < s.row_offsets[row + 1]; ++j) {
        const int32_t k = s.column_indices[j];
        products += t.row_offsets[k + 1] - t.row_offsets[k];
      }
      if (products > most) rows[0] = row;
      most = std::max(most, products);
    }
    constexpr int64_t kRows = 200;
    for (int64_t i = 0; i < kRows; ++i) rows.push_back(i * (s.rows - 1) / kRows);
    std::vector<double> sums(t.cols), magnitudes(t.cols);
    for (const int64_t row : rows) {
      std::vector<int32_t> expected;
      for (int64_t j = s.row_offsets[row]; j < s.row_offsets[row + 1]; ++j) {
        const int32_t k = s.column_indices[j];
        for (int64_t q = t.row_offsets[k]; q < t.row_offsets[k + 1]; ++q) {
          const int32_t column = t.column_indices[q];
          const double product = static_cast<double>(s_values[j]) * t_values[q];
          // Every product but zero leaves a trace here.
          if (magnitudes[column] == 0) expected.push_back(column);
          sums[column] += product;
          magnitudes[column] += std::abs(product) + std::numeric_limits<double>::min();
        }
      }
      std::sort(expected.begin(), expected.end());
      const int64_t nnz = row_begin[row + 1] - row_begin[row];
      if (nnz != static_cast<int64_t>(expected.size())) return false;
      std::vector<int32_t> columns(nnz);
      std::vector<T> values(nnz);
      status = device.Copy(columns.data(), As<int32_t>(result.columns) + row_begin[row],
                           columns.size() * sizeof(int32_t));
      if (status.ok()) {
        status = device.Copy(values.data(), As<T>(result.values) + row_begin[row],
                             values.size() * sizeof(T));
      }
      if (status.ok()) status = device.Finish();
      if (!status.ok()) return status;
      if (columns != expected) return false;
      const auto terms = static_cast<double>(s.row_offsets[row + 1] - s.row_offsets[row] + 2);
      for (int64_t i = 0; i < nnz; ++i) {
        const double bound = magnitudes[columns[i]] * terms * std::numeric_limits<T>::epsilon() +
                             std::numeric_limits<T>::min();
        if (!(std::abs(values[i] - sums[columns[i]]) <= bound)) return false;
      }
      for (const int32_t column : expected) sums[column] = magnitudes[column] = 0;
    }
    return true;
  }
};

/// Brings them to the device. `square`: both are one.
absl::Status PlaceFormats(Device& device, const SpgemmKernel& kernel, bool square,
                          ProductFormats& formats) {
  const auto place = [&](Layout& layout, Array& values) {
    absl::StatusOr<Layout> there = device.Upload(layout);
    if (!there.ok()) return there.status();
    absl::StatusOr<Buffer> values_there = device.Upload(values.buffer.data(), values.bytes());
    if (!values_there.ok()) return values_there.status();
    layout = *std::move(there);
    values.buffer = *std::move(values_there);
    return absl::OkStatus();
  };
  if (kernel.layout_kind == kCsr) return absl::OkStatus();
  if (absl::Status s = place(formats.right, formats.right_values); !s.ok()) return s;
  if (!kernel.left_too) {
    formats.left = {};
    return absl::OkStatus();
  }
  if (!square) return place(formats.left, formats.left_values);
  formats.left = formats.right;
  formats.left_values = formats.right_values;
  return absl::OkStatus();
}

/// Of what a kernel reads besides CSR. `square`: both factors are one.
int64_t LayoutBytes(const ProductFormats& formats, bool square) {
  const auto bytes = [](const Layout& layout, const Array& values) {
    return layout.bytes() + static_cast<int64_t>(values.bytes());
  };
  const int64_t right = bytes(formats.right, formats.right_values);
  return square ? right : right + bytes(formats.left, formats.left_values);
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// cuSPARSE's median; 0 if it is not here, does not take the matrices or finds no memory.
struct Rival {
  double ms = 0;
  int64_t nnz = 0;
};
absl::StatusOr<Rival> MeasureCusparse(Device& device, const Settings& settings, Schedule& schedule,
                                      const Problem& problem, const SpgemmArguments& arguments,
                                      const Pattern& s, const Pattern& t) {
  Rival rival;
  const auto narrow = [&](const Pattern& pattern) {
    const std::vector<int32_t> offsets(pattern.row_offsets.begin(), pattern.row_offsets.end());
    return device.Upload(offsets.data(), offsets.size() * sizeof(int32_t));
  };
  absl::StatusOr<Buffer> s_offsets = narrow(s), t_offsets = narrow(t);
  if (!s_offsets.ok()) return s_offsets.status();
  if (!t_offsets.ok()) return t_offsets.status();
  const int rounds = std::min(settings.rounds, 3);
  std::vector<double> times;
  for (int round = 0; round <= rounds && !schedule.over(); ++round) {
    absl::StatusOr<int64_t> nnz = 0;
    const absl::StatusOr<double> ms = device.Milliseconds([&] {
      nnz = CusparseSpgemm(device, problem, arguments, As<int32_t>(*s_offsets),
                           As<int32_t>(*t_offsets));
      return nnz.status();
    });
    if (!ms.ok()) {
      schedule.LeaveOut(fmt::format("cuSPARSE: {}", std::string(ms.status().message())));
      return Rival();
    }
    rival.nnz = *nnz;
    if (round > 0) times.push_back(*ms);  // the first one warms up
  }
  if (!times.empty()) rival.ms = Median(times);
  return rival;
}

template <typename T>
absl::StatusOr<int> MeasureType(Device& device, const Settings& settings, Schedule& schedule,
                                const NamedPattern& matrix, const NamedPattern* other) {
  const bool transposed =
      settings.operations.front() == "spgemm^T" || matrix.pattern.rows != matrix.pattern.cols;
  const bool square = other == nullptr && !transposed;
  const Operands<T> operands(matrix.pattern, other == nullptr ? nullptr : &other->pattern,
                             transposed);
  absl::Status status;
  const auto upload = [&]<typename E>(const std::vector<E>& array) {
    absl::StatusOr<Buffer> buffer = device.Upload(array.data(), array.size() * sizeof(E));
    if (buffer.ok()) return *std::move(buffer);
    status = buffer.status();
    return Buffer();
  };
  Buffer s_offsets = upload(operands.s.row_offsets), s_columns = upload(operands.s.column_indices),
         s_values = upload(operands.s_values);
  Buffer others[3];
  if (!square) {
    others[0] = upload(operands.t.row_offsets);
    others[1] = upload(operands.t.column_indices);
    others[2] = upload(operands.t_values);
  }
  if (!status.ok()) return status;
  Buffer& t_offsets = square ? s_offsets : others[0];
  Buffer& t_columns = square ? s_columns : others[1];
  Buffer& t_values = square ? s_values : others[2];
  size_t operand_bytes = s_offsets.size() + s_columns.size() + s_values.size();
  for (const Buffer& other : others) operand_bytes += other.size();
  const auto view = [](const Pattern& pattern, Buffer& offsets, Buffer& columns) -> CsrView {
    return {pattern.rows,
            pattern.cols,
            {As<int64_t>(offsets), pattern.row_offsets.size()},
            {As<int32_t>(columns), pattern.column_indices.size()},
            {}};
  };
  const Problem problem = {
      .operation = Operation::kSpgemm, .type = ElementTypeOf<T>(), .device = device.kind()};
  const SpgemmArguments arguments = {view(operands.s, s_offsets, s_columns), s_values.data(),
                                     view(operands.t, t_offsets, t_columns), t_values.data()};
  const absl::StatusOr<Rival> rival =
      MeasureCusparse(device, settings, schedule, problem, arguments, operands.s, operands.t);
  if (!rival.ok()) return rival.status();
  int wrong = 0;
  for (const SpgemmKernel& kernel : SpgemmKernels()) {
    const bool named = std::any_of(
        settings.kernels.begin(), settings.kernels.end(),
        [&](const std::string& part) { return kernel.name.find(part) != std::string_view::npos; });
    if (kernel.device != device.kind() || !kernel.supports(problem)) continue;
    if (!settings.kernels.empty() && !named) continue;
    if (schedule.over()) {
      schedule.LeaveOut(fmt::format("{} {}: no time", matrix.name, kernel.name));
      continue;
    }
    // As a server has them: made and placed once, whatever the number of products.
    BuildContext building;
    building.threads = 8;
    building.memory = &HeapMemory();
    absl::StatusOr<ProductFormats> formats = MakeFormats(
        kernel, problem,
        {operands.s.view(), operands.s_values.data(), operands.t.view(), operands.t_values.data()},
        building);
    if (absl::IsFailedPrecondition(formats.status())) continue;
    if (!formats.ok()) return formats.status();
    if (absl::Status placed = PlaceFormats(device, kernel, square, *formats); !placed.ok()) {
      return placed;
    }
    SpgemmArguments of_kernel = arguments;
    formats->AddTo(of_kernel);
    Multiplication multiplication = {device, kernel, problem, of_kernel};
    std::vector<double> times, phases;
    // The first round warms up, and is the one that is looked at.
    absl::StatusOr<Result> result = multiplication.Run(nullptr);
    if (absl::IsFailedPrecondition(result.status())) continue;
    if (!result.ok()) return result.status();
    const absl::StatusOr<bool> right = operands.AreRight(device, *result);
    if (!right.ok()) return right.status();
    wrong += !*right;
    for (int round = 0; round < settings.rounds; ++round) {
      result = Result();
      const absl::StatusOr<double> ms = device.Milliseconds([&] {
        result = multiplication.Run(nullptr);
        return result.status();
      });
      if (!ms.ok()) return ms.status();
      times.push_back(*ms);
    }
    result = Result();
    result = multiplication.Run(&phases);
    if (!result.ok()) return result.status();
    const double ms = Median(times);
    const double bytes =
        static_cast<double>(operands.s.nnz() + operands.t.nnz() + result->nnz) *
            (sizeof(int32_t) + sizeof(T)) +
        static_cast<double>(2 * operands.s.rows + operands.t.rows + 3) * sizeof(int64_t);
    const double roofline_ms = bytes / settings.copy_rate / 1e6;
    Json line = {{"operation", transposed ? "spgemm^T" : "spgemm"},
                 {"matrix", matrix.name},
                 {"rows", operands.s.rows},
                 {"cols", operands.t.cols},
                 {"nnz", operands.s.nnz()},
                 {"type", Name(problem.type)},
                 {"kernel", kernel.name},
                 {"products", result->products},
                 {"nnz_c", result->nnz},
                 {"ms", ms},
                 {"ms_min", *std::min_element(times.begin(), times.end())},
                 {"phases_ms", phases},
                 {"gflops", 2e-6 * static_cast<double>(result->products) / ms},
                 {"floor_ms", roofline_ms},
                 {"floor_share", roofline_ms / ms},
                 {"operand_bytes", operand_bytes},
                 {"layout_bytes", LayoutBytes(*formats, square)},
                 {"peak_bytes", result->peak_bytes},
                 {"right", *right}};
    if (other != nullptr) line["right_matrix"] = other->name;
    if (rival->ms > 0) {
      line["cusparse_ms"] = rival->ms;
      line["ratio"] = rival->ms / ms;
      line["cusparse_nnz_c"] = rival->nnz;
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    std::fprintf(
        stderr, "%s %s %s: %.3f ms, %.0f Mproducts to %.0f M, %.0f %% of the roofline%s\n",
        matrix.name.c_str(), std::string(kernel.name).c_str(),
        std::string(Name(problem.type)).c_str(), ms, static_cast<double>(result->products) / 1e6,
        static_cast<double>(result->nnz) / 1e6, 100 * roofline_ms / ms, *right ? "" : ", WRONG");
  }
  return wrong;
}

}  // namespace

absl::StatusOr<int> MeasureSpgemm(Device& device, const Settings& settings, Schedule& schedule,
                                  const NamedPattern& matrix, const NamedPattern* other) {
  int wrong = 0;
  for (const std::string& type : settings.types) {
    if (type != "f32" && type != "f64") continue;
    const absl::StatusOr<int> result =
        type == "f64" ? MeasureType<double>(device, settings, schedule, matrix, other)
                      : MeasureType<float>(device, settings, schedule, matrix, other);
    if (!result.ok()) return result;
    wrong += *result;
  }
  return wrong;
}

}  // namespace sparsed::test
