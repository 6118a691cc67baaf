#include "client/cli/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

namespace sparsed::cli {
namespace {

bool IsNumber(std::string_view cell) {
  return cell.find_first_of("0123456789") != std::string_view::npos &&
         cell.find_first_not_of("0123456789.,-+e KMGTiBms%") == std::string_view::npos;
}

/// Characters, not bytes, of UTF-8.
size_t Width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string Table::Text() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  std::vector<bool> numeric(rows_.front().size(), rows_.size() > 1);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i]));
      if (&row != &rows_.front() && !row[i].empty() && !IsNumber(row[i])) numeric[i] = false;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - Width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += numeric[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string Bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Count(int64_t count) {
  const std::string digits = std::to_string(count);
  const size_t sign = count < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Milliseconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3f} ms", static_cast<double>(time.count()) / 1e6);
}

std::string Duration(std::chrono::nanoseconds time) {
  constexpr std::array<std::pair<int64_t, std::string_view>, 4> kUnits = {
      {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}}};
  int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  size_t largest = 0;
  while (largest + 1 < kUnits.size() && seconds < kUnits[largest].first) ++largest;
  std::string text = fmt::format("{} {}", seconds / kUnits[largest].first, kUnits[largest].second);
  seconds %= kUnits[largest].first;
  if (largest + 1 < kUnits.size()) {
    const auto& [unit, name] = kUnits[largest + 1];
    if (seconds >= unit) text += fmt::format(" {} {}", seconds / unit, name);
  }
  return text;
}

std::string Time(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}",
                     fmt::localtime(std::chrono::system_clock::to_time_t(time)));
}

std::string Text(const ProblemClass& c) {
  std::string text = Name(c.operation);
  if (c.transposed) text += "^T";
  if (c.k > 0) text += fmt::format(" K={}", c.k);
  if (c.allow_tf32) text += " TF32";
  return text;
}

std::string NpyTypeText(ValueType type) {
  return type == ValueType::kBF16 ? "float32, which holds bf16 exactly" : Name(type);
}

std::string Text(const Timings& t) {
  std::string phases;
  const auto add = [&phases](const char* name, std::chrono::nanoseconds time) {
    if (time.count() == 0) return;
    phases += fmt::format("{}{} {:.3f}", phases.empty() ? ": " : ", ", name,
                          static_cast<double>(time.count()) / 1e6);
  };
  add("receive", t.receive);
  add("queue", t.queue);
  add("setup", t.setup);
  add("to device", t.to_device);
  add("kernel", t.kernel);
  add("from device", t.from_device);
  add("send", t.send);
  return Milliseconds(t.total) + phases;
}

Json ErrorJson(std::string_view code, std::string_view message) {
  return {{"error", {{"code", code}, {"message", message}}}};
}

ExitCodes ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kBadInput;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kUnavailable:
      return kNoServer;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return kWrongState;
    case absl::StatusCode::kResourceExhausted:
      return kNoRoom;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return kNotInTime;
    case absl::StatusCode::kDataLoss:
      return kDamaged;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kNotAllowed;
    default:
      return kOtherFailure;
  }
}

std::string ExitCodesText() {
  return "Exit codes:\n"
         "   0  success\n"
         "   1  anything else\n"
         "   2  wrong use: a flag or a word of the command line\n"
         "   3  bad input: what a file holds, or a value that the server refuses\n"
         "   4  there is no such matrix\n"
         "   5  no server answers\n"
         "   6  what is there is against it: the name is taken, the version is another\n"
         "   7  no room: memory, disk or a queue\n"
         "   8  not in time, or cancelled\n"
         "   9  stored data is damaged\n"
         "  10  not allowed\n";
}

}  // namespace sparsed::cli
