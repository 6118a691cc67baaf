// CUDA graphs for tests, without CUDA's types. All end the program if they fail.
#pragma once

#include <functional>

namespace sparsed::test {

/// What `queue` puts into a stream, to be run there any number of times.
class CapturedGraph {
 public:
  /// `global`: meanwhile all other threads are forbidden what could spoil it, those of a server in
  /// this process, too.
  explicit CapturedGraph(const std::function<void(void* stream)>& queue, bool global = false);
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph();

  /// Returns when it is done.
  void Run();

 private:
  void* stream_ = nullptr;
  void* runs_ = nullptr;
};

}  // namespace sparsed::test
