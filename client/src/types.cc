#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

const char* Name(ValueType type) { return type == ValueType::kF32 ? "f32" : "f64"; }

ValueType TypeOf(const ConstValues& values) {
  return values.index() == 0 ? ValueType::kF32 : ValueType::kF64;
}

int64_t Length(const ConstValues& values) {
  return std::visit([](const auto& span) { return static_cast<int64_t>(span.size()); }, values);
}

CsrView CsrMatrix::View() const {
  CsrView view{.rows = rows,
               .cols = cols,
               .row_offsets = std::span<const int64_t>(row_offsets),
               .column_indices = column_indices,
               .values = {}};
  std::visit([&view](const auto& v) { view.values = std::span(v); }, values);
  return view;
}

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kSpmm:
      return "spmm";
    case Operation::kSddmm:
      return "sddmm";
    case Operation::kSpgemm:
      return "spgemm";
  }
  return "unknown";
}

const char* Name(MatrixState state) {
  switch (state) {
    case MatrixState::kQueued:
      return "queued";
    case MatrixState::kPreparing:
      return "preparing";
    case MatrixState::kReady:
      return "ready";
    case MatrixState::kFailed:
      return "failed";
    case MatrixState::kUnknown:
      break;
  }
  return "unknown";
}

}  // namespace client
}  // namespace sparsed
