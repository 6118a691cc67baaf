#include "client/cli/replay_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/machine.h"

namespace sparsed::cli {

absl::StatusOr<std::unique_ptr<ReplayRequests>> ReplayRequests::Make(const Client& client,
                                                                     const RequestLog& log,
                                                                     int workers) {
  std::unique_ptr<ReplayRequests> requests(new ReplayRequests(client));
  if (absl::Status status = requests->FindMatrices(log); !status.ok()) return status;
  if (absl::Status status = requests->MakeArrays(workers); !status.ok()) return status;
  return requests;
}

absl::Status ReplayRequests::FindMatrices(const RequestLog& log) {
  std::map<std::string, std::optional<MatrixInfo>> infos;
  const auto find = [&](const std::string& name) -> absl::Status {
    if (name.empty() || infos.contains(name)) return absl::OkStatus();
    absl::StatusOr<MatrixInfo> info = client_.MatrixNamed(name).Info();
    // What a log calls a matrix may be no name at all.
    if (absl::IsNotFound(info.status()) || absl::IsInvalidArgument(info.status()) ||
        absl::IsPermissionDenied(info.status())) {
      infos[name].reset();
      return absl::OkStatus();
    }
    if (info.ok()) infos[name] = *std::move(info);
    return info.status();
  };
  std::vector<std::string> lacks;
  for (const ProductKind& kind : log.kinds) {
    std::string& lacking = lacks.emplace_back();
    for (const std::string& name : {kind.matrix, kind.right, kind.mask}) {
      if (absl::Status status = find(name); !status.ok()) return status;
      if (!name.empty() && !infos[name].has_value()) lacking = name;
    }
    products_.emplace_back();
    if (!lacking.empty()) continue;
    const MatrixInfo& matrix = *infos[kind.matrix];
    Product product{.kind = kind, .type = matrix.type};
    if (kind.operation != Operation::kSpgemm) {
      product.flops = 2.0 * static_cast<double>(matrix.nnz) * static_cast<double>(kind.k);
    }
    if (kind.operation == Operation::kSpmm) {
      product.right_rows = kind.transpose ? matrix.rows : matrix.cols;
      product.result_rows = kind.transpose ? matrix.cols : matrix.rows;
      product.result_cols = kind.k;
    } else if (kind.operation == Operation::kSddmm) {
      product.left_rows = matrix.rows;
      product.right_rows = matrix.cols;
      product.result_rows = matrix.nnz;
      product.result_cols = 1;
    }
    products_.back() = std::move(product);
  }
  for (const RecordedRequest& request : log.requests) {
    if (products_[request.kind].has_value()) {
      requests_.push_back(request);
    } else {
      ++missing_[lacks[request.kind]];
    }
  }
  if (!requests_.empty()) return absl::OkStatus();
  return absl::NotFoundError(fmt::format(
      "of {} recorded requests none can be made again: there is no matrix named '{}' here",
      log.requests.size(), missing_.begin()->first));
}

absl::Status ReplayRequests::MakeArrays(int workers) {
  std::map<ValueType, int64_t> elements;
  int64_t result_bytes = 1;
  double bytes = 0;
  for (const std::optional<Product>& product : products_) {
    if (!product.has_value()) continue;
    int64_t& most = elements[product->type];
    most = std::max(most, std::max(product->left_rows, product->right_rows) * product->kind.k);
    result_bytes =
        std::max(result_bytes, product->result_rows * product->result_cols * SizeOf(product->type));
  }
  for (const auto& [type, count] : elements) {
    bytes += static_cast<double>(count) * static_cast<double>(SizeOf(type));
  }
  bytes += static_cast<double>(workers) * static_cast<double>(result_bytes);
  if (absl::Status status = CheckFitsMemory(fmt::format("operands and {} results", workers), bytes,
                                            "fewer at once (--concurrency)");
      !status.ok()) {
    return status;
  }
  for (const auto& [type, count] : elements) {
    absl::StatusOr<NpyArray> numbers = RandomDense(type, std::max<int64_t>(count, 1), 1, 1);
    if (!numbers.ok()) return numbers.status();
    operands_.emplace(type, *std::move(numbers));
  }
  for (int worker = 0; worker < workers; ++worker) {
    results_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(result_bytes)));
  }
  return absl::OkStatus();
}

DenseView ReplayRequests::OperandOf(const Product& product, int64_t rows) const {
  return {operands_.at(product.type).View().data, product.type, rows, product.kind.k};
}

absl::StatusOr<LoadSample> ReplayRequests::Run(int worker, int64_t number) const {
  const Product& product = *products_[requests_[static_cast<size_t>(number)].kind];
  const ProductKind& kind = product.kind;
  const Matrix matrix = client_.MatrixNamed(kind.matrix);
  if (kind.operation == Operation::kSpgemm) {
    const absl::StatusOr<SpgemmResult> how = matrix.Spgemm(
        client_.MatrixNamed(kind.right), [](const RowBlock&) { return absl::OkStatus(); },
        {.count_first = kind.count_first,
         .transpose_left = kind.transpose,
         .transpose_right = kind.transpose_right,
         .semiring = kind.semiring,
         .mask = kind.mask});
    if (!how.ok()) return how.status();
    return LoadSample{how->timings, how->plan, Transport::kStream, 0};
  }
  const MutableDenseView result(results_[static_cast<size_t>(worker)].get(), product.type,
                                product.result_rows, product.result_cols);
  const absl::StatusOr<ComputeResult> how =
      kind.operation == Operation::kSpmm
          ? matrix.Spmm(OperandOf(product, product.right_rows), result,
                        {.transpose = kind.transpose, .allow_tf32 = kind.allow_tf32})
          : matrix.Sddmm(OperandOf(product, product.left_rows),
                         OperandOf(product, product.right_rows), result,
                         {.unscaled = kind.unscaled});
  if (!how.ok()) return how.status();
  return LoadSample{how->timings, how->plan, how->transport, product.flops};
}

}  // namespace sparsed::cli
