// Whatever stands in a catalog whose pages are whole: the store opens and reads it, or says what is
// damaged, and so does --salvage.
#include <fmt/format.h>

#include <array>
#include <map>

#include "engine/store/database.h"
#include "engine/store/salvage.h"
#include "engine/store/store.h"
#include "tests/fault/store/forgetful_file_system.h"
#include "tests/fault/store/store_testing.h"
#include "tests/fuzz/check.h"

namespace sparsed::engine {
namespace {

using fuzz::Check;

constexpr const char* kDirectory = "/store";
constexpr size_t kStepsWithAllRows = 12;  ///< of AllSteps: what follows replaces and deletes

using Files = std::map<std::string, std::string>;

std::vector<std::string> Paths(ForgetfulFileSystem& files) {
  std::vector<std::string> paths;
  for (const std::string& name : files.Names(kDirectory)) {
    if (name != "blobs") paths.push_back(fmt::format("{}/{}", kDirectory, name));
  }
  for (const std::string& name : files.Names(fmt::format("{}/blobs", kDirectory))) {
    paths.push_back(fmt::format("{}/blobs/{}", kDirectory, name));
  }
  return paths;
}

Files MakeFiles() {
  ForgetfulFileSystem files;
  {
    auto store = OpenStore(files, kDirectory);
    Check(store.ok());
    const std::vector<Step> steps = AllSteps();
    for (size_t i = 0; i < kStepsWithAllRows; ++i) Check(steps[i].run(**store).ok());
  }
  Files made;
  for (const std::string& path : Paths(files)) made[path] = *files.Contents(path);
  return made;
}

void Put(ForgetfulFileSystem& files, const Files& contents) {
  Check(files.CreateDirectory(kDirectory).ok());
  Check(files.CreateDirectory(fmt::format("{}/blobs", kDirectory)).ok());
  for (const auto& [path, bytes] : contents) {
    Check(files.Open(path, OpenMode::kCreate).ok());
    *files.Contents(path) = bytes;
  }
}

struct Table {
  const char* name;
  const char* columns[12];
};
constexpr Table kTables[] = {
    {"patterns", {"hash", "rows", "cols", "nnz", "preparation_state", "preparation_detail"}},
    {"matrices", {"tenant", "name", "pattern", "version", "created_unix_ns"}},
    {"layouts", {"pattern", "recipe", "kind", "rows", "cols", "nnz", "transposed", "value_slots"}},
    {"layout_parameters", {"layout", "position", "name", "value"}},
    {"buffers", {"tenant", "name", "rows", "cols", "leading_dimension", "version"}},
    {"arrays",
     {"blob", "pattern", "matrix", "layout", "buffer", "position", "name", "type", "length"}},
    {"plans", {"pattern", "class", "recipe", "kernel", "reason", "plan_ms"}},
    {"measurements", {"pattern", "class", "recipe", "kernel", "device", "runs"}},
    {"wanted", {"pattern", "class"}},
    {"decisions", {"pattern", "class", "recipe", "tried", "reason"}},
    {"features", {"pattern", "name", "value"}}};

/// Writes a value into some rows; what SQLite refuses is not done.
void Change(Database& database, fuzz::Input& input) {
  const Table& table = kTables[input.Number<uint8_t>() % std::size(kTables)];
  size_t columns = 0;
  while (columns < std::size(table.columns) && table.columns[columns] != nullptr) ++columns;
  const char* const column = table.columns[input.Number<uint8_t>() % columns];
  const auto rows = input.Number<uint8_t>();
  const std::string sql =
      rows % 4 == 3 ? fmt::format("DELETE FROM {} WHERE {} >= ?", table.name, column)
                    : fmt::format(
                          "UPDATE {0} SET {1} = ? WHERE {1} IN (SELECT {1} FROM {0} LIMIT 1 "
                          "OFFSET {2})",
                          table.name, column, rows / 4 % 8);
  switch (input.Number<uint8_t>() % 3) {
    case 0:
      (void)database.Query(sql, {input.Number<int64_t>()});
      break;
    case 1:
      (void)database.Query(sql, {int64_t{input.Number<int8_t>()}});
      break;
    default:
      (void)database.Query(sql, {input.Bytes(input.Number<uint8_t>())});
  }
}

void CheckError(const absl::Status& status) { Check(status.ok() || !status.message().empty()); }

void ReadEverything(ForgetfulFileSystem& files) {
  auto store = OpenStore(files, kDirectory);
  CheckError(store.status());
  if (store.ok()) CheckError(Dump(**store).status());
}

}  // namespace
}  // namespace sparsed::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed::engine;  // NOLINT(google-build-using-namespace)
  static const Files whole = MakeFiles();
  sparsed::fuzz::Input input(data, size);
  ForgetfulFileSystem files;
  Put(files, whole);
  const auto options = input.Number<uint8_t>();
  {
    auto database = Database::Open(files, fmt::format("{}/catalog.sqlite", kDirectory));
    sparsed::fuzz::Check(database.ok());
    (void)(*database)->Execute("PRAGMA foreign_keys = OFF");
    if ((options & 1) != 0) (void)(*database)->Execute("PRAGMA ignore_check_constraints = ON");
    for (int i = 0; i < 4 && !input.empty(); ++i) Change(**database, input);
  }
  // A row may also say something else than its blob, or its blob may be gone.
  if ((options & 2) != 0) (void)files.Remove(Paths(files).back());
  ReadEverything(files);
  if ((options & 4) != 0) {
    if ((options & 8) != 0) (void)files.Remove(fmt::format("{}/catalog.sqlite", kDirectory));
    CheckError(SalvageStore(files, kDirectory, [](const sparsed::CsrView&) {
                 return std::string("hash");
               }).status());
    ReadEverything(files);
  }
  return 0;
}
