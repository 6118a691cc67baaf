// Products of patterns, which SpGEMM's plans are for, and what the patterns have for them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/catalog/pattern.h"
#include "engine/store/pattern_pair.h"
#include "kernels/kernel_table.h"

namespace sparsed::engine {

/// A product of patterns: what decides which entries its result has.
struct PatternProduct {
  std::shared_ptr<Pattern> left, right;
  bool transpose_left = false, transpose_right = false;
  std::shared_ptr<Pattern> mask = nullptr;  ///< null: none

  /// What plans of the left pattern know it by.
  PatternPair pair() const { return {right->hash(), transpose_left, transpose_right}; }
};

/// The pipeline by which a factor's pattern knows the layout that a plan of `pipeline` reads it
/// from.
std::string FactorPipeline(std::string_view pipeline, bool transposed);

/// For people: both factors of a product as the kernel reads them from layouts of `pipeline`; as
/// ToString(pair) where that is plain CSR, else "csr * dia", "csr * dia <hash of the right one>".
std::string FactorsText(const PatternPair& pair, std::string_view left_hash,
                        std::string_view pipeline, std::string_view kernel);

/// The layouts that a kernel reads both factors from besides plain CSR; null: it reads none.
struct FactorLayouts {
  std::shared_ptr<LazyLayout> left, right;
};

/// What the product's patterns have of `pipeline` for the kernel; none if one that it needs is not
/// there. They may have to be read from the disk.
std::optional<FactorLayouts> FindFactorLayouts(const PatternProduct& product,
                                               const SpgemmKernel& kernel,
                                               std::string_view pipeline);
/// The same for a plan of the product; none also if there is no such kernel.
std::optional<FactorLayouts> FindFactorLayouts(const PatternProduct& product, const Plan& plan);

/// Whether a plan of a pattern with the hash `left` reads a layout of the pattern `pattern`, which
/// that one knows by `pipeline`.
bool UsesLayout(const Plan& plan, std::string_view left, const Pattern& pattern,
                std::string_view pipeline);

}  // namespace sparsed::engine
