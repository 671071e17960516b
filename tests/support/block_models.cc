#include "tessera/tests/support/block_models.h"

#include <memory>
#include <utility>

#include <torch/torch.h>

#include "tessera/tests/support/checkpoint.h"

namespace tessera::internal::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        linear(register_module("linear", nn::Linear(width, width))) {}
  Tensor forward(const Tensor& input) { return input + at::tanh(linear(norm(input))); }
  nn::LayerNorm norm;
  nn::Linear linear;
};
TORCH_MODULE(Block);

/// Seven equal blocks between two layers.
struct Blocks : Net {
  Blocks() {
    for (int i = 0; i < 7; ++i) {
      layers.push_back(Block(13));
      blocks->push_back(layers.back());
    }
  }
  Tensor forward(const Tensor& input, const Moment&) override {
    Tensor x = at::tanh(first(input));
    for (Block& layer : layers) x = layer(x);
    return last(x);
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::Linear last = register_module("last", nn::Linear(13, 5));
  std::vector<Block> layers;
};

/// Each block recomputed, one of them twice and one inside another's recomputation.
struct CheckpointedBlocks : Blocks {
  Tensor forward(const Tensor& input, const Moment&) override {
    Tensor x = at::tanh(first(input));
    for (size_t i = 0; i + 1 < layers.size(); ++i) {
      const auto block = [layer = layers[i]](const Tensor& y) mutable { return layer(y); };
      x = checkpoint(block, x);
      if (i == 2) x = checkpoint(block, x);
    }
    const auto pair = [inner = layers.back(), outer = layers.front()](const Tensor& y) mutable {
      const auto innermost = [inner](const Tensor& z) mutable { return inner(z); };
      return outer(checkpoint(innermost, y));
    };
    return last(checkpoint(pair, x));
  }
};

/// Every rank uses other blocks, in another order, in every step; no rank uses the sixth.
struct BranchingBlocks : Blocks {
  Tensor forward(const Tensor& input, const Moment& moment) override {
    Tensor x = at::tanh(first(input));
    const auto shift = static_cast<size_t>(moment.rank + 2 * moment.step);
    for (size_t i = 0; i < 2 + shift % 3; ++i) {
      const size_t choice = (shift + (moment.rank % 2 == 0 ? i : 5 - i)) % 5;
      x = layers[choice](x);
    }
    if (moment.rank == 1) x = layers[6](x);
    return last(x);
  }
};

/// Frozen: a whole block, one parameter of another, and one of the model's own.
struct FrozenBlocks : Blocks {
  Tensor forward(const Tensor& input, const Moment& moment) override {
    return Blocks::forward(input, moment) * scale;
  }
  void arrange(at::ScalarType) override {
    scale.set_requires_grad(false);
    for (const size_t i : {size_t{0}, size_t{3}}) {
      for (Tensor& parameter : layers[i]->parameters()) parameter.set_requires_grad(false);
    }
    layers[1]->linear->bias.set_requires_grad(false);
    layers[5]->linear->weight.set_requires_grad(false);
  }
  Tensor scale = register_parameter("scale", torch::zeros({5}));
};

/// Operators that read three units at once, as arguments and in lists.
struct ThreeUnits : Net {
  Tensor forward(const Tensor& input, const Moment&) override {
    Tensor x = at::tanh(first(input));
    const std::vector<Tensor> weights = {a->weight, b->weight, c->weight};
    x = at::tanh(x.matmul(at::cat(weights, 0).t()).narrow(1, 9, 13));
    x = at::tanh(x.matmul(at::einsum("ij,jk,kl->il", weights)));
    x = x + at::where(x > 0, a->bias, b->bias) + at::addcmul(a->bias, b->bias, c->bias);
    const Tensor norms = at::stack(at::_foreach_norm(weights));
    return last(x) * norms.sum();
  }
  nn::Linear first = register_module("first", nn::Linear(7, 13));
  nn::Linear a = register_module("a", nn::Linear(13, 13));
  nn::Linear b = register_module("b", nn::Linear(13, 13));
  nn::Linear c = register_module("c", nn::Linear(13, 13));
  nn::Linear last = register_module("last", nn::Linear(13, 5));
};

struct ProjectionImpl : nn::Module {
  explicit ProjectionImpl(Tensor shared)
      : weight(register_parameter("weight", std::move(shared))),
        bias(register_parameter("bias", torch::zeros({13}))) {}
  Tensor forward(const Tensor& input) { return input.matmul(weight) + bias; }
  Tensor weight;
  Tensor bias;
};
TORCH_MODULE(Projection);

/// One weight in three of four blocks; another one in two modules of the same parent.
struct TiedBlocks : Net {
  TiedBlocks() {
    const Tensor shared = torch::zeros({13, 13});
    for (int i = 0; i < 4; ++i) {
      layers.push_back(Projection(i == 2 ? torch::zeros({13, 13}) : shared));
      blocks->push_back(layers.back());
    }
    head = register_parameter("head", embed->weight);
  }
  Tensor forward(const Tensor& input, const Moment&) override {
    Tensor x = at::tanh(embed(input));
    for (Projection& layer : layers) x = x + at::tanh(layer(x));
    return x.matmul(head);
  }
  nn::Linear embed = register_module("embed", nn::Linear(7, 13));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  std::vector<Projection> layers;
  Tensor head;
};

template <typename M>
Subject subject_of(std::string name, int64_t outputs = 5) {
  return {.name = std::move(name),
          .make = [] { return std::make_shared<M>(); },
          .input_shape = {7},
          .target_shape = {outputs}};
}

}  // namespace

std::vector<Subject> block_subjects() {
  std::vector<Subject> all = {subject_of<Blocks>("Blocks"),
                              subject_of<CheckpointedBlocks>("CheckpointedBlocks"),
                              subject_of<BranchingBlocks>("BranchingBlocks"),
                              subject_of<FrozenBlocks>("FrozenBlocks"),
                              subject_of<ThreeUnits>("ThreeUnits"),
                              subject_of<TiedBlocks>("TiedBlocks", 7)};
  all[2].concatenates = false;
  return all;
}

}  // namespace tessera::internal::testing
