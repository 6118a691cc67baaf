#include "client/c/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

namespace sparsed::c {
namespace {

/// No struct of options will be larger.
constexpr size_t kMostOptionBytes = 4096;
constexpr int64_t kLargestElement = 8;

std::string PlaceText(int gpu) {
  return gpu < 0 ? "in host memory or in a buffer" : fmt::format("on GPU {}", gpu);
}

}  // namespace

void Arguments::Refuse(std::string sentence) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(std::move(sentence));
}

bool Arguments::Need(const void* pointer, const char* what) {
  if (pointer == nullptr) Refuse(fmt::format("{} is a null pointer", what));
  return pointer != nullptr;
}

std::string Arguments::Name(const char* name, const char* what) {
  return Need(name, what) ? name : "";
}

int64_t Arguments::NotNegative(int64_t number, const char* what) {
  if (number < 0) Refuse(fmt::format("{} is {}; it must be 0 or more", what, number));
  return number;
}

ValueType Arguments::Type(int32_t type, const char* what) {
  if (type < SPARSED_F32 || type > SPARSED_BF16) {
    Refuse(fmt::format("{} has the type {}; values are f32 (0), f64 (1), f16 (2) or bf16 (3)", what,
                       type));
    return ValueType::kF32;
  }
  return static_cast<ValueType>(type);
}

bool Arguments::OptionsFit(const void* given, size_t size, size_t known, const char* what) {
  if (size <= sizeof(size_t) || size > kMostOptionBytes) {
    Refuse(fmt::format("the size of {} is {}; it must be set with its _INIT, to {} here", what,
                       size, known));
    return false;
  }
  const auto* const bytes = static_cast<const unsigned char*>(given);
  if (size > known &&
      std::any_of(bytes + known, bytes + size, [](unsigned char byte) { return byte != 0; })) {
    Refuse(fmt::format("{} asks for something that this library does not know yet", what));
    return false;
  }
  return true;
}

CallOptions Arguments::Call(const sparsed_call_options* given) {
  const sparsed_call_options options =
      Options(given, sparsed_call_options SPARSED_CALL_OPTIONS_INIT, "options");
  CallOptions call;
  if (NotNegative(options.timeout_ns, "timeout_ns") > 0) {
    call.timeout = std::chrono::nanoseconds(options.timeout_ns);
  }
  if (options.traceparent != nullptr) call.traceparent = options.traceparent;
  if (options.tracestate != nullptr) call.tracestate = options.tracestate;
  return call;
}

std::vector<ProblemSignature> Arguments::Problems(const sparsed_problem* problems, size_t count,
                                                  const char* what) {
  std::vector<ProblemSignature> signatures;
  if (count == 0 || !Need(problems, what)) return signatures;
  for (size_t i = 0; i < count; ++i) {
    const sparsed_problem& problem = problems[i];
    if (problem.operation < SPARSED_SPMM || problem.operation > SPARSED_SPGEMM) {
      Refuse(
          fmt::format("{}[{}] has the operation {}; there are SpMM (1), SDDMM (2) and SpGEMM (3)",
                      what, i, problem.operation));
      return signatures;
    }
    NotNegative(problem.k, "the k of a problem");
    signatures.push_back({.operation = static_cast<Operation>(problem.operation),
                          .transposed = problem.transposed != 0,
                          .k = problem.k,
                          .allow_tf32 = problem.allow_tf32 != 0});
  }
  return signatures;
}

void Arguments::CheckReduction(const Reduction& reduction) {
  const int32_t reduce = reduction.reduce;
  if (reduce < SPARSED_SUM || reduce > SPARSED_MIN) {
    Refuse(fmt::format("reduce is {}; there are sum (0), mean (1), greatest (2) and least (3)",
                       reduce));
  }
  if (reduction.which && reduce != SPARSED_MAX && reduce != SPARSED_MIN) {
    Refuse("which nonzero it is of is known of a greatest or least only");
  }
  if (reduce == SPARSED_SUM && reduction.unscaled) {
    Refuse("sums are of S's values, or of given ones: unscaled is for other reductions");
  }
  if (reduce != SPARSED_SUM && !reduction.plain) {
    Refuse("other reductions than sums have alpha 1, beta 0, and accumulate nothing");
  }
}

bool Arguments::CheckDense(const sparsed_dense* dense, const char* what, bool which, bool zeros) {
  if (!Need(dense, what)) return false;
  if (dense->held != nullptr) return true;
  const int64_t stride = dense->leading_dimension == 0 ? dense->cols : dense->leading_dimension;
  if (dense->rows < 0 || dense->cols < 0 || stride < dense->cols) {
    Refuse(
        fmt::format("{} is {} x {} with leading dimension {}; none may be negative, and the "
                    "leading dimension is at least the columns, or 0",
                    what, dense->rows, dense->cols, dense->leading_dimension));
    return false;
  }
  if (stride >
      std::numeric_limits<int64_t>::max() / kLargestElement / std::max<int64_t>(dense->rows, 1)) {
    Refuse(fmt::format("{} is larger than any memory", what));
    return false;
  }
  if (which && dense->type != SPARSED_I64) {
    Refuse(fmt::format("{} has the type {}; positions of nonzeros are i64 (4)", what, dense->type));
    return false;
  }
  if (!which) Type(dense->type, what);
  if (dense->data == nullptr && dense->rows > 0 && dense->cols > 0 && !zeros) {
    Refuse(fmt::format("{} is {} x {} and has no data", what, dense->rows, dense->cols));
    return false;
  }
  return ok();
}

void Arguments::CheckPlace(const sparsed_dense& dense, const char* what) {
  const int gpu = dense.held != nullptr ? SPARSED_HOST : dense.device;
  if (gpu < SPARSED_HOST) {
    Refuse(fmt::format("{} is on device {}; there are host memory (-1) and GPUs from 0 on", what,
                       gpu));
    return;
  }
  if (!gpu_) {
    gpu_ = gpu;
    first_ = what;
  } else if (gpu != *gpu_) {
    Refuse(
        fmt::format("{} is {}, and {} is {}; operands and results of a product are all on one "
                    "device",
                    first_, PlaceText(*gpu_), what, PlaceText(gpu)));
  }
}

Operand Arguments::In(const sparsed_dense* dense, const char* what, const Client& client) {
  const DenseView nothing(nullptr, ValueType::kF32, 0, 1);
  if (!CheckDense(dense, what, /*which=*/false)) return nothing;
  CheckPlace(*dense, what);
  if (dense->held != nullptr) return client.DenseNamed(dense->held);
  return DenseView(dense->data, static_cast<ValueType>(dense->type), dense->rows, dense->cols,
                   dense->leading_dimension);
}

std::optional<Operand> Arguments::MaybeIn(const sparsed_dense* dense, const char* what,
                                          const Client& client) {
  if (dense == nullptr) return std::nullopt;
  return In(dense, what, client);
}

Destination Arguments::Out(const sparsed_dense* dense, const char* what, const Client& client,
                           bool which) {
  const MutableDenseView nothing(nullptr, ValueType::kF32, 0, 1);
  if (!CheckDense(dense, what, which)) return nothing;
  CheckPlace(*dense, what);
  if (dense->held != nullptr) return client.DenseNamed(dense->held);
  return MutableDenseView(dense->data, static_cast<ValueType>(dense->type), dense->rows,
                          dense->cols, dense->leading_dimension);
}

c::Place Arguments::Place(const sparsed_call_options* options, sparsed_call** call) {
  c::Place place;
  place.gpu = gpu_.value_or(SPARSED_HOST);
  if (place.gpu < 0) return place;
  if (call != nullptr) {
    Refuse("what runs on a GPU is ordered by its stream: it takes no call to wait for");
  }
  if (options != nullptr) place.stream = options->stream;
  return place;
}

DenseView Arguments::HostView(const sparsed_dense* dense, const char* what, bool zeros) {
  const DenseView nothing(nullptr, ValueType::kF32, 0, 1);
  if (!CheckDense(dense, what, /*which=*/false, zeros)) return nothing;
  if (dense->held != nullptr || dense->device != SPARSED_HOST) {
    Refuse(fmt::format("{} must be in host memory", what));
  }
  return {dense->data, static_cast<ValueType>(dense->type), dense->rows, dense->cols,
          dense->leading_dimension};
}

char* NewText(const std::string& text) {
  char* const copy = new char[text.size() + 1];
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace sparsed::c
