#include "tools/corpus/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace sparsed::corpus {
namespace {

constexpr std::string_view kRun = "run", kBegin = "begin", kMeasurement = "measurement",
                           kPattern = "pattern";

absl::Status Failed(std::string_view doing, std::string_view path) {
  return absl::InternalError(fmt::format("{} {}: {}", doing, path, std::strerror(errno)));
}

/// Members that both have and that differ, for people.
std::string Differences(const Journal::Json& was, const Journal::Json& is) {
  std::string text;
  for (const auto& [key, value] : is.items()) {
    if (was.contains(key) && was[key] == value) continue;
    text += fmt::format("{}{} is {}, not {}", text.empty() ? "" : "; ", key, value.dump(),
                        was.contains(key) ? was[key].dump() : "known");
  }
  return text.empty() ? "it knows more of its run" : text;
}

/// Names of files may be in any encoding.
std::string LineOf(const Journal::Json& object) {
  return object.dump(-1, ' ', false, Journal::Json::error_handler_t::replace) + '\n';
}

std::string TextOf(const Journal::Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_string()
             ? object[key].get<std::string>()
             : std::string();
}

/// For the handler of signals: the file, and where the lines of the pattern under way begin in it,
/// -1 between patterns.
std::atomic<int> interrupted_file = -1;
std::atomic<off_t> unfinished_begin = -1;
static_assert(std::atomic<off_t>::is_always_lock_free);

/// Linux runs it on the main thread, which writes the journal and does not go on.
void ForgetUnfinished(int signal) {
  const off_t begin = unfinished_begin;
  // If it fails, the attempt counts.
  [[maybe_unused]] const int cut = begin < 0 ? 0 : ftruncate(interrupted_file, begin);
  raise(signal);  // ends the process once this returns, as SA_RESETHAND has it
}

}  // namespace

absl::StatusOr<Journal> Journal::Open(const std::string& path, Json run) {
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.open()) {
    return absl::InvalidArgumentError(fmt::format("opening {}: {}", path, std::strerror(errno)));
  }
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(fmt::format("{} is in use by another process", path));
  }
  Json first = {{"line", kRun}};
  first.update(run);
  Journal journal(path, std::move(file));
  const absl::StatusOr<size_t> end = journal.Read(first);
  if (!end.ok()) return end.status();
  if (ftruncate(journal.file_.fd(), static_cast<off_t>(*end)) != 0) return Failed("cutting", path);
  if (*end == 0) {
    if (absl::Status status = journal.Append(first); !status.ok()) return status;
  }
  return journal;
}

absl::StatusOr<size_t> Journal::Read(const Json& run) {
  std::ifstream in(path_, std::ios::binary);
  size_t end = 0, keep = 0, number = 0;
  for (std::string text; std::getline(in, text);) {
    if (in.eof()) {  // the process ended within the line, if it is one of ours
      if (number > 0 || LineOf(run).starts_with(text)) break;
      return absl::InvalidArgumentError(
          fmt::format("{} does not begin as a file of these measurements does", path_));
    }
    ++number;
    end += text.size() + 1;
    const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const std::string line = TextOf(object, "line"), pattern = TextOf(object, "pattern");
    if (number == 1) {
      if (line != kRun) {
        return absl::InvalidArgumentError(
            fmt::format("{} does not begin as a file of measurements does", path_));
      }
      if (object != run) {
        return absl::InvalidArgumentError(
            fmt::format("{} is of another run: {}", path_, Differences(object, run)));
      }
      keep = end;
      continue;
    }
    if (line == kBegin && !pattern.empty()) {
      ++attempts_[pattern];
      keep = end;
    } else if (line == kPattern && !pattern.empty()) {
      done_.insert(pattern);
      keep = end;
    } else if (line != kMeasurement) {
      return absl::InvalidArgumentError(
          fmt::format("{}:{}: this is no line of measurements", path_, number));
    }
  }
  return keep;
}

int Journal::attempts(std::string_view pattern) const {
  const auto found = attempts_.find(pattern);
  return found == attempts_.end() ? 0 : found->second;
}

absl::Status Journal::Append(const Json& object) {
  const std::string text = LineOf(object);
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(file_.fd(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("writing", path_);
    written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::Status Journal::Write(std::string_view line, const std::string& pattern, const Json& fields) {
  Json object = {{"line", line}, {"pattern", pattern}};
  object.update(fields);
  return Append(object);
}

absl::Status Journal::ForgetWhenInterrupted() {
  // A descriptor of its own, as a signal may come when the journal is closed.
  interrupted_file = fcntl(file_.fd(), F_DUPFD_CLOEXEC, 0);
  if (interrupted_file < 0) return Failed("preparing for signals", path_);
  struct sigaction action = {};
  action.sa_handler = ForgetUnfinished;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    // What whoever started the process has it ignore stays ignored.
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  return absl::OkStatus();
}

absl::Status Journal::Begin(const std::string& pattern) {
  ++attempts_[pattern];
  unfinished_begin = lseek(file_.fd(), 0, SEEK_END);
  return Write(kBegin, pattern, Json::object());
}

absl::Status Journal::AddMeasurement(const std::string& pattern, const Json& fields) {
  return Write(kMeasurement, pattern, fields);
}

absl::Status Journal::End(const std::string& pattern, const Json& fields) {
  done_.insert(pattern);
  const absl::Status status = Write(kPattern, pattern, fields);
  unfinished_begin = -1;
  return status;
}

}  // namespace sparsed::corpus
