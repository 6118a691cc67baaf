#include "client/c/csr.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/json.h"
#include "client/cli/matrix_file.h"
#include "client/cli/matrix_market.h"

namespace sparsed::c {
namespace {

template <typename T>
std::span<const T> Span(const void* data, int64_t length) {
  return {static_cast<const T*>(data), static_cast<size_t>(length)};
}

/// As large as memory can be.
constexpr int64_t kMostElements = int64_t{1} << 60;

bool CheckSizes(const sparsed_csr_view& csr, Arguments& in) {
  for (const auto& [size, what] :
       {std::pair{csr.rows, "the rows of csr"}, std::pair{csr.cols, "the columns of csr"},
        std::pair{csr.nnz, "the nonzeros of csr"}}) {
    in.NotNegative(size, what);
    if (size >= kMostElements) in.Refuse(fmt::format("{} are more than any memory holds", what));
  }
  in.Need(csr.row_offsets, "row_offsets");
  if (csr.nnz > 0) in.Need(csr.column_indices, "column_indices");
  if (csr.offset_bytes != 4 && csr.offset_bytes != 8) {
    in.Refuse(fmt::format("offset_bytes is {}; row offsets have 4 or 8 bytes", csr.offset_bytes));
  }
  return in.ok();
}

cli::ReadOptions ReadOptionsOf(const sparsed_read_options* given, Arguments& in) {
  const sparsed_read_options options =
      in.Options(given, sparsed_read_options SPARSED_READ_OPTIONS_INIT, "options");
  cli::ReadOptions read;
  if (options.format != nullptr) {
    const absl::StatusOr<cli::FileFormat> format = cli::ParseFileFormat(options.format);
    if (format.ok()) {
      read.format = *format;
    } else {
      in.Refuse(fmt::format("format: {}", std::string(format.status().message())));
    }
  }
  if (options.type >= 0) read.type = in.Type(options.type, "the matrix");
  read.one_based = options.one_based != 0;
  read.undirected = options.undirected != 0;
  if (options.weight_column == 1 || options.weight_column == 2) {
    in.Refuse("weight_column: the first two columns are the rows and columns of the entries");
  }
  if (options.weight_column >= 0) read.weight_column = options.weight_column;
  if (options.rows >= 0 || options.cols >= 0) {
    in.NotNegative(options.rows, "rows");
    in.NotNegative(options.cols, "cols");
    if (options.rows > cli::kMaxDimension || options.cols > cli::kMaxDimension) {
      in.Refuse(fmt::format("rows and cols can be {} at most", cli::kMaxDimension));
    }
    read.shape = cli::MatrixShape{options.rows, options.cols};
  }
  return read;
}

}  // namespace

ConstValues ToValues(const void* values, int64_t count, ValueType type) {
  switch (type) {
    case ValueType::kF64:
      return Span<double>(values, count);
    case ValueType::kF16:
      return Span<Float16>(values, count);
    case ValueType::kBF16:
      return Span<BFloat16>(values, count);
    case ValueType::kF32:
    case ValueType::kI64:
      break;
  }
  return Span<float>(values, count);
}

const void* DataOf(const ConstValues& values) {
  return std::visit([](const auto& span) { return static_cast<const void*>(span.data()); }, values);
}

CsrView ToView(const sparsed_csr_view* csr, Arguments& in, bool& ones) {
  CsrView view;
  if (!in.Need(csr, "csr") || !CheckSizes(*csr, in)) return view;
  const ValueType type = in.Type(csr->type, "csr");
  view.rows = csr->rows;
  view.cols = csr->cols;
  if (csr->offset_bytes == 4) {
    view.row_offsets = Span<int32_t>(csr->row_offsets, csr->rows + 1);
  } else {
    view.row_offsets = Span<int64_t>(csr->row_offsets, csr->rows + 1);
  }
  view.column_indices = Span<int32_t>(csr->column_indices, csr->nnz);
  ones = csr->values == nullptr && csr->nnz > 0;
  view.values = ToValues(csr->values, ones ? 0 : csr->nnz, type);
  return view;
}

}  // namespace sparsed::c

extern "C" {

void sparsed_csr_get(const sparsed_csr* csr, sparsed_csr_view* view) {
  if (view == nullptr) return;
  *view = {};
  view->offset_bytes = sizeof(int64_t);
  if (csr == nullptr) return;
  const sparsed::CsrMatrix& matrix = csr->matrix;
  view->rows = matrix.rows;
  view->cols = matrix.cols;
  view->nnz = matrix.nnz();
  view->row_offsets = matrix.row_offsets.data();
  view->type = static_cast<int32_t>(matrix.type());
  view->column_indices = matrix.column_indices.data();
  view->values = sparsed::c::DataOf(matrix.View().values);
}

void sparsed_csr_free(sparsed_csr* csr) { delete csr; }

sparsed_error* sparsed_csr_read(const char* path, const sparsed_read_options* options,
                                sparsed_csr** csr, char** json) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    sparsed::c::Arguments in;
    const std::string file = in.Name(path, "path");
    const sparsed::cli::ReadOptions how = sparsed::c::ReadOptionsOf(options, in);
    in.Need(csr, "csr");
    if (!in.ok()) return in.status();
    absl::StatusOr<sparsed::cli::MatrixFile> read = sparsed::cli::ReadMatrixFile(file, how);
    if (!read.ok()) return read.status();
    if (json != nullptr) {
      const absl::Status told = sparsed::c::SetText(sparsed::cli::ToJson(*read), json);
      if (!told.ok()) return told;
    }
    *csr = new sparsed_csr{std::move(read->matrix)};
    return absl::OkStatus();
  });
}

sparsed_error* sparsed_csr_read_matrix_market(const char* path, int32_t type, sparsed_csr** csr) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    sparsed::c::Arguments in;
    const std::string file = in.Name(path, "path");
    const sparsed::ValueType values = in.Type(type, "the matrix");
    in.Need(csr, "csr");
    if (!in.ok()) return in.status();
    absl::StatusOr<sparsed::CsrMatrix> read = sparsed::cli::ReadMatrixMarket(file, values);
    if (!read.ok()) return read.status();
    *csr = new sparsed_csr{*std::move(read)};
    return absl::OkStatus();
  });
}

}  // extern "C"
