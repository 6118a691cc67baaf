#include "client/cli/unread_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

/// How a format is told, what it is called, and what becomes of its FILE.
struct Format {
  bool (*begins)(std::string_view head);
  std::string_view name;
  std::string_view command;
};

std::string_view FirstLine(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

bool IsOneOf(char c, std::string_view letters) { return letters.find(c) != std::string_view::npos; }

/// The third of four or five header lines says type and shape: "RUA".
bool IsHarwellBoeing(std::string_view head) {
  FirstLine(head);
  FirstLine(head);
  const std::string_view type = FirstLine(head);
  return type.size() >= 14 && IsOneOf(type[0], "RCPIrcpi") && IsOneOf(type[1], "SUHZRsuhzr") &&
         IsOneOf(type[2], "AEae") && type[3] == ' ';
}

/// "+1 3:0.5 7:1".
bool IsSvmLight(std::string_view head) {
  std::string_view line = FirstLine(head);
  if (!ParseReal(NextWord(line))) return false;
  const std::string_view pair = NextWord(line);
  const size_t colon = pair.find(':');
  return colon != std::string_view::npos && ParseInteger(pair.substr(0, colon)) &&
         ParseReal(pair.substr(colon + 1));
}

/// "p sp 5 6" behind comments "c ...".
bool IsDimacs(std::string_view head) {
  while (!head.empty()) {
    std::string_view line = FirstLine(head);
    const std::string_view first = NextWord(line);
    if (first == "p") return !ParseInteger(NextWord(line));
    if (first != "c") return false;
  }
  return false;
}

bool IsTar(std::string_view head) { return head.size() > 262 && head.substr(257, 5) == "ustar"; }

bool Begins(std::string_view head, std::string_view with) { return head.starts_with(with); }

/// Behind blanks.
char FirstCharacter(std::string_view head) {
  for (const char c : head) {
    if (!IsBlank(c) && c != '\n') return c;
  }
  return '\0';
}

const std::vector<Format>& Formats() {
  using View = std::string_view;
  static const std::vector<Format> formats = {
      {[](View head) { return Begins(head, "BZh"); }, "compressed by bzip2",
       "bunzip2 -c FILE | sparsectl upload - --name=NAME"},
      {[](View head) { return Begins(head, "\x04\x22\x4d\x18"); }, "compressed by lz4",
       "lz4 -dc FILE | sparsectl upload - --name=NAME"},
      {IsTar, "a tar archive",
       "tar -xOf FILE --wildcards '*.mtx' | sparsectl upload - --name=NAME"},
      {[](View head) { return Begins(head, "\x89HDF"); }, "an HDF5 file (AnnData, MATLAB 7.3, ...)",
       "python3 -c \"import anndata, scipy.sparse as s; s.save_npz('OUT.npz', "
       "s.csr_matrix(anndata.read_h5ad('FILE').X))\""},
      {[](View head) { return Begins(head, "MATLAB 5.0 MAT-file"); }, "a MATLAB file",
       "python3 -c \"import scipy.io as i, scipy.sparse as s; s.save_npz('OUT.npz', next(v for v "
       "in i.loadmat('FILE').values() if s.issparse(v)).tocsr())\""},
      {[](View head) { return Begins(head, "PAR1"); }, "a Parquet file",
       "python3 -c \"import pandas as p; p.read_parquet('FILE').to_csv('OUT.csv', index=False)\""},
      {[](View head) {
         return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
       },
       "a Python pickle",
       "python3 -c \"import pickle, scipy.sparse as s; s.save_npz('OUT.npz', "
       "s.csr_matrix(pickle.load(open('FILE', 'rb'))))\" (which runs what whoever wrote it wants)"},
      {[](View head) { return Begins(head, "\xff\xfe") || Begins(head, "\xfe\xff"); },
       "a text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | sparsectl upload - --name=NAME"},
      {[](View head) { return FirstCharacter(head) == '<'; }, "XML or HTML",
       "python3 -c \"import networkx as n, scipy.sparse as s; s.save_npz('OUT.npz', "
       "n.to_scipy_sparse_array(n.read_graphml('FILE')))\" (of GraphML)"},
      {[](View head) { return FirstCharacter(head) == '{' || FirstCharacter(head) == '['; }, "JSON",
       "python3 -c \"import json, networkx as n, scipy.sparse as s; s.save_npz('OUT.npz', "
       "n.to_scipy_sparse_array(n.node_link_graph(json.load(open('FILE')))))\" (of a node-link "
       "graph)"},
      {[](View head) { return FirstCharacter(head) == 'g' && head.find("graph") < 16; },
       "a graph in GML",
       "python3 -c \"import networkx as n, scipy.sparse as s; s.save_npz('OUT.npz', "
       "n.to_scipy_sparse_array(n.read_gml('FILE')))\""},
      {IsDimacs, "a graph of the DIMACS challenges",
       "awk '/^[ae] / {print $2, $3, $4}' FILE | sparsectl upload - --one-based --name=NAME"},
      {IsSvmLight, "a data set in LIBSVM's format",
       "python3 -c \"import scipy.sparse as s, sklearn.datasets as d; s.save_npz('OUT.npz', "
       "d.load_svmlight_file('FILE')[0])\""},
      {IsHarwellBoeing, "a Harwell-Boeing file",
       "python3 -c \"import scipy.io, scipy.sparse as s; s.save_npz('OUT.npz', "
       "scipy.io.hb_read('FILE'))\""},
  };
  return formats;
}

}  // namespace

std::string UnreadFormat(std::string_view head) {
  for (const Format& format : Formats()) {
    if (!format.begins(head)) continue;
    return fmt::format("this is {}, which is not read; try {}", format.name, format.command);
  }
  return {};
}

}  // namespace sparsed::cli
