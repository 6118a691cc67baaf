#include "kernels/kernels_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace sparsed {
namespace {

constexpr std::string_view kGnu{"GNU", 4};

size_t Aligned(size_t size) { return (size + 3) / 4 * 4; }

/// The build id among the notes of a segment; empty if it is not there.
std::string BuildIdIn(const std::byte* at, size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof(note));
    const size_t name = sizeof(note), description = name + Aligned(note.n_namesz);
    const size_t end = description + Aligned(note.n_descsz);
    if (end > size) break;
    const std::string_view owner(reinterpret_cast<const char*>(at + name), note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && owner == kGnu) {
      std::string text;
      for (size_t i = 0; i < note.n_descsz; ++i) {
        text += fmt::format("{:02x}", static_cast<unsigned>(at[description + i]));
      }
      return text;
    }
    at += end;
    size -= end;
  }
  return {};
}

/// Of the loaded object that this function is in.
int FindBuildId(dl_phdr_info* object, size_t /*size*/, void* id) {
  const auto here = reinterpret_cast<uintptr_t>(&FindBuildId);
  std::string found;
  bool contains = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && here >= begin && here < begin + segment.p_memsz) {
      contains = true;
    }
    if (segment.p_type == PT_NOTE && found.empty()) {
      found = BuildIdIn(reinterpret_cast<const std::byte*>(begin), segment.p_memsz);
    }
  }
  if (contains) *static_cast<std::string*>(id) = found;
  return contains ? 1 : 0;
}

}  // namespace

const std::string& KernelsId() {
  static const auto* const id = [] {
    auto* const found = new std::string;
    dl_iterate_phdr(FindBuildId, found);
    return found;
  }();
  return *id;
}

}  // namespace sparsed
