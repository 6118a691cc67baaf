// SpMM of a matrix in two shards whose operand and result stay on the nodes: uploads it, multiplies
// so many times, and prints the seconds of each product and a sum of the first one's result as a
// JSON object. Results are the next operands, as in an iteration, so that rows are exchanged for
// each. Elements of the first operand and the sum are as tests/bench/mpi has them, which compares.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "sparsed/client.h"

namespace {

using namespace sparsed;  // NOLINT: a program of one file

struct Arguments {
  std::string server, folder;
  int64_t k = 32, cut = 0;
  int times = 20;
  bool f32 = false;
};

template <typename T>
std::vector<T> Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::vector<T> values(static_cast<size_t>(in.tellg()) / sizeof(T));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

template <typename T>
absl::Status Measure(const Arguments& arguments, ValueType type) {
  const auto offsets = Read<int64_t>(arguments.folder + "/offsets.i64");
  const auto columns = Read<int32_t>(arguments.folder + "/columns.i32");
  const auto exact = Read<double>(arguments.folder + "/values.f64");
  const std::vector<T> values(exact.begin(), exact.end());
  const auto rows = static_cast<int64_t>(offsets.size()) - 1;
  const absl::StatusOr<Client> client = Client::Connect(arguments.server);
  if (!client.ok()) return client.status();
  UploadOptions upload{.replace = true};
  upload.shards = 2;
  std::vector<int32_t> partition(static_cast<size_t>(rows), 1);
  std::fill_n(partition.begin(), std::min(arguments.cut, rows), 0);
  upload.partition = partition;
  upload.expected = {{.operation = Operation::kSpmm, .k = arguments.k}};
  const absl::StatusOr<Matrix> matrix =
      client->Upload("bench",
                     {.rows = rows,
                      .cols = rows,
                      .row_offsets = std::span<const int64_t>(offsets),
                      .column_indices = columns,
                      .values = std::span<const T>(values)},
                     upload);
  if (!matrix.ok()) return matrix.status();
  if (absl::Status ready = matrix->WaitReady(); !ready.ok()) return ready;
  const int64_t k = arguments.k;
  std::vector<T> b(static_cast<size_t>(rows * k)), c(b.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      b[static_cast<size_t>(i * k + j)] =
          static_cast<T>(static_cast<double>((i * 7 + j * 3) % 11 - 5) / 8);
    }
  }
  const PutOptions put{.rows_of = "bench"};
  const auto x = client->PutDense("x", DenseView(b.data(), rows, k), put);
  if (!x.ok()) return x.status();
  const auto y = client->PutZeros("y", type, rows, k, put);
  if (!y.ok()) return y.status();
  std::vector<double> seconds;
  std::string plan;
  double kernel = 0, before = 0, sum = 0, alpha = 1;
  for (const T value : b) before += std::abs(static_cast<double>(value));
  for (int i = 0; i < arguments.times + 1; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    const absl::StatusOr<ComputeResult> done = i % 2 == 0 ? matrix->Spmm(*x, *y, {.alpha = alpha})
                                                          : matrix->Spmm(*y, *x, {.alpha = alpha});
    if (!done.ok()) return done.status();
    if (i == 0) {
      // The first plans and connects. The others keep the size of what it makes of b.
      const auto read = y->Read(MutableDenseView(c.data(), rows, k));
      if (!read.ok()) return read.status();
      for (const T value : c) sum += std::abs(static_cast<double>(value));
      alpha = before / sum;
      continue;
    }
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    plan = done->plan;
    kernel = std::chrono::duration<double>(done->timings.kernel).count();
  }
  fmt::print("{{\"seconds\": [{}], \"sum\": {}, \"kernel_seconds\": {}, \"plan\": \"{}\"}}\n",
             fmt::join(seconds, ", "), sum, kernel, plan);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("SpMM of a matrix in shards, operand and result held");
  Arguments arguments;
  app.add_option("--server", arguments.server, "A node")->required();
  app.add_option("--csr", arguments.folder, "A folder with offsets.i64, columns.i32, values.f64")
      ->required();
  app.add_option("--k", arguments.k, "Columns of the operand")->capture_default_str();
  app.add_option("--cut", arguments.cut, "The first row of the second shard")->required();
  app.add_option("--times", arguments.times, "Products")->capture_default_str();
  app.add_flag("--f32", arguments.f32, "In f32, not f64");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = arguments.f32 ? Measure<float>(arguments, ValueType::kF32)
                                            : Measure<double>(arguments, ValueType::kF64);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.ToString());
  return 1;
}
