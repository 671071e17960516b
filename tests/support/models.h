#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::internal::testing {

/// Where in a training run a forward happens. Models that take branches decide by it.
struct Moment {
  int step = 0;
  int rank = 0;
};

/// A model of the equivalence suite: a plain torch module that knows nothing of Tessera.
class Net : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input, const Moment& moment) = 0;

  /// Runs after the conversion to the dtype of the run: strides, mixed dtypes, frozen parts.
  virtual void arrange(at::ScalarType) {}
};

/// One model that breaks engines, with the data it takes.
struct Subject {
  std::string name;
  std::function<std::shared_ptr<Net>()> make;
  std::vector<int64_t> input_shape;  ///< of one sample
  std::vector<int64_t> target_shape;
  int64_t vocabulary = 0;    ///< inputs are int64 in [0, vocabulary); 0: floating inputs
  bool concatenates = true;  ///< the ranks' batches may go through one forward together
  /// Largest relative difference to the oracle in fp64; infinity: not comparable (batch
  /// statistics).
  double tolerance = 1e-12;
  /// How the oracle makes it where torch's own optimizer cannot train it; empty: like `make`.
  std::function<std::shared_ptr<Net>()> make_for_oracle = {};
};

/// Prints the name, for messages of tests.
std::ostream& operator<<(std::ostream& stream, const Subject& subject);

/// All models, in a fixed order.
const std::vector<Subject>& subjects();
/// The one called `name`. Throws std::out_of_range.
const Subject& subject(const std::string& name);

/// What runs draw the parameters of rank 0 from, and the plain loop its own.
inline constexpr uint64_t kModelSeed = 42;

/// `net` in `dtype` with parameters drawn from `seed`. Draws from a generator of its own, so that
/// ranks that are threads do not disturb each other.
std::shared_ptr<Net> prepare(std::shared_ptr<Net> net, at::ScalarType dtype, uint64_t seed);

/// Gives all parameters of `model` values that depend on `seed` only.
void draw_parameters(const torch::nn::Module& model, uint64_t seed);

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// `rows` samples that depend on nothing but the arguments.
Batch draw_batch(const Subject& subject, at::ScalarType dtype, int64_t rows, uint64_t seed);

}  // namespace tessera::internal::testing
