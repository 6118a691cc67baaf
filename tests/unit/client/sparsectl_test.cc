// The command line as a newcomer meets it: what it says, and what it exits with.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/said.h"
#include "tests/unit/client/server_process.h"

namespace sparsed::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Sparsectl : public SparsectlTest {
 protected:
  Sparsectl() { Use(server_); }

  ServerProcess server_;
};

TEST_F(Sparsectl, FromNothingToAProduct) {
  ExpectSays("generate matrix 300x200 --row-nonzeros=50 --out=s.mtx.gz", 0, "15000 nonzeros");
  ExpectSays("generate dense 200x60 --out=B.npy", 0, "wrote B.npy: 200 x 60 f32");
  ExpectSays("upload s.mtx.gz --wait --tune-for=spmm:60", 0, "s is ready");
  ExpectSays("spmm s --operand=B.npy --out=C.npy", 0, "wrote   C.npy: 300 x 60, f32");
  ExpectSays("generate dense 300x60 --out=A.npy", 0, "wrote");
  ExpectSays("sddmm s --left=A.npy --right=B.npy --out=v.npy", 0,
             "v.npy: 15000 values, one for each nonzero, f32");
  ExpectSays("download s --out=copy.mtx.gz", 0, "wrote copy.mtx.gz");
  ExpectSays("upload copy.mtx.gz --type=bf16", 0, "uploaded copy");
  ExpectSays("spmm copy --operand=B.npy --out=C.npy", 0, "float32, which holds bf16 exactly");
}

TEST_F(Sparsectl, ProductsWithValuesOfTheirOwn) {
  ExpectSays("generate matrix 30x20 --row-nonzeros=5 --out=s.mtx", 0, "150 nonzeros");
  ExpectSays("generate dense 20x4 --out=B.npy", 0, "wrote");
  ExpectSays("generate dense 30x4 --out=A.npy", 0, "wrote");
  ExpectSays("generate dense 150x1 --seed=7 --out=w.npy", 0, "wrote");
  ExpectSays("upload s.mtx", 0, "uploaded s");
  ExpectSays("upload s.mtx --name=changed", 0, "uploaded changed");
  ExpectSays("update changed --values=w.npy", 0, "version 2");
  const auto bytes = [&](const std::string& name) {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::vector<float> w(150);
  const std::string file = bytes("w.npy");
  std::copy(file.end() - 600, file.end(), reinterpret_cast<char*>(w.data()));
  ASSERT_TRUE(Connect(server_).PutDense("w", DenseView(w.data(), 150, 1)).ok());

  const std::string spmm = "--operand=B.npy --out=", sddmm = "--left=A.npy --right=B.npy --out=";
  ASSERT_EQ(Run("spmm s " + spmm + "own.npy").exit_code, 0);
  ASSERT_EQ(Run("spmm changed " + spmm + "C.npy").exit_code, 0);
  ASSERT_EQ(Run("sddmm changed " + sddmm + "O.npy").exit_code, 0);
  EXPECT_NE(bytes("own.npy"), bytes("C.npy"));
  for (const std::string values : {"w.npy", "@w"}) {
    ExpectSays("spmm s " + spmm + "C2.npy --values=" + values, 0, "wrote   C2.npy: 30 x 4");
    EXPECT_EQ(bytes("C2.npy"), bytes("C.npy")) << values;
    ExpectSays("sddmm s " + sddmm + "O2.npy --values=" + values, 0, "O2.npy: 150 values");
    EXPECT_EQ(bytes("O2.npy"), bytes("O.npy")) << values;
  }

  ExpectSays("spmm s " + spmm + "x.npy --values=B.npy", 3,
             "B.npy is 20 x 4, expected 150 x 1: s has 150 nonzeros");
  ExpectSays("sddmm s " + sddmm + "x.npy --values=nothing.npy", 3, "nothing.npy");
  ExpectSays("spmm s " + spmm + "x.npy --values=@nobody", 4, "nobody");
  ExpectSays("spmm s " + spmm + "x.npy --values=@", 2,
             "sparsectl: --values: the name behind @ is missing");
  ExpectSays("sddmm s " + sddmm + "x.npy --values=@w --unscaled", 2,
             "--unscaled does not go with --values");
  ExpectSays("sddmm --help", 0, "CSR order: a .npy file, or @NAME of a buffer");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/x.npy"));
}

TEST_F(Sparsectl, HeldDenseMatricesHaveOwnersAndTimesToLive) {
  ExpectSays("buffers", 0, "no buffers");
  ExpectSays("generate dense 20x4 --out=W.npy", 0, "wrote");
  ExpectSays("buffers put W W.npy --owner=train-17 --time-to-live=90m", 0,
             "put W: 20 x 4 f32, time to live 1 h 30 min\n");
  ExpectSays("buffers put V W.npy --type=f64", 0, "put V: 20 x 4 f64, time to live 1 d\n");
  ExpectSays("slow --op=put_buffer --sort=-name", 0, "20x4 f32");
  const Said slow = Run("slow --op=put_buffer --sort=-name");
  EXPECT_LT(slow.text.find("20x4 f32"), slow.text.find("20x4 f64")) << slow.text;
  EXPECT_LT(slow.text.find("20x4 f64"), slow.text.find("where the time went")) << slow.text;
  EXPECT_THAT(slow.text, HasSubstr("setup "));
  ExpectSays("slow --sort=size", 2, "--sort takes total, operation, name");
  for (const char* over : {"--over-gpus=columns", "--over-gpus=rows", "--columns-over-gpus"}) {
    ExpectSays(fmt::format("buffers put P W.npy {}", over), 0,
               "put P: 20 x 4 f32, time to live 1 d\n");
  }
  ExpectSays("--json buffers --prefix=P", 0, R"("distribution":"whole")");
  ExpectSays("buffers put P W.npy --rows-over-gpus", 0, "put P: 20 x 4 f32, time to live 1 d\n");
  ExpectSays("buffers put P W.npy --rows-over-gpus --rows-of=none", 4, "none");
  ExpectSays("buffers put P W.npy --rows-of=none", 2, "--rows-over-gpus");
  ExpectSays("buffers put P W.npy --over-gpus --for=none", 4, "none");
  ExpectSays("buffers put P W.npy --over-gpus=rows --for=none", 4, "none");
  ExpectSays("buffers put P W.npy --over-gpus", 2, "--for=MATRIX");
  ExpectSays("buffers put P W.npy --over-gpus=rows --rows-over-gpus", 2, "does not go with");
  ExpectSays("buffers put P W.npy --over-gpus=heaps", 2, "heaps");
  ExpectSays("buffers put P W.npy --for=none", 4, "none");
  ExpectSays("generate matrix 20x20 --row-nonzeros=3 --out=S.mtx", 0, "wrote");
  ExpectSays("upload S.mtx --name=graph", 0, "graph");
  ExpectSays("buffers put P W.npy --over-gpus --for=graph", 0,
             "put P: 20 x 4 f32, time to live 1 d\n");
  ExpectSays("generate dense 7x4 --out=V.npy", 0, "wrote");
  ExpectSays("buffers put P V.npy --replace --over-gpus --for=graph", 3,
             "to be multiplied with 'graph', which is 20 x 20, but has 7 rows");
  ExpectSays("buffers put P W.npy --rows-over-gpus --columns-over-gpus", 2, "does not go with");
  ExpectSays("buffers delete @P", 0, "deleted P\n");
  ExpectSays("buffers renew W", 0, "renewed W: 20 x 4 f32, time to live 1 h 30 min\n");
  const Said list = Run("buffers");
  EXPECT_EQ(list.exit_code, 0);
  for (const char* word :
       {"TENANT", "OWNER", "TIME TO LIVE", "IDLE", "default", "train-17", "1 h 30 min", "1 d"}) {
    EXPECT_THAT(list.text, HasSubstr(word));
  }
  EXPECT_THAT(Run("buffers --prefix=V").text, Not(HasSubstr("train-17")));
  ExpectSays("--json buffers --prefix=W", 0, R"("owner":"train-17")");
  ExpectSays("--json buffers --prefix=W", 0, R"("time_to_live_ns":5400000000000)");
  for (const char* command : {"renew WW", "get WW --out=x.npy", "delete WW"}) {
    ExpectSays(fmt::format("buffers {}", command), 4,
               "there is no buffer named 'WW'; did you mean 'W'?");
  }
  ExpectSays("delete WW", 4, "there is no matrix named 'WW'; did you mean the buffer 'W'");
  ExpectSays("buffers delete W", 0, "deleted W\n");
  ExpectSays("buffers renew W", 4, "there is no buffer named 'W'");
  ExpectSays("buffers delete W", 4, "there is no buffer named 'W'");

  for (const char* wrong : {"0s", "-1s", "5", "5w", "1.5h", "h", "367d", "99999999999999999999s"}) {
    ExpectSays(std::string("buffers put W W.npy --time-to-live=") + wrong, 2,
               "is not a time such as 90s, 10m, 24h or 7d, of at most 366 days");
  }
  ExpectSays("buffers put W W.npy --owner='train 17'", 3, "owner name has byte 0x20");
  ExpectSays("buffers put W W.npy --durable", 6, "keeps nothing on disk");
  ExpectSays("buffers put W", 2, "FILE is missing");
}

TEST_F(Sparsectl, TokensAreSaidOnceAndHashedAlike) {
  const Said made = Run("token new job --tenant=t --role=read-only --expires=2030-01-31");
  ASSERT_EQ(made.exit_code, 0) << made.text;
  const std::string token = made.text.substr(0, made.text.find('\n'));
  EXPECT_THAT(token, testing::StartsWith("sparsed_"));
  EXPECT_THAT(made.text, HasSubstr("tenant: \"t\", role: read-only, expires: \"2030-01-31\"}"));
  const size_t at = made.text.find("sha256: ");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(folder_ + "/token.txt") << token << "\n";
  const Said hashed = Run("token hash job --tenant=t < token.txt");
  EXPECT_EQ(hashed.exit_code, 0) << hashed.text;
  EXPECT_THAT(hashed.text, HasSubstr(made.text.substr(at, 8 + 64)));
  EXPECT_THAT(hashed.text, Not(HasSubstr(token)));
  EXPECT_NE(Run("token hash job --tenant=t < /dev/null").exit_code, 0);
  ExpectSays("token new job --tenant=t --role=root", 2, "root");
  ExpectSays("token new job --tenant='red x'", 2, "is no tenant's name");
  ExpectSays("token new job --tenant=t --expires=tomorrow", 2, "is no time such as");
  ExpectSays("token new job --tenant=t --expires=2020-01-31", 2, "is over");
}

TEST_F(Sparsectl, SparseProductsOfEveryKind) {
  // 1 - 2 - 3 - 1 and 3 - 4, each edge below the diagonal.
  std::ofstream(folder_ + "/edges.mtx") << "%%MatrixMarket matrix coordinate real general\n4 4 4\n"
                                           "2 1 5\n3 1 6\n3 2 7\n4 3 8\n";
  ExpectSays("upload edges.mtx", 0, "uploaded edges");
  ExpectSays(
      "spgemm edges edges --transpose-right --mask=edges --semiring=plus-pair "
      "--out=triangles.mtx",
      0, "csr * transpose / cpu.csr.masked");
  std::ifstream file(folder_ + "/triangles.mtx");
  const std::string triangles{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(triangles, HasSubstr("\n3 2 1\n"));
  ExpectSays("--json spgemm edges edges --transpose-left --semiring=min-plus --name=nearest", 0,
             R"("semiring":"min-plus")");
  ExpectSays("download nearest --out=nearest.mtx", 0, "wrote nearest.mtx");
  ExpectSays("generate matrix 4x3 --row-nonzeros=2 --out=small.mtx", 0, "wrote");
  ExpectSays("upload small.mtx", 0, "uploaded small");
  ExpectSays("spgemm edges edges --mask=small --discard", 3,
             "the mask 'small' is 4 x 3, but the result is 4 x 4");
  ExpectSays("spgemm edges small --transpose-right --discard", 3,
             "'small' transposed is 3 x 4: the columns of the left must be the rows of the right");
  ExpectSays("spgemm edges edges --mask=nobody --discard", 4, "nobody");
}

TEST_F(Sparsectl, ProductsOfTwoMatricesAreShownByTheirNames) {
  for (const std::string name : {"a", "b"}) {
    ASSERT_EQ(Run("generate matrix 600x600 --row-nonzeros=40 --seed=" + std::to_string(name[0]) +
                  " --out=" + name + ".mtx")
                  .exit_code,
              0);
    ASSERT_EQ(Run("upload " + name + ".mtx --wait --tune-for=spgemm").exit_code, 0);
  }
  ExpectSays("spgemm a a --discard", 0, "csr * ");
  EXPECT_THAT(Run("show a").text, HasSubstr("spgemm S * S "));
  EXPECT_THAT(Run("show a --json").text, HasSubstr(R"("factors":"csr * )"));
  EXPECT_THAT(Run("show b --json").text, HasSubstr("\"pattern_hash\""));
  // Once the pair is tried.
  EXPECT_TRUE(Eventually([&] {
    Run("spgemm a b --discard");
    return Run("show a").text.find("spgemm S * b ") != std::string::npos;
  }));
  const std::string json = Run("show b --json").text;
  const size_t hash = json.find("\"pattern_hash\":\"") + std::string("\"pattern_hash\":\"").size();
  const std::string shown = Run("show a").text;
  EXPECT_EQ(shown.find(json.substr(hash, 32)), std::string::npos) << shown;
}

TEST_F(Sparsectl, ShowSaysWhatBecameOfEveryPipeline) {
  ASSERT_EQ(Run("generate matrix 300x200 --row-nonzeros=50 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx --wait").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx --name=other --type=f64 --wait").exit_code, 0);
  const Said show = Run("show s");
  EXPECT_THAT(show.text, HasSubstr("state        ready\n"));
  EXPECT_THAT(show.text, HasSubstr("SPEED-UP"));
  EXPECT_THAT(show.text, HasSubstr("columns are not 8 times as many as the 300 rows"));
  EXPECT_THAT(show.text, Not(HasSubstr("f64"))) << "another matrix's";
  const Said features = Run("show s --features");
  EXPECT_THAT(features.text, HasSubstr("rows from top to bottom"));
  EXPECT_THAT(features.text, HasSubstr("above 1: rows are uneven"));
  const Said csv = Run("measurements s --csv");
  EXPECT_THAT(csv.text, testing::StartsWith("pattern_hash,rows,cols,density,"));
  EXPECT_THAT(csv.text, HasSubstr(",csr_ms,runs,model,censored,right_pattern_hash,"));
  ExpectSays("measurements s --out=m.jsonl.gz", 0, " on 1 pattern\n");
  ExpectSays("measurements --all --out=m.jsonl.gz", 0, "wrote m.jsonl.gz: ");
  ExpectSays("measurements s --out=/no/such/m.jsonl", 3, "/no/such/m.jsonl");
  ExpectSays("measurements s --all", 2, "NAME does not go with --all");
  ExpectSays("measurements --csv --out=m.jsonl", 2, "--csv does not go with --out");
  EXPECT_THAT(csv.text, HasSubstr(",spmm,0,f32,0,128,128,csr,"));
  EXPECT_THAT(csv.text, HasSubstr(",spmm,0,f64,0,128,128,csr,")) << "of the pattern";
  ExpectSays("measurements nobody", 4, "no matrix named 'nobody'");
  ExpectSays("explain s --cache=50MB -o json", 0, R"("cache_bytes":50000000,)");
  ExpectSays("explain s --cache=50MiB -o json", 0, R"("cache_bytes":52428800,)");
  ExpectSays("explain s --cache=50M -o json", 0, R"("cache_bytes":52428800,)");
  ExpectSays("explain s --cache=1.5KiB -o json", 0, R"("cache_bytes":1536,)");
  ExpectSays("explain s --cache=50XB", 2, "'50XB' is not a size: a number of bytes, or one with");
}

TEST_F(Sparsectl, PreparesFurtherSignaturesAndOnceMore) {
  ASSERT_EQ(Run("generate matrix 300x200 --row-nonzeros=50 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx --wait").exit_code, 0);
  const Said added = Run("prepare s --tune-for=sddmm:60 --tune-for=spmm:8:tf32 --wait");
  EXPECT_EQ(added.exit_code, 0) << added.text;
  EXPECT_THAT(added.text, HasSubstr("s is ready after "));
  EXPECT_THAT(added.text, HasSubstr("sddmm K=64"));
  EXPECT_THAT(added.text, HasSubstr("TF32 makes no difference"));
  ExpectSays("prepare s", 0, "s is ready\n");
  ExpectSays("--json prepare s --retune", 0, R"("name":"s")");
  ExpectSays("prepare s --tune-for=spmm:8 --recipe=dcsr --kernel=cpu.dcsr.row_balanced --wait", 0,
             "s is ready after ");
  EXPECT_THAT(Run("show s").text, HasSubstr("cpu.dcsr.row_balanced"));
  ExpectSays("prepare s --pipeline=dsr", 3, "unknown step 'dsr'; known: csr, ");
  ExpectSays("wait s", 0, "s is ready after ");
  ExpectSays("prepare s --tune-for=spgemm:8", 2, "spgemm:8 is none of spmm:K");
  ExpectSays("prepare", 2, "NAME is missing");
  ExpectSays("prepare nobody --retune --wait", 4, "nobody");
  ExpectSays("prepare --help", 0, "default: what there are plans for, or spmm:128");
}

TEST_F(Sparsectl, FormerFlagsAreTakenAndNotShown) {
  ASSERT_EQ(Run("generate matrix 30x20 --row-nonzeros=5 --out=s.mtx").exit_code, 0);
  ExpectSays("upload s.mtx --wait --expect=spmm:60 --expect=sddmm:8", 0, "sddmm K=8");
  ExpectSays("prepare s --expect=spmm:8 --again --wait", 0, "spmm K=8");
  ExpectSays("upload s.mtx --expect=spgemm:8", 2, "spgemm:8 is none of spmm:K");
  const Said both = Run("prepare s --expect spmm:16 --tune-for=spmm:32 --wait");
  EXPECT_THAT(both.text, HasSubstr("spmm K=16"));
  EXPECT_THAT(both.text, HasSubstr("spmm K=32"));
  for (const char* command : {"upload", "prepare"}) {
    const Said help = Run(std::string(command) + " --help");
    EXPECT_THAT(help.text, HasSubstr("--tune-for"));
    EXPECT_THAT(help.text, Not(HasSubstr("--expect"))) << command;
    EXPECT_THAT(help.text, Not(HasSubstr("--again"))) << command;
  }
}

TEST_F(Sparsectl, WhatOneCommandWritesAnotherReads) {
  ASSERT_EQ(Run("generate matrix 40x40 --row-nonzeros=4 --out=s.txt.gz").exit_code, 0);
  ExpectSays("upload s.txt.gz", 0, "uploaded s: 40 x 40, 160 nonzeros, f32, in ");
  for (const std::string name : {"square.npz", "square.mtx", "square.csv.xz", "square.npy"}) {
    ExpectSays("spgemm s s --out=" + name, 0, "wrote " + name);
    ExpectSays("upload " + name + " --replace --shape=40x40", 0, "uploaded square: 40 x 40, ");
    ExpectSays("download square --out=again.mtx", 0, "wrote again.mtx");
    ExpectSays("spgemm s s --out=direct.mtx", 0, "wrote direct.mtx");
    EXPECT_EQ(std::system(("cmp " + folder_ + "/again.mtx " + folder_ + "/direct.mtx").c_str()), 0)
        << name;
  }
  ExpectSays("download s --out=s.graph", 3, "s.graph: ");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/s.graph"));
  ExpectSays("spgemm s s --out=wide.npy --transpose-left", 0, "wrote wide.npy");
}

TEST_F(Sparsectl, UploadsSeveralFilesAndStandardInput) {
  ASSERT_EQ(Run("generate matrix 4x4 --row-nonzeros=1 --out=a.mtx").exit_code, 0);
  ASSERT_EQ(Run("generate matrix 5x5 --row-nonzeros=1 --out=b.npz").exit_code, 0);
  std::ofstream(folder_ + "/c.txt") << "1 2\n1 2\n2 2 \n";
  const Said all = Run("upload a.mtx b.npz c.txt --wait");
  EXPECT_EQ(all.exit_code, 0) << all.text;
  for (const char* line :
       {"uploaded a: 4 x 4", "(SciPy archive)", "uploaded c: 3 x 3, 2 nonzeros", "c is ready",
        "note    1 duplicate was summed", "say so by --one-based"}) {
    EXPECT_THAT(all.text, HasSubstr(line));
  }
  ExpectSays("--json upload a.mtx c.txt --replace", 0, R"({"matrices":[{"name":"a",)");
  ExpectSays("--json upload c.txt --replace", 0,
             R"("file":{"format":"edges","compression":"","duplicates":1,)");
  ExpectSays("upload - --name=in --one-based --undirected < c.txt", 0, "uploaded in: 2 x 2");
  ExpectSays("upload - --name=in --replace < /dev/null", 3, "standard input: the file is empty");
  ExpectSays("upload - < c.txt", 2, "what comes on standard input has no name");
  ExpectSays("upload a.mtx c.txt --name=x", 2, "--name: there are several files");
  ExpectSays("upload a.mtx ./a.mtx", 2, "another of the files is called a, too");
  ExpectSays("upload b.npz nothing.mtx --replace", 3,
             "cannot open nothing.mtx: No such file or directory (uploaded before it: b)");
  ExpectSays("upload a.mtx --replace --undirected", 3, "is for edge lists and arrays of entries");
  ExpectSays("upload c.txt --replace --weight-column=2", 2, "neither 0 nor a column from 3 to 64");
  ExpectSays("upload c.txt --replace --shape=3", 2, "is not ROWSxCOLUMNS");
  ExpectSays("upload c.txt --replace --format=hdf5", 2, "hdf5 is none of mtx, npz, npy, edges");
}

/// The command that an error message proposes.
std::string Proposed(const std::string& said, const std::string& begin) {
  const size_t at = said.find(begin);
  if (at == said.npos) return "";
  return said.substr(at, said.find_first_of("(\n", said.find("--name=", at)) - at);
}

TEST_F(Sparsectl, AProposedCommandMakesTheMatrixThatWasAskedFor) {
  const std::string sparsectl = SPARSECTL_PROGRAM;
  // As pasted: what it says, and the matrix.
  const auto paste = [&](const std::string& command) {
    std::ofstream(folder_ + "/paste.sh") << command;
    return Run("info > /dev/null; export SPARSED_SERVER=" + server_.address() +
               " PATH=" + sparsectl.substr(0, sparsectl.rfind('/')) + ":$PATH; bash paste.sh");
  };
  std::ofstream(folder_ + "/names.txt") << "alice bob\nbob carol\ncarol alice\ndora alice\n";
  std::string command = Proposed(Run("upload names.txt --name=nm --undirected --type=f64 --replace "
                                     "--time-to-live=7d --timeout=50s")
                                     .text,
                                 "awk");
  EXPECT_THAT(command, HasSubstr("| sparsectl upload - --name=nm --type=f64 --undirected "));
  for (const char* flag : {" --replace", " --time-to-live=7d", " --timeout=50s"}) {
    EXPECT_THAT(command, HasSubstr(flag));
  }
  EXPECT_THAT(command, Not(HasSubstr("--server"))) << "that is the environment's";
  EXPECT_THAT(paste(command).text, HasSubstr("uploaded nm: 4 x 4, 8 nonzeros, f64"));

  // Indices count on from where they did, and the fourth column is still the fourth.
  std::ofstream(folder_ + "/w.csv") << "from,to,year,x\nann,bob,1999,3\nbob,cid,2000,4\n";
  command = Proposed(Run("upload w.csv --one-based --weight-column=4 --shape=3x3").text, "awk");
  EXPECT_THAT(command, HasSubstr("upload - --name=w --one-based --weight-column=4 --shape=3x3"));
  EXPECT_THAT(paste(command).text, HasSubstr("uploaded w: 3 x 3, 2 nonzeros"));
  ExpectSays("download w --out=w.mtx", 0, "wrote w.mtx");
  std::ifstream written(folder_ + "/w.mtx");
  const std::string mtx{std::istreambuf_iterator<char>(written), {}};
  EXPECT_THAT(mtx, AllOf(HasSubstr("\n1 2 3\n"), HasSubstr("\n2 3 4\n")));

  std::ofstream(folder_ + "/d.gr") << "p sp 3 2\na 1 2 5\na 2 3 6\n";
  command = Proposed(Run("upload d.gr --one-based --replace").text, "awk");
  EXPECT_THAT(command, testing::EndsWith("upload - --name=d --one-based --replace"));
  EXPECT_THAT(paste(command).text, HasSubstr("uploaded d: 3 x 3, 2 nonzeros"));
  std::ofstream(folder_ + "/m.mtx.bz2") << "BZh91AY";
  ExpectSays("upload m.mtx.bz2 --tune-for=spmm^T:8 --tune-for=spmm:8", 3,
             "| sparsectl upload - --name=m --tune-for=spmm^T:8 --tune-for=spmm:8");
  ExpectSays("upload w.csv --name='a b'", 2, "--name: \"a b\" is no name: names of matrices have");
}

/// Commands that help shows, and lines of their examples.
std::vector<std::string> Block(const std::string& help, const std::string& heading) {
  std::vector<std::string> block;
  std::istringstream lines(help);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (inside && (line.empty() || line[0] != ' ')) break;
    if (inside) block.push_back(line.substr(2));
    inside = inside || line == heading;
  }
  return block;
}

/// A page of help, and the lines of its examples.
struct HelpPage {
  std::string command;
  std::vector<std::string> lines;

  /// Within "buffers put": its group's examples may be enough.
  bool inner() const { return command.find(' ') != std::string::npos; }
  /// Exit codes that have to do with the machine or with the server's neighbours.
  bool MayEndWith(int exit_code) const {
    // A machine that is busy, or caches that are larger than the server's memory for preparations.
    if (command == "calibrate" && exit_code == 6) return true;
    // This server is by itself: tests/e2e/cluster_test.py has some.
    return exit_code == 0 || command.starts_with("cluster");
  }
};

/// In the order of `sparsectl --help`, each group's commands at the end.
class HelpPages : public Sparsectl {
 protected:
  std::vector<HelpPage> Pages() const {
    std::vector<std::string> commands = {""};
    const auto add_commands_of = [&](const std::string& command) {
      const std::string before = command.empty() ? "" : command + " ";
      for (const std::string& line : Block(Run(before + "--help").text, "Subcommands:")) {
        if (!line.empty() && line[0] != ' ') {
          commands.push_back(before + line.substr(0, line.find(' ')));
        }
      }
    };
    add_commands_of("");
    EXPECT_GT(commands.size(), 25u);
    for (const char* group : {"buffers", "snapshot", "token", "generate"}) add_commands_of(group);
    std::vector<HelpPage> pages;
    for (const std::string& command : commands) {
      const std::string help = Run(command + " --help").text;
      pages.push_back({command, Block(help, "Examples:")});
      if (pages.back().lines.empty()) pages.back().lines = Block(help, "Example:");
      EXPECT_TRUE(pages.back().inner() || !pages.back().lines.empty()) << command << " has none";
    }
    return pages;
  }
  /// Its lines pasted into a shell.
  Said Paste(const HelpPage& page, const ServerProcess& server) const {
    const std::string sparsectl = SPARSECTL_PROGRAM;
    const std::string path = sparsectl.substr(0, sparsectl.rfind('/'));
    std::string script = "cd " + folder_ + " && export PATH=" + path +
                         ":$PATH SPARSED_SERVER=" + server.address() + "\nset -e\n";
    for (const std::string& line : page.lines) script += line + "\n";
    std::ofstream(folder_ + ".sh") << script;
    const int status = std::system(("bash " + folder_ + ".sh > " + folder_ + ".said 2>&1").c_str());
    std::ifstream said(folder_ + ".said");
    Said pasted{WEXITSTATUS(status),
                script + std::string(std::istreambuf_iterator<char>(said), {})};
    std::filesystem::remove(folder_ + ".sh");
    std::filesystem::remove(folder_ + ".said");
    return pasted;
  }
};

/// Each for whom it is the first page: there are no files, matrices or buffers but those that its
/// own lines make.
TEST_F(HelpPages, ExamplesWorkWhenPasted) {
  // Snapshots are of what is on disk.
  const Folder data;
  const ServerProcess durable({"--data-dir=" + data.path() + "/data"});
  const Client client = Connect(durable);
  for (const HelpPage& page : Pages()) {
    if (!page.inner()) {
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        std::filesystem::remove_all(entry.path());
      }
      const auto matrices = client.ListMatrices();
      const auto buffers = client.ListDense();
      ASSERT_TRUE(matrices.ok() && buffers.ok());
      for (const MatrixInfo& info : *matrices) {
        ASSERT_TRUE(client.MatrixNamed(info.name).Delete().ok());
      }
      for (const DenseInfo& info : *buffers) {
        ASSERT_TRUE(client.DenseNamed(info.name).Delete().ok());
      }
    }
    const Said pasted = Paste(page, durable);
    EXPECT_TRUE(page.MayEndWith(pasted.exit_code)) << page.command << "\n" << pasted.text;
  }
}

/// For whoever reads one page after the other: nothing is removed in between.
TEST_F(HelpPages, ExamplesOfAllWorkOneAfterTheOther) {
  const Folder data;
  const ServerProcess durable({"--data-dir=" + data.path() + "/data"});
  Connect(durable);
  for (const HelpPage& page : Pages()) {
    const Said pasted = Paste(page, durable);
    EXPECT_TRUE(page.MayEndWith(pasted.exit_code)) << page.command << "\n" << pasted.text;
  }
}

TEST_F(Sparsectl, WrongFlagsAreSaidAsTyped) {
  ASSERT_EQ(Run("generate matrix 30x30 --row-nonzeros=3 --out=s.mtx").exit_code, 0);
  ExpectSays("upload s.mtx --expect=spmm", 2, "--expect: spmm is none of spmm:K");
  ExpectSays("prepare s --recipe=aspt --explore", 2, "--recipe");
  ExpectSays("spmm s --recipe=csr", 2, "there is no flag \"--recipe\"");
  ExpectSays("spmm s --pipeline=csr", 2, "there is no flag \"--pipeline\"");
}

TEST_F(Sparsectl, JsonHasTheWordsOfTheTables) {
  ASSERT_EQ(Run("generate matrix 30x30 --row-nonzeros=3 --out=s.mtx").exit_code, 0);
  ExpectSays("upload s.mtx --tune-for=spmm:8 --wait", 0, "s is ready");
  EXPECT_THAT(
      Run("show s --json").text,
      AllOf(HasSubstr("\"pipeline\":"), HasSubstr("\"signature\":"), HasSubstr("\"roofline_ms\":"),
            Not(HasSubstr("recipe")), Not(HasSubstr("\"class\"")), Not(HasSubstr("floor_"))));
  // Exported measurements have those of data sets.
  EXPECT_THAT(Run("measurements s --json").text,
              AllOf(HasSubstr("\"recipe\":"), HasSubstr("\"class\":"), HasSubstr("floor_ms")));
}

TEST_F(Sparsectl, NothingIsReplacedByASlip) {
  ASSERT_EQ(Run("generate dense 4x3 --out=B.npy").exit_code, 0);
  ExpectSays("buffers put x B.npy", 0, "put x: 4 x 3 f32");
  ExpectSays("buffers put x B.npy", 0, "put x: 4 x 3 f32");
  ExpectSays("buffers put x --zeros=4x3", 0, "put x: 4 x 3 f32");
  ExpectSays(
      "buffers put x --zeros=3x4", 6,
      "there is a buffer named 'x' already, 4 x 3 f32, not 3 x 4 f32: --replace replaces it");
  ExpectSays("buffers put x B.npy --type=f64", 6, "4 x 3 f32, not 4 x 3 f64");
  ExpectSays("buffers put x --zeros=3x4 --replace", 0, "put x: 3 x 4 f32");
}

TEST_F(Sparsectl, NamesThatCannotBeAreSaidWithOneThatCan) {
  ASSERT_EQ(Run("generate matrix 30x30 --row-nonzeros=3 --out='my graph.mtx'").exit_code, 0);
  ExpectSays("upload 'my graph.mtx'", 2, "give it one: --name=my-graph");
  ASSERT_EQ(Run("generate matrix 30x30 --row-nonzeros=3 --out=b.mtx").exit_code, 0);
  ExpectSays("upload b.mtx 'my graph.mtx'", 2, "give it, by itself, one: --name=my-graph");
  ExpectSays("upload 'my graph.mtx' --name=mine", 0, "uploaded mine");
  ASSERT_EQ(Run("copy mine other").exit_code, 0);
  ExpectSays("delete other none neither", 4,
             "there is no matrix named 'none'; there is 'mine' (request ");
  ExpectSays("--json delete none neither", 4, "\"request_id\":\"");
  ExpectSays("show none", 4, "there is no matrix named 'none'");
  ExpectSays("buffers put x --zeros=2x2", 0, "put x");
  EXPECT_THAT(Run("buffers renew y").text, Not(HasSubstr("did you mean"))) << "nothing in common";
  ExpectSays("show mien", 4, "there is no matrix named 'mien'; did you mean 'mine'?");
}

TEST_F(Sparsectl, OperatorsAreToldWhatTheyMayDoWithAnothersMatrix) {
  // A token for each, and the lines of the access file that they have.
  std::string access = "tokens:\n";
  for (const char* who : {"ops --role=operator", "alice", "bob"}) {
    const std::string tenant = std::string(who).substr(0, std::string(who).find(' '));
    const Said made = Run(fmt::format("token new {} --tenant={}", tenant, who));
    ASSERT_EQ(made.exit_code, 0) << made.text;
    std::ofstream(folder_ + "/" + tenant + ".token")
        << made.text.substr(0, made.text.find('\n')) << "\n";
    const size_t line = made.text.find("  - {");
    access += made.text.substr(line, made.text.find('\n', line) - line) + "\n";
  }
  access += "tenants:\n  bob: {quotas: {requests_per_second: 1}}\n";
  std::ofstream(folder_ + "/access.yaml") << access;
  for (const char* name : {"ops.token", "alice.token", "bob.token", "access.yaml"}) {
    std::filesystem::permissions(folder_ + "/" + name, std::filesystem::perms::owner_read |
                                                           std::filesystem::perms::owner_write);
  }
  const ServerProcess server({"--access-file=" + folder_ + "/access.yaml"});
  Use(server);
  ASSERT_EQ(Run("generate matrix 30x30 --row-nonzeros=3 --out=m.mtx").exit_code, 0);
  ASSERT_EQ(Run("generate dense 30x4 --out=B.npy").exit_code, 0);
  const std::string alice = "--token-file=alice.token ";
  const std::string ops = "--token-file=ops.token ";
  // Everybody may name a tenant that is his own.
  ExpectSays(alice + "slow --tenant=alice", 0, "no such requests of tenant alice's among");
  ExpectSays(alice + "slow --tenant=bob", 10, "(request ");
  ExpectSays(ops + "slow --tenant=bob", 0, "no such requests of tenant bob's among the slowest");
  ASSERT_TRUE(
      Eventually([&] { return Run(alice + "upload m.mtx --replace --wait").exit_code == 0; }));
  ExpectSays(ops + "show alice~m", 0, "alice~m");
  ExpectSays(ops + "explain alice~m", 0, "alice~m");
  for (const char* command :
       {"watch alice~m", "spmm alice~m --operand=B.npy --out=C.npy", "download alice~m --out=x.mtx",
        "measurements alice~m", "delete alice~m", "delete alice~m none", "share alice~m --with=bob",
        "rename alice~m n", "copy alice~m n", "prepare alice~m", "wait alice~m", "spy alice~m"}) {
    ExpectSays(ops + command, 10,
               "matrix 'alice~m' is tenant alice's: an operator may look at it (`sparsectl show "
               "alice~m`, `sparsectl explain alice~m`); alice may share it (`sparsectl share m "
               "--with=ops [--write]`), and alone deletes, renames, copies and shares it");
  }
  ExpectSays(ops + "upload m.mtx --name=alice~k", 3, "TENANT~NAME is another tenant's");
  ExpectSays(ops + "show alcie~m", 4, "did you mean 'alice~m'?");
  ExpectSays(ops + "show m", 4, "there is no matrix named 'm'; there is 'alice~m'");
  // Lists of nothing say where there is more.
  ExpectSays(ops + "list", 0, "no matrices; other tenants have 1: `sparsectl list --all`\n");
  ExpectSays(ops + "list m", 0, "no matrix has a name that begins with \"m\"\n");
  ExpectSays(ops + "list --shared", 0, "other tenants have 1: `sparsectl list --all`\n");
  ExpectSays(ops + "--json list", 0, "{\"matrices\":[]}\n");
  ExpectSays(ops + "measurements", 0,
             "nothing was measured yet; other tenants have matrices: `sparsectl measurements "
             "--all`\n");
  // Of another tenant's matrix and of all that is another's.
  ExpectSays(ops + "slow alice~m", 0, "upload");
  ExpectSays(ops + "slow alice~none", 4, "there is no matrix or buffer named 'alice~none'");
  // The name is the tenant's that is asked for, and the hint one that the operator may say.
  ExpectSays(ops + "slow m --tenant=alice --op=download", 0,
             "no such requests of tenant alice's among the slowest of the last hour; what requests "
             "of a matrix take: sparsectl explain alice~m\n");
  ExpectSays(ops + "slow m --all --op=sddmm", 0, "sparsectl explain alice~m\n");
  ExpectSays(ops + "slow none --tenant=alice", 4,
             "there is no matrix or buffer named 'alice~none'");
  ExpectSays(ops + "slow none --all", 4, "there is no matrix or buffer named 'none'");
  ExpectSays(ops + "slow", 0, "other tenants");
  ExpectSays(alice + "buffers put w --zeros=3x4", 0, "w: 3 x 4");
  ExpectSays(ops + "buffers", 0,
             "no buffers; other tenants have 1: `sparsectl buffers list --all`\n");
  ExpectSays(ops + "buffers list --all", 0, "alice~w");
  ExpectSays(alice + "buffers --all", 10, "(request ");
  ExpectSays(alice + "delete w", 4,
             "there is no matrix named 'w'; did you mean the buffer 'w' (`sparsectl buffers "
             "--help`)?");
  ExpectSays(ops + "buffers get alice~w --out=x.npy", 10,
             "buffer 'alice~w' is tenant alice's, who alone reads, writes and deletes it");
  ExpectSays(ops + "buffers get w --out=x.npy", 4,
             "there is no buffer named 'w'; there is 'alice~w'");
  ExpectSays(ops + "buffers delete alice~w", 3, "TENANT~NAME is another tenant's, who alone");
  ExpectSays(ops + "slow alice~ww", 4,
             "there is no matrix or buffer named 'alice~ww'; did you mean 'alice~w'?");
  ExpectSays(ops + "slow alice~w --op=get_buffer", 0,
             "no such requests among the slowest of the last hour\n");
  ExpectSays("--token-file=bob.token buffers get alice~w --out=x.npy", 4,
             "there is no buffer named 'alice~w'");
  // What there is is asked for once, however many are missing.
  const auto requests = [this](const std::string& command) {
    std::istringstream lines(Run(command).text);
    int count = 0;
    for (std::string line; std::getline(lines, line);) count += line.starts_with("request ");
    return count;
  };
  const int for_one = requests(ops + "-v delete none");
  EXPECT_GT(for_one, 2) << "the deletion and what the hint needs";
  EXPECT_LE(requests(ops + "-v delete none neither alice~m"), for_one + 2);
  // Programs are not told, and nothing is asked for it.
  EXPECT_LT(requests(ops + "-v --json list"), requests(ops + "-v list"));
  // Nobody else learns that there is such a matrix.
  const Said hidden = Run("--token-file=bob.token show alice~m");
  EXPECT_EQ(hidden.exit_code, 4);
  EXPECT_THAT(hidden.text, HasSubstr("there is no matrix named 'alice~m' (request "));
  ExpectSays("--token-file=bob.token list", 0, "no matrices\n");

  // Two requests within a second, which a busy machine may need several attempts for.
  ExpectSays("--token-file=bob.token upload m.mtx --replace", 0, "uploaded m");
  EXPECT_TRUE(Eventually([&] {
    const Said said = Run("--token-file=bob.token spmm m --operand=B.npy --out=C.npy");
    return said.text.find("for the quota requests_per_second (refused ") != std::string::npos;
  }));
  // The slowest come with that, and it is said whose quotas they are.
  ExpectSays("--token-file=bob.token slow", 0,
             "refused at quotas since the server's start: requests_per_second ");
  ExpectSays(ops + "slow --tenant=bob", 0,
             "refused at tenant bob's quotas since the server's start: requests_per_second ");
  ExpectSays(ops + "--json slow --tenant=bob", 0,
             R"("refused_at":[{"quota":"requests_per_second","refused":)");
  EXPECT_THAT(Run(ops + "slow --all").text, Not(HasSubstr("refused at")));
}

TEST_F(Sparsectl, SlowHasOneOrderAndTakesAName) {
  ASSERT_EQ(Run("generate matrix 30x30 --row-nonzeros=3 --out=s.mtx").exit_code, 0);
  for (const char* name : {"first", "second", "third"}) {
    ExpectSays(std::string("upload s.mtx --name=") + name, 0, "uploaded");
  }
  // Ids are in the last column, and begin the lines of the second list.
  const auto ids_of = [this](const std::string& flags) {
    const Said said = Run("slow --op=upload " + flags);
    std::vector<std::string> above, below;
    std::istringstream lines(said.text);
    bool second = false;
    for (std::string line; std::getline(lines, line);) {
      if (line == "where the time went") second = true;
      if (line.find(" us: ") == line.npos && line.find(" ms: ") == line.npos && second) continue;
      if (second) below.push_back(line.substr(0, line.find(' ')));
      if (!second && line.find("upload") != line.npos) {
        above.push_back(line.substr(line.rfind(' ') + 1));
      }
    }
    EXPECT_EQ(above, below) << said.text;
    EXPECT_EQ(above.size(), 3u) << said.text;
    return above;
  };
  std::vector<std::string> ascending = ids_of("--sort=name");
  std::ranges::reverse(ascending);
  EXPECT_EQ(ids_of("--sort=-name"), ascending);
  const Said one = Run("slow second");
  EXPECT_THAT(one.text, AllOf(HasSubstr("second"), Not(HasSubstr("first"))));
  ExpectSays("slow --all default~second", 0, "second");
  ExpectSays("slow --tenant=default --json", 0, "\"subject\":\"third\"");
  ExpectSays("slow --tenant=nobody", 0, "no such requests of tenant nobody's among the slowest");
  ExpectSays("slow sceond", 4,
             "there is no matrix or buffer named 'sceond'; did you mean 'second'?");
  ExpectSays("slow 'a b'", 3, "matrix or buffer name has byte 0x20 at position 1");
  ExpectSays("buffers put weights --zeros=3x4", 0, "put weights");
  ExpectSays("slow wieghts", 4,
             "there is no matrix or buffer named 'wieghts'; did you mean 'weights'?");
  // Nothing explains a buffer.
  ExpectSays("slow weights --op=spmm", 0,
             "no such requests of this tenant's among the slowest of the last hour\n");
}

TEST_F(Sparsectl, SlowLeavesOutWhatWasRefusedAtOnce) {
  ExpectSays("delete nothing", 4, "there is no matrix");
  // A program has it; whether people do is a matter of the time it took.
  const std::string json = Run("slow --op=delete --json").text;
  ASSERT_THAT(json, AllOf(HasSubstr("\"NOT_FOUND\""), HasSubstr("\"total\":")));
  const double milliseconds = std::stod(json.substr(json.find("\"total\":") + 8));
  EXPECT_EQ(Run("slow --op=delete").text.find("NOT_FOUND") == std::string::npos, milliseconds < 1)
      << json;
  ExpectSays("slow --op=delete --refused", 0, "NOT_FOUND");

  // Its last column, behind megabytes of others, is outside.
  CsrMatrix bad;
  bad.rows = 1;
  bad.cols = 4'000'000;
  bad.row_offsets = {0, bad.cols};
  bad.column_indices.resize(bad.cols);
  std::iota(bad.column_indices.begin(), bad.column_indices.end(), 0);
  bad.column_indices.back() = static_cast<int32_t>(bad.cols);
  bad.values = std::vector<float>(bad.cols, 1);
  EXPECT_EQ(Connect(server_).Upload("bad", bad.View()).status().code(),
            absl::StatusCode::kInvalidArgument);
  ExpectSays("slow --op=upload", 0, "INVALID_ARGUMENT");
}

TEST_F(Sparsectl, WhatCannotBeIsSaidBeforeAServerIsAsked) {
  const std::string none = "-s 127.0.0.1:1 ";
  const std::string url = "--server=http://127.0.0.1:1 ";
  ExpectSays(url + "list", 2, "sparsectl: --server: \"http://127.0.0.1:1\" is no address");
  ExpectSays(url + "list", 2, "did you mean \"127.0.0.1:1\"?");
  ExpectSays(url + "doctor", 2, "did you mean \"127.0.0.1:1\"?");
  // Who asks no server need not know where one is.
  ExpectSays("--version; export SPARSED_SERVER=http://x:1; " SPARSECTL_PROGRAM
             " generate dense 3x3 --out=B.npy && " SPARSECTL_PROGRAM
             " completion bash >/dev/null && " SPARSECTL_PROGRAM
             " token hash --help >/dev/null && " SPARSECTL_PROGRAM " help list",
             0, "Usage: sparsectl list");
  ExpectSays(none + "--token-file=missing list", 3, "missing: No such file or directory");
  ExpectSays(none + "--tls-ca=missing list", 3, "missing: No such file or directory");
  ExpectSays(none + "bench g --rate=-1", 2, "\"-1\" is not a number from 0.001 to 1000000");
  ExpectSays(none + "bench g --seconds=x", 2, "\"x\" is not a number from 0.1 to 86400");
  ExpectSays(none + "calibrate --device=gpu", 2, "\"gpu\" is none of cpu, cuda");
  ExpectSays(none + "download g --out=-", 2,
             "a matrix is written to a file, not to standard output");
  for (const char* command :
       {"spmm g --operand=B.npy", "sddmm g --left=A.npy --right=B.npy", "buffers get b"}) {
    ExpectSays(none + command + " --out=-", 2, "it is written to a file, not to standard output");
  }
  ExpectSays(none + "download g --out=/dev/null", 2, "/dev/null exists and is not a plain file");
  ExpectSays(none + "download g --out=g.bin", 2, "g.bin must end in .mtx");
  ExpectSays("generate matrix 9x9 --out=s.graph", 2, "a METIS graph is symmetric");
  ExpectSays("generate matrix 9x9 --out=s --format=metis", 2, "a METIS graph is symmetric");
}

TEST_F(Sparsectl, CommandsOfErrorsCanBePasted) {
  const auto paste = [this](const std::string& words) {
    const std::string said = Run(words).text;
    const size_t begin = said.find("awk ");
    EXPECT_NE(begin, std::string::npos) << said;
    std::string command =
        said.substr(begin, said.find_first_of("(\n", said.find("--name=")) - begin);
    const std::string sparsectl = SPARSECTL_PROGRAM;
    command.replace(command.find("sparsectl"), 9, sparsectl);
    std::ofstream(folder_ + "/pasted.sh") << "export SPARSED_SERVER=" << server_.address() << "\n"
                                          << command << "\n";
    return std::system(("cd '" + folder_ + "' && bash pasted.sh").c_str());
  };
  for (const char* name : {"people.txt", "two people.txt"}) {
    std::ofstream(folder_ + "/" + name) << "# who knows whom\nann 1\nbob ann\n";
  }
  EXPECT_EQ(paste("upload people.txt"), 0);
  ExpectSays("list", 0, "people");
  EXPECT_EQ(paste("upload 'two people.txt' --name=x"), 0);
  ExpectSays("show x", 0, "3 x 3, 2 nonzeros");
  ASSERT_EQ(std::system(("gzip -n '" + folder_ + "/people.txt'").c_str()), 0);
  EXPECT_EQ(Run("delete people").exit_code, 0);
  EXPECT_EQ(paste("upload people.txt.gz"), 0);
  ExpectSays("show people", 0, "3 x 3, 2 nonzeros");
}

TEST_F(Sparsectl, AnIterationMovesNothing) {
  ASSERT_EQ(Run("generate matrix 40x40 --row-nonzeros=4 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx").exit_code, 0);
  ASSERT_EQ(Run("generate dense 40x6 --out=B.npy").exit_code, 0);
  ASSERT_EQ(Run("spmm s --operand=B.npy --out=C.npy").exit_code, 0);
  ASSERT_EQ(Run("spmm s --operand=C.npy --out=D.npy").exit_code, 0);
  ASSERT_EQ(Run("spmm s --operand=B.npy --out=E.npy --beta=2 --accumulate=D.npy").exit_code, 0);
  const auto bytes = [&](const std::string& name) {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  ExpectSays("buffers put x B.npy", 0, "put x: 40 x 6 f32");
  ExpectSays("spmm s --operand=@x --keep-as=@y", 0, "kept    @y: 40 x 6, f32");
  ExpectSays("--json spmm s --operand=@y --keep-as=z", 0, R"("kept_as":"z")");
  ExpectSays("buffers get @y --out=y.npy", 0, "wrote y.npy: 40 x 6 f32, version ");
  EXPECT_EQ(bytes("y.npy"), bytes("C.npy"));
  ExpectSays("spmm s --operand=@y --out=z.npy", 0, "wrote   z.npy");
  EXPECT_EQ(bytes("z.npy"), bytes("D.npy"));
  ExpectSays("spmm s --operand=@x --keep-as=z --beta=2", 0, "kept    @z");
  ASSERT_EQ(Run("buffers get z --out=e.npy").exit_code, 0);
  EXPECT_EQ(bytes("e.npy"), bytes("E.npy")) << "added to what it held";
  ExpectSays("spmm s --operand=B.npy --out=E2.npy --beta=2 --accumulate=@y", 0, "wrote");
  ExpectSays("sddmm s --left=@x --right=@x --keep-as=v", 0, "kept    @v: 160 values");
  ExpectSays("spmm s --operand=@x --values=@v --keep-as=w", 0, "kept    @w");
  ExpectSays("buffers put zeros --zeros=3x2 --type=f64", 0, "put zeros: 3 x 2 f64");

  ExpectSays("spmm s --operand=@x --keep-as=zeros", 3,
             "is 3 x 2 f64, but the result is 40 x 6 f32");
  // What fails keeps nothing.
  ExpectSays("buffers put short --zeros=3x6", 0, "put short");
  ExpectSays("spmm s --operand=@short --keep-as=fresh", 3, "40");
  ExpectSays("buffers get fresh --out=x.npy", 4, "fresh");
  ExpectSays("spmm s --operand=@nobody --keep-as=y", 4, "no buffer named 'nobody'");
  ExpectSays("spmm s --operand=@xx --keep-as=y", 4, "did you mean 'x'?");
  ExpectSays("spmm s --operand=@ --keep-as=y", 2, "the name behind @ is missing");
  ExpectSays("spmm s --operand=@x --keep-as=y --out=y.npy", 2, "does not go with");
  ExpectSays("spmm s --operand=@x --out=y.npy --beta=1", 2, "--beta goes with --accumulate");
  ExpectSays("spmm s --operand=@x --keep-as=y --accumulate=@y", 2, "--accumulate goes with --beta");
  ExpectSays("spmm s --operand=@x --keep-as='a b'", 3, "byte 0x20");
  ExpectSays("buffers get nobody --out=x.npy", 4, "nobody");
  ExpectSays("buffers put x B.npy --zeros=3x3", 2, "does not go with");
  ExpectSays("buffers put x --zeros=3", 2, "is not ROWSxCOLUMNS");
  ExpectSays("buffers put", 2, "NAME is missing");
  ExpectSays("buffers puts x B.npy", 2,
             "there is no command \"buffers puts\"; did you mean \"put\"?");
}

TEST_F(Sparsectl, NamesAreChangedCopiedAndDeletedTogether) {
  ASSERT_EQ(Run("generate matrix 40x40 --row-nonzeros=4 --out=a.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload a.mtx").exit_code, 0);
  ExpectSays("rename a b", 0, "renamed a to b: 40 x 40, 160 nonzeros, f32\n");
  ExpectSays("show a", 4, "no matrix named 'a'");
  ExpectSays("copy b c", 0, "copied b to c");
  ExpectSays("copy b c", 6, "--replace");
  ExpectSays("copy b c --replace", 0, "copied b to c");
  ExpectSays("rename b c", 6, "c");
  ExpectSays("rename b b", 6, "b");
  ExpectSays("rename b 'x y'", 3, "new name has byte 0x20");
  ExpectSays("rename b", 2, "NEW_NAME is missing");
  for (const char* name : {"b", "c"}) {
    ExpectSays(std::string("download ") + name + " --out=" + name + ".mtx", 0, "wrote");
  }
  EXPECT_EQ(std::system(("cmp " + folder_ + "/b.mtx " + folder_ + "/c.mtx").c_str()), 0);
  const Said some = Run("delete b nobody c");
  EXPECT_EQ(some.exit_code, 4);
  EXPECT_THAT(some.text, HasSubstr("deleted b\ndeleted c\n"));
  EXPECT_THAT(some.text, HasSubstr("sparsectl: there is no matrix named 'nobody'"));
  ExpectSays("list", 0, "no matrices");
  ExpectSays("--json delete b c", 4, R"("deleted":[])");
  ExpectSays("--json delete b", 4, R"({"error":{"code":"NOT_FOUND")");
}

TEST_F(Sparsectl, OutputIsAsItIsAskedFor) {
  ASSERT_EQ(Run("generate matrix 40x40 --row-nonzeros=40 --out=big.mtx").exit_code, 0);
  ASSERT_EQ(Run("generate matrix 9x9 --row-nonzeros=1 --out=small.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload big.mtx small.mtx").exit_code, 0);
  const auto before = [](const Said& said, const char* first, const char* second) {
    EXPECT_EQ(said.exit_code, 0) << said.text;
    EXPECT_LT(said.text.find(first), said.text.find(second)) << said.text;
  };
  before(Run("list"), "big", "small");
  before(Run("list --sort=nonzeros"), "small", "big");
  before(Run("list --sort=-nnz -o json"), "\"big\"", "\"small\"");
  before(Run("-o yaml list --sort=csr"), "- name: small", "- name: big");
  ExpectSays("list", 0, " 1600 ");  // no separators into pipes
  ExpectSays("list -o wide", 0, "PATTERN");
  EXPECT_THAT(Run("list").text, Not(HasSubstr("PATTERN")));
  ExpectSays("list --sort=colour", 2, "--sort takes name, rows, columns, nonzeros");
  ASSERT_EQ(Run("copy big bigger").exit_code, 0);
  EXPECT_EQ(Run("tenants -o json").text.find("\"quota\":"), std::string::npos);
  ExpectSays("tenants --sort=-used -o json", 0, R"({"tenants":[{"name":"default","weight":)");
  before(Run("tenants --sort=-used"), "host_bytes", "matrices");
  before(Run("tenants --sort=used"), "matrices", "host_bytes");
  ExpectSays("tenants --sort=size", 2, "--sort takes tenant, weight, quota, used, soft-limit");
  before(Run("top --once --interval=0.1 --sort=operation"), "copy", "upload");
  before(Run("top --once --interval=0.1 --sort=-operation"), "upload", "copy");
  before(Run("top --once --interval=0.1 --sort=-total -o json"), "\"upload\"", "\"copy\"");
  ExpectSays("top --once --sort=size", 2, "--sort takes operation, per-second, failed, total");
  ExpectSays("delete bigger", 0, "deleted bigger");
  ExpectSays("delete big --sort=name", 2, "--sort is for commands that list things");
  ExpectSays("list", 0, "big");
  ExpectSays("info --sort=name", 2, "--sort is for commands that list things");
  ExpectSays("list -o xml", 2, "\"xml\" is none of text, wide, json, yaml");
  ExpectSays("list --json -o yaml", 2, "does not go with");
  ExpectSays("-o yaml show nobody", 4, "error:\n  code: NOT_FOUND\n");
  ExpectSays("-o yaml list a b", 2, "code: USAGE\n");
  ExpectSays("-s " + server_.address() + " -V", 0, "sparsectl ");
  for (const std::string command : {"list", "--help", "spmm --help", "--version", "-o yaml info"}) {
    ExpectSays(command + " 2>&1 >/dev/full #", 7, "cannot write to standard output: No space left");
  }
}

TEST_F(Sparsectl, SaysWhatWasMeant) {
  ASSERT_EQ(Run("generate matrix 9x9 --row-nonzeros=1 --out=cora.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload cora.mtx").exit_code, 0);
  ExpectSays("lsit", 2, "there is no command \"lsit\"; did you mean \"list\"?");
  ExpectSays("list --shard", 2, "there is no flag \"--shard\"; did you mean \"--shared\"?");
  ExpectSays("spmm cora --operants=B.npy", 2, "did you mean \"--operand\"?");
  ExpectSays("spgemm cora cora --nam=x", 2, "did you mean \"--name\"?");
  ExpectSays("show croa", 4, "there is no matrix named 'croa'; did you mean 'cora'?");
  ExpectSays("show something", 4,
             "there is no matrix named 'something'; there is 'cora' (request ");
  ASSERT_EQ(Run("copy cora pubmed").exit_code, 0);
  ExpectSays("show something", 4, "named 'something'; there are 'cora' and 'pubmed' (request ");
  ASSERT_EQ(Run("buffers put x --zeros=9x2").exit_code, 0);
  ExpectSays("spmm cora --operand=@y --keep-as=z", 4, "there is no buffer named 'y'; there is 'x'");
  // As other tools call it.
  for (const auto& [word, command] :
       std::vector<std::pair<std::string, std::string>>{{"ls", "list"},
                                                        {"rm x", "delete"},
                                                        {"cp a b", "copy"},
                                                        {"mv a b", "rename"},
                                                        {"ps", "top"},
                                                        {"down", "download"},
                                                        {"buffers ls", "list"},
                                                        {"buffers rm x", "delete"},
                                                        {"buffs", "buffers"},
                                                        {"uplload_", "upload"}}) {
    ExpectSays(word, 2, "did you mean \"" + command + "\"? See --help");
  }
  EXPECT_THAT(Run("buffers mv a b").text, Not(HasSubstr("did you mean"))) << "there is none";
  // Of a few words.
  ExpectSays("bench cora --op=spm", 2, "is none of spmm, sddmm, spgemm; did you mean \"spmm\"?");
  ExpectSays("list -o jsn", 2, "did you mean \"json\"?");
  ExpectSays("spy cora --colour=alwys", 2, "did you mean \"always\"?");
  ExpectSays("upload cora.mtx --type=float32", 2, "did you mean \"f32\"?");
  ExpectSays("upload cora.mtx --tune-for=spm:64", 2, "did you mean \"spmm:64\"?");
  ExpectSays("upload cora.mtx --tune-for=spmmT:64", 2, "did you mean \"spmm^T:64\"?");
  ExpectSays("spgemm cora cora --discard --semiring=boolan", 2, "did you mean \"boolean\"?");
  // Which the server knows.
  ExpectSays("slow --op=uplod", 3, "did you mean 'upload'? (request ");
  ExpectSays("prepare cora --pipeline=dcs", 3,
             "row_words, column_parts, incsr; did you mean 'dcsr'?");
  ExpectSays("prepare cora --pipeline='aspt(panl=3)'", 3, "did you mean 'panel'?");
  EXPECT_THAT(Run("prepare cora --pipeline=nonsense").text, Not(HasSubstr("did you mean")));
}

TEST_F(Sparsectl, HelpIsACommandToo) {
  EXPECT_EQ(Run("help").text, Run("--help").text);
  EXPECT_EQ(Run("help buffers put").text, Run("buffers put --help").text);
  EXPECT_THAT(Run("help upload").text, HasSubstr("Usage: sparsectl upload "));
  ExpectSays("help", 0, "Usage: sparsectl ");
  ExpectSays("help uplod", 2, "there is no command \"uplod\"; did you mean \"upload\"?");
  ExpectSays("help buffers puts", 2, "there is no command \"buffers puts\"; did you mean \"put\"?");
  ExpectSays("help show cora", 2, "\"cora\" is one word too many");
  EXPECT_EQ(Run("complete-words help uplo").text, Run("complete-words uplo").text);
  EXPECT_EQ(Run("complete-words help show ''").text, "");
}

TEST_F(Sparsectl, CallsTakeNoLongerThanTheyMay) {
  ASSERT_EQ(Run("generate matrix 9x9 --row-nonzeros=1 --out=a.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload a.mtx --wait --timeout=5m").exit_code, 0);
  ExpectSays("watch a --timeout=4s", 8, "ready");
  ExpectSays("show a --timeout=1ns", 2, "is not a time such as 500ms, 30s, 5m or 1h");
  ExpectSays("show a --timeout=0s", 2, "is not a time");
  server_.Pause();
  const Said said = Run("list --timeout=0.3s");
  server_.Resume();
  EXPECT_TRUE(said.exit_code == 5 || said.exit_code == 8) << said.exit_code << said.text;
}

TEST_F(Sparsectl, BenchSaysRatesAndPhases) {
  ASSERT_EQ(Run("generate matrix 40x40 --row-nonzeros=4 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx").exit_code, 0);
  const Said text = Run("bench s --k=8 --seconds=0.3");
  EXPECT_EQ(text.exit_code, 0) << text.text;
  for (const char* word : {"s  spmm K=8 f32, 1 at once, operands and results: stream", "GFLOP/s",
                           "P99.9", "latency ", "on the server ", "  kernel "}) {
    EXPECT_THAT(text.text, HasSubstr(word));
  }
  const Said held = Run("bench s --op=sddmm --k=8 -c 2 --transport=held --seconds=0.3 -o json");
  EXPECT_EQ(held.exit_code, 0) << held.text;
  for (const char* word : {R"("operation":"sddmm")", R"("transport":"held")", R"("concurrency":2)",
                           R"("p99.9_ns":)", R"("kernel":{"mean_ns":)", R"("failed":{})"}) {
    EXPECT_THAT(held.text, HasSubstr(word));
  }
  ExpectSays("buffers", 0, "no buffers");  // it leaves nothing behind
  ExpectSays("bench s --rate=50 --k=8 --seconds=0.5", 0, "50 due each second");
  ExpectSays("bench s --op=spgemm --seconds=0.3 --csv", 0, ",kernel_p99_ns,");
  ExpectSays("bench nobody --seconds=0.3", 4, "nobody");
  ExpectSays("bench s --op=spmv", 2, "none of spmm, sddmm, spgemm");
  ExpectSays("bench s --op=sddmm --transpose", 2, "--transpose: is for spmm alone");
  ExpectSays("bench s --rate=0", 2, "--rate");
  ExpectSays("bench s --concurrency=5000", 2, "is not a whole number from 1 to 1024");
  ExpectSays("bench s --seconds=1 --most-seconds=2", 2, "does not go with");
}

TEST_F(Sparsectl, RecordsRequestsAndMakesThemAgain) {
  ExpectSays("generate matrix 300x200 --row-nonzeros=50 --out=s.mtx", 0, "wrote");
  ExpectSays("upload s.mtx", 0, "uploaded");
  ExpectSays("generate dense 200x16 --out=B.npy && cp s.mtx t.mtx", 0, "wrote");
  const auto then = [](const std::string& words) { return " && " SPARSECTL_PROGRAM " " + words; };
  ExpectSays("list && export SPARSED_SERVER='" + server_.address() +
                 "' && { " SPARSECTL_PROGRAM
                 " record --seconds=60 --out=log.jsonl & pid=$!; sleep 1"
                 "; for i in 1 2 3; do true" +
                 then("spmm s --operand=B.npy --out=C.npy") + "; done" +
                 then("spgemm s s --transpose-left --discard") + then("upload t.mtx") +
                 then("spmm t --operand=B.npy --out=C.npy") + then("delete t") +
                 "; kill -TERM $pid; wait $pid; }",
             0, "recorded 7 requests in ");
  ExpectSays("bench --replay=log.jsonl", 0, "replay  log.jsonl, 4 of 7 requests\n");
  const Said text = Run("bench --replay=log.jsonl --speed=10");
  EXPECT_EQ(text.exit_code, 0) << text.text;
  for (const char* word : {"at 10 x its speed", "latency, from when due", "until it began", "P99.9",
                           "1 request was left out, which made no product: upload",
                           "1 request was left out: there is no matrix named 't' here"}) {
    EXPECT_THAT(text.text, HasSubstr(word));
  }
  ExpectSays("bench --replay=- --csv < log.jsonl", 0, ",latency_p99_ns,");
  ExpectSays("bench --replay=log.jsonl -o json", 0, R"("requests":4)");
  ExpectSays("bench --replay=log.jsonl --tenant=nobody", 3, "of tenant nobody");
  std::ofstream(folder_ + "/long.jsonl")
      << R"({"op":"spmm","subject":"s","k":8,"arrived_unix_ns":0})" << '\n'
      << R"({"op":"spmm","subject":"s","k":8,"arrived_unix_ns":9000000000000000000})" << '\n';
  ExpectSays("bench --replay=long.jsonl --speed=0.001", 3,
             "would be due after 104166667 days, and no replay takes more than 366");
  ExpectSays("bench --replay=s.mtx", 3, "s.mtx:1: it is no object of JSON");
  ExpectSays("bench --replay=nothing", 3, "nothing");
  ExpectSays("bench s --replay=log.jsonl", 2, "a matrix does not go with --replay");
  ExpectSays("bench", 2, "the matrix, or --replay, is missing");
  ExpectSays("bench --replay=log.jsonl --k=8", 2, "does not go with");
  ExpectSays("bench s --speed=2", 2, "--speed goes with --replay only");
  ExpectSays("bench --replay=log.jsonl --speed=0", 2, "--speed");
  ExpectSays("record --out=/proc/nothing/x", 3, "cannot create");
}

TEST_F(Sparsectl, TopAndWatchShowWhatHappens) {
  ASSERT_EQ(Run("generate matrix 40x40 --row-nonzeros=4 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx --wait").exit_code, 0);
  const Said top = Run("top --once --interval=0.1");
  EXPECT_EQ(top.exit_code, 0) << top.text;
  for (const char* word : {"1 matrix of 1 pattern, ", "DEVICE", "cpu", "OPERATION", "upload",
                           "TENANT", "default", "HOST MEMORY FOR", "matrices"}) {
    EXPECT_THAT(top.text, HasSubstr(word));
  }
  const Said pages = Run("top -n 2 -i 0.1 -o json");
  EXPECT_EQ(std::ranges::count(pages.text, '\n'), 2) << pages.text;
  EXPECT_THAT(pages.text, HasSubstr(R"("devices":[{"name":"cpu","busy":)"));
  ExpectSays("top --interval=0", 2, "--interval");
  ExpectSays("top --once 2>&1 >/dev/full #", 7, "cannot write to standard output");

  const std::string program = SPARSECTL_PROGRAM " -s " + server_.address();
  const Said watched =
      Run("--version; " + program + " watch s > watched & " + program +
          " watch s -o json > json & while [ ! -s watched -o ! -s json ]; do sleep 0.02; done; " +
          program + " delete s; wait; cat watched json");
  EXPECT_THAT(watched.text, HasSubstr("  ready"));
  EXPECT_THAT(watched.text, HasSubstr("s is not there any more\n"));
  EXPECT_THAT(watched.text, HasSubstr(R"({"name":"s","state":"deleted"})"));
  ExpectSays("watch s", 4, "no matrix named 's'");
}

TEST_F(Sparsectl, DoctorNeedsNoServer) {
  const Said none = Run("doctor --server=unix:/nonexistent/socket --data-dir=.");
  EXPECT_TRUE(none.exit_code == 0 || none.exit_code == 1) << none.text;
  for (const char* word : {"note     server", "memory", "limits", "disk", "cpu", "-> start one"}) {
    EXPECT_THAT(none.text, HasSubstr(word));
  }
  ExpectSays("doctor --data-dir=/nonexistent", 1, "problem  folder");
  EXPECT_THAT(Run("doctor -o json").text, HasSubstr(R"({"check":"server","status":"ok")"));
}

TEST_F(Sparsectl, ShellsComplete) {
  ASSERT_EQ(Run("generate matrix 9x9 --row-nonzeros=1 --out=cora.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload cora.mtx").exit_code, 0);
  EXPECT_EQ(Run("complete-words show co").text, "cora\n");
  EXPECT_EQ(Run("complete-words -s unix:/nonexistent/socket show co").text, "");
  // What says who calls holds for the names that it asks for.
  EXPECT_EQ(Run("complete-words --token-file=/nonexistent show co").text, "");
  EXPECT_EQ(Run("complete-words --priority=nonsense --timeout=5s show co").text, "cora\n");
  // Every step that the server knows, and no other.
  std::string steps = Run("complete-words prepare cora --pipeline ''").text;
  std::replace(steps.begin(), steps.end(), '\n', ' ');
  std::string known = Run("prepare cora --pipeline=nothing_such").text;
  known = known.substr(known.find("known: ") + 7);
  known = known.substr(0, known.find(" (request")) + ",";
  std::replace(known.begin(), known.end(), ',', ' ');
  std::istringstream offered(steps), taken(known);
  EXPECT_EQ(std::vector<std::string>(std::istream_iterator<std::string>(offered), {}),
            std::vector<std::string>(std::istream_iterator<std::string>(taken), {}));
  // A flag by its former name, which stays.
  EXPECT_EQ(Run("complete-words prepare cora --expect=x").text,
            Run("complete-words prepare cora --tune-for=x").text);
  // What a line becomes: tests/e2e/completion_test.py.
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    Run("completion " + shell + " > script");
    const Said checked =
        Run("--version; command -v " + shell + " || exit 0; " + shell + " -n script && echo fine");
    if (checked.text.find("/" + shell) != std::string::npos) {
      EXPECT_THAT(checked.text, HasSubstr("fine")) << shell;
    }
  }
  ExpectSays("completion csh", 2, "\"csh\" is none of bash, zsh, fish");
}

TEST_F(Sparsectl, ManualPagesAreWellFormed) {
  std::filesystem::create_directory(folder_ + "/man");
  ExpectSays("manual man", 0, "sparsectl-bench.1\n");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/man/sparsectl.1"));
  const Said said =
      Run("--version; command -v groff || exit 0; groff -man -Tutf8 -ww man/*.1 2>&1 "
          "> /dev/null");
  EXPECT_EQ(said.text.find("warning"), std::string::npos) << said.text;
  EXPECT_EQ(said.text.find("error"), std::string::npos) << said.text;
}

TEST_F(Sparsectl, WrongUseIsSaidInASentence) {
  ExpectSays("spgemm s s --name= --discard", 2, "--name lacks its value; see --help");
  ExpectSays("--server=unix:/nowhere= list", 5, "/nowhere=");  // is a value
  ExpectSays("", 2, "a COMMAND is missing; see --help");
  ExpectSays("generate", 2, "generate lacks its COMMAND");
  ExpectSays("multiply", 2, "there is no command \"multiply\"");
  ExpectSays("list --every", 2, "there is no flag \"--every\"");
  ExpectSays("list a b", 2, "\"b\" is one word too many");
  ExpectSays("spmm s --operand=B.npy", 2, "--out or --keep-as is missing");
  ExpectSays("spmm s --operand", 2, "--operand lacks its value");
  ExpectSays("spmm s --operand=B.npy --out=C.npy --beta=1", 2, "--beta goes with --accumulate");
  ExpectSays("spmm s --operand=B.npy --out=C.npy --alpha=x", 2, "--alpha: \"x\" is not a number");
  ExpectSays("spgemm s s", 2, "--out, --name or --discard");
  ExpectSays("spgemm s s --name=t --discard", 2, "--out, --name or --discard");
  ExpectSays("spgemm s s --discard --semiring=max-plus", 2,
             "max-plus is none of sum-product, boolean, min-plus and plus-pair");
  ExpectSays("spy s --width=5", 2, "\"5\" is not a whole number from 10 to 1000");
  ExpectSays("upload m.mtx --type=f8", 2, "f8 is none of f32, f64, f16 and bf16");
  for (const char* dense : {"spmm s --operand=B.npy", "sddmm s --left=A.npy --right=B.npy",
                            "buffers get b", "generate dense 3x3"}) {
    ExpectSays(std::string(dense) + " --out=Y.txt", 2, "--out: Y.txt must end in .npy, the format");
  }
  ExpectSays("download s --out=s.pdf", 2, "s.pdf must end in .mtx, .npz, .npy, .txt, .csv, ");
  ExpectSays("spgemm s s --out=s", 2, "s must end in .mtx");
  ExpectSays("generate matrix 3x3 --out=s.npz.gz", 2, "drop its .gz");
  ExpectSays("download s --out=s.mtx --format=hdf5", 2, "hdf5 is none of mtx, npz, npy, edges and");
  ExpectSays("spgemm s s --discard --format=npz", 2, "--format goes with --out only");
  ExpectSays("generate dense 5 --out=x.npy", 2, "is not ROWSxCOLUMNS");
  ExpectSays("--json list a b", 2, R"({"error":{"code":"USAGE")");
}

TEST_F(Sparsectl, WhatIsInterruptedLeavesNoPartsBehind) {
  for (const std::string name : {"big.mtx", "big.mtx.gz"}) {
    const Said said = Run(
        "--version; " SPARSECTL_PROGRAM " generate matrix 500000x5000 --row-nonzeros=40 --out=" +
        name + " & while kill -0 $! && ! ls " + name +
        ".partial-* >/dev/null 2>&1; do sleep 0.01; done; kill -TERM $!; wait $!; "
        "echo ended with $?");
    EXPECT_THAT(said.text, HasSubstr("ended with 143"));
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << name;
  }
}

TEST_F(Sparsectl, HelpSaysWhatSignaturesAndExitCodesAre) {
  ExpectSays("upload --help", 0, "rounded up to 1, 8, 16, 32, 64, 128, 256, 512 or 1024");
  ExpectSays("upload --help", 0, "default: spmm:128");
  ExpectSays("--help", 0, "   7  no room");
}

TEST_F(Sparsectl, FailuresHaveExitCodesOfTheirOwn) {
  ASSERT_EQ(Run("generate matrix 30x20 --row-nonzeros=5 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("upload s.mtx").exit_code, 0);
  ExpectSays("upload s.mtx", 6, "--replace");
  ExpectSays("upload s.mtx --name=h --type=f16 --tune-for=spgemm", 3, "f32 and f64 matrices");
  ExpectSays("upload nothing.mtx", 3, "cannot open nothing.mtx");
  ExpectSays("show nobody", 4, "nobody");
  ExpectSays("--server=unix:/nonexistent/socket list", 5, "unix:/nonexistent/socket");
  ASSERT_EQ(Run("generate dense 150x1 --out=v.npy").exit_code, 0);
  ExpectSays("update s --values=v.npy --durable", 6, "--data-dir");
  ExpectSays("update s --values=v.npy", 0, "version 2");
}

TEST_F(Sparsectl, NumbersThatATypeCannotHoldAreRefused) {
  std::ofstream(folder_ + "/m.mtx")
      << "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 70000\n";
  ExpectSays("upload m.mtx --type=f16", 3, "row 1, column 1: 70000 is beyond f16");
  ExpectSays("upload m.mtx --type=bf16", 0, "uploaded m");
}

TEST_F(Sparsectl, Tf32ThatMakesNoDifferenceIsTold) {
  ASSERT_EQ(Run("generate matrix 30x20 --row-nonzeros=5 --out=s.mtx").exit_code, 0);
  ASSERT_EQ(Run("generate dense 20x8 --out=B.npy").exit_code, 0);
  ExpectSays("upload s.mtx --name=d --type=f64 --tune-for=spmm:8:tf32", 0,
             "TF32 makes no difference: it is for f32, this matrix is f64");
  ExpectSays("spmm d --operand=B.npy --out=C.npy --allow-tf32", 0, "this matrix is f64");
  EXPECT_THAT(Run("spmm d --operand=B.npy --out=C.npy").text, Not(HasSubstr("TF32")));
}

}  // namespace
}  // namespace sparsed::test
