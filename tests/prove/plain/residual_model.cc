#include "tessera/tests/prove/plain/residual_model.h"

#include "tessera/tests/prove/plain/initial_values.h"
#include "tessera/tests/prove/plain/numbers.h"

namespace prove {
namespace {

constexpr int64_t kWidth = 37;
constexpr int64_t kHidden = 51;
constexpr int kBlocks = 3;
constexpr uint64_t kResidualSeed = 1000;

torch::nn::LayerNorm make_norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

}  // namespace

class ResidualModel::Block final : public torch::nn::Module {
 public:
  Block()
      : norm_(register_module("norm", make_norm())),
        up_(register_module("up", torch::nn::Linear(kWidth, kHidden))),
        down_(register_module("down", torch::nn::Linear(kHidden, kWidth))) {}

  at::Tensor forward(const at::Tensor& x) {
    return x + down_->forward(at::gelu(up_->forward(norm_->forward(x)), "tanh"));
  }

 private:
  torch::nn::LayerNorm norm_;
  torch::nn::Linear up_;
  torch::nn::Linear down_;
};

ResidualModel::ResidualModel() {
  embed_ = register_module("embed", torch::nn::Linear(kInputs, kWidth));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int i = 0; i < kBlocks; ++i) blocks_->push_back(std::make_shared<Block>());
  norm_ = register_module("norm", make_norm());
  head_ = register_module("head", torch::nn::Linear(kWidth, kClasses));
  set_initial_values(*this);
}

at::Tensor ResidualModel::loss(const Batch& batch) {
  at::Tensor x = embed_->forward(batch.input);
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  const at::Tensor logits = head_->forward(norm_->forward(x));
  return torch::nn::functional::cross_entropy(
      logits, batch.target,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

Batch ResidualModel::batch(int64_t index, int64_t rows) {
  const at::Tensor input = numbers({rows, kInputs}, kResidualSeed + static_cast<uint64_t>(index));
  const at::Tensor sum = input.select(1, 0) + input.select(1, 1);  // in [-2, 2)
  return {input, ((sum + 2) * (kClasses / 4.0)).floor().to(at::kLong)};
}

}  // namespace prove
