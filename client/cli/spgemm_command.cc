// spgemm.
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/progress_bar.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct SpgemmArguments {
  std::string left;
  std::string right;
  OutputArguments out;  ///< no path: none; or
  std::string name;     ///< kept on the server; or
  bool discard = false;
  bool replace = false;
  SpgemmOptions options = {};  ///< but for count_first
};
/// "sum-product", "boolean", "min-plus", "plus-pair"; INVALID_ARGUMENT for anything else.
Report SpgemmReport(const SpgemmArguments& arguments, const SpgemmResult& how,
                    Clock::duration elapsed) {
  Report report;
  report.json = {{"left", arguments.left},
                 {"right", arguments.right},
                 {"transpose_left", arguments.options.transpose_left},
                 {"transpose_right", arguments.options.transpose_right},
                 {"semiring", Name(arguments.options.semiring)},
                 {"rows", how.rows},
                 {"cols", how.cols},
                 {"nnz", how.nnz},
                 {"plan", how.plan},
                 {"version", how.version},
                 {"timings_ns", ToJson(how.timings)},
                 {"client_ns", std::chrono::nanoseconds(elapsed).count()}};
  if (!arguments.options.mask.empty()) report.json["mask"] = arguments.options.mask;
  std::string where = "received and dropped";
  if (!arguments.out.path.empty()) {
    report.json["out"] = arguments.out.path;
    where = fmt::format("wrote {}", arguments.out.path);
  } else if (!arguments.name.empty()) {
    report.json["name"] = arguments.name;
    where = fmt::format("kept as {}", arguments.name);
  }
  report.text = fmt::format(
      "plan    {}\n"
      "server  {}\n"
      "client  {}\n"
      "result  {} x {}, {}, {}\n",
      how.plan, Text(how.timings), Milliseconds(elapsed), Count(how.rows), Count(how.cols),
      Counted(how.nnz, "nonzero"), where);
  return report;
}

/// Streams the product through `add`, then `finish` gets its size.
absl::StatusOr<SpgemmResult> Stream(
    const Client& client, const SpgemmArguments& arguments, const RowBlockCallback& add,
    const std::function<absl::Status(int64_t rows, int64_t cols, int64_t nnz)>& finish) {
  ProgressBar bar;
  absl::StatusOr<SpgemmResult> result =
      client.MatrixNamed(arguments.left)
          .Spgemm(
              client.MatrixNamed(arguments.right),
              [&](const RowBlock& block) {
                bar.Show("receiving", block.row_begin + block.rows, block.result_rows);
                return add(block);
              },
              arguments.options);
  if (!result.ok()) return result;
  if (absl::Status status = finish(result->rows, result->cols, result->nnz); !status.ok()) {
    return status;
  }
  return result;
}

absl::StatusOr<SpgemmResult> StreamToFile(const Client& client, const SpgemmArguments& arguments,
                                          std::string& note) {
  const absl::StatusOr<std::unique_ptr<MatrixWriter>> writer = OpenOutput(arguments.out);
  if (!writer.ok()) return writer.status();
  absl::StatusOr<SpgemmResult> result = Stream(
      client, arguments, [&writer](const RowBlock& block) { return (*writer)->Add(block); },
      [&writer](int64_t rows, int64_t cols, int64_t nnz) {
        return (*writer)->Finish(rows, cols, nnz);
      });
  note = (*writer)->Note();
  return result;
}

absl::StatusOr<SpgemmResult> RunSpgemm(const Client& client, const SpgemmArguments& arguments,
                                       std::string& note) {
  if (!arguments.name.empty()) {
    return client.MatrixNamed(arguments.left)
        .SpgemmKeep(client.MatrixNamed(arguments.right), arguments.name,
                    {.replace = arguments.replace, .spgemm = arguments.options});
  }
  if (arguments.discard) {
    return Stream(
        client, arguments, [](const RowBlock&) { return absl::OkStatus(); },
        [](int64_t, int64_t, int64_t) { return absl::OkStatus(); });
  }
  return StreamToFile(client, arguments, note);
}

absl::StatusOr<Report> Spgemm(const Client& client, const SpgemmArguments& arguments) {
  std::string note;
  const auto begin = Clock::now();
  const absl::StatusOr<SpgemmResult> how = RunSpgemm(client, arguments, note);
  if (!how.ok()) return how.status();
  Report report = SpgemmReport(arguments, *how, Clock::now() - begin);
  AddNote(note, report);
  return report;
}

}  // namespace

absl::StatusOr<Semiring> ParseSemiring(std::string_view text) {
  for (const Semiring semiring :
       {Semiring::kSumProduct, Semiring::kBoolean, Semiring::kMinPlus, Semiring::kPlusPair}) {
    if (text == Name(semiring)) return semiring;
  }
  const std::vector<std::string> known = {"sum-product", "boolean", "min-plus", "plus-pair"};
  return absl::InvalidArgumentError(
      fmt::format("{} is none of sum-product, boolean, min-plus and plus-pair{}", text,
                  DidYouMean(text, known)));
}

void AddSpgemm(CLI::App& app, Invocation& invocation) {
  CLI::App* spgemm = app.add_subcommand("spgemm", "C = LEFT * RIGHT, all sparse");
  spgemm->footer(ExampleLines(
      {"sparsectl generate matrix 1000x1000 --out=g.mtx", "sparsectl upload g.mtx --replace",
       "sparsectl spgemm g g --out=square.npz", "sparsectl upload square.npz --replace",
       "sparsectl spgemm g g --out=square.mtx.gz", "sparsectl spgemm g g --name=kept --replace",
       "sparsectl spgemm g g --discard",
       "sparsectl spgemm g g --transpose-right --name=common --replace",
       "sparsectl spgemm g g --mask=g --semiring=plus-pair --name=triangles --replace"}));
  auto g = std::make_shared<SpgemmArguments>();
  spgemm->add_option("LEFT", g->left, "The left matrix")->type_name("MATRIX")->required();
  spgemm->add_option("RIGHT", g->right, "The right matrix")->type_name("MATRIX")->required();
  CLI::Option_group* where = spgemm->add_option_group("Result", "where C goes: one of");
  CLI::Option* out = AddOut(where, g->out);
  CLI::Option* name = where->add_option("--name", g->name, "A new matrix on the server");
  where->add_flag("--discard", g->discard, "Receive it and drop it");
  where->require_option(1);
  AddOutputFormat(spgemm, out, g->out);
  spgemm->add_flag("--replace", g->replace, "Replace a matrix of that name")->needs(name);
  spgemm->add_flag("--transpose-left", g->options.transpose_left, "Multiply LEFT's transpose");
  spgemm->add_flag("--transpose-right", g->options.transpose_right,
                   "Multiply by RIGHT's transpose");
  spgemm
      ->add_option_function<std::string>(
          "--semiring",
          [g](const std::string& text) { g->options.semiring = *ParseSemiring(text); },
          "How entries are multiplied and summed: sum-product (default); boolean, every entry is "
          "1; "
          "min-plus, the least sum of a pair; plus-pair, the number of pairs")
      ->check([](const std::string& text) { return Refusal(ParseSemiring(text)); });
  spgemm->add_option("--mask", g->options.mask,
                     "A matrix of the result's shape: only its positions are computed");
  spgemm->callback([&invocation, g] {
    if (!g->out.path.empty()) CheckOutput(g->out);
    invocation.run = [g](const Client& client) { return Spgemm(client, *g); };
  });
}

}  // namespace sparsed::cli
