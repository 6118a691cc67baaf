// Requests that are wrong, late, cancelled or abandoned: each gets its end, the stream goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

constexpr int64_t kRows = 100, kCols = 80, kWidth = 4;

using SpgemmStream = grpc::ClientReaderWriter<v1::SpgemmRequest, v1::ComputeReply>;
v1::SpgemmRequest SquareOf(uint64_t id, const std::string& matrix) {
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(id);
  request.mutable_start()->set_left(matrix);
  request.mutable_start()->set_right(matrix);
  return request;
}

class BadCompute : public testing::Test {
 protected:
  void SetUp() override {
    MakeGood(server_);
    MustUpload(server_, "s", Uniform(kRows, kCols, 5, 1));
    MustUpload(server_, "long", Rmat(15, 16, 7));  // its square takes a while
    // Worker slots keep their workspace: let it grow before the memory is looked at.
    ExpectGood(server_);
    StopLong([](auto& stream, grpc::ClientContext&) {
      v1::SpgemmRequest cancel;
      cancel.mutable_cancel()->set_request_id(1);
      stream.Write(cancel);
    });
    before_ = server_.engine().budget().used();
    stream_ = server_.compute().Spmm(&context_);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      stream_->WritesDone();
      v1::ComputeReply reply;
      while (stream_->Read(&reply)) ADD_FAILURE() << reply.ShortDebugString();
      const grpc::Status status = stream_->Finish();
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
    EXPECT_TRUE(server_.ComesBackTo(before_)) << server_.engine().budget().used() - before_;
    ExpectGood(server_);
  }

  /// Starts a long product, stops it after the first result bytes, and reads to the end.
  void StopLong(const std::function<void(SpgemmStream&, grpc::ClientContext&)>& stop) {
    grpc::ClientContext context;
    auto stream = server_.compute().Spgemm(&context);
    stream->Write(SquareOf(1, "long"));
    v1::ComputeReply reply;
    do {
      ASSERT_TRUE(stream->Read(&reply));
    } while (!reply.has_chunk());
    stop(*stream, context);
    stream->WritesDone();
    while (stream->Read(&reply)) {
    }
    stream->Finish();
    EXPECT_TRUE(Eventually([&] { return server_.engine().executor().in_flight() == 0; }));
  }
  v1::SpmmRequest StartOf(uint64_t id) { return SpmmStartOf(id, "s", kCols, kWidth); }
  void WriteOperand(uint64_t id) { WriteArray<v1::SpmmRequest>(*stream_, id, 0, BytesOf(b_)); }
  Answer ReadEnd(uint64_t id) {
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream_, 1, &answers));
    return answers[id];
  }
  /// The stream still works.
  void ExpectStreamGoesOn() {
    stream_->Write(StartOf(999));
    WriteOperand(999);
    const Answer answer = ReadEnd(999);
    EXPECT_EQ(answer.code(), 0) << answer.message();
  }
  void ExpectEnd(uint64_t id, grpc::StatusCode code, std::string_view word) {
    const Answer answer = ReadEnd(id);
    EXPECT_EQ(answer.code(), code) << answer.message();
    EXPECT_NE(answer.message().find(word), std::string::npos)
        << "'" << answer.message() << "' lacks '" << word << "'";
  }
  /// A start changed by `change` ends like that; chunks that follow it are ignored.
  void ExpectRefused(grpc::StatusCode code, std::string_view word,
                     const std::function<void(v1::SpmmStart&)>& change) {
    v1::SpmmRequest request = StartOf(5);
    change(*request.mutable_start());
    stream_->Write(request);
    WriteOperand(5);
    ExpectEnd(5, code, word);
  }
  void ExpectStreamEnds(grpc::StatusCode code, std::string_view word) {
    v1::ComputeReply reply;
    while (stream_->Read(&reply)) {
    }
    const grpc::Status status = stream_->Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_NE(status.error_message().find(word), std::string::npos) << status.error_message();
    stream_ = nullptr;
  }

  TestServer server_{[](server::Config& config) { config.max_requests_per_stream = 8; }};
  int64_t before_ = 0;
  grpc::ClientContext context_;
  std::unique_ptr<SpmmStream> stream_;
  const std::vector<float> b_ = FloatValues(kCols * kWidth, 2);
};

TEST_F(BadCompute, StartsThatCannotBe) {
  ExpectRefused(grpc::NOT_FOUND, "'nothing'", [](auto& s) { s.set_matrix("nothing"); });
  ExpectRefused(grpc::NOT_FOUND, "'x'", [](auto& s) { s.mutable_b()->set_buffer("x"); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "0 columns",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_cols(0); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "expected 80 x K",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_rows(81); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "expected 100 x K", [](auto& s) { s.set_transpose(true); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "f64",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F64); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "operand B is f16, but matrix 's' is f32",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F16); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "operand B is bf16, but matrix 's' is f32",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_type(v1::ELEMENT_TYPE_BF16); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "type", [](auto& s) {
    s.mutable_b()->mutable_shape()->set_type(v1::ELEMENT_TYPE_UNSPECIFIED);
  });
  ExpectRefused(grpc::INVALID_ARGUMENT, "shape", [](auto& s) { s.mutable_b()->clear_shape(); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "operand b", [](auto& s) { s.clear_b(); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "accumulate", [](auto& s) { s.set_beta(1); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "leading dimension",
                [](auto& s) { s.set_result_leading_dimension(3); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_leading_dimension(INT64_MAX); });
  ExpectRefused(grpc::RESOURCE_EXHAUSTED, "memory",
                [](auto& s) { s.mutable_b()->mutable_shape()->set_cols(int64_t{1} << 24); });
  ExpectRefused(grpc::NOT_FOUND, "'y'", [](auto& s) { s.mutable_result()->set_buffer("y"); });
  ExpectRefused(grpc::INVALID_ARGUMENT, "version is for parts", [](auto& s) {
    s.mutable_result()->set_buffer("y");
    s.mutable_result()->set_version(7);
  });
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, ChunksThatCannotBe) {
  const std::string_view bytes = BytesOf(b_);
  const auto refused = [&](std::string_view word, uint32_t array, uint64_t offset,
                           std::string_view data) {
    stream_->Write(StartOf(5));
    stream_->Write(ChunkOf<v1::SpmmRequest>(5, 0, 0, bytes.substr(0, 100)));
    stream_->Write(ChunkOf<v1::SpmmRequest>(5, array, offset, data));
    stream_->Write(ChunkOf<v1::SpmmRequest>(5, 0, 100, bytes.substr(100)));  // too late: ignored
    ExpectEnd(5, grpc::INVALID_ARGUMENT, word);
  };
  refused("", 0, 99, "ab");                // overlap
  refused("", 0, bytes.size() - 1, "ab");  // overrun
  refused("", 0, UINT64_MAX, "ab");        // overflow
  refused("array 1", 1, 0, "ab");          // unknown
  refused("at most 2097152", 0, 100, std::string((2 << 20) + 1, 'x'));
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, MatricesOf16Bits) {
  const Pattern square = Uniform(50, 50, 5, 1);
  v1::UploadHeader header = HeaderOf("half", square);
  header.set_type(v1::ELEMENT_TYPE_F16);
  const std::string zeros(square.nnz() * 2, '\0');
  ASSERT_TRUE(UploadBytes(server_.catalog(), header, square, zeros, 1 << 20).ok());
  before_ = server_.engine().budget().used();
  const auto with_half = [](auto& s) {
    s.set_matrix("half");
    s.mutable_b()->mutable_shape()->set_rows(50);
  };
  ExpectRefused(grpc::INVALID_ARGUMENT, "operand B is f32, but matrix 'half' is f16", with_half);
  // A byte beyond the last element.
  v1::SpmmRequest request = SpmmStartOf(5, "half", 50, 3);
  request.mutable_start()->mutable_b()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F16);
  stream_->Write(request);
  stream_->Write(ChunkOf<v1::SpmmRequest>(5, 0, 1, std::string(50 * 3 * 2, 'x')));
  ExpectEnd(5, grpc::INVALID_ARGUMENT, "");

  grpc::ClientContext context;
  auto stream = server_.compute().Spgemm(&context);
  stream->Write(SquareOf(1, "half"));
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answers[1].code(), grpc::UNIMPLEMENTED);
  EXPECT_NE(answers[1].message().find("'half' is f16"), std::string::npos) << answers[1].message();
}

TEST_F(BadCompute, AnUnknownRequestsChunkEndsTheStream) {
  stream_->Write(StartOf(1));
  stream_->Write(ChunkOf<v1::SpmmRequest>(77, 0, 0, "abcd"));
  ExpectStreamEnds(grpc::INVALID_ARGUMENT, "request 77");
}

TEST_F(BadCompute, AMessageThatIsNothingEndsTheStream) {
  stream_->Write(StartOf(1));
  stream_->Write(v1::SpmmRequest());
  ExpectStreamEnds(grpc::INVALID_ARGUMENT, "neither");
}

TEST_F(BadCompute, GarbageEndsTheStream) {
  for (const char* method : {"Spmm", "Sddmm", "Spgemm"}) {
    RawStream stream(server_.channel(), std::string("/sparsed.v1.Compute/") + method);
    stream.Write("\xff\xff\xff\xff garbage");
    std::string reply;
    EXPECT_FALSE(stream.Read(&reply));
    EXPECT_EQ(stream.Finish().error_code(), grpc::INVALID_ARGUMENT);
  }
}

TEST_F(BadCompute, AnIdUsedTwiceEndsBoth) {
  stream_->Write(StartOf(5));
  stream_->Write(StartOf(6));
  stream_->Write(StartOf(5));
  WriteOperand(5);
  ExpectEnd(5, grpc::INVALID_ARGUMENT, "request id 5");
  ExpectEnd(5, grpc::INVALID_ARGUMENT, "request id 5");
  WriteOperand(6);
  EXPECT_EQ(ReadEnd(6).code(), 0);
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, OneRequestTooManyIsRefusedAlone) {
  for (uint64_t id = 0; id < 9; ++id) stream_->Write(StartOf(id));
  WriteOperand(8);
  ExpectEnd(8, grpc::RESOURCE_EXHAUSTED, "8 requests");
  for (uint64_t id = 0; id < 8; ++id) WriteOperand(id);
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream_, 8, &answers));
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.code(), 0) << answer.message();
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, RefusalsThatNobodyReadsDoNotPileUp) {
  // Several times what fits the windows of both directions, of which the client's does not grow.
  constexpr int kRequests = 60'000;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Compute::NewStub(
      grpc::CreateCustomChannel(server_.address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto stream = stub->Spmm(&context);
  const std::string nothing(200, 'n');
  std::atomic<int> written = 0;
  std::thread writer([&] {
    for (; written < kRequests; ++written) {
      v1::SpmmRequest request = StartOf(static_cast<uint64_t>(written));
      request.mutable_start()->set_matrix(nothing);
      if (!stream->Write(request)) return;
    }
  });
  // The server takes no more until it is rid of what it has to say.
  int before = -1;
  for (auto since = std::chrono::steady_clock::now();
       written < kRequests && std::chrono::steady_clock::now() - since < std::chrono::seconds(1);) {
    if (written != before) since = std::chrono::steady_clock::now();
    before = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(written, kRequests);
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*stream, kRequests, &answers));
  writer.join();
  EXPECT_EQ(answers.size(), static_cast<size_t>(kRequests));
  for (const auto& [id, answer] : answers) ASSERT_EQ(answer.code(), grpc::NOT_FOUND) << id;
  stream->WritesDone();
  v1::ComputeReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(BadCompute, APriorityHasBounds) {
  v1::SpmmRequest request = StartOf(5);
  request.mutable_start()->set_priority(8);
  stream_->Write(request);
  ExpectEnd(5, grpc::INVALID_ARGUMENT, "priority is 8, expected 0 to 7");
  request = StartOf(6);
  request.mutable_start()->set_priority(7);
  stream_->Write(request);
  WriteOperand(6);
  ExpectEnd(6, grpc::OK, "");
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, ADeadlineEndsARequestWhoseOperandNeverComes) {
  v1::SpmmRequest request = StartOf(5);
  request.mutable_start()->set_timeout_ns(20'000'000);
  stream_->Write(request);
  ExpectEnd(5, grpc::DEADLINE_EXCEEDED, "");
  WriteOperand(5);  // too late: ignored
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, ACancelEndsARequestAndAnUnknownIdIsIgnored) {
  stream_->Write(StartOf(5));
  v1::SpmmRequest cancel;
  cancel.mutable_cancel()->set_request_id(12345);
  stream_->Write(cancel);
  cancel.mutable_cancel()->set_request_id(5);
  stream_->Write(cancel);
  ExpectEnd(5, grpc::CANCELLED, "");
  WriteOperand(5);  // was on its way
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, ClosingEndsRequestsThatStillWaitForBytes) {
  stream_->Write(StartOf(5));
  stream_->Write(StartOf(6));
  WriteOperand(6);
  stream_->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream_, 2, &answers));
  EXPECT_EQ(answers[6].code(), 0) << answers[6].message();
  EXPECT_EQ(answers[5].code(), grpc::INVALID_ARGUMENT);
  EXPECT_NE(answers[5].message().find("closed"), std::string::npos) << answers[5].message();
  EXPECT_TRUE(stream_->Finish().ok());
  stream_ = nullptr;
}

TEST_F(BadCompute, ClientsThatVanishLeaveNothing) {
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext context;
    auto stream = server_.compute().Spmm(&context);
    for (uint64_t id = 0; id < 4; ++id) stream->Write(StartOf(id));
    for (uint64_t id = 0; id < static_cast<uint64_t>(i % 4); ++id) {
      WriteArray<v1::SpmmRequest>(*stream, id, 0, BytesOf(b_));
    }
    stream->Write(StartOf(3));  // a second one of that id
    context.TryCancel();
    v1::ComputeReply reply;
    while (stream->Read(&reply)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(server_.ComesBackTo(before_));
  ExpectStreamGoesOn();
}

TEST_F(BadCompute, ALongProductIsCancelledInTheMiddle) {
  grpc::ClientContext context;
  auto stream = server_.compute().Spgemm(&context);
  stream->Write(SquareOf(1, "long"));
  std::map<uint64_t, Answer> answers;
  v1::ComputeReply reply;
  do {
    ASSERT_TRUE(stream->Read(&reply));
    answers[1].Add(reply);
  } while (!reply.has_chunk());
  v1::SpgemmRequest cancel;
  cancel.mutable_cancel()->set_request_id(1);
  stream->Write(cancel);
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::CANCELLED) << answers[1].message();
  // The stream goes on; a chunk of operands has no place in it.
  stream->Write(SquareOf(2, "good"));
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[2].code(), grpc::INVALID_ARGUMENT) << answers[2].message();  // 60 x 50
  stream->Write(ChunkOf<v1::SpgemmRequest>(9, 0, 0, "abcd"));
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(BadCompute, AClientVanishesInTheMiddleOfALongProduct) {
  StopLong([](SpgemmStream&, grpc::ClientContext& context) { context.TryCancel(); });
  EXPECT_TRUE(server_.ComesBackTo(before_));
}

TEST_F(BadCompute, ALongProductsDeadlinePasses) {
  grpc::ClientContext context;
  auto stream = server_.compute().Spgemm(&context);
  v1::SpgemmRequest request = SquareOf(1, "long");
  request.mutable_start()->set_timeout_ns(15'000'000);
  stream->Write(request);
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::DEADLINE_EXCEEDED) << answers[1].message();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(BadCompute, KeepingUnderATakenNameIsRefused) {
  grpc::ClientContext context;
  auto stream = server_.compute().Spgemm(&context);
  v1::SpgemmRequest request = SquareOf(1, "long");
  request.mutable_start()->set_keep_as("s");
  stream->Write(request);
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::ALREADY_EXISTS) << answers[1].message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(BadCompute, AStepOfAChainIsOfNoKind) {
  grpc::ClientContext context;
  auto stream = server_.compute().Chain(&context);
  const auto refused = [&](uint64_t id, const std::function<void(v1::ChainStep&)>& make) {
    v1::ChainRequest request;
    v1::ChainStart& start = *request.mutable_start();
    start.set_request_id(id);
    start.add_operands()->set_stream_array(0);
    v1::DenseShape& shape = *start.mutable_operands(0)->mutable_shape();
    shape.set_rows(kCols);
    shape.set_cols(kWidth);
    shape.set_type(v1::ELEMENT_TYPE_F32);
    make(*start.add_steps());
    start.add_results()->set_value(1);
    stream->Write(request);
    std::map<uint64_t, Answer> answers;
    EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    EXPECT_EQ(answers[id].code(), grpc::INVALID_ARGUMENT);
    return answers[id].message();
  };
  const auto reduction = [](int number, bool arguments) {
    return [=](v1::ChainStep& step) {
      step.mutable_reduce()->set_matrix("s");
      step.mutable_reduce()->set_reduction(static_cast<v1::Reduction>(number));
      step.mutable_reduce()->set_arguments(arguments);
    };
  };
  const auto expect = [](const std::string& message, const std::string& begin) {
    EXPECT_EQ(message.substr(0, begin.size()), begin);
  };
  expect(refused(1, [](v1::ChainStep&) {}), "step 0: it has no operation");
  expect(refused(2, reduction(7, false)),
         "step 0: reduction 7 is unknown; there are 1 (mean), 2 (max) and 3 (min)");
  expect(refused(3, reduction(0, false)), "step 0: reduction 0 is unknown");
  expect(refused(4, reduction(v1::REDUCTION_MEAN, true)), "step 0: a mean has no arguments");
  const auto attention = [](int kind) {
    return [=](v1::ChainStep& step) {
      step.mutable_attention()->set_matrix("s");
      step.mutable_attention()->mutable_scores()->set_kind(static_cast<v1::ScoreKind>(kind));
    };
  };
  const auto gradient = [](v1::ChainStep& step) {
    step.mutable_attention_gradient()->set_matrix("s");
    step.mutable_attention_gradient()->set_of_left(true);
  };
  expect(refused(5, attention(0)),
         "step 0: score kind 0 is unknown; there are 1 (dot), 2 (sum) and 3 (GATv2)");
  expect(refused(6, attention(4)), "step 0: score kind 4 is unknown");
  expect(refused(7, attention(1)), "step 0: its left, value 0, is ");
  expect(refused(8, gradient), "step 0: score kind 0 is unknown");
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace sparsed::test
