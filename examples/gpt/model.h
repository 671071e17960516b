#pragma once

#include <cstdint>
#include <string_view>

#include <torch/torch.h>

namespace gpt {

/// One token per byte, so no tokenizer is needed.
inline constexpr int64_t kVocabulary = 256;

struct ModelSizes {
  int64_t layers = 4;
  int64_t heads = 4;                 ///< divides width
  int64_t width = 128;               ///< values per position
  int64_t context = 128;             ///< positions, in bytes of text
  int64_t vocabulary = kVocabulary;  ///< distinct tokens
};

/// A byte-level GPT (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019):
/// learned positions, pre-norm blocks, causal scaled_dot_product_attention, GELU, GPT-2's
/// initialisation, drawn from the CPU generator.
///
/// The embedding is tied: one registered weight, `bytes.weight`, embeds the input and scores the
/// output. (Assigning `head->weight = bytes->weight` would not tie them: the module would go on
/// training the tensor that it registered.)
class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const ModelSizes& sizes);

  /// Returns logits [batch, length, vocabulary] of the token that follows each position of `text`,
  /// which is int64 [batch, length] in [0, vocabulary), 1 <= length <= context.
  at::Tensor forward(const at::Tensor& text);

  /// Mean cross-entropy, a scalar in nats per byte, of predicting `target` (the byte that follows
  /// each position of `text`). Computed in fp32 if parameters have 16 bits.
  at::Tensor loss(const at::Tensor& text, const at::Tensor& target);

  const ModelSizes& sizes() const { return sizes_; }

  /// Returns true if weight decay applies to the parameter of this name. As in GPT-2 it applies to
  /// matrices of linear layers, not to biases, norms or embeddings.
  static bool decays(std::string_view parameter);

 private:
  void initialise();

  ModelSizes sizes_;
  torch::nn::Embedding bytes_;
  torch::nn::Embedding positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
};

}  // namespace gpt
