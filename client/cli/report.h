// What a command has to say, to people and to programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/json.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// How text is written, for whoever reads it.
struct TextStyle {
  bool separators = true;  ///< in numbers; a program does without
  int width = 0;           ///< columns of the terminal that tables are to fit; 0: any
  bool wide = false;       ///< all columns of a listing, and all of what is in them
};
/// This process's. Changed by the program's main thread alone, before it runs a command.
TextStyle& Style();

/// Columns are as wide as their widest cell; columns of numbers are aligned to the right. Where the
/// style has a width that they do not fit, sentences (columns with cells of four words and more) go
/// to lines of their own below their rows; half a name, an id, a time or a kernel is of no use to
/// anybody, so where that is not enough pipelines are shown without their parameters, and then
/// whole columns are left out.
class Table {
 public:
  /// `less_needed`: titles of those that may be left out, in this order; `told_below`: those among
  /// them that are told below their rows then.
  explicit Table(std::vector<std::string> header, std::vector<std::string> less_needed = {},
                 std::vector<std::string> told_below = {})
      : less_needed_(std::move(less_needed)), told_below_(std::move(told_below)) {
    rows_.push_back(std::move(header));
  }
  /// Rows stay on their lines: sentences are cut to fit.
  void KeepToLines() { one_line_ = true; }
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  /// Without the columns that no row has anything in.
  void LeaveOutEmptyColumns();
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::string> less_needed_, told_below_;
  bool one_line_ = false;
};

/// Things of one kind: a line each for people, an array of objects for programs.
class Listing {
 public:
  struct Column {
    std::string title;
    std::string key;    ///< of the objects' member that it is of; "a/b": of one in another
    bool wide = false;  ///< shown only where there is room for all (TextStyle::wide)

    /// The title as --sort takes it: "time-to-live".
    std::string Word() const;
  };
  /// `key`: of the array in the command's JSON; `none`: what is said of an empty one.
  Listing(std::string key, std::string none, std::vector<Column> columns)
      : key_(std::move(key)), none_(std::move(none)), columns_(std::move(columns)) {}
  /// The array in the command's JSON has this member of each object, once, in their order: several
  /// lines may be of one thing, and one without cells has no line.
  void Whole(std::string member) { whole_ = std::move(member); }
  /// Titles of columns that may be left out where a line has no room for all, in this order.
  void LeaveOut(std::vector<std::string> titles) { less_needed_ = std::move(titles); }

  void Add(Json object, std::vector<std::string> cells) {
    items_.push_back({std::move(object), std::move(cells)});
  }
  /// By a column's title or a member's key, in any case; descending with "-" in front. Equal ones
  /// stay in their order. INVALID_ARGUMENT says what there is to sort by.
  absl::Status Sort(std::string_view by);
  std::string Text() const;
  Json ToJson() const;

 private:
  struct Item {
    Json object;
    std::vector<std::string> cells;
  };

  std::string key_, none_, whole_;
  std::vector<Column> columns_;
  std::vector<std::string> less_needed_;
  std::vector<Item> items_;
};

/// The member's key of the column that --sort means, with or without "-" in front; empty: of none.
std::string SortKey(std::string_view by, const std::vector<Listing::Column>& columns);
/// What there is no column for: and the words of all.
std::string NoSuchColumn(std::string_view by, const std::vector<Listing::Column>& columns);
/// Whether the one comes before the other, by that member.
bool SortsBefore(const Json& a, const Json& b, const std::string& key, bool descending);

/// The same facts twice.
struct Report {
  static Report Of(Listing listing) {
    Report report;
    report.listing = std::move(listing);
    return report;
  }
  /// Of several things, this one failed: the exit code is the first one's.
  void Failed(const absl::Status& status, std::string_view name);

  Json json;
  std::string text;                     ///< whole lines
  std::optional<Listing> listing = {};  ///< in the place of both, so that it can be sorted
  std::string below = {};               ///< whole lines behind the listing
  std::string problems = {};            ///< whole lines, for standard error
  bool written = false;                 ///< the command wrote as it went: there is nothing more
  int exit_code = 0;
};

/// "aspt > lsh_cluster" of "aspt(panel=64) > lsh_cluster(siglen=128)".
std::string WithoutParameters(std::string_view pipeline);
/// `line` with its end, broken between words where the style has a width; further lines begin with
/// `indent`.
std::string Wrapped(std::string_view line, std::string_view indent);

/// "1.5 MiB".
std::string Bytes(int64_t bytes);
/// "1234567" as "1,234,567"; without the separators where the style says so.
std::string Count(int64_t count);
/// "1 nonzero", "1,234 nonzeros"; `several` where that is no "s" behind it.
std::string Counted(int64_t count, std::string_view one, std::string_view several = "");
/// "1.234 ms".
std::string Milliseconds(std::chrono::nanoseconds time);
/// The two largest units: "23 h 59 min", "10 s"; "0 s" below one.
std::string Duration(std::chrono::nanoseconds time);
/// In UTC, as the server's log: "2026-01-31 12:00:00Z".
std::string Time(std::chrono::system_clock::time_point time);
/// "spmm^T K=64".
std::string Text(const ProblemSignature& signature);
/// Phases that happened: "0.812 ms: queue 0.010, receive 0.301, kernel 0.401, send 0.100".
std::string Text(const Timings& timings);

/// "3.2 us", "1.234 ms", "12.3 s": three digits and a unit that fits.
std::string ShortTime(std::chrono::nanoseconds time);

/// What a .npy file of the type holds: "f32"; "float32, which holds bf16 exactly".
std::string NpyTypeText(ValueType type);

/// Whether it counts requests that failed; whoever was told which node to ask did not.
bool IsFailure(const RequestCount& count);

/// {"error": {"code": "NOT_FOUND", "message": "..."}}
Json ErrorJson(std::string_view code, std::string_view message);

/// What a script can tell failures apart by.
enum ExitCodes : int {
  kSuccess = 0,
  kOtherFailure = 1,
  kWrongUse = 2,
  kBadInput = 3,     ///< INVALID_ARGUMENT, OUT_OF_RANGE: a file, or none, or a flag's value
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
