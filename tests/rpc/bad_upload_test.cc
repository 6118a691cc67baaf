// Uploads that are wrong in every way we could think of: a status, a sentence, nothing left behind.
#include <gtest/gtest.h>

#include <functional>

#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

class BadUpload : public testing::Test {
 protected:
  void SetUp() override {
    MakeGood(server_);
    ExpectGood(server_);  // worker slots keep their workspace
    before_ = server_.engine().budget().used();
  }
  void TearDown() override {
    EXPECT_TRUE(server_.ComesBackTo(before_)) << server_.engine().budget().used() - before_;
    ExpectGood(server_);
    EXPECT_TRUE(server_.ComesBackTo(before_));
  }

  using Stream = grpc::ClientReaderWriter<v1::UploadRequest, v1::UploadReply>;
  /// `write` sends whatever it likes; the status must be `code` and name `word`.
  void Expect(grpc::StatusCode code, std::string_view word,
              const std::function<void(Stream&)>& write) {
    grpc::ClientContext context;
    auto stream = server_.catalog().Upload(&context);
    write(*stream);
    stream->WritesDone();
    v1::UploadReply reply;
    while (stream->Read(&reply)) EXPECT_FALSE(reply.has_matrix());
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_NE(status.error_message().find(word), std::string::npos)
        << "'" << status.error_message() << "' lacks '" << word << "'";
  }
  void ExpectHeaderRefused(const v1::UploadHeader& header, std::string_view word,
                           grpc::StatusCode code = grpc::INVALID_ARGUMENT) {
    Expect(code, word, [&](Stream& stream) { WriteHeader(stream, header); });
  }
  static void WriteHeader(Stream& stream, const v1::UploadHeader& header) {
    v1::UploadRequest request;
    *request.mutable_header() = header;
    stream.Write(request);
  }
  void WriteAll(Stream& stream, const Pattern& pattern) {
    WriteHeader(stream, HeaderOf("bad", pattern));
    WriteArray<v1::UploadRequest>(stream, 0, 0, BytesOf(pattern.row_offsets));
    WriteArray<v1::UploadRequest>(stream, 0, 1, BytesOf(pattern.column_indices));
    WriteArray<v1::UploadRequest>(stream, 0, 2, BytesOf(FloatValues(pattern.nnz(), 1)));
  }

  TestServer server_;
  int64_t before_ = 0;
  const Pattern pattern_ = Uniform(100, 80, 5, 1);
};

TEST_F(BadUpload, Headers) {
  const auto with = [&](const std::function<void(v1::UploadHeader&)>& change) {
    v1::UploadHeader header = HeaderOf("bad", pattern_);
    change(header);
    return header;
  };
  ExpectHeaderRefused(with([](auto& h) { h.set_name(""); }), "name");
  ExpectHeaderRefused(with([](auto& h) { h.set_name("a b"); }), "name");
  ExpectHeaderRefused(with([](auto& h) { h.set_name(std::string(100000, 'x')); }), "name");
  ExpectHeaderRefused(with([](auto& h) { h.set_rows(-1); }), "rows");
  ExpectHeaderRefused(with([](auto& h) { h.set_rows(int64_t{1} << 31); }), "rows");
  ExpectHeaderRefused(with([](auto& h) { h.set_cols(INT64_MAX); }), "col");
  ExpectHeaderRefused(with([](auto& h) { h.set_nnz(-1); }), "nnz");
  ExpectHeaderRefused(with([](auto& h) { h.set_nnz(8001); }), "nnz");
  ExpectHeaderRefused(with([](auto& h) { h.set_type(v1::ELEMENT_TYPE_UNSPECIFIED); }), "type");
  ExpectHeaderRefused(with([](auto& h) { h.set_type(v1::ELEMENT_TYPE_I32); }), "i32");
  ExpectHeaderRefused(with([](auto& h) { h.set_row_offsets_type(v1::ELEMENT_TYPE_F32); }),
                      "row_offsets");
  ExpectHeaderRefused(with([](auto& h) { h.set_type(static_cast<v1::ElementType>(-5)); }), "-5");
  ExpectHeaderRefused(with([](auto& h) { h.set_type(static_cast<v1::ElementType>(7)); }), "7");
  ExpectHeaderRefused(with([](auto& h) { h.set_row_offsets_type(v1::ELEMENT_TYPE_F16); }),
                      "row_offsets");
  ExpectHeaderRefused(with([](auto& h) { h.add_expected()->set_k(8); }), "operation");
  ExpectHeaderRefused(
      with([](auto& h) { h.add_expected()->set_operation(v1::ProblemClass::SPMM); }), "k = 0");
  ExpectHeaderRefused(with([](auto& h) {
                        h.set_type(v1::ELEMENT_TYPE_BF16);
                        h.add_expected()->set_operation(v1::ProblemClass::SPGEMM);
                      }),
                      "SPGEMM is for f32 and f64 matrices, this one is bf16");
  ExpectHeaderRefused(with([](auto& h) { h.set_name("good"); }), "good", grpc::ALREADY_EXISTS);
  // Sizes that overflow when they are multiplied, and sizes that merely do not fit.
  ExpectHeaderRefused(with([](auto& h) {
                        h.set_rows(2147483646);
                        h.set_cols(2147483646);
                        h.set_nnz(int64_t{1} << 61);
                      }),
                      "more bytes than can be counted");
  ExpectHeaderRefused(with([](auto& h) {
                        h.set_rows(2147483646);
                        h.set_cols(2147483646);
                        h.set_nnz(int64_t{1} << 33);
                      }),
                      "memory", grpc::RESOURCE_EXHAUSTED);
}

TEST_F(BadUpload, ValuesOf16Bits) {
  const auto write = [&](Stream& stream, size_t value_bytes) {
    v1::UploadHeader header = HeaderOf("bad", pattern_);
    header.set_type(v1::ELEMENT_TYPE_BF16);
    WriteHeader(stream, header);
    WriteArray<v1::UploadRequest>(stream, 0, 0, BytesOf(pattern_.row_offsets));
    WriteArray<v1::UploadRequest>(stream, 0, 1, BytesOf(pattern_.column_indices));
    WriteArray<v1::UploadRequest>(stream, 0, 2, std::string(value_bytes, 'x'), 3);
  };
  const auto bytes = static_cast<size_t>(pattern_.nnz()) * 2;
  Expect(grpc::INVALID_ARGUMENT, "values", [&](Stream& stream) { write(stream, bytes - 1); });
  Expect(grpc::INVALID_ARGUMENT, "", [&](Stream& stream) { write(stream, bytes + 1); });
  Expect(grpc::INVALID_ARGUMENT, "", [&](Stream& stream) { write(stream, 2 * bytes); });
}

TEST_F(BadUpload, MessagesOutOfPlace) {
  Expect(grpc::INVALID_ARGUMENT, "no header", [](Stream&) {});
  Expect(grpc::INVALID_ARGUMENT, "before",
         [](Stream& stream) { stream.Write(ChunkOf<v1::UploadRequest>(0, 0, 0, "abcd")); });
  Expect(grpc::INVALID_ARGUMENT, "two headers", [&](Stream& stream) {
    WriteHeader(stream, HeaderOf("bad", pattern_));
    WriteHeader(stream, HeaderOf("bad", pattern_));
  });
  Expect(grpc::INVALID_ARGUMENT, "neither",
         [](Stream& stream) { stream.Write(v1::UploadRequest()); });
}

TEST_F(BadUpload, MissingBytes) {
  Expect(grpc::INVALID_ARGUMENT, "never arrived",
         [&](Stream& stream) { WriteHeader(stream, HeaderOf("bad", pattern_)); });
  // Also a matrix of nothing has a row offset.
  Expect(grpc::INVALID_ARGUMENT, "a matrix of 0 rows has 1 of them, of which the first is 0",
         [&](Stream& stream) {
           v1::UploadHeader header = HeaderOf("bad", pattern_);
           header.set_rows(0);
           header.set_cols(0);
           header.set_nnz(0);
           WriteHeader(stream, header);
         });
  Expect(grpc::INVALID_ARGUMENT, "values", [&](Stream& stream) {
    WriteHeader(stream, HeaderOf("bad", pattern_));
    WriteArray<v1::UploadRequest>(stream, 0, 0, BytesOf(pattern_.row_offsets));
    WriteArray<v1::UploadRequest>(stream, 0, 1, BytesOf(pattern_.column_indices));
    const std::vector<float> values(pattern_.nnz() - 1);
    WriteArray<v1::UploadRequest>(stream, 0, 2, BytesOf(values));
  });
}

TEST_F(BadUpload, OverlapsAndOverruns) {
  Expect(grpc::INVALID_ARGUMENT, "row_offsets", [&](Stream& stream) {
    WriteHeader(stream, HeaderOf("bad", pattern_));
    stream.Write(ChunkOf<v1::UploadRequest>(0, 0, 0, "12345678"));
    stream.Write(ChunkOf<v1::UploadRequest>(0, 0, 7, "12345678"));
  });
  for (const uint64_t offset : {uint64_t{101 * 8 - 4}, uint64_t{101 * 8}, UINT64_MAX - 3}) {
    Expect(grpc::INVALID_ARGUMENT, "row_offsets", [&](Stream& stream) {
      WriteHeader(stream, HeaderOf("bad", pattern_));
      stream.Write(ChunkOf<v1::UploadRequest>(0, 0, offset, "12345678"));
    });
  }
  Expect(grpc::INVALID_ARGUMENT, "array 3", [&](Stream& stream) {
    WriteHeader(stream, HeaderOf("bad", pattern_));
    stream.Write(ChunkOf<v1::UploadRequest>(0, 3, 0, "12345678"));
  });
}

TEST_F(BadUpload, ChunksThatAreTooLarge) {
  const Pattern large = Band(400000, 1);
  Expect(grpc::INVALID_ARGUMENT, "2097153 bytes, at most 2097152", [&](Stream& stream) {
    WriteHeader(stream, HeaderOf("bad", large));
    stream.Write(ChunkOf<v1::UploadRequest>(0, 0, 0, std::string((2 << 20) + 1, 'x')));
  });
  // Far beyond it the transport refuses the message unread.
  Expect(grpc::RESOURCE_EXHAUSTED, "larger than max", [&](Stream& stream) {
    WriteHeader(stream, HeaderOf("bad", large));
    stream.Write(ChunkOf<v1::UploadRequest>(0, 0, 0, std::string(16 << 20, 'x')));
  });
}

TEST_F(BadUpload, PatternsThatAreNone) {
  const auto refused = [&](std::string_view word, const std::function<void(Pattern&)>& change) {
    Pattern pattern = pattern_;
    change(pattern);
    Expect(grpc::INVALID_ARGUMENT, word, [&](Stream& stream) { WriteAll(stream, pattern); });
  };
  refused("row_offsets", [](Pattern& p) { p.row_offsets[40] = p.row_offsets[41] + 1; });
  refused("row_offsets", [](Pattern& p) { p.row_offsets[0] = -1; });
  refused("row_offsets", [](Pattern& p) { p.row_offsets[50] = INT64_MIN; });
  refused("row_offsets", [](Pattern& p) { p.row_offsets[100] = INT64_MAX; });
  refused("column_indices[7] = 80 in row 1 is out of range [0, 80)",
          [](Pattern& p) { p.column_indices[7] = 80; });
  refused("column_indices", [](Pattern& p) { p.column_indices[7] = -1; });
  refused("column_indices",
          [](Pattern& p) { std::swap(p.column_indices[5], p.column_indices[6]); });
  refused("column_indices", [](Pattern& p) { p.column_indices[6] = p.column_indices[5]; });
}

TEST_F(BadUpload, GarbageInsteadOfMessages) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff\xff\xff"), std::string("\x0a\x7fgarbage"),
        std::string("\x7a\xff\xff\xff\xff\x0f"), std::string(1000, '\x0a')}) {
    RawStream stream(server_.channel(), "/sparsed.v1.Catalog/Upload");
    stream.Write(bytes);
    std::string reply;
    EXPECT_FALSE(stream.Read(&reply));
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_message().find("sparsed.v1.UploadRequest"), std::string::npos)
        << status.error_message();
  }
}

TEST_F(BadUpload, ClientsThatVanishLeaveNothing) {
  for (int i = 0; i < 10; ++i) {
    grpc::ClientContext context;
    auto stream = server_.catalog().Upload(&context);
    WriteHeader(*stream, HeaderOf("bad", pattern_));
    WriteArray<v1::UploadRequest>(*stream, 0, 0, BytesOf(pattern_.row_offsets));
    if (i % 2 == 0) WriteArray<v1::UploadRequest>(*stream, 0, 1, BytesOf(pattern_.column_indices));
    context.TryCancel();
    v1::UploadReply reply;
    EXPECT_FALSE(stream->Read(&reply));
    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(server_.ComesBackTo(before_));
  EXPECT_EQ(server_.engine().catalog().All().size(), 1u);
}

}  // namespace
}  // namespace sparsed::test
