// spmm, sddmm.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/dense_operand.h"

namespace sparsed::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct SpmmArguments {
  std::string name;
  std::string operand;
  ResultArguments result;
  bool transpose = false;
  double alpha = 1;
  double beta = 0;
  std::string accumulate;  ///< empty: none
  std::string values;      ///< empty: the matrix's
  bool allow_tf32 = false;
};

struct SddmmArguments {
  std::string name;
  std::string left;
  std::string right;
  ResultArguments result;
  bool unscaled = false;
  std::string values;  ///< empty: the matrix's
};

/// What both operations have to say of how it was done.
Report DescribeRun(const std::string& matrix, int64_t rows, int64_t cols, ValueType type,
                   const ComputeResult& how, Clock::duration elapsed) {
  Report report;
  report.json = {{"matrix", matrix},
                 {"rows", rows},
                 {"cols", cols},
                 {"type", Name(type)},
                 {"plan", how.plan},
                 {"version", how.version},
                 {"batch", how.batch},
                 {"timings_ns", ToJson(how.timings)},
                 {"client_ns", std::chrono::nanoseconds(elapsed).count()}};
  report.text = fmt::format(
      "plan    {}{}\n"
      "server  {}\n"
      "client  {}\n",
      how.plan, how.batch > 1 ? fmt::format(", one of {} at once", how.batch) : "",
      Text(how.timings), Milliseconds(elapsed));
  return report;
}

/// S's values for one product, if there are any.
class OwnValues {
 public:
  absl::Status Open(const Client& client, const std::string& text, const MatrixInfo& matrix) {
    if (text.empty()) return absl::OkStatus();
    if (IsHeld(text)) {
      operand_ = client.DenseNamed(text.substr(1));
      return absl::OkStatus();
    }
    absl::StatusOr<NpyArray> file = ReadNpy(text, matrix.type);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    if (file_.rows != matrix.nnz || file_.cols != 1) {
      return absl::InvalidArgumentError(fmt::format("{} is {} x {}, expected {} x 1: {} has {}",
                                                    text, file_.rows, file_.cols, matrix.nnz,
                                                    matrix.name, Counted(matrix.nnz, "nonzero")));
    }
    operand_ = file_.View();
    return absl::OkStatus();
  }
  const std::optional<Operand>& operand() const { return operand_; }

 private:
  NpyArray file_;
  std::optional<Operand> operand_;
};

absl::StatusOr<Report> Spmm(const Client& client, const SpmmArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const auto operand = DenseOperand::Open(client, arguments.operand, info->type, arguments.name);
  if (!operand.ok()) return operand.status();
  const int64_t rows = arguments.transpose ? info->cols : info->rows;
  const int64_t cols = operand->cols();

  std::optional<DenseOperand> accumulate;
  if (!arguments.accumulate.empty()) {
    auto opened = DenseOperand::Open(client, arguments.accumulate, info->type, arguments.name);
    if (!opened.ok()) return opened.status();
    if (opened->rows() != rows || opened->cols() != cols) {
      return absl::InvalidArgumentError(
          fmt::format("{} is {} x {}, expected {} x {} like the result", arguments.accumulate,
                      opened->rows(), opened->cols(), rows, cols));
    }
    accumulate = *std::move(opened);
  }
  OwnValues values;
  if (absl::Status s = values.Open(client, arguments.values, *info); !s.ok()) return s;
  auto result = DenseResult::Open(client, arguments.result, info->type, rows, cols,
                                  operand->one_dimensional(), arguments.name,
                                  /*adds=*/arguments.beta != 0 && arguments.accumulate.empty());
  if (!result.ok()) return result.status();

  SpmmOptions options = {.transpose = arguments.transpose,
                         .alpha = arguments.alpha,
                         .beta = arguments.beta,
                         .accumulate = {},
                         .allow_tf32 = arguments.allow_tf32,
                         .values = values.operand()};
  if (accumulate.has_value()) options.accumulate = accumulate->operand();
  const auto begin = Clock::now();
  const absl::StatusOr<ComputeResult> how =
      matrix.Spmm(operand->operand(), result->destination(), options);
  const auto elapsed = Clock::now() - begin;
  if (!how.ok()) return result->Failed(how.status());
  Report report = DescribeRun(arguments.name, rows, cols, info->type, *how, elapsed);
  absl::Status finished = result->Finish(fmt::format("{} x {}", Count(rows), Count(cols)), report);
  if (!finished.ok()) return finished;
  if (arguments.allow_tf32) AddTf32Note(client, info->type, report);
  return report;
}

absl::StatusOr<Report> Sddmm(const Client& client, const SddmmArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const absl::StatusOr<MatrixInfo> info = matrix.Info();
  if (!info.ok()) return info.status();
  const auto left = DenseOperand::Open(client, arguments.left, info->type, arguments.name);
  if (!left.ok()) return left.status();
  const auto right = DenseOperand::Open(client, arguments.right, info->type, arguments.name);
  if (!right.ok()) return right.status();
  OwnValues values;
  if (absl::Status s = values.Open(client, arguments.values, *info); !s.ok()) return s;
  auto result = DenseResult::Open(client, arguments.result, info->type, info->nnz, 1, true, "");
  if (!result.ok()) return result.status();

  const auto begin = Clock::now();
  const absl::StatusOr<ComputeResult> how =
      matrix.Sddmm(left->operand(), right->operand(), result->destination(),
                   {.unscaled = arguments.unscaled, .values = values.operand()});
  const auto elapsed = Clock::now() - begin;
  if (!how.ok()) return result->Failed(how.status());
  Report report = DescribeRun(arguments.name, info->nnz, 1, info->type, *how, elapsed);
  absl::Status finished =
      result->Finish(Counted(info->nnz, "value") + ", one for each nonzero", report);
  if (!finished.ok()) return finished;
  return report;
}

/// S's values for one product.
CLI::Option* AddValues(CLI::App* command, std::string& values) {
  return command
      ->add_option("--values", values,
                   "Values of S for this product alone, one for each nonzero in canonical CSR "
                   "order: a .npy file, or @NAME of a buffer")
      ->check(CheckHeld);
}

void AddResult(CLI::App* command, ResultArguments& result, const char* what) {
  CLI::Option* out =
      command->add_option("--out", result.out, fmt::format("The .npy file that {} goes to", what))
          ->check(IsNpyFile);
  command
      ->add_option("--keep-as", result.keep_as,
                   fmt::format("Keep {} on the server instead, as a buffer of this name, which "
                               "is made if there is none",
                               what))
      ->type_name("BUFFER")
      ->transform(AsBufferName())
      ->excludes(out);
}

/// Throws if nothing says where the result goes.
void CheckResult(const ResultArguments& result) {
  if (result.out.empty() && result.keep_as.empty()) throw CLI::RequiredError("--out or --keep-as");
}

}  // namespace

void AddSpmm(CLI::App& app, Invocation& invocation) {
  CLI::App* spmm = app.add_subcommand(
      "spmm",
      "C = alpha * S * B + beta * C0, for dense B and C: .npy files of float16, float32 or float64 "
      "(results of bf16 matrices are written as float32, which holds them exactly), or @NAME of "
      "a buffer, so that nothing travels");
  spmm->footer(ExampleLines(
      {"sparsectl generate matrix 300x300 --out=g.mtx", "sparsectl upload g.mtx --replace",
       "sparsectl generate dense 300x64 --out=B.npy",
       "sparsectl spmm g --operand=B.npy --out=C.npy",
       "sparsectl spmm g --operand=B.npy --out=D.npy --transpose --alpha=0.5",
       "sparsectl spmm g --operand=B.npy --out=E.npy --beta=1 --accumulate=C.npy",
       "sparsectl buffers put x B.npy", "sparsectl spmm g --operand=@x --keep-as=y",
       "sparsectl spmm g --operand=@y --keep-as=x --beta=1",
       "sparsectl buffers get x --out=X.npy"}));
  auto m = std::make_shared<SpmmArguments>();
  AddName(spmm, m->name);
  spmm->add_option("-b,--operand", m->operand,
                   "B: a .npy file, converted to the matrix's type if need be, or @NAME")
      ->check(CheckHeld)
      ->required();
  AddResult(spmm, m->result, "C");
  spmm->add_flag("-t,--transpose", m->transpose, "Multiply with the transposed matrix");
  spmm->add_option("--alpha", m->alpha, "Factor of the product")->capture_default_str();
  CLI::Option* beta = spmm->add_option("--beta", m->beta, "Factor of C0");
  spmm->add_option("--accumulate", m->accumulate,
                   "C0: a .npy file or @NAME (default with --keep-as: what C holds)")
      ->check(CheckHeld)
      ->needs(beta);
  AddValues(spmm, m->values);
  spmm->add_flag(
      "--allow-tf32", m->allow_tf32,
      "Factors may be rounded to TF32: products of f32 on a GPU; says so where it makes no "
      "difference");
  spmm->callback([&invocation, m, beta] {
    CheckResult(m->result);
    if (beta->count() > 0 && m->accumulate.empty() && m->result.keep_as.empty()) {
      throw CLI::RequiresError("--beta", "--accumulate or --keep-as");
    }
    invocation.run = [m](const Client& client) { return Spmm(client, *m); };
  });
}

void AddSddmm(CLI::App& app, Invocation& invocation) {
  CLI::App* sddmm = app.add_subcommand(
      "sddmm",
      "S .* (A * B^T): one value for each nonzero of S, in canonical CSR order, for dense A and B: "
      ".npy files, or @NAME of buffers");
  sddmm->footer(ExampleLines(
      {"sparsectl generate matrix 300x300 --out=g.mtx", "sparsectl upload g.mtx --replace",
       "sparsectl generate dense 300x64 --out=A.npy",
       "sparsectl sddmm g --left=A.npy --right=A.npy --out=values.npy",
       "sparsectl sddmm g --left=A.npy --right=A.npy --out=new.npy --values=values.npy",
       "sparsectl sddmm g --left=A.npy --right=A.npy --keep-as=attention",
       "sparsectl spmm g --operand=A.npy --values=@attention --out=C.npy"}));
  auto d = std::make_shared<SddmmArguments>();
  AddName(sddmm, d->name);
  sddmm->add_option("--left", d->left, "A, a row for each row of S: a .npy file or @NAME")
      ->check(CheckHeld)
      ->required();
  sddmm->add_option("--right", d->right, "B, a row for each column of S: a .npy file or @NAME")
      ->check(CheckHeld)
      ->required();
  AddResult(sddmm, d->result, "the column of values");
  sddmm->add_flag("--unscaled", d->unscaled, "Do not multiply by the values of S")
      ->excludes(AddValues(sddmm, d->values));
  sddmm->callback([&invocation, d] {
    CheckResult(d->result);
    invocation.run = [d](const Client& client) { return Sddmm(client, *d); };
  });
}

}  // namespace sparsed::cli
