#include "tests/rpc/cluster_client.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "sparsed/chain.h"
#include "sparsed/client.h"

namespace sparsed::test {
namespace {

constexpr int64_t kRows = 100, kWidth = 4;

/// INTERNAL unless C is `factor` times B.
absl::Status Check(const std::vector<float>& b, const std::vector<float>& c, float factor) {
  for (size_t i = 0; i < b.size(); ++i) {
    if (c[i] == factor * b[i]) continue;
    return absl::InternalError(fmt::format("element {} is {}, not {}", i, c[i], factor * b[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UseMatrix(const std::string& address, const std::string& name, int products) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  for (int64_t row = 0; row <= kRows; ++row) row_offsets.push_back(row);
  for (int32_t row = 0; row < kRows; ++row) column_indices.push_back(row);
  const std::vector<float> twos(kRows, 2), threes(kRows, 3);
  std::vector<float> b, c(static_cast<size_t>(kRows * kWidth));
  for (int64_t i = 0; i < kRows * kWidth; ++i) b.push_back(static_cast<float>(i));
  const DenseView in(b.data(), kRows, kWidth);
  const MutableDenseView out(c.data(), kRows, kWidth);

  const absl::StatusOr<Matrix> matrix = client->Upload(
      name, {kRows, kRows, std::span(row_offsets), column_indices, std::span<const float>(twos)});
  if (!matrix.ok()) return matrix.status();
  for (int i = 0; i < products; ++i) {
    const absl::StatusOr<ComputeResult> result = matrix->Spmm(in, out);
    if (!result.ok()) return result.status();
    if (absl::Status right = Check(b, c, 2); !right.ok()) return right;
  }
  const auto version = matrix->UpdateValues(std::span<const float>(threes));
  if (!version.ok()) return version.status();
  const absl::StatusOr<ComputeResult> result = matrix->Spmm(in, out);
  if (!result.ok()) return result.status();
  if (absl::Status right = Check(b, c, 3); !right.ok()) return right;

  Chain chain;
  const Chain::Value operand = chain.Input(in);
  chain.Output(chain.Spmm(*matrix, chain.Spmm(*matrix, operand)), out);
  const absl::StatusOr<ComputeResult> chained = client->Run(chain);
  if (!chained.ok()) return chained.status();
  if (absl::Status right = Check(b, c, 9); !right.ok()) return right;
  return matrix->Delete();
}

absl::Status KeepProduct(const std::string& address, size_t copies) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  for (int64_t row = 0; row <= kRows; ++row) row_offsets.push_back(row);
  for (int32_t row = 0; row < kRows; ++row) column_indices.push_back(row);
  const std::vector<float> twos(kRows, 2);
  const absl::StatusOr<Matrix> matrix = client->Upload(
      "factor",
      {kRows, kRows, std::span(row_offsets), column_indices, std::span<const float>(twos)});
  if (!matrix.ok()) return matrix.status();
  for (const bool replace : {false, true}) {
    const auto kept = matrix->SpgemmKeep(*matrix, "product", {.replace = replace});
    if (!kept.ok()) return kept.status();
    const auto info = client->MatrixNamed("product").Info();
    if (!info.ok()) return info.status();
    if (info->nodes.size() != copies) {
      return absl::InternalError(
          fmt::format("{} nodes have the product, not {}", info->nodes.size(), copies));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> UntoldMatrices(const std::string& address, bool all,
                                                        size_t matrices) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  const auto infos = all ? client->ListAll() : client->ListMatrices();
  if (!infos.ok()) return infos.status();
  if (infos->size() != matrices) {
    return absl::InternalError(fmt::format("{} matrices are listed", infos->size()));
  }
  std::vector<std::string> untold;
  for (const MatrixInfo& info : *infos) {
    const bool told = info.state != MatrixState::kUnknown;
    if (told != (info.csr_bytes > 0) || told != info.durable) {
      return absl::InternalError(fmt::format("{} is half told", info.name));
    }
    if (!told) untold.push_back(info.name);
  }
  return untold;
}

}  // namespace sparsed::test
