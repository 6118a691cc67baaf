// The tree of sparsectl's commands.
#include "client/cli/command_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/byte_size.h"
#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/missing_name.h"

namespace sparsed::cli {
namespace {

/// A command whose only argument is a matrix's name.
void AddNamed(CLI::App& app, Invocation& invocation, const char* command_name,
              const char* description, std::initializer_list<const char*> examples,
              absl::StatusOr<Report> (*command)(const Client&, const std::string&)) {
  CLI::App* sub = AddCommand(app, command_name, description, examples);
  auto name = std::make_shared<std::string>();
  AddName(sub, *name);
  sub->callback([&invocation, name, command] {
    invocation.run = [name, command](const Client& client) { return command(client, *name); };
  });
}

void AddShare(CLI::App& app, Invocation& invocation) {
  CLI::App* share =
      AddCommand(app, "share",
                 "Let other tenants use a matrix; they call it TENANT~NAME, with the "
                 "name of your tenant",
                 {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace --wait",
                  "share g --with=inference", "share g --with=all",
                  "share g --with=training --write", "share g --with=inference --revoke"});
  auto arguments = std::make_shared<ShareArguments>();
  AddName(share, arguments->name);
  share->add_option("--with", arguments->with, "A tenant, or all of them")
      ->type_name("TENANT|all")
      ->required();
  CLI::Option* write = share->add_flag(
      "--write", arguments->write,
      "They may also replace its values and have it prepared (default: read and compute)");
  share->add_flag("--revoke", arguments->revoke, "Share it with them no more")->excludes(write);
  share->callback([&invocation, arguments] {
    invocation.run = [arguments](const Client& client) { return Share(client, *arguments); };
  });
}

void AddMatrixCommands(CLI::App& app, Invocation& invocation) {
  AddUpload(app, invocation);
  CLI::App* update =
      AddCommand(app, "update", "Replace a matrix's values, keep its pattern",
                 {"generate matrix 300x300 --row-nonzeros=10 --out=g.mtx", "upload g.mtx --replace",
                  "generate dense 3000x1 --out=new.npy", "update g --values=new.npy"});
  auto new_values = std::make_shared<UpdateArguments>();
  AddName(update, new_values->name);
  update->add_option("--values", new_values->values, "nnz values in canonical CSR order (.npy)")
      ->required();
  update->add_flag("--durable", new_values->durable,
                   "On disk before the command returns; a server without a disk refuses it");
  update->callback([&invocation, new_values] {
    invocation.run = [new_values](const Client& client) { return Update(client, *new_values); };
  });

  CLI::App* list = AddCommand(app, "list", "List the matrices",
                              {"list", "list gnn/", "list --shared", "list --all --sort=-csr"});
  auto listed = std::make_shared<ListArguments>();
  list->add_option("PREFIX", listed->prefix, "Only names that begin so");
  CLI::Option* shared =
      list->add_flag("--shared", listed->shared,
                     "Those that other tenants share with yours, TENANT~NAME, instead of your own");
  list->add_flag("--all", listed->all,
                 "Those of all tenants, TENANT~NAME, instead of your own; for operators")
      ->excludes(shared);
  invocation.columns[list] = MatrixColumns();
  list->callback([&invocation, listed] {
    invocation.lists = true;
    invocation.run = [&invocation, listed](const Client& client) {
      Hints hints(invocation.server, invocation.options);
      return List(client, *listed, ForPrograms(invocation.output) ? nullptr : &hints);
    };
  });

  CLI::App* show = AddCommand(
      app, "show",
      "Show a matrix: properties, plans, layouts, what became of each transform pipeline and "
      "why, measurements",
      {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace --wait", "show g",
       "show g --features"});
  auto shown = std::make_shared<ShowArguments>();
  AddName(show, shown->name);
  show->add_flag("--features", shown->features,
                 "The features of its pattern and a map of its density instead");
  show->callback([&invocation, shown] {
    invocation.run = [shown](const Client& client) { return Show(client, *shown); };
  });

  CLI::App* prepare =
      AddCommand(app, "prepare", "Tune a matrix for further problem signatures, or once more",
                 {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace --wait",
                  "prepare g --tune-for=sddmm:64 --wait", "prepare g --retune",
                  "prepare g --tune-for=spmm:128 --pipeline=\"aspt(panel=256)\" --wait"});
  auto prepared = std::make_shared<PrepareArguments>();
  AddName(prepare, prepared->name);
  AddTuneFor(prepare, prepared->expect, "what there are plans for, or spmm:128");
  prepare->add_flag("--retune", prepared->again,
                    "Discard what was measured for that and time every candidate anew; meanwhile "
                    "the present plans serve");
  CLI::Option* explore = prepare->add_flag(
      "--explore", prepared->explore,
      "Build and time every candidate, also what the model or the rules leave out: slow, for "
      "measurements that a model can be trained with (sparsectl model train)");
  prepare
      ->add_option("--pipeline", prepared->pipeline,
                   "Run this transform pipeline and time its layout beside plain CSR for that, "
                   "whatever the model or the rules say; the fastest serves, as usual. Written as "
                   "`show` writes it; parameters may be left out (default: what they propose)")
      ->type_name("PIPELINE")
      ->excludes(explore);
  prepare
      ->add_option("--kernel", prepared->kernel,
                   "Time this kernel alone on the pipeline's layout, or on plain CSR; also a "
                   "kernel of SpGEMM (default: all)")
      ->type_name("KERNEL")
      ->excludes(explore);
  prepare->add_flag("--wait", prepared->wait, "Wait until it is prepared");
  prepare->callback([&invocation, prepared] {
    invocation.run = [prepared](const Client& client) { return Prepare(client, *prepared); };
  });
  AddNamed(app, invocation, "wait", "Wait until a matrix is prepared",
           {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace", "wait g"}, Wait);
  AddDelete(app, invocation);
  AddRename(app, invocation);
  AddCopy(app, invocation);
  AddShare(app, invocation);

  AddDownload(app, invocation);
}

void AddSpy(CLI::App& app, Invocation& invocation) {
  CLI::App* spy =
      AddCommand(app, "spy", "The pattern of a matrix as a picture in the terminal",
                 {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace --wait", "spy g",
                  "spy g --width=100 --colour=always > g.ansi"});
  auto s = std::make_shared<SpyArguments>();
  AddName(spy, s->name);
  spy->add_option("--width", s->width, "Characters across (default: the terminal's)")
      ->check(Between(10, 1000));
  spy->add_option("--height", s->height, "Lines at most (default: half the width)")
      ->check(Between(1, 1000));
  spy->add_flag("--ascii", s->ascii, "No Unicode (default: as the locale says)");
  OneOf(spy->add_option("--colour,--color", s->colour, "Show densities by colour"),
        {"auto", "always", "never"})
      ->capture_default_str();
  spy->callback([&invocation, s] {
    invocation.run = [s, &invocation](const Client& client) {
      return Spy(client, *s, ForPrograms(invocation.output));
    };
  });
}

void AddMeasurements(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(
      app, "measurements",
      "Everything that was measured: kernels and layouts, of one matrix's pattern or of all",
      {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace --wait", "measurements g",
       "measurements --csv > measurements.csv", "measurements --all --out=measurements.jsonl.gz"});
  auto arguments = std::make_shared<MeasurementsArguments>();
  CLI::Option* name =
      command->add_option("NAME", arguments->name, "The matrix (default: all of yours)");
  command
      ->add_flag("--all", arguments->all,
                 "Of all tenants' matrices, and of deleted ones what is still kept; for operators")
      ->excludes(name);
  CLI::Option* csv = command->add_flag(
      "--csv", arguments->csv,
      "A line for each measurement, with the pattern's features; docs/preparation.md "
      "describes the columns");
  command
      ->add_option("--out", arguments->out,
                   "Write a line of JSON for each pattern, with its features, density map and "
                   "measurements; compressed if the name ends in .gz, .xz or .zst")
      ->excludes(csv);
  command->callback([&invocation, arguments] {
    invocation.run = [&invocation, arguments](const Client& client) {
      Hints hints(invocation.server, invocation.options);
      return Measurements(client, *arguments, ForPrograms(invocation.output) ? nullptr : &hints);
    };
  });
}

void AddGenerate(CLI::App& app, Invocation& invocation) {
  CLI::App* generate =
      AddCommand(app, "generate", "Make files of random numbers to try things with",
                 {"generate dense 2708x128 --out=B.npy",
                  "generate matrix 100000x100000 --row-nonzeros=8 --out=S.mtx"});
  generate->require_subcommand(1);
  const auto extent = [](const std::string& text) { return Refusal(ParseExtent(text)); };

  CLI::App* dense = generate->add_subcommand("dense", "A dense matrix, uniform in [-1, 1)");
  auto d = std::make_shared<GenerateDenseArguments>();
  dense->add_option("ROWSxCOLUMNS", d->extent, "Its size, such as 2708x128")
      ->check(extent)
      ->required();
  dense->add_option("--out", d->out, "The .npy file to write")->check(IsNpyFile)->required();
  dense->add_option("--type", d->type, fmt::format("Type of its elements: {}", kTypes))
      ->check(CheckType)
      ->capture_default_str();
  dense->add_option("--seed", d->seed, "Another seed, other numbers")->capture_default_str();
  dense->callback([&invocation, d] { invocation.run_here = [d] { return GenerateDense(*d); }; });

  CLI::App* matrix = generate->add_subcommand(
      "matrix", "A sparse matrix with equally many nonzeros in each row, in random columns");
  auto m = std::make_shared<GenerateMatrixArguments>();
  matrix->add_option("ROWSxCOLUMNS", m->extent, "Its size, such as 1000x1000")
      ->check(extent)
      ->required();
  AddOutputFormat(matrix, AddOut(matrix, m->out)->required(), m->out);
  matrix->add_option("--row-nonzeros", m->row_nonzeros, "Nonzeros of each row")
      ->check(Between(0, 1'000'000))
      ->capture_default_str();
  matrix->add_option("--seed", m->seed, "Another seed, other numbers")->capture_default_str();
  matrix->callback([&invocation, m] {
    CheckOutput(m->out);
    const std::optional<FileFormat> format =
        m->out.format.empty() ? FormatByName(m->out.path) : *ParseFileFormat(m->out.format);
    if (format == FileFormat::kMetis) {
      throw CLI::ValidationError(
          "--out", "a METIS graph is symmetric and has whole numbers; these are random: take .mtx");
    }
    invocation.run_here = [m] { return GenerateMatrix(*m); };
  });
}

void AddExplain(CLI::App& app, Invocation& invocation) {
  CLI::App* explain = AddCommand(
      app, "explain", "What limits products with a matrix, and what a reordering could gain",
      {"generate matrix 1000x1000 --out=g.mtx", "upload g.mtx --replace --wait", "explain g",
       "explain g --k=512 --device=cpu", "explain g --cache=1.5MiB"});
  auto e = std::make_shared<ExplainArguments>();
  AddName(explain, e->name);
  explain
      ->add_option("--k", e->k,
                   "K, the columns of SpMM's dense operand (default: that of most of the last "
                   "products, 128 where there were none)")
      ->check(Between(1, 65536));
  explain
      ->add_option("--cache", e->cache_bytes,
                   "Bytes of the last level cache, as in 1.5MiB (default: the device's)")
      ->transform(Size());
  explain
      ->add_option("--device", e->device,
                   "Which; another GPU is cuda:1 (default: the GPU if the server uses one)")
      ->type_name("cpu|cuda:0");
  explain->callback([&invocation, e] {
    invocation.run = [e](const Client& client) { return Explain(client, *e); };
  });
}

void AddCalibrate(CLI::App& app, Invocation& invocation) {
  CLI::App* calibrate =
      AddCommand(app, "calibrate",
                 "Measure a device's rates and times, which decisions take from then on; for "
                 "operators",
                 {"calibrate", "calibrate --device=cpu"});
  auto device = std::make_shared<std::string>();
  OneOf(
      calibrate->add_option("--device", *device, "Which (default: the GPU if the server uses one)"),
      {"cpu", "cuda"});
  calibrate->callback([&invocation, device] {
    invocation.run = [device](const Client& client) { return Calibrate(client, *device); };
  });
}

void AddServerCommands(CLI::App& app, Invocation& invocation) {
  AddBuffers(app, invocation);
  AddCommand(app, "stats", "Counters of the server since its start", {"stats", "stats --json"})
      ->callback([&invocation] { invocation.run = Stats; });
  AddCommand(app, "quota", "What your tenant uses, and what it may", {"quota", "quota --json"})
      ->callback([&invocation] { invocation.run = Quota; });
  CLI::App* tenants =
      AddCommand(app, "tenants", "What all tenants use, and what they may; for operators",
                 {"tenants", "tenants --sort=-used"});
  invocation.columns[tenants] = TenantColumns();
  tenants->callback([&invocation] {
    invocation.lists = true;
    invocation.run = Tenants;
  });
  AddCommand(app, "info", "What the server is and which devices it uses", {"info"})
      ->callback([&invocation] { invocation.run = Info; });
  AddCalibrate(app, invocation);
  AddCluster(app, invocation);
}

void AddToken(CLI::App& app, Invocation& invocation) {
  CLI::App* token =
      AddCommand(app, "token", "Tokens for a server's access file; asks no server",
                 {"token new training-1 --tenant=training --expires=2027-01-31",
                  "token new training-2 --tenant=training | (umask 077; head -n 1 > token.txt)",
                  "token hash training-2 --tenant=training < token.txt"});
  token->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, bool make) {
    CLI::App* sub = token->add_subcommand(name, what);
    auto given = std::make_shared<TokenArguments>();
    given->make = make;
    sub->add_option("NAME", given->name, "What it is called in the file and the server's log")
        ->required();
    sub->add_option("--tenant", given->tenant, "Whose it is")->required()->check(TenantError);
    OneOf(sub->add_option("--role", given->role, "What it may do")->capture_default_str(),
          {"read-only", "user", "operator"});
    sub->add_option("--expires", given->expires, "When, as 2027-01-31 or 2027-01-31T12:00:00Z")
        ->check(ExpiryError);
    sub->callback(
        [&invocation, given] { invocation.run_here = [given] { return MakeToken(*given); }; });
  };
  add("new", "Make one, and say it once", true);
  add("hash", "The line for one that comes on standard input", false);
}

}  // namespace

CLI::Validator Size() {
  return {[](std::string& text) -> std::string {
            const std::optional<int64_t> bytes = ParseByteSize(text);
            if (!bytes) return fmt::format("'{}' {}", text, kNoByteSize);
            text = std::to_string(*bytes);
            return {};
          },
          "SIZE"};
}

void AddCommands(CLI::App& app, Invocation& invocation) {
  AddMatrixCommands(app, invocation);
  AddSpmm(app, invocation);
  AddSddmm(app, invocation);
  AddSpgemm(app, invocation);
  AddSpy(app, invocation);
  AddMeasurements(app, invocation);
  AddGenerate(app, invocation);
  AddExplain(app, invocation);
  AddServerCommands(app, invocation);
  AddSlow(app, invocation);
  AddSnapshot(app, invocation);
  AddModel(app, invocation);
  AddWatch(app, invocation);
  AddTop(app, invocation);
  AddRecord(app, invocation);
  AddBench(app, invocation);
  AddDoctor(app, invocation);
  AddToken(app, invocation);
  AddCompletion(app, invocation);
  AddManual(app, invocation);
}

}  // namespace sparsed::cli
