// Estimates of a trained model, and what trials teach of their errors.
#pragma once

#include <string>
#include <vector>

namespace sparsed::engine {

/// What a model expects of a candidate. Logarithms are those to base 2.
struct Estimate {
  std::string pipeline;  ///< canonical, without "force"
  std::string kernel;
  double log2_ratio = 0;  ///< of its time over that of the default
  /// Of that, apart from what all candidates of the signature have in common.
  double deviation = 0;
};

/// What a model expects of a layout.
struct Promise {
  std::string model;
  std::vector<Estimate> kernels;  ///< that are worth a trial, the most promising first; not empty
  /// Of the error that all candidates of the signature have in common.
  double shared_deviation = 0;
  double build_seconds = 0;  ///< until there is the layout

  const Estimate& best() const { return kernels.front(); }
};

/// The error that all estimates of a signature on a pattern have in common (that of the default,
/// above all), as trials show it: normal, with the mean and variance that follow from those seen.
class SharedError {
 public:
  explicit SharedError(double deviation) : precision_(Precision(deviation)) {}

  /// A candidate's measured log2 ratio less the estimated one, and the deviation of its own error.
  void Saw(double error, double deviation) {
    const double weight = Precision(deviation);
    mean_ = (precision_ * mean_ + weight * error) / (precision_ + weight);
    precision_ += weight;
  }
  double mean() const { return mean_; }
  double variance() const { return 1 / precision_; }

 private:
  /// Nothing is known better than to a thousandth: timing is not.
  static double Precision(double deviation) {
    const double least = deviation < 1e-3 ? 1e-3 : deviation;
    return 1 / (least * least);
  }

  double mean_ = 0;
  double precision_;
};

}  // namespace sparsed::engine
