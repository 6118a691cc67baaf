// Small networks and decision trees, as the papers' own models are: a perceptron over features
// (Mehrabi et al., section V), a convolutional network over the density map beside one (MatNet, Xie
// et al., section 4.3), a decision tree (RS-SpMM, section 4.2). They are trained by
// tools/train/papers and run here, with Eigen, for one pattern at a time.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/planning/predictor.h"

namespace sparsed::engine {

/// Layers, in branches that end in one vector, and further ones over that. Immutable.
///
/// A file is a line of JSON and, behind it, all layers' weights as little-endian floats of 32 bits,
/// in the order of the layers, without gaps:
///
///   {"format": 1, "branches": [{"of": "features", "layers": [...]},
///                              {"of": "density_map", "layers": [...]}], "layers": [...]}
///
/// A branch begins with the model's inputs, or with the density map as 1 x 128 x 128 numbers from 0
/// to 1: the logarithms of 1 + the counts over the largest of them, rounded to a 255th. What is of
/// several channels lies channel by channel, row by row. With n numbers going in, and what a layer
/// says of itself:
///
/// - `standardise`: n numbers come of it, log2(offset + |x|) less mean, times scale, within +-5.
///   Weights: offset[n], mean[n], scale[n].
/// - `dense`, of `outputs` (m): m numbers. Weights: m x n, bias[m].
/// - `relu`: n numbers, those below 0 as 0.
/// - `convolution`, of `channels`, `size` (odd) and `stride`: as many channels, each a square of
///   side (side - 1) / stride + 1, padded with 0. Weights: channels x those before x size x size,
///   bias[channels].
/// - `max_pool`, of `size`: of each channel a square of side / size.
/// - `tree`, of `outputs` (m), and of each node `input`, `left`, `right`: a leaf's m numbers.
///   Weights: threshold of each node, leaves x m.
/// - `soft_labels`, of `default`, `algorithms` (m, at most 1,000) and perhaps `parameters` (m): m
///   numbers. No weights.
///
/// A tree goes left where the input is at most the threshold; a node whose `left` is -1 is the leaf
/// of number `right`. `soft_labels` makes log2(time / default's time) of the logits of algorithms
/// that were trained to have probabilities inverse to their times: of candidate i
/// (logit[default] - logit[algorithms[i]]) / ln 2. With `parameters` one more number goes in, and
/// of the candidates of an algorithm those whose parameter is not the nearest to it are not chosen:
/// 10, a thousand times as slow.
class Network : public Predictor {
 public:
  /// INVALID_ARGUMENT: these are none of its bytes, or not of so many inputs and outputs.
  static absl::StatusOr<std::unique_ptr<Network>> Load(std::string_view bytes, int inputs,
                                                       int outputs);
  ~Network() override;

  absl::StatusOr<std::vector<double>> Predict(std::span<const float> row,
                                              const DensityMap& map) const override;

 private:
  struct Layers;
  explicit Network(std::unique_ptr<const Layers> layers);

  const std::unique_ptr<const Layers> layers_;
};

}  // namespace sparsed::engine
