// model: which of a server's models choose what it tries, and models of one's own.
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/private_file.h"
#include "client/cli/command_line.h"
#include "client/cli/command_tree.h"

namespace sparsed::cli {
namespace {

constexpr const char* kManifest = "manifest.json";
/// A model that learned from fewer patterns is hardly better than no model; the shipped ones have
/// over five hundred.
constexpr int64_t kFewPatterns = 100;

struct ChooseArguments {
  std::string name;
  std::string device;
};

struct PutArguments {
  std::string directory;
  bool replace = false;
};

struct TrainArguments {
  std::string name;
  std::string trainer;     ///< a program; empty: the one that is installed with this one
  std::string warm_start;  ///< a model's directory; empty: none
  std::string device;      ///< whose measurements are learned from; empty: there is one kind
  bool replace = false;
};

/// "used", "watched", "cannot be used", or nothing.
std::string StateOf(const ModelInfo& model) {
  if (!model.problem.empty()) return "cannot be used";
  return model.used ? "used" : model.watched ? "watched" : "";
}

std::string ShareOf(const ModelInfo& model) {
  return model.held_out_share > 0 ? fmt::format("{:.3f}", model.held_out_share) : "";
}

/// Where it learned from too little to be trusted: a line that says so; else nothing.
std::string FewPatternsNote(const ModelInfo& model) {
  if (model.patterns >= kFewPatterns) return "";
  return fmt::format(
      "note      it learned from {} pattern{}, which is little: watch it before you activate it\n",
      Count(model.patterns), model.patterns == 1 ? "" : "s");
}

Json ToJson(const ModelInfo& model) {
  return {{"name", model.name},
          {"device", model.device},
          {"device_model", model.device_model},
          {"created", model.created},
          {"patterns", model.patterns},
          {"own", model.own},
          {"used", model.used},
          {"watched", model.watched},
          {"held_out_share", model.held_out_share},
          {"problem", model.problem}};
}

std::vector<Listing::Column> ModelColumns() {
  return {{"NAME", "name"},
          {"DEVICE", "device"},
          {"STATE", "state"},
          {"HELD OUT", "held_out_share"},
          {"PATTERNS", "patterns"},
          {"FROM", "own"},
          {"TRAINED ON", "device_model"}};
}

absl::StatusOr<Report> ListModels(const Client& client) {
  const absl::StatusOr<std::vector<ModelInfo>> models = client.ListModels();
  if (!models.ok()) return models.status();
  // Where no model is used on a kind of device that serves, the rules are.
  const absl::StatusOr<ServerInfo> server = client.GetServerInfo();
  if (!server.ok()) return server.status();
  std::set<std::string> by_rules;
  for (const DeviceInfo& device : server->devices) {
    if (device.unavailable.empty()) by_rules.insert(device.name.substr(0, device.name.find(':')));
  }
  for (const ModelInfo& model : *models) {
    if (model.used) by_rules.erase(model.device);
  }
  Listing listing("models", "no models, and nothing that they could choose for", ModelColumns());
  for (const ModelInfo& model : *models) {
    listing.Add(ToJson(model),
                {model.name, model.device, StateOf(model), ShareOf(model), Count(model.patterns),
                 model.own ? "put" : "installed", model.device_model});
  }
  for (const std::string& device : by_rules) {
    ModelInfo rules;
    rules.name = "rules";
    rules.device = device;
    rules.used = true;
    listing.Add(ToJson(rules), {rules.name, device, StateOf(rules), "", "", "built in", ""});
  }
  return Report::Of(std::move(listing));
}

/// "12.5", "spmm", "true".
std::string CellOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{:.3f}", value.get<double>()) : value.dump();
}

/// Objects with members of their own, a line each; what they are called comes first.
void AddTable(const std::string& title, const Json& rows, std::string& text) {
  std::vector<std::string> columns;
  for (const Json& row : rows) {
    for (const auto& [key, value] : row.items()) {
      const bool known = std::find(columns.begin(), columns.end(), key) != columns.end();
      if (!value.is_structured() && !known) columns.push_back(key);
    }
  }
  constexpr std::string_view kTransposed = "_transposed";
  std::vector<std::string> header = {title.ends_with(kTransposed)
                                         ? title.substr(0, title.size() - kTransposed.size()) + "^T"
                                         : title};
  // What the trainer calls at length.
  static const std::map<std::string, std::string> kShort = {
      {"first_three", "FIRST 3"},
      {"first_worst_twentieth", "WORST 5 %"},
      {"first_within_3_percent", "WITHIN 3 %"}};
  for (std::string column : columns) {
    if (const auto known = kShort.find(column); known != kShort.end()) {
      header.push_back(known->second);
      continue;
    }
    for (char& c : column) c = c == '_' ? ' ' : static_cast<char>(std::toupper(c));
    header.push_back(std::move(column));
  }
  Table table(std::move(header));
  for (const auto& [name, row] : rows.items()) {
    std::vector<std::string> cells = {name};
    for (const std::string& column : columns) {
      cells.push_back(row.contains(column) ? CellOf(row.at(column)) : "");
    }
    table.Add(std::move(cells));
  }
  if (!table.empty()) text += fmt::format("\n{}", table.Text());
}

/// What cross-validation found, whatever the trainer wrote: tables of what is by group or by
/// anything else, and numbers on lines of their own.
void AddHeldOut(const std::string& title, const Json& held_out, std::string& text) {
  if (!held_out.is_object()) return;
  Json rows = Json::object();
  for (const auto& [key, value] : held_out.items()) {
    if (!value.is_object()) {
      if (!value.is_array()) text += fmt::format("{:<9} {} {}\n", title, key, CellOf(value));
      continue;
    }
    const bool of_scalars =
        std::none_of(value.begin(), value.end(), [](const Json& v) { return v.is_object(); });
    if (of_scalars) rows[key] = value;
  }
  AddTable("HELD OUT", rows, text);
  for (const auto& [key, value] : held_out.items()) {
    if (value.is_object() && !rows.contains(key)) AddTable(key, value, text);
  }
}

Table GroupsOf(const Json& manifest) {
  Table table({"OPERATION", "K", "TYPES", "CANDIDATES"});
  for (const Json& group : manifest.at("groups")) {
    std::string types;
    for (const Json& type : group.at("types")) {
      types += fmt::format("{}{}", types.empty() ? "" : ",", type.get<std::string>());
    }
    const auto least = group.at("least_k").get<int64_t>(), most = group.at("most_k").get<int64_t>();
    table.Add({fmt::format("{}{}", group.at("operation").get<std::string>(),
                           group.at("transposed").get<bool>() ? "^T" : ""),
               most == 0 ? "" : fmt::format("{}-{}", least, most), std::move(types),
               Count(static_cast<int64_t>(group.at("candidates").size()))});
  }
  return table;
}

absl::StatusOr<Report> ShowModel(const Client& client, const std::string& name) {
  const absl::StatusOr<ModelInfo> model = client.GetModel(name);
  if (!model.ok()) return model.status();
  const Json manifest = Json::parse(model->manifest, nullptr, /*allow_exceptions=*/false);
  Report report{ToJson(*model), ""};
  report.json["manifest"] = manifest.is_discarded() ? Json() : manifest;
  const std::string state = StateOf(*model);
  report.text = fmt::format(
      "name      {}\nfor       {}, trained on {}\nfrom      {}, made {}\nstate     {}\n",
      model->name, model->device, model->device_model,
      model->own ? "put into the data directory" : "installed with the server", model->created,
      state.empty() ? "not used" : state);
  if (!model->problem.empty()) report.text += fmt::format("problem   {}\n", model->problem);
  // What a damaged one lacks is not shown.
  try {
    const Json& data = manifest.at("data");
    report.text += fmt::format("learned   {} of {}, {}\n", Counted(model->patterns, "pattern"),
                               Counted(data.value("families", int64_t{0}), "family", "families"),
                               Counted(data.value("measurements", int64_t{0}), "measurement"));
    report.text += fmt::format("\n{}", GroupsOf(manifest).Text());
    if (manifest.contains("held_out")) {
      report.text += "\n";
      AddHeldOut("held out", manifest.at("held_out"), report.text);
    }
  } catch (const Json::exception&) {
  }
  return report;
}

absl::StatusOr<std::string> ReadModelFile(const std::string& directory, const std::string& name) {
  absl::StatusOr<std::string> contents = ReadPublicFile(fmt::format("{}/{}", directory, name));
  if (contents.ok()) return contents;
  return absl::InvalidArgumentError(contents.status().message());
}

struct LocalModel {
  std::string name;
  std::vector<ModelFile> files;
};

/// The manifest, and the files that it names.
absl::StatusOr<LocalModel> ReadModel(const std::string& directory) {
  absl::StatusOr<std::string> text = ReadModelFile(directory, kManifest);
  if (!text.ok()) return text.status();
  const Json manifest = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto no_model = [&](const char* why) {
    return absl::InvalidArgumentError(fmt::format("{}/{} {}", directory, kManifest, why));
  };
  if (!manifest.is_object()) return no_model("is no object of JSON");
  if (!manifest.contains("name") || !manifest.at("name").is_string()) {
    return no_model("has no name");
  }
  if (!manifest.contains("files") || !manifest.at("files").is_object()) {
    return no_model("names no files");
  }
  LocalModel model{manifest.at("name").get<std::string>(), {{kManifest, *std::move(text)}}};
  for (const auto& [name, digest] : manifest.at("files").items()) {
    // Nothing from elsewhere.
    if (name.find('/') != std::string::npos || name.starts_with('.')) {
      return no_model("names a file that is not beside it");
    }
    absl::StatusOr<std::string> contents = ReadModelFile(directory, name);
    if (!contents.ok()) return contents.status();
    model.files.push_back({name, *std::move(contents)});
  }
  return model;
}

absl::StatusOr<Report> PutModel(const Client& client, const PutArguments& arguments) {
  absl::StatusOr<LocalModel> model = ReadModel(arguments.directory);
  if (!model.ok()) return model.status();
  const absl::StatusOr<ModelInfo> put =
      client.PutModel(model->name, std::move(model->files), arguments.replace);
  if (!put.ok()) return put.status();
  std::string next = "it is used or watched as the one before was";
  if (!put->used && !put->watched) {
    next = fmt::format("sparsectl model watch {0}, then sparsectl model activate {0}", put->name);
  }
  return Report{ToJson(*put), fmt::format("put       {}: for {}, trained on {}\n{}next      {}\n",
                                          put->name, put->device, Counted(put->patterns, "pattern"),
                                          FewPatternsNote(*put), next)};
}

absl::StatusOr<Report> Activate(const Client& client, const ChooseArguments& arguments) {
  const absl::StatusOr<std::string> device = client.ActivateModel(arguments.name, arguments.device);
  if (!device.ok()) return device.status();
  Report report{{{"activated", arguments.name}, {"device", *device}},
                fmt::format("chooses   {}, on {}\n", arguments.name, *device)};
  const absl::StatusOr<ModelInfo> model = client.GetModel(arguments.name);
  if (model.ok()) report.text += FewPatternsNote(*model);
  return report;
}

absl::StatusOr<Report> Watch(const Client& client, const ChooseArguments& arguments) {
  const absl::StatusOr<std::string> device =
      client.ActivateModel(arguments.name, arguments.device, /*watch=*/true);
  if (!device.ok()) return device.status();
  return Report{{{"watched", arguments.name}, {"device", *device}},
                fmt::format("watched   {}, on {}{}\n", arguments.name, *device,
                            arguments.name == "none"
                                ? ""
                                : ": sparsed_model_choice_share tells how near to the best its "
                                  "choices would have been")};
}

absl::StatusOr<Report> Rollback(const Client& client, const std::string& device) {
  const absl::StatusOr<std::string> chooses = client.RollbackModel(device);
  if (!chooses.ok()) return chooses.status();
  return Report{{{"chooses", *chooses}}, fmt::format("chooses   {}, again\n", *chooses)};
}

/// Gone at the end, with what is in it.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Make() {
    std::error_code error;
    std::string path = std::filesystem::temp_directory_path(error) / "sparsed-train-XXXXXX";
    if (error || mkdtemp(path.data()) == nullptr) {
      return absl::ResourceExhaustedError(
          fmt::format("cannot make {}: {}", path, std::generic_category().message(errno)));
    }
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(path)));
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

/// Runs a program, whose output goes to standard error: standard output is the report's. Signals
/// from the terminal end it and not this, which has a folder to remove. Returns its exit code.
absl::StatusOr<int> RunProgram(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const auto interrupt = std::signal(SIGINT, SIG_IGN), quit = std::signal(SIGQUIT, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGINT, interrupt);
    std::signal(SIGQUIT, quit);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  const bool ended = child > 0 && waitpid(child, &status, 0) == child;
  std::signal(SIGINT, interrupt);
  std::signal(SIGQUIT, quit);
  if (!ended) return absl::ResourceExhaustedError("no process can be started");
  return WIFEXITED(status) ? WEXITSTATUS(status) : kOtherFailure;
}

/// Beside the folder of this program: "../share/sparsed/train/run".
std::string InstalledTrainer() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "share" / "sparsed" / "train" / "run";
}

absl::StatusOr<Report> Train(const Client& client, const TrainArguments& arguments) {
  const std::string trainer = arguments.trainer.empty() ? InstalledTrainer() : arguments.trainer;
  if (access(trainer.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(fmt::format("{}: {}; --trainer=PROGRAM says where it is",
                                                  trainer, std::generic_category().message(errno)));
  }
  // Said before the time that training takes.
  const bool is_name = !arguments.name.empty() && arguments.name.front() != '.' &&
                       arguments.name.find('/') == std::string::npos;
  if (!is_name || arguments.name == "rules" || arguments.name == "none") {
    return absl::InvalidArgumentError(fmt::format("no model can be named \"{}\"", arguments.name));
  }
  const absl::StatusOr<std::vector<ModelInfo>> models = client.ListModels();
  if (!models.ok()) return models.status();
  for (const ModelInfo& model : *models) {
    if (model.name != arguments.name || (model.own && arguments.replace)) continue;
    return absl::AlreadyExistsError(
        model.own ? fmt::format("there is a model named {} already: --replace puts the new one in "
                                "its place",
                                model.name)
                  : fmt::format("a model named {} is installed with the server: give this one "
                                "another name",
                                model.name));
  }
  const absl::StatusOr<std::unique_ptr<TemporaryFolder>> folder = TemporaryFolder::Make();
  if (!folder.ok()) return folder.status();
  const std::string data = fmt::format("{}/measurements.jsonl.gz", (*folder)->path());
  const std::string out = fmt::format("{}/{}", (*folder)->path(), arguments.name);
  const absl::StatusOr<Report> exported =
      Measurements(client, {.name = {}, .all = true, .csv = false, .out = data}, /*hints=*/nullptr);
  if (!exported.ok()) return exported.status();
  std::vector<std::string> words = {trainer,
                                    "train",
                                    "--data",
                                    data,
                                    fmt::format("--out={}", out),
                                    fmt::format("--name={}", arguments.name)};
  if (!arguments.warm_start.empty()) {
    words.push_back(fmt::format("--warm-start={}", arguments.warm_start));
  }
  if (!arguments.device.empty()) words.push_back(fmt::format("--device={}", arguments.device));
  const absl::StatusOr<int> exit_code = RunProgram(std::move(words));
  if (!exit_code.ok()) return exit_code.status();
  if (*exit_code != 0) {
    Report report{{{"trainer", trainer}, {"exit_code", *exit_code}}, ""};
    report.problems = fmt::format("sparsectl: no model was trained: {} ended with exit code {}\n",
                                  trainer, *exit_code);
    report.exit_code = *exit_code;
    return report;
  }
  return PutModel(client, {out, arguments.replace});
}

void AddDevice(CLI::App* command, std::string& device) {
  OneOf(command->add_option("--device", device,
                            "For this kind of device (default: the model's, or the only one that "
                            "serves)"),
        {"cpu", "cuda"});
}

}  // namespace

void AddModel(CLI::App& app, Invocation& invocation) {
  CLI::App* model = app.add_subcommand(
      "model", "The models that choose what a server tries for a matrix; for operators");
  model->footer(ExampleLines({"sparsectl model list", "sparsectl model activate rules --device=cpu",
                              "sparsectl model rollback --device=cpu"}));
  model->require_subcommand(1);

  CLI::App* list =
      AddCommand(*model, "list", "List the models: what they are for, which are used or watched",
                 {"model list", "model list -o json"});
  invocation.columns[list] = ModelColumns();
  list->callback([&invocation] {
    invocation.lists = true;
    invocation.run = ListModels;
  });

  const auto add_name = [](CLI::App* command, std::string& name, const char* what) {
    command->add_option("NAME", name, what)->type_name("MODEL")->required();
  };
  CLI::App* show =
      AddCommand(*model, "show", "Show a model: what it knows, and what cross-validation found",
                 {"model show h100"});
  auto shown = std::make_shared<std::string>();
  add_name(show, *shown, "The model");
  show->callback([&invocation, shown] {
    invocation.run = [shown](const Client& client) { return ShowModel(client, *shown); };
  });

  CLI::App* put = AddCommand(*model, "put",
                             "Have the server keep a model; it chooses nothing before it is "
                             "activated",
                             {"model put mine", "model put mine --replace"});
  auto to_put = std::make_shared<PutArguments>();
  put->add_option("DIR", to_put->directory, "Its directory, as the trainer makes it")
      ->type_name("DIR")
      ->required();
  put->add_flag("--replace", to_put->replace,
                "Replace one of its name; if that is used or watched, this one is at once");
  put->callback([&invocation, to_put] {
    invocation.run = [to_put](const Client& client) { return PutModel(client, *to_put); };
  });

  CLI::App* activate = AddCommand(
      *model, "activate", "Have a model choose what is tried, from now on and after a restart",
      {"model activate h100", "model activate rules --device=cuda"});
  auto activated = std::make_shared<ChooseArguments>();
  add_name(activate, activated->name, "The model; or rules: no model chooses");
  AddDevice(activate, activated->device);
  activate->callback([&invocation, activated] {
    invocation.run = [activated](const Client& client) { return Activate(client, *activated); };
  });

  CLI::App* watch =
      AddCommand(*model, "watch",
                 "Only count how near to the best a model's choices would have been (shadow mode)",
                 {"model watch mine", "model watch none --device=cpu"});
  auto watched = std::make_shared<ChooseArguments>();
  add_name(watch, watched->name, "The model; or none");
  AddDevice(watch, watched->device);
  watch->callback([&invocation, watched] {
    invocation.run = [watched](const Client& client) { return Watch(client, *watched); };
  });

  CLI::App* rollback =
      AddCommand(*model, "rollback", "Have choose what did so before the last activate",
                 {"model rollback", "model rollback --device=cuda"});
  auto device = std::make_shared<std::string>();
  AddDevice(rollback, *device);
  rollback->callback([&invocation, device] {
    invocation.run = [device](const Client& client) { return Rollback(client, *device); };
  });

  CLI::App* remove =
      AddCommand(*model, "remove", "Remove a model that was put and is neither used nor watched",
                 {"model remove mine"});
  auto removed = std::make_shared<std::string>();
  add_name(remove, *removed, "The model");
  remove->callback([&invocation, removed] {
    invocation.run = [removed](const Client& client) -> absl::StatusOr<Report> {
      if (absl::Status status = client.RemoveModel(*removed); !status.ok()) return status;
      return Report{{{"removed", *removed}}, fmt::format("removed {}\n", *removed)};
    };
  });

  CLI::App* train = AddCommand(
      *model, "train",
      "Train a model from what the server measured, on this machine, and put it; nothing goes "
      "anywhere else",
      {"model train mine", "model train mine --warm-start=/usr/share/sparsed/models/h100"});
  auto trained = std::make_shared<TrainArguments>();
  train->add_option("NAME", trained->name, "What it is to be called")->required();
  train
      ->add_option("--trainer", trained->trainer,
                   "The program that trains (default: the one that is installed with the server)")
      ->type_name("PROGRAM");
  train
      ->add_option("--warm-start", trained->warm_start,
                   "The directory of a model to begin with (default: none)")
      ->type_name("DIR");
  OneOf(train->add_option("--device", trained->device,
                          "Learn from what this kind of device measured; needed where both did"),
        {"cpu", "cuda"});
  train->add_flag("--replace", trained->replace,
                  "Replace one of its name; if that is used or watched, this one is at once");
  train->callback([&invocation, trained] {
    invocation.run = [trained](const Client& client) { return Train(client, *trained); };
  });
}

}  // namespace sparsed::cli
