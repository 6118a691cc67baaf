#include "client/cli/man_page.h"

#include <fmt/format.h>

#include <sstream>
#include <string_view>
#include <vector>

#include "client/cli/command_walk.h"
#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

/// As text: no word of it is a request or an escape, and every "-" can be pasted.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n')) escaped += "\\&";
      escaped += c;
    }
  }
  return escaped;
}

std::string Bold(std::string_view text) { return "\\fB" + Escaped(text) + "\\fR"; }
std::string Italic(std::string_view text) { return "\\fI" + Escaped(text) + "\\fR"; }

/// "-o, --output text|wide|json|yaml".
std::string TermOf(const CLI::Option& option) {
  std::string term;
  for (const std::string& name : NamesOf(option)) {
    term += (term.empty() ? "" : ", ") + Bold(name);
  }
  if (TakesValue(option)) term += " " + Italic(TypeOf(option));
  return term;
}

std::string AboutOf(const CLI::Option& option) {
  std::string about = Escaped(option.get_description());
  if (!option.get_default_str().empty()) {
    about += fmt::format(" (default: {})", Escaped(option.get_default_str()));
  }
  if (!option.get_envname().empty()) {
    about += fmt::format("; from the environment: {}", Bold(option.get_envname()));
  }
  return about + ".";
}

std::string Synopsis(const CLI::App& app) {
  std::string line = Bold(PathOf(app));
  if (!FlagsIn(app).empty()) line += " [" + Italic("OPTIONS") + "]";
  for (const CLI::Option* word : WordsIn(app)) {
    const std::string name = Italic(word->get_name(/*positional=*/true)) +
                             (word->get_items_expected_max() > 1 ? "..." : "");
    line += word->get_required() ? " " + name : " [" + name + "]";
  }
  const bool commands = !CommandsIn(app).empty();
  if (commands) line += " " + Italic("COMMAND") + " ...";
  return line + "\n";
}

std::string Terms(const std::vector<const CLI::Option*>& options, bool words) {
  std::string text;
  for (const CLI::Option* option : options) {
    const std::string term =
        words ? Italic(option->get_name(/*positional=*/true)) : TermOf(*option);
    text += fmt::format(".TP\n{}\n{}\n", term, AboutOf(*option));
  }
  return text;
}

/// The footer's parts: what ends in ":" heads the lines behind it.
std::string Footer(const CLI::App& app) {
  std::istringstream lines(app.get_footer());
  std::string text;
  bool block = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    const bool indented = line.starts_with(' ');
    if (!indented) {
      if (block) text += ".fi\n.RE\n";
      std::string heading = line;
      if (heading.ends_with(':')) heading.pop_back();
      for (char& c : heading) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
      text += fmt::format(".SH \"{}\"\n.RS 2\n.nf\n", Escaped(heading));
      block = true;
    } else {
      text += Escaped(std::string_view(line).substr(line.find_first_not_of(' '))) + "\n";
    }
  }
  return block ? text + ".fi\n.RE\n" : text;
}

std::string CommandSection(const CLI::App& app) {
  std::string text = fmt::format(".SH \"{}\"\n{}.PP\n{}.\n", Escaped("COMMAND " + app.get_name()),
                                 Synopsis(app), Escaped(app.get_description()));
  return text + Terms(WordsIn(app), true) + Terms(FlagsIn(app), false);
}

std::string Page(const CLI::App& app, const std::string& version) {
  const std::string name = PathOf(app, "-");
  const bool root = app.get_parent() == nullptr;
  const std::string description = app.get_description();
  const std::string brief = description.substr(0, description.find_first_of(":;"));
  std::string title = name;
  for (char& c : title) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  std::string text = fmt::format(
      ".TH \"{}\" 1 \"\" \"sparsed {}\" \"sparsed\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}"
      ".SH DESCRIPTION\n{}\n",
      Escaped(title), Escaped(version), Escaped(name), Escaped(brief), Synopsis(app),
      Escaped(description + (description.ends_with('.') ? "" : ".")));
  const std::string words = Terms(WordsIn(app), true), flags = Terms(FlagsIn(app), false);
  if (!words.empty()) text += ".SH ARGUMENTS\n" + words;
  if (!flags.empty()) text += ".SH OPTIONS\n" + flags;
  if (!root)
    text += ".PP\nAnd those of " + Bold("sparsectl") + "(1), such as " + Bold("--server") + ".\n";
  if (root) {
    text += ".SH COMMANDS\n";
    for (const CLI::App* sub : CommandsIn(app)) {
      text += fmt::format(".TP\n{}(1)\n{}.\n", Bold(PathOf(*sub, "-")),
                          Escaped(sub->get_description()));
    }
  } else {
    for (const CLI::App* sub : CommandsIn(app)) text += CommandSection(*sub);
  }
  text += Footer(app);
  if (!root) text += ".SH \"SEE ALSO\"\n" + Bold("sparsectl") + "(1)\n";
  return text;
}

}  // namespace

std::map<std::string, std::string> ManPages(const CLI::App& app, const std::string& version) {
  std::map<std::string, std::string> pages;
  pages[PathOf(app, "-") + ".1"] = Page(app, version);
  for (const CLI::App* sub : CommandsIn(app)) {
    pages[PathOf(*sub, "-") + ".1"] = Page(*sub, version);
  }
  return pages;
}

}  // namespace sparsed::cli
