#include "server/config/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "server/config/cluster_flags.h"
#include "server/config/machine.h"
#include "server/config/values.h"

namespace sparsed::server {
namespace {

constexpr int64_t kMinHostMemory = 16 << 20;
constexpr int64_t kMinWireMemory = 8 << 20;
constexpr int64_t kWireMemory = int64_t{1} << 30;
constexpr int64_t kMinConnectionMemory = 1 << 20;
constexpr int64_t kMinStagingMemory = int64_t{8} << 20;
constexpr int64_t kMinChunk = 4 << 10;
constexpr int64_t kMaxChunk = int64_t{1} << 30;

/// What many a thread is good for, and more than any machine gains by.
int64_t MostThreads(int cpus) { return std::max(64, 16 * cpus); }

/// Paths and addresses are in the log, on pages, in messages and in configuration files, which are
/// all text.
void CheckText(const Config& config, Problems& problems) {
  const auto check = [&](const char* flag, const std::string& value) {
    if (!IsUtf8(value)) problems.Add(flag, "this is no text in UTF-8");
  };
  for (const std::string& address : config.listen) check("listen", address);
  check("local-listen", config.local_listen);
  check("data-dir", config.data_dir);
  check("access-file", config.access_file);
  check("tls-certificate", config.tls_certificate);
  check("tls-key", config.tls_key);
  check("tls-client-ca", config.tls_client_ca);
  check("audit-log", config.audit_log);
  check("models", config.models);
}

/// Whether the file may say where matrices are kept, in a way that is wrong.
bool MayBeMeant(const Problems& problems) {
  return problems.Has("data-dir") || problems.Has("in-memory") || problems.Has("config") ||
         problems.Has("");
}

void CheckDataDirectory(const Flags& flags, Problems& problems) {
  const bool has_directory = !flags.config.data_dir.empty();
  if (has_directory && flags.in_memory) {
    problems.Add("in-memory",
                 fmt::format("{} is set, too; one of them, not both", problems.NameOf("data-dir")));
  }
  if (flags.config.salvage && !has_directory && !problems.Has("data-dir")) {
    problems.Add("salvage", "a catalog to rebuild is in a folder; name it: --data-dir=DIR");
  } else if (!has_directory && !flags.in_memory && !MayBeMeant(problems)) {
    problems.Add("data-dir",
                 "nothing says where matrices are kept; --data-dir=DIR keeps them over a restart, "
                 "--in-memory keeps nothing (data_dir, in_memory in a file)");
  }
}

/// Addresses that are there twice. Port 0 is another each time.
void CheckAddresses(const Config& config, Problems& problems) {
  std::vector<std::string> seen;
  const auto check = [&](const char* flag, const std::string& address) {
    if (address.empty() || address.ends_with(":0")) return;
    if (std::ranges::find(seen, address) != seen.end()) {
      problems.Add(flag, fmt::format("{} would be listened on twice", address));
    }
    seen.push_back(address);
  };
  for (const std::string& address : config.listen) check("listen", address);
  check("metrics-listen", config.metrics_listen);
  check("local-listen", config.local_listen);
}

/// A part of --host-memory.
void CheckPart(const char* flag, int64_t bytes, int64_t least, int64_t most, const char* of,
               Problems& problems) {
  if (problems.Has(flag) || (bytes >= least && bytes <= most)) return;
  problems.Add(flag, fmt::format("{} is not between {} and {}, {} {}", SizeText(bytes),
                                 SizeText(least), SizeText(most), of,
                                 problems.Has("host-memory") ? std::string("what there is")
                                                             : problems.NameOf("host-memory")));
}

std::string WhatThereIs(const UsableMemory& memory) {
  return memory.limited_by.empty()
             ? fmt::format("the {} of memory that this machine has", SizeText(memory.bytes))
             : fmt::format("the {} that the control group may have ({})", SizeText(memory.bytes),
                           memory.limited_by);
}

/// --host-memory, by default what the machine leaves; if it is wrong, parts of it are looked at as
/// if it was all that there is.
void CompleteHostMemory(Config& config, const UsableMemory& usable, Problems& problems) {
  if (config.host_memory_bytes == 0) config.host_memory_bytes = DefaultHostMemory(usable.bytes);
  if (config.host_memory_bytes < kMinHostMemory) {
    problems.Add("host-memory",
                 fmt::format("{} is too little, {} is the least",
                             SizeText(config.host_memory_bytes), SizeText(kMinHostMemory)));
  } else if (config.host_memory_bytes > usable.bytes) {
    problems.Add(
        "host-memory",
        fmt::format("{} is more than {}", SizeText(config.host_memory_bytes), WhatThereIs(usable)));
  }
  if (problems.Has("host-memory")) config.host_memory_bytes = usable.bytes;
}

/// What defaults to a part of --host-memory. The smallest limit of all leaves room for two of the
/// largest messages of the default's.
void CompleteParts(Config& config, Problems& problems) {
  const int64_t host = config.host_memory_bytes;
  if (config.wire_memory_bytes == 0) {
    config.wire_memory_bytes = std::clamp(host / 4, kMinWireMemory, kWireMemory);
  }
  CheckPart("wire-memory", config.wire_memory_bytes, kMinWireMemory, host / 2, "half of", problems);
  if (config.preparation_memory_bytes == 0) config.preparation_memory_bytes = host / 2;
  CheckPart("preparation-memory", config.preparation_memory_bytes, 0, host, "all of", problems);
  if (config.connection_memory_bytes == 0) config.connection_memory_bytes = host / 2;
  CheckPart("connection-memory", config.connection_memory_bytes, kMinConnectionMemory, host,
            "all of", problems);
  const int64_t chunk = config.max_chunk_bytes;
  if (chunk < kMinChunk || chunk > kMaxChunk) {
    problems.Add("max-chunk", fmt::format("{} is not between {} and {}", SizeText(chunk),
                                          SizeText(kMinChunk), SizeText(kMaxChunk)));
  } else if (chunk > config.wire_memory_bytes / 4 && !problems.Has("wire-memory")) {
    problems.Add("max-chunk",
                 fmt::format("{} is more than a quarter of {}, which is {}", SizeText(chunk),
                             problems.NameOf("wire-memory"), SizeText(config.wire_memory_bytes)));
  }
}

void CheckStagingMemory(const Config& config, const UsableMemory& usable, Problems& problems) {
  const auto gpus = std::ranges::count_if(
      config.devices, [](const std::string& device) { return device.starts_with("cuda:"); });
  const int64_t bytes = config.staging_memory_bytes;
  if (bytes < kMinStagingMemory) {
    problems.Add("staging-memory", fmt::format("{} is too little, {} is the least", SizeText(bytes),
                                               SizeText(kMinStagingMemory)));
  } else if (bytes > usable.bytes / std::max<int64_t>(gpus, 1)) {
    problems.Add(
        "staging-memory",
        fmt::format("{}{} is more than {}", SizeText(bytes),
                    gpus > 1 ? fmt::format(" for each GPU, of which there are {},", gpus) : "",
                    WhatThereIs(usable)));
  }
}

void CompleteThreads(Config& config, int cpus, Problems& problems) {
  if (config.threads == 0) config.threads = std::max(cpus, config.worker_slots);
  if (config.preparation_threads == 0) config.preparation_threads = cpus;
  const int64_t most = MostThreads(cpus);
  const auto check = [&](const char* flag, int64_t threads, const std::string& what) {
    if (threads <= most) return;
    problems.Add(flag, fmt::format("{} is more than the {} threads that make sense on {} CPUs",
                                   what, most, cpus));
  };
  check("worker-slots", config.worker_slots, fmt::format("{}", config.worker_slots));
  // Those of the default are as many as worker slots.
  if (!problems.Has("worker-slots")) {
    check("threads", config.threads, fmt::format("{}", config.threads));
  }
  check("preparation-workers", int64_t{config.preparation_workers} * config.preparation_threads,
        fmt::format("{} times {}, which is {},", config.preparation_workers,
                    problems.NameOf("preparation-threads"), config.preparation_threads));
  if (config.worker_slots > config.threads && !problems.Has("worker-slots") &&
      !problems.Has("threads")) {
    problems.Add("worker-slots",
                 fmt::format("{} worker slots need as many threads, {} is {}", config.worker_slots,
                             problems.NameOf("threads"), config.threads));
  }
}

}  // namespace

Config Complete(Flags flags, Problems& problems) {
  Config& config = flags.config;
  CheckText(config, problems);
  if (config.metrics_listen == "off") config.metrics_listen.clear();
  if (config.local_listen == "off") config.local_listen.clear();
  CheckDataDirectory(flags, problems);
  CompleteAccess(config, flags.access, problems);
  CompleteCluster(config, problems);
  if (config.trust_caller_gpu_memory && config.local_listen.empty()) {
    problems.Add("trust-caller-gpu-memory",
                 fmt::format("such memory is handed over the local socket, which {} leaves out",
                             problems.NameOf("local-listen")));
  }
  const UsableMemory usable = MemoryOfThisMachine();
  CompleteHostMemory(config, usable, problems);
  CompleteParts(config, problems);
  CheckStagingMemory(config, usable, problems);
  CompleteThreads(config, UsableCpus(), problems);
  CheckAddresses(config, problems);
  return config;
}

}  // namespace sparsed::server
