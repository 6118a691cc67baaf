// Which calls are tried again when the server goes away, and which are not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/src/exchange.h"
#include "sparsed/client.h"
#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/compute.pb.h"
#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/scripted_server.h"
#include "tests/unit/client/server_process.h"

namespace sparsed::test {
namespace {

using std::chrono::milliseconds;

/// Enough for any restart.
const ClientOptions kPatient{.max_attempts = 200, .initial_backoff = milliseconds(20)};
const CallOptions kInAMinute{.timeout = std::chrono::minutes(1)};

/// A durable server that comes back on the same socket.
class RestartedServer {
 public:
  RestartedServer() {
    std::string folder = testing::TempDir() + "sparsed_restart_XXXXXX";
    folder_ = mkdtemp(folder.data());
    Start();
  }
  ~RestartedServer() {
    process_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    process_.emplace(
        std::vector<std::string>{"--data-dir=" + folder_ + "/data", "--shutdown-grace=1"},
        "unix:" + folder_ + "/socket");
  }
  void End(int signal) {
    process_->End(signal);
    process_.reset();
  }
  /// By kill and by request, with calls under way.
  void RestartOften() {
    for (const int signal : {SIGKILL, SIGTERM, SIGKILL, SIGTERM}) {
      std::this_thread::sleep_for(milliseconds(200));
      End(signal);
      std::this_thread::sleep_for(milliseconds(50));
      Start();
    }
    std::this_thread::sleep_for(milliseconds(200));
  }
  const ServerProcess& process() const { return *process_; }

 private:
  std::string folder_;
  std::optional<ServerProcess> process_;
};

TEST(Retry, CallsBetweenTwoServers) {
  RestartedServer server;
  const Client impatient =
      Connect(server.process(), {.max_attempts = 2, .initial_backoff = milliseconds(1)});
  const Client patient = Connect(server.process(), kPatient);
  const CsrMatrix s = RandomMatrix(20, 20, 28);
  Upload(patient, "m", s);
  const std::vector<float> b = RandomDense(20, 29);
  std::vector<float> c(20, kPoison);
  const auto spmm = [&](const Client& client) {
    return client.MatrixNamed("m").SpmmAsync(DenseView(b.data(), 20, 1),
                                             MutableDenseView(c.data(), 20, 1), {}, kInAMinute);
  };
  server.End(SIGKILL);
  EXPECT_EQ(spmm(impatient).Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(patient.MatrixNamed("m").Info({.timeout = milliseconds(100)}).status().code(),
            absl::StatusCode::kUnavailable)
      << "not after the deadline";
  EXPECT_THAT(std::string(spmm(impatient).Wait().status().message()),
              testing::StartsWith("no sparsed at unix:"));

  // All of them wait for the server: none has reached one.
  auto product = spmm(patient);
  auto info = patient.MatrixNamed("m").InfoAsync(kInAMinute);
  auto upload = patient.UploadAsync("n", s.View(), {}, kInAMinute);
  auto values = patient.MatrixNamed("m").UpdateValuesAsync(std::span(F32(s)), {}, kInAMinute);
  auto put = patient.PutDenseAsync("b", DenseView(b.data(), 20, 1), {}, kInAMinute);
  EXPECT_FALSE(product.WaitFor(milliseconds(100)));
  server.Start();
  const auto result = product.Wait();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(c, Multiply(s, false, b, 1));
  EXPECT_TRUE(info.Wait().ok());
  EXPECT_TRUE(upload.Wait().ok());
  EXPECT_TRUE(values.Wait().ok());
  EXPECT_TRUE(put.Wait().ok());
}

TEST(Retry, WhoeverAsksIsToldOfEachPauseAndWhy) {
  RestartedServer server;
  std::atomic<int> pauses = 0;
  std::atomic<bool> as_expected = true;
  const Client client = Connect(
      server.process(), {.max_attempts = 3,
                         .initial_backoff = milliseconds(1),
                         .on_retry = [&](const absl::Status& why, std::chrono::nanoseconds pause) {
                           ++pauses;
                           if (!absl::IsUnavailable(why) || pause < milliseconds(1))
                             as_expected = false;
                         }});
  pauses = 0;  // those before the server was there
  ASSERT_TRUE(client.ListMatrices().ok());
  EXPECT_EQ(pauses, 0);
  server.End(SIGKILL);
  EXPECT_FALSE(client.ListMatrices().ok());
  EXPECT_EQ(pauses, 2) << "between three attempts";
  EXPECT_TRUE(as_expected);
}

TEST(Retry, ACallThatWasCancelledMayStillTellWhenItsClientIsGone) {
  struct Told {
    std::atomic<bool> armed = false;
    std::atomic<bool> begun = false;
    std::atomic<bool> go_on = false;
    std::atomic<bool> ended = false;
  };
  const auto within_a_minute = [](const std::atomic<bool>& what) {
    for (int i = 0; i < 6000 && !what; ++i) std::this_thread::sleep_for(milliseconds(10));
    return what.load();
  };
  RestartedServer server;
  const auto told = std::make_shared<Told>();
  std::optional<Client> client =
      Connect(server.process(), {.max_attempts = 200,
                                 .initial_backoff = milliseconds(1),
                                 .on_retry = [told, within_a_minute](const absl::Status&, auto) {
                                   if (!told->armed || told->begun.exchange(true)) return;
                                   (void)within_a_minute(told->go_on);
                                   told->ended = true;
                                 }});
  server.End(SIGKILL);
  told->armed = true;
  {
    auto call = client->MatrixNamed("m").InfoAsync(kInAMinute);
    ASSERT_TRUE(within_a_minute(told->begun));
    call.Cancel();
    EXPECT_EQ(call.Wait().status().code(), absl::StatusCode::kCancelled);
  }
  client.reset();
  EXPECT_FALSE(told->ended) << "nobody waits for it";
  told->go_on = true;
  EXPECT_TRUE(within_a_minute(told->ended));
}

TEST(Retry, AServerThatBeginsListensBeforeItAnswers) {
  ServerProcess server;
  Connect(server);
  server.Pause();
  const absl::Status silent =
      Client::Connect(server.address(), {.connect_timeout = milliseconds(200)}).status();
  EXPECT_TRUE(absl::IsUnavailable(silent)) << silent;
  EXPECT_THAT(std::string(silent.message()), testing::HasSubstr("no sparsed answered at"));
  // Longer than gRPC tries at once.
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::seconds(8));
    server.Resume();
  });
  const absl::Status slow =
      Client::Connect(server.address(), {.connect_timeout = std::chrono::minutes(2)}).status();
  later.join();
  EXPECT_TRUE(slow.ok()) << slow;
}

TEST(Retry, ReadsAndProductsOutliveTheServer) {
  RestartedServer server;
  const Client client = Connect(server.process(), kPatient);
  const CsrMatrix s = RandomMatrix(300, 200, 1);
  const Matrix matrix = Upload(client, "m", s);
  const std::vector<float> held = RandomDense(200 * 8, 2);
  ASSERT_TRUE(client.PutDense("held", DenseView(held.data(), 200, 8), {.durable = true}).ok());

  std::atomic<bool> over = false;
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  const auto repeat = [&](std::function<void()> call) {
    threads.emplace_back([&over, &calls, call = std::move(call)] {
      for (; !over; ++calls) call();
    });
  };
  const std::vector<float> b = RandomDense(200 * 64, 3);
  const std::vector<float> product = Multiply(s, false, b, 64);
  repeat([&] {
    std::vector<float> c(300 * 64, kPoison);
    const auto result = matrix.Spmm(DenseView(b.data(), 200, 64),
                                    MutableDenseView(c.data(), 300, 64), {}, kInAMinute);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(c, product);
  });
  repeat([&] {
    std::vector<float> values(static_cast<size_t>(s.nnz()), kPoison);
    const auto result =
        matrix.Sddmm(DenseView(product.data(), 300, 64), DenseView(b.data(), 200, 64),
                     MutableDenseView(std::span(values)), {}, kInAMinute);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(values, testing::Each(testing::Ne(kPoison)));
  });
  repeat([&] {
    const auto got = matrix.Download(kInAMinute);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->values, s.values);
  });
  repeat([&] {
    std::vector<float> got(200 * 8, kPoison);
    const auto info =
        client.DenseNamed("held").Read(MutableDenseView(got.data(), 200, 8), kInAMinute);
    EXPECT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(got, held);
  });
  repeat([&] {
    const auto info = matrix.Info(kInAMinute);
    EXPECT_TRUE(info.ok()) << info.status();
    EXPECT_TRUE(client.ListMatrices("", kInAMinute).ok());
  });
  server.RestartOften();
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(calls, 0);
}

TEST(Retry, NothingIsDoneTwice) {
  RestartedServer server;
  const Client client = Connect(server.process(), kPatient);
  const CsrMatrix s = RandomMatrix(100, 100, 4);
  const Matrix matrix = Upload(client, "m", s);

  std::atomic<bool> over = false;
  uint64_t updates = 0;
  uint64_t acknowledged = 0;
  std::thread updater([&] {
    while (!over) {
      const auto version = matrix.UpdateValues(std::span(F32(s)), {.durable = true}, kInAMinute);
      EXPECT_TRUE(version.ok() || absl::IsUnavailable(version.status())) << version.status();
      ++updates;
      acknowledged += version.ok() ? 1 : 0;
    }
  });
  std::thread uploader([&] {
    for (int i = 0; !over; ++i) {
      const auto stored = client.Upload(fmt::format("n{}", i), s.View(), {}, kInAMinute);
      EXPECT_TRUE(stored.ok() || absl::IsUnavailable(stored.status())) << stored.status();
    }
  });
  server.RestartOften();
  over = true;
  updater.join();
  uploader.join();
  const auto info = matrix.Info(kInAMinute);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->version, 1 + acknowledged);
  EXPECT_LE(info->version, 1 + updates);
  EXPECT_GT(acknowledged, 0u);
}

/// A call, and how often it is made when the server answers UNAVAILABLE.
struct Count {
  std::string method;
  std::function<absl::Status(const Client&)> call;
  int at_once;    ///< before it read everything
  int after_all;  ///< when it had everything
};

constexpr int kAttempts = 3;

class RetryCount : public testing::TestWithParam<bool> {};

TEST_P(RetryCount, OfEveryCall) {
  const bool after_all = GetParam();
  // More than the transport takes without being read.
  static const std::vector<float> large(4 << 20, 1);
  static std::vector<float> c(large.size());
  const auto view = [] { return DenseView(large.data(), 1 << 20, 4); };
  const auto into = [] { return MutableDenseView(c.data(), 1 << 20, 4); };
  static const std::vector<int32_t> columns(large.size(), 0);
  static const std::vector<int64_t> offsets = {0, static_cast<int64_t>(columns.size())};
  const CsrView row{.rows = 1,
                    .cols = 1,
                    .row_offsets = std::span(offsets),
                    .column_indices = columns,
                    .values = std::span(large)};
  const auto m = [](const Client& client) { return client.MatrixNamed("m"); };
  const std::vector<Count> counts = {
      {"Catalog/Get", [&](const Client& x) { return m(x).Info().status(); }, 3, 3},
      {"Catalog/List", [&](const Client& x) { return x.ListMatrices().status(); }, 3, 3},
      {"Catalog/Download", [&](const Client& x) { return m(x).Download().status(); }, 3, 3},
      {"Catalog/Watch", [&](const Client& x) { return m(x).WaitReady(); }, 3, 3},
      {"Catalog/ListMeasurements", [&](const Client& x) { return x.ListMeasurements().status(); },
       3, 3},
      {"Catalog/Delete", [&](const Client& x) { return m(x).Delete(); }, 1, 1},
      {"Catalog/Upload", [&](const Client& x) { return x.Upload("m", row).status(); }, 3, 1},
      {"Catalog/UpdateValues",
       [&](const Client& x) { return m(x).UpdateValues(std::span(large)).status(); }, 3, 1},
      {"Buffers/Put", [&](const Client& x) { return x.PutDense("b", view()).status(); }, 3, 1},
      {"Buffers/Get", [&](const Client& x) { return x.DenseNamed("b").Read(into()).status(); }, 3,
       3},
      {"Buffers/List", [&](const Client& x) { return x.ListDense().status(); }, 3, 3},
      {"Buffers/Delete", [&](const Client& x) { return x.DenseNamed("b").Delete(); }, 1, 1},
      {"Admin/GetStats", [&](const Client& x) { return x.GetStats().status(); }, 3, 3},
      {"Compute/Spgemm", [&](const Client& x) { return m(x).SpgemmCollect(m(x)).status(); }, 3, 3},
      {"Compute/Spgemm", [&](const Client& x) { return m(x).SpgemmKeep(m(x), "c").status(); }, 1,
       1},
  };
  // A product's stream is not closed after one request.
  const std::vector<Count> products = {
      {"Compute/Spmm", [&](const Client& x) { return m(x).Spmm(view(), into()).status(); }, 3, 0},
      {"Compute/Spmm",
       [&](const Client& x) {
         return m(x).Spmm(view(), into(), {.beta = 1, .accumulate = {}}).status();
       },
       1, 0},
      {"Compute/Spmm",
       [&](const Client& x) { return m(x).Spmm(view(), x.DenseNamed("c")).status(); }, 3, 0},
      {"Compute/Spmm",
       [&](const Client& x) {
         return m(x).Spmm(view(), x.DenseNamed("c"), {.beta = 1, .accumulate = {}}).status();
       },
       1, 0},
      {"Compute/Spmm",
       [&](const Client& x) { return m(x).Spmm(x.DenseNamed("c"), x.DenseNamed("c")).status(); }, 1,
       0},
      {"Compute/Sddmm",
       [&](const Client& x) { return m(x).Sddmm(view(), view(), into()).status(); }, 3, 0},
      {"Compute/Spmm",
       [&](const Client& x) {
         return m(x).Spmm(view(), into(), {.values = x.DenseNamed("w")}).status();
       },
       3, 0},
      {"Compute/Spmm",
       [&](const Client& x) {
         return m(x).Spmm(view(), x.DenseNamed("c"), {.values = view()}).status();
       },
       3, 0},
      // Of what the first attempt may have overwritten.
      {"Compute/Sddmm",
       [&](const Client& x) {
         return m(x)
             .Sddmm(view(), view(), x.DenseNamed("c"), {.values = x.DenseNamed("c")})
             .status();
       },
       1, 0},
      {"Compute/Sddmm",
       [&](const Client& x) {
         return m(x)
             .Sddmm(view(), view(), into(), {.values = DenseView(c.data(), 1 << 20, 4)})
             .status();
       },
       1, 0},
  };
  std::vector<Count> all = counts;
  if (!after_all) all.insert(all.end(), products.begin(), products.end());
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(testing::Message() << i << " " << all[i].method);
    const std::string method = "/sparsed.v1." + all[i].method;
    ScriptedServer server({{method,
                            {.end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now"),
                             .after_all = after_all}}});
    const auto client = Client::Connect(
        server.address(), {.max_attempts = kAttempts, .initial_backoff = milliseconds(1)});
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_EQ(all[i].call(*client), absl::UnavailableError("not now"));
    EXPECT_EQ(server.calls(method), after_all ? all[i].after_all : all[i].at_once);
  }
}

INSTANTIATE_TEST_SUITE_P(AtOnceAndAfterAll, RetryCount, testing::Bool());

TEST(Retry, WhatTheServerCancelsIsUnavailable) {
  // As gRPC ends the calls that a server has not accepted when it shuts down.
  const std::string get = "/sparsed.v1.Catalog/Get";
  const std::string update = "/sparsed.v1.Catalog/UpdateValues";
  ScriptedServer server({{get, {.end = grpc::Status::CANCELLED}},
                         {update, {.end = grpc::Status::CANCELLED, .after_all = true}}});
  const auto client = Client::Connect(
      server.address(), {.max_attempts = kAttempts, .initial_backoff = milliseconds(1)});
  ASSERT_TRUE(client.ok()) << client.status();
  const Matrix m = client->MatrixNamed("m");
  const absl::Status status = m.Info().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("shuts down"));
  EXPECT_EQ(server.calls(get), kAttempts);
  const std::vector<float> values(8, 1);
  EXPECT_TRUE(absl::IsUnavailable(m.UpdateValues(std::span(values)).status()));
  EXPECT_EQ(server.calls(update), 1) << "done twice";
}

/// RESOURCE_EXHAUSTED, as a server says it; with a delay in milliseconds, that waiting helps.
v1::Status Full(std::optional<int> delay) {
  v1::Status status;
  status.set_code(grpc::StatusCode::RESOURCE_EXHAUSTED);
  status.set_message("full");
  if (!delay) return status;
  v1::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(*delay / 1000);
  retry.mutable_retry_delay()->set_nanos(*delay % 1000 * 1'000'000);
  google::protobuf::Any& detail = *status.add_details();
  detail.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  detail.set_value(retry.SerializeAsString());
  return status;
}

TEST(Retry, AFullServerIsAskedAgainWhereItSaysThatWaitingHelps) {
  struct Case {
    std::optional<int> delay;
    int calls;
  };
  for (const auto& [delay, calls] :
       {Case{std::nullopt, 1}, Case{1, kAttempts}, Case{3'600'000, 1}}) {
    SCOPED_TRACE(delay.value_or(-1));
    const v1::Status full = Full(delay);
    ScriptedServer server({{"/sparsed.v1.Catalog/Get",
                            {.end = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full",
                                                 full.SerializeAsString())}}});
    const auto client = Client::Connect(
        server.address(), {.max_attempts = kAttempts, .initial_backoff = milliseconds(1)});
    ASSERT_TRUE(client.ok()) << client.status();
    const absl::Status status = client->MatrixNamed("m").Info().status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(status.message(), "full");
    EXPECT_EQ(server.calls("/sparsed.v1.Catalog/Get"), calls);
    EXPECT_EQ(RetryDelay(status), delay ? std::optional(milliseconds(*delay)) : std::nullopt);
  }
}

TEST(Retry, WhatAQuotaRefusedWasNotBegun) {
  const std::string method = "/sparsed.v1.Catalog/Delete";
  const v1::Status full = Full(1);
  const v1::Status for_good = Full(std::nullopt);
  struct Case {
    grpc::Status end;
    int calls;
  };
  for (const auto& [end, calls] :
       {Case{grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", full.SerializeAsString()),
             kAttempts},
        Case{grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full",
                          for_good.SerializeAsString()),
             1},
        // Nobody knows whether it was done, whatever it says of waiting.
        Case{grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost", full.SerializeAsString()), 1}}) {
    SCOPED_TRACE(end.error_message());
    ScriptedServer server({{method, {.end = end}}});
    const auto client = Client::Connect(
        server.address(), {.max_attempts = kAttempts, .initial_backoff = milliseconds(1)});
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_FALSE(client->MatrixNamed("m").Delete().ok());
    EXPECT_EQ(server.calls(method), calls);
    // Nor was what had been sent whole.
    const std::string update = "/sparsed.v1.Catalog/UpdateValues";
    ScriptedServer reads_all({{update, {.end = end, .after_all = true}}});
    const auto sender = Client::Connect(
        reads_all.address(), {.max_attempts = kAttempts, .initial_backoff = milliseconds(1)});
    ASSERT_TRUE(sender.ok()) << sender.status();
    const std::vector<float> values(8, 1);
    EXPECT_FALSE(sender->MatrixNamed("m").UpdateValues(std::span(values)).ok());
    EXPECT_EQ(reads_all.calls(update), calls);
  }
}

TEST(Pages, OfAListFollowEachOtherByTenantAndName) {
  const std::vector<std::string> ascending = {"", "graph", "web", "a~x", "a~y", "a-b~a", "b~a"};
  for (size_t i = 0; i < ascending.size(); ++i) {
    for (size_t j = 0; j < ascending.size(); ++j) {
      EXPECT_EQ(client::ComesBefore(ascending[i], ascending[j]), i < j)
          << ascending[i] << " and " << ascending[j];
    }
  }
}

TEST(Pages, AListInCirclesComesToAnEnd) {
  v1::ListBuffersReply reply;
  reply.add_buffers()->set_name("a~x");
  reply.set_next_page_token("a~x");
  ScriptedServer server({{"/sparsed.v1.Buffers/List", {.replies = {wire::Encode(reply)}}}});
  const auto client = Client::Connect(server.address(), {.max_attempts = 1});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(client->ListAllDense().status().message(), "the server's list goes in circles");
}

TEST(Retry, TheEndOfOneRequestOnAStreamSaysSoToo) {
  v1::ComputeReply reply;
  reply.mutable_end()->set_request_id(1);
  *reply.mutable_end()->mutable_status() = Full(30);
  ScriptedServer server({{"/sparsed.v1.Compute/Spgemm", {.replies = {wire::Encode(reply)}}}});
  const auto client = Client::Connect(server.address(), {.max_attempts = 1});
  ASSERT_TRUE(client.ok()) << client.status();
  const Matrix m = client->MatrixNamed("m");
  const absl::Status status = m.SpgemmCollect(m).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(RetryDelay(status), milliseconds(30));
}

TEST(Priority, TheHigherOfTheClientsAndTheCallsIsSent) {
  ScriptedServer server({});
  const auto client = Client::Connect(server.address(), {.max_attempts = 1, .priority = 3});
  ASSERT_TRUE(client.ok()) << client.status();
  const Matrix m = client->MatrixNamed("m");
  const std::vector<float> b(4);
  std::vector<float> c(4);
  for (const uint32_t priority : {0u, 5u, 1u}) {
    const CallOptions call{.priority = priority};
    EXPECT_FALSE(m.SpgemmCollect(m, {}, call).ok());
    EXPECT_FALSE(
        m.Spmm(DenseView(b.data(), 4, 1), MutableDenseView(c.data(), 4, 1), {}, call).ok());
  }
  const auto sent = [&]<typename Request>(const char* method, Request request) {
    std::vector<uint32_t> priorities;
    for (const grpc::ByteBuffer& message : server.first_messages(method)) {
      EXPECT_TRUE(wire::Parse(message, request).ok());
      priorities.push_back(request.start().priority());
    }
    return priorities;
  };
  EXPECT_THAT(sent("/sparsed.v1.Compute/Spgemm", v1::SpgemmRequest()),
              testing::ElementsAre(3, 5, 3));
  EXPECT_THAT(sent("/sparsed.v1.Compute/Spmm", v1::SpmmRequest()), testing::ElementsAre(3, 5, 3));
}

TEST(Retry, DetailsThatAreNoneAreIgnored) {
  for (const char* details : {"", "\xff\xff", "not a status"}) {
    ScriptedServer server(
        {{"/sparsed.v1.Catalog/Get",
          {.end = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", details)}}});
    const auto client = Client::Connect(server.address());
    ASSERT_TRUE(client.ok()) << client.status();
    const absl::Status status = client->MatrixNamed("m").Info().status();
    EXPECT_EQ(status.message(), "full");
    EXPECT_EQ(RetryDelay(status), std::nullopt);
  }
}

}  // namespace
}  // namespace sparsed::test
