#include "server/security/file_watch.h"

#include <chrono>
#include <utility>

#include "base/sleep.h"

namespace sparsed::server {
namespace {

constexpr auto kInterval = std::chrono::seconds(1);

}  // namespace

FileWatch::FileWatch(std::vector<std::string> paths, std::function<void()> changed)
    : paths_(std::move(paths)),
      changed_(std::move(changed)),
      known_(Stamps()),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

std::vector<FileStamp> FileWatch::Stamps() const {
  std::vector<FileStamp> stamps;
  for (const std::string& path : paths_) stamps.push_back(StampOf(path));
  return stamps;
}

void FileWatch::Run(const std::stop_token& stop) {
  std::vector<FileStamp> before = known_;
  while (SleepFor(kInterval, stop)) {
    std::vector<FileStamp> now = Stamps();
    if (now != known_ && now == before) {
      known_ = now;
      changed_();
    }
    before = std::move(now);
  }
}

}  // namespace sparsed::server
