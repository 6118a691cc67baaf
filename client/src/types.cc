#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

const char* Name(ValueType type) {
  switch (type) {
    case ValueType::kF32:
      return "f32";
    case ValueType::kF64:
      return "f64";
    case ValueType::kF16:
      return "f16";
    case ValueType::kBF16:
      return "bf16";
    case ValueType::kI64:
      return "i64";
  }
  return "unknown";
}

ValueType TypeOf(const ConstValues& values) { return static_cast<ValueType>(values.index()); }

Values ZeroValues(ValueType type, size_t length) {
  switch (type) {
    case ValueType::kF32:
    case ValueType::kI64:
      break;
    case ValueType::kF64:
      return std::vector<double>(length);
    case ValueType::kF16:
      return std::vector<Float16>(length);
    case ValueType::kBF16:
      return std::vector<BFloat16>(length);
  }
  return std::vector<float>(length);
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

const char* Name(Distribution distribution) {
  switch (distribution) {
    case Distribution::kWhole:
      return "whole";
    case Distribution::kColumns:
      return "columns";
    case Distribution::kRows:
      return "rows";
    case Distribution::kAuto:
      return "auto";
  }
  return "unknown";
}

const char* Name(Semiring semiring) {
  switch (semiring) {
    case Semiring::kSumProduct:
      return "sum-product";
    case Semiring::kBoolean:
      return "boolean";
    case Semiring::kMinPlus:
      return "min-plus";
    case Semiring::kPlusPair:
      return "plus-pair";
  }
  return "unknown";
}

const char* Name(Transport transport) {
  switch (transport) {
    case Transport::kStream:
      return "stream";
    case Transport::kRing:
      return "ring";
    case Transport::kSharedHost:
      return "shared_host";
    case Transport::kSharedDevice:
      return "shared_device";
    case Transport::kHeld:
      return "held";
    case Transport::kAttached:
      return "attached";
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
