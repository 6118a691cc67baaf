#include "client/cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {

std::string CheckType(const std::string& text) { return Refusal(ParseType(text)); }

namespace {

/// Seconds in a unit of time, by its name.
using TimeUnits = std::span<const std::pair<std::string_view, double>>;

/// The seconds of a number and its unit, of up to 366 days; none: it makes no sense.
template <typename Number>
std::optional<double> ParseSeconds(std::string_view text, TimeUnits units) {
  constexpr double kMost = 366 * 86400.0;
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number <= 0) return std::nullopt;
  for (const auto& [unit, seconds] : units) {
    if (std::string_view(parsed, end) != unit) continue;
    const double all = static_cast<double>(number) * seconds;
    return all <= kMost ? std::optional(all) : std::nullopt;
  }
  return std::nullopt;
}

std::chrono::nanoseconds InNanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

absl::StatusOr<std::chrono::nanoseconds> ParseTimeout(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  if (const auto seconds = ParseSeconds<double>(text, kUnits)) return InNanoseconds(*seconds);
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" is not a time such as 500ms, 30s, 5m or 1h", text));
}

absl::StatusOr<std::chrono::nanoseconds> ParseDuration(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits = {
      {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}};
  if (const auto seconds = ParseSeconds<int64_t>(text, kUnits)) return InNanoseconds(*seconds);
  return absl::InvalidArgumentError(
      fmt::format("\"{}\" is not a time such as 90s, 10m, 24h or 7d, of at most 366 days", text));
}

CLI::App* AddCommand(CLI::App& app, const char* name, const char* description,
                     std::initializer_list<const char*> examples) {
  CLI::App* command = app.add_subcommand(name, description);
  std::string text = examples.size() == 1 ? "Example:" : "Examples:";
  for (const char* example : examples) text += fmt::format("\n  sparsectl {}", example);
  command->footer(text);
  return command;
}

std::string ExampleLines(std::initializer_list<const char*> lines) {
  std::string text = "Examples:";
  for (const char* line : lines) text += fmt::format("\n  {}", line);
  return text;
}

CLI::Option* AddName(CLI::App* command, std::string& name) {
  return command->add_option("NAME", name, "The matrix")->type_name("MATRIX")->required();
}

std::string IsNpyFile(const std::string& path) {
  if (path == "-") return "it is written to a file, not to standard output";
  return path.ends_with(".npy")
             ? ""
             : fmt::format("{} must end in .npy, the format that dense matrices are written in",
                           path);
}

CLI::Validator Between(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        int64_t number = 0;
        return CLI::detail::lexical_cast(text, number) && number >= least && number <= most
                   ? std::string()
                   : fmt::format("\"{}\" is not a whole number from {} to {}", text, least, most);
      },
      "");
}

CLI::Validator BetweenReals(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double number = 0;
        return CLI::detail::lexical_cast(text, number) && number >= least && number <= most
                   ? std::string()
                   : fmt::format("\"{}\" is not a number from {} to {}", text, least, most);
      },
      "");
}

CLI::Option* OneOf(CLI::Option* option, const std::vector<std::string>& words) {
  const auto check = [words](const std::string& text) {
    return std::ranges::find(words, text) != words.end()
               ? std::string()
               : fmt::format("\"{}\" is none of {}{}", text, fmt::join(words, ", "),
                             DidYouMean(text, words));
  };
  return option->type_name(fmt::format("{}", fmt::join(words, "|")))->check(check);
}

void AddTuneFor(CLI::App* command, std::vector<std::string>& signatures, const char* standard) {
  command
      ->add_option(
          "--tune-for", signatures,
          fmt::format("The problem signatures to tune it for: spmm:K, spmm^T:K (with :tf32 behind "
                      "where TF32 is allowed), sddmm:K or spgemm; repeatable (default: {}). K, the "
                      "columns of the dense operand, is rounded up to 1, 8, 16, 32, 64, 128, 256, "
                      "512 or 1024: widths in between share a plan",
                      standard))
      ->type_name("spmm:K|spmm^T:K|sddmm:K|spgemm")
      ->check([](const std::string& text) { return Refusal(ParseSignature(text)); });
}

CLI::Option* AddOut(CLI::App* group, OutputArguments& output) {
  return group->add_option(
      "--out", output.path,
      "The file to write, in the format of its ending: .mtx (Matrix Market), .npz "
      "(scipy.sparse.load_npz), .txt, .tsv, .csv (an entry a line), .npy (nnz x 3), .graph "
      "(METIS); but for .npz also compressed: .gz, .xz or .zst behind");
}

void AddOutputFormat(CLI::App* command, CLI::Option* out, OutputArguments& output) {
  command->add_option("--format", output.format, "Its format, whatever its ending")
      ->type_name("mtx|npz|edges|npy|metis")
      ->check([](const std::string& text) { return Refusal(ParseFileFormat(text)); })
      ->needs(out);
}

void CheckOutput(const OutputArguments& output) {
  std::optional<FileFormat> format;
  if (!output.format.empty()) format = *ParseFileFormat(output.format);
  const std::string problem = OutputProblem(output.path, format);
  if (!problem.empty()) throw CLI::ValidationError("--out", problem);
}

absl::StatusOr<std::unique_ptr<MatrixWriter>> OpenOutput(const OutputArguments& output) {
  std::optional<FileFormat> format;
  if (!output.format.empty()) format = *ParseFileFormat(output.format);
  return OpenMatrixWriter(output.path, format);
}

bool IsGone(const MatrixInfo& info, const std::string& node) {
  return std::ranges::find(info.nodes_gone, node) != info.nodes_gone.end();
}

int64_t ShardsAway(const MatrixInfo& info) {
  return std::ranges::count_if(info.shards, [&](const ShardInfo& shard) {
    return !shard.nodes.empty() && std::ranges::all_of(shard.nodes, [&](const std::string& node) {
      return IsGone(info, node);
    });
  });
}

std::string MissingCopies(const MatrixInfo& info) {
  if (const int64_t away = ShardsAway(info); away > 0) {
    return fmt::format(
        "{} of its {} shards {} away, until {} {} there again (sparsectl cluster list)", away,
        info.shards.size(), away == 1 ? "is" : "are", fmt::join(info.nodes_gone, ", "),
        info.nodes_gone.size() == 1 ? "is" : "are");
  }
  if (info.copies_missing == 0) return "";
  // Older servers do not say how many.
  const std::string fewer = info.replicas == 0 ? "fewer nodes than --replicas"
                                               : fmt::format("fewer than {} nodes", info.replicas);
  if (!info.shards.empty()) {
    return fmt::format(
        "{} have some of its shards, {} {} missing: they are copied again when "
        "there are more (sparsectl cluster list)",
        fewer, info.copies_missing, info.copies_missing == 1 ? "is" : "are");
  }
  std::vector<std::string> there = info.nodes;
  std::erase_if(there, [&](const std::string& node) { return IsGone(info, node); });
  return fmt::format(
      "{} have it, {} {} missing: {}copied again when there are more (sparsectl "
      "cluster list)",
      fewer, info.copies_missing, info.copies_missing == 1 ? "is" : "are",
      there.empty() ? "it is " : fmt::format("it is lost if {} is, and ", fmt::join(there, ", ")));
}

void AddNote(const std::string& note, Report& report) {
  if (note.empty()) return;
  report.json["note"] = note;
  report.text += fmt::format("note    {}\n", note);
}

}  // namespace sparsed::cli
