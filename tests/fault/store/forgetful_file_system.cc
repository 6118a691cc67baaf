#include "tests/fault/store/forgetful_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace sparsed::engine {
namespace {

constexpr size_t kSectorBytes = 512;
constexpr size_t kPageBytes = 4096;

size_t Pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

}  // namespace

struct ForgetfulFileSystem::Node {
  bool is_directory = false;
  // A file: what processes see, and what is on the disk.
  std::string current;
  std::string durable;
  /// Pages whose sync failed: they count as clean, so that a later sync does not write them.
  std::set<size_t> dropped_pages;
  const File* lock_holder = nullptr;
  // A directory.
  std::map<std::string, NodePtr> entries;
  std::map<std::string, NodePtr> durable_entries;
};

class ForgetfulFileSystem::OpenFile final : public File {
 public:
  OpenFile(ForgetfulFileSystem& files, NodePtr node, std::string path)
      : files_(files),
        node_(std::move(node)),
        path_(std::move(path)),
        generation_(files.generation_) {}
  ~OpenFile() override {
    const std::lock_guard lock(files_.mutex_);
    if (node_->lock_holder == this) node_->lock_holder = nullptr;
  }

  absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> out) override {
    const std::lock_guard lock(files_.mutex_);
    if (absl::Status status = Count("read"); !status.ok()) return status;
    const auto begin = static_cast<size_t>(offset);
    if (begin >= node_->current.size()) return size_t{0};
    const size_t n = std::min(out.size(), node_->current.size() - begin);
    std::memcpy(out.data(), node_->current.data() + begin, n);
    return n;
  }

  absl::Status Write(int64_t offset, std::span<const std::byte> data) override {
    const std::lock_guard lock(files_.mutex_);
    if (generation_ != files_.generation_) return Dead();
    const auto begin = static_cast<size_t>(offset);
    absl::Status status = Count("write");
    size_t n = status.ok() ? data.size() : data.size() / 2;
    const size_t size = node_->current.size();
    const int64_t room = files_.capacity_ - files_.UsedBytes();
    if (begin + n > size && static_cast<int64_t>(begin + n - size) > room) {
      const size_t end = size + static_cast<size_t>(std::max<int64_t>(room, 0));
      n = end > begin ? end - begin : 0;
      if (status.ok()) {
        status = absl::ResourceExhaustedError(fmt::format(
            "cannot write {} bytes at byte {} of {}: full", data.size(), offset, path_));
      }
    }
    if (!files_.PowerIsOn() && files_.calls_ > files_.cut_at_) n = 0;
    if (n == 0) return status;
    if (begin + n > size) node_->current.resize(begin + n);
    std::memcpy(node_->current.data() + begin, data.data(), n);
    for (size_t page = begin / kPageBytes; page < Pages(begin + n); ++page) {
      node_->dropped_pages.erase(page);
    }
    return status;
  }

  absl::Status Truncate(int64_t size) override {
    const std::lock_guard lock(files_.mutex_);
    if (absl::Status status = Count("truncate"); !status.ok()) return status;
    node_->current.resize(static_cast<size_t>(size));
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    const std::lock_guard lock(files_.mutex_);
    absl::Status status = Count("sync");
    std::string& current = node_->current;
    std::string& durable = node_->durable;
    for (size_t page = 0; page < Pages(current.size()); ++page) {
      const size_t begin = page * kPageBytes;
      const size_t n = std::min(kPageBytes, current.size() - begin);
      const bool clean = begin + n <= durable.size() &&
                         std::memcmp(current.data() + begin, durable.data() + begin, n) == 0;
      if (clean || node_->dropped_pages.contains(page)) continue;
      if (!status.ok()) {
        if (files_.PowerIsOn()) node_->dropped_pages.insert(page);
        continue;
      }
      if (begin + n > durable.size()) durable.resize(begin + n);
      std::memcpy(durable.data() + begin, current.data() + begin, n);
    }
    if (status.ok()) durable.resize(current.size());
    return status;
  }

  absl::StatusOr<int64_t> Size() override {
    const std::lock_guard lock(files_.mutex_);
    if (absl::Status status = Count("size"); !status.ok()) return status;
    return static_cast<int64_t>(node_->current.size());
  }

  absl::Status Lock() override {
    const std::lock_guard lock(files_.mutex_);
    if (absl::Status status = Count("lock"); !status.ok()) return status;
    if (node_->lock_holder != nullptr && node_->lock_holder != this) {
      return absl::FailedPreconditionError(path_ + " is locked");
    }
    node_->lock_holder = this;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsAt(const std::string& path) override {
    const std::lock_guard lock(files_.mutex_);
    if (absl::Status status = Count("look up"); !status.ok()) return status;
    return files_.Find(path) == node_;
  }

 private:
  absl::Status Dead() const {
    return absl::InternalError(path_ + " was open when the machine went down");
  }
  absl::Status Count(const char* what) {
    if (generation_ != files_.generation_) return Dead();
    return files_.Count(fmt::format("{} {}", what, path_));
  }

  ForgetfulFileSystem& files_;
  const NodePtr node_;
  const std::string path_;
  const uint64_t generation_;
};

class ForgetfulFileSystem::HeldLock final : public FileLock {
 public:
  HeldLock(ForgetfulFileSystem& files, std::string path)
      : files_(files), path_(std::move(path)), generation_(files.generation_) {}
  ~HeldLock() override {
    const std::lock_guard lock(files_.mutex_);
    if (generation_ == files_.generation_) files_.locks_.erase(path_);
  }

 private:
  ForgetfulFileSystem& files_;
  const std::string path_;
  const uint64_t generation_;
};

ForgetfulFileSystem::ForgetfulFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}

int64_t ForgetfulFileSystem::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void ForgetfulFileSystem::FailCall(int64_t n) {
  const std::lock_guard lock(mutex_);
  fail_at_ = calls_ + n;
}

void ForgetfulFileSystem::CutPowerAt(int64_t n) {
  const std::lock_guard lock(mutex_);
  cut_at_ = calls_ + n;
}

void ForgetfulFileSystem::SetCapacity(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void ForgetfulFileSystem::ClaimFreeBytes(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  claimed_free_ = bytes;
}

absl::Status ForgetfulFileSystem::Count(const std::string& what) {
  ++calls_;
  if (calls_ == fail_at_) return absl::InternalError("injected: cannot " + what);
  if (!PowerIsOn()) return absl::InternalError("no power: cannot " + what);
  return absl::OkStatus();
}

void ForgetfulFileSystem::Restart(Survivors survivors, uint32_t seed) {
  const std::lock_guard lock(mutex_);
  std::mt19937 random(seed);
  Forget(*root_, survivors, random);
  ++generation_;
  locks_.clear();
  fail_at_ = -1;
  cut_at_ = -1;
}

void ForgetfulFileSystem::Forget(Node& node, Survivors survivors, std::mt19937& random) {
  node.lock_holder = nullptr;
  if (survivors == Survivors::kEverything) {
    for (const auto& [name, entry] : node.entries) Forget(*entry, survivors, random);
    return;
  }
  const auto survives = [&] { return survivors == Survivors::kRandom && random() % 2 == 0; };
  if (node.is_directory) {
    std::map<std::string, NodePtr> left = node.durable_entries;
    for (const auto& [name, entry] : node.entries) {
      const auto it = left.find(name);
      const bool changed = it == left.end() || it->second != entry;
      if (changed && survives()) left[name] = entry;
    }
    for (const auto& [name, entry] : node.durable_entries) {
      if (!node.entries.contains(name) && survives()) left.erase(name);
    }
    node.entries = left;
    node.durable_entries = std::move(left);
    for (const auto& [name, entry] : node.entries) Forget(*entry, survivors, random);
    return;
  }
  std::string left = node.durable;
  if (node.current.size() != left.size() && survives()) left.resize(node.current.size());
  const size_t shared = std::min(left.size(), node.current.size());
  for (size_t begin = 0; begin < shared; begin += kSectorBytes) {
    const size_t n = std::min(kSectorBytes, shared - begin);
    if (std::memcmp(left.data() + begin, node.current.data() + begin, n) != 0 && survives()) {
      std::memcpy(left.data() + begin, node.current.data() + begin, n);
    }
  }
  node.current = left;
  node.durable = std::move(left);
  node.dropped_pages.clear();
}

ForgetfulFileSystem::NodePtr ForgetfulFileSystem::Find(const std::string& path) {
  if (path == "/") return root_;
  std::string name;
  const NodePtr parent = FindParent(path, &name);
  if (parent == nullptr) return nullptr;
  const auto it = parent->entries.find(name);
  return it == parent->entries.end() ? nullptr : it->second;
}

ForgetfulFileSystem::NodePtr ForgetfulFileSystem::FindParent(const std::string& path,
                                                             std::string* name) {
  const size_t slash = path.rfind('/');
  *name = path.substr(slash + 1);
  const NodePtr parent = Find(slash == 0 ? "/" : path.substr(0, slash));
  return parent != nullptr && parent->is_directory ? parent : nullptr;
}

int64_t ForgetfulFileSystem::UsedBytes() const {
  const std::function<int64_t(const Node&)> used = [&](const Node& node) {
    auto bytes = static_cast<int64_t>(node.current.size());
    for (const auto& [name, entry] : node.entries) bytes += used(*entry);
    return bytes;
  };
  return used(*root_);
}

std::string* ForgetfulFileSystem::Contents(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = Find(path);
  return node == nullptr || node->is_directory ? nullptr : &node->current;
}

std::vector<std::string> ForgetfulFileSystem::Names(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  if (const NodePtr node = Find(directory)) {
    for (const auto& [name, entry] : node->entries) names.push_back(name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<File>> ForgetfulFileSystem::Open(const std::string& path,
                                                                OpenMode mode) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("open " + path); !status.ok()) return status;
  std::string name;
  const NodePtr parent = FindParent(path, &name);
  if (parent == nullptr) return absl::NotFoundError(path);
  NodePtr node = Find(path);
  if (node != nullptr && node->is_directory) return absl::FailedPreconditionError(path);
  if (node != nullptr && mode == OpenMode::kCreateNew) return absl::AlreadyExistsError(path);
  if (node == nullptr) {
    if (mode == OpenMode::kRead || mode == OpenMode::kReadWrite) return absl::NotFoundError(path);
    node = std::make_shared<Node>();
    parent->entries[name] = node;
  }
  return std::make_unique<OpenFile>(*this, node, path);
}

absl::StatusOr<bool> ForgetfulFileSystem::Exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("look up " + path); !status.ok()) return status;
  return Find(path) != nullptr;
}

absl::Status ForgetfulFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("rename " + from); !status.ok()) return status;
  std::string from_name;
  std::string to_name;
  const NodePtr from_parent = FindParent(from, &from_name);
  const NodePtr to_parent = FindParent(to, &to_name);
  const NodePtr node = Find(from);
  if (node == nullptr || to_parent == nullptr) return absl::NotFoundError(from);
  from_parent->entries.erase(from_name);
  to_parent->entries[to_name] = node;
  return absl::OkStatus();
}

absl::Status ForgetfulFileSystem::Remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("remove " + path); !status.ok()) return status;
  std::string name;
  const NodePtr parent = FindParent(path, &name);
  if (parent == nullptr || parent->entries.erase(name) == 0) return absl::NotFoundError(path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ForgetfulFileSystem::List(const std::string& directory) {
  {
    const std::lock_guard lock(mutex_);
    if (absl::Status status = Count("list " + directory); !status.ok()) return status;
    if (Find(directory) == nullptr) return absl::NotFoundError(directory);
  }
  return Names(directory);
}

absl::Status ForgetfulFileSystem::CreateDirectory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("make " + path); !status.ok()) return status;
  std::string name;
  const NodePtr parent = FindParent(path, &name);
  if (parent == nullptr) return absl::NotFoundError(path);
  NodePtr& node = parent->entries[name];
  if (node == nullptr) {
    node = std::make_shared<Node>();
    node->is_directory = true;
  }
  return node->is_directory ? absl::OkStatus() : absl::FailedPreconditionError(path);
}

absl::Status ForgetfulFileSystem::SyncDirectory(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("sync " + path); !status.ok()) return status;
  const NodePtr node = Find(path);
  if (node == nullptr || !node->is_directory) return absl::NotFoundError(path);
  node->durable_entries = node->entries;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ForgetfulFileSystem::FreeBytes(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("find the free space of " + path); !status.ok()) return status;
  return claimed_free_ >= 0 ? claimed_free_ : std::max<int64_t>(capacity_ - UsedBytes(), 0);
}

absl::StatusOr<std::unique_ptr<FileLock>> ForgetfulFileSystem::Lock(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = Count("lock " + path); !status.ok()) return status;
  std::string name;
  const NodePtr parent = FindParent(path, &name);
  if (parent == nullptr) return absl::NotFoundError(path);
  if (!locks_.insert(path).second) return absl::FailedPreconditionError(path + " is locked");
  NodePtr& node = parent->entries[name];
  if (node == nullptr) node = std::make_shared<Node>();
  return std::make_unique<HeldLock>(*this, path);
}

}  // namespace sparsed::engine
