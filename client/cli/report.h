// What a command has to say, to people and to programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/json.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// The same facts twice.
struct Report {
  Json json;
  std::string text;  ///< whole lines
};

/// Columns are as wide as their widest cell; columns of numbers are aligned to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "1.5 MiB".
std::string Bytes(int64_t bytes);
/// "1234567" as "1,234,567".
std::string Count(int64_t count);
/// "1.234 ms".
std::string Milliseconds(std::chrono::nanoseconds time);
/// The two largest units: "23 h 59 min", "10 s"; "0 s" below one.
std::string Duration(std::chrono::nanoseconds time);
/// Local time.
std::string Time(std::chrono::system_clock::time_point time);
/// "spmm^T K=64".
std::string Text(const ProblemClass& problem_class);
/// Phases that happened: "0.812 ms: queue 0.010, receive 0.301, kernel 0.401, send 0.100".
std::string Text(const Timings& timings);

/// What a .npy file of the type holds: "f32"; "float32, which holds bf16 exactly".
std::string NpyTypeText(ValueType type);

/// {"error": {"code": "NOT_FOUND", "message": "..."}}
Json ErrorJson(std::string_view code, std::string_view message);

/// What a script can tell failures apart by.
enum ExitCodes : int {
  kSuccess = 0,
  kOtherFailure = 1,
  kWrongUse = 2,
  kBadInput = 3,     ///< INVALID_ARGUMENT, OUT_OF_RANGE: a file or a flag's value
  kNotFound = 4,     ///< NOT_FOUND: on the server
  kNoServer = 5,     ///< UNAVAILABLE
  kWrongState = 6,   ///< ALREADY_EXISTS, FAILED_PRECONDITION, ABORTED
  kNoRoom = 7,       ///< RESOURCE_EXHAUSTED: memory, disk, a queue, here or there
  kNotInTime = 8,    ///< DEADLINE_EXCEEDED, CANCELLED
  kDamaged = 9,      ///< DATA_LOSS
  kNotAllowed = 10,  ///< UNAUTHENTICATED, PERMISSION_DENIED
};
ExitCodes ExitCode(const absl::Status& status);
/// For --help, a line each.
std::string ExitCodesText();

}  // namespace sparsed::cli
