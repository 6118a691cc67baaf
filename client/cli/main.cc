// sparsectl: the command line client.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands.h"

namespace sparsed::cli {
namespace {

/// A whole number in [least, most].
CLI::Validator Between(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        int64_t number = 0;
        return CLI::detail::lexical_cast(text, number) && number >= least && number <= most
                   ? std::string()
                   : fmt::format("\"{}\" is not a whole number from {} to {}", text, least, most);
      },
      "");
}

CLI::Validator EndsIn(std::vector<std::string> endings) {
  return CLI::Validator(
      [endings](const std::string& path) {
        for (const std::string& ending : endings) {
          if (path.ends_with(ending)) return std::string();
        }
        return fmt::format("{} must end in {}", path, fmt::join(endings, ", "));
      },
      "");
}

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
                 {"share cora --with=inference", "share cora --with=all",
                  "share cora --with=training --write", "share cora --with=inference --revoke"});
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
  CLI::App* update = AddCommand(app, "update", "Replace a matrix's values, keep its pattern",
                                {"update cora --values=new.npy"});
  auto new_values = std::make_shared<UpdateArguments>();
  AddName(update, new_values->name);
  update->add_option("--values", new_values->values, "nnz values in canonical CSR order (.npy)")
      ->required();
  update->add_flag("--durable", new_values->durable,
                   "On disk before the command returns; a server without a disk refuses it");
  update->callback([&invocation, new_values] {
    invocation.run = [new_values](const Client& client) { return Update(client, *new_values); };
  });

  CLI::App* list =
      AddCommand(app, "list", "List the matrices", {"list", "list gnn/", "list --shared"});
  auto listed = std::make_shared<ListArguments>();
  list->add_option("PREFIX", listed->prefix, "Only names that begin so");
  list->add_flag("--shared", listed->shared,
                 "Those that other tenants share with yours, TENANT~NAME, instead of your own");
  list->callback([&invocation, listed] {
    invocation.run = [listed](const Client& client) { return List(client, *listed); };
  });

  CLI::App* show =
      AddCommand(app, "show",
                 "Show a matrix: properties, plans, layouts, what became of each recipe and why, "
                 "measurements",
                 {"show cora", "show cora --features"});
  auto shown = std::make_shared<ShowArguments>();
  AddName(show, shown->name);
  show->add_flag("--features", shown->features,
                 "The features of its pattern and a map of its density instead");
  show->callback([&invocation, shown] {
    invocation.run = [shown](const Client& client) { return Show(client, *shown); };
  });

  CLI::App* prepare =
      AddCommand(app, "prepare", "Tune a matrix for further problem signatures, or once more",
                 {"prepare cora --tune-for=sddmm:64 --wait", "prepare cora --retune",
                  "prepare cora --tune-for=spmm:128 --recipe=\"aspt(panel=256)\" --wait"});
  auto prepared = std::make_shared<PrepareArguments>();
  AddName(prepare, prepared->name);
  AddTuneFor(prepare, prepared->expect, "what there are plans for, or spmm:128");
  prepare->add_flag("--retune", prepared->again,
                    "Discard what was measured for that and time every candidate anew; meanwhile "
                    "the present plans serve");
  prepare->add_option("--recipe", prepared->recipe,
                      "Build this and time it beside plain CSR for that, whatever the rules say; "
                      "the fastest serves, as usual. As `show` writes recipes, parameters may be "
                      "left out (default: what the rules propose)");
  prepare->add_option("--kernel", prepared->kernel,
                      "Time this kernel alone on the recipe's layout, or on plain CSR; also a "
                      "kernel of SpGEMM (default: all)");
  prepare->add_flag("--wait", prepared->wait, "Wait until it is prepared");
  prepare->callback([&invocation, prepared] {
    invocation.run = [prepared](const Client& client) { return Prepare(client, *prepared); };
  });
  AddNamed(app, invocation, "wait", "Wait until a matrix is prepared", {"wait cora"}, Wait);
  AddNamed(app, invocation, "delete", "Forget a matrix", {"delete cora"}, Delete);
  AddShare(app, invocation);

  AddDownload(app, invocation);
}

/// S's values for one product.
CLI::Option* AddValues(CLI::App* command, std::string& values) {
  return command
      ->add_option("--values", values,
                   "Values of S for this product alone, one for each nonzero in canonical CSR "
                   "order: a .npy file, or @NAME of a dense matrix that the server holds")
      ->check([](const std::string& text) {
        return text == "@" ? std::string("the name behind @ is missing") : std::string();
      });
}

void AddDenseCommands(CLI::App& app, Invocation& invocation) {
  CLI::App* spmm = AddCommand(
      app, "spmm",
      "C = alpha * S * B + beta * C0, for dense B and C (.npy of float16, float32 or float64; "
      "results of bf16 matrices are written as float32, which holds them exactly)",
      {"spmm cora --operand=B.npy --out=C.npy",
       "spmm cora --operand=G.npy --out=D.npy --transpose --alpha=0.5",
       "spmm cora --operand=B.npy --out=C.npy --beta=1 --accumulate=C0.npy",
       "spmm cora --operand=B.npy --out=C.npy --values=@attention"});
  auto m = std::make_shared<SpmmArguments>();
  AddName(spmm, m->name);
  spmm->add_option("--operand", m->operand, "B, converted to the matrix's type if need be")
      ->required();
  spmm->add_option("--out", m->out, "Where C goes")->required();
  spmm->add_flag("--transpose", m->transpose, "Multiply with the transposed matrix");
  spmm->add_option("--alpha", m->alpha, "Factor of the product")->capture_default_str();
  CLI::Option* beta = spmm->add_option("--beta", m->beta, "Factor of C0");
  CLI::Option* accumulate = spmm->add_option("--accumulate", m->accumulate, "C0");
  beta->needs(accumulate);
  accumulate->needs(beta);
  AddValues(spmm, m->values);
  spmm->add_flag(
      "--allow-tf32", m->allow_tf32,
      "Factors may be rounded to TF32: products of f32 on a GPU; says so where it makes no "
      "difference");
  spmm->callback([&invocation, m] {
    invocation.run = [m](const Client& client) { return Spmm(client, *m); };
  });

  CLI::App* sddmm = AddCommand(
      app, "sddmm", "S .* (A * B^T): one value for each nonzero of S, in canonical CSR order",
      {"sddmm cora --left=A.npy --right=B.npy --out=values.npy",
       "sddmm cora --left=A.npy --right=B.npy --out=new.npy --values=old.npy"});
  auto d = std::make_shared<SddmmArguments>();
  AddName(sddmm, d->name);
  sddmm->add_option("--left", d->left, "A, a row for each row of S (.npy)")->required();
  sddmm->add_option("--right", d->right, "B, a row for each column of S (.npy)")->required();
  sddmm->add_option("--out", d->out, "Where the values go (.npy)")->required();
  sddmm->add_flag("--unscaled", d->unscaled, "Do not multiply by the values of S")
      ->excludes(AddValues(sddmm, d->values));
  sddmm->callback([&invocation, d] {
    invocation.run = [d](const Client& client) { return Sddmm(client, *d); };
  });
}

void AddSpy(CLI::App& app, Invocation& invocation) {
  CLI::App* spy = AddCommand(app, "spy", "The pattern of a matrix as a picture in the terminal",
                             {"spy cora", "spy cora --width=100 --colour=always | less -R"});
  auto s = std::make_shared<SpyArguments>();
  AddName(spy, s->name);
  spy->add_option("--width", s->width, "Characters across (default: the terminal's)")
      ->check(Between(10, 1000));
  spy->add_option("--height", s->height, "Lines at most (default: half the width)")
      ->check(Between(1, 1000));
  spy->add_flag("--ascii", s->ascii, "No Unicode (default: as the locale says)");
  spy->add_option("--colour,--color", s->colour, "Show densities by colour: auto, always or never")
      ->check([](const std::string& text) {
        return text == "auto" || text == "always" || text == "never"
                   ? std::string()
                   : fmt::format("\"{}\" is none of auto, always and never", text);
      })
      ->capture_default_str();
  spy->callback([&invocation, s] {
    invocation.run = [s, &invocation](const Client& client) {
      return Spy(client, *s, invocation.json);
    };
  });
}

void AddMeasurements(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(
      app, "measurements",
      "Everything that was measured: kernels and layouts, of one matrix's pattern or of all",
      {"measurements cora", "measurements --csv > measurements.csv"});
  auto name = std::make_shared<std::string>();
  auto csv = std::make_shared<bool>(false);
  command->add_option("NAME", *name, "The matrix (default: all)");
  command->add_flag("--csv", *csv,
                    "A line for each measurement, with the pattern's features; docs/preparation.md "
                    "describes the columns");
  command->callback([&invocation, name, csv] {
    invocation.run = [name, csv](const Client& client) {
      return Measurements(client, *name, *csv);
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
  dense->add_option("--out", d->out, "The .npy file to write")->check(EndsIn({".npy"}))->required();
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
    invocation.run_here = [m] { return GenerateMatrix(*m); };
  });
}

void AddExplain(CLI::App& app, Invocation& invocation) {
  CLI::App* explain = AddCommand(
      app, "explain", "What limits products with a matrix, and what a reordering could gain",
      {"explain cora", "explain cora --k=512 --device=cpu", "explain cora --cache=50MB"});
  auto e = std::make_shared<ExplainArguments>();
  AddName(explain, e->name);
  explain->add_option("--k", e->k, "Width of SpMM's operand")
      ->check(Between(1, 65536))
      ->capture_default_str();
  explain
      ->add_option("--cache", e->cache_bytes,
                   "Bytes of the last level cache, as in 50MB (default: the device's)")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  explain->add_option("--device", e->device,
                      "cpu or cuda:0 (default: the GPU if the server uses one)");
  explain->callback([&invocation, e] {
    invocation.run = [e](const Client& client) { return Explain(client, *e); };
  });
}

void AddPutBuffer(CLI::App& buffers, Invocation& invocation) {
  CLI::App* put = AddCommand(buffers, "put", "Hold a dense matrix from a .npy file",
                             {"buffers put weights W.npy --owner=train-17 --time-to-live=7d"});
  auto p = std::make_shared<PutBufferArguments>();
  put->add_option("NAME", p->name, "Its name on the server; one of this name is replaced")
      ->required();
  put->add_option("FILE", p->file, "The .npy file, converted to the type if need be")->required();
  put->add_option("--type", p->type, fmt::format("Type of its elements: {}", kTypes))
      ->check(CheckType)
      ->capture_default_str();
  put->add_flag("--durable", p->durable,
                "On disk before the command returns; a server without a disk refuses it");
  put->add_option("--owner", p->owner,
                  "Who it is for, a job or a person, as `sparsectl buffers` shows it");
  put->add_option("--time-to-live", p->time_to_live,
                  "For how long it stays though nothing uses it, such as 90s, 10m, 24h or 7d "
                  "(default: as the server decides; a durable one stays until it is deleted)")
      ->check([](const std::string& text) { return Refusal(ParseDuration(text)); });
  put->callback([&invocation, p] {
    invocation.run = [p](const Client& client) { return PutBuffer(client, *p); };
  });
}

/// A command whose only argument is the name of a held dense matrix.
void AddOfBuffer(CLI::App& buffers, Invocation& invocation, const char* command_name,
                 const char* description,
                 absl::StatusOr<Report> (*command)(const Client&, const std::string&)) {
  CLI::App* sub = buffers.add_subcommand(command_name, description);
  auto name = std::make_shared<std::string>();
  sub->add_option("NAME", *name, "The dense matrix")->required();
  sub->callback([&invocation, name, command] {
    invocation.run = [name, command](const Client& client) { return command(client, *name); };
  });
}

void AddServerCommands(CLI::App& app, Invocation& invocation) {
  CLI::App* buffers = AddCommand(app, "buffers", "List the dense matrices that the server holds",
                                 {"buffers", "buffers put weights W.npy --time-to-live=7d",
                                  "buffers renew weights", "buffers delete weights"});
  auto prefix = std::make_shared<std::string>();
  buffers->add_option("--prefix", *prefix, "Only names that begin so");
  // Callbacks of subcommands come first.
  buffers->callback([&invocation, buffers, prefix] {
    if (!buffers->get_subcommands().empty()) return;
    invocation.run = [prefix](const Client& client) { return ListBuffers(client, *prefix); };
  });
  AddPutBuffer(*buffers, invocation);
  AddOfBuffer(*buffers, invocation, "renew",
              "Use one and do nothing else, so that it does not expire yet", RenewBuffer);
  AddOfBuffer(*buffers, invocation, "delete", "Forget one", DeleteBuffer);
  AddCommand(app, "stats", "Counters of the server since its start", {"stats", "stats --json"})
      ->callback([&invocation] { invocation.run = Stats; });
  AddCommand(app, "quota", "What your tenant uses, and what it may", {"quota", "quota --json"})
      ->callback([&invocation] { invocation.run = Quota; });
  AddCommand(app, "tenants", "What all tenants use, and what they may; for operators", {"tenants"})
      ->callback([&invocation] { invocation.run = Tenants; });
  AddCommand(app, "info", "What the server is and which devices it uses", {"info"})
      ->callback([&invocation] { invocation.run = Info; });
}

void AddToken(CLI::App& app, Invocation& invocation) {
  CLI::App* token = AddCommand(app, "token", "Tokens for a server's access file; asks no server",
                               {"token new training-1 --tenant=training --expires=2027-01-31",
                                "token hash training-1 --tenant=training < token.txt"});
  token->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, bool make) {
    CLI::App* sub = token->add_subcommand(name, what);
    auto given = std::make_shared<TokenArguments>();
    given->make = make;
    sub->add_option("NAME", given->name, "What it is called in the file and the server's log")
        ->required();
    sub->add_option("--tenant", given->tenant, "Whose it is")->required();
    sub->add_option("--role", given->role, "read-only, user or operator")->capture_default_str();
    sub->add_option("--expires", given->expires, "When, as 2027-01-31 or 2027-01-31T12:00:00Z");
    sub->callback(
        [&invocation, given] { invocation.run_here = [given] { return MakeToken(*given); }; });
  };
  add("new", "Make one, and say it once", true);
  add("hash", "The line for one that comes on standard input", false);
}

/// Prints what a program or a person wants to know of a failure.
int Fail(bool json, std::string_view code, std::string_view message, int exit_code) {
  if (json) {
    fmt::print("{}\n",
               ErrorJson(code, message).dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print(stderr, "sparsectl: {}\n", message);
  }
  return exit_code;
}

/// What was wrong with the command line, in our words.
std::string Sentence(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto begin_of = [&text](std::string_view ending) {
    return text.ends_with(ending) ? text.substr(0, text.size() - ending.size()) : std::string();
  };
  if (const std::vector<std::string> unknown = app.remaining(/*recurse=*/true); !unknown.empty()) {
    const std::string& first = unknown.front();
    if (app.get_subcommands().empty()) return fmt::format("there is no command \"{}\"", first);
    return first.starts_with('-') ? fmt::format("there is no flag \"{}\"", first)
                                  : fmt::format("\"{}\" is one word too many", first);
  }
  if (text.starts_with("A subcommand is required")) {
    const std::vector<const CLI::App*> given = app.get_subcommands({});
    const auto at = std::ranges::find_if(given, [](const CLI::App* sub) { return sub->parsed(); });
    return at == given.end() ? "a COMMAND is missing"
                             : fmt::format("{} lacks its COMMAND", (*at)->get_name());
  }
  if (text.starts_with("Exactly 1 option from")) {
    return "where the product goes is to be said once: --out, --name or --discard";
  }
  if (const std::string what = begin_of(" is required"); !what.empty()) {
    return fmt::format("{} is missing", what);
  }
  if (const size_t found = text.find(" requires "); found != std::string::npos) {
    return fmt::format("{} goes with {} only", text.substr(0, found), text.substr(found + 10));
  }
  if (const size_t found = text.find(" excludes "); found != std::string::npos) {
    return fmt::format("{} does not go with {}", text.substr(0, found), text.substr(found + 10));
  }
  if (const size_t found = text.find(": 1 required"); found != std::string::npos) {
    return fmt::format("{} lacks its value", text.substr(0, found));
  }
  constexpr std::string_view kNotConverted = "Could not convert: ";
  if (text.starts_with(kNotConverted)) {
    const size_t equals = text.find(" = ");
    if (equals != std::string::npos) {
      return fmt::format("{}: \"{}\" is not a number",
                         text.substr(kNotConverted.size(), equals - kNotConverted.size()),
                         text.substr(equals + 3));
    }
  }
  return text;
}

int Run(const Invocation& invocation) {
  absl::StatusOr<Report> report = [&invocation]() -> absl::StatusOr<Report> {
    if (invocation.run_here) return invocation.run_here();
    const absl::StatusOr<Client> client = Client::Connect(invocation.server, invocation.options);
    if (!client.ok()) return client.status();
    return invocation.run(*client);
  }();
  if (!report.ok()) {
    return Fail(invocation.json, absl::StatusCodeToString(report.status().code()),
                std::string(report.status().message()), ExitCode(report.status()));
  }
  if (invocation.json) {
    report->text = report->json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  const bool printed =
      std::fwrite(report->text.data(), 1, report->text.size(), stdout) == report->text.size() &&
      std::fflush(stdout) == 0;
  return printed ? kSuccess : kOtherFailure;
}

int Main(int argc, char** argv) {
  // gRPC reports what it does to reach a server on standard error; our own sentence says it all.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);

  CLI::App app("Talks to sparsed, which holds sparse matrices and multiplies with them.");
  app.name("sparsectl");
  app.footer(ExitCodesText() +
             "Examples:\n"
             "  sparsectl upload cora.mtx --wait\n"
             "  sparsectl spmm cora --operand=B.npy --out=C.npy\n"
             "  sparsectl COMMAND --help");
  Invocation invocation;
  app.add_option("--server", invocation.server, "host:port or unix:/path")
      ->envname("SPARSED_SERVER")
      ->capture_default_str();
  const auto file = [&app](const char* flag, std::string& path, const char* environment,
                           const char* what) {
    app.add_option(flag, path, what)->envname(environment)->type_name("FILE");
  };
  file("--tls-ca", invocation.options.tls.ca, "SPARSED_TLS_CA",
       "Speak TLS, with a server that these authorities vouch for; \"system\": the machine's");
  file("--tls-certificate", invocation.options.tls.certificate, "SPARSED_TLS_CERTIFICATE",
       "A certificate that says who calls");
  file("--tls-key", invocation.options.tls.key, "SPARSED_TLS_KEY", "Its private key");
  app.add_option("--tls-server-name", invocation.options.tls.server_name,
                 "That the server's certificate is for (default: the host of --server)")
      ->envname("SPARSED_TLS_SERVER_NAME")
      ->type_name("NAME");
  app.add_option("--token-file", invocation.options.token_file,
                 "A file with the token that says who calls; SPARSED_TOKEN may hold the token "
                 "itself, which no flag does, as others see the flags of a process")
      ->envname("SPARSED_TOKEN_FILE")
      ->type_name("FILE");
  app.add_flag("--json", invocation.json,
               "Print one JSON object on standard output, also for failures");
  app.set_version_flag("--version", "sparsectl " SPARSED_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  app.fallthrough();
  AddMatrixCommands(app, invocation);
  AddDenseCommands(app, invocation);
  AddSpgemm(app, invocation);
  AddSpy(app, invocation);
  AddMeasurements(app, invocation);
  AddGenerate(app, invocation);
  AddExplain(app, invocation);
  AddServerCommands(app, invocation);
  AddToken(app, invocation);

  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  const bool json = std::ranges::find(words, std::string_view("--json")) != words.end();
  // CLI11 would take the next word for it: a script's --name=$EMPTY --discard names what it makes
  // "--discard".
  for (const std::string_view word : words) {
    if (word.starts_with("--") && word.find('=') == word.size() - 1) {
      const std::string what = fmt::format("{} lacks its value", word.substr(0, word.size() - 1));
      return Fail(json, "USAGE", json ? what : what + "; see --help", kWrongUse);
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const std::string what = Sentence(app, error);
    if (json) return Fail(json, "USAGE", what, kWrongUse);
    return Fail(json, "USAGE", fmt::format("{}; see --help", what), kWrongUse);
  }
  return Run(invocation);
}

}  // namespace
}  // namespace sparsed::cli

int main(int argc, char** argv) {
  std::vector<std::string> words =
      sparsed::cli::WithPresentNames({argv, static_cast<size_t>(argc)});
  std::vector<char*> present;
  present.reserve(words.size() + 1);
  for (std::string& word : words) present.push_back(word.data());
  present.push_back(nullptr);
  return sparsed::cli::Main(argc, present.data());
}
