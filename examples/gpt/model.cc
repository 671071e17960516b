#include "tessera/examples/gpt/model.h"

#include <cmath>
#include <memory>
#include <string>

namespace gpt {
namespace {

namespace nn = torch::nn;

constexpr double kInitialDeviation = 0.02;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// x + attention(norm(x)), then x + feed_forward(norm(x)).
class Block : public nn::Module {
 public:
  explicit Block(const ModelSizes& sizes)
      : heads_(sizes.heads),
        attention_norm_(
            register_module("attention_norm", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))),
        qkv_(register_module("qkv", nn::Linear(sizes.width, 3 * sizes.width))),
        attention_out_(register_module("attention_out", nn::Linear(sizes.width, sizes.width))),
        forward_norm_(
            register_module("forward_norm", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))),
        widen_(register_module("widen", nn::Linear(sizes.width, 4 * sizes.width))),
        forward_out_(register_module("forward_out", nn::Linear(4 * sizes.width, sizes.width))) {}

  at::Tensor forward(at::Tensor x) {
    x = x + attention(attention_norm_(x));
    return x + forward_out_(at::gelu(widen_(forward_norm_(x))));
  }

 private:
  at::Tensor attention(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto split = [&](const at::Tensor& part) {
      return part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
    };
    const std::vector<at::Tensor> qkv = qkv_(x).chunk(3, -1);
    const at::Tensor mixed = at::scaled_dot_product_attention(
        split(qkv[0]), split(qkv[1]), split(qkv[2]), std::nullopt, 0.0, /*is_causal=*/true);
    return attention_out_(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  int64_t heads_;
  nn::LayerNorm attention_norm_;
  nn::Linear qkv_;
  nn::Linear attention_out_;
  nn::LayerNorm forward_norm_;
  nn::Linear widen_;
  nn::Linear forward_out_;
};

}  // namespace

Gpt::Gpt(const ModelSizes& sizes)
    : sizes_(sizes),
      bytes_(register_module("bytes", nn::Embedding(sizes.vocabulary, sizes.width))),
      positions_(register_module("positions", nn::Embedding(sizes.context, sizes.width))),
      blocks_(register_module("blocks", nn::ModuleList())),
      norm_(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({sizes.width})))) {
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    blocks_->push_back(std::make_shared<Block>(sizes));
  }
  initialise();
}

at::Tensor Gpt::forward(const at::Tensor& text) {
  TORCH_CHECK(text.dim() == 2 && text.size(1) <= sizes_.context, "[gpt] text: got shape ",
              text.sizes(), ", expected [batch, length] with length <= ", sizes_.context,
              "; cut the text or raise --context");
  at::Tensor x = bytes_(text) + positions_->weight.narrow(0, 0, text.size(1));
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  return at::linear(norm_(x), bytes_->weight);
}

at::Tensor Gpt::loss(const at::Tensor& text, const at::Tensor& target) {
  at::Tensor logits = forward(text).flatten(0, 1);
  if (logits.element_size() < 4) logits = logits.to(at::kFloat);
  return at::cross_entropy_loss(logits, target.flatten());
}

bool Gpt::decays(std::string_view parameter) {
  return ends_with(parameter, ".weight") && !contains(parameter, "norm") &&
         !contains(parameter, "bytes") && !contains(parameter, "positions");
}

void Gpt::initialise() {
  const torch::NoGradGuard no_grad;
  // The residual stream sums two terms per layer; scale its inputs so that the sum keeps its
  // variance.
  const double out_deviation =
      kInitialDeviation / std::sqrt(2.0 * static_cast<double>(sizes_.layers));
  for (auto& item : named_parameters()) {
    at::Tensor& parameter = item.value();
    if (contains(item.key(), "norm")) continue;  // ones and zeros already
    if (ends_with(item.key(), ".bias")) {
      parameter.zero_();
    } else {
      const bool is_out = ends_with(item.key(), "_out.weight");
      parameter.normal_(0.0, is_out ? out_deviation : kInitialDeviation);
    }
  }
}

}  // namespace gpt
