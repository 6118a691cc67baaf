// buffers: the dense matrices that the server keeps under a name.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status.h"
#include "client/cli/command_line.h"
#include "client/cli/commands.h"
#include "client/cli/dense_operand.h"
#include "client/cli/missing_name.h"
#include "client/cli/npy.h"

namespace sparsed::cli {
namespace {

struct PutArguments {
  std::string name;
  std::string file;   ///< .npy, or
  std::string zeros;  ///< "ROWSxCOLUMNS"
  std::string type = "f32";
  bool durable = false;
  bool replace = false;  ///< also one of another shape or type
  std::string owner;
  std::string time_to_live;            ///< empty: the server's
  std::string over_gpus;               ///< "auto", "columns" or "rows"; empty: whole
  std::string matrix;                  ///< that it is for; empty: none
  bool columns = false, rows = false;  ///< over the GPUs, by older names
  std::string rows_of;                 ///< likewise: of `rows`
};

/// Of one that is distributed.
std::string Parts(const DenseInfo& info) {
  if (info.shards > 0) return fmt::format("rows over {} shards", info.shards);
  return fmt::format("{} over {} GPUs",
                     info.distribution == Distribution::kRows ? "rows" : "columns", info.parts);
}

std::string TimeToLive(const DenseInfo& info) {
  return info.time_to_live.has_value() ? Duration(*info.time_to_live) : "until deleted";
}

/// What a command that did `verb` to one says of it.
absl::StatusOr<Report> Describe(const absl::StatusOr<DenseInfo>& info, std::string_view verb) {
  if (!info.ok()) return info.status();
  return Report{ToJson(*info),
                fmt::format("{} {}: {} x {} {}, {}time to live {}\n", verb, info->name,
                            Count(info->rows), Count(info->cols), Name(info->type),
                            info->parts == 0 && info->shards == 0 ? "" : Parts(*info) + ", ",
                            TimeToLive(*info))};
}

std::vector<Listing::Column> BufferColumns() {
  return {{"NAME", "name"},
          {"ROWS", "rows"},
          {"COLUMNS", "cols"},
          {"TYPE", "type"},
          {"BYTES", "bytes"},
          {"DISTRIBUTION", "distribution"},
          {"VERSION", "version"},
          {"DURABLE", "durable"},
          {"TENANT", "tenant"},
          {"OWNER", "owner"},
          {"TIME TO LIVE", "time_to_live_ns"},
          {"IDLE", "idle_ns"}};
}

struct ListBuffersArguments {
  std::string prefix;
  bool all = false;  ///< tenants
};

/// `hints`: nullptr, for programs, which none are for.
absl::StatusOr<Report> ListBuffers(const Client& client, const ListBuffersArguments& arguments,
                                   Hints* hints) {
  const std::string& prefix = arguments.prefix;
  const absl::StatusOr<std::vector<DenseInfo>> buffers =
      arguments.all ? client.ListAllDense(prefix) : client.ListDense(prefix);
  if (!buffers.ok()) return buffers.status();
  std::string none = prefix.empty()
                         ? "no buffers"
                         : fmt::format("no buffer has a name that begins with \"{}\"", prefix);
  if (buffers->empty() && prefix.empty() && !arguments.all && hints != nullptr) {
    if (const size_t others = hints->BuffersOfOthers(); others > 0) {
      none += fmt::format("; other tenants have {}: `sparsectl buffers list --all`", others);
    }
  }
  Listing listing("buffers", none, BufferColumns());
  std::vector<std::string> less_needed = {"VERSION", "DURABLE", "TENANT", "DISTRIBUTION",
                                          "TYPE",    "OWNER",   "IDLE",   "TIME TO LIVE",
                                          "COLUMNS", "ROWS"};
  if (std::ranges::none_of(*buffers, [](const DenseInfo& info) { return info.parts > 0; })) {
    std::swap(less_needed[0], less_needed[3]);  // all of them lie whole
  }
  listing.LeaveOut(std::move(less_needed));
  for (const DenseInfo& info : *buffers) {
    listing.Add(ToJson(info), {info.name, Count(info.rows), Count(info.cols), Name(info.type),
                               Bytes(info.bytes), info.parts == 0 ? "whole" : Parts(info),
                               std::to_string(info.version), info.durable ? "yes" : "no",
                               info.tenant, info.owner, TimeToLive(info), Duration(info.idle)});
  }
  return Report::Of(std::move(listing));
}

/// ALREADY_EXISTS where there is one of the name that is of another shape or type: as for
/// --keep-as, that is rather a slip than meant.
absl::Status CheckPresent(const Client& client, const std::string& name, const std::string& matrix,
                          ValueType type, int64_t rows, int64_t cols) {
  const absl::StatusOr<DenseInfo> present = client.DenseNamed(name, matrix).Info();
  if (absl::IsNotFound(present.status())) return absl::OkStatus();
  // Of a matrix in shards: parts are gone from their nodes, or are of different products.
  if (absl::IsFailedPrecondition(present.status()) && !matrix.empty()) return absl::OkStatus();
  if (!present.ok()) return present.status();
  if (present->rows == rows && present->cols == cols && present->type == type) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(fmt::format(
      "there is a buffer named '{}' already, {} x {} {}, not {} x {} {}: --replace replaces it",
      name, present->rows, present->cols, Name(present->type), rows, cols, Name(type)));
}

/// `whole`: the matrix that it is for, where that is not in shards.
absl::StatusOr<DenseMatrix> Put(const Client& client, const PutArguments& arguments,
                                const PutOptions& options, const std::optional<MatrixInfo>& whole) {
  const auto check = [&](ValueType type, int64_t rows, int64_t cols) -> absl::Status {
    if (whole && rows != whole->rows && rows != whole->cols) {
      return absl::InvalidArgumentError(
          fmt::format("the buffer has {} rows, and \"{}\" is {} x {}: buffers for it have as many "
                      "rows as it has rows or columns",
                      rows, whole->name, whole->rows, whole->cols));
    }
    return arguments.replace
               ? absl::OkStatus()
               : CheckPresent(client, arguments.name, options.rows_of, type, rows, cols);
  };
  const absl::StatusOr<ValueType> type = ParseType(arguments.type);
  if (!type.ok()) return type.status();
  if (!arguments.zeros.empty()) {
    const absl::StatusOr<Extent> extent = ParseExtent(arguments.zeros);
    if (!extent.ok()) return extent.status();
    if (absl::Status status = check(*type, extent->rows, extent->cols); !status.ok()) return status;
    return client.PutZeros(arguments.name, *type, extent->rows, extent->cols, options);
  }
  const absl::StatusOr<NpyArray> array = ReadNpy(arguments.file, *type);
  if (!array.ok()) return array.status();
  if (absl::Status status = check(*type, array->rows, array->cols); !status.ok()) return status;
  return client.PutDense(arguments.name, array->View(), options);
}

Distribution DistributionOf(const PutArguments& arguments) {
  if (arguments.columns || arguments.over_gpus == "columns") return Distribution::kColumns;
  if (arguments.rows || arguments.over_gpus == "rows") return Distribution::kRows;
  return arguments.over_gpus.empty() ? Distribution::kWhole : Distribution::kAuto;
}

/// Throws what CLI11 would, which has no names for options that are hidden.
void CheckOverGpus(const PutArguments& arguments) {
  constexpr const char *kOver = "--over-gpus", *kColumns = "--columns-over-gpus",
                       *kRows = "--rows-over-gpus";
  if (arguments.columns && arguments.rows) throw CLI::ExcludesError(kRows, kColumns);
  if ((arguments.columns || arguments.rows) && !arguments.over_gpus.empty()) {
    throw CLI::ExcludesError(kOver, arguments.rows ? kRows : kColumns);
  }
  if (!arguments.rows_of.empty() && !arguments.rows) throw CLI::RequiresError("--rows-of", kRows);
  if (arguments.over_gpus == "auto" && arguments.matrix.empty()) {
    throw CLI::RequiresError(kOver, "--for=MATRIX (or =columns, =rows)");
  }
}

/// What to say besides where a cluster has no buffer of the name: of matrices in shards there are
/// parts alone.
absl::Status WithHint(const Client& client, absl::Status status, const std::string& matrix) {
  if (!absl::IsNotFound(status) || !matrix.empty()) return status;
  const absl::StatusOr<ServerInfo> server = client.GetServerInfo(kSoon);
  if (!server.ok() || server->node.empty()) return status;
  return Reworded(status, fmt::format("{} (one that was put for a matrix in shards: --for=MATRIX)",
                                      std::string(status.message())));
}

absl::StatusOr<Report> PutBuffer(const Client& client, const PutArguments& arguments) {
  PutOptions options = {.durable = arguments.durable,
                        .owner = arguments.owner,
                        .distribution = DistributionOf(arguments),
                        .rows_of = arguments.rows ? arguments.rows_of : arguments.matrix};
  if (options.distribution == Distribution::kColumns) options.rows_of.clear();
  if (!arguments.time_to_live.empty()) {
    const auto time_to_live = ParseDuration(arguments.time_to_live);
    if (!time_to_live.ok()) return time_to_live.status();
    options.time_to_live = *time_to_live;
  }
  std::optional<MatrixInfo> whole;
  if (!arguments.matrix.empty() && options.distribution == Distribution::kWhole) {
    // Of a matrix that is not in shards nobody else would look.
    const Matrix named = client.MatrixNamed(arguments.matrix);
    const absl::StatusOr<MatrixInfo> matrix = named.Info();
    if (!matrix.ok()) return matrix.status();
    if (const auto node = named.RedirectedTo(); node.has_value() && matrix->shards.empty()) {
      return absl::FailedPreconditionError(fmt::format(
          "\"{}\" is on another node of the cluster ({}), and buffers are of the node that is "
          "asked: put it there, and multiply there (sparsectl --server={})",
          arguments.matrix, fmt::join(matrix->nodes, ", "), *node));
    }
    whole = matrix->shards.empty() ? *matrix : std::optional<MatrixInfo>();
  }
  const absl::StatusOr<DenseMatrix> held = Put(client, arguments, options, whole);
  if (!held.ok()) return held.status();
  return Describe(held->Info(), "put");
}

absl::StatusOr<Report> GetBuffer(const Client& client, const std::string& name,
                                 const std::string& matrix, const std::string& out) {
  const DenseMatrix held = client.DenseNamed(name, matrix);
  const absl::StatusOr<DenseInfo> info = held.Info();
  if (!info.ok()) return WithHint(client, info.status(), matrix);
  if (info->type == ValueType::kI64) {
    return absl::InvalidArgumentError(
        fmt::format("{} holds positions of nonzeros (i64), which is not written to files", name));
  }
  absl::StatusOr<NpyArray> array =
      NpyArray::Zeros(info->type, info->rows, info->cols, /*one_dimensional=*/false);
  if (!array.ok()) return array.status();
  const absl::StatusOr<DenseInfo> read = held.Read(array->MutableView());
  if (!read.ok()) return read.status();
  if (absl::Status status = WriteNpy(out, *array); !status.ok()) return status;
  Report report{ToJson(*read),
                fmt::format("wrote {}: {} x {} {}, version {} of {}\n", out, Count(read->rows),
                            Count(read->cols), NpyTypeText(read->type), read->version, name)};
  report.json["out"] = out;
  return report;
}

CLI::Option* AddForMatrix(CLI::App* command, std::string& matrix) {
  return command
      ->add_option("--for", matrix,
                   "The matrix in shards that it was put for; other buffers need none")
      ->type_name("MATRIX");
}

CLI::Option* AddBufferName(CLI::App* command, std::string& name) {
  return command->add_option("NAME", name, "The buffer")
      ->type_name("BUFFER")
      ->transform(AsBufferName())
      ->required();
}

void AddPut(CLI::App& buffers, Invocation& invocation) {
  CLI::App* put = buffers.add_subcommand("put", "Make a buffer from a .npy file, or one of zeros");
  auto p = std::make_shared<PutArguments>();
  put->add_option("NAME", p->name,
                  "Its name on the server; one of this name, shape and type is replaced")
      ->type_name("BUFFER")
      ->transform(AsBufferName())
      ->required();
  CLI::Option* file =
      put->add_option("FILE", p->file, "The .npy file, converted to the type if need be");
  put->add_option("--zeros", p->zeros, "Its size, such as 1000x64, in place of a FILE")
      ->type_name("ROWSxCOLUMNS")
      ->check([](const std::string& text) { return Refusal(ParseExtent(text)); })
      ->excludes(file);
  put->add_option("--type", p->type, fmt::format("Type of its elements: {}", kTypes))
      ->check(CheckType)
      ->capture_default_str();
  put->add_flag("--replace", p->replace, "Replace one of another shape or type, too");
  put->add_flag("--durable", p->durable,
                "On disk before the command returns; a server without a disk refuses it");
  put->add_option("--owner", p->owner,
                  "Who it is for, a job or a person, as `sparsectl buffers` shows it");
  put->add_option("--time-to-live", p->time_to_live,
                  "For how long it stays though nothing uses it, such as 90s, 10m, 24h or 7d "
                  "(default: as the server decides; a durable one stays until it is deleted)")
      ->check([](const std::string& text) { return Refusal(ParseDuration(text)); });
  CLI::Option* const over = put->add_flag(
      "--over-gpus{auto}", p->over_gpus,
      "Over the GPUs of a server that has several, which compute with it together; results that "
      "stay there lie likewise. =columns: each gets as many columns; =rows: each gets rows, and "
      "computes the same rows of products; =auto, or nothing: whole, columns or rows, as is best "
      "for products with the matrix --for");
  over->check([](const std::string& text) {
    return text == "auto" || text == "columns" || text == "rows"
               ? std::string()
               : fmt::format("\"{}\" is none of auto, columns, rows", text);
  });
  CLI::Option* const matrix = put->add_option(
      "--for", p->matrix,
      "The matrix that it is to be multiplied with. Of one in shards the node of each shard gets "
      "the "
      "shard's rows, and products move from node to node those that they need. With "
      "--over-gpus=rows one with as many rows: each GPU gets those with as many of its nonzeros "
      "(default: as many rows)");
  matrix->type_name("MATRIX");
  // What it was called before the server chose by itself.
  put->add_flag("--columns-over-gpus", p->columns)->group("");
  put->add_flag("--rows-over-gpus", p->rows)->group("");
  put->add_option("--rows-of", p->rows_of)->group("");
  put->callback([&invocation, p] {
    if (p->file.empty() && p->zeros.empty()) throw CLI::RequiredError("FILE");
    CheckOverGpus(*p);
    invocation.run = [p](const Client& client) { return PutBuffer(client, *p); };
  });
}

void AddGet(CLI::App& buffers, Invocation& invocation) {
  CLI::App* get = buffers.add_subcommand("get", "Write one to a .npy file");
  auto name = std::make_shared<std::string>();
  auto matrix = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  AddBufferName(get, *name);
  AddForMatrix(get, *matrix);
  get->add_option("--out", *out, "The .npy file to write")->check(IsNpyFile)->required();
  get->callback([&invocation, name, matrix, out] {
    invocation.run = [name, matrix, out](const Client& client) {
      return GetBuffer(client, *name, *matrix, *out);
    };
  });
}

}  // namespace

void AddBuffers(CLI::App& app, Invocation& invocation) {
  CLI::App* buffers =
      app.add_subcommand("buffers",
                         "Buffers, the dense matrices that the server keeps under a "
                         "name: list (or nothing), put, get, renew, delete");
  buffers->footer(ExampleLines(
      {"sparsectl generate dense 300x64 --out=B.npy", "sparsectl buffers put weights B.npy",
       "sparsectl buffers put state --zeros=300x64 --owner=train-17 --time-to-live=7d",
       "sparsectl buffers", "sparsectl buffers list we --sort=-bytes",
       "sparsectl buffers renew state", "sparsectl buffers get weights --out=copy.npy",
       "sparsectl generate matrix 300x300 --out=g.mtx", "sparsectl upload g.mtx --replace",
       "sparsectl buffers put part B.npy --for=g", "sparsectl buffers delete part --for=g",
       "sparsectl buffers delete weights state"}));
  auto listed = std::make_shared<ListBuffersArguments>();
  const auto list = [&invocation, listed] {
    invocation.lists = true;
    invocation.run = [&invocation, listed](const Client& client) {
      Hints hints(invocation.server, invocation.options);
      return ListBuffers(client, *listed, ForPrograms(invocation.output) ? nullptr : &hints);
    };
  };
  const auto add_all = [listed](CLI::App* command) {
    command->add_flag("--all", listed->all, "Of all tenants, each as TENANT~NAME; for operators");
  };
  buffers->add_option("--prefix", listed->prefix, "Only names that begin so");
  add_all(buffers);
  // Callbacks of subcommands come first.
  buffers->callback([buffers, list] {
    if (buffers->get_subcommands().empty()) list();
  });
  CLI::App* listing = buffers->add_subcommand("list", "List them");
  listing->add_option("PREFIX", listed->prefix, "Only names that begin so");
  add_all(listing);
  listing->callback(list);
  invocation.columns[buffers] = invocation.columns[listing] = BufferColumns();
  AddPut(*buffers, invocation);
  AddGet(*buffers, invocation);
  auto name = std::make_shared<std::string>();
  CLI::App* renew = buffers->add_subcommand(
      "renew", "Use one and do nothing else, so that it does not expire yet");
  AddBufferName(renew, *name);
  auto matrix = std::make_shared<std::string>();
  AddForMatrix(renew, *matrix);
  renew->callback([&invocation, name, matrix] {
    invocation.run = [name, matrix](const Client& client) {
      const absl::StatusOr<DenseInfo> renewed = client.DenseNamed(*name, *matrix).Renew();
      if (!renewed.ok()) {
        return absl::StatusOr<Report>(WithHint(client, renewed.status(), *matrix));
      }
      return Describe(renewed, "renewed");
    };
  });
  AddDeleteOf(*buffers, invocation, "Delete one, or several", "The buffers", "BUFFER",
              [matrix](const Client& client, const std::string& which) {
                return WithHint(client, client.DenseNamed(which, *matrix).Delete(), *matrix);
              });
  CLI::App* remove = buffers->get_subcommand("delete");
  remove->get_option("NAME")->transform(AsBufferName());
  AddForMatrix(remove, *matrix);
}

}  // namespace sparsed::cli
