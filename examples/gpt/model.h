#pragma once

#include <cstdint>
#include <string_view>

#include <torch/torch.h>

namespace gpt {

/// Distinct bytes: this vocabulary needs no tokenizer.
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
/// initialisation from the CPU generator.
///
/// The embedding is tied: one registered weight, `bytes.weight`, embeds the input and scores the
/// output. (Assigning `head->weight = bytes->weight` would not do: the module registered its own
/// tensor and would go on training that.)
class Gpt : public torch::nn::Module {
 public:
  explicit Gpt(const ModelSizes& sizes);

  /// Text [batch, length] of int64 in [0, vocabulary), 1 <= length <= context, to logits [batch,
  /// length, vocabulary] of the token that follows each position.
  at::Tensor forward(const at::Tensor& text);

  /// Mean cross-entropy, a scalar in nats per byte, of predicting `target` (what follows each
  /// position of `text`). Computed in fp32 where parameters have 16 bits.
  at::Tensor loss(const at::Tensor& text, const at::Tensor& target);

  const ModelSizes& sizes() const { return sizes_; }

  /// Whether weight decay applies to the parameter of this name: matrices of linear layers only, as
  /// in GPT-2; neither biases nor norms nor embeddings.
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
