// Any text is a recipe, whose canonical text reads as the same recipe, or is refused in a sentence.
#include <cstdint>
#include <string_view>

#include "kernels/recipe.h"
#include "tests/fuzz/check.h"

using sparsed::fuzz::Check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto recipe =
      sparsed::ParseRecipe(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!recipe.ok()) {
    Check(!recipe.status().message().empty());
    return 0;
  }
  const std::string text = sparsed::ToString(*recipe);
  const auto again = sparsed::ParseRecipe(text);
  Check(again.ok() && sparsed::ToString(*again) == text);
  return 0;
}
