// What may come next on a command line, for shells.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace sparsed::cli {

struct Completion {
  std::string word;         ///< in the place of the last one
  std::string description;  ///< one line, or empty
};

struct Completions {
  std::vector<Completion> words;
  bool files = false;  ///< a path is possible, too
};

/// Names of a type: "MATRIX", "BUFFER" or "MODEL", which a server knows; "COLUMN", of what
/// `command` lists.
using NamesOfType =
    std::function<std::vector<std::string>(const std::string& type, const CLI::App& command)>;

/// `words` are those behind the program's name; the last is the one that is being typed, and may be
/// empty.
Completions Complete(const CLI::App& app, std::span<const std::string> words,
                     const NamesOfType& names);

/// As the shells' functions read it: a word a line, behind a tab what it is; ":files" on a line of
/// its own.
std::string Lines(const Completions& completions);

/// The function of "bash", "zsh" or "fish" that asks for it.
std::string CompletionScript(const std::string& shell);

}  // namespace sparsed::cli
