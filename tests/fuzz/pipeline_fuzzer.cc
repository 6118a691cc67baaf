// Any text is a pipeline, whose canonical text reads as the same pipeline, or is refused in a
// sentence.
#include <cstdint>
#include <string_view>

#include "kernels/pipeline.h"
#include "tests/fuzz/check.h"

using sparsed::fuzz::Check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto pipeline =
      sparsed::ParsePipeline(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!pipeline.ok()) {
    Check(!pipeline.status().message().empty());
    return 0;
  }
  const std::string text = sparsed::ToString(*pipeline);
  const auto again = sparsed::ParsePipeline(text);
  Check(again.ok() && sparsed::ToString(*again) == text);
  return 0;
}
