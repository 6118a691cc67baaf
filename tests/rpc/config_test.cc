// Flags and file into one configuration; what is wrong is said in a sentence, with exit code 2.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "kernels/cuda/driver.h"
#include "server/config/command_line.h"
#include "server/config/machine.h"

namespace sparsed::server {
namespace {

struct Parsed {
  std::variant<Config, int> result;
  std::string out, err;

  const Config& config() const { return std::get<Config>(result); }
  int exit_code() const { return std::holds_alternative<int>(result) ? std::get<int>(result) : -1; }
};

Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "sparsed");
  std::ostringstream out, err;
  auto result = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data(), out, err);
  return {std::move(result), out.str(), err.str()};
}

void ExpectWrong(std::vector<const char*> arguments, std::string_view word) {
  const Parsed parsed = Parse(std::move(arguments));
  EXPECT_EQ(parsed.exit_code(), 2);
  EXPECT_NE(parsed.err.find(word), std::string::npos) << parsed.err << " lacks " << word;
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(CommandLine, DefaultsAreFilledIn) {
  const Parsed parsed = Parse({"--in-memory"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  const Config& config = parsed.config();
  EXPECT_EQ(config.listen, (std::vector<std::string>{"127.0.0.1:7470"}));
  EXPECT_EQ(config.metrics_listen, "127.0.0.1:7471");
  EXPECT_TRUE(config.in_memory());
  EXPECT_GT(config.host_memory_bytes, 0);
  EXPECT_EQ(config.preparation_memory_bytes, config.host_memory_bytes / 2);
  EXPECT_GT(config.wire_memory_bytes, 0);
  EXPECT_LE(config.wire_memory_bytes, config.host_memory_bytes / 4);
  EXPECT_EQ(config.connection_memory_bytes, config.host_memory_bytes / 2);
  EXPECT_EQ(config.receive_idle_seconds, 30);
  EXPECT_EQ(config.send_idle_seconds, 60);
  EXPECT_EQ(config.buffer_time_to_live_seconds, 86400);
  EXPECT_EQ(config.buffer_memory_bytes, 0);
  EXPECT_GE(config.threads, 1);
  EXPECT_EQ(config.max_chunk_bytes, 2 << 20);
}

TEST(CommandLine, TheDefaultLimitLeavesRoomForWhatIsNotCounted) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(DefaultHostMemory(100 * kGiB), 80 * kGiB);
  EXPECT_EQ(DefaultHostMemory(5 * kGiB), 4 * kGiB);
  EXPECT_EQ(DefaultHostMemory(3 * kGiB), 2 * kGiB);
  EXPECT_EQ(DefaultHostMemory(2 * kGiB), kGiB);
  EXPECT_EQ(DefaultHostMemory(kGiB), kGiB / 2);
}

TEST(CommandLine, SalvageNeedsADirectory) {
  EXPECT_FALSE(Parse({"--data-dir=/d"}).config().salvage);
  EXPECT_TRUE(Parse({"--data-dir=/d", "--salvage"}).config().salvage);
  ExpectWrong({"--in-memory", "--salvage"}, "--data-dir");
}

TEST(CommandLine, FlagsAreRead) {
  const Parsed parsed = Parse({"--listen=[::1]:0",
                               "--listen=unix:/run/s",
                               "--metrics-listen=off",
                               "--data-dir=/d",
                               "--devices=auto",
                               "--host-memory=4GiB",
                               "--preparation-memory=512MiB",
                               "--threads=6",
                               "--lanes=2",
                               "--max-chunk=1MiB",
                               "--preparation-seconds=90",
                               "--scrub-interval=3600",
                               "--log-level=debug",
                               "--log-format=json",
                               "--connection-memory=1GiB",
                               "--receive-idle=5",
                               "--send-idle=0.5",
                               "--buffer-memory=2GiB",
                               "--buffer-time-to-live=90",
                               "--slow-request=100ms",
                               "--otlp-endpoint=http://127.0.0.1:4318"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  const Config& config = parsed.config();
  EXPECT_EQ(config.listen, (std::vector<std::string>{"[::1]:0", "unix:/run/s"}));
  EXPECT_TRUE(config.metrics_listen.empty());
  EXPECT_EQ(config.data_dir, "/d");
  EXPECT_EQ(config.host_memory_bytes, int64_t{4} << 30);
  EXPECT_EQ(config.preparation_memory_bytes, 512 << 20);
  EXPECT_EQ(config.threads, 6);
  EXPECT_EQ(config.lanes, 2);
  EXPECT_EQ(config.preparation_seconds, 90);
  EXPECT_EQ(config.connection_memory_bytes, 1 << 30);
  EXPECT_EQ(config.receive_idle_seconds, 5);
  EXPECT_EQ(config.send_idle_seconds, 0.5);
  EXPECT_EQ(config.buffer_memory_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.buffer_time_to_live_seconds, 90);
  EXPECT_EQ(config.scrub_interval_seconds, 3600);
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.slow_request_seconds, 0.1);
  EXPECT_EQ(config.otlp_endpoint, "http://127.0.0.1:4318");
}

TEST(CommandLine, TimesHaveUnits) {
  const auto seconds = [](const char* flag) {
    return Parse({"--in-memory", flag}).config().slow_request_seconds;
  };
  EXPECT_EQ(Parse({"--in-memory"}).config().slow_request_seconds, 0);
  EXPECT_EQ(seconds("--slow-request=0"), 0);
  EXPECT_EQ(seconds("--slow-request=2"), 2);
  EXPECT_EQ(seconds("--slow-request=1.5s"), 1.5);
  EXPECT_EQ(seconds("--slow-request=2m"), 120);
  EXPECT_DOUBLE_EQ(seconds("--slow-request=250us"), 250e-6);
  const std::string file = WriteFile("slow.yaml", "in_memory: true\nslow_request: 100ms\n");
  EXPECT_EQ(Parse({("--config=" + file).c_str()}).config().slow_request_seconds, 0.1);
  for (const char* wrong : {"--slow-request=soon", "--slow-request=-1", "--slow-request=ms",
                            "--slow-request=100d", "--slow-request=25h", "--slow-request=nan"}) {
    ExpectWrong({"--in-memory", wrong}, "is not a time such as 100ms");
  }
  ExpectWrong({"--in-memory", "--otlp-endpoint=https://c:4318"}, "plain text");
  ExpectWrong({"--in-memory", "--otlp-endpoint=c:4318"}, "http://HOST:PORT");
}

TEST(CommandLine, WrongUse) {
  ExpectWrong({}, "--data-dir=DIR");
  ExpectWrong({"--in-memory", "--data-dir=/d"}, "data-dir");
  ExpectWrong({"--in-memory", "--devices=cuda:01"}, "is not a device");
  ExpectWrong({"--in-memory", "--devices=cuda:-1"}, "is not a device");
  ExpectWrong({"--in-memory", "--devices=cuda"}, "is not a device");
  ExpectWrong({"--in-memory", "--device-memory=-1"}, "--device-memory");
  ExpectWrong({"--in-memory", "--staging-memory=1KiB"}, "--staging-memory");
  ExpectWrong({"--in-memory", "--devices=tpu"}, "'tpu' is not a device");
  ExpectWrong({"--in-memory", "--listen=nowhere"}, "HOST:PORT");
  ExpectWrong({"--in-memory", "--listen=localhost:70000"}, "port");
  ExpectWrong({"--in-memory", "--listen=unix:"}, "path");
  ExpectWrong({"--in-memory", "--metrics-listen=unix:/x"}, "HOST:PORT");
  ExpectWrong({"--in-memory", "--host-memory=lots"}, "host-memory");
  ExpectWrong({"--in-memory", "--host-memory=1KiB"}, "too few");
  ExpectWrong({"--in-memory", "--host-memory=1GiB", "--preparation-memory=2GiB"}, "preparation");
  ExpectWrong({"--in-memory", "--host-memory=1GiB", "--wire-memory=900MiB"}, "wire-memory");
  ExpectWrong({"--in-memory", "--wire-memory=1MiB"}, "wire-memory");
  ExpectWrong({"--in-memory", "--max-connections=0"}, "max-connections");
  ExpectWrong({"--in-memory", "--give-up-after=-1"}, "give-up-after");
  ExpectWrong({"--in-memory", "--stall-after=-1"}, "stall-after");
  ExpectWrong({"--in-memory", "--listen=unix:/tmp/\xff"}, "--listen: this is no text in UTF-8");
  ExpectWrong({"--data-dir=/tmp/\xc3"}, "--data-dir: this is no text");
  ExpectWrong({"--in-memory", "--host-memory=1GiB", "--connection-memory=2GiB"},
              "connection-memory");
  ExpectWrong({"--in-memory", "--connection-memory=1KiB"}, "connection-memory");
  ExpectWrong({"--in-memory", "--batch-wait=-1"}, "batch-wait");
  ExpectWrong({"--in-memory", "--batch-wait=100001"}, "batch-wait");
  ExpectWrong({"--in-memory", "--batch-wait=5ms"}, "batch-wait");
  ExpectWrong({"--in-memory", "--receive-idle=0"}, "receive-idle");
  ExpectWrong({"--in-memory", "--send-idle=-1"}, "send-idle");
  ExpectWrong({"--in-memory", "--max-chunk=4GiB"}, "max-chunk");
  ExpectWrong({"--in-memory", "--threads=0"}, "threads");
  ExpectWrong({"--in-memory", "--threads=1", "--lanes=2"}, "lanes");
  ExpectWrong({"--in-memory", "--preparation-seconds=-1"}, "preparation-seconds");
  ExpectWrong({"--in-memory", "--scrub-interval=-1"}, "scrub-interval");
  ExpectWrong({"--in-memory", "--log-level=loud"}, "loud is none of debug, error, info, warn");
  ExpectWrong({"--in-memory", "--log-format=xml"}, "xml is none of json, text");
  ExpectWrong({"--in-memory", "--no-such-flag"}, "no-such-flag");
  ExpectWrong({"--config=/no/such/file.yaml"}, "/no/such/file.yaml");
}

TEST(CommandLine, LimitsThatAreNoneAreRefused) {
  ExpectWrong({"--in-memory", "--host-memory=1000000GiB"}, "--host-memory");
  ExpectWrong({"--in-memory", "--staging-memory=1000000GiB"}, "--staging-memory");
  ExpectWrong({"--in-memory", "--devices=cuda:0,cuda:1", "--staging-memory=1000000GiB"},
              "for each GPU");
  ExpectWrong({"--in-memory", "--host-memory=-1GiB"}, "host-memory");
  ExpectWrong({"--in-memory", "--lanes=65536"}, "--lanes: 65536 is more than");
  ExpectWrong({"--in-memory", "--threads=65536"}, "--threads: 65536 is more than");
  ExpectWrong({"--in-memory", "--lanes=-1"}, "lanes");
  ExpectWrong({"--in-memory", "--preparation-workers=1000", "--preparation-threads=1000"},
              "--preparation-workers");
  for (const char* seconds : {"nan", "inf", "-inf", "-1", "1e300", "soon", ""}) {
    const std::string flag = std::string("--shutdown-grace=") + seconds;
    ExpectWrong({"--in-memory", flag.c_str()}, "shutdown-grace");
  }
  ExpectWrong({"--in-memory", "--scrub-interval=nan"}, "scrub-interval");
  ExpectWrong({"--in-memory", "--preparation-seconds=nan"}, "preparation-seconds");
  const Parsed fine = Parse({"--in-memory", "--shutdown-grace=0.5", "--scrub-interval=0"});
  ASSERT_EQ(fine.exit_code(), -1) << fine.err;
  EXPECT_EQ(fine.config().shutdown_grace_seconds, 0.5);
}

TEST(CommandLine, WhatIsSaidTwiceIsRefused) {
  ExpectWrong({"--in-memory", "--lanes=1", "--lanes=2"}, "--lanes");
  ExpectWrong({"--data-dir=/a", "--data-dir=/b"}, "--data-dir");
  ExpectWrong({"--in-memory", "--listen=127.0.0.1:7000", "--listen=127.0.0.1:7000"}, "twice");
  ExpectWrong({"--in-memory", "--listen=unix:/run/s", "--listen=unix:/run/s"}, "twice");
  ExpectWrong({"--in-memory", "--listen=127.0.0.1:7471"}, "127.0.0.1:7471 would be listened on");
  EXPECT_EQ(Parse({"--in-memory", "--listen=127.0.0.1:0", "--listen=127.0.0.1:0"}).exit_code(), -1);
}

TEST(CommandLine, GpuMemoryOfCallersNeedsTheLocalSocket) {
  EXPECT_FALSE(Parse({"--in-memory"}).config().trust_caller_gpu_memory);
  const char* const flag = "--trust-caller-gpu-memory";
  EXPECT_TRUE(Parse({"--data-dir=/d", flag}).config().trust_caller_gpu_memory);
  ExpectWrong({"--data-dir=/d", "--local-listen=off", flag}, flag);
}

TEST(CommandLine, WhatSaysWhoCallsGoesTogether) {
  ExpectWrong({"--in-memory", "--tls-certificate=c"}, "--tls-key go together");
  ExpectWrong({"--in-memory", "--tls-client-ca=c", "--access-file=a"}, "come with TLS");
  ExpectWrong({"--in-memory", "--tls-certificate=c", "--tls-key=k", "--tls-client-ca=c"},
              "the access file says");
  ExpectWrong({"--in-memory", "--metrics-token"}, "--access-file");
  ExpectWrong({"--in-memory", "--socket-mode=0999"}, "'0999' is no mode");
  ExpectWrong({"--in-memory", "--socket-group=no-such-group"}, "no group 'no-such-group'");
  const Parsed parsed = Parse({"--in-memory", "--socket-mode=0660", "--socket-group=7",
                               "--tls-certificate=c", "--tls-key=k", "--access-file=a"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  EXPECT_EQ(parsed.config().socket_mode, 0660U);
  EXPECT_EQ(parsed.config().socket_group, 7U);
  const std::string file = WriteFile("access.yaml", ToYaml(parsed.config()));
  const Parsed again = Parse({("--config=" + file).c_str()});
  ASSERT_EQ(again.exit_code(), -1) << again.err;
  EXPECT_EQ(ToYaml(again.config()), ToYaml(parsed.config()));
}

TEST(CommandLine, TheFileSetsAndFlagsWin) {
  const std::string path = WriteFile("sparsed.yaml",
                                     "# a comment\n"
                                     "listen:\n  - 127.0.0.1:1\n  - unix:/run/s\n"
                                     "data_dir: /from/file\n"
                                     "host_memory: 2GiB\n"
                                     "max_requests_per_stream: 9\n"
                                     "max_rings: 3\n"
                                     "ring_spin: 20\n"
                                     "trust_caller_gpu_memory: true\n"
                                     "batch_wait: 200\n");
  const std::string flag = "--config=" + path;
  const Parsed parsed = Parse({flag.c_str(), "--host-memory=1GiB"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  EXPECT_EQ(parsed.config().listen, (std::vector<std::string>{"127.0.0.1:1", "unix:/run/s"}));
  EXPECT_EQ(parsed.config().data_dir, "/from/file");
  EXPECT_EQ(parsed.config().host_memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(parsed.config().max_requests_per_stream, 9);
  EXPECT_EQ(parsed.config().batch_wait_microseconds, 200);
  EXPECT_TRUE(parsed.config().trust_caller_gpu_memory);
  EXPECT_EQ(parsed.config().max_rings, 3);
  EXPECT_EQ(parsed.config().ring_spin_microseconds, 20);
  const Parsed in_memory = Parse({flag.c_str(), "--in-memory"});
  ASSERT_EQ(in_memory.exit_code(), -1) << in_memory.err;
  EXPECT_TRUE(in_memory.config().in_memory());
}

TEST(CommandLine, AWrongFileNamesFileLineAndKey) {
  const auto wrong = [](const std::string& text, const std::string& word) {
    const std::string flag = "--config=" + WriteFile("wrong.yaml", text);
    ExpectWrong({flag.c_str()}, word);
  };
  wrong("in_memory: true\nhost_memroy: 4GiB\n", "wrong.yaml:2: unknown key 'host_memroy'");
  wrong("in-memory: true\n", "wrong.yaml:1: unknown key 'in-memory'");
  wrong("config: other.yaml\n", "wrong.yaml:1: unknown key 'config'");
  wrong("in_memory: true\nlisten: {a: b}\n", "wrong.yaml:2");
  wrong("in_memory: true\nlanes: 1\nlanes: 2\n",
        "wrong.yaml:3: key 'lanes' again, it is in line 2 already");
  wrong("in_memory: true\nlisten: [unix:/a]\nlisten: [unix:/b]\n", "wrong.yaml:3: key 'listen'");
  wrong("in_memory: true\nshutdown_grace: .nan\n", "shutdown-grace");
  wrong("in_memory: [\n", "wrong.yaml:");
  wrong("- a\n- b\n", "wrong.yaml:1");
  wrong("in_memory: true\nthreads: many\n", "threads");
}

TEST(CommandLine, PrintedConfigurationIsAFileThatMeansTheSame) {
  const Parsed printed = Parse({"--in-memory", "--listen=unix:/run/s", "--host-memory=3GiB",
                                "--log-level=warn", "--print-config"});
  ASSERT_EQ(printed.exit_code(), 0);
  const std::string flag = "--config=" + WriteFile("printed.yaml", printed.out);
  const Parsed again = Parse({flag.c_str(), "--print-config"});
  ASSERT_EQ(again.exit_code(), 0) << again.err;
  EXPECT_EQ(again.out, printed.out);
}

TEST(CommandLine, HelpAndVersion) {
  const Parsed help = Parse({"--help"});
  EXPECT_EQ(help.exit_code(), 0);
  for (const char* flag : {"--listen", "--metrics-listen", "--data-dir", "--in-memory", "--devices",
                           "--config", "--host-memory", "--print-config"}) {
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  }
  const Parsed version = Parse({"--version"});
  EXPECT_EQ(version.exit_code(), 0);
  EXPECT_TRUE(version.out.starts_with("sparsed " SPARSED_VERSION "\nGPU kernels: ")) << version.out;
  const cuda::Build build = cuda::ThisBuild();
  EXPECT_NE(version.out.find(build.architectures.empty() ? "without CUDA" : build.architectures),
            std::string::npos)
      << version.out;
}

}  // namespace
}  // namespace sparsed::server
