#include "engine/planning/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <variant>

// One pattern at a time is not worth a team of threads.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Dense>

#include "kernels/array.h"

namespace sparsed::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "weights are read as they lie");

using Json = nlohmann::json;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXf;

constexpr int kFormat = 1;
constexpr size_t kMostHeaderBytes = size_t{1} << 20;
constexpr size_t kMostLayers = 64, kMostBranches = 4, kMostLabels = 1000;
constexpr int64_t kMostNumbers = int64_t{1} << 20;  // between two layers
constexpr int64_t kMostProducts = 100'000'000;      // of an estimate: tens of milliseconds
constexpr float kMostDeviations = 5;
/// Of a candidate that a model does not choose, in log2.
constexpr float kNotChosen = 10;

/// What goes from one layer to the next: `channels` planes of side x side numbers.
struct Shape {
  int64_t channels = 0, side = 1;
  int64_t numbers() const { return channels * side * side; }
};

struct Standardise {
  Eigen::ArrayXf offset, mean, scale;
};
struct Dense {
  RowMajor weights;
  Vector bias;
};
struct Relu {};
struct Convolution {
  Shape in;
  int64_t size = 1, stride = 1;
  Shape out;
  RowMajor weights;  ///< out.channels x (in.channels * size * size)
  Vector bias;
};
struct MaxPool {
  Shape in;
  int64_t size = 1;
  Shape out;
};
struct Tree {
  struct Node {
    int64_t input = 0, left = 0, right = 0;
    float threshold = 0;
  };
  std::vector<Node> nodes;
  RowMajor leaves;  ///< a row for each
};
struct SoftLabels {
  int64_t of_default = 0;
  std::vector<int64_t> algorithms;
  std::vector<float> parameters;  ///< empty: none goes in
};
using Layer = std::variant<Standardise, Dense, Relu, Convolution, MaxPool, Tree, SoftLabels>;

struct Branch {
  bool of_map = false;
  std::vector<Layer> layers;
};

Vector Run(const Standardise& layer, const Vector& x) {
  const Eigen::ArrayXf logarithms =
      (layer.offset + x.array().abs()).log() / std::numbers::ln2_v<float>;
  return ((logarithms - layer.mean) * layer.scale).min(kMostDeviations).max(-kMostDeviations);
}

Vector Run(const Dense& layer, const Vector& x) { return layer.weights * x + layer.bias; }

Vector Run(const Relu& /*layer*/, const Vector& x) { return x.cwiseMax(0.0F); }

/// Columns of what each place of the kernel covers, as one matrix, times the weights.
Vector Run(const Convolution& layer, const Vector& x) {
  const int64_t padding = (layer.size - 1) / 2, step = layer.stride;
  const int64_t side = layer.in.side, width = layer.out.side;
  RowMajor covered = RowMajor::Zero(layer.weights.cols(), width * width);
  int64_t row = 0;
  for (int64_t channel = 0; channel < layer.in.channels; ++channel) {
    const float* const plane = x.data() + channel * side * side;
    for (int64_t down = 0; down < layer.size; ++down) {
      for (int64_t across = 0; across < layer.size; ++across, ++row) {
        float* const taken = covered.data() + row * width * width;
        // Those whose place is not in the padding.
        const int64_t first = std::max<int64_t>(0, (padding - across + step - 1) / step);
        const int64_t beyond = side + padding - across;
        const int64_t last = std::min(width, beyond > 0 ? (beyond - 1) / step + 1 : 0);
        for (int64_t i = 0; i < width; ++i) {
          const int64_t from_row = i * step + down - padding;
          if (from_row < 0 || from_row >= side) continue;
          const float* const from = plane + from_row * side + across - padding;
          for (int64_t j = first; j < last; ++j) taken[i * width + j] = from[j * step];
        }
      }
    }
  }
  RowMajor sums = (layer.weights * covered).colwise() + layer.bias;
  return Eigen::Map<const Vector>(sums.data(), sums.size());
}

Vector Run(const MaxPool& layer, const Vector& x) {
  const int64_t side = layer.in.side, width = layer.out.side;
  Vector most = Vector::Constant(layer.out.numbers(), -std::numeric_limits<float>::infinity());
  for (int64_t channel = 0; channel < layer.in.channels; ++channel) {
    for (int64_t i = 0; i < width * layer.size; ++i) {
      const float* const from = x.data() + (channel * side + i) * side;
      float* const into = most.data() + (channel * width + i / layer.size) * width;
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t of = 0; of < layer.size; ++of) {
          into[j] = std::max(into[j], from[j * layer.size + of]);
        }
      }
    }
  }
  return most;
}

Vector Run(const Tree& layer, const Vector& x) {
  size_t at = 0;
  while (layer.nodes[at].left >= 0) {
    const Tree::Node& node = layer.nodes[at];
    at = static_cast<size_t>(x[node.input] <= node.threshold ? node.left : node.right);
  }
  return layer.leaves.row(layer.nodes[at].right).transpose();
}

Vector Run(const SoftLabels& layer, const Vector& x) {
  const auto count = static_cast<int64_t>(layer.algorithms.size());
  Vector ratios(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t algorithm = layer.algorithms[static_cast<size_t>(i)];
    ratios[i] = (x[layer.of_default] - x[algorithm]) / std::numbers::ln2_v<float>;
    if (layer.parameters.empty()) continue;
    const float asked = x[x.size() - 1];
    const float off = std::abs(layer.parameters[static_cast<size_t>(i)] - asked);
    for (int64_t j = 0; j < count; ++j) {
      const float other = std::abs(layer.parameters[static_cast<size_t>(j)] - asked);
      const bool nearer = other < off || (other == off && j < i);
      if (layer.algorithms[static_cast<size_t>(j)] == algorithm && nearer) ratios[i] = kNotChosen;
    }
  }
  return ratios;
}

Vector RunAll(const std::vector<Layer>& layers, Vector x) {
  for (const Layer& layer : layers) {
    x = std::visit([&](const auto& one) { return Run(one, x); }, layer);
  }
  return x;
}

/// Of 1 + a count; those of most tiles are small, and known.
float LogarithmOf(int32_t count) {
  static const Eigen::ArrayXf known = Eigen::ArrayXf::LinSpaced(1024, 1, 1024).log();
  return count < known.size() ? known[count] : std::log1p(static_cast<float>(count));
}

/// From 0 to 1, as tools/train/papers/maps.py scales them.
Vector Scaled(const DensityMap& map) {
  const std::vector<int32_t> tiles = map.Tiles();
  const int32_t most = *std::ranges::max_element(tiles);
  if (most == 0) return Vector::Zero(DensityMap::kTiles);
  Eigen::ArrayXf logarithms(DensityMap::kTiles);
  std::ranges::transform(tiles, logarithms.begin(), LogarithmOf);
  // Adding and taking away 1.5 * 2^23 rounds to whole numbers, ties to even.
  constexpr float kRound = 12582912;
  return ((logarithms * (255 / LogarithmOf(most)) + kRound) - kRound) / 255;
}

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("no network: {}", what));
}

/// Throws what Json does where it is none, or not in [least, most].
int64_t WholeNumber(const Json& number, int64_t least, int64_t most) {
  if (!number.is_number_integer()) (void)number.get_ref<const int64_t&>();
  const auto value = number.get<int64_t>();
  if (value < least || value > most || (number.is_number_unsigned() && value < 0)) {
    throw Json::other_error::create(500, fmt::format("{} is not {} to {}", value, least, most),
                                    &number);
  }
  return value;
}

/// Reads layers and, as they go along, their weights.
class LayerReader {
 public:
  explicit LayerReader(std::string_view weights) : weights_(weights) {}

  /// Throws what Json does. INVALID_ARGUMENT.
  absl::Status ReadAll(const Json& described, Shape& shape, std::vector<Layer>& layers) {
    for (const Json& one : described) {
      if (++count_ > kMostLayers) return Wrong(fmt::format("more than {} layers", kMostLayers));
      if (absl::Status s = Read(one, shape, layers); !s.ok()) return s;
      if (shape.numbers() < 1 || shape.numbers() > kMostNumbers) {
        return Wrong(fmt::format("{} numbers between layers", shape.numbers()));
      }
      if (products_ > kMostProducts) {
        return Wrong(fmt::format("more than {} products", kMostProducts));
      }
    }
    return absl::OkStatus();
  }
  bool done() const { return weights_.empty(); }

 private:
  absl::Status Read(const Json& one, Shape& shape, std::vector<Layer>& layers) {
    const auto kind = one.at("kind").get<std::string>();
    const int64_t numbers = shape.numbers();
    if (kind == "relu") {
      layers.emplace_back(Relu());
      return absl::OkStatus();
    }
    if (kind == "standardise") {
      Standardise layer{Take(numbers), Take(numbers), Take(numbers)};
      if (short_) return TooShort();
      if ((layer.offset <= 0).any()) return Wrong("an offset that is not above 0");
      layers.emplace_back(std::move(layer));
      return absl::OkStatus();
    }
    if (kind == "dense") {
      const int64_t outputs = WholeNumber(one.at("outputs"), 1, kMostNumbers);
      products_ += outputs * numbers;
      Dense layer{TakeMatrix(outputs, numbers), Take(outputs)};
      if (short_) return TooShort();
      layers.emplace_back(std::move(layer));
      shape = {outputs, 1};
      return absl::OkStatus();
    }
    if (kind == "convolution") return ReadConvolution(one, shape, layers);
    if (kind == "max_pool") {
      MaxPool layer{shape, WholeNumber(one.at("size"), 1, shape.side), {}};
      layer.out = {shape.channels, shape.side / layer.size};
      shape = layer.out;
      layers.emplace_back(layer);
      return absl::OkStatus();
    }
    if (kind == "tree") return ReadTree(one, shape, layers);
    if (kind == "soft_labels") return ReadSoftLabels(one, shape, layers);
    return Wrong(fmt::format("there is no layer \"{}\"", kind));
  }

  absl::Status ReadConvolution(const Json& one, Shape& shape, std::vector<Layer>& layers) {
    Convolution layer{.in = shape, .out = {}, .weights = {}, .bias = {}};
    layer.size = WholeNumber(one.at("size"), 1, 15);
    layer.stride = WholeNumber(one.at("stride"), 1, 15);
    const int64_t channels = WholeNumber(one.at("channels"), 1, 1024);
    if (layer.size % 2 == 0) return Wrong("a convolution's size is odd");
    layer.out = {channels, (shape.side - 1) / layer.stride + 1};
    const int64_t covered = shape.channels * layer.size * layer.size;
    if (covered * layer.out.side * layer.out.side > kMostNumbers) {
      return Wrong("a convolution that covers too much");
    }
    products_ += covered * layer.out.numbers();
    layer.weights = TakeMatrix(channels, covered);
    layer.bias = Take(channels);
    if (short_) return TooShort();
    shape = layer.out;
    layers.emplace_back(std::move(layer));
    return absl::OkStatus();
  }

  absl::Status ReadTree(const Json& one, Shape& shape, std::vector<Layer>& layers) {
    const int64_t outputs = WholeNumber(one.at("outputs"), 1, kMostNumbers);
    const auto count = static_cast<int64_t>(one.at("input").size());
    if (count < 1 || static_cast<int64_t>(one.at("left").size()) != count ||
        static_cast<int64_t>(one.at("right").size()) != count) {
      return Wrong("a tree's nodes have an input, a left and a right each");
    }
    Tree layer;
    int64_t leaves = 0;
    const Eigen::ArrayXf thresholds = Take(count);
    if (short_) return TooShort();
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      Tree::Node node;
      node.left = WholeNumber(one.at("left").at(at), -1, count - 1);
      const bool leaf = node.left < 0;
      // Behind their parent, so that there is an end to it.
      node.right =
          WholeNumber(one.at("right").at(at), leaf ? leaves : i + 1, leaf ? leaves : count - 1);
      if (leaf) {
        ++leaves;
      } else if (node.left <= i) {
        return Wrong("a tree's node that is before its parent");
      } else {
        node.input = WholeNumber(one.at("input").at(at), 0, shape.numbers() - 1);
        node.threshold = thresholds[i];
      }
      layer.nodes.push_back(node);
    }
    layer.leaves = TakeMatrix(leaves, outputs);
    if (short_) return TooShort();
    layers.emplace_back(std::move(layer));
    shape = {outputs, 1};
    return absl::OkStatus();
  }

  absl::Status ReadSoftLabels(const Json& one, Shape& shape, std::vector<Layer>& layers) {
    SoftLabels layer;
    const Json& algorithms = one.at("algorithms");
    if (algorithms.empty()) return Wrong("soft labels of no candidates");
    // With parameters each is compared with every other.
    if (algorithms.size() > kMostLabels) {
      return Wrong(fmt::format("soft labels of more than {} candidates", kMostLabels));
    }
    const bool parameters = one.contains("parameters");
    const int64_t logits = shape.numbers() - (parameters ? 1 : 0);
    if (logits < 1) return Wrong("soft labels without logits");
    layer.of_default = WholeNumber(one.at("default"), 0, logits - 1);
    for (const Json& algorithm : algorithms) {
      layer.algorithms.push_back(WholeNumber(algorithm, 0, logits - 1));
    }
    if (parameters) {
      layer.parameters = one.at("parameters").get<std::vector<float>>();
      if (layer.parameters.size() != algorithms.size())
        return Wrong("a parameter for each candidate");
    }
    shape = {static_cast<int64_t>(algorithms.size()), 1};
    layers.emplace_back(std::move(layer));
    return absl::OkStatus();
  }

  /// The next weights; if there are not so many, or one is no number, `short_` becomes true.
  Eigen::ArrayXf Take(int64_t count) {
    if (short_ || count > static_cast<int64_t>(weights_.size() / sizeof(float))) {
      short_ = true;
      return {};
    }
    Eigen::ArrayXf taken(count);
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    std::memcpy(taken.data(), weights_.data(), bytes);
    weights_.remove_prefix(bytes);
    if (!taken.isFinite().all()) short_ = true;
    return taken;
  }
  RowMajor TakeMatrix(int64_t rows, int64_t cols) {
    const Eigen::ArrayXf taken = Take(rows * cols);
    if (short_) return {};
    return Eigen::Map<const RowMajor>(taken.data(), rows, cols);
  }
  static absl::Status TooShort() {
    return Wrong("it has fewer weights than its layers need, or one is no number");
  }

  std::string_view weights_;
  size_t count_ = 0;
  int64_t products_ = 0;  ///< of an estimate
  bool short_ = false;
};

}  // namespace

struct Network::Layers {
  int64_t inputs = 0;
  std::vector<Branch> branches;
  std::vector<Layer> layers;
};

Network::Network(std::unique_ptr<const Layers> layers) : layers_(std::move(layers)) {}

Network::~Network() = default;

absl::StatusOr<std::unique_ptr<Network>> Network::Load(std::string_view bytes, int inputs,
                                                       int outputs) {
  const size_t end = bytes.substr(0, kMostHeaderBytes).find('\n');
  if (end == std::string_view::npos) return Wrong("it does not begin with a line of JSON");
  const Json header = Json::parse(bytes.substr(0, end), nullptr, /*allow_exceptions=*/false);
  if (header.is_discarded()) return Wrong("its first line is no JSON");
  auto network = std::make_unique<Layers>();
  network->inputs = inputs;
  LayerReader reader(bytes.substr(end + 1));
  // What is missing, of another type or out of range throws.
  try {
    if (WholeNumber(header.at("format"), 0, std::numeric_limits<int32_t>::max()) != kFormat) {
      return Wrong(fmt::format("it is not of format {}", kFormat));
    }
    Shape joined;
    const Json& branches = header.at("branches");
    if (!branches.is_array() || branches.empty() || branches.size() > kMostBranches) {
      return Wrong(fmt::format("1 to {} branches", kMostBranches));
    }
    for (const Json& described : branches) {
      const auto of = described.at("of").get<std::string>();
      if (of != "features" && of != "density_map") {
        return Wrong(fmt::format("there is no branch of \"{}\"", of));
      }
      Branch branch{of == "density_map", {}};
      Shape shape = branch.of_map ? Shape{1, kDensityMapSide} : Shape{inputs, 1};
      if (absl::Status s = reader.ReadAll(described.at("layers"), shape, branch.layers); !s.ok()) {
        return s;
      }
      joined.channels += shape.numbers();
      network->branches.push_back(std::move(branch));
    }
    if (absl::Status s = reader.ReadAll(header.at("layers"), joined, network->layers); !s.ok()) {
      return s;
    }
    if (joined.numbers() != outputs) {
      return Wrong(fmt::format("{} outputs, where {} are said", joined.numbers(), outputs));
    }
  } catch (const Json::exception& error) {
    return Wrong(error.what());
  }
  if (!reader.done()) return Wrong("it has more weights than its layers need");
  return std::unique_ptr<Network>(new Network(std::move(network)));
}

absl::StatusOr<std::vector<double>> Network::Predict(std::span<const float> row,
                                                     const DensityMap& map) const {
  if (static_cast<int64_t>(row.size()) != layers_->inputs) {
    return absl::InternalError(fmt::format("{} inputs, not {}", row.size(), layers_->inputs));
  }
  Vector joined(0);
  for (const Branch& branch : layers_->branches) {
    const Vector ends =
        RunAll(branch.layers, branch.of_map ? Scaled(map)
                                            : Vector(Eigen::Map<const Vector>(
                                                  row.data(), static_cast<int64_t>(row.size()))));
    const int64_t before = joined.size();
    joined.conservativeResize(before + ends.size());
    joined.tail(ends.size()) = ends;
  }
  const Vector outputs = RunAll(layers_->layers, std::move(joined));
  if (!outputs.allFinite()) return absl::InternalError("a network whose outputs are no numbers");
  return std::vector<double>(outputs.begin(), outputs.end());
}

}  // namespace sparsed::engine
