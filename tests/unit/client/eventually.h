// Waiting for what others do in their own time.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace sparsed::test {

/// False if it does not become true within half a minute.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace sparsed::test
