#include "client/cli/completion.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "client/cli/command_walk.h"

namespace sparsed::cli {
namespace {

/// Of transform pipelines, as servers know them; their parameters may be left out.
constexpr std::array<std::string_view, 26> kPipelineSteps = {
    "csr",          "transpose",     "lsh_cluster",   "breadth_first", "group_rows",
    "plain_sort",   "flipped_sort",  "lpt_sort",      "warp_sort",     "cta_sort",
    "hybrid1_sort", "hybrid21_sort", "hybrid22_sort", "hybrid23_sort", "aspt",
    "row_panels",   "coo_panels",    "dcsr",          "row_segments",  "dia",
    "ell",          "ellpack_r",     "bcsr",          "row_words",     "column_parts",
    "incsr"};

/// Up to the first sentence's end; without what a line of a shell has no room for.
std::string Short(std::string_view description) {
  constexpr size_t kMost = 60;
  std::string text(description.substr(0, description.find_first_of(":;\n")));
  if (text.size() > kMost) text = text.substr(0, text.rfind(' ', kMost)) + " ...";
  return text;
}

/// Of the command or of those around it, whose flags it takes, too; null if there is none.
const CLI::Option* FindFlag(const CLI::App* app, std::string_view name) {
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* flag : FlagsIn(*app)) {
      const std::vector<std::string> names = NamesOf(*flag);
      if (std::ranges::find(names, name) != names.end()) return flag;
    }
  }
  return nullptr;
}

/// What the words before the last one have led to.
struct Place {
  const CLI::App* command = nullptr;
  const CLI::Option* flag = nullptr;  ///< it waits for its value
  size_t words = 0;                   ///< of the command, that are there
};

Place PlaceAfter(const CLI::App& app, std::span<const std::string> words) {
  Place place{&app};
  for (const std::string& word : words) {
    if (place.flag != nullptr) {
      place.flag = nullptr;
      continue;
    }
    if (word.starts_with('-')) {
      const CLI::Option* flag = FindFlag(place.command, word);
      if (flag != nullptr && TakesValue(*flag)) place.flag = flag;
      continue;
    }
    const std::vector<const CLI::App*> commands = CommandsIn(*place.command);
    const auto sub = std::ranges::find(commands, word, &CLI::App::get_name);
    if (sub != commands.end()) {
      place = {*sub};
    } else {
      ++place.words;
    }
  }
  return place;
}

class Completer {
 public:
  Completer(std::string word, const CLI::App& command, const NamesOfType& names)
      : typed_(std::move(word)), command_(command), names_(names) {}

  /// If what is typed may become it.
  void Add(const std::string& word, std::string_view description = "") {
    if (word.starts_with(typed_)) completions_.words.push_back({word, Short(description)});
  }

  /// Values of an option; `before` is what precedes them in the same word, such as "--op=".
  void AddValues(const CLI::Option& option, const std::string& before) {
    const std::string type = TypeOf(option);
    for (const std::string& choice : ChoicesOf(option)) Add(before + choice);
    if (type == "MATRIX" || type == "BUFFER" || type == "MODEL") {
      AddNames(type, before);
    } else if (type == "COLUMN") {
      AddNames(type, before + (typed_.starts_with(before + "-") ? "-" : ""));
    } else if (type == "PIPELINE") {
      // Of what is typed, the step behind the last ">".
      const size_t last = typed_.rfind('>');
      std::string earlier = before;
      if (last != std::string::npos && last >= before.size()) {
        const size_t step = typed_.find_first_not_of(" >", last);
        earlier = typed_.substr(0, step == std::string::npos ? typed_.size() : step);
      }
      for (const std::string_view step : kPipelineSteps) Add(earlier + std::string(step));
    } else if (typed_.starts_with(before + "@")) {
      AddNames("BUFFER", before + "@");
    } else if (type == "TEXT" || type == "FILE" || type == "FOLDER" || type == "DIR") {
      completions_.files = true;
    }
  }

  void AddFlags(const CLI::App* app) {
    for (; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* flag : FlagsIn(*app)) {
        // Where the long name is given, the short one is no help; --help is every command's.
        const std::string name = NamesOf(*flag).back();
        const bool there = std::ranges::any_of(
            completions_.words, [&name](const Completion& c) { return c.word == name; });
        if (!there) Add(name, flag->get_description());
      }
    }
  }

  Completions Take() { return std::move(completions_); }

 private:
  void AddNames(const std::string& type, const std::string& before) {
    for (const std::string& name : names_(type, command_)) Add(before + name);
  }

  const std::string typed_;
  const CLI::App& command_;
  const NamesOfType& names_;
  Completions completions_;
};

}  // namespace

Completions Complete(const CLI::App& app, std::span<const std::string> words,
                     const NamesOfType& names) {
  const std::string typed = words.empty() ? "" : words.back();
  const Place place = PlaceAfter(app, words.empty() ? words : words.first(words.size() - 1));
  Completer completer(typed, *place.command, names);
  const size_t equals = typed.find('=');
  if (place.flag != nullptr) {
    completer.AddValues(*place.flag, "");
  } else if (typed.starts_with('-') && equals != std::string::npos) {
    const CLI::Option* flag = FindFlag(place.command, typed.substr(0, equals));
    if (flag != nullptr) completer.AddValues(*flag, typed.substr(0, equals + 1));
  } else if (typed.starts_with('-')) {
    completer.AddFlags(place.command);
  } else {
    for (const CLI::App* sub : CommandsIn(*place.command)) {
      completer.Add(sub->get_name(), sub->get_description());
    }
    const std::vector<const CLI::Option*> expected = WordsIn(*place.command);
    if (!expected.empty()) {
      const CLI::Option& last = *expected.back();
      const bool more = last.get_items_expected_max() > 1;
      if (place.words < expected.size()) {
        completer.AddValues(*expected[place.words], "");
      } else if (more) {
        completer.AddValues(last, "");
      }
    }
  }
  return completer.Take();
}

std::string Lines(const Completions& completions) {
  std::string text;
  for (const Completion& completion : completions.words) {
    text += completion.word;
    if (!completion.description.empty()) text += '\t' + completion.description;
    text += '\n';
  }
  if (completions.files) text += ":files\n";
  return text;
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "bash") {
    return R"(# Completion of sparsectl for bash: source <(sparsectl completion bash)
_sparsectl() {
    # The words up to the cursor. Bash breaks them behind = : @ as well; what has no space between is
    # one word.
    local rest="${COMP_LINE:0:COMP_POINT}" i gap piece words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        gap="${rest%%[![:space:]]*}"
        rest="${rest#"$gap"}"
        piece="${COMP_WORDS[i]}"
        ((i < COMP_CWORD)) || piece="$rest"
        rest="${rest#"$piece"}"
        if [[ -n "$gap" || $i == 0 ]]; then
            words+=("$piece")
        else
            words[${#words[@]} - 1]+="$piece"
        fi
    done
    # Of the last one it replaces $2 alone; what is before that stays.
    local typed="${words[${#words[@]} - 1]}" word
    local kept="${typed%"$2"}"
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        if [[ "$word" == :files && "$2" == *=* ]]; then  # no break behind =
            compopt -o filenames
            while IFS= read -r word; do
                COMPREPLY+=("${2%%=*}=$word")
            done < <(compgen -f -- "${2#*=}")
        elif [[ "$word" == :files ]]; then
            compopt -o default
        else
            [[ "$word" != *: ]] || compopt -o nospace  # spmm: wants a number behind
            COMPREPLY+=("${word#"$kept"}")
        fi
    done < <("${words[0]}" complete-words "${words[@]:1}" 2> /dev/null)
}
complete -F _sparsectl sparsectl
)";
  }
  if (shell == "zsh") {
    return R"(#compdef sparsectl
# Completion of sparsectl for zsh: source <(sparsectl completion zsh), or in a folder of $fpath as _sparsectl
_sparsectl() {
    local line files=0
    local -a found
    for line in "${(@f)$("${words[1]}" complete-words "${(@)words[2,CURRENT]}" 2> /dev/null)}"; do
        if [[ "$line" == ":files" ]]; then
            files=1
        elif [[ "$line" == *$'\t'* ]]; then
            found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        elif [[ -n "$line" ]]; then
            found+=("${line//:/\\:}")
        fi
    done
    (( ${#found} )) && _describe -V sparsectl found
    if (( files )); then
        compset -P '*='
        _files
    fi
}
if [[ "${funcstack[1]}" == _sparsectl ]]; then
    _sparsectl "$@"
else
    compdef _sparsectl sparsectl
fi
)";
  }
  return R"(# Completion of sparsectl for fish: sparsectl completion fish | source
function __sparsectl_words
    set -l typed (string unescape -- (commandline -ct))
    set -l words (commandline -opc)
    for line in ($words[1] complete-words $words[2..-1] "$typed" 2> /dev/null)
        if test "$line" = :files
            set -l before (string match -r '^.*=' -- "$typed")
            for path in (__fish_complete_path (string replace -r '^.*=' '' -- "$typed"))
                echo "$before$path"
            end
        else
            echo $line
        end
    end
end
complete -c sparsectl -f -a '(__sparsectl_words)'
)";
}

}  // namespace sparsed::cli
