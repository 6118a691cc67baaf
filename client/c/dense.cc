// Dense matrices that the server holds.
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "client/c/arguments.h"
#include "client/c/calls.h"
#include "client/c/errors.h"
#include "client/c/handles.h"
#include "client/c/json.h"

using sparsed::c::Arguments;

namespace sparsed::c {
namespace {

PutOptions PutOptionsOf(const sparsed_put_options* given, Arguments& in) {
  const sparsed_put_options options =
      in.Options(given, sparsed_put_options SPARSED_PUT_OPTIONS_INIT, "put");
  PutOptions put;
  put.durable = options.durable != 0;
  if (options.owner != nullptr) put.owner = options.owner;
  if (in.NotNegative(options.time_to_live_ns, "time_to_live_ns") > 0) {
    put.time_to_live = std::chrono::nanoseconds(options.time_to_live_ns);
  }
  if (options.columns_over_gpus != 0) put.distribution = Distribution::kColumns;
  if (options.rows_over_gpus != 0) {
    if (options.columns_over_gpus != 0) {
      in.Refuse("columns_over_gpus and rows_over_gpus are both set");
    }
    put.distribution = Distribution::kRows;
  }
  if (options.best_over_gpus != 0) {
    if (put.distribution != Distribution::kWhole) {
      in.Refuse("best_over_gpus does not go with columns_over_gpus or rows_over_gpus");
    }
    put.distribution = Distribution::kAuto;
  }
  if (options.rows_of != nullptr) put.rows_of = options.rows_of;
  return put;
}

/// Null only where `in` has refused something.
std::optional<DenseMatrix> BufferOf(sparsed_client* client, const char* matrix, const char* name,
                                    Arguments& in) {
  in.Need(client, "client");
  std::string of = in.Name(name, "name");
  if (!in.ok()) return std::nullopt;
  return client->client().DenseNamed(std::move(of), matrix == nullptr ? "" : matrix);
}

}  // namespace
}  // namespace sparsed::c

extern "C" {

sparsed_error* sparsed_dense_put(sparsed_client* client, const char* name,
                                 const sparsed_dense* dense, const sparsed_put_options* put,
                                 const sparsed_call_options* options, sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    in.Need(client, "client");
    const std::string as = in.Name(name, "name");
    const sparsed::DenseView view = in.HostView(dense, "dense", /*zeros=*/true);
    const sparsed::PutOptions how = sparsed::c::PutOptionsOf(put, in);
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    const sparsed::Client& to = client->client();
    return sparsed::c::FinishOrHandOut(
        view.data == nullptr
            ? to.PutZerosAsync(as, view.type, view.rows, view.cols, how, call_options)
            : to.PutDenseAsync(as, view, how, call_options),
        call, [](const sparsed::DenseMatrix&) { return absl::OkStatus(); });
  });
}

sparsed_error* sparsed_dense_read(sparsed_client* client, const char* name,
                                  const sparsed_dense* into, const sparsed_call_options* options,
                                  sparsed_call** call) {
  return sparsed_dense_read_of(client, nullptr, name, into, options, call);
}

sparsed_error* sparsed_dense_read_of(sparsed_client* client, const char* matrix, const char* name,
                                     const sparsed_dense* into, const sparsed_call_options* options,
                                     sparsed_call** call) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    const std::optional<sparsed::DenseMatrix> buffer =
        sparsed::c::BufferOf(client, matrix, name, in);
    const sparsed::DenseView view = in.HostView(into, "into", /*zeros=*/false);
    const sparsed::CallOptions call_options = in.Call(options);
    if (!in.ok()) return in.status();
    const sparsed::MutableDenseView to(into->data, view.type, view.rows, view.cols,
                                       view.leading_dimension);
    return sparsed::c::FinishOrHandOut(buffer->ReadAsync(to, call_options), call,
                                       [](const sparsed::DenseInfo&) { return absl::OkStatus(); });
  });
}

sparsed_error* sparsed_dense_renew(sparsed_client* client, const char* name,
                                   const sparsed_call_options* options) {
  return sparsed_dense_renew_of(client, nullptr, name, options);
}

sparsed_error* sparsed_dense_renew_of(sparsed_client* client, const char* matrix, const char* name,
                                      const sparsed_call_options* options) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    const std::optional<sparsed::DenseMatrix> buffer =
        sparsed::c::BufferOf(client, matrix, name, in);
    const sparsed::CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    return buffer->Renew(call).status();
  });
}

sparsed_error* sparsed_dense_delete(sparsed_client* client, const char* name,
                                    const sparsed_call_options* options) {
  return sparsed_dense_delete_of(client, nullptr, name, options);
}

sparsed_error* sparsed_dense_delete_of(sparsed_client* client, const char* matrix, const char* name,
                                       const sparsed_call_options* options) {
  return sparsed::c::Guarded([&]() -> absl::Status {
    Arguments in;
    const std::optional<sparsed::DenseMatrix> buffer =
        sparsed::c::BufferOf(client, matrix, name, in);
    const sparsed::CallOptions call = in.Call(options);
    if (!in.ok()) return in.status();
    return buffer->Delete(call);
  });
}

sparsed_error* sparsed_dense_info_of(sparsed_client* client, const char* matrix, const char* name,
                                     const sparsed_call_options* options, char** json) {
  return sparsed::c::Describe(
      client, "client", options, json,
      [&](const sparsed::CallOptions& call) -> absl::StatusOr<sparsed::DenseInfo> {
        Arguments in;
        const std::optional<sparsed::DenseMatrix> buffer =
            sparsed::c::BufferOf(client, matrix, name, in);
        if (!in.ok()) return in.status();
        return buffer->Info(call);
      });
}

sparsed_error* sparsed_dense_list(sparsed_client* client, const char* prefix,
                                  const sparsed_call_options* options, char** json) {
  return sparsed::c::Describe(
      client, "client", options, json, [&](const sparsed::CallOptions& call) {
        return client->client().ListDense(prefix == nullptr ? "" : prefix, call);
      });
}

}  // extern "C"
