#include "tests/rpc/test_client.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "sparsed/client.h"

namespace sparsed::test {
namespace {

absl::StatusOr<Client> Connect(const std::string& address, const Shown& shown) {
  ClientOptions options;
  options.max_attempts = 1;
  options.tls = {shown.ca, shown.certificate, shown.key, shown.server_name};
  options.token = shown.token;
  options.token_file = shown.token_file;
  return Client::Connect(address, options);
}

}  // namespace

absl::StatusOr<WhoAmI> ConnectClient(const std::string& address, const Shown& shown) {
  absl::StatusOr<Client> client = Connect(address, shown);
  if (!client.ok()) return client.status();
  return [client = *std::move(client)]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<ServerInfo> info = client.GetServerInfo();
    if (!info.ok()) return info.status();
    return info->tenant + " " + info->role;
  };
}

absl::Status MultiplyUntil(const std::string& address, const Shown& shown,
                           const std::function<bool()>& enough) {
  constexpr int64_t kRows = 1 << 13, kWidth = 1 << 8;
  const absl::StatusOr<Client> client = Connect(address, shown);
  if (!client.ok()) return client.status();
  std::vector<int64_t> row_offsets(kRows + 1);
  std::vector<int32_t> column_indices(kRows);
  std::iota(row_offsets.begin(), row_offsets.end(), 0);
  std::iota(column_indices.begin(), column_indices.end(), 0);
  std::vector<float> ones(kRows, 1.0F);
  const absl::StatusOr<Matrix> diagonal = client->Upload("diagonal",
                                                         CsrView{.rows = kRows,
                                                                 .cols = kRows,
                                                                 .row_offsets = row_offsets,
                                                                 .column_indices = column_indices,
                                                                 .values = ones},
                                                         {.replace = true});
  if (!diagonal.ok()) return diagonal.status();
  std::vector<float> b(kRows * kWidth), c(kRows * kWidth);
  std::iota(b.begin(), b.end(), 0.0F);
  for (int i = 0; i < 50 && !enough(); ++i) {
    std::fill(c.begin(), c.end(), -1.0F);
    const absl::StatusOr<ComputeResult> result = diagonal->Spmm(
        DenseView(b.data(), kRows, kWidth), MutableDenseView(c.data(), kRows, kWidth));
    if (!result.ok()) return result.status();
    if (c != b) return absl::DataLossError("the diagonal changed the operand");
  }
  return absl::OkStatus();
}

}  // namespace sparsed::test
