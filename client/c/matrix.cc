// Sparse matrices on the server.
#include <memory>
#include <span>
#include <utility>

#include "client/c/arguments.h"
#include "client/c/calls.h"
#include "client/c/csr.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/json.h"
#include "client/cli/explain_report.h"

using sparsed::c::Arguments;

namespace sparsed::c {
namespace {

UploadOptions UploadOptionsOf(const sparsed_upload_options* given, Arguments& in) {
  const sparsed_upload_options options =
      in.Options(given, sparsed_upload_options SPARSED_UPLOAD_OPTIONS_INIT, "upload");
  UploadOptions upload;
  upload.replace = options.replace != 0;
  upload.sort = options.sort != 0;
  upload.sum_duplicates = options.sum_duplicates != 0;
  if (options.pattern_hash != nullptr) upload.pattern_hash = options.pattern_hash;
  upload.expected = in.Problems(options.expected, options.expected_count, "expected");
  if (options.progress != nullptr) {
    upload.progress = [call = options.progress, context = options.progress_context](
                          int64_t sent, int64_t total) { call(context, sent, total); };
  }
  // Zero is what C's initialisers leave.
  if (options.shards != 0) upload.shards = options.shards;
  upload.replicas = options.replicas;
  return upload;
}

std::span<const int32_t> PartitionOf(const sparsed_upload_options* given, int64_t rows) {
  Arguments in;
  const sparsed_upload_options options =
      in.Options(given, sparsed_upload_options SPARSED_UPLOAD_OPTIONS_INIT, "upload");
  if (options.partition == nullptr) return {};
  return {options.partition, static_cast<size_t>(rows)};
}

PrepareOptions PrepareOptionsOf(const sparsed_prepare_options* given, Arguments& in) {
  const sparsed_prepare_options options =
      in.Options(given, sparsed_prepare_options SPARSED_PREPARE_OPTIONS_INIT, "prepare");
  PrepareOptions prepare;
  prepare.expected = in.Problems(options.expected, options.expected_count, "expected");
  prepare.again = options.again != 0;
  if (options.recipe != nullptr) prepare.pipeline = options.recipe;
  if (options.kernel != nullptr) prepare.kernel = options.kernel;
  prepare.explore = options.explore != 0;
  return prepare;
}

}  // namespace
}  // namespace sparsed::c

extern "C" {

sparsed_error* sparsed_upload(sparsed_client* client, const char* name, const sparsed_csr_view* csr,
                              const sparsed_upload_options* upload,
                              const sparsed_call_options* options, sparsed_matrix** matrix,
                              sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    const std::string as = in.Name(name, "name");
    in.Need(matrix, "matrix");
    sparsed::UploadOptions how = sparsed::c::UploadOptionsOf(upload, in);
    const sparsed::CsrView view = sparsed::c::ToView(csr, in, how.values_are_ones);
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    how.partition = sparsed::c::PartitionOf(upload, view.rows);
    return sparsed::c::FinishOrHandOut(
        client->client().UploadAsync(as, view, how, call_options), call,
        [local = client->local, matrix](const sparsed::Matrix& uploaded) {
          *matrix = new sparsed_matrix{local->MatrixNamed(uploaded.name())};
          return absl::OkStatus();
        });
  });
}

sparsed_error* sparsed_matrix_named(sparsed_client* client, const char* name,
                                    sparsed_matrix** matrix) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    const std::string as = in.Name(name, "name");
    in.Need(matrix, "matrix");
    if (!in.ok()) return in.status();
    *matrix = new sparsed_matrix{client->local->MatrixNamed(as)};
    return absl::OkStatus();
  });
}

void sparsed_matrix_free(sparsed_matrix* matrix) { delete matrix; }

const char* sparsed_matrix_name(const sparsed_matrix* matrix) {
  return matrix == nullptr ? "" : matrix->matrix().name().c_str();
}

sparsed_error* sparsed_matrix_list(sparsed_client* client, const char* prefix,
                                   const sparsed_call_options* options, char** json) {
  return sparsed::c::Describe(
      client, "client", options, json, [&](const sparsed::CallOptions& call) {
        return client->client().ListMatrices(prefix == nullptr ? "" : prefix, call);
      });
}

sparsed_error* sparsed_all_matrices(sparsed_client* client, const char* prefix,
                                    const sparsed_call_options* options, char** json) {
  return sparsed::c::Describe(
      client, "client", options, json, [&](const sparsed::CallOptions& call) {
        return client->client().ListAll(prefix == nullptr ? "" : prefix, call);
      });
}

sparsed_error* sparsed_matrix_info(sparsed_matrix* matrix, const sparsed_call_options* options,
                                   char** json) {
  return sparsed::c::Describe(
      matrix, "matrix", options, json,
      [&](const sparsed::CallOptions& call) { return matrix->matrix().Info(call); });
}

sparsed_error* sparsed_matrix_features(sparsed_matrix* matrix, const sparsed_call_options* options,
                                       char** json) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    in.Need(json, "json");
    const sparsed::CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    const absl::StatusOr<sparsed::MatrixFeatures> features = matrix->matrix().Features(call);
    if (features.ok() && features->empty()) {
      return sparsed::c::SetText(sparsed::cli::Json::object(), json);
    }
    return sparsed::c::SetJson(features, json);
  });
}

sparsed_error* sparsed_matrix_explain(sparsed_matrix* matrix, int64_t k, const char* device,
                                      const sparsed_call_options* options, char** json) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    in.Need(json, "json");
    in.NotNegative(k, "k");
    const sparsed::CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    sparsed::ExplainOptions explain;
    if (k > 0) explain.k = k;
    if (device != nullptr) explain.device = device;
    const absl::StatusOr<sparsed::Explanation> explanation =
        matrix->matrix().Explain(explain, call);
    if (!explanation.ok()) return explanation.status();
    const std::string name(matrix->matrix().name());
    sparsed::cli::Json explained = sparsed::cli::ToJson(name, *explanation);
    explained["text"] = sparsed::cli::ExplanationText(name, *explanation, /*assumed_cache=*/false);
    return sparsed::c::SetText(explained, json);
  });
}

sparsed_error* sparsed_measurements(sparsed_client* client, sparsed_matrix* matrix,
                                    const sparsed_call_options* options, char** json) {
  return sparsed::c::Describe(
      client, "client", options, json, [&](const sparsed::CallOptions& call) {
        return client->client().ListMeasurements(sparsed_matrix_name(matrix), {}, call);
      });
}

sparsed_error* sparsed_all_measurements(sparsed_client* client, const sparsed_call_options* options,
                                        char** json) {
  return sparsed::c::Describe(
      client, "client", options, json, [&](const sparsed::CallOptions& call) {
        return client->client().ListMeasurements("", {.all = true, .density_maps = true}, call);
      });
}

sparsed_error* sparsed_prepare(sparsed_matrix* matrix, const sparsed_prepare_options* prepare,
                               const sparsed_call_options* options) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    const sparsed::PrepareOptions how = sparsed::c::PrepareOptionsOf(prepare, in);
    const sparsed::CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    return matrix->matrix().Prepare(how, call);
  });
}

sparsed_error* sparsed_wait_ready(sparsed_matrix* matrix, sparsed_preparation_progress progress,
                                  void* context, const sparsed_call_options* options,
                                  sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    sparsed::ProgressCallback on_progress;
    if (progress != nullptr) {
      on_progress = [progress, context](const sparsed::Progress& step) {
        progress(context, sparsed::Name(step.state), step.stage.c_str(), step.done, step.total,
                 step.message.c_str());
      };
    }
    return sparsed::c::FinishOrHandOut(
        matrix->matrix().WaitReadyAsync(std::move(on_progress), call_options), call,
        [] { return absl::OkStatus(); });
  });
}

sparsed_error* sparsed_update_values(sparsed_matrix* matrix, const void* values, int64_t nnz,
                                     int32_t type, const sparsed_update_options* update,
                                     const sparsed_call_options* options, uint64_t* version,
                                     sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    if (in.NotNegative(nnz, "nnz") > 0) in.Need(values, "values");
    const sparsed::ValueType values_type = in.Type(type, "values");
    const sparsed_update_options given =
        in.Options(update, sparsed_update_options SPARSED_UPDATE_OPTIONS_INIT, "update");
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    const sparsed::UpdateOptions how = {.durable = given.durable != 0,
                                        .if_version = given.if_version};
    return sparsed::c::FinishOrHandOut(
        matrix->matrix().UpdateValuesAsync(sparsed::c::ToValues(values, nnz, values_type), how,
                                           call_options),
        call, [version](uint64_t now) {
          if (version != nullptr) *version = now;
          return absl::OkStatus();
        });
  });
}

sparsed_error* sparsed_download(sparsed_matrix* matrix, const sparsed_call_options* options,
                                sparsed_csr** csr, sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    in.Need(csr, "csr");
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    return sparsed::c::FinishOrHandOut(matrix->matrix().DownloadAsync(call_options), call,
                                       [csr](sparsed::CsrMatrix downloaded) {
                                         *csr = new sparsed_csr{std::move(downloaded)};
                                         return absl::OkStatus();
                                       });
  });
}

sparsed_error* sparsed_matrix_delete(sparsed_matrix* matrix, const sparsed_call_options* options) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(matrix, "matrix");
    const sparsed::CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    return matrix->matrix().Delete(call);
  });
}

}  // extern "C"
