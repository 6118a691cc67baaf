// Tells when files were changed or replaced.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/private_file.h"

namespace sparsed::server {

/// A thread that looks every second, and through links, as secrets in Kubernetes are.
class FileWatch {
 public:
  /// Calls `changed` on its thread once the files are others than when this was made, or than at
  /// the last call, and have been the same for a second: whoever writes them may be half done.
  FileWatch(std::vector<std::string> paths, std::function<void()> changed);
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

 private:
  std::vector<FileStamp> Stamps() const;
  void Run(const std::stop_token& stop);

  const std::vector<std::string> paths_;
  const std::function<void()> changed_;
  std::vector<FileStamp> known_;  ///< the thread's, as it was told last
  std::jthread thread_;           ///< last
};

}  // namespace sparsed::server
