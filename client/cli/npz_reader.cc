#include "client/cli/npz_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "client/cli/npz_archive.h"
#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

class Reader {
 public:
  Reader(NpzArchive archive, const ReadOptions& options)
      : archive_(std::move(archive)), options_(options), builder_(/*pattern=*/false) {}

  absl::StatusOr<MatrixFile> Read() {
    if (!archive_.Has("format")) return NoMatrix();
    const absl::StatusOr<std::string> kind = archive_.Text("format");
    if (!kind.ok()) return kind.status();
    if (absl::Status status = ReadShape(); !status.ok()) return status;
    const absl::Status read = *kind == "csr"   ? ReadCompressed(true)
                              : *kind == "csc" ? ReadCompressed(false)
                              : *kind == "coo" ? ReadCoordinates()
                              : *kind == "bsr" ? ReadBlocks()
                              : *kind == "dia" ? ReadDiagonals()
                                               : Unknown(*kind);
    if (!read.ok()) return read;
    absl::StatusOr<MatrixFile> file =
        Built(builder_, shape_, options_.type.value_or(type_), /*first_index=*/0, archive_.name());
    if (!file.ok()) return file;
    file->format = FileFormat::kNpz;
    const ValueType type = file->matrix.type();
    if (type != type_ && type != ValueType::kF64 &&
        (type != ValueType::kF32 || type_ == ValueType::kF64)) {
      file->notes.push_back(
          fmt::format("values are {} in the file and were made {}: --type={} keeps them",
                      Name(type_), Name(type), Name(type_)));
    }
    return file;
  }

 private:
  absl::Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: {}", archive_.name(), what));
  }
  absl::Status Unknown(std::string_view kind) const {
    return Bad(fmt::format(
        "a sparse matrix of format {} is not known, save m.tocsr() by scipy.sparse.save_npz",
        Quoted(kind)));
  }

  absl::Status NoMatrix() const {
    const std::vector<std::string>& all = archive_.members();
    const bool more = all.size() > 8;
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(all.size(), 8); ++i) {
      names += fmt::format("{}{}", i == 0 ? "" : ", ", Quoted(all[i]));
    }
    // Archives of graphs, as some data sets have them, name the parts of a CSR matrix their way.
    return Bad(fmt::format(
        "this is a zip archive of {}{}, and not one that scipy.sparse.save_npz wrote; where those "
        "are arrays of a CSR matrix: python3 -c \"import numpy as n, scipy.sparse as s; z = "
        "n.load('FILE'); s.save_npz('OUT.npz', s.csr_array((z['data'], z['indices'], "
        "z['indptr']), z['shape']))\"; where one is a file of a matrix: unzip -p FILE MEMBER | "
        "sparsectl upload - --name=NAME",
        names.empty() ? "nothing" : names, more ? ", ..." : ""));
  }

  absl::Status ReadShape() {
    absl::StatusOr<NpzArray> array = archive_.Array("shape");
    if (!array.ok()) return array.status();
    if ((*array)->elements() != 2) {
      return Bad(fmt::format("the matrix has {} dimensions, expected 2", (*array)->elements()));
    }
    if (!(*array)->Next(shape_.rows) || !(*array)->Next(shape_.cols)) return array->Finish();
    const int64_t most = options_.max_dimension;
    if (shape_.rows < 0 || shape_.cols < 0 || shape_.rows > most || shape_.cols > most) {
      return Bad(
          fmt::format("a matrix of {} x {} is not possible: rows and columns can be {} at "
                      "most",
                      shape_.rows, shape_.cols, most));
    }
    return absl::OkStatus();
  }

  /// An array of one dimension.
  absl::StatusOr<NpzArray> Flat(const std::string& name) const {
    absl::StatusOr<NpzArray> array = archive_.Array(name);
    if (array.ok() && (*array)->header().shape.size() != 1) {
      return Bad(fmt::format("{}: the array has {} dimensions, expected 1", name,
                             (*array)->header().shape.size()));
    }
    return array;
  }
  /// Values, whose type is the matrix's.
  absl::StatusOr<NpzArray> Data(size_t dimensions) {
    absl::StatusOr<NpzArray> array = archive_.Array("data");
    if (!array.ok()) return array;
    const NpyArrayHeader& header = (*array)->header();
    if (header.shape.size() != dimensions) {
      return Bad(fmt::format("data: the array has {} dimensions, expected {}", header.shape.size(),
                             dimensions));
    }
    if (dimensions > 1 && header.fortran_order) {
      return Bad("data: the array is in Fortran's order; save m.tocsr() by scipy.sparse.save_npz");
    }
    type_ = (*array)->type().value_or(ValueType::kF32);
    return array;
  }

  absl::Status Finish(NpzArray& first, NpzArray& second, NpzArray& third) const {
    absl::Status status = first.Finish();
    if (status.ok()) status = second.Finish();
    return status.ok() ? third.Finish() : status;
  }

  absl::Status OutOfRange(const char* what, int64_t at, int64_t index, int64_t extent) const {
    return Bad(fmt::format("{}[{}] = {} is out of range [0, {})", what, at, index, extent));
  }

  /// The lines of indptr: for each, `each(line, begin, end)`, which are within [0, nnz].
  template <typename Each>
  absl::Status ForLines(NpzArray& indptr, int64_t lines, int64_t nnz, const Each& each) const {
    if (indptr->elements() != lines + 1) {
      return Bad(fmt::format("indptr has {} elements, expected {}", indptr->elements(), lines + 1));
    }
    int64_t begin = 0, end = 0;
    if (!indptr->Next(begin)) return indptr.Finish();
    if (begin != 0) return Bad(fmt::format("indptr[0] = {}, expected 0", begin));
    for (int64_t line = 0; line < lines; ++line, begin = end) {
      if (!indptr->Next(end)) return indptr.Finish();
      if (end < begin || end > nnz) {
        return Bad(fmt::format("indptr[{}] = {}, expected {} to {}", line + 1, end, begin, nnz));
      }
      if (absl::Status status = each(line, begin, end); !status.ok()) return status;
    }
    if (begin != nnz) {
      return Bad(
          fmt::format("indptr ends with {}, but there are {} values; in SciPy, m.prune() "
                      "drops those that are not used",
                      begin, nnz));
    }
    return absl::OkStatus();
  }

  absl::Status ReadCompressed(bool by_rows) {
    absl::StatusOr<NpzArray> indptr = Flat("indptr"), indices = Flat("indices"), data = Data(1);
    for (const auto* array : {&indptr, &indices, &data}) {
      if (!array->ok()) return array->status();
    }
    const int64_t nnz = (*data)->elements();
    if ((*indices)->elements() != nnz) {
      return Bad(fmt::format("there are {} indices and {} values", (*indices)->elements(), nnz));
    }
    const int64_t across = by_rows ? shape_.cols : shape_.rows;
    const absl::Status read =
        ForLines(*indptr, by_rows ? shape_.rows : shape_.cols, nnz,
                 [&](int64_t line, int64_t begin, int64_t end) -> absl::Status {
                   for (; begin < end; ++begin) {
                     int64_t index = 0;
                     double value = 0;
                     if (!(*indices)->Next(index) || !(*data)->Next(value)) {
                       return Finish(*indices, *data, *indptr);
                     }
                     if (index < 0 || index >= across)
                       return OutOfRange("indices", begin, index, across);
                     builder_.Add(static_cast<int32_t>(by_rows ? line : index),
                                  static_cast<int32_t>(by_rows ? index : line), value);
                   }
                   return absl::OkStatus();
                 });
    return read.ok() ? Finish(*indptr, *indices, *data) : read;
  }

  absl::Status ReadCoordinates() {
    const bool together = archive_.Has("coords");
    absl::StatusOr<NpzArray> row = together ? archive_.Array("coords") : Flat("row"),
                             col = together ? archive_.Array("coords") : Flat("col"),
                             data = Data(1);
    for (const auto* array : {&row, &col, &data}) {
      if (!array->ok()) return array->status();
    }
    const int64_t nnz = (*data)->elements();
    if (together) {
      const NpyArrayHeader& header = (*col)->header();
      if (header.shape.size() != 2 || header.shape[0] != 2 || header.shape[1] != nnz ||
          header.fortran_order) {
        return Bad(fmt::format("coords: the array is ({}){}, expected (2, {}) in C's order",
                               fmt::join(header.shape, ", "),
                               header.fortran_order ? " in Fortran's order" : "", nnz));
      }
      if (absl::Status status = (*col)->Skip(nnz); !status.ok()) return At(archive_.name(), status);
    } else if ((*row)->elements() != nnz || (*col)->elements() != nnz) {
      return Bad(fmt::format("there are {} rows, {} columns and {} values", (*row)->elements(),
                             (*col)->elements(), nnz));
    }
    for (int64_t i = 0; i < nnz; ++i) {
      int64_t r = 0, c = 0;
      double value = 0;
      if (!(*row)->Next(r) || !(*col)->Next(c) || !(*data)->Next(value)) break;
      if (r < 0 || r >= shape_.rows) return OutOfRange("row", i, r, shape_.rows);
      if (c < 0 || c >= shape_.cols) return OutOfRange("col", i, c, shape_.cols);
      builder_.Add(static_cast<int32_t>(r), static_cast<int32_t>(c), value);
    }
    return Finish(*row, *col, *data);
  }

  absl::Status ReadBlocks() {
    absl::StatusOr<NpzArray> indptr = Flat("indptr"), indices = Flat("indices"), data = Data(3);
    for (const auto* array : {&indptr, &indices, &data}) {
      if (!array->ok()) return array->status();
    }
    const std::vector<int64_t>& extent = (*data)->header().shape;
    const int64_t height = extent[1], width = extent[2];
    if (height < 1 || width < 1 || shape_.rows % height != 0 || shape_.cols % width != 0) {
      return Bad(fmt::format("blocks of {} x {} do not fill a matrix of {} x {}", height, width,
                             shape_.rows, shape_.cols));
    }
    if ((*indices)->elements() != extent[0]) {
      return Bad(
          fmt::format("there are {} indices and {} blocks", (*indices)->elements(), extent[0]));
    }
    const int64_t across = shape_.cols / width;
    const absl::Status read =
        ForLines(*indptr, shape_.rows / height, extent[0],
                 [&](int64_t line, int64_t begin, int64_t end) -> absl::Status {
                   for (; begin < end; ++begin) {
                     int64_t index = 0;
                     if (!(*indices)->Next(index)) return (*indices).Finish();
                     if (index < 0 || index >= across)
                       return OutOfRange("indices", begin, index, across);
                     for (int64_t i = 0; i < height * width; ++i) {
                       double value = 0;
                       if (!(*data)->Next(value)) return (*data).Finish();
                       builder_.Add(static_cast<int32_t>(line * height + i / width),
                                    static_cast<int32_t>(index * width + i % width), value);
                     }
                   }
                   return absl::OkStatus();
                 });
    return read.ok() ? Finish(*indptr, *indices, *data) : read;
  }

  absl::Status ReadDiagonals() {
    absl::StatusOr<NpzArray> offsets = Flat("offsets"), data = Data(2);
    for (const auto* array : {&offsets, &data}) {
      if (!array->ok()) return array->status();
    }
    const std::vector<int64_t>& extent = (*data)->header().shape;
    if ((*offsets)->elements() != extent[0]) {
      return Bad(
          fmt::format("there are {} offsets and {} diagonals", (*offsets)->elements(), extent[0]));
    }
    for (int64_t i = 0; i < extent[0]; ++i) {
      int64_t offset = 0;
      if (!(*offsets)->Next(offset)) break;
      if (offset < -kMaxDimension || offset > kMaxDimension) {
        return Bad(fmt::format("offsets[{}] = {} is out of range", i, offset));
      }
      for (int64_t col = 0; col < extent[1]; ++col) {
        double value = 0;
        if (!(*data)->Next(value)) return (*data).Finish();
        const int64_t row = col - offset;
        if (row < 0 || row >= shape_.rows || col >= shape_.cols || value == 0) continue;
        builder_.Add(static_cast<int32_t>(row), static_cast<int32_t>(col), value);
      }
    }
    return Finish(*offsets, *data, *data);
  }

  NpzArchive archive_;
  const ReadOptions& options_;
  CsrBuilder builder_;
  MatrixShape shape_;
  ValueType type_ = ValueType::kF32;
};

}  // namespace

absl::StatusOr<MatrixFile> ReadNpz(ByteSource source, const ReadOptions& options) {
  absl::StatusOr<NpzArchive> archive = NpzArchive::Open(std::move(source));
  if (!archive.ok()) return archive.status();
  return Reader(*std::move(archive), options).Read();
}

}  // namespace sparsed::cli
