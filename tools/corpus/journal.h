// A file of JSON lines that a run appends to, pattern by pattern, and that the next run goes on
// with.
//
// Every line is an object with "line":
//   "run"          the first line: what all measurements of the file were made with
//   "begin"        work on a pattern begins
//   "measurement"  one of that pattern
//   "pattern"      the pattern is done, or "failed" says why it is not; its features
// What stands behind the last "begin" or "pattern" when a file is opened is of a pattern that was
// not finished, and goes. So does an unfinished first line, if it is the beginning of this run's.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace sparsed::corpus {

class Journal {
 public:
  using Json = nlohmann::ordered_json;

  /// Opens or begins the file, with `run` ("line" is added) as its first line, and takes what is
  /// there as done. The file is locked against another process's journal. INVALID_ARGUMENT: it is
  /// something else, or another run's; FAILED_PRECONDITION: it is in use.
  static absl::StatusOr<Journal> Open(const std::string& path, Json run);

  /// From now on SIGINT and SIGTERM, before they end the process, take out of the file what belongs
  /// to a pattern that is not finished: that it was begun is no attempt then. Called once in a
  /// process, which keeps the file locked until it ends. Errors: INTERNAL.
  absl::Status ForgetWhenInterrupted();

  bool IsDone(std::string_view pattern) const { return done_.contains(pattern); }
  /// How often work on the pattern began without coming to an end.
  int attempts(std::string_view pattern) const;
  size_t done() const { return done_.size(); }

  /// `fields` hold what there is besides "line" and "pattern". What is appended is written at once,
  /// and stays if the process is killed. Errors: INTERNAL, with the path (the disk is full).
  absl::Status Begin(const std::string& pattern);
  absl::Status AddMeasurement(const std::string& pattern, const Json& fields);
  absl::Status End(const std::string& pattern, const Json& fields);

 private:
  Journal(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  /// Reads the lines; where what is to be kept of the file ends.
  absl::StatusOr<size_t> Read(const Json& run);
  absl::Status Write(std::string_view line, const std::string& pattern, const Json& fields);
  absl::Status Append(const Json& object);

  std::string path_;
  Descriptor file_;
  std::set<std::string, std::less<>> done_;
  std::map<std::string, int, std::less<>> attempts_;
};

}  // namespace sparsed::corpus
