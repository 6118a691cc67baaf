// Edge lists and METIS graphs, and how one is told from the other.
#include <span>

#include "client/cli/metis.h"
#include "tests/unit/client/format_files.h"

namespace sparsed::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class EdgeListTest : public FormatFiles {};

TEST_F(EdgeListTest, AsSnapWritesThem) {
  const auto read = Read(
      "# Directed graph (each unordered pair of nodes is saved once)\n"
      "# Nodes: 4 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n0\t3\n\n2\t0\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->format, FileFormat::kEdgeList);
  EXPECT_EQ(read->matrix.rows, 4);
  EXPECT_EQ(read->matrix.cols, 4);
  EXPECT_THAT(read->matrix.row_offsets, ElementsAre(0, 2, 2, 3, 3));
  EXPECT_THAT(read->matrix.column_indices, ElementsAre(1, 3, 0));
  EXPECT_TRUE(read->ones);
  EXPECT_THAT(read->notes, IsEmpty());
}

TEST_F(EdgeListTest, DelimitersNamesAndQuotationMarks) {
  const std::vector<std::string> files = {
      "0 1 0.5\n1 2 -3\n",
      "\xef\xbb\xbf"
      "0 1 0.5\r\n1 2 -3\r\n",
      "% sym weighted\n0  1\t0.5\n  1 2 -3  ",
      "0,1,0.5\n1,2,-3\n",
      "id_1,id_2,weight\n0,1,0.5\n1,2,-3\n",
      "\"from\";\"to\";\"w\"\n\"0\";\"1\";\"0.5\"\n\"1\";\"2\";\"-3\"\n",
      "from\tto\tw\n0\t1\t0.5\n+1\t2\t-3e0\n",
      "0 , 1 , 5e-1\n1 , 2 , -3\n",
  };
  for (const std::string& file : files) {
    const auto read = Read(file);
    ASSERT_TRUE(read.ok()) << file << read.status();
    EXPECT_EQ(read->matrix.rows, 3) << file;
    EXPECT_THAT(read->matrix.column_indices, ElementsAre(1, 2)) << file;
    EXPECT_THAT(Values(read->matrix), ElementsAre(0.5, -3)) << file;
  }
}

TEST_F(EdgeListTest, OptionsSayWhatTheFileDoesNot) {
  ReadOptions options = Exact();
  options.one_based = true;
  options.undirected = true;
  auto read = Read("1 2 5\n3 3 7\n", options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->matrix.row_offsets, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(read->matrix.column_indices, ElementsAre(1, 0, 2));
  EXPECT_THAT(Values(read->matrix), ElementsAre(5, 5, 7)) << "a loop is one entry";

  options = Exact();
  options.weight_column = 0;
  read = Read("0 1 5\n1 0 6\n", options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(Values(read->matrix), ElementsAre(1, 1));
  options.weight_column = 4;
  read = Read("0 1 1999 6\n1 0 2000 7\n", options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(Values(read->matrix), ElementsAre(6, 7));

  // As numpy.savetxt writes them, and with a comment behind.
  read = Read("0.0 1e0 0.5\n1.0 2.0 1.5 # the last\n", Exact());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(Values(read->matrix), ElementsAre(0.5, 1.5));
  EXPECT_EQ(read->matrix.cols, 3);

  options = Exact();
  options.shape = MatrixShape{0, 5};
  EXPECT_THAT(Refusal("0 4\n", options), HasSubstr("file:1: a matrix of 0 x 5 has no entries"));
  options.shape = MatrixShape{3, 5};
  read = Read("0 4\n", options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->matrix.rows, 3);
  EXPECT_EQ(read->matrix.cols, 5);
  EXPECT_THAT(Refusal("0 1\n3 4\n", options),
              HasSubstr("file:2: row 3 is out of range, expected 0 to 2: the matrix is 3 x 5; do "
                        "indices count from 1 (--one-based)?"));
  read = Read("# shape: 4x9\n0 4\n", Exact());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->matrix.cols, 9);
  EXPECT_THAT(Refusal("# shape: 2x2\n0 4\n"), HasSubstr("file:2: column 4 is out of range"));
}

TEST_F(EdgeListTest, WhatIsGuessedOrSummedIsTold) {
  auto read = Read("1 2\n2 1\n1 2\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->duplicates, 1);
  EXPECT_THAT(Values(read->matrix), ElementsAre(2, 1));
  EXPECT_THAT(read->notes, ElementsAre(HasSubstr("--one-based")));
  read = Read("from,to,x\n0,1,nan\n1,0,-inf\n1,1,inf\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->nan, 1);
  EXPECT_EQ(read->infinite, 2);
  EXPECT_THAT(read->notes, ElementsAre(HasSubstr("\"from,to,x\", was taken for names"),
                                       HasSubstr("values are those of the third column")));
  ReadOptions options = Exact();
  options.undirected = true;
  read = Read("0 1\n1 0\n", options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->notes, ElementsAre(HasSubstr("without --undirected")));
}

TEST_F(EdgeListTest, ErrorsNameFileAndLineAndSayWhatWasExpected) {
  EXPECT_THAT(Refusal("0 1\n1 2 3\n"),
              "file:2: expected 2 columns as in the first line, found 3 in \"1 2 3\"");
  EXPECT_THAT(Refusal("7\n"), HasSubstr("file:1: expected the two nodes of an edge"));
  EXPECT_THAT(Refusal("0 1 2 3\n"),
              HasSubstr("say which has the weights, as in --weight-column=3"));
  // Prose, which has columns, too.
  EXPECT_THAT(Refusal("this is no matrix\n"),
              HasSubstr("no edges in it, only the line \"this is no matrix\""));
  EXPECT_THAT(Refusal("this is no matrix\nnor is this one\n"),
              HasSubstr("the node \"nor\" is not a whole number"));
  EXPECT_THAT(Refusal("0 1 x\n"), HasSubstr("file:1: the weight \"x\" is not a number"));
  EXPECT_THAT(Refusal("0 1 1e999\n"), HasSubstr("too large for f64"));
  EXPECT_THAT(Refusal("0 1\n-1 2\n"), HasSubstr("file:2: row -1 is out of range"));
  EXPECT_THAT(Refusal("0 1\n1.5 2\n"), HasSubstr("the node \"1.5\" is not a whole number"));
  // The first of lines of words is an edge unless it can be none.
  EXPECT_THAT(Refusal("joe bob\nann bob\n"),
              AllOf(HasSubstr("number the nodes: awk '!/^"),
                    HasSubstr("(line 1, \"joe bob\", is taken for an edge; put NR != 1 && ")));
  EXPECT_THAT(Refusal("a b weight\nann bob 3\n"), HasSubstr("number the nodes: awk 'NR != 1 && "));
  EXPECT_THAT(Refusal("From To\nann bob\n"), HasSubstr("is taken for the columns' names"));
  EXPECT_THAT(Refusal("# x\nfrom,to\nann,bob\n"),
              HasSubstr("awk -F',' -v OFS=',' 'NR != 2 && !/^"));
  EXPECT_THAT(
      Refusal("0;1;0,5\n1;2;1,5\n"),
      AllOf(HasSubstr("tr ',;' '. ' < /"), HasSubstr("/file | sparsectl upload - --name=file")));
  EXPECT_THAT(Refusal("0 9999999999\n"),
              HasSubstr("column 9999999999 is too large: rows and columns can be 2147483646"));
  EXPECT_THAT(Refusal("0 2000000000\n"), HasSubstr("there are 1 entries only"));
  EXPECT_THAT(Refusal("0,1,,\n"), HasSubstr("there are 4 columns"));
  EXPECT_THAT(Refusal("3 4 3\n1 1 2\n2 4 5\n3 3 6\n"),
              HasSubstr("a Matrix Market file without its banner"));
  EXPECT_THAT(Refusal(""), HasSubstr("the file is empty"));
  ReadOptions options = Exact();
  options.one_based = true;
  EXPECT_THAT(Refusal("0 1\n", options), HasSubstr("count from 1, as --one-based says"));
  options.weight_column = 3;
  EXPECT_THAT(Refusal("1 1\n", options), HasSubstr("--weight-column=3: there are 2 columns"));
  options = Exact();
  options.type = ValueType::kF16;
  EXPECT_THAT(Refusal("0 1 70000\n", options), HasSubstr("row 0, column 1: 70000 is beyond f16"));
}

TEST_F(EdgeListTest, NoEdges) {
  const auto read = Read("# shape: 3x2\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->matrix.rows, 3);
  EXPECT_EQ(read->matrix.nnz(), 0);
  EXPECT_THAT(Refusal("# nothing\n"), HasSubstr("file: there are no edges in it; an empty"));
  EXPECT_THAT(Refusal("no archive"), HasSubstr("no edges in it, only the line \"no archive\";"));
}

class MetisTest : public FormatFiles {};

// The graphs of the manual's figure 2, with and without weights.
constexpr const char* kPlain =
    "% a comment\n7 11\n5 3 2\n1 3 4\n5 4 2 1\n2 3 6 7\n1 3 6\n5 4 7\n6 4\n";
constexpr const char* kEdgeWeights =
    "7 11 001\n5 1 3 2 2 1\n1 1 3 2 4 1\n5 3 4 2 2 2 1 2\n2 1 3 2 6 2 7 5\n1 1 3 3 6 2\n"
    "5 2 4 2 7 6\n6 6 4 5\n";
constexpr const char* kBothWeights =
    "7 11 011\n4 5 1 3 2 2 1\n2 1 1 3 2 4 1\n5 5 3 4 2 2 2 1 2\n3 2 1 3 2 6 2 7 5\n"
    "1 1 1 3 3 6 2\n6 5 2 4 2 7 6\n2 6 6 4 5\n";
constexpr const char* kThreeWeights =
    "7 11 010 3\n1 2 0 5 3 2\n0 2 2 1 3 4\n4 1 1 5 4 2 1\n2 2 3 2 3 6 7\n1 1 1 1 3 6\n"
    "2 2 1 5 4 7\n1 2 1 6 4\n";
constexpr const char* kEverything =
    "7 11 111 1\n9 4 5 1 3 2 2 1\n9 2 1 1 3 2 4 1\n9 5 5 3 4 2 2 2 1 2\n9 3 2 1 3 2 6 2 7 5\n"
    "9 1 1 1 3 3 6 2\n9 6 5 2 4 2 7 6\n9 2 6 6 4 5\n";

TEST_F(MetisTest, EveryFormatOfTheManual) {
  const auto plain = Read(kPlain);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->format, FileFormat::kMetis);
  EXPECT_THAT(plain->matrix.row_offsets, ElementsAre(0, 3, 6, 10, 14, 17, 20, 22));
  EXPECT_EQ(plain->matrix.column_indices[0], 1);
  EXPECT_EQ(plain->matrix.column_indices[2], 4);
  EXPECT_TRUE(plain->ones);
  EXPECT_THAT(plain->notes, IsEmpty());
  const auto weighted = Read(kEdgeWeights);
  ASSERT_TRUE(weighted.ok()) << weighted.status();
  EXPECT_EQ(weighted->matrix.column_indices, plain->matrix.column_indices);
  const std::vector<double> weights = Values(weighted->matrix);
  EXPECT_THAT(std::span(weights).first(3), ElementsAre(1, 2, 1));
  for (const char* file : {kBothWeights, kEverything}) {
    const auto both = Read(file);
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_EQ(both->matrix.values, weighted->matrix.values);
    EXPECT_EQ(both->matrix.column_indices, plain->matrix.column_indices);
    EXPECT_THAT(both->notes, ElementsAre(HasSubstr("weights of vertices were left out")));
  }
  const auto three = Read(kThreeWeights);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->matrix.column_indices, plain->matrix.column_indices);
}

TEST_F(MetisTest, VerticesWithoutNeighbours) {
  const auto read = Read("4 1\n\n3\n2\n\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->format, FileFormat::kMetis);
  EXPECT_THAT(read->matrix.row_offsets, ElementsAre(0, 0, 1, 2, 2));
}

TEST_F(MetisTest, AVertexMayHaveAMillionNeighbours) {
  constexpr int kCount = 400'000;
  std::string star = std::to_string(kCount + 1) + " " + std::to_string(kCount) + "\n";
  for (int i = 0; i < kCount; ++i) star += std::to_string(i + 2) + " ";
  star += "\n";
  for (int i = 0; i < kCount; ++i) star += "1\n";
  ReadOptions options = Exact();
  options.format = FileFormat::kMetis;
  const auto read = Read(star, options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->matrix.nnz(), 2 * kCount);
}

TEST_F(MetisTest, ErrorsNameFileAndLineAndSayWhatWasExpected) {
  ReadOptions options = Exact();
  options.format = FileFormat::kMetis;
  EXPECT_THAT(Refusal("a b\n", options), HasSubstr("file:1: expected \"VERTICES EDGES"));
  EXPECT_THAT(Refusal("3 2 002\n", options), HasSubstr("found \"3 2 002\""));
  EXPECT_THAT(Refusal("3 2\n2\n1 3\n", options), "file:3: the file ends after 2 of 3 vertices");
  EXPECT_THAT(Refusal("3 2\n2\n1 3\n2\n1\n", options),
              HasSubstr("file:5: more lines than the 3 vertices"));
  EXPECT_THAT(Refusal("3 2\n2\n1 4\n2\n", options),
              "file:3: vertex 4 is out of range, expected 1 to 3");
  EXPECT_THAT(Refusal("3 2\n2\n1 0\n2\n", options), HasSubstr("vertex 0 is out of range"));
  EXPECT_THAT(Refusal("3 2\n2\n1 x\n2\n", options),
              "file:3: expected a neighbour's number, found \"x\"");
  EXPECT_THAT(Refusal("3 2 1\n2 5\n1 5 3\n2 5\n", options),
              "file:3: expected the weight of the edge to 3, found the line's end");
  EXPECT_THAT(Refusal("3 2 10\n7 2\n\n7 2\n", options),
              "file:3: expected 1 number of vertex 2 first, found the line's end");
  EXPECT_THAT(Refusal("3 3\n2\n1 3\n2\n", options),
              HasSubstr("3 edges were announced, each of which comes at both of its ends, but "
                        "there are 4 neighbours and not 6"));
  EXPECT_THAT(Refusal("3000000000 2\n", options), HasSubstr("3000000000 vertices are too many"));
}

TEST_F(MetisTest, IsToldFromAnEdgeListByItsContent) {
  for (const char* metis : {kPlain, kEdgeWeights, kBothWeights, kThreeWeights, kEverything,
                            "4 4\n2 4\n1 3\n2 4\n3 1\n", "% METIS graph\n5 0 1\n\n\n\n\n\n"}) {
    EXPECT_TRUE(LooksLikeMetis(metis, true)) << metis;
  }
  for (const char* edges : {"0 1\n1 2\n", "5 3\n1 2\n3 4\n5 1\n", "0 0\n", "1 0\n\n",
                            "2 1 1\n1 2 1\n", "# a\n3 2\n1 2\n", "4 3 2 1\n1 2 3 4\n",
                            "9 8\n8 7\n7 6\n6 5\n", "3 2 1\n1 2 5\n2 1 5\n3 1 4\n", "1,2\n", ""}) {
    EXPECT_FALSE(LooksLikeMetis(edges, true)) << edges;
  }
  std::string descending;
  for (int i = 100'000; i > 0; --i) {
    descending += std::to_string(i) + " " + std::to_string(i - 1) + "\n";
  }
  EXPECT_FALSE(LooksLikeMetis(descending, false));
}

class UnreadTest : public FormatFiles {};

TEST_F(UnreadTest, WhatIsNotReadIsNamedWithACommand) {
  const std::string zeros(600, '\0');
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.mtx").replace(257, 5, "ustar");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"BZh91AY&SY", "compressed by bzip2, which is not read; try bunzip2 -c "},
      {"\x04\x22\x4d\x18" + zeros, "lz4 -dc "},
      {tar, "a tar archive, which is not read; try tar -xOf "},
      {"\x89HDF\r\n\x1a\n" + zeros, "an HDF5 file"},
      {"MATLAB 5.0 MAT-file, Platform: GLNXA64" + zeros, "scipy.io as i"},
      {"PAR1" + zeros, "read_parquet"},
      {"\x80\x04\x95" + zeros, "a Python pickle"},
      {std::string("\xff\xfe"
                   "0\0 \0"
                   "1\0\n\0",
                   10),
       "iconv -f UTF-16"},
      {"<?xml version=\"1.0\"?><graphml>", "read_graphml"},
      {"{\"nodes\": []}", "node_link_graph"},
      {"graph [\n  node [ id 0 ]\n]", "read_gml"},
      {"c a comment\np sp 3 2\na 1 2 5\n", "awk '/^[ae] /"},
      {"+1 3:0.5 7:1\n", "load_svmlight_file"},
      {"A title                                                                   key\n"
       "             5             1             1             3             0\n"
       "RUA                        3             3             4             0\n",
       "hb_read"},
      {std::string("\x01\x02\x00\x03", 4) + zeros, "the format is not known: expected a Matrix "},
      {"%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 1\n", "m.real"},
  };
  for (const auto& [bytes, what] : cases) EXPECT_THAT(Refusal(bytes), HasSubstr(what));
}

TEST_F(UnreadTest, FlagsOfEdgeListsAreForThemAlone) {
  ReadOptions options = Exact();
  options.undirected = true;
  EXPECT_THAT(Refusal("%%MatrixMarket matrix coordinate real general\n1 1 0\n", options),
              "file: --undirected is for edge lists and arrays of entries, this is a Matrix Market "
              "file");
  options = Exact();
  options.shape = MatrixShape{2, 2};
  EXPECT_THAT(Refusal("%%MatrixMarket matrix coordinate real general\n1 1 0\n", options),
              "file: the matrix is 1 x 1, expected 2 x 2");
}

}  // namespace
}  // namespace sparsed::cli
