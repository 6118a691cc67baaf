#include "client/cli/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <set>
#include <utility>

#include "sparsed/client.h"

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

/// The first `width` characters, or all; of those left out "..." tells in the last three.
std::string Cut(const std::string& text, size_t width) {
  if (Width(text) <= width) return text;
  constexpr std::string_view kMore = "...";
  std::string cut;
  size_t characters = 0;
  for (const char c : text) {
    if ((c & 0xc0) != 0x80 && ++characters > width - kMore.size()) break;
    cut += c;
  }
  return cut += kMore;
}

/// Sentences may be cut to so many characters, where a row has to stay on its line.
constexpr size_t kLeastSentence = 12;
/// Before what is told below a row.
constexpr std::string_view kBelow = "    ";

/// The columns of transform pipelines, and of plans, which have some words in them.
constexpr std::string_view kPipeline = "PIPELINE", kPlan = "PLAN";

bool IsSentence(std::string_view cell) {
  constexpr int kWords = 4;
  return std::ranges::count(cell, ' ') >= kWords - 1;
}

/// Columns of a table as they are shown.
struct Layout {
  std::vector<size_t> widths;   ///< 0: left out
  std::vector<bool> sentences;  ///< it may be cut
  std::vector<bool> numeric;    ///< aligned to the right

  size_t Width(const std::function<size_t(size_t column)>& width_of) const {
    size_t taken = 0, shown = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] == 0) continue;
      taken += width_of(i);
      ++shown;
    }
    return taken + (shown > 0 ? 2 * (shown - 1) : 0);
  }
  size_t Width() const {
    return Width([this](size_t i) { return widths[i]; });
  }
  /// With sentences as short as they may be.
  size_t Least() const {
    return Width([this](size_t i) {
      return sentences[i] ? std::min(widths[i], kLeastSentence) : widths[i];
    });
  }
  /// Of those that are shown, the column of the widest sentence; none: as many as there are.
  size_t WidestSentence() const {
    size_t widest = widths.size();
    for (size_t i = 0; i < widths.size(); ++i) {
      if (!sentences[i] || widths[i] == 0) continue;
      if (widest == widths.size() || widths[i] > widths[widest]) widest = i;
    }
    return widest;
  }
  /// Makes sentences shorter, the longest first, until a line fits `line`.
  void Shrink(size_t line) {
    for (size_t taken = Width(); taken > line; --taken) {
      const size_t widest = WidestSentence();
      if (widest == widths.size() || widths[widest] <= kLeastSentence) return;
      --widths[widest];
    }
  }
};

/// Of a header and what is below it.
Layout LayoutOf(const std::vector<std::vector<std::string>>& rows) {
  const size_t columns = rows.front().size();
  Layout layout{std::vector<size_t>(columns, 0), std::vector<bool>(columns, false),
                std::vector<bool>(columns, rows.size() > 1)};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      layout.widths[i] = std::max({layout.widths[i], Width(row[i]), size_t{1}});
      if (&row == &rows.front()) continue;
      if (!row[i].empty() && !IsNumber(row[i])) layout.numeric[i] = false;
      const std::string& title = rows.front()[i];
      if (i > 0 && title != kPipeline && title != kPlan && IsSentence(row[i])) {
        layout.sentences[i] = true;
      }
    }
  }
  return layout;
}

std::string Lower(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower;
}

/// A table as it is shown.
struct Shown {
  explicit Shown(std::vector<std::vector<std::string>> all)
      : rows(std::move(all)), layout(LayoutOf(rows)), below(rows.size()) {}

  /// The column's cells, each with `title` in front.
  void TellBelow(size_t column, std::string_view title) {
    layout.widths[column] = 0;
    for (size_t i = 1; i < rows.size(); ++i) {
      const std::string& cell = rows[i][column];
      if (cell.empty()) continue;
      below[i] += fmt::format("{}{}{}", below[i].empty() ? "" : "; ", title, cell);
    }
  }
  /// Of pipelines.
  void LeaveOutParameters() {
    for (size_t i = 0; i < layout.widths.size(); ++i) {
      if (rows.front()[i] != kPipeline) continue;
      for (auto& row : rows) row[i] = WithoutParameters(row[i]);
      layout.widths[i] = LayoutOf(rows).widths[i];
    }
  }
  std::string Text() const {
    std::string text;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::string line;
      for (size_t i = 0; i < rows[r].size(); ++i) {
        if (layout.widths[i] == 0) continue;
        const std::string cell = Cut(rows[r][i], layout.widths[i]);
        const std::string padding(layout.widths[i] - Width(cell), ' ');
        if (i > 0) line += "  ";
        line += layout.numeric[i] ? padding + cell : cell + padding;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + '\n';
      if (!below[r].empty()) text += Wrapped(fmt::format("{}{}", kBelow, below[r]), kBelow);
    }
    return text;
  }

  std::vector<std::vector<std::string>> rows;
  Layout layout;
  std::vector<std::string> below;  ///< of each row
};

/// What is not there comes last, lists go by their length.
bool Before(const Json& a, const Json& b) {
  const auto rank = [](const Json& j) { return j.is_null() ? 2 : j.is_number() ? 0 : 1; };
  if (a.is_array() && b.is_array()) return a.size() < b.size();
  if (rank(a) != rank(b)) return rank(a) < rank(b);
  return a < b;
}

}  // namespace

std::string WithoutParameters(std::string_view pipeline) {
  std::string text;
  bool inside = false;
  for (const char c : pipeline) {
    if (c == '(') inside = true;
    if (!inside) text += c;
    if (c == ')') inside = false;
  }
  return text;
}

TextStyle& Style() {
  static TextStyle style;
  return style;
}

std::string Listing::Column::Word() const {
  std::string word = Lower(title);
  std::ranges::replace(word, ' ', '-');
  return word;
}

std::string SortKey(std::string_view by, const std::vector<Listing::Column>& columns) {
  if (by.starts_with('-')) by.remove_prefix(1);
  const std::string wanted = Lower(by);
  for (const Listing::Column& column : columns) {
    if (wanted == column.Word() || wanted == column.key) return column.key;
  }
  return "";
}

std::string NoSuchColumn(std::string_view by, const std::vector<Listing::Column>& columns) {
  if (by.starts_with('-')) by.remove_prefix(1);
  std::string known;
  for (const Listing::Column& column : columns) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", column.Word());
  }
  return fmt::format("nothing is listed by \"{}\"; --sort takes {}", by, known);
}

bool SortsBefore(const Json& a, const Json& b, const std::string& key, bool descending) {
  const Json::json_pointer pointer("/" + key);
  const auto value = [&pointer](const Json& object) {
    return object.contains(pointer) ? object.at(pointer) : Json();
  };
  return descending ? Before(value(b), value(a)) : Before(value(a), value(b));
}

absl::Status Listing::Sort(std::string_view by) {
  const std::string key = SortKey(by, columns_);
  if (key.empty()) return absl::InvalidArgumentError(NoSuchColumn(by, columns_));
  std::ranges::stable_sort(items_, [&](const Item& a, const Item& b) {
    return SortsBefore(a.object, b.object, key, by.starts_with('-'));
  });
  return absl::OkStatus();
}

std::string Listing::Text() const {
  const auto shown = [this](const auto& cells, const auto& cell_of) {
    std::vector<std::string> row;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!columns_[i].wide || Style().wide) row.push_back(cell_of(cells[i]));
    }
    return row;
  };
  Table table(shown(columns_, [](const Column& column) { return column.title; }), less_needed_);
  for (const Item& item : items_) {
    if (item.cells.empty()) continue;
    table.Add(shown(item.cells, [](const std::string& cell) { return cell; }));
  }
  return table.empty() ? none_ + "\n" : table.Text();
}

Json Listing::ToJson() const {
  Json array = Json::array();
  std::set<Json> told;
  for (const Item& item : items_) {
    const Json& object = whole_.empty() ? item.object : item.object.at(whole_);
    if (whole_.empty() || told.insert(object).second) array.push_back(object);
  }
  return {{key_, std::move(array)}};
}

void Report::Failed(const absl::Status& status, std::string_view name) {
  if (exit_code == 0) exit_code = ExitCode(status);
  const std::string message(status.message());
  Json failure = {
      {"name", name}, {"code", absl::StatusCodeToString(status.code())}, {"message", message}};
  const std::string id = RequestId(status).value_or("");
  if (!id.empty()) failure["request_id"] = id;
  problems += id.empty() ? fmt::format("sparsectl: {}\n", message)
                         : fmt::format("sparsectl: {} (request {})\n", message, id);
  json["failed"].push_back(std::move(failure));
}

void Table::LeaveOutEmptyColumns() {
  for (size_t i = rows_.front().size(); i-- > 0;) {
    const bool has_any = std::any_of(rows_.begin() + 1, rows_.end(),
                                     [i](const auto& row) { return !row[i].empty(); });
    if (has_any) continue;
    for (auto& row : rows_) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::string Table::Text() const {
  Shown table(rows_);
  if (Style().width > 0 && !Style().wide) {
    const auto line = static_cast<size_t>(Style().width);
    const auto fits = [&] {
      return (one_line_ ? table.layout.Least() : table.layout.Width()) <= line;
    };
    for (int told = 0; !one_line_ && !fits(); ++told) {
      const size_t sentence = table.layout.WidestSentence();
      if (sentence == rows_.front().size()) break;
      table.TellBelow(sentence, told == 0 ? "" : Lower(rows_.front()[sentence]) + " ");
    }
    if (!fits()) table.LeaveOutParameters();
    for (const std::string& title : less_needed_) {
      if (fits()) break;
      const auto column =
          static_cast<size_t>(std::ranges::find(rows_.front(), title) - rows_.front().begin());
      if (column == rows_.front().size() || table.layout.widths[column] == 0) continue;
      if (!one_line_ && std::ranges::find(told_below_, title) != told_below_.end()) {
        table.TellBelow(column, Lower(title) + " ");
      } else {
        table.layout.widths[column] = 0;
      }
    }
    if (one_line_) table.layout.Shrink(line);
  }
  return table.Text();
}

std::string Wrapped(std::string_view line, std::string_view indent) {
  const auto most = static_cast<size_t>(Style().width);
  std::string text;
  while (most > indent.size() && !Style().wide &&
         Width(line) > most - (text.empty() ? 0 : indent.size())) {
    const std::string_view start = text.empty() ? "" : indent;
    const size_t room = most - start.size();
    // The last space before the edge, behind what the line begins with; else the first behind it.
    const size_t first = std::min(line.find_first_not_of(' '), line.size());
    size_t space = line.rfind(' ', room);
    if (space == line.npos || space <= first) space = line.find(' ', first);
    if (space == line.npos) break;
    text += fmt::format("{}{}\n", start, line.substr(0, space));
    line.remove_prefix(std::min(line.find_first_not_of(' ', space), line.size()));
  }
  return text + fmt::format("{}{}\n", text.empty() ? "" : indent, line);
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
  if (!Style().separators) return digits;
  const size_t sign = count < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Counted(int64_t count, std::string_view one, std::string_view several) {
  if (count == 1) return fmt::format("1 {}", one);
  return several.empty() ? fmt::format("{} {}s", Count(count), one)
                         : fmt::format("{} {}", Count(count), several);
}

std::string Milliseconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3f} ms", static_cast<double>(time.count()) / 1e6);
}

std::string ShortTime(std::chrono::nanoseconds time) {
  constexpr std::array<const char*, 4> kUnits = {"ns", "us", "ms", "s"};
  auto value = static_cast<double>(time.count());
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
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
  return fmt::format("{:%Y-%m-%d %H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

std::string Text(const ProblemSignature& c) {
  std::string text = Name(c.operation);
  if (c.transposed) text += "^T";
  if (c.k > 0) text += fmt::format(" K={}", c.k);
  if (c.allow_tf32) text += " TF32";
  return text;
}

std::string NpyTypeText(ValueType type) {
  return type == ValueType::kBF16 ? "float32, which holds bf16 exactly" : Name(type);
}

namespace {

/// Who had the worker slots meanwhile, if that was not mostly the tenant itself.
std::string QueueText(const Timings& t) {
  std::vector<std::string> parts;
  const auto add = [&](std::chrono::nanoseconds time, const char* who) {
    if (time.count() == 0 || 10 * time < t.queue) return;
    parts.push_back(fmt::format("{:.3f} behind {}", static_cast<double>(time.count()) / 1e6, who));
  };
  add(t.queue_trials, "autotuning");
  add(t.queue_others, "other tenants");
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

}  // namespace

std::string Text(const Timings& t) {
  std::string phases;
  std::chrono::nanoseconds sum{};
  const auto add = [&phases, &sum](const char* name, std::chrono::nanoseconds time) {
    if (time.count() == 0) return;
    sum += time;
    phases += fmt::format("{}{} {:.3f}", phases.empty() ? ": " : ", ", name,
                          static_cast<double>(time.count()) / 1e6);
  };
  add("receive", t.receive);
  add("queue", t.queue);
  phases += QueueText(t);
  add("setup", t.setup);
  add("to device", t.to_device);
  add("kernel", t.kernel);
  add("from device", t.from_device);
  add("send", t.send);
  // Else the parts contradict the whole. By less than a microsecond nobody sees it.
  if (t.total.count() > 0 && sum > t.total + std::chrono::microseconds(1)) {
    return Milliseconds(t.total) + phases + " (they overlap)";
  }
  if (!phases.empty() && 10 * sum < 9 * t.total) add("other", t.total - sum);
  return Milliseconds(t.total) + phases;
}

bool IsFailure(const RequestCount& count) {
  return count.code != "OK" && count.code != "REDIRECTED";
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
         "   3  bad input: a file that is not there, what one holds, or a value that the server "
         "refuses\n"
         "   4  there is no such matrix, buffer or model\n"
         "   5  no server answers\n"
         "   6  conflict: the name is taken, the version is another, others use the device,\n"
         "      nothing can be durable\n"
         "   7  no room: memory, disk or a queue\n"
         "   8  not in time, or cancelled\n"
         "   9  stored data is damaged\n"
         "  10  not allowed\n";
}

}  // namespace sparsed::cli
