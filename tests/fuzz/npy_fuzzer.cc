// Any file must be read as a dense matrix or refused in a sentence.
#include <string>

#include "client/cli/npy.h"
#include "tests/fuzz/check.h"

using sparsed::fuzz::Check;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string& path = sparsed::fuzz::FileOf(data, size);
  for (const auto type : {sparsed::ValueType::kF32, sparsed::ValueType::kF64,
                          sparsed::ValueType::kF16, sparsed::ValueType::kBF16}) {
    const auto array = sparsed::cli::ReadNpy(path, type);
    if (!array.ok()) {
      Check(!array.status().message().empty());
      continue;
    }
    const auto elements =
        std::visit([](const auto& values) { return values.size(); }, array->values);
    Check(array->type() == type && array->rows >= 0 && array->cols >= 1);
    Check(elements == static_cast<size_t>(array->rows) * static_cast<size_t>(array->cols));
  }
  return 0;
}
