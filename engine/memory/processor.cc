#include "engine/memory/processor.h"

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
/// Tries of a quiet machine are this near the best at the median, and have this share of their
/// processors.
constexpr double kNear = 0.9, kOwn = 0.9;
constexpr std::chrono::minutes kAgainAfter{1};

CopyTry Copy(std::span<std::byte> from, std::span<std::byte> to, int threads) {
  const size_t part = from.size() / kParts;
  const std::clock_t processor = std::clock();
  const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (size_t i = 0; i < kParts; ++i) {
    std::memcpy(to.data() + i * part, from.data() + i * part, part);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const double used = static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC;
  return {2.0 * static_cast<double>(part * kParts) / seconds.count(),
          used / (seconds.count() * threads)};
}

}  // namespace

const std::string& ProcessorName() {
  static const std::string name = [] {
    std::ifstream cpuinfo("/proc/cpuinfo");
    std::string line;
    while (std::getline(cpuinfo, line)) {
      const size_t colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos) {
        return line.substr(colon + 2);
      }
    }
    return std::string("CPU");
  }();
  return name;
}

MemoryRate::MemoryRate(int threads) : threads_(threads) {
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes, std::byte{2});
  Measure(from, to);
}

void MemoryRate::Measure(std::span<std::byte> from, std::span<std::byte> to) {
  std::lock_guard lock(mutex_);
  std::vector<CopyTry> tries;
  for (int i = 0; i < kTries; ++i) tries.push_back(Copy(from, to, threads_));
  Take(std::move(tries));
}

void MemoryRate::Take(std::vector<CopyTry> tries) {
  std::ranges::sort(tries, std::greater<>(), &CopyTry::bytes_per_second);
  const double best = tries.front().bytes_per_second;
  const CopyTry& median = tries[tries.size() / 2];
  const bool quiet =
      median.bytes_per_second >= kNear * best && tries.front().processor_share >= kOwn;
  bytes_per_second_ = quiet ? best : std::max(best, bytes_per_second_.load());
  quiet_ = quiet;
  taken_ = std::chrono::steady_clock::now();
}

bool MemoryRate::due() const {
  return !quiet() && std::chrono::steady_clock::now() - taken_.load() >= kAgainAfter;
}

}  // namespace sparsed::engine
