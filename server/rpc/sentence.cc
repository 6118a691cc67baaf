#include "server/rpc/sentence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/utf8.h"

namespace sparsed::server {
namespace {

constexpr size_t kMaxSentence = 1024;
constexpr size_t kNone = std::string_view::npos;

bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;  // U+0080 to U+009F
}

/// Where a path of a file may begin: not within a word, and not in quotes, as names of clients are.
bool BeginsPath(std::string_view text, size_t at) {
  return text[at] == '/' && (at == 0 || text[at - 1] == ' ' || text[at - 1] == '(') &&
         at + 1 < text.size() && text[at + 1] != ' ';
}

/// The end of the folders of the path that begins at `begin`: where its name does.
size_t NameBegin(std::string_view text, size_t begin) {
  // The store's own files; folders above them may have blanks in their names.
  constexpr std::array<std::string_view, 3> kFiles = {"/blobs", "/catalog.sqlite", "/LOCK"};
  size_t first = kNone;
  for (const std::string_view file : kFiles) first = std::min(first, text.find(file, begin));
  if (first != kNone) return first + 1;
  const size_t end = std::min(text.find_first_of(" ,:;)'\"", begin), text.size());
  return text.rfind('/', end - 1) + 1;
}

std::string WithoutFolders(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    if (BeginsPath(text, i)) {
      i = NameBegin(text, i);
    } else {
      result += text[i++];
    }
  }
  return result;
}

}  // namespace

std::string ForClients(std::string_view text) {
  const std::string sentence = WithoutFolders(text);
  std::string result;
  for (std::string_view rest = sentence; !rest.empty();) {
    const size_t bytes = Utf8CharacterBytes(rest);
    const std::string_view character = rest.substr(0, std::max<size_t>(bytes, 1));
    rest.remove_prefix(character.size());
    std::string shown(character);
    if (bytes == 0 || IsControl(character)) {
      shown.clear();
      for (const char c : character) {
        shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    if (result.size() + shown.size() > kMaxSentence) return result + "...";
    result += shown;
  }
  return result;
}

}  // namespace sparsed::server
