// The text of --help, broken to fit a terminal.
#pragma once

#include <sys/ioctl.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace sparsed {

/// Of a terminal: its columns; 0: `fd` is none, or does not say.
inline size_t TerminalColumns(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Help as CLI11 writes it, its lines broken between words where they have more than `columns`
/// characters; further lines begin below the description. Examples stay whole, so that they can be
/// pasted. 0 columns: all stays as it is.
inline std::string WrappedHelp(std::string_view help, size_t columns) {
  constexpr size_t kLeastRoom = 20, kLittle = 6;
  std::string text;
  bool examples = false;
  while (!help.empty()) {
    const size_t end = std::min(help.find('\n'), help.size());
    std::string_view line = help.substr(0, end);
    help.remove_prefix(std::min(end + 1, help.size()));
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    if (begin == 0) examples = line.starts_with("Example");
    // Where the description begins: behind a gap, or at the line's own beginning.
    const size_t gap = std::min(line.find("  ", begin), line.size());
    size_t indent = std::min(line.find_first_not_of(' ', gap), line.size());
    if (gap == line.size()) indent = begin;
    if (indent + kLeastRoom > columns) indent = std::min(kLittle, columns / 4);
    size_t room = columns, first = begin;
    while (!examples && columns > 0 && line.size() > room) {
      size_t space = line.rfind(' ', room);
      if (space == line.npos || space <= first) space = line.find(' ', first);
      if (space == line.npos) break;
      text.append(line.substr(0, line.find_last_not_of(' ', space) + 1));
      text.append(1, '\n').append(indent, ' ');
      line.remove_prefix(std::min(line.find_first_not_of(' ', space), line.size()));
      room = columns - indent;
      first = 0;
    }
    text.append(line).append(1, '\n');
  }
  return text;
}

}  // namespace sparsed
