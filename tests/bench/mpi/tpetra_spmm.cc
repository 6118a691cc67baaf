// SpMM of Tpetra (Trilinos), distributed over the ranks of mpirun: tpetra_spmm FOLDER CUT K TIMES,
// as petsc_spmm.py. Built by distributed_spmm.py, as it takes MPI's compiler.
#include <Tpetra_Core.hpp>
#include <Tpetra_CrsMatrix.hpp>
#include <Tpetra_MultiVector.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

template <typename T>
std::vector<T> Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  std::vector<T> values(static_cast<size_t>(in.tellg()) / sizeof(T));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  using Global = Tpetra::Map<>::global_ordinal_type;
  Tpetra::ScopeGuard scope(&argc, &argv);
  if (argc != 5) return 2;
  const auto comm = Tpetra::getDefaultComm();
  const std::string folder = argv[1];
  const int k = std::atoi(argv[3]), times = std::atoi(argv[4]);
  const auto offsets = Read<int64_t>(folder + "/offsets.i64");
  const auto columns = Read<int32_t>(folder + "/columns.i32");
  const auto values = Read<double>(folder + "/values.f64");
  const auto rows = static_cast<int64_t>(offsets.size()) - 1;
  std::vector<int64_t> cut = {0};
  std::stringstream text(argv[2]);
  for (std::string row; std::getline(text, row, ',');) cut.push_back(std::atoll(row.c_str()));
  cut.push_back(rows);
  const int64_t low = cut[comm->getRank()], high = cut[comm->getRank() + 1];
  const auto map = Teuchos::rcp(new Tpetra::Map<>(rows, high - low, 0, comm));
  std::vector<size_t> counts;
  for (int64_t row = low; row < high; ++row) counts.push_back(offsets[row + 1] - offsets[row]);
  Tpetra::CrsMatrix<double> s(map, Teuchos::ArrayView<const size_t>(counts.data(), counts.size()));
  std::vector<Global> named;
  for (int64_t row = low; row < high; ++row) {
    named.assign(columns.begin() + offsets[row], columns.begin() + offsets[row + 1]);
    s.insertGlobalValues(
        Global(row), Teuchos::ArrayView<const Global>(named.data(), named.size()),
        Teuchos::ArrayView<const double>(values.data() + offsets[row], named.size()));
  }
  s.fillComplete(map, map);
  Tpetra::MultiVector<double> b(map, k), c(map, k);
  for (int j = 0; j < k; ++j) {
    const auto column = b.getDataNonConst(j);
    for (int64_t row = low; row < high; ++row) {
      column[row - low] = static_cast<double>((row * 7 + j * 3) % 11 - 5) / 8;
    }
  }
  s.apply(b, c);
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    comm->barrier();
    const auto begun = std::chrono::steady_clock::now();
    s.apply(b, c);
    comm->barrier();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  double sum = 0, total = 0;
  for (int j = 0; j < k; ++j) {
    for (const double value : c.getData(j)) sum += std::abs(value);
  }
  Teuchos::reduceAll(*comm, Teuchos::REDUCE_SUM, 1, &sum, &total);
  if (comm->getRank() != 0) return 0;
  std::printf("{\"seconds\": [");
  for (size_t i = 0; i < seconds.size(); ++i) std::printf("%s%g", i > 0 ? ", " : "", seconds[i]);
  std::printf("], \"sum\": %.17g}\n", total);
  return 0;
}
