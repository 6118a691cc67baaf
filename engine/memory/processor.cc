#include "engine/memory/processor.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>

namespace sparsed::engine {
namespace {

constexpr int kTries = 5;
/// Parts that threads copy.
constexpr size_t kParts = 64;
/// Tries of a quiet machine are this near the best at the median, have this share of their
/// processors, and all of the process that runs.
constexpr double kNear = 0.9, kOwn = 0.9, kAlone = 1.05;
constexpr std::chrono::minutes kAgainAfter{1};

CopyTry Copy(std::span<std::byte> from, std::span<std::byte> to, int threads) {
  const size_t part = from.size() / kParts;
  double own = 0;
  const std::clock_t process_begin = std::clock();
  const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : own)
  {
    const double thread_begin = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID);
#pragma omp for schedule(static)
    for (size_t i = 0; i < kParts; ++i) {
      std::memcpy(to.data() + i * part, from.data() + i * part, part);
    }
    own += ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID) - thread_begin;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const double process = static_cast<double>(std::clock() - process_begin) / CLOCKS_PER_SEC;
  const double all = seconds.count() * threads;
  return {2.0 * static_cast<double>(part * kParts) / seconds.count(), own / all, process / all};
}

}  // namespace

const std::string& ProcessorName() {
  static const std::string name = [] {
    std::ifstream cpuinfo("/proc/cpuinfo");
    std::string line;
    while (std::getline(cpuinfo, line)) {
      const size_t colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos) {
        std::string model = line.substr(colon + 2);
        // A hypervisor writes there what it likes.
        std::ranges::replace_if(
            model, [](char c) { return c < ' ' || c > '~'; }, '?');
        return model;
      }
    }
    return std::string("CPU");
  }();
  return name;
}

double ProcessorSeconds(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

int64_t LastLevelCacheBytes() {
  constexpr int64_t kUsual = int64_t{32} << 20;
  static const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? bytes : kUsual;
}

int64_t InnerCacheBytes() {
  constexpr int64_t kUsual = int64_t{1} << 20;
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : kUsual;
}

MemoryRate::MemoryRate(int threads) : threads_(threads) {
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes, std::byte{2});
  Measure(from, to);
}

void MemoryRate::Measure(std::span<std::byte> from, std::span<std::byte> to) {
  const MutexLock lock(mutex_);
  std::vector<CopyTry> tries;
  tries.reserve(kTries);
  for (int i = 0; i < kTries; ++i) tries.push_back(Copy(from, to, threads_));
  Take(std::move(tries));
}

void MemoryRate::Take(std::vector<CopyTry> tries) {
  std::ranges::sort(tries, std::greater<>(), &CopyTry::bytes_per_second);
  const double best = tries.front().bytes_per_second;
  const CopyTry& median = tries[tries.size() / 2];
  // Worker slots and preparations of our own take from the memory's rate, wherever they run.
  const bool quiet = median.bytes_per_second >= kNear * best &&
                     tries.front().processor_share >= kOwn && tries.front().process_share <= kAlone;
  copied_ = quiet ? best : std::max(best, copied_.load());
  quiet_ = quiet;
  taken_ = std::chrono::steady_clock::now();
}

void MemoryRate::Saw(double bytes_per_second) {
  double known = seen_.load();
  while (known < bytes_per_second && !seen_.compare_exchange_weak(known, bytes_per_second)) {
  }
}

bool MemoryRate::due() const {
  return !quiet() && std::chrono::steady_clock::now() - taken_.load() >= kAgainAfter;
}

}  // namespace sparsed::engine
