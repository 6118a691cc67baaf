// The large generated matrices that kernels are measured on: the same ones for the same name,
// however many threads make them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/generate.h"

namespace sparsed::test {

std::vector<std::string> GeneratedNames();

/// band16: 500,000 rows, |i - j| <= 16 (band200k: 200,000, 15). bperm: 262,144 rows (bperm64k:
/// 65,536, bperm1m: 1,000,000) in groups of 16 that share 32 columns, a tenth of the entries
/// replaced by random columns, rows shuffled. bw15, bw31, ... bw111: 20,000 rows, |i - j| <= 15 and
/// so on; bw15r, ...: in random order, rows and columns alike. p2d5, p2d9: 5- and 9-point stencils
/// on 1024 x 1024. p3d7: 7-point stencil on 101^3. uni16: uniform, 500,000 rows, 16 a row (uni100k:
/// 100,000). cl16: Chung-Lu, exponent 2.1 on both sides, 500,000 rows, 16 a row. dense400: uniform,
/// 16,384 rows, 400 a row. dense4k, thin4k: 4096 x 4096, full, and 8 random nonzeros in every 256
/// columns of each row (what RS-SpMM, section 4.3, calibrates its cost model by). runs32: 200,000
/// rows, two runs of 32 columns a row, at random places. hyper16: 2,097,152 rows, every 16th has 40
/// random columns, the others are empty. rmat18, rmat20: Graph500 R-MAT (a, b, c = 0.57, 0.19,
/// 0.19), 16 edges a vertex (rmat16: 8), ids permuted, duplicates merged. Nothing if there is none
/// of that name.
std::optional<Pattern> Generated(const std::string& name);

}  // namespace sparsed::test
