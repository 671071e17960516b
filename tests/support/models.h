#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace tessera::internal::testing {

/// Step and rank of a forward pass, by which models with branches choose a branch.
struct Moment {
  int step = 0;
  int rank = 0;
};

/// A model of the equivalence suite: a plain torch module that knows nothing of Tessera.
class Net : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input, const Moment& moment) = 0;

  /// Runs after the conversion to the run's dtype: sets strides, mixed dtypes, frozen parts.
  virtual void arrange(at::ScalarType) {}
};

/// A model that is hard for engines, and the shape of its data.
struct Subject {
  std::string name;
  std::function<std::shared_ptr<Net>()> make;
  std::vector<int64_t> input_shape;  ///< of one sample
  std::vector<int64_t> target_shape;
  int64_t vocabulary = 0;    ///< inputs are int64 in [0, vocabulary); 0: floating inputs
  bool concatenates = true;  ///< the ranks' batches may be concatenated for one forward
  /// Largest relative difference to the oracle in fp64; infinity: not comparable (batch
  /// statistics).
  double tolerance = 1e-12;
  /// How the oracle makes the model if torch's optimizer cannot train it; empty: `make`.
  std::function<std::shared_ptr<Net>()> make_for_oracle = {};
};

/// Prints the name, for messages of tests.
std::ostream& operator<<(std::ostream& stream, const Subject& subject);

/// All models, in a fixed order.
const std::vector<Subject>& subjects();
/// The model called `name`. Throws std::out_of_range.
const Subject& subject(const std::string& name);

/// Seed of rank 0's parameters and of the plain loop's.
inline constexpr uint64_t kModelSeed = 42;

/// Converts `net` to `dtype` and draws its parameters from `seed`. Uses its own generator, so that
/// ranks that are threads do not disturb each other.
std::shared_ptr<Net> prepare(std::shared_ptr<Net> net, at::ScalarType dtype, uint64_t seed);

/// Gives all parameters of `model` values that depend on `seed` only.
void draw_parameters(const torch::nn::Module& model, uint64_t seed);

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// Draws `rows` samples that depend only on the arguments.
Batch draw_batch(const Subject& subject, at::ScalarType dtype, int64_t rows, uint64_t seed);

}  // namespace tessera::internal::testing
