// download.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/matrix_writer.h"

namespace sparsed::cli {
namespace {

absl::StatusOr<Report> Download(const Client& client, const std::string& name,
                                const OutputArguments& output) {
  absl::StatusOr<std::unique_ptr<MatrixWriter>> writer = OpenOutput(output);
  if (!writer.ok()) return writer.status();
  const absl::StatusOr<CsrMatrix> matrix = client.MatrixNamed(name).Download();
  if (!matrix.ok()) return matrix.status();
  if (absl::Status status = WriteMatrix(**writer, *matrix); !status.ok()) return status;
  Report report{{{"name", name},
                 {"rows", matrix->rows},
                 {"cols", matrix->cols},
                 {"nnz", matrix->nnz()},
                 {"out", output.path}},
                fmt::format("wrote {}: {} x {}, {}\n", output.path, Count(matrix->rows),
                            Count(matrix->cols), Counted(matrix->nnz(), "nonzero"))};
  AddNote((*writer)->Note(), report);
  return report;
}

}  // namespace

void AddDownload(CLI::App& app, Invocation& invocation) {
  CLI::App* download = app.add_subcommand("download", "Write a matrix to a file that upload reads");
  download->footer(ExampleLines(
      {"sparsectl generate matrix 1000x1000 --out=g.mtx", "sparsectl upload g.mtx --replace",
       "sparsectl download g --out=copy.mtx.gz", "sparsectl download g --out=copy.npz",
       "sparsectl download g --out=entries.csv"}));
  auto name = std::make_shared<std::string>();
  auto output = std::make_shared<OutputArguments>();
  AddName(download, *name);
  AddOutputFormat(download, AddOut(download, *output)->required(), *output);
  download->callback([&invocation, name, output] {
    CheckOutput(*output);
    invocation.run = [name, output](const Client& client) {
      return Download(client, *name, *output);
    };
  });
}

}  // namespace sparsed::cli
