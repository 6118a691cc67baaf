// The commands of sparsectl. Each does its work and says what came of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/npy.h"
#include "client/cli/report.h"
#include "sparsed/client.h"

namespace sparsed::cli {

class Hints;  // missing_name.h

/// "f32", "f64", "f16", "bf16"; INVALID_ARGUMENT for anything else.
absl::StatusOr<ValueType> ParseType(std::string_view text);
/// "spmm:128" and so on; INVALID_ARGUMENT says what else there is.
absl::StatusOr<ProblemSignature> ParseSignature(std::string_view text);
/// "sum-product" and so on, likewise.
absl::StatusOr<Semiring> ParseSemiring(std::string_view text);
/// Says in the report that TF32 makes no difference to products of a matrix of the type on this
/// server, if it makes none.
void AddTf32Note(const Client& client, ValueType type, Report& report);
absl::StatusOr<std::vector<ProblemSignature>> ParseSignatures(
    const std::vector<std::string>& texts);
/// "300 x 200, 15,000 nonzeros, f32".
std::string Summary(const MatrixInfo& info);
/// Waits until the matrix is prepared, with a progress bar.
absl::Status WaitReady(const Matrix& matrix);
/// What became of the preparation, and the plans.
absl::StatusOr<Report> DescribeReady(const Client& client, const std::string& name);
/// A file that a matrix is written to, and its format.
struct OutputArguments {
  std::string path;
  std::string format = {};  ///< a FileFormat's name; empty: as the path ends
};
/// A writer of it.
absl::StatusOr<std::unique_ptr<MatrixWriter>> OpenOutput(const OutputArguments& output);
/// Unless it is empty.
void AddNote(const std::string& note, Report& report);

/// Whether the node, one of those that have it, is not there.
bool IsGone(const MatrixInfo& info, const std::string& node);
/// Of a matrix in shards: those whose nodes are all gone.
int64_t ShardsAway(const MatrixInfo& info);
/// "1 of its 3 shards is away, ...", or that fewer nodes of a cluster have it than its servers'
/// --replicas; empty: all of them have it.
std::string MissingCopies(const MatrixInfo& info);

struct PrepareArguments {
  std::string name;
  std::vector<std::string> expect;  ///< "spmm:128", "spmm^T:64:tf32", "sddmm:32", "spgemm"
  bool again = false;
  bool explore = false;
  std::string pipeline, kernel;  ///< empty: none in particular
  bool wait = false;
};
absl::StatusOr<Report> Prepare(const Client& client, const PrepareArguments& arguments);

struct ExplainArguments {
  std::string name;
  int64_t k = 0;             ///< 0: that of the last products
  std::string device;        ///< empty: the server's choice
  uint64_t cache_bytes = 0;  ///< 0: the device's
};
absl::StatusOr<Report> Explain(const Client& client, const ExplainArguments& arguments);

struct UpdateArguments {
  std::string name;
  std::string values;
  bool durable = false;
};
absl::StatusOr<Report> Update(const Client& client, const UpdateArguments& arguments);

struct ListArguments {
  std::string prefix;
  bool shared = false;  ///< by other tenants, in the place of one's own
  bool all = false;     ///< of all tenants, likewise
};
/// `hints`: nullptr, for programs, which none are for.
absl::StatusOr<Report> List(const Client& client, const ListArguments& arguments, Hints* hints);
std::vector<Listing::Column> MatrixColumns();
struct ShowArguments {
  std::string name;
  bool features = false;  ///< those of the pattern, in place of plans, layouts and measurements
};
absl::StatusOr<Report> Show(const Client& client, const ShowArguments& arguments);
absl::StatusOr<Report> Wait(const Client& client, const std::string& name);

struct TokenArguments {
  std::string name, tenant, role = "user", expires;
  bool make = false;  ///< a new one; else it comes on standard input
};

struct SpyArguments {
  std::string name;
  int width = 0;   ///< 0: the terminal's
  int height = 0;  ///< 0: as the width allows
  bool ascii = false;
  std::string colour = "auto";  ///< "auto", "always", "never"
};
/// Why the server's access file would refuse it; empty: it does not.
std::string TenantError(const std::string& text);
/// Likewise of when a token ends, which has to be yet to come.
std::string ExpiryError(const std::string& text);
/// The line of an access file, which has the token's hash, and a new token itself.
absl::StatusOr<Report> MakeToken(const TokenArguments& arguments);
absl::StatusOr<Report> Spy(const Client& client, const SpyArguments& arguments, bool json);

struct MeasurementsArguments {
  std::string name;  ///< of the matrix; empty: all of the caller's
  bool all = false;  ///< of everybody's, and of those that are gone
  bool csv = false;
  /// A line of JSON for each pattern, with its density map, compressed as the name ends; empty: no
  /// file.
  std::string out;
};
/// Everything that was measured on patterns, as a table or for a program.
absl::StatusOr<Report> Measurements(const Client& client, const MeasurementsArguments& arguments,
                                    Hints* hints);  ///< as List's

/// "500ms", "30s", "1.5m", "2h", of up to 366 days; INVALID_ARGUMENT for anything else.
absl::StatusOr<std::chrono::nanoseconds> ParseTimeout(std::string_view text);
/// "10m" and so on; INVALID_ARGUMENT for anything else, and beyond 366 days.
absl::StatusOr<std::chrono::nanoseconds> ParseDuration(std::string_view text);
/// Of host memory in use, by what for; and their sum. Without what is kept, which is not in use.
std::map<std::string, int64_t> UsesOf(const sparsed::Stats& stats);
int64_t HostBytes(const sparsed::Stats& stats);
/// An activity in the words of whoever asks why it takes so long.
std::string WaitsFor(const std::string& activity);
absl::StatusOr<Report> Stats(const Client& client);
struct ShareArguments {
  std::string name;
  std::string with;  ///< a tenant, or "all"
  bool write = false;
  bool revoke = false;
};
absl::StatusOr<Report> Share(const Client& client, const ShareArguments& arguments);
/// Of the caller's tenant, and of all.
absl::StatusOr<Report> Quota(const Client& client);
absl::StatusOr<Report> Tenants(const Client& client);
std::vector<Listing::Column> TenantColumns();

struct SlowArguments {
  std::string name;    ///< of the matrix or buffer; empty: whatever they are of
  bool all = false;    ///< tenants
  std::string tenant;  ///< of this one, which goes without `all`; empty: of any
  int limit = 20;
  std::string operation;  ///< empty: all but status calls
  bool refused = false;   ///< those that the server refused, too
  std::string sort;       ///< as --sort; empty: the slowest first
};
absl::StatusOr<Report> Slow(const Client& client, const SlowArguments& arguments);
absl::StatusOr<Report> Info(const Client& client);
/// `device`: "cpu", "cuda" or empty.
absl::StatusOr<Report> Calibrate(const Client& client, const std::string& device);

struct Extent {
  int64_t rows = 0;
  int64_t cols = 0;
};
/// "1000x128".
absl::StatusOr<Extent> ParseExtent(std::string_view text);

/// Uniform in [-1, 1), the same for the same seed everywhere.
absl::StatusOr<NpyArray> RandomDense(ValueType type, int64_t rows, int64_t cols, uint64_t seed);

struct GenerateDenseArguments {
  std::string extent;  ///< "ROWSxCOLUMNS"
  std::string out;     ///< .npy
  std::string type = "f32";
  uint64_t seed = 1;
};
/// Random numbers, the same for the same seed everywhere.
absl::StatusOr<Report> GenerateDense(const GenerateDenseArguments& arguments);

struct GenerateMatrixArguments {
  std::string extent;  ///< "ROWSxCOLUMNS"
  OutputArguments out;
  int64_t row_nonzeros = 10;
  uint64_t seed = 1;
};
/// As many nonzeros in each row, in columns drawn evenly.
absl::StatusOr<Report> GenerateMatrix(const GenerateMatrixArguments& arguments);

}  // namespace sparsed::cli
