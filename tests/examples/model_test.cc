#include "tessera/examples/gpt/model.h"

#include <gtest/gtest.h>

#include <set>

namespace gpt {
namespace {

ModelSizes tiny_sizes() { return {.layers = 2, .heads = 2, .width = 16, .context = 8}; }

at::Tensor some_text(int64_t batch, int64_t length) {
  return at::randint(kVocabulary, {batch, length}, at::kLong);
}

TEST(GptModel, EmbeddingAndHeadAreOneRegisteredWeight) {
  torch::manual_seed(1);
  Gpt model(tiny_sizes());
  int with_vocabulary_configurations = 0;
  for (const auto& item : model.named_parameters()) {
    with_vocabulary_configurations +=
        item.value().dim() == 2 && item.value().size(0) == kVocabulary;
  }
  EXPECT_EQ(with_vocabulary_configurations, 1);

  // A byte that is not in the text gets its gradient only through the head.
  const at::Tensor text = at::zeros({1, 4}, at::kLong);
  model.loss(text, text).backward();
  EXPECT_GT(model.named_parameters()["bytes.weight"].grad()[200].abs().sum().item<double>(), 0.0);
}

TEST(GptModel, EveryParameterGetsAGradient) {
  torch::manual_seed(1);
  Gpt model(tiny_sizes());
  model.loss(some_text(2, 8), some_text(2, 8)).backward();
  for (const auto& item : model.named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0) << item.key();
  }
}

TEST(GptModel, DoesNotLookAhead) {
  torch::manual_seed(1);
  Gpt model(tiny_sizes());
  const torch::NoGradGuard no_grad;
  const at::Tensor text = some_text(1, 8);
  at::Tensor other = text.clone();
  other[0][5] = (text[0][5] + 1) % kVocabulary;
  const at::Tensor a = model.forward(text), b = model.forward(other);
  EXPECT_TRUE(at::allclose(a.narrow(1, 0, 5), b.narrow(1, 0, 5), 1e-5, 1e-6));
  // The comparison can fail: from the changed byte on the outputs differ.
  EXPECT_FALSE(at::allclose(a.narrow(1, 5, 3), b.narrow(1, 5, 3), 1e-5, 1e-6));
}

TEST(GptModel, BeginsNearTheUniformLoss) {
  torch::manual_seed(1);
  Gpt model(tiny_sizes());
  EXPECT_NEAR(model.loss(some_text(4, 8), some_text(4, 8)).item<double>(), std::log(256.0), 0.1);
}

TEST(GptModel, DecaysMatricesOfLinearLayersOnly) {
  Gpt model(tiny_sizes());
  std::set<std::string> decayed;
  for (const auto& item : model.named_parameters()) {
    if (Gpt::decays(item.key())) {
      decayed.insert(item.key());
      EXPECT_EQ(item.value().dim(), 2) << item.key();
    }
  }
  EXPECT_EQ(decayed.size(), 8u);  // two layers of four matrices
  EXPECT_EQ(decayed.count("bytes.weight"), 0u);
  EXPECT_EQ(decayed.count("positions.weight"), 0u);
  EXPECT_EQ(decayed.count("blocks.0.qkv.weight"), 1u);
}

TEST(GptModel, RefusesATextLongerThanItsContext) {
  Gpt model(tiny_sizes());
  try {
    model.forward(some_text(1, 9));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("[gpt] text: got shape [1, 9], expected"),
              std::string::npos);
  }
}

TEST(GptModel, LearnsARepeatedText) {
  torch::manual_seed(1);
  Gpt model(tiny_sizes());
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  const at::Tensor cycle = at::arange(9, at::kLong).remainder(4) + 97;
  const at::Tensor text = cycle.narrow(0, 0, 8).unsqueeze(0);
  const at::Tensor target = cycle.narrow(0, 1, 8).unsqueeze(0);
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    model.loss(text, target).backward();
    optimizer.step();
  }
  EXPECT_LT(model.loss(text, target).item<double>(), 0.1);
}

}  // namespace
}  // namespace gpt
