// Flags and file into one configuration; what is wrong is said in a sentence, with exit code 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/byte_size.h"
#include "kernels/cuda/driver.h"
#include "server/check_start.h"
#include "server/config/command_line.h"
#include "server/config/machine.h"
#include "server/config/nearest_word.h"
#include "server/config/problems.h"
#include "server/config/values.h"

namespace sparsed::server {
namespace {

struct Parsed {
  std::variant<Settings, int> result;
  std::string out, err;

  const Settings& settings() const { return std::get<Settings>(result); }
  const Config& config() const { return settings().config; }
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

TEST(CommandLine, CalibrateIsAnAction) {
  EXPECT_FALSE(Parse({"--data-dir=/d"}).config().calibrate);
  EXPECT_TRUE(Parse({"--data-dir=/d", "--calibrate"}).config().calibrate);
  EXPECT_TRUE(Parse({"--in-memory", "--calibrate"}).config().calibrate);
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
                               "--worker-slots=2",
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
  EXPECT_EQ(config.worker_slots, 2);
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
  ExpectWrong({"--in-memory", "--host-memory=1KiB"}, "too little");
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
  ExpectWrong({"--in-memory", "--threads=1", "--worker-slots=2"}, "worker-slots");
  ExpectWrong({"--in-memory", "--preparation-seconds=-1"}, "preparation-seconds");
  ExpectWrong({"--in-memory", "--scrub-interval=-1"}, "scrub-interval");
  ExpectWrong({"--in-memory", "--log-level=loud"},
              "'loud' is none of debug, error, info, warn, warning");
  ExpectWrong({"--in-memory", "--log-format=xml"}, "'xml' is none of json, text");
  ExpectWrong({"--in-memory", "--no-such-flag"}, "no-such-flag");
  ExpectWrong({"--config=/no/such/file.yaml"}, "/no/such/file.yaml");
}

TEST(CommandLine, AllThatIsWrongIsToldAtOnce) {
  const Parsed parsed =
      Parse({"--lisen=127.0.0.1:0", "--in-memory", "--threads=many", "--worker-slots=", "word",
             "--host-memory=1KiB", "--log-level", "loud", "--batch-wait=1", "--batch-wait=2",
             "--devices", "cpu", "--no-such-flag", "--max-queued"});
  EXPECT_EQ(parsed.exit_code(), 2);
  for (const char* sentence :
       {"sparsed: there is no flag --lisen; did you mean --listen?\n",
        "sparsed: --threads: ", "sparsed: --worker-slots: its value is missing\n",
        "sparsed: there is no flag word\n", "sparsed: --host-memory: 1KiB is too little",
        "sparsed: --log-level: 'loud' is none of", "sparsed: --batch-wait: it is there twice\n",
        "sparsed: there is no flag --no-such-flag\n", "sparsed: --max-queued: "}) {
    EXPECT_NE(parsed.err.find(sentence), std::string::npos) << parsed.err << " lacks " << sentence;
  }
  EXPECT_EQ(std::ranges::count(parsed.err, '\n'), 10) << parsed.err;
  // What stands behind a flag that is not there is its value.
  const Parsed value = Parse({"--in-memory", "--lisen", "127.0.0.1:0", "word"});
  EXPECT_EQ(value.exit_code(), 2);
  EXPECT_EQ(value.err,
            "sparsed: there is no flag --lisen; did you mean --listen?\n"
            "sparsed: there is no flag word\n"
            "sparsed --help lists the flags.\n");
  // A flag that was meant to say so is not missed.
  EXPECT_EQ(Parse({"--in-memori"}).err.find("nothing says where"), std::string::npos);
  // With what is wrong in a file.
  const std::string file = WriteFile("wrong-too.yaml", "in_memory: true\nworker_slots: none\n");
  const std::string config = "--config=" + file;
  const Parsed both = Parse({config.c_str(), "--max-queued=0"});
  EXPECT_NE(both.err.find("wrong-too.yaml:2:15: worker_slots: "), std::string::npos) << both.err;
  EXPECT_NE(both.err.find("--max-queued: "), std::string::npos) << both.err;
  EXPECT_EQ(Parse({"--in-memory", "--listen=127.0.0.1:0", "--listen", "127.0.0.1:0", "--listen",
                   "unix:/a", "--threads", "2"})
                .exit_code(),
            -1);
}

TEST(CommandLine, LimitsThatAreNoneAreRefused) {
  ExpectWrong({"--in-memory", "--host-memory=1000000GiB"}, "--host-memory");
  ExpectWrong({"--in-memory", "--staging-memory=1000000GiB"}, "--staging-memory");
  ExpectWrong({"--in-memory", "--devices=cuda:0,cuda:1", "--staging-memory=1000000GiB"},
              "for each GPU");
  ExpectWrong({"--in-memory", "--host-memory=-1GiB"}, "host-memory");
  ExpectWrong({"--in-memory", "--worker-slots=65536"}, "--worker-slots: 65536 is more than");
  ExpectWrong({"--in-memory", "--threads=65536"}, "--threads: 65536 is more than");
  ExpectWrong({"--in-memory", "--worker-slots=-1"}, "worker-slots");
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

TEST(CommandLine, LanesAreTheFormerNameOfWorkerSlots) {
  EXPECT_EQ(Parse({"--in-memory", "--threads=8", "--lanes=3"}).config().worker_slots, 3);
  EXPECT_EQ(Parse({"--in-memory", "--threads=8", "--lanes", "3"}).config().worker_slots, 3);
  const std::string file =
      "--config=" + WriteFile("former.yaml", "in_memory: true\nthreads: 8\nlanes: 4\n");
  EXPECT_EQ(Parse({file.c_str()}).config().worker_slots, 4);
  EXPECT_EQ(Parse({file.c_str(), "--worker-slots=5"}).config().worker_slots, 5);
  // By whichever name it is said, what is wrong is told by the present one.
  ExpectWrong({"--in-memory", "--lanes=none"}, "--worker-slots");
  ExpectWrong({"--in-memory", "--lanes=1", "--worker-slots=1"}, "--worker-slots");
  const std::string twice =
      "--config=" + WriteFile("twice.yaml", "in_memory: true\nlanes: 1\nworker_slots: 1\n");
  ExpectWrong({twice.c_str()}, "3:1: key 'worker_slots' again, it is in line 2 already as 'lanes'");
  ExpectWrong({"--in-memory", "--lane=1"}, "there is no flag --lane; did you mean --worker-slots?");
  const std::string nearly = "--config=" + WriteFile("nearly.yaml", "in_memory: true\nlane: 1\n");
  ExpectWrong({nearly.c_str()}, "unknown key 'lane'; did you mean 'worker_slots'?");
}

TEST(CommandLine, WhatIsSaidTwiceIsRefused) {
  ExpectWrong({"--in-memory", "--worker-slots=1", "--worker-slots=2"}, "--worker-slots");
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
  ExpectWrong({"--in-memory", "--tls-certificate=c"}, "it goes together with --tls-key");
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

/// What is said of a file with this text, without the path before its name, and the last line.
std::string SaidOf(const std::string& text, std::vector<const char*> flags = {}) {
  const std::string path = WriteFile("wrong.yaml", text);
  const std::string flag = "--config=" + path;
  flags.push_back(flag.c_str());
  const Parsed parsed = Parse(std::move(flags));
  EXPECT_EQ(parsed.exit_code(), 2) << text << parsed.out;
  std::string said;
  std::istringstream lines(parsed.err);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(path);
    if (at != std::string::npos)
      line = line.substr(at + path.size() - std::string("wrong.yaml").size());
    if (line != "sparsed --help lists the flags.") said += line + "\n";
  }
  return said;
}

TEST(ConfigFile, EachErrorNamesFileLineColumnValueAndWhatIsAllowed) {
  const struct {
    const char* text;
    const char* said;
  } kCases[] = {
      {"in_memory: true\nhost_memroy: 4GiB\n",
       "wrong.yaml:2:1: unknown key 'host_memroy'; did you mean 'host_memory'?\n"},
      {"in-memory: true\n", "wrong.yaml:1:1: unknown key 'in-memory'; did you mean 'in_memory'?\n"},
      {"in_memory: true\nwhatever_this_is: 1\n",
       "wrong.yaml:2:1: unknown key 'whatever_this_is'\n"},
      {"in_memory: true\nconfig: other.yaml\n",
       "wrong.yaml:2:1: unknown key 'config'; --config is for the command line alone\n"},
      {"in_memory: true\n? [a]\n: b\n", "wrong.yaml:2:3: a key is one word\n"},
      {"in_memory: true\nworker_slots: 1\nworker_slots: 2\n",
       "wrong.yaml:3:1: key 'worker_slots' again, it is in line 2 already\n"},
      {"in_memory: true\nlisten: [unix:/a]\nlisten: [unix:/b]\n",
       "wrong.yaml:3:1: key 'listen' again, it is in line 2 already\n"},
      {"in_memory: true\nhost_memory: lots\n",
       "wrong.yaml:2:14: host_memory: 'lots' is not a size: a number of bytes, or one with KiB, "
       "MiB, "
       "GiB or TiB behind it, such as 512MiB or 1.5GiB; 1GB is 1000 MB and less than 1GiB\n"},
      {"in_memory: true\nmax_chunk: 2 furlongs\n",
       "wrong.yaml:2:12: max_chunk: '2 furlongs' is not a size: a number of bytes, or one with "
       "KiB, "
       "MiB, GiB or TiB behind it, such as 512MiB or 1.5GiB; 1GB is 1000 MB and less than 1GiB\n"},
      {"in_memory: true\nmax_chunk: [1MiB, 2MiB]\n",
       "wrong.yaml:2:12: max_chunk: a list, where one value is expected: SIZE\n"},
      {"in_memory: true\nthreads:\n  - 1\n",
       "wrong.yaml:3:3: threads: a list, where one value is expected: NUMBER\n"},
      {"in_memory: true\nworker_slots: {of: 2}\n",
       "wrong.yaml:2:15: worker_slots: a map, where one value is expected: NUMBER\n"},
      {"in_memory: true\nlisten: {a: b}\n",
       "wrong.yaml:2:9: listen: a map, where one value or a list of them is expected: ADDR\n"},
      {"in_memory: true\nlisten: []\n", "wrong.yaml:2:9: listen: an empty list; expected: ADDR\n"},
      {"in_memory: true\nlisten: [unix:/a, [unix:/b]]\n",
       "wrong.yaml:2:19: listen: expected in this list: ADDR\n"},
      {"in_memory: true\nlisten:\n  - 127.0.0.1:1\n  - nowhere\n",
       "wrong.yaml:4:5: listen: 'nowhere' is not HOST:PORT or unix:/PATH\n"},
      {"in_memory: true\nthreads:\n", "wrong.yaml:2:1: threads: no value; expected: NUMBER\n"},
      {"data_dir: ''\n", "wrong.yaml:1:11: data_dir: no value; expected: DIR\n"},
      {"in_memory: true\nthreads: many\n",
       "wrong.yaml:2:10: threads: 'many' is not a whole number from 1 to 65536\n"},
      {"in_memory: true\nthreads: 1.5\n",
       "wrong.yaml:2:10: threads: '1.5' is not a whole number from 1 to 65536\n"},
      {"in_memory: true\nshutdown_grace: .nan\n",
       "wrong.yaml:2:17: shutdown_grace: '.nan' is not a number of seconds from 0 to 86400\n"},
      {"in_memory: perhaps\n", "wrong.yaml:1:12: in_memory: 'perhaps' is neither true nor false\n"},
      {"in_memory: true\nlog_level: loud\n",
       "wrong.yaml:2:12: log_level: 'loud' is none of debug, error, info, warn, warning\n"},
      {"in_memory: true\ndata_dir: /d\n",
       "wrong.yaml:1:12: in_memory: data_dir (line 2) is set, too; one of them, not both\n"},
      {"in_memory: true\nthreads: 1\nworker_slots: 2\n",
       "wrong.yaml:3:15: worker_slots: 2 worker slots need as many threads, threads (line 2) is "
       "1\n"},
      {"in_memory: true\nhost_memory: 1GiB\nwire_memory: 900MiB\n",
       "wrong.yaml:3:14: wire_memory: 900MiB is not between 8MiB and 512MiB, half of host_memory "
       "(line 2)\n"},
      {"in_memory: true\nlisten: ['unix:/a', 'unix:/a']\n",
       "wrong.yaml:2:9: listen: unix:/a would be listened on twice\n"},
      {"in_memory: true\nsocket_mode: 999\n",
       "wrong.yaml:2:14: socket_mode: '999' is no mode: three octal digits such as 0660\n"},
      {"in_memory: true\nlisten:\n\t- unix:/a\n",
       "wrong.yaml:3:1: a tab; lines of YAML are indented with spaces\n"},
      {"in_memory: true\nlisten: \"\xff\"\n", "wrong.yaml:2:1: this line is no text in UTF-8\n"},
      {"- a\n- b\n", "wrong.yaml:1:1: expected a map of settings, key: value\n"},
      {"in_memory: true\n---\nworker_slots: 1\n",
       "wrong.yaml:3:1: a second document begins before this; all settings are in one\n"},
  };
  for (const auto& test : kCases) EXPECT_EQ(SaidOf(test.text), test.said) << test.text;
  EXPECT_TRUE(SaidOf("in_memory: [\n").starts_with("wrong.yaml:")) << "no YAML";
}

TEST(ConfigFile, AllErrorsAreToldAtOnceInTheOrderOfTheLines) {
  EXPECT_EQ(
      SaidOf("worker_slots: none\ndata_dir: /d\nwhat: 1\nmax_chunk: 1KiB\nmetrics_token: true\n",
             {"--tls-key=k"}),
      "wrong.yaml:1:15: worker_slots: 'none' is not a whole number from 1 to 65536\n"
      "wrong.yaml:3:1: unknown key 'what'\n"
      "wrong.yaml:4:12: max_chunk: 1KiB is not between 4KiB and 1GiB\n"
      "wrong.yaml:5:16: metrics_token: tokens are in the access file (--access-file)\n"
      "sparsed: --tls-key: it goes together with --tls-certificate, which is missing\n");
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "key" + std::to_string(i) + "x: 1\n";
  const std::string said = SaidOf(many);
  EXPECT_EQ(std::ranges::count(said, '\n'), 51);
  EXPECT_NE(said.find("and 950 more"), std::string::npos) << said.substr(said.size() - 200);
}

TEST(ConfigFile, LimitsAboveWhatTheMachineHas) {
  const UsableMemory usable = MemoryOfThisMachine();
  const std::string has = SizeText(usable.bytes);
  const std::string said =
      SaidOf("in_memory: true\nhost_memory: 1000TiB\nstaging_memory: 999TiB\n");
  EXPECT_TRUE(said.starts_with("wrong.yaml:2:14: host_memory: 1000TiB is more than the " + has))
      << said;
  EXPECT_NE(said.find("wrong.yaml:3:17: staging_memory: 999TiB is more than the " + has),
            std::string::npos)
      << said;
  const std::string where = usable.limited_by.empty() ? "this machine" : usable.limited_by;
  EXPECT_NE(said.find(where), std::string::npos) << said;
}

TEST(ConfigFile, WhatCannotBeRead) {
  ExpectWrong({"--config=/no/such/file.yaml"}, "--config: /no/such/file.yaml: No such file");
  ExpectWrong({"--config=/"}, "--config: /: this is no file");
  const std::string large = "--config=" + WriteFile("large.yaml", std::string(2 << 20, '#'));
  ExpectWrong({large.c_str()}, "more than 1 MiB");
}

TEST(ConfigFile, WhatIsRight) {
  const auto config = [](const std::string& text) {
    const std::string flag = "--config=" + WriteFile("right.yaml", text);
    const Parsed parsed = Parse({flag.c_str()});
    EXPECT_EQ(parsed.exit_code(), -1) << text << parsed.err;
    return parsed.exit_code() == -1 ? parsed.config() : Config();
  };
  EXPECT_EQ(config("in_memory: true\nhost_memory: 1.5GiB\n").host_memory_bytes, int64_t{3} << 29);
  EXPECT_EQ(config("in_memory: true\nhost_memory: 0.5 gib\n").host_memory_bytes, 1 << 29);
  EXPECT_EQ(config("in_memory: true\nhost_memory: 1GB\n").host_memory_bytes, 1'000'000'000);
  EXPECT_EQ(config("in_memory: true\nhost_memory: 1.5 gb\n").host_memory_bytes, 1'500'000'000);
  EXPECT_EQ(config("in_memory: true\nhost_memory: 500MB\n").host_memory_bytes, 500'000'000);
  EXPECT_EQ(config("in_memory: true\nhost_memory: 1G\n").host_memory_bytes, 1 << 30);
  EXPECT_EQ(config("in_memory: true\nmax_chunk: 64KB\n").max_chunk_bytes, 64'000);
  EXPECT_EQ(config("in_memory: true\nhost_memory: 536870913\n").host_memory_bytes, 536870913);
  EXPECT_EQ(config("data_dir: /d\nin_memory: false\n").data_dir, "/d");
  EXPECT_EQ(config("data_dir: /d\t# a tab that indents nothing\n\t\n").data_dir, "/d");
  EXPECT_EQ(config("---\ndata_dir: /d\n").data_dir, "/d");
  EXPECT_EQ(config("data_dir: /d\ndevices: cuda:0,cuda:1\n").devices,
            (std::vector<std::string>{"cuda:0", "cuda:1"}));
  EXPECT_EQ(config("data_dir: /d\ndevices: [cuda:0, cuda:1]\n").devices,
            (std::vector<std::string>{"cuda:0", "cuda:1"}));
  EXPECT_EQ(config("data_dir: /d\nlisten: unix:/a\n").listen,
            (std::vector<std::string>{"unix:/a"}));
}

TEST(ConfigFile, SizesAreSaidAsTheyAreWritten) {
  EXPECT_EQ(SizeText(0), "0 bytes");
  EXPECT_EQ(SizeText(1025), "1025 bytes");
  EXPECT_EQ(SizeText(4096), "4KiB");
  EXPECT_EQ(SizeText(int64_t{3} << 29), "1536MiB");
  EXPECT_EQ(SizeText((int64_t{3} << 29) + 1), "1610612737 bytes (1.50 GiB)");
  EXPECT_EQ(SizeText(int64_t{5} << 40), "5TiB");
}

TEST(ConfigFile, TheNearestWord) {
  const std::vector<std::string> words = {"lanes", "listen", "host_memory", "wire_memory"};
  EXPECT_EQ(NearestWord("host_memroy", words), "host_memory");
  EXPECT_EQ(NearestWord("lane", words), "lanes");
  EXPECT_EQ(NearestWord("lisetn", words), "listen");
  EXPECT_EQ(NearestWord("x", words), "");
  EXPECT_EQ(NearestWord("", words), "");
  EXPECT_EQ(NearestWord("device_memory", words), "wire_memory");
  EXPECT_EQ(NearestWord(std::string(100'000, 'a'), words), "");
}

/// Flags that are settings, from --help.
std::set<std::string> SettingsOfHelp() {
  const std::string help = Parse({"--help"}).out;
  std::set<std::string> flags;
  const std::regex flag("\n  (?:-[a-z],)?--([a-z-]+)");
  for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at) {
    flags.insert((*at)[1]);
  }
  for (const char* action :
       {"help", "version", "config", "print-config", "check-config", "salvage", "calibrate"}) {
    EXPECT_EQ(flags.erase(action), 1U) << action;
  }
  return flags;
}

/// A value that is not the default, and what it needs besides, for each setting.
struct Sample {
  std::string value;
  std::vector<std::string> with = {"--in-memory"};
};
const std::map<std::string, Sample>& Samples() {
  static const std::vector<std::string> kTls = {"--in-memory", "--access-file=a",
                                                "--tls-certificate=c", "--tls-key=k"};
  static const auto* const kSamples = new std::map<std::string, Sample>{
      {"access-file", {"a.yaml"}},
      {"audit-log", {"/tmp/audit"}},
      {"batch-wait", {"77"}},
      {"buffer-memory", {"3GiB"}},
      {"buffer-time-to-live", {"77.5"}},
      {"advertise", {"node-7:7470", {"--in-memory", "--etcd=127.0.0.1:2379"}}},
      {"cluster-ca",
       {"ca.pem",
        {"--in-memory", "--etcd=e:1", "--advertise=a:1", "--tls-certificate=c", "--tls-key=k"}}},
      {"cluster-token-file",
       {"t",
        {"--in-memory", "--etcd=e:1", "--advertise=a:1", "--tls-certificate=c", "--tls-key=k",
         "--cluster-ca=ca"}}},
      {"etcd", {"127.0.0.1:2379", {"--in-memory", "--advertise=a:1"}}},
      {"etcd-ca", {"/tmp/etcd-ca.crt", {"--in-memory", "--etcd=e:1", "--advertise=a:1"}}},
      {"etcd-certificate",
       {"/tmp/etcd.crt",
        {"--in-memory", "--etcd=e:1", "--advertise=a:1", "--etcd-ca=c", "--etcd-key=k"}}},
      {"etcd-key",
       {"/tmp/etcd.key",
        {"--in-memory", "--etcd=e:1", "--advertise=a:1", "--etcd-ca=c", "--etcd-certificate=c"}}},
      {"cluster-staleness", {"7.5", {"--in-memory", "--etcd=e:1", "--advertise=a:1"}}},
      {"cluster-settle", {"12.5", {"--in-memory", "--etcd=e:1", "--advertise=a:1"}}},
      {"node", {"seven", {"--in-memory", "--etcd=e:1", "--advertise=a:1"}}},
      {"replicas", {"2", {"--data-dir=/tmp/d", "--etcd=e:1", "--advertise=a:1"}}},
      {"replication-rate", {"77MiB", {"--in-memory", "--etcd=e:1", "--advertise=a:1"}}},
      {"connection-memory", {"5MiB"}},
      {"data-dir", {"/tmp/d", {}}},
      {"device-memory", {"1.5GiB"}},
      {"devices", {"cpu"}},
      {"give-up-after", {"77"}},
      {"host-memory", {"77MiB"}},
      {"in-memory", {"true", {}}},
      {"insecure", {"true"}},
      {"worker-slots", {"7", {"--in-memory", "--threads=8"}}},
      {"listen", {"127.0.0.1:77"}},
      {"local-listen", {"off"}},
      {"log-format", {"json"}},
      {"log-level", {"error"}},
      {"max-chunk", {"64KiB"}},
      {"max-connections", {"77"}},
      {"max-queued", {"77"}},
      {"max-requests-per-stream", {"77"}},
      {"max-rings", {"7"}},
      {"metrics-listen", {"127.0.0.1:78"}},
      {"metrics-token", {"true", {"--in-memory", "--access-file=a"}}},
      {"otlp-endpoint", {"http://127.0.0.1:77"}},
      {"past-measurements", {"7MiB"}},
      {"models", {"off"}},
      {"expected-requests", {"5000"}},
      {"preparation-memory", {"7MiB"}},
      {"preparation-seconds", {"77"}},
      {"preparation-threads", {"7"}},
      {"preparation-workers", {"7"}},
      {"receive-idle", {"7"}},
      {"ring-spin", {"77"}},
      {"scrub-interval", {"77"}},
      {"send-idle", {"7"}},
      {"share-patterns", {"true"}},
      {"shutdown-grace", {"77"}},
      {"slow-request", {"77"}},
      {"socket-group", {"7"}},
      {"socket-mode", {"0606"}},
      {"staging-memory", {"9MiB"}},
      {"stall-after", {"77"}},
      {"threads", {"7"}},
      {"tls-certificate", {"c", {"--in-memory", "--tls-key=k"}}},
      {"tls-client-ca", {"c", kTls}},
      {"tls-key", {"k", {"--in-memory", "--tls-certificate=c"}}},
      {"trust-caller-gpu-memory", {"true", {"--data-dir=/tmp/d"}}},
      {"wire-memory", {"9MiB", {"--in-memory", "--host-memory=64MiB"}}},
  };
  return *kSamples;
}

TEST(ConfigFile, EachFlagIsAKeyThatDoesTheSame) {
  const auto printed = [](const std::vector<std::string>& words) {
    std::vector<const char*> flags = {"--print-config"};
    for (const std::string& word : words) flags.push_back(word.c_str());
    const Parsed parsed = Parse(flags);
    EXPECT_EQ(parsed.exit_code(), 0) << words.back() << ": " << parsed.err;
    return parsed.out;
  };
  std::set<std::string> tried;
  for (const auto& [flag, sample] : Samples()) {
    tried.insert(flag);
    std::vector<std::string> by_flag = sample.with;
    by_flag.push_back("--" + flag + (sample.value == "true" ? "" : "=" + sample.value));
    std::vector<std::string> by_key = sample.with;
    const std::string key = KeyOf(flag);
    by_key.push_back("--config=" + WriteFile("key.yaml", key + ": " + sample.value + "\n"));
    EXPECT_EQ(printed(by_key), printed(by_flag)) << flag;
    // What is printed has the key, so that it is a file that does the same.
    EXPECT_NE(("\n" + printed(by_key)).find("\n" + key + ": "), std::string::npos) << flag;
    if (sample.with == std::vector<std::string>{"--in-memory"}) {
      EXPECT_NE(printed(by_key), printed(sample.with)) << flag;
    }
  }
  EXPECT_EQ(tried, SettingsOfHelp()) << "each setting needs a sample in this test";
}

TEST(ConfigFile, CheckConfigSaysWhereEachValueComesFrom) {
  const std::string path = WriteFile("checked.yaml", "in_memory: true\nmax_queued: 77\n");
  const std::string flag = "--config=" + path;
  const Parsed parsed = Parse({flag.c_str(), "--worker-slots=1", "--check-config"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  ASSERT_TRUE(parsed.settings().check);
  const std::string& text = parsed.settings().annotated;
  const auto line_of = [&](const std::string& key) {
    const size_t at = ("\n" + text).find("\n" + key + ": ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_TRUE(line_of("max_queued").ends_with("# " + path + ":2")) << text;
  EXPECT_TRUE(line_of("worker_slots").ends_with("# --worker-slots")) << text;
  EXPECT_TRUE(line_of("max_rings").ends_with("# default")) << text;
  // It is a file that does the same.
  const std::string again = "--config=" + WriteFile("again.yaml", text);
  EXPECT_EQ(ToYaml(Parse({again.c_str()}).config()), ToYaml(parsed.config()));
  EXPECT_EQ(Parse({flag.c_str(), "--worker-slots=none", "--check-config"}).exit_code(), 2);
}

TEST(CheckStart, FilesAndAddressesAreLookedAt) {
  const auto problems = [](std::vector<const char*> flags) {
    const Parsed parsed = Parse(std::move(flags));
    EXPECT_EQ(parsed.exit_code(), -1) << parsed.err;
    Problems found = parsed.settings().problems;
    CheckStart(parsed.config(), found);
    std::string all;
    for (const std::string& problem : found.Sentences()) all += problem + "\n";
    return all;
  };
  EXPECT_EQ(problems({"--in-memory"}), "");
  EXPECT_TRUE(
      problems({"--in-memory", "--listen=0.0.0.0:7480"})
          .starts_with("--listen: 0.0.0.0:7480: other machines reach it, and nothing says"));
  EXPECT_EQ(problems({"--in-memory", "--listen=0.0.0.0:7480", "--insecure"}), "");
  EXPECT_TRUE(problems({"--in-memory", "--devices=cpu,cuda:9999"})
                  .starts_with("--devices: cuda:9999 cannot serve: "));
  const std::string fresh = "--data-dir=" + testing::TempDir() + "not_there_yet";
  EXPECT_EQ(problems({fresh.c_str()}), "");
  EXPECT_EQ(problems({(fresh + "/").c_str()}), "");
  EXPECT_FALSE(std::filesystem::exists(testing::TempDir() + "not_there_yet"));
  EXPECT_TRUE(problems({(fresh + "/data/").c_str()})
                  .starts_with("--data-dir: " + testing::TempDir() +
                               "not_there_yet/data/ cannot be made: there "));
  EXPECT_EQ(problems({"--data-dir=/proc/version"}),
            "--data-dir: nothing can be made in /proc/version: Not a directory\n");
  EXPECT_EQ(problems({"--in-memory", "--audit-log=/no/such/audit.log"}),
            "--audit-log: nothing can be made in /no/such: No such file or directory\n");
  EXPECT_EQ(problems({"--in-memory", "--models=/no/such"}), "--models: /no/such is no folder\n");
  EXPECT_EQ(problems({"--in-memory", "--models=off"}), "");
  EXPECT_EQ(problems({"--in-memory", "--models=/proc"}), "");
  ExpectWrong({"--in-memory", "--expected-requests=0"}, "--expected-requests");
  ExpectWrong({"--in-memory", "--expected-requests=many"}, "--expected-requests");
  EXPECT_EQ(problems({"--in-memory", "--listen=unix:/no/such/s"}),
            "--listen: nothing can be made in /no/such: No such file or directory\n");
  EXPECT_EQ(problems({"--in-memory", "--listen=unix:/run/no-such/s"}), "");
  if (std::filesystem::is_symlink("/var/run")) {
    EXPECT_EQ(problems({"--in-memory", "--listen=unix:/var/run/no-such/s"}), "");
  }
  EXPECT_EQ(problems({"--in-memory", "--listen=unix:/proc/version/s"}),
            "--listen: nothing can be made in /proc/version: Not a directory\n");
  const std::string access = WriteFile("access_check.yaml", "tokens:\n  - {nome: a}\n");
  std::filesystem::permissions(access, std::filesystem::perms::owner_read);
  const std::string flag = "--access-file=" + access;
  const std::string said = problems({"--in-memory", flag.c_str()});
  EXPECT_TRUE(said.starts_with("--access-file: " + access + ":") ||
              said.starts_with("--access-file: " + access + ": line 2"))
      << said;
  EXPECT_NE(problems({"--in-memory", "--tls-certificate=/no/c", "--tls-key=/no/k"})
                .find("--tls-certificate: /no/"),
            std::string::npos);
}

TEST(ByteSize, UnitsOfThousandAndOf1024AreToldApart) {
  EXPECT_EQ(UnitBytes(""), 1);
  EXPECT_EQ(UnitBytes("B"), 1);
  EXPECT_EQ(UnitBytes("kb"), 1000);
  EXPECT_EQ(UnitBytes("KiB"), 1024);
  EXPECT_EQ(UnitBytes("k"), 1024);
  EXPECT_EQ(UnitBytes("GB"), 1'000'000'000);
  EXPECT_EQ(UnitBytes("gib"), 1 << 30);
  EXPECT_EQ(UnitBytes("TB"), 1'000'000'000'000);
  EXPECT_EQ(UnitBytes("T"), int64_t{1} << 40);
  for (const char* none : {"Gi", "GiBs", "iB", "BB", "P", " GB", "Gx", "GxB"}) {
    EXPECT_EQ(UnitBytes(none), std::nullopt) << none;
  }
}

TEST(CheckStart, OnePassTellsAllThatIsWrongByItsLines) {
  const std::string path =
      WriteFile("all_wrong.yaml",
                "in_memory: true\nworker_slots: several\nhost_memory: 900000GiB\n"
                "wire_memory: 1KiB\naccess_file: /no/such/access.yaml\n"
                "audit_log: /no/such/audit.log\nthread: 1\n"
                "tls_certificate: /no/such/c.pem\ntls_key: /no/such/k.pem\n");
  const std::string flag = "--config=" + path;
  const Parsed parsed = Parse({flag.c_str(), "--check-config"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  Problems problems = parsed.settings().problems;
  CheckStart(parsed.config(), problems);
  std::string said;
  for (const std::string& sentence : problems.Sentences()) {
    ASSERT_TRUE(sentence.starts_with(path + ":")) << sentence;
    said += sentence.substr(path.size() + 1) + "\n";
  }
  int line = 2;
  for (const char* of_line :
       {"2:15: worker_slots: 'several'",
        "3:14: host_memory: ", "4:14: wire_memory: 1KiB is not between",
        "5:14: access_file: /no/such/access.yaml", "6:12: audit_log: nothing can be made in",
        "7:1: unknown key 'thread'", "8:18: tls_certificate: /no/such/"}) {
    const size_t at = said.find(of_line);
    EXPECT_NE(at, std::string::npos) << of_line << " is not in\n" << said;
    EXPECT_EQ(std::count(said.begin(), said.begin() + static_cast<std::ptrdiff_t>(at), '\n'),
              line++ - 2)
        << said;
  }
  // Whoever starts with it is told the same of the values, and no more than before.
  EXPECT_EQ(Parse({flag.c_str()}).exit_code(), 2);
}

TEST(CommandLine, PrintedConfigurationIsAFileThatMeansTheSame) {
  const Parsed printed = Parse({"--in-memory", "--listen=unix:/run/s", "--host-memory=3GiB",
                                "--log-level=warning", "--print-config"});
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
  // Whatever is wrong beside them.
  for (const char* wrong : {"--no-such-flag", "--threads=many", "--worker-slots=", "word"}) {
    for (const auto& [flag, right] :
         {std::pair("--help", &help), std::pair("--version", &version)}) {
      for (const Parsed& beside : {Parse({wrong, flag}), Parse({flag, wrong})}) {
        EXPECT_EQ(beside.exit_code(), 0) << wrong << ' ' << flag;
        EXPECT_EQ(beside.out, right->out) << wrong << ' ' << flag;
        EXPECT_EQ(beside.err, "") << wrong << ' ' << flag;
      }
    }
  }
}

TEST(CommandLine, ANodeSaysWhereItIs) {
  ExpectWrong({"--in-memory", "--etcd=127.0.0.1:2379"}, "--advertise");
  ExpectWrong({"--in-memory", "--advertise=127.0.0.1:7470"}, "--etcd");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=127.0.0.1:0"}, "port 0");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--etcd-key=k"},
              "--etcd-certificate, which is missing");
  ExpectWrong(
      {"--in-memory", "--etcd=e:1", "--advertise=a:1", "--etcd-certificate=c", "--etcd-key=k"},
      "--etcd-ca, which is missing");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--cluster-staleness=1"}, "3 s");
  ExpectWrong({"--in-memory", "--cluster-staleness=5"}, "--etcd");
  ExpectWrong({"--in-memory", "--cluster-settle=5"}, "--etcd");
  ExpectWrong({"--in-memory", "--etcd=nonsense", "--advertise=a:1"}, "nonsense");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--node=a~b"}, "a~b");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--replicas=2"}, "durable");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--replicas=0"}, "replicas");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--access-file=a",
               "--tls-certificate=c", "--tls-key=k"},
              "--cluster-token-file");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--cluster-ca=c"},
              "--tls-certificate");
  // The cluster's secret goes to its own nodes alone, and over TLS.
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--cluster-token-file=t"},
              "does not travel in plain text (--tls-certificate");
  ExpectWrong({"--in-memory", "--etcd=e:1", "--advertise=a:1", "--cluster-token-file=t",
               "--tls-certificate=c", "--tls-key=k"},
              "--cluster-ca, which is missing");
  const Parsed parsed = Parse({"--in-memory", "--etcd=e:1,f:2", "--advertise=a:1"});
  ASSERT_EQ(parsed.exit_code(), -1) << parsed.err;
  EXPECT_EQ(parsed.config().etcd, (std::vector<std::string>{"e:1", "f:2"}));
  EXPECT_FALSE(parsed.config().node.empty());
}

}  // namespace
}  // namespace sparsed::server
