#pragma once

#include <concepts>
#include <memory>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

namespace tessera {

namespace internal {
struct Algorithm;
}  // namespace internal

template <typename Options>
concept OptimizerOptionsType = std::derived_from<Options, torch::optim::OptimizerOptions> &&
    !std::same_as<Options, torch::optim::OptimizerOptions>;

/// The options of any optimizer: a value that holds an object of one of LibTorch's own options
/// types, or of another type that derives from torch::optim::OptimizerCloneableOptions.
/// elementwise() (elementwise.h) and whole_tensor() (whole_tensor.h) make values that also name the
/// user's own optimizer.
class AlgorithmOptions {
 public:
  /// Holds no options; OptimizerPlan::assign() refuses it.
  AlgorithmOptions() = default;
  template <OptimizerOptionsType Options>
  AlgorithmOptions(Options options) : options_(std::make_unique<Options>(std::move(options))) {}

  /// Holds `options` of `algorithm`, for an algorithm that is not the library's own.
  template <OptimizerOptionsType Options>
  AlgorithmOptions(Options options, std::shared_ptr<const internal::Algorithm> algorithm)
      : options_(std::make_unique<Options>(std::move(options))), algorithm_(std::move(algorithm)) {}

  AlgorithmOptions(const AlgorithmOptions& other)
      : options_(other.clone()), algorithm_(other.algorithm_) {}
  AlgorithmOptions& operator=(const AlgorithmOptions& other) {
    if (this == &other) return *this;
    options_ = other.clone();
    algorithm_ = other.algorithm_;
    return *this;
  }
  AlgorithmOptions(AlgorithmOptions&&) noexcept = default;
  AlgorithmOptions& operator=(AlgorithmOptions&&) noexcept = default;
  ~AlgorithmOptions() = default;

  /// Returns the options; null if there are none.
  const torch::optim::OptimizerOptions* get() const { return options_.get(); }
  /// Returns the algorithm given to the constructor; null if the type of the options determines it.
  const internal::Algorithm* algorithm() const { return algorithm_.get(); }
  /// Returns a copy of the options; null if there are none.
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const {
    return options_ == nullptr ? nullptr : options_->clone();
  }

  /// Returns the options as the type that they had in the constructor:
  /// `plan.defaults.as<torch::optim::AdamWOptions>().lr(0.1)`. Throws c10::Error for another type.
  template <OptimizerOptionsType Options>
  Options& as() {
    return cast<Options>(options_.get());
  }
  template <OptimizerOptionsType Options>
  const Options& as() const {
    return cast<const Options>(options_.get());
  }

 private:
  template <typename Options>
  static Options& cast(torch::optim::OptimizerOptions* options) {
    auto* const own = dynamic_cast<Options*>(options);
    TORCH_CHECK(own != nullptr, "[optim] options: got ",
                options == nullptr ? "none" : c10::demangle(typeid(*options).name()), ", expected ",
                c10::demangle(typeid(Options).name()), "; ask for the type that was given");
    return *own;
  }

  std::unique_ptr<torch::optim::OptimizerOptions> options_;
  std::shared_ptr<const internal::Algorithm> algorithm_;
};

}  // namespace tessera
