#include "client/cli/npy_triples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "client/cli/npy_stream.h"
#include "client/cli/triples.h"

namespace sparsed::cli {
namespace {

class Reader {
 public:
  Reader(ByteSource& source, NpyStream array, const ReadOptions& options)
      : source_(source), array_(std::move(array)), options_(options) {}

  absl::StatusOr<MatrixFile> Read() {
    if (absl::Status status = Choose(); !status.ok()) return status;
    Triples triples(options_, weight_ == 0);
    const absl::Status read = by_entry_ ? ReadByEntry(triples) : ReadByColumn(triples);
    if (!read.ok()) return read;
    absl::StatusOr<MatrixFile> file =
        triples.Build(FileFormat::kNpy,
                      options_.type.value_or(
                          weight_ == 0 ? ValueType::kF32 : array_.type().value_or(ValueType::kF32)),
                      source_.name());
    if (file.ok()) {
      file->notes.insert(
          file->notes.begin(),
          fmt::format("the array of {} x {} was read as {} entries of {}", rows_, cols_, count_,
                      weight_ == 0 ? "row and column" : "row, column and value"));
    }
    return file;
  }

 private:
  absl::Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {}", source_.name(), what));
  }

  absl::Status Choose() {
    const NpyArrayHeader& header = array_.header();
    if (header.shape.size() == 2) {
      rows_ = header.shape[0];
      cols_ = header.shape[1];
    }
    const bool entries = cols_ == 2 || cols_ == 3;
    if (header.shape.size() != 2 || (!entries && (rows_ != 2 || !array_.integer()))) {
      return Bad(fmt::format(
          "an array of shape ({}) is read as no matrix: expected entries as n x 3 (row, column, "
          "value) or n x 2, or 2 x n integers; a dense matrix: python3 -c \"import numpy, "
          "scipy.sparse as s; s.save_npz('OUT.npz', s.csr_array(numpy.load('FILE')))\"",
          fmt::join(header.shape, ", ")));
    }
    columns_ = entries ? cols_ : rows_;
    count_ = entries ? rows_ : cols_;
    by_entry_ = entries != header.fortran_order;
    weight_ = options_.weight_column.value_or(columns_ == 3 ? 3 : 0);
    if (weight_ > columns_) {
      return Bad(fmt::format("--weight-column={}: there are {} columns", weight_, columns_));
    }
    return absl::OkStatus();
  }

  absl::Status Add(Triples& triples, int64_t at, int64_t row, int64_t col, double value) const {
    if (triples.Add(row, col, value)) return absl::OkStatus();
    return Bad(fmt::format("entry {}, counted from 0: {}", at, triples.Refusal(row, col)));
  }

  /// Row, column and value of an entry lie side by side.
  absl::Status ReadByEntry(Triples& triples) {
    for (int64_t i = 0; i < count_; ++i) {
      int64_t row = 0, col = 0;
      double value = 1, third = 1;
      if (!array_.Next(row) || !array_.Next(col)) return AtEntry(i);
      if (columns_ == 3 && !array_.Next(third)) return AtEntry(i);
      if (weight_ != 0) value = third;
      if (absl::Status status = Add(triples, i, row, col, value); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  /// All rows come first, then all columns.
  absl::Status ReadByColumn(Triples& triples) {
    std::vector<int64_t> rows, cols;
    for (std::vector<int64_t>* const column : {&rows, &cols}) {
      for (int64_t i = 0, index = 0; i < count_; ++i) {
        if (!array_.Next(index)) return AtEntry(i);
        column->push_back(index);
      }
    }
    for (int64_t i = 0; i < count_; ++i) {
      double value = 1;
      if (weight_ != 0 && !array_.Next(value)) return AtEntry(i);
      if (absl::Status status = Add(triples, i, rows[i], cols[i], value); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status AtEntry(int64_t at) const {
    return At(fmt::format("{}: entry {}, counted from 0", source_.name(), at), array_.status());
  }

  ByteSource& source_;
  NpyStream array_;
  const ReadOptions& options_;
  int64_t rows_ = 0, cols_ = 0;  ///< of the array
  int64_t columns_ = 0;          ///< 2 or 3: row, column, value
  int64_t count_ = 0;            ///< entries
  int64_t weight_ = 0;           ///< 3, or 0: values are 1
  bool by_entry_ = true;
};

}  // namespace

absl::StatusOr<MatrixFile> ReadNpyTriples(ByteSource source, const ReadOptions& options) {
  absl::StatusOr<NpyStream> array = NpyStream::Open(source);
  if (!array.ok()) return At(source.name(), array.status());
  return Reader(source, *std::move(array), options).Read();
}

}  // namespace sparsed::cli
