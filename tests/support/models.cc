#include "tessera/tests/support/models.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "tessera/tests/support/block_models.h"
#include "tessera/tests/support/checkpoint.h"

namespace tessera::internal::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

/// Layers one after the other; odd sizes and, with many layers, many buckets.
struct Mlp : Net {
  explicit Mlp(std::vector<int64_t> widths) {
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), nn::Linear(widths[i], widths[i + 1])));
    }
  }
  Tensor forward(const Tensor& input, const Moment&) override {
    Tensor x = input;
    for (size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(i == 0 ? x : at::tanh(x));
    }
    return x;
  }
  std::vector<nn::Linear> layers;
};

/// Parameters with fewer elements than the world has ranks, and one without dimensions.
struct TinyAndScalar : Net {
  TinyAndScalar() {
    scale = register_parameter("scale", torch::zeros({}));
    shift = register_parameter("shift", torch::zeros({1}));
    gain = register_parameter("gain", torch::zeros({2}));
    mix = register_parameter("mix", torch::zeros({2, 1}));
  }
  Tensor forward(const Tensor& input, const Moment&) override {
    return at::tanh((input * gain).matmul(mix) * scale + shift);
  }
  Tensor scale, shift, gain, mix;
};

/// One tensor registered under two names, as encoder and as decoder.
struct TiedMlp : Net {
  TiedMlp() {
    weight = register_parameter("encode", torch::zeros({13, 7}));
    bias = register_parameter("bias", torch::zeros({7}));
    register_parameter("decode", weight);
  }
  Tensor forward(const Tensor& input, const Moment&) override {
    return at::tanh(input.matmul(weight.t())).matmul(weight) + bias;
  }
  Tensor weight, bias;
};

struct FrozenLayers : Mlp {
  FrozenLayers() : Mlp({7, 13, 13, 5}) {}
  void arrange(at::ScalarType) override {
    for (Tensor& parameter : layers[1]->parameters()) parameter.set_requires_grad(false);
    layers[2]->bias.set_requires_grad(false);
  }
};

struct UnusedEverywhere : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    return last(at::tanh(first(input)));
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::Linear unused = register_module("unused", nn::Linear(13, 29));
  nn::Linear unused_too = register_module("unused_too", nn::Linear(29, 13));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

/// A branch that changes from step to step and is taken by some ranks only, one that only rank 0
/// takes, and one that no rank takes in the first steps.
struct Branches : Net {
  Tensor forward(const Tensor& input, const Moment& moment) override {
    Tensor x = at::tanh(first(input));
    x = x + ((moment.step + moment.rank) % 2 == 0 ? even(x) : odd(x));
    if (moment.rank == 0) x = x + rare(x);
    if (moment.step >= 2) x = x * late;
    return last(x);
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::Linear even = register_module("even", nn::Linear(13, 13));
  nn::Linear odd = register_module("odd", nn::Linear(13, 13));
  nn::Linear rare = register_module("rare", nn::Linear(13, 13));
  Tensor late = register_parameter("late", torch::zeros({13}));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

/// Ranks use the same layers in different orders, so their gradients arrive in different orders.
struct RankOrder : Net {
  Tensor forward(const Tensor& input, const Moment& moment) override {
    Tensor x = at::tanh(first(input));
    x = moment.rank % 2 == 0 ? a(at::tanh(b(x))) : b(at::tanh(a(x)));
    return last(x);
  }
  nn::Linear last = register_module("last", nn::Linear(13, 5));
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::Linear a = register_module("a", nn::Linear(13, 13));
  nn::Linear b = register_module("b", nn::Linear(13, 13));
};

struct BatchNorm : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    return last(at::relu(norm(first(input))));
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(13));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

struct CalledTwice : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    Tensor x = at::tanh(first(input));
    x = at::tanh(twice(x));
    return last(at::tanh(twice(x)));
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::Linear twice = register_module("twice", nn::Linear(13, 13));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

/// A block that runs twice, each time under re-entrant checkpointing: its parameters get two
/// gradients in one backward.
struct CheckpointedTwice : CalledTwice {
  Tensor forward(const Tensor& input, const Moment&) override {
    const auto block = [layer = twice](const Tensor& x) mutable { return at::tanh(layer(x)); };
    const Tensor x = at::tanh(first(input));
    return last(checkpoint(block, checkpoint(block, x)));
  }
};

/// As CheckpointedTwice on even ranks; odd ranks run the block once, without checkpointing.
struct CheckpointedOnSomeRanks : CheckpointedTwice {
  Tensor forward(const Tensor& input, const Moment& moment) override {
    if (moment.rank % 2 == 0) return CheckpointedTwice::forward(input, moment);
    return last(at::tanh(twice(at::tanh(first(input)))));
  }
};

struct Conv : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    const Tensor x = at::tanh(second(at::tanh(first(input))));
    return last(x.mean({2, 3}));
  }
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(3, 7, 3).padding(1)));
  nn::Conv2d second = register_module("second", nn::Conv2d(7, 13, 3));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

struct ChannelsLast : Conv {
  Tensor forward(const Tensor& input, const Moment& moment) override {
    return Conv::forward(input.contiguous(at::MemoryFormat::ChannelsLast), moment);
  }
  void arrange(at::ScalarType) override {
    for (nn::Conv2d* layer : {&first, &second}) {
      Tensor& weight = (*layer)->weight;
      weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
};

struct Embedded : Net {
  explicit Embedded(bool is_sparse)
      : table(register_module("table",
                              nn::Embedding(nn::EmbeddingOptions(11, 7).sparse(is_sparse)))) {}
  Tensor forward(const Tensor& input, const Moment&) override {
    return last(at::tanh(table(input).mean(1)));
  }
  nn::Embedding table;
  nn::Linear last = register_module("last", nn::Linear(7, 5));
};

struct Lstm : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    return last(std::get<0>(lstm->forward(input)).select(1, -1));
  }
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(7, 13).batch_first(true)));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

struct Attention : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    const Tensor x = norm(input).transpose(0, 1);
    const Tensor y = std::get<0>(attention->forward(x, x, x)).transpose(0, 1);
    return last(y.mean(1));
  }
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({12})));
  nn::MultiheadAttention attention = register_module("attention", nn::MultiheadAttention(12, 3));
  nn::Linear last = register_module("last", nn::Linear(12, 5));
};

/// The middle layer has the other one of fp32 and fp64.
struct MixedDtypes : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    const Tensor x = at::tanh(first(input));
    return last(second(x.to(second->weight.scalar_type())).to(x.scalar_type()));
  }
  void arrange(at::ScalarType dtype) override {
    second->to(dtype == at::kDouble ? at::kFloat : at::kDouble);
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::Linear second = register_module("second", nn::Linear(13, 13));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

/// Parameters without elements, used and unused, one of them the last to be registered.
struct EmptyParameter : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    return last(at::tanh(at::cat({first(input), input.matmul(nothing)}, 1)));
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  Tensor nothing = register_parameter("nothing", torch::zeros({7, 0}));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
  Tensor unused = register_parameter("unused", torch::zeros({0}));
};

/// A weight whose rows have gaps between them.
struct Gapped : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    return last(at::tanh(input.matmul(weight)));
  }
  void arrange(at::ScalarType dtype) override {
    weight.set_data(torch::zeros({7, 16}, dtype).narrow(1, 0, 13));
  }
  Tensor weight = register_parameter("weight", torch::zeros({7, 13}));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

template <typename M, typename... Arguments>
std::function<std::shared_ptr<Net>()> maker(Arguments... arguments) {
  return [=] { return std::make_shared<M>(arguments...); };
}

std::vector<Subject> make_subjects() {
  constexpr double kIncomparable = std::numeric_limits<double>::infinity();
  using Widths = std::vector<int64_t>;
  std::vector<Subject> all;
  const auto add = [&all](Subject subject) { all.push_back(std::move(subject)); };
  add({.name = "OddMlp",
       .make = maker<Mlp>(Widths{7, 13, 13, 5}),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "DeepMlp",
       .make = maker<Mlp>(Widths{7, 17, 17, 17, 17, 17, 17, 17, 17, 17, 5}),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "TinyAndScalar",
       .make = maker<TinyAndScalar>(),
       .input_shape = {2},
       .target_shape = {1}});
  add({.name = "TiedMlp", .make = maker<TiedMlp>(), .input_shape = {7}, .target_shape = {7}});
  add({.name = "FrozenLayers",
       .make = maker<FrozenLayers>(),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "UnusedEverywhere",
       .make = maker<UnusedEverywhere>(),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "Branches",
       .make = maker<Branches>(),
       .input_shape = {7},
       .target_shape = {5},
       .concatenates = false});
  add({.name = "RankOrder",
       .make = maker<RankOrder>(),
       .input_shape = {7},
       .target_shape = {5},
       .concatenates = false});
  add({.name = "BatchNorm",
       .make = maker<BatchNorm>(),
       .input_shape = {7},
       .target_shape = {5},
       .tolerance = kIncomparable});
  add({.name = "CalledTwice",
       .make = maker<CalledTwice>(),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "CheckpointedTwice",
       .make = maker<CheckpointedTwice>(),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "CheckpointedOnSomeRanks",
       .make = maker<CheckpointedOnSomeRanks>(),
       .input_shape = {7},
       .target_shape = {5},
       .concatenates = false});
  add({.name = "Conv", .make = maker<Conv>(), .input_shape = {3, 6, 6}, .target_shape = {5}});
  add({.name = "ChannelsLast",
       .make = maker<ChannelsLast>(),
       .input_shape = {3, 6, 6},
       .target_shape = {5}});
  add({.name = "Embedding",
       .make = maker<Embedded>(false),
       .input_shape = {3},
       .target_shape = {5},
       .vocabulary = 11});
  add({.name = "SparseEmbedding",
       .make = maker<Embedded>(true),
       .input_shape = {3},
       .target_shape = {5},
       .vocabulary = 11,
       .make_for_oracle = maker<Embedded>(false)});
  add({.name = "Lstm", .make = maker<Lstm>(), .input_shape = {3, 7}, .target_shape = {5}});
  add({.name = "Attention",
       .make = maker<Attention>(),
       .input_shape = {3, 12},
       .target_shape = {5}});
  add({.name = "MixedDtypes",
       .make = maker<MixedDtypes>(),
       .input_shape = {7},
       .target_shape = {5},
       .tolerance = 1e-4});
  add({.name = "EmptyParameter",
       .make = maker<EmptyParameter>(),
       .input_shape = {7},
       .target_shape = {5}});
  add({.name = "Gapped", .make = maker<Gapped>(), .input_shape = {7}, .target_shape = {5}});
  for (Subject& subject : block_subjects()) add(std::move(subject));
  return all;
}

std::vector<int64_t> with_rows(int64_t rows, const std::vector<int64_t>& shape) {
  std::vector<int64_t> sizes = {rows};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return sizes;
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Subject& subject) {
  return stream << subject.name;
}

const std::vector<Subject>& subjects() {
  static const std::vector<Subject> all = make_subjects();
  return all;
}

const Subject& subject(const std::string& name) {
  for (const Subject& candidate : subjects()) {
    if (candidate.name == name) return candidate;
  }
  throw std::out_of_range("no model is called " + name);
}

std::shared_ptr<Net> prepare(std::shared_ptr<Net> net, at::ScalarType dtype, uint64_t seed) {
  net->to(dtype);
  net->arrange(dtype);
  draw_parameters(*net, seed);
  return net;
}

void draw_parameters(const torch::nn::Module& model, uint64_t seed) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& entry : model.named_parameters()) entry.value().normal_(0.0, 0.3, generator);
}

Batch draw_batch(const Subject& subject, at::ScalarType dtype, int64_t rows, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const std::vector<int64_t> sizes = with_rows(rows, subject.input_shape);
  const at::TensorOptions options = at::TensorOptions().dtype(dtype);
  Batch batch;
  batch.input = subject.vocabulary > 0
                    ? at::randint(0, subject.vocabulary, sizes, generator, at::kLong)
                    : at::randn(sizes, generator, options);
  batch.target = at::randn(with_rows(rows, subject.target_shape), generator, options);
  return batch;
}

}  // namespace tessera::internal::testing
