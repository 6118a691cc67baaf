// Dense matrices as the command line gives them: files, and "@NAME" of what the server holds.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/npy.h"
#include "client/cli/report.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// Whether it names a buffer.
inline bool IsHeld(std::string_view text) { return text.starts_with('@'); }
/// Of a flag or word that names a buffer: with "@" in front or without.
CLI::Validator AsBufferName();
/// A sentence for "@" without a name; else empty.
std::string CheckHeld(const std::string& text);

/// An operand of a product. Views its own file.
class DenseOperand {
 public:
  /// Reads a file as `type`, or asks the server for the size of what it holds, for a product with
  /// `matrix`, which may be in shards.
  static absl::StatusOr<DenseOperand> Open(const Client& client, const std::string& text,
                                           ValueType type, const std::string& matrix);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  bool one_dimensional() const { return !held_.has_value() && file_.one_dimensional; }
  /// For calls; valid as long as this is.
  Operand operand() const { return held_.has_value() ? Operand(*held_) : Operand(file_.View()); }

 private:
  NpyArray file_;
  std::optional<DenseMatrix> held_;
  int64_t rows_ = 0, cols_ = 0;
};

/// Where a result goes: a file, or a matrix that the server holds.
struct ResultArguments {
  std::string out;      ///< a file; or
  std::string keep_as;  ///< a name
};

/// The destination of one result.
class DenseResult {
 public:
  /// Of a product with `matrix`. Makes the buffer, of zeros, if there is none, or if parts of it
  /// are gone and the product does not add to them (`adds`); INVALID_ARGUMENT if there is one of
  /// another shape or type.
  static absl::StatusOr<DenseResult> Open(const Client& client, const ResultArguments& where,
                                          ValueType type, int64_t rows, int64_t cols,
                                          bool one_dimensional, const std::string& matrix,
                                          bool adds = false);

  /// For the call; valid as long as this is.
  Destination destination();
  /// Writes the file, if it is one; adds a line and members to the report. `what` describes it.
  absl::Status Finish(const std::string& what, Report& report) const;
  /// In the place of Finish, where the call went wrong: a buffer that was made for it goes. Returns
  /// `why`.
  absl::Status Failed(absl::Status why) const;

 private:
  ResultArguments where_;
  NpyArray array_;
  std::optional<DenseMatrix> held_;
  bool made_ = false;  ///< the buffer, for this result
  ValueType type_ = ValueType::kF32;
};

}  // namespace sparsed::cli
