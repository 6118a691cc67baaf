// Uploads a small matrix, multiplies with it on the server and here, checks the products. Usage:
// consumer ADDRESS
#include <sparsed/attached.h>
#include <sparsed/client.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "consumer: %s\n", status.ToString().c_str());
  return 1;
}

int Run(const std::string& address) {
  const absl::StatusOr<sparsed::Client> client = sparsed::Client::Connect(address);
  if (!client.ok()) return Fail(client.status());

  // 1 0 2
  // 0 3 0
  const std::array<int32_t, 3> row_offsets = {0, 2, 3};
  const std::array<int32_t, 3> column_indices = {0, 2, 1};
  const std::array<float, 3> values = {1, 2, 3};
  sparsed::CsrView csr;
  csr.rows = 2;
  csr.cols = 3;
  csr.row_offsets = std::span(row_offsets);
  csr.column_indices = column_indices;
  csr.values = std::span(values);
  const absl::StatusOr<sparsed::Matrix> matrix = client->Upload("consumer", csr, {.replace = true});
  if (!matrix.ok()) return Fail(matrix.status());

  const std::array<float, 6> b = {1, 10, 2, 20, 3, 30};
  std::array<float, 4> c = {};
  const absl::StatusOr<sparsed::ComputeResult> result =
      matrix->Spmm(sparsed::DenseView(b.data(), 3, 2), sparsed::MutableDenseView(c.data(), 2, 2));
  if (!result.ok()) return Fail(result.status());
  if (c != std::array<float, 4>{7, 70, 6, 60}) {
    std::fprintf(stderr, "consumer: wrong product %g %g %g %g\n", c[0], c[1], c[2], c[3]);
    return 1;
  }
  const absl::StatusOr<sparsed::AttachedMatrix> attached =
      sparsed::AttachedMatrix::Attach(*client, "consumer");
  if (!attached.ok()) return Fail(attached.status());
  std::array<float, 4> here = {};
  const absl::StatusOr<sparsed::ComputeResult> ran = attached->Spmm(
      sparsed::DenseView(b.data(), 3, 2), sparsed::MutableDenseView(here.data(), 2, 2));
  if (!ran.ok()) return Fail(ran.status());
  if (here != c || attached->runs() != 1) {
    std::fprintf(stderr, "consumer: attached, %lld runs gave %g %g %g %g\n",
                 static_cast<long long>(attached->runs()), here[0], here[1], here[2], here[3]);
    return 1;
  }
  std::printf("plan %s, kernel %lld ns\n", result->plan.c_str(),
              static_cast<long long>(result->timings.kernel.count()));
  const absl::Status deleted = matrix->Delete();
  return deleted.ok() ? 0 : Fail(deleted);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer ADDRESS\n");
    return 2;
  }
  return Run(argv[1]);
}
