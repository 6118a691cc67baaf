// What callers give to the functions of the C interface, checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/c/local.h"
#include "sparsed/c.h"
#include "sparsed/client.h"

namespace sparsed::c {

/// Reads the arguments of one call, and remembers the first thing that is wrong with them. `what`
/// is a parameter's name, for the sentence. What is read after an error is of no use, and harmless.
class Arguments {
 public:
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  /// INVALID_ARGUMENT.
  void Refuse(std::string sentence);

  /// Whether it is there.
  bool Need(const void* pointer, const char* what);
  std::string Name(const char* name, const char* what);
  int64_t NotNegative(int64_t number, const char* what);
  /// Of a type of values.
  ValueType Type(int32_t type, const char* what);

  /// A copy of the options that `given` points to, or of the defaults. What a caller that was built
  /// with an older header does not know is the default.
  template <typename T>
  T Options(const T* given, const T& defaults, const char* what) {
    T options = defaults;
    if (given != nullptr && OptionsFit(given, given->size, sizeof(T), what)) {
      std::memcpy(&options, given, std::min(given->size, sizeof(T)));
    }
    return options;
  }
  CallOptions Call(const sparsed_call_options* options);
  /// What goes together in an SpMM, in a chain or not.
  struct Reduction {
    int32_t reduce;
    bool plain;  ///< alpha is 1, beta 0, and nothing accumulates
    bool unscaled;
    bool which;
  };
  void CheckReduction(const Reduction& reduction);
  std::vector<ProblemSignature> Problems(const sparsed_problem* problems, size_t count,
                                         const char* what);

  /// Dense matrices of one product, which are all on one device.
  Operand In(const sparsed_dense* dense, const char* what, const Client& client);
  /// None if it is null.
  std::optional<Operand> MaybeIn(const sparsed_dense* dense, const char* what,
                                 const Client& client);
  /// `which`: it says which nonzeros results are of.
  Destination Out(const sparsed_dense* dense, const char* what, const Client& client,
                  bool which = false);
  /// Of all of them. A product on a GPU has no handle (`call`).
  c::Place Place(const sparsed_call_options* options, sparsed_call** call);
  /// A matrix in host memory.
  DenseView HostView(const sparsed_dense* dense, const char* what, bool zeros);

 private:
  bool OptionsFit(const void* given, size_t size, size_t known, const char* what);
  bool CheckDense(const sparsed_dense* dense, const char* what, bool which, bool zeros = false);
  void CheckPlace(const sparsed_dense& dense, const char* what);

  absl::Status status_;
  /// Where the first one of a product is, and its name.
  std::optional<int> gpu_;
  const char* first_ = "";
};

/// A copy that sparsed_text_free takes.
char* NewText(const std::string& text);

}  // namespace sparsed::c
