// What transports and the request lifecycle cost, against a running server. A JSON line a result on
// standard output.
//
//   bench_service bare-server --listen=127.0.0.1:7480 &  (or a Unix socket)
//   bench_service streaming --server=127.0.0.1:7470 --bare=127.0.0.1:7480
//   bench_service shared    --server=unix:/run/sparsed.sock --megabytes=64 --row-nnz=16 [--ring]
//   bench_service attached  --server=unix:/run/sparsed.sock --rows=1000000 --k=128 [--gpu=0]
//   bench_service shared_device --server=unix:/run/sparsed.sock --rows=1000000 --k=128 --gpu=0
//   bench_service chain     --server=unix:/run/sparsed.sock --steps=10 [--gpu=0]
//   bench_service heads     --server=unix:/run/sparsed.sock --rows=100000 --heads=8 --k=32
//   bench_service latency   --server=unix:/run/sparsed.sock [--spin=50] [--gpu=0]
//     (the server's --ring-spin: likewise)
//   bench_service held      --server=unix:/run/sparsed.sock --bare=unix:/run/bare.sock
//   bench_service spgemm    --server=unix:/run/sparsed.sock
//   bench_service crowd     --server=127.0.0.1:7470 --clients=16 --k=128
//   bench_service batch     --server=unix:/run/sparsed.sock --clients=16 --matrix=cora.mtx
//   bench_service soak      --server=127.0.0.1:7470 --clients=64 --seconds=60
//   bench_service plans     --server=127.0.0.1:7470 --pack=matrices.xz --generated=all
#include <sparsed/attached.h>
#include <sparsed/chain.h>
#include <sparsed/client.h>
#include <sparsed/gpu_memory.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/bare_kernel.h"
#include "tests/bench/bare_stream.h"
#include "tests/bench/patterns.h"

namespace sparsed::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

Client Connect(const std::string& address, const ClientOptions& options = {}) {
  absl::StatusOr<Client> client = Client::Connect(address, options);
  Require(client.status());
  return *std::move(client);
}

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double Quantile(std::vector<double> values, double q) {
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

/// n x n with `row_nnz` random columns in each row; 1: the diagonal.
CsrMatrix Random(int64_t n, int64_t row_nnz, uint64_t seed) {
  CsrMatrix s;
  s.rows = s.cols = n;
  s.row_offsets = {0};
  std::mt19937_64 random(seed);
  for (int64_t row = 0; row < n; ++row) {
    std::vector<int32_t> columns = {static_cast<int32_t>(row)};
    while (static_cast<int64_t>(columns.size()) < row_nnz)
      columns.push_back(static_cast<int32_t>(random() % n));
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    s.column_indices.insert(s.column_indices.end(), columns.begin(), columns.end());
    s.row_offsets.push_back(s.nnz());
  }
  s.values = std::vector<float>(s.column_indices.size(), 1.0F);
  return s;
}

CsrMatrix Ones(PlainPattern pattern) {
  CsrMatrix s;
  s.rows = pattern.rows;
  s.cols = pattern.cols;
  s.values = std::vector<float>(pattern.column_indices.size(), 1.0F);
  s.row_offsets = std::move(pattern.row_offsets);
  s.column_indices = std::move(pattern.column_indices);
  return s;
}

/// `k`: the width that is asked for later, so that nothing is tried meanwhile.
Matrix Upload(const Client& client, const std::string& name, const CsrMatrix& s, int64_t k) {
  UploadOptions options;
  options.replace = true;
  options.expected = {{Operation::kSpmm, false, k}};
  absl::StatusOr<Matrix> matrix = client.Upload(name, s.View(), options);
  Require(matrix.status());
  Require(matrix->WaitReady());
  return *std::move(matrix);
}

/// An operand in and a result out, with as little multiplication as there can be (a diagonal), over
/// so many streams, turn by turn with the same bytes bare over one.
int Streaming(const std::string& server, const std::string& bare, int64_t megabytes, int runs,
              const std::vector<int>& streams) {
  constexpr int64_t kWidth = 256;
  const int64_t n = (megabytes << 20) / kWidth / static_cast<int64_t>(sizeof(float));
  const Client client = Connect(server);
  const Matrix diagonal = Upload(client, "bench-diagonal", Random(n, 1, 1), kWidth);
  std::vector<float> b(n * kWidth, 1.0F), c(n * kWidth);
  const auto bytes = static_cast<int64_t>(b.size() * sizeof(float));
  struct Measured {
    std::optional<Client> client;
    std::vector<double> ours;
    std::vector<Timings> timings;
  };
  std::vector<Measured> measured(streams.size());
  std::vector<double> theirs;
  for (size_t i = 0; i < streams.size(); ++i) {
    absl::StatusOr<Client> connected = Client::Connect(server, {.streams = streams[i]});
    Require(connected.status());
    measured[i].client = *std::move(connected);
  }
  // All warm up; the first request opens the other streams.
  constexpr int kWarm = 2;
  for (int run = 0; run < runs + kWarm; ++run) {
    for (Measured& of : measured) {
      const Matrix matrix = of.client->MatrixNamed("bench-diagonal");
      std::fill(c.begin(), c.end(), 0.0F);
      const auto begin = Clock::now();
      absl::StatusOr<ComputeResult> result =
          matrix.Spmm(DenseView(b.data(), n, kWidth), MutableDenseView(c.data(), n, kWidth));
      const double milliseconds = MillisecondsSince(begin);
      Require(result.status());
      if (c != b) {
        std::cerr << "the diagonal changed the operand\n";
        return 1;
      }
      if (run < kWarm) continue;
      of.timings.push_back(result->timings);
      of.ours.push_back(milliseconds);
    }
    const double other = BareStreamMilliseconds(bare, bytes, bytes);
    if (run >= kWarm) theirs.push_back(other);
  }
  Require(diagonal.Delete());
  for (size_t i = 0; i < streams.size(); ++i) {
    const auto phase = [&](std::chrono::nanoseconds Timings::*of) {
      std::vector<double> all;
      for (const Timings& run : measured[i].timings) {
        all.push_back(std::chrono::duration<double, std::milli>(run.*of).count());
      }
      return Quantile(std::move(all), 0.5);
    };
    const double ours = Quantile(measured[i].ours, 0.5);
    const double first = Quantile(measured[0].ours, 0.5);
    std::cout << json{{"bench", "streaming"},
                      {"megabytes_each_way", bytes >> 20},
                      {"streams", streams[i]},
                      {"ours_ms", ours},
                      {"bare_ms", Quantile(theirs, 0.5)},
                      {"ratio", ours / Quantile(theirs, 0.5)},
                      {"speedup", first / ours},  // over the first number of streams
                      {"receive_ms", phase(&Timings::receive)},
                      {"queue_ms", phase(&Timings::queue)},
                      {"to_device_ms", phase(&Timings::to_device)},
                      {"kernel_ms", phase(&Timings::kernel)},
                      {"from_device_ms", phase(&Timings::from_device)},
                      {"send_ms", phase(&Timings::send)},
                      {"total_ms", phase(&Timings::total)},
                      {"runs", runs}}
              << std::endl;
  }
  return 0;
}

/// The same product with operand and result in memory shared with the server, beside the stream and
/// beside a copy of as many bytes each way within this process; of `requests` in all, `depth` are
/// under way at once. With `gpu`, beside as many copies by its driver, both ways at once.
int Shared(const std::string& server, int64_t megabytes, int64_t row_nnz, int depth, int requests,
           std::optional<int> gpu, const ClientOptions& options, int runs) {
  const Client client = Connect(server, options);
  constexpr int64_t kWidth = 256;
  const int64_t n = (megabytes << 20) / kWidth / static_cast<int64_t>(sizeof(float));
  const Matrix matrix = Upload(client, "bench-shared", Random(n, row_nnz, 1), kWidth);
  const auto allocate = [&] {
    absl::StatusOr<SharedMatrix> made = client.AllocateShared(n, kWidth);
    Require(made.status());
    return *std::move(made);
  };
  const SharedMatrix b = allocate();
  std::vector<SharedMatrix> results;
  for (int i = 0; i < depth; ++i) results.push_back(allocate());
  const std::vector<float> own(n * kWidth, 1.0F);
  std::vector<float> streamed(n * kWidth), copied(n * kWidth);
  std::copy(own.begin(), own.end(), static_cast<float*>(b.data()));
  const auto ask = [&](const DenseView& from, const MutableDenseView& to) {
    return matrix.SpmmAsync(from, to);
  };
  std::unique_ptr<PinnedCopies> driver;
  if (gpu) driver = PinnedCopies::Make(*gpu, own.size() * sizeof(float));
  std::vector<double> ours, theirs, copies, kernels, in, out, pinned;
  for (int run = 0; run < runs + 2; ++run) {
    auto begin = Clock::now();
    std::deque<Call<ComputeResult>> calls;
    int asked = 0;
    const auto ask_next = [&] {
      calls.push_back(ask(b.ConstView(), results[asked++ % depth].View()));
    };
    while (asked < depth) ask_next();
    double kernel = 0, to_device = 0, from_device = 0;
    while (!calls.empty()) {
      const absl::StatusOr<ComputeResult> done = calls.front().Wait();
      Require(done.status());
      calls.pop_front();
      if (asked < requests) ask_next();
      const auto ms = [](std::chrono::nanoseconds of) {
        return std::chrono::duration<double, std::milli>(of).count();
      };
      kernel += ms(done->timings.kernel);
      to_device += ms(done->timings.to_device);
      from_device += ms(done->timings.from_device);
    }
    const double shared = MillisecondsSince(begin) / requests;
    if (driver != nullptr) {
      begin = Clock::now();
      driver->Run(requests);
      if (run >= 2) pinned.push_back(MillisecondsSince(begin) / requests);
    }
    begin = Clock::now();
    Require(ask(DenseView(own.data(), n, kWidth), MutableDenseView(streamed.data(), n, kWidth))
                .Wait()
                .status());
    const double stream = MillisecondsSince(begin);
    begin = Clock::now();
    std::copy(own.begin(), own.end(), copied.begin());
    const double copy = MillisecondsSince(begin);
    if (run < 2) continue;
    ours.push_back(shared);
    theirs.push_back(stream);
    copies.push_back(copy);
    kernels.push_back(kernel / requests);
    in.push_back(to_device / requests);
    out.push_back(from_device / requests);
  }
  for (const SharedMatrix& result : results) {
    if (std::equal(streamed.begin(), streamed.end(), static_cast<float*>(result.data()))) continue;
    std::cerr << "shared memory has another result\n";
    return 1;
  }
  Require(matrix.Delete());
  json line = json{{"bench", "shared"},
                   {"megabytes_each_way", megabytes},
                   {"row_nnz", row_nnz},
                   {"depth", depth},
                   {"requests", requests},
                   {"shared_ms", Quantile(ours, 0.5)},
                   {"stream_ms", Quantile(theirs, 0.5)},
                   {"copy_ms", Quantile(copies, 0.5)},
                   {"kernel_ms", Quantile(kernels, 0.5)},
                   {"to_device_ms", Quantile(in, 0.5)},
                   {"from_device_ms", Quantile(out, 0.5)},
                   {"stream_over_shared", Quantile(theirs, 0.5) / Quantile(ours, 0.5)},
                   {"shared_over_kernel", Quantile(ours, 0.5) / Quantile(kernels, 0.5)},
                   {"ring", options.ring},
                   {"runs", runs}};
  if (gpu) {
    line["pinned_ms"] = Quantile(pinned, 0.5);
    line["pinned_over_shared"] = Quantile(pinned, 0.5) / Quantile(ours, 0.5);
  }
  std::cout << line << std::endl;
  return 0;
}

/// A product that runs here, on what the server exported, turn by turn with the same kernel on a
/// layout of this process's own, and with a request. On a GPU a turn is a batch that is queued at
/// once: what it takes until it is queued is the host's time, and the device's until it is done.
int Attached(const std::string& server, int64_t rows, int64_t row_nnz, int64_t width, int threads,
             std::optional<int> gpu, int runs) {
  const Client client = Connect(server);
  const CsrMatrix s = Random(rows, row_nnz, 1);
  const std::string name = "bench-attached-" + std::to_string(rows);
  absl::StatusOr<MatrixInfo> known = client.MatrixNamed(name).Info();
  const Matrix matrix = known.ok() ? client.MatrixNamed(name) : Upload(client, name, s, width);
  Require(matrix.WaitReady());
  const auto attached = AttachedMatrix::Attach(client, name, {.threads = threads, .gpu = gpu});
  Require(attached.status());
  const std::unique_ptr<Place> place = gpu ? Place::Gpu(*gpu) : Place::Host();
  const std::vector<float> b(rows * width, 1.0F), zeros(rows * width);
  const float* const from = place->Floats(b);
  float *const here = place->Floats(zeros), *const bare = place->Floats(zeros);
  const DenseView from_view(from, rows, width);
  const MutableDenseView here_view(here, rows, width);
  const auto ask = [&] {
    return gpu ? attached->Spmm(GpuStream{place->stream()}, from_view, here_view)
               : attached->Spmm(from_view, here_view);
  };
  const absl::StatusOr<ComputeResult> first = ask();
  Require(first.status());
  const std::unique_ptr<BareKernel> kernel =
      BareKernel::Make(*place, first->plan, rows, rows, s.row_offsets, s.column_indices,
                       std::get<std::vector<float>>(s.values));
  if (kernel == nullptr) return 1;
  const int batch = gpu ? 50 : 1;
  struct Times {
    std::vector<double> queued, done;
  } ours, theirs;
  std::vector<double> requests;
  std::vector<float> sent(rows * width);
  for (int run = 0; run < runs + 2; ++run) {
    const auto turn = [&](bool of_ours) {
      place->Wait();
      const auto begin = Clock::now();
      for (int i = 0; i < batch; ++i) {
        if (of_ours) {
          Require(ask().status());
        } else {
          kernel->Run(from, bare, width, threads);
        }
      }
      const double queued = MillisecondsSince(begin);
      place->Wait();
      const double done = MillisecondsSince(begin);
      if (run < 2) return;
      Times& times = of_ours ? ours : theirs;
      times.queued.push_back(queued / batch);
      times.done.push_back(done / batch);
    };
    turn(run % 2 == 0);
    turn(run % 2 != 0);
    if (run % 8 != 0) continue;
    const auto begin = Clock::now();
    Require(
        matrix.Spmm(DenseView(b.data(), rows, width), MutableDenseView(sent.data(), rows, width))
            .status());
    requests.push_back(MillisecondsSince(begin));
  }
  std::vector<float> got(rows * width), expected(rows * width);
  place->Back(got, here);
  place->Back(expected, bare);
  if (got != expected) {
    std::cerr << "attached, there is another result\n";
    return 1;
  }
  const absl::StatusOr<Stats> stats = client.GetStats();
  Require(stats.status());
  json line = {{"bench", "attached"},
               {"device", gpu ? "cuda:" + std::to_string(*gpu) : "cpu"},
               {"rows", rows},
               {"row_nnz", row_nnz},
               {"k", width},
               {"threads", threads},
               {"plan", first->plan},
               {"attached_ms", Quantile(ours.done, 0.5)},
               {"bare_ms", Quantile(theirs.done, 0.5)},
               {"request_ms", Quantile(requests, 0.5)},
               {"attached_over_bare", Quantile(ours.done, 0.5) / Quantile(theirs.done, 0.5)},
               {"more_microseconds", 1e3 * (Quantile(ours.done, 0.5) - Quantile(theirs.done, 0.5))},
               {"runs_here", attached->runs()},
               {"shared_bytes", stats->memory_bytes.at("shared")},
               {"batch", batch},
               {"runs", runs}};
  if (gpu) {
    line["attached_host_us"] = 1e3 * Quantile(ours.queued, 0.5);
    line["bare_host_us"] = 1e3 * Quantile(theirs.queued, 0.5);
  }
  std::cout << line << std::endl;
  return 0;
}

/// Products that are queued in a stream of this process's and run in the server's, operand and
/// result in GPU memory of the server's, turn by turn with the same kernel in this process: many at
/// once, and one at a time, each waited for; and a request that is waited for, on the same memory.
int SharedDevice(const std::string& server, int64_t rows, int64_t row_nnz, int64_t width, int gpu,
                 const ClientOptions& options, int runs) {
  const Client client = Connect(server, options);
  const CsrMatrix s = Random(rows, row_nnz, 1);
  const std::string name = "bench-shared-device-" + std::to_string(rows);
  absl::StatusOr<MatrixInfo> known = client.MatrixNamed(name).Info();
  const Matrix matrix = known.ok() ? client.MatrixNamed(name) : Upload(client, name, s, width);
  Require(matrix.WaitReady());
  const absl::StatusOr<GpuMemory> memory = GpuMemory::Open(client, gpu);
  Require(memory.status());
  const QueuedMatrix queued(*memory, matrix);
  const std::unique_ptr<Place> place = Place::Gpu(gpu);
  const auto allocate = [&] {
    absl::StatusOr<GpuMatrix> made = memory->Allocate(rows, width);
    Require(made.status());
    return *std::move(made);
  };
  const GpuMatrix b = allocate(), c = allocate();
  const std::vector<float> ones(rows * width, 1.0F), zeros(rows * width);
  place->Put(static_cast<float*>(b.data()), ones);
  const float* const from = place->Floats(ones);
  float* const bare = place->Floats(zeros);
  const GpuStream stream{place->stream()};
  int64_t not_queued = 0;
  const auto ask = [&] {
    const absl::StatusOr<QueuedResult> result = queued.Spmm(stream, b.ConstView(), c.View());
    Require(result.status());
    not_queued += result->queued ? 0 : 1;
    return result->plan;
  };
  const std::string plan = ask();
  const std::unique_ptr<BareKernel> kernel =
      BareKernel::Make(*place, plan, rows, rows, s.row_offsets, s.column_indices,
                       std::get<std::vector<float>>(s.values));
  if (kernel == nullptr) return 1;
  constexpr int kBatch = 50;
  std::map<std::string, std::vector<double>> times;
  const auto turn = [&](const std::string& what, bool counts, int times_over, bool wait,
                        const std::function<void()>& product) {
    place->Wait();
    const auto begin = Clock::now();
    for (int i = 0; i < times_over; ++i) {
      product();
      if (wait) place->Wait();
    }
    const double host = MillisecondsSince(begin);
    place->Wait();
    if (!counts) return;
    times[what].push_back(MillisecondsSince(begin) / times_over);
    times[what + "_host"].push_back(host / times_over);
  };
  const auto ours = [&] { ask(); };
  const auto theirs = [&] { kernel->Run(from, bare, width, 1); };
  const auto request = [&] { Require(matrix.Spmm(b.ConstView(), c.View()).status()); };
  for (int run = 0; run < runs + 2; ++run) {
    const bool counts = run >= 2;
    for (const bool first : {run % 2 == 0, run % 2 != 0}) {
      turn(first ? "queued" : "bare", counts, kBatch, false,
           first ? std::function<void()>(ours) : theirs);
      turn(first ? "queued_each" : "bare_each", counts, 5, true,
           first ? std::function<void()>(ours) : theirs);
    }
    turn("request", counts, 2, false, request);
  }
  std::vector<float> got(rows * width), expected(rows * width);
  place->Back(got, static_cast<const float*>(c.data()));
  place->Back(expected, bare);
  if (got != expected) {
    std::cerr << "queued on the server, there is another result\n";
    return 1;
  }
  const auto median = [&](const std::string& what) { return Quantile(times.at(what), 0.5); };
  std::cout << json{{"bench", "shared_device"},
                    {"rows", rows},
                    {"row_nnz", row_nnz},
                    {"k", width},
                    {"plan", plan},
                    {"queued_ms", median("queued")},
                    {"queued_host_us", 1e3 * median("queued_host")},
                    {"bare_ms", median("bare")},
                    {"queued_each_ms", median("queued_each")},
                    {"bare_each_ms", median("bare_each")},
                    {"request_ms", median("request")},
                    {"queued_over_bare", median("queued") / median("bare")},
                    {"each_over_bare", median("queued_each") / median("bare_each")},
                    {"queued_more_us", 1e3 * (median("queued") - median("bare"))},
                    {"each_more_us", 1e3 * (median("queued_each") - median("bare_each"))},
                    {"not_queued", not_queued},
                    {"ring", options.ring},
                    {"batch", kBatch},
                    {"runs", runs}}
            << std::endl;
  return 0;
}

/// S^steps * X as one request, operand and result held by the server, four at a time in turns with
/// as many kernels in a row in this process, on a layout of its own.
int Chained(const std::string& server, int64_t rows, int64_t row_nnz, int64_t width, int steps,
            int threads, std::optional<int> gpu, int runs) {
  const Client client = Connect(server);
  CsrMatrix s = Random(rows, row_nnz, 1);
  // Rows sum up to one or less, so that no power of it overflows.
  for (float& value : std::get<std::vector<float>>(s.values)) {
    value = 1.0F / static_cast<float>(row_nnz);
  }
  const std::string name = "bench-chain-" + std::to_string(rows);
  const absl::StatusOr<MatrixInfo> known = client.MatrixNamed(name).Info();
  const Matrix matrix = known.ok() ? client.MatrixNamed(name) : Upload(client, name, s, width);
  Require(matrix.WaitReady());
  const std::vector<float> b(rows * width, 1.0F), zeros(rows * width);
  const auto held_b = client.PutDense("bench-chain-b", DenseView(b.data(), rows, width));
  Require(held_b.status());
  const auto held_c = client.PutZeros("bench-chain-c", ValueType::kF32, rows, width);
  Require(held_c.status());
  Chain chain;
  Chain::Value x = chain.Input(*held_b);
  for (int i = 0; i < steps; ++i) x = chain.Spmm(matrix, x);
  chain.Output(x, *held_c);
  const absl::StatusOr<ComputeResult> first = client.Run(chain);
  Require(first.status());
  const std::unique_ptr<Place> place = gpu ? Place::Gpu(*gpu) : Place::Host();
  const float* const from = place->Floats(b);
  const std::array<float*, 2> to = {place->Floats(zeros), place->Floats(zeros)};
  const std::unique_ptr<BareKernel> kernel =
      BareKernel::Make(*place, first->steps[0].plan, rows, rows, s.row_offsets, s.column_indices,
                       std::get<std::vector<float>>(s.values));
  if (kernel == nullptr) return 1;
  std::vector<double> total, device, bare;
  // The first of a turn pays for the card's change from one process to the other.
  constexpr int kTurn = 4;
  for (int run = 0; run < runs + 3; ++run) {
    for (int i = 0; i < kTurn; ++i) {
      const auto begin = Clock::now();
      const absl::StatusOr<ComputeResult> done = client.Run(chain);
      const double took = MillisecondsSince(begin);
      Require(done.status());
      if (run < 3 || i == 0) continue;
      total.push_back(took);
      device.push_back(std::chrono::duration<double, std::milli>(done->timings.kernel).count());
    }
    place->Wait();
    for (int i = 0; i < kTurn; ++i) {
      const auto begin = Clock::now();
      for (int step = 0; step < steps; ++step) {
        kernel->Run(step == 0 ? from : to[(step - 1) % 2], to[step % 2], width, threads);
      }
      place->Wait();
      if (run >= 3 && i > 0) bare.push_back(MillisecondsSince(begin));
    }
  }
  std::vector<float> got(rows * width), expected(rows * width);
  Require(held_c->Read(MutableDenseView(got.data(), rows, width)).status());
  place->Back(expected, to[(steps - 1) % 2]);
  if (got != expected) {
    std::cerr << "as a chain, there is another result\n";
    return 1;
  }
  Require(held_b->Delete());
  Require(held_c->Delete());
  std::cout << json{{"bench", "chain"},
                    {"device", gpu ? "cuda:" + std::to_string(*gpu) : "cpu"},
                    {"rows", rows},
                    {"row_nnz", row_nnz},
                    {"k", width},
                    {"steps", steps},
                    {"plan", first->steps[0].plan},
                    {"total_ms", Quantile(total, 0.5)},
                    {"device_ms", Quantile(device, 0.5)},
                    {"bare_ms", Quantile(bare, 0.5)},
                    {"device_over_bare", Quantile(device, 0.5) / Quantile(bare, 0.5)},
                    {"total_over_bare", Quantile(total, 0.5) / Quantile(bare, 0.5)},
                    {"device_us_per_step", 1e3 * Quantile(device, 0.5) / steps},
                    {"total_us_per_step", 1e3 * Quantile(total, 0.5) / steps},
                    {"runs", runs}}
            << std::endl;
  return 0;
}

/// Products of buffers that lie `over` the server's GPUs, in "columns", "rows" or, as the server
/// chooses, "auto", turn by turn with
/// the same of whole ones: single requests, chains of `steps`, and, in columns, sampled ones.
int Distributed(const std::string& server, const std::string& what, const CsrMatrix& s,
                const std::string& over, int64_t k, int steps, int runs) {
  const Client client = Connect(server);
  const std::string name = "bench-distributed";
  UploadOptions options;
  options.replace = true;
  const bool in_rows = over == "rows";
  for (const int64_t width : {k, k / 2, k / 4}) {
    if ((in_rows && width < k) || width < 1) continue;
    options.expected.push_back({Operation::kSpmm, false, width});
    options.expected.push_back({Operation::kSddmm, false, width});
  }
  const absl::StatusOr<Matrix> matrix = client.Upload(name, s.View(), options);
  Require(matrix.status());
  Require(matrix->WaitReady());
  const int64_t rows = s.rows, nnz = s.nnz();
  // Sums of so few multiples of a quarter are exact.
  std::mt19937 random(5);
  std::vector<float> b(static_cast<size_t>(rows * k));
  for (float& x : b) x = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;

  struct Way {
    std::string name;
    std::function<absl::StatusOr<ComputeResult>()> run;
    std::vector<double> total, kernel;
    std::string plan;
  };
  std::vector<Way> ways;
  std::map<std::string, std::vector<float>> products, samples;
  std::vector<DenseMatrix> held;
  const auto zeros = [&](const std::string& of, int64_t count, int64_t cols) {
    absl::StatusOr<DenseMatrix> made =
        client.PutZeros(name + "-" + of, ValueType::kF32, count, cols);
    Require(made.status());
    held.push_back(*made);
    return *std::move(made);
  };
  struct Lies {
    std::string name;
    Distribution distribution;
    DenseMatrix b, c, d, sampled;
    Chain chain;
  };
  std::vector<Lies> all;
  for (const Distribution lies :
       {Distribution::kWhole, in_rows          ? Distribution::kRows
                              : over == "auto" ? Distribution::kAuto
                                               : Distribution::kColumns}) {
    const std::string as = lies == Distribution::kWhole ? "whole" : over;
    const bool with_matrix = lies == Distribution::kRows || lies == Distribution::kAuto;
    absl::StatusOr<DenseMatrix> operand =
        client.PutDense(name + "-" + as + "-b", DenseView(b.data(), rows, k),
                        {.distribution = lies, .rows_of = with_matrix ? name : ""});
    Require(operand.status());
    held.push_back(*operand);
    all.push_back({as, lies, *operand, zeros(as + "-c", rows, k), zeros(as + "-d", rows, k),
                   zeros(as + "-s", nnz, 1), Chain()});
  }
  for (Lies& one : all) {
    Chain::Value x = one.chain.Input(one.b);
    for (int i = 0; i < steps; ++i) x = one.chain.Spmm(*matrix, x, {.alpha = 0.01});
    one.chain.Output(x, one.d);
  }
  for (Lies& one : all) {
    ways.push_back({"spmm_" + one.name, [&] { return matrix->Spmm(one.b, one.c); }, {}, {}, ""});
  }
  for (Lies& one : all) {
    ways.push_back({"chain_" + one.name, [&] { return client.Run(one.chain); }, {}, {}, ""});
  }
  for (Lies& one : all) {
    ways.push_back({"sddmm_" + one.name,
                    [&] { return matrix->Sddmm(one.b, one.b, one.sampled); },
                    {},
                    {},
                    ""});
  }
  // The first of a turn finds caches as the way before it has left them.
  constexpr int kTurn = 4;
  for (int run = 0; run < runs + 2; ++run) {
    for (Way& way : ways) {
      for (int i = 0; i < kTurn; ++i) {
        const auto begin = Clock::now();
        const absl::StatusOr<ComputeResult> done = way.run();
        const double took = MillisecondsSince(begin);
        Require(done.status());
        way.plan = done->plan;
        if (run < 2 || i == 0) continue;
        way.total.push_back(took);
        way.kernel.push_back(
            std::chrono::duration<double, std::milli>(done->timings.kernel).count());
      }
    }
  }
  std::vector<std::vector<float>> c(2, std::vector<float>(static_cast<size_t>(rows * k))),
      sampled(2, std::vector<float>(static_cast<size_t>(nnz)));
  for (size_t i = 0; i < all.size(); ++i) {
    Require(all[i].c.Read(MutableDenseView(c[i].data(), rows, k)).status());
    Require(all[i].sampled.Read(MutableDenseView(sampled[i].data(), nnz, 1)).status());
  }
  if (c[0] != c[1] || sampled[0] != sampled[1]) {
    std::cerr << "in " << over << " there are other results than of whole operands\n";
    return 1;
  }
  const absl::StatusOr<DenseInfo> info = all[1].b.Info();
  Require(info.status());
  json line = {{"bench", "distributed"},
               {"server", server},
               {"matrix", what},
               {"rows", rows},
               {"nnz", nnz},
               {"k", k},
               {"steps", steps},
               {"runs", runs},
               {"gpus", info->parts},
               {"over", over},
               {"lies", Name(info->distribution)}};
  std::map<std::string, double> total, kernel;
  for (const Way& way : ways) {
    total[way.name] = Quantile(way.total, 0.5);
    kernel[way.name] = Quantile(way.kernel, 0.5);
    line[way.name + "_ms"] = total[way.name];
    line[way.name + "_kernel_ms"] = kernel[way.name];
    line[way.name + "_plan"] = way.plan;
  }
  for (const std::string op : {"spmm", "chain", "sddmm"}) {
    if (!total.contains(op + "_whole")) continue;
    line[op + "_gain"] = total[op + "_whole"] / total[op + "_" + over];
    line[op + "_kernel_gain"] = kernel[op + "_whole"] / kernel[op + "_" + over];
  }
  for (const DenseMatrix& one : held) Require(one.Delete());
  Require(matrix->Delete());
  std::cout << line << std::endl;
  return 0;
}

/// Sums and dot products of several heads as one request, turn by turn with a request for each
/// head, all under way at once, and with one product as wide that has a value for each nonzero: the
/// matrix's own, or the request's. Everything is held by the server.
int Heads(const std::string& server, int64_t rows, int64_t row_nnz, int heads, int64_t width,
          const ClientOptions& connect, int runs) {
  const Client client = Connect(server, connect);
  const CsrMatrix s = Random(rows, row_nnz, 1);
  const int64_t k = heads * width, nnz = s.nnz();
  UploadOptions options;
  options.replace = true;
  options.expected = {{Operation::kSpmm, false, width},
                      {Operation::kSpmm, false, k},
                      {Operation::kSddmm, false, width}};
  const absl::StatusOr<Matrix> matrix = client.Upload("bench-heads", s.View(), options);
  Require(matrix.status());
  Require(matrix->WaitReady());
  // Sums of so few multiples of a quarter are exact.
  std::mt19937 random(5);
  const auto numbers = [&](int64_t count) {
    std::vector<float> made(static_cast<size_t>(count));
    for (float& x : made) x = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
    return made;
  };
  const std::vector<float> b = numbers(rows * k), values = numbers(nnz * heads);
  const auto put = [&](const std::string& name, const float* data, int64_t of, int64_t cols,
                       int64_t leading_dimension) {
    absl::StatusOr<DenseMatrix> held =
        client.PutDense("bench-heads-" + name, DenseView(data, of, cols, leading_dimension));
    Require(held.status());
    return *std::move(held);
  };
  const auto zeros = [&](const std::string& name, int64_t of, int64_t cols) {
    absl::StatusOr<DenseMatrix> held =
        client.PutZeros("bench-heads-" + name, ValueType::kF32, of, cols);
    Require(held.status());
    return *std::move(held);
  };
  const DenseMatrix all_b = put("b", b.data(), rows, k, k), all_c = zeros("c", rows, k),
                    all_values = put("values", values.data(), nnz, heads, heads),
                    wide_c = zeros("wide", rows, k), all_dots = zeros("dots", nnz, heads);
  std::vector<DenseMatrix> head_b, head_c, head_values, head_dots;
  for (int h = 0; h < heads; ++h) {
    const std::string name = std::to_string(h);
    head_b.push_back(put("b" + name, b.data() + h * width, rows, width, k));
    head_values.push_back(put("values" + name, values.data() + h, nnz, 1, heads));
    head_c.push_back(zeros("c" + name, rows, width));
    head_dots.push_back(zeros("dots" + name, nnz, 1));
  }
  Chain products, dots;
  products.Output(
      products.Spmm(*matrix, products.Input(all_b), {.values = products.Input(all_values)}), all_c);
  const Chain::Value both = dots.Input(all_b);
  dots.Output(dots.Sddmm(*matrix, both, both, {.unscaled = true, .heads = heads}), all_dots);
  const auto await_all = [](std::vector<Call<ComputeResult>> calls) {
    double kernel = 0;
    for (Call<ComputeResult>& call : calls) {
      const absl::StatusOr<ComputeResult> done = call.Wait();
      Require(done.status());
      kernel += std::chrono::duration<double, std::milli>(done->timings.kernel).count();
    }
    return kernel;
  };
  struct Way {
    std::string name;
    std::function<std::vector<Call<ComputeResult>>()> begin;
    std::vector<double> total, kernel;
  };
  const auto one = [](Call<ComputeResult> call) {
    std::vector<Call<ComputeResult>> calls;
    calls.push_back(std::move(call));
    return calls;
  };
  std::vector<Way> ways = {
      {"spmm_heads", [&] { return one(client.RunAsync(products)); }, {}, {}},
      {"spmm_requests",
       [&] {
         std::vector<Call<ComputeResult>> calls;
         for (int h = 0; h < heads; ++h) {
           calls.push_back(matrix->SpmmAsync(head_b[h], head_c[h], {.values = head_values[h]}));
         }
         return calls;
       },
       {},
       {}},
      {"spmm_wide", [&] { return one(matrix->SpmmAsync(all_b, wide_c)); }, {}, {}},
      {"spmm_wide_values",
       [&] { return one(matrix->SpmmAsync(all_b, wide_c, {.values = head_values[0]})); },
       {},
       {}},
      {"sddmm_heads", [&] { return one(client.RunAsync(dots)); }, {}, {}},
      {"sddmm_requests",
       [&] {
         std::vector<Call<ComputeResult>> calls;
         for (int h = 0; h < heads; ++h) {
           calls.push_back(
               matrix->SddmmAsync(head_b[h], head_b[h], head_dots[h], {.unscaled = true}));
         }
         return calls;
       },
       {},
       {}},
  };
  // The first of a turn finds memory that the way before it has cut up.
  constexpr int kTurn = 4;
  for (int run = 0; run < runs + 3; ++run) {
    for (Way& way : ways) {
      for (int i = 0; i < kTurn; ++i) {
        const auto begin = Clock::now();
        const double kernel = await_all(way.begin());
        const double took = MillisecondsSince(begin);
        if (run < 3 || i == 0) continue;
        way.total.push_back(took);
        way.kernel.push_back(kernel);
      }
    }
  }
  const auto same = [](const DenseMatrix& all, const std::vector<DenseMatrix>& of_heads,
                       int64_t count, int64_t columns) {
    const auto heads = static_cast<int64_t>(of_heads.size());
    std::vector<float> got(count * heads * columns), part(count * columns);
    Require(all.Read(MutableDenseView(got.data(), count, heads * columns)).status());
    for (int64_t h = 0; h < heads; ++h) {
      Require(of_heads[h].Read(MutableDenseView(part.data(), count, columns)).status());
      for (int64_t i = 0; i < count * columns; ++i) {
        if (got[(i / columns * heads + h) * columns + i % columns] != part[i]) return false;
      }
    }
    return true;
  };
  if (!same(all_c, head_c, rows, width) || !same(all_dots, head_dots, nnz, 1)) {
    std::cerr << "heads have other results than requests of their own\n";
    return 1;
  }
  const absl::StatusOr<ComputeResult> last = client.Run(products);
  Require(last.status());
  json line = {{"bench", "heads"},
               {"server", server},
               {"rows", rows},
               {"row_nnz", row_nnz},
               {"heads", heads},
               {"k", width},
               {"plan", last->steps[0].plan},
               {"ring", connect.ring},
               {"runs", runs}};
  std::map<std::string, double> total;
  for (const Way& way : ways) {
    total[way.name] = Quantile(way.total, 0.5);
    line[way.name + "_ms"] = total[way.name];
    line[way.name + "_kernel_ms"] = Quantile(way.kernel, 0.5);
  }
  line["spmm_requests_over_heads"] = total["spmm_requests"] / total["spmm_heads"];
  line["spmm_heads_over_wide"] = total["spmm_heads"] / total["spmm_wide"];
  line["spmm_wide_values_over_wide"] = total["spmm_wide_values"] / total["spmm_wide"];
  line["sddmm_requests_over_heads"] = total["sddmm_requests"] / total["sddmm_heads"];
  // Indices, values, a row of B for each nonzero, and C.
  const double bytes = static_cast<double>(nnz) * 4.0 * static_cast<double>(1 + heads + k) +
                       8.0 * static_cast<double>(rows) + 4.0 * static_cast<double>(rows * k);
  line["spmm_heads_gigabytes_per_second"] =
      bytes / static_cast<double>(line["spmm_heads_kernel_ms"]) / 1e6;
  std::cout << line << std::endl;
  Require(matrix->Delete());
  const absl::StatusOr<std::vector<DenseInfo>> left = client.ListDense("bench-heads-");
  Require(left.status());
  for (const DenseInfo& info : *left) Require(client.DenseNamed(info.name).Delete());
  return 0;
}

/// Where operand and result of a request are that no message carries.
enum class There : uint8_t { kShared, kHeld, kGpu };

/// Products of one matrix whose operand and result the server finds by itself: over gRPC and
/// through a ring, whose caller sleeps or spins for its reply, in turns with the same kernel in
/// this process. A turn is a few products, one after the other; its first, which finds threads
/// asleep that the others keep awake, does not count. What each costs on top of its kernel by the
/// server's clock, and on top of the kernel called here, waited for.
void LatencyOf(const std::string& server, const CsrMatrix& s, int64_t k, There there,
               std::chrono::microseconds spin, std::optional<int> gpu, int runs) {
  struct Way {
    std::string name;
    Client client;
    Matrix matrix;
    Operand b;
    Destination c;
    std::vector<SharedMatrix> memory = {};
    std::vector<GpuMatrix> gpu_memory = {};
    std::vector<double> total = {}, kernel = {}, over = {}, server = {};
  };
  constexpr int kTurn = 10, kWarm = 10;
  const Client owner = Connect(server);
  const std::string name = "bench-latency";
  const Matrix uploaded = Upload(owner, name, s, k);
  const std::vector<float> ones(s.cols * k, 1.0F), zeros(s.rows * k);
  const auto held_b = owner.PutDense(name + "-b", DenseView(ones.data(), s.cols, k));
  const auto held_c = owner.PutZeros(name + "-c", ValueType::kF32, s.rows, k);
  Require(held_b.status());
  Require(held_c.status());
  const std::unique_ptr<Place> place = gpu ? Place::Gpu(*gpu) : Place::Host();
  const float* const from = place->Floats(ones);
  float* const to = place->Floats(zeros);
  std::vector<Way> ways;
  const auto add = [&](const std::string& way, const ClientOptions& options) {
    const Client client = Connect(server, options);
    ways.push_back({way, client, client.MatrixNamed(name), client.DenseNamed(held_b->name()),
                    client.DenseNamed(held_c->name())});
    if (there == There::kShared) {
      auto b = client.AllocateShared(s.cols, k), c = client.AllocateShared(s.rows, k);
      Require(b.status());
      Require(c.status());
      std::fill_n(static_cast<float*>(b->data()), s.cols * k, 1.0F);
      ways.back().b = b->ConstView();
      ways.back().c = c->View();
      ways.back().memory = {*b, *c};
    } else if (there == There::kGpu) {
      const absl::StatusOr<GpuMemory> memory = GpuMemory::Open(client, *gpu);
      Require(memory.status());
      auto b = memory->Allocate(s.cols, k), c = memory->Allocate(s.rows, k);
      Require(b.status());
      Require(c.status());
      place->Put(static_cast<float*>(b->data()), ones);
      ways.back().b = b->ConstView();
      ways.back().c = c->View();
      ways.back().gpu_memory = {*b, *c};
    }
  };
  add("stream", {});
  add("stream, spinning", {.ring_spin = spin});
  add("ring", {.ring = true});
  add("ring, spinning", {.ring = true, .ring_spin = spin});
  const absl::StatusOr<ComputeResult> first = ways[0].matrix.Spmm(ways[0].b, ways[0].c);
  Require(first.status());
  const std::string plan = first->plan;
  const std::unique_ptr<BareKernel> kernel =
      BareKernel::Make(*place, plan, s.rows, s.cols, s.row_offsets, s.column_indices,
                       std::get<std::vector<float>>(s.values));
  if (kernel == nullptr) std::exit(1);
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<double> bare;
  for (int run = 0; run < runs / kTurn + kWarm; ++run) {
    for (Way& way : ways) {
      for (int i = 0; i < kTurn; ++i) {
        const auto begin = Clock::now();
        const auto done = way.matrix.Spmm(way.b, way.c);
        const double took = 1e3 * MillisecondsSince(begin);
        Require(done.status());
        if (run < kWarm || i == 0) continue;
        const auto us = [](std::chrono::nanoseconds of) {
          return std::chrono::duration<double, std::micro>(of).count();
        };
        const double in_kernel = us(done->timings.kernel);
        way.total.push_back(took);
        way.kernel.push_back(in_kernel);
        way.over.push_back(took - in_kernel);
        // By its own clock, from when it had the message until it had the reply.
        way.server.push_back(us(done->timings.total) - in_kernel);
      }
    }
    for (int i = 0; i < kTurn; ++i) {
      const auto begin = Clock::now();
      kernel->Run(from, to, k, threads);
      place->Wait();
      if (run >= kWarm && i > 0) bare.push_back(1e3 * MillisecondsSince(begin));
    }
  }
  constexpr std::array<const char*, 3> kThere = {"shared", "held", "shared_device"};
  for (const Way& way : ways) {
    std::cout << json{{"bench", "latency"},
                      {"way", way.name},
                      {"operands", kThere[static_cast<size_t>(there)]},
                      {"rows", s.rows},
                      {"k", k},
                      {"plan", plan},
                      {"total_us", Quantile(way.total, 0.5)},
                      {"bare_us", Quantile(bare, 0.5)},
                      {"over_bare_us", Quantile(way.total, 0.5) - Quantile(bare, 0.5)},
                      {"kernel_us", Quantile(way.kernel, 0.5)},
                      {"over_kernel_us", Quantile(way.over, 0.5)},
                      {"of_which_server_us", Quantile(way.server, 0.5)},
                      {"over_kernel_p99_us", Quantile(way.over, 0.99)},
                      {"spin_us", way.name.ends_with("spinning") ? spin.count() : 0},
                      {"runs", runs}}
              << std::endl;
  }
  ways.clear();
  Require(held_b->Delete());
  Require(held_c->Delete());
  Require(uploaded.Delete());
}

/// A small matrix, the operand in the request; then small ones whose operands are there already.
int Latency(const std::string& server, int64_t spin, std::optional<int> gpu, int runs) {
  const Client client = Connect(server);
  constexpr int64_t kRows = 1000, kWidth = 16;
  const Matrix matrix = Upload(client, "bench-small", Random(kRows, 8, 2), kWidth);
  std::vector<float> b(kRows * kWidth, 1.0F), c(kRows * kWidth);
  std::vector<double> milliseconds;
  for (int run = 0; run < runs + 50; ++run) {
    const auto begin = Clock::now();
    Require(
        matrix.Spmm(DenseView(b.data(), kRows, kWidth), MutableDenseView(c.data(), kRows, kWidth))
            .status());
    if (run >= 50) milliseconds.push_back(MillisecondsSince(begin));
  }
  Require(matrix.Delete());
  std::cout << json{{"bench", "latency"},
                    {"server", server},
                    {"p50_ms", Quantile(milliseconds, 0.5)},
                    {"p99_ms", Quantile(milliseconds, 0.99)},
                    {"runs", runs}}
            << std::endl;
  for (const There there : {There::kShared, There::kHeld, There::kGpu}) {
    if (there == There::kGpu && !gpu) continue;
    LatencyOf(server, Random(2708, 4, 7), 16, there, std::chrono::microseconds(spin), gpu, runs);
    LatencyOf(server, Random(10'000, 16, 7), 32, there, std::chrono::microseconds(spin), gpu, runs);
  }
  return 0;
}

/// Requests whose operand and result stay on the server, one after the other on an open stream:
/// what a request costs besides its kernel, and a bare message there and back meanwhile.
int Held(const std::string& server, const std::string& bare, int64_t k, double beta, int runs) {
  const Client client = Connect(server);
  constexpr int64_t kRows = 50000;
  const Matrix matrix = Upload(client, "bench-held", Random(kRows, 16, 4), k);
  const std::vector<float> b(kRows * k, 0.5f);
  absl::StatusOr<DenseMatrix> operand =
      client.PutDense("bench-held-b", DenseView(b.data(), kRows, k));
  Require(operand.status());
  absl::StatusOr<DenseMatrix> result = client.PutZeros("bench-held-c", ValueType::kF32, kRows, k);
  Require(result.status());
  std::vector<double> total, kernel, besides, echoes;
  std::string plan;
  BareEcho echo(bare);
  for (int i = 0; i < runs + 20; ++i) {
    const auto begin = Clock::now();
    absl::StatusOr<ComputeResult> done = matrix.Spmm(*operand, *result, {.beta = beta});
    const double took = MillisecondsSince(begin);
    Require(done.status());
    const double echoed = echo.Milliseconds();
    if (i < 20) continue;
    echoes.push_back(echoed);
    const double in_kernel =
        std::chrono::duration<double, std::milli>(done->timings.kernel).count();
    total.push_back(took);
    kernel.push_back(in_kernel);
    besides.push_back(took - in_kernel);
    plan = done->plan;
  }
  for (const std::string& name : {operand->name(), result->name()}) {
    Require(client.DenseNamed(name).Delete());
  }
  Require(matrix.Delete());
  std::cout << json{{"bench", "held"},
                    {"server", server},
                    {"k", k},
                    {"beta", beta},
                    {"plan", plan},
                    {"p50_ms", Quantile(total, 0.5)},
                    {"kernel_p50_ms", Quantile(kernel, 0.5)},
                    {"besides_p50_ms", Quantile(besides, 0.5)},
                    {"besides_p99_ms", Quantile(besides, 0.99)},
                    {"bare_p50_ms", Quantile(echoes, 0.5)},
                    {"runs", runs}}
            << std::endl;
  return 0;
}

/// S * S, its row blocks streamed to the client.
int Spgemm(const std::string& server, int runs) {
  const Client client = Connect(server);
  UploadOptions options;
  options.replace = true;
  options.expected = {{Operation::kSpgemm, false, 0}};
  const absl::StatusOr<Matrix> matrix =
      client.Upload("bench-spgemm", Random(100000, 8, 5).View(), options);
  Require(matrix.status());
  Require(matrix->WaitReady());
  std::vector<double> total, kernel;
  std::string plan;
  for (int i = 0; i < runs + 2; ++i) {
    const auto begin = Clock::now();
    const absl::StatusOr<SpgemmResult> done =
        matrix->Spgemm(*matrix, [](const RowBlock&) { return absl::OkStatus(); });
    const double took = MillisecondsSince(begin);
    Require(done.status());
    if (i < 2) continue;
    total.push_back(took);
    kernel.push_back(std::chrono::duration<double, std::milli>(done->timings.kernel).count());
    plan = done->plan;
  }
  Require(matrix->Delete());
  std::cout << json{{"bench", "spgemm"},
                    {"server", server},
                    {"plan", plan},
                    {"p50_ms", Quantile(total, 0.5)},
                    {"kernel_p50_ms", Quantile(kernel, 0.5)},
                    {"runs", runs}}
            << std::endl;
  return 0;
}

/// Many clients, each with a connection and buffers of its own, one request after the other:
/// how many requests all of them get answered.
int Crowd(const std::string& server, int clients, int64_t k, double seconds) {
  const Client admin = Connect(server);
  constexpr int64_t kRows = 200000;
  const Matrix matrix = Upload(admin, "bench-crowd", Random(kRows, 32, 6), k);
  std::atomic<int64_t> done = 0;
  std::atomic<bool> counts = false, over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      const Client client = Connect(server);
      const Matrix mine = client.MatrixNamed(matrix.name());
      const std::string name = "bench-crowd-" + std::to_string(i);
      const std::vector<float> b(kRows * k, 0.5F);
      absl::StatusOr<DenseMatrix> operand =
          client.PutDense(name + "-b", DenseView(b.data(), kRows, k));
      Require(operand.status());
      absl::StatusOr<DenseMatrix> result = client.PutZeros(name + "-c", ValueType::kF32, kRows, k);
      Require(result.status());
      while (!over) {
        Require(mine.Spmm(*operand, *result).status());
        if (counts) ++done;
      }
      Require(operand->Delete());
      Require(result->Delete());
    });
  }
  // First everything finds its place.
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 2));
  counts = true;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  over = true;
  const double took = MillisecondsSince(begin);
  const auto answered = static_cast<double>(done);
  for (std::thread& thread : threads) thread.join();
  Require(matrix.Delete());
  std::cout << json{{"bench", "crowd"},
                    {"server", server},
                    {"clients", clients},
                    {"k", k},
                    {"queries_per_second", answered / took * 1e3}}
            << std::endl;
  return 0;
}

/// Many clients, each with a connection of its own, one narrow product on one matrix after the
/// other, operand and result in the stream or, `shared`, in shared memory: what a server started
/// with --batch-wait makes of them, or without.
int Batch(const std::string& server, const CsrMatrix& s, int clients, int64_t k, bool shared,
          double seconds) {
  const Client admin = Connect(server);
  UploadOptions options;
  options.replace = true;
  for (int64_t width = k; width <= std::min<int64_t>(256, clients * k); width *= 2) {
    options.expected.push_back({Operation::kSpmm, false, width});
  }
  const absl::StatusOr<Matrix> matrix = admin.Upload("bench-batch", s.View(), options);
  Require(matrix.status());
  Require(matrix->WaitReady());
  struct Asked {
    double milliseconds;
    int64_t batch;
    double queue, kernel;
  };
  std::mutex mutex;
  std::vector<Asked> all;
  std::atomic<bool> counts = false, over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      const Client client = Connect(server);
      const Matrix mine = client.MatrixNamed(matrix->name());
      std::vector<float> b(s.cols * k, 0.5F), c(s.rows * k);
      std::optional<SharedMatrix> shared_b, shared_c;
      if (shared) {
        for (auto [to, rows] : {std::pair(&shared_b, s.cols), std::pair(&shared_c, s.rows)}) {
          absl::StatusOr<SharedMatrix> made = client.AllocateShared(rows, k);
          Require(made.status());
          *to = *std::move(made);
        }
        std::copy(b.begin(), b.end(), static_cast<float*>(shared_b->data()));
      }
      const DenseView from = shared ? shared_b->ConstView() : DenseView(b.data(), s.cols, k);
      const MutableDenseView to = shared ? shared_c->View() : MutableDenseView(c.data(), s.rows, k);
      std::vector<Asked> own;
      while (!over) {
        const auto begin = Clock::now();
        const absl::StatusOr<ComputeResult> done = mine.Spmm(from, to);
        const double took = MillisecondsSince(begin);
        Require(done.status());
        const auto ms = [](std::chrono::nanoseconds of) {
          return std::chrono::duration<double, std::milli>(of).count();
        };
        if (counts) {
          own.push_back({took, done->batch, ms(done->timings.queue), ms(done->timings.kernel)});
        }
      }
      const std::lock_guard lock(mutex);
      all.insert(all.end(), own.begin(), own.end());
    });
  }
  // First everything finds its place.
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 4));
  counts = true;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  over = true;
  const double took = MillisecondsSince(begin);
  for (std::thread& thread : threads) thread.join();
  Require(matrix->Delete());
  if (all.empty()) return 1;
  const auto each = [&](const auto& of) {
    std::vector<double> values;
    for (const Asked& asked : all) values.push_back(of(asked));
    return values;
  };
  const std::vector<double> latency = each([](const Asked& of) { return of.milliseconds; });
  double runs = 0;
  for (const Asked& asked : all) runs += 1.0 / static_cast<double>(asked.batch);
  const auto count = static_cast<double>(all.size());
  std::cout << json{{"bench", "batch"},
                    {"server", server},
                    {"rows", s.rows},
                    {"nnz", s.nnz()},
                    {"clients", clients},
                    {"k", k},
                    {"shared", shared},
                    {"requests_per_second", count / took * 1e3},
                    {"p50_ms", Quantile(latency, 0.5)},
                    {"p99_ms", Quantile(latency, 0.99)},
                    {"queue_p50_ms", Quantile(each([](const Asked& of) { return of.queue; }), 0.5)},
                    {"kernel_p50_ms",
                     Quantile(each([](const Asked& of) { return of.kernel; }), 0.5)},
                    {"requests_a_run", count / runs}}
            << std::endl;
  return 0;
}

/// Many clients, each with a connection of its own, all on one matrix.
int Soak(const std::string& server, int clients, double seconds) {
  const Client admin = Connect(server);
  constexpr int64_t kRows = 20000, kWidth = 32;
  const Matrix matrix = Upload(admin, "bench-soak", Random(kRows, 12, 3), kWidth);
  std::mutex mutex;
  std::vector<int64_t> done(clients);
  std::vector<std::string> errors;
  std::vector<double> milliseconds;
  std::vector<std::thread> threads;
  const auto memory = [&] {
    absl::StatusOr<Stats> stats = admin.GetStats();
    Require(stats.status());
    int64_t bytes = 0;
    for (const auto& [use, count] : stats->memory_bytes) bytes += count;
    return bytes;
  };
  const int64_t before = memory();
  const auto begin = Clock::now();
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      const Client client = Connect(server);
      const Matrix mine = client.MatrixNamed("bench-soak");
      std::vector<float> b(kRows * kWidth, static_cast<float>(i)), c(kRows * kWidth);
      while (MillisecondsSince(begin) < seconds * 1e3) {
        const auto start = Clock::now();
        const absl::Status status =
            mine.Spmm(DenseView(b.data(), kRows, kWidth), MutableDenseView(c.data(), kRows, kWidth))
                .status();
        const double took = MillisecondsSince(start);
        std::lock_guard lock(mutex);
        if (!status.ok()) {
          errors.push_back(std::string(status.message()));
        } else {
          ++done[i];
          milliseconds.push_back(took);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int64_t after = memory();
  Require(matrix.Delete());
  int64_t total = 0;
  for (const int64_t count : done) total += count;
  std::cout << json{{"bench", "soak"},
                    {"clients", clients},
                    {"seconds", seconds},
                    {"requests", total},
                    {"errors", errors.size()},
                    {"first_error", errors.empty() ? "" : errors[0]},
                    {"least_by_a_client", *std::min_element(done.begin(), done.end())},
                    {"most_by_a_client", *std::max_element(done.begin(), done.end())},
                    {"p50_ms", milliseconds.empty() ? 0 : Quantile(milliseconds, 0.5)},
                    {"p99_ms", milliseconds.empty() ? 0 : Quantile(milliseconds, 0.99)},
                    {"memory_before", before},
                    {"memory_after", after}}
            << std::endl;
  return errors.empty() ? 0 : 1;
}

struct PlansOptions {
  std::string server;
  std::vector<std::string> packs, generated, only;
  std::vector<int64_t> widths;
  std::string type = "f32";
  bool squares = false;
  double seconds = 0;
};

/// What its trials measured, a line each as sparsed_bench prints them; the plans' are marked.
void PrintMeasurements(const std::string& name, const MatrixInfo& info, const ServerInfo& server) {
  std::map<std::string, double> build_seconds;
  for (const LayoutInfo& layout : info.layouts)
    build_seconds[layout.pipeline] = layout.build_seconds;
  std::map<std::string, std::string> devices;
  for (const DeviceInfo& device : server.devices) devices[device.name] = device.description;
  for (const Measurement& m : info.measurements) {
    const ProblemSignature& c = m.signature;
    const bool plan = std::any_of(info.plans.begin(), info.plans.end(), [&](const PlanInfo& p) {
      return p.signature.operation == c.operation && p.signature.transposed == c.transposed &&
             p.signature.k == c.k && p.signature.allow_tf32 == c.allow_tf32 &&
             p.pipeline == m.pipeline && p.kernel == m.kernel;
    });
    json line = {{"matrix", name},
                 {"rows", info.rows},
                 {"cols", info.cols},
                 {"nnz", info.nnz},
                 {"op", Name(c.operation)},
                 {"transposed", c.transposed},
                 {"type", c.allow_tf32 ? "tf32" : Name(info.type)},
                 {"k", m.k},
                 {"layout", m.pipeline},
                 {"kernel", m.kernel},
                 {"ms", m.median_ms},
                 {"baseline_ms", m.baseline_ms},
                 {"rounds", m.runs},
                 {"gflops", m.gflops},
                 {"floor_share", m.roofline_share},
                 {"plan", plan},
                 {"device", devices[m.device]}};
    if (const auto built = build_seconds.find(m.pipeline); built != build_seconds.end()) {
      line["preparation_ms"] = built->second * 1000;
    }
    std::cout << line << "\n";
  }
  std::cout << std::flush;
}

/// What the server chooses by itself for each matrix.
int Plans(const PlansOptions& options) {
  const Client client = Connect(options.server);
  const absl::StatusOr<ServerInfo> about = client.GetServerInfo();
  Require(about.status());
  std::vector<ProblemSignature> signatures;
  if (options.squares) signatures.push_back({Operation::kSpgemm});
  for (const int64_t k : options.squares ? std::vector<int64_t>() : options.widths) {
    const bool tf32 = options.type == "tf32";
    signatures.push_back({Operation::kSpmm, false, k, tf32});
    signatures.push_back({Operation::kSpmm, true, k, tf32});
    if (!tf32) signatures.push_back({Operation::kSddmm, false, k});
  }
  const auto begin = Clock::now();
  const auto measure = [&](PlainPattern pattern) {
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), pattern.name) == options.only.end()) {
      return true;
    }
    CsrMatrix s;
    s.rows = pattern.rows;
    s.cols = pattern.cols;
    s.row_offsets = std::move(pattern.row_offsets);
    s.column_indices = std::move(pattern.column_indices);
    const size_t nnz = s.column_indices.size();
    if (options.type == "f64") {
      s.values = std::vector<double>(nnz, 1);
    } else if (options.type == "f16") {
      s.values = std::vector<Float16>(nnz, Float16(1));
    } else if (options.type == "bf16") {
      s.values = std::vector<BFloat16>(nnz, BFloat16(1));
    } else {
      s.values = std::vector<float>(nnz, 1);
    }
    UploadOptions upload;
    upload.replace = true;
    upload.expected = signatures;
    absl::StatusOr<Matrix> matrix = client.Upload("plans-" + pattern.name, s.View(), upload);
    Require(matrix.status());
    Require(matrix->WaitReady());
    const absl::StatusOr<MatrixInfo> info = matrix->Info();
    Require(info.status());
    PrintMeasurements(pattern.name, *info, *about);
    Require(matrix->Delete());
    return options.seconds == 0 || MillisecondsSince(begin) < options.seconds * 1000;
  };
  ForEachPattern(options.packs, options.generated, measure);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app{"Measures transports and the lifecycle of requests, against a running server"};
  app.require_subcommand(1);
  std::string server = "127.0.0.1:7470", bare = "127.0.0.1:7480", listen = bare;
  int64_t megabytes = 64;
  int runs = 21, clients = 64;
  std::vector<int> streams = {1, 2, 4};
  double seconds = 60;
  CLI::App* bare_server = app.add_subcommand("bare-server", "Serve bare gRPC streams");
  bare_server->add_option("--listen", listen);
  CLI::App* streaming =
      app.add_subcommand("streaming", "Operand in, result out, beside a bare stream");
  streaming->add_option("--server", server);
  streaming->add_option("--bare", bare);
  streaming->add_option("--megabytes", megabytes, "Each way");
  streaming->add_option("--runs", runs);
  streaming->add_option("--streams", streams, "Streams that a client has, one after the other");
  int64_t row_nnz = 1;
  int depth = 1, requests = 0;
  std::optional<int> attached_gpu;
  CLI::App* shared =
      app.add_subcommand("shared", "Operand and result in shared memory, beside the stream");
  shared->add_option("--server", server);
  shared->add_option("--megabytes", megabytes, "Each way");
  shared->add_option("--row-nnz", row_nnz, "Nonzeros of a row");
  shared->add_option("--depth", depth, "Requests at once");
  shared->add_option("--requests", requests, "Requests in all; as many as at once, if not given");
  shared->add_option("--gpu", attached_gpu, "Copies by this one's driver beside them");
  shared->add_option("--runs", runs);
  int64_t attached_rows = 1'000'000, attached_row_nnz = 16, attached_width = 128;
  int attached_threads = 1;
  CLI::App* attached =
      app.add_subcommand("attached", "Products that run here, beside the bare kernel");
  attached->add_option("--server", server);
  attached->add_option("--rows", attached_rows, "And columns");
  attached->add_option("--row-nnz", attached_row_nnz, "Nonzeros of a row");
  attached->add_option("--k", attached_width, "Columns of the operand");
  attached->add_option("--threads", attached_threads, "Of each product");
  int shared_gpu = 0;
  CLI::App* shared_device = app.add_subcommand(
      "shared_device", "Products queued on the server from a stream, beside the bare kernel");
  shared_device->add_option("--server", server);
  shared_device->add_option("--rows", attached_rows, "And columns");
  shared_device->add_option("--row-nnz", attached_row_nnz, "Nonzeros of a row");
  shared_device->add_option("--k", attached_width, "Columns of the operand");
  shared_device->add_option("--gpu", shared_gpu);
  shared_device->add_option("--runs", runs);
  attached->add_option("--gpu", attached_gpu, "On this one; without it, on the CPU");
  attached->add_option("--runs", runs);
  int chain_steps = 10;
  CLI::App* chained =
      app.add_subcommand("chain", "Propagations as one request, beside kernels in a row");
  chained->add_option("--server", server);
  chained->add_option("--rows", attached_rows, "And columns");
  chained->add_option("--row-nnz", attached_row_nnz, "Nonzeros of a row");
  chained->add_option("--k", attached_width, "Columns of the operand");
  chained->add_option("--steps", chain_steps);
  chained->add_option("--threads", attached_threads, "Of each kernel here");
  chained->add_option("--gpu", attached_gpu, "On this one; without it, on the CPU");
  chained->add_option("--runs", runs);
  int heads = 8;
  int64_t heads_rows = 100'000, heads_row_nnz = 16, heads_width = 32;
  CLI::App* of_heads = app.add_subcommand("heads", "Several heads as one request, and as several");
  of_heads->add_option("--server", server);
  of_heads->add_option("--rows", heads_rows, "And columns");
  of_heads->add_option("--row-nnz", heads_row_nnz, "Nonzeros of a row");
  of_heads->add_option("--heads", heads);
  of_heads->add_option("--k", heads_width, "Columns of each head");
  of_heads->add_option("--runs", runs);
  CLI::App* distributed = app.add_subcommand(
      "distributed", "Products of buffers that lie over the server's GPUs, and of whole ones");
  distributed->add_option("--server", server);
  std::string over = "columns";
  distributed->add_option("--over", over, "How they lie")
      ->check(CLI::IsMember({"columns", "rows", "auto"}))
      ->capture_default_str();
  std::string distributed_matrix;
  distributed->add_option("--matrix", distributed_matrix, "A square one (.mtx); else of --rows");
  distributed->add_option("--rows", attached_rows, "And columns");
  distributed->add_option("--row-nnz", attached_row_nnz, "Nonzeros of a row");
  distributed->add_option("--k", attached_width, "Columns of the operand");
  distributed->add_option("--steps", chain_steps);
  distributed->add_option("--runs", runs);
  CLI::App* latency = app.add_subcommand("latency", "Small requests one after the other");
  latency->add_option("--server", server);
  latency->add_option("--runs", runs);
  int64_t spin = 50;
  latency->add_option("--spin", spin, "Microseconds that who waits at a ring looks at it");
  latency->add_option("--gpu", attached_gpu,
                      "The one that the server serves from; without it, on the CPU");
  int64_t held_width = 64;
  CLI::App* held = app.add_subcommand("held", "Requests whose operand and result stay there");
  held->add_option("--server", server);
  held->add_option("--bare", bare);
  held->add_option("--k", held_width, "Columns of the operand");
  double beta = 0;
  held->add_option("--beta", beta, "Of what the result holds already");
  held->add_option("--runs", runs);
  CLI::App* spgemm = app.add_subcommand("spgemm", "A sparse product, streamed");
  spgemm->add_option("--server", server);
  spgemm->add_option("--runs", runs);
  int64_t crowd_width = 128;
  int crowd_clients = 16;
  double crowd_seconds = 10;
  CLI::App* crowd = app.add_subcommand("crowd", "Many clients with buffers of their own");
  crowd->add_option("--server", server);
  crowd->add_option("--clients", crowd_clients);
  crowd->add_option("--k", crowd_width, "Columns of the operands");
  crowd->add_option("--seconds", crowd_seconds, "That are counted");
  std::string batch_matrix;
  int64_t batch_width = 16;
  bool batch_shared = false;
  CLI::App* batch = app.add_subcommand("batch", "Many clients with narrow products on one matrix");
  batch->add_option("--server", server);
  batch->add_option("--matrix", batch_matrix, "A Matrix Market file; without it, one like cora");
  batch->add_option("--clients", crowd_clients);
  batch->add_option("--k", batch_width, "Columns of each operand");
  batch->add_flag("--shared", batch_shared, "Operands and results in shared memory");
  batch->add_option("--seconds", crowd_seconds, "That are counted");
  CLI::App* soak = app.add_subcommand("soak", "Many clients at once for a while");
  soak->add_option("--server", server);
  soak->add_option("--clients", clients);
  soak->add_option("--seconds", seconds);
  PlansOptions plans_options;
  plans_options.widths = {32, 128, 512};
  CLI::App* plans = app.add_subcommand("plans", "What the server chooses for given matrices");
  plans->add_option("--server", server);
  plans->add_option("--pack", plans_options.packs, "Files of sparsed_bench pack");
  plans->add_option("--generated", plans_options.generated, "Names, or all");
  plans->add_option("--only", plans_options.only, "Names");
  plans->add_option("--k", plans_options.widths, "Widths to prepare for")->delimiter(',');
  plans->add_option("--type", plans_options.type)
      ->check(CLI::IsMember({"f32", "f64", "f16", "bf16", "tf32"}));
  plans->add_flag("--squares", plans_options.squares, "S * S instead of dense operands");
  plans->add_option("--seconds", plans_options.seconds, "Begin no other matrix after so long");
  bool ring = false;
  for (CLI::App* const command : {shared, shared_device, of_heads}) {
    command->add_flag("--ring", ring, "Requests through a ring");
    command->add_option("--spin", spin, "Microseconds that who waits at it looks");
  }
  CLI11_PARSE(app, argc, argv);
  ClientOptions options;
  options.ring = ring;
  if (ring) options.ring_spin = std::chrono::microseconds(spin);
  if (*bare_server) return ServeBareStreams(listen);
  if (*streaming) return Streaming(server, bare, megabytes, runs, streams);
  if (*shared) {
    return Shared(server, megabytes, row_nnz, depth, std::max(requests, depth), attached_gpu,
                  options, runs);
  }
  if (*attached) {
    return Attached(server, attached_rows, attached_row_nnz, attached_width, attached_threads,
                    attached_gpu, runs);
  }
  if (*shared_device) {
    return SharedDevice(server, attached_rows, attached_row_nnz, attached_width, shared_gpu,
                        options, runs);
  }
  if (*chained) {
    return Chained(server, attached_rows, attached_row_nnz, attached_width, chain_steps,
                   attached_threads, attached_gpu, runs);
  }
  if (*of_heads) {
    return Heads(server, heads_rows, heads_row_nnz, heads, heads_width, options, runs);
  }
  if (*distributed) {
    const bool made = distributed_matrix.empty();
    const CsrMatrix s =
        made ? Random(attached_rows, attached_row_nnz, 1) : Ones(ReadPattern(distributed_matrix));
    return Distributed(server, made ? "random" : distributed_matrix, s, over, attached_width,
                       chain_steps, runs);
  }
  if (*latency) return Latency(server, spin, attached_gpu, std::max(runs, 1000));
  if (*held) return Held(server, bare, held_width, beta, std::max(runs, 1000));
  if (*spgemm) return Spgemm(server, runs);
  if (*crowd) return Crowd(server, crowd_clients, crowd_width, crowd_seconds);
  if (*batch) {
    const CsrMatrix s = batch_matrix.empty() ? Random(2708, 4, 7) : Ones(ReadPattern(batch_matrix));
    return Batch(server, s, crowd_clients, batch_width, batch_shared, crowd_seconds);
  }
  plans_options.server = server;
  if (*plans) return Plans(plans_options);
  return Soak(server, clients, seconds);
}

}  // namespace
}  // namespace sparsed::bench

int main(int argc, char** argv) { return sparsed::bench::Main(argc, argv); }
