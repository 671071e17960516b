// Training on the fake GPU has the bits of training on the CPU: layers, models, optimizers.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/gpu/same_on_both.h"
#include "tessera/tests/support/models.h"

namespace tessera::internal::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;

/// A copy of a module holder's module on `device`.
template <typename Holder>
auto copy_on(const Holder& holder, at::Device device, at::ScalarType dtype = at::kFloat) {
  const auto copy = std::dynamic_pointer_cast<typename Holder::ContainedType>(holder->clone());
  copy->to(device, dtype);
  return copy;
}

/// `values`, followed by the module's gradients and buffers.
std::vector<Tensor> with_gradients(std::vector<Tensor> values, const nn::Module& module) {
  for (const Tensor& parameter : module.parameters()) values.push_back(parameter.grad());
  for (const Tensor& buffer : module.buffers()) values.push_back(buffer);
  return values;
}

/// Runs forward and backward of a layer on normally distributed input of `sizes`.
template <typename Layer>
void expect_same_layer(const Layer& layer, std::vector<int64_t> sizes) {
  SCOPED_TRACE(layer.ptr()->name());
  expect_same([&](at::Device device) {
    const auto copy = copy_on(layer, device);
    const Tensor input = draw(sizes, device).set_requires_grad(true);
    const Tensor output = copy->forward(input);
    (output * 3).pow(2).sum().backward();
    return with_gradients({output, input.grad()}, *copy);
  });
}

TEST(PretendModels, Layers) {
  expect_same_layer(nn::Linear(6, 5), {4, 6});
  expect_same_layer(nn::Linear(6, 5), {2, 3, 6});
  expect_same_layer(nn::Conv1d(3, 5, 3), {2, 3, 9});
  expect_same_layer(nn::Conv2d(nn::Conv2dOptions(3, 6, 3).padding(1).stride(2)), {2, 3, 7, 7});
  expect_same_layer(nn::Conv2d(nn::Conv2dOptions(4, 8, 3).groups(4)), {2, 4, 7, 7});
  expect_same_layer(nn::Conv3d(2, 3, 2), {1, 2, 4, 4, 4});
  expect_same_layer(nn::ConvTranspose2d(3, 4, 3), {2, 3, 5, 5});
  expect_same_layer(nn::BatchNorm1d(6), {8, 6});
  expect_same_layer(nn::BatchNorm2d(3), {2, 3, 4, 4});
  expect_same_layer(nn::InstanceNorm1d(nn::InstanceNormOptions(3).affine(true)), {2, 3, 8});
  expect_same_layer(nn::GroupNorm(2, 4), {2, 4, 6});
  expect_same_layer(nn::LayerNorm(nn::LayerNormOptions({5, 7})), {3, 5, 7});
  expect_same_layer(nn::GELU(), {3, 7});
  expect_same_layer(nn::SiLU(), {3, 7});
  expect_same_layer(nn::Softmax(1), {3, 7});
  expect_same_layer(nn::PReLU(nn::PReLUOptions().num_parameters(4)), {2, 4, 3});
  expect_same_layer(nn::Dropout(0.3), {40, 7});
  expect_same_layer(nn::MaxPool2d(2), {2, 3, 8, 8});
  expect_same_layer(nn::AvgPool2d(2), {2, 3, 8, 8});
  expect_same_layer(nn::AdaptiveAvgPool2d(3), {2, 3, 8, 8});
  expect_same_layer(nn::Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2})),
                    {2, 3, 4, 4});
}

TEST(PretendModels, LayersThatTakeIntegers) {
  const nn::Embedding table(11, 7);
  const nn::EmbeddingBag bag(nn::EmbeddingBagOptions(11, 7).mode(torch::kMean));
  expect_same([&](at::Device device) {
    const Tensor places = at::arange(6, at::TensorOptions(device).dtype(at::kLong)).view({2, 3});
    const auto a = copy_on(table, device);
    const auto b = copy_on(bag, device);
    const Tensor sum = a->forward(places.fmod(4)).sum() + b->forward(places).pow(2).sum();
    sum.backward();
    return std::vector<Tensor>{sum, a->weight.grad(), b->weight.grad()};
  });
}

TEST(PretendModels, Losses) {
  expect_same([](at::Device device) {
    const Tensor logits = draw({4, 5}, device).set_requires_grad(true);
    const Tensor classes = at::arange(4, at::TensorOptions(device).dtype(at::kLong));
    const Tensor sum = at::cross_entropy_loss(logits, classes) +
                       at::mse_loss(logits, at::ones({4, 5}, device)) +
                       at::binary_cross_entropy_with_logits(logits, at::ones({4, 5}, device)) +
                       at::smooth_l1_loss(logits, at::zeros({4, 5}, device));
    sum.backward();
    return std::vector<Tensor>{sum, logits.grad()};
  });
}

TEST(PretendModels, Attention) {
  const nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(12, 3).dropout(0.2));
  const nn::TransformerEncoderLayer encoder(
      nn::TransformerEncoderLayerOptions(12, 3).dim_feedforward(20));
  expect_same([&](at::Device device) {
    const auto a = copy_on(attention, device);
    const auto b = copy_on(encoder, device);
    torch::manual_seed(12);  // copying has drawn numbers on the CPU
    const Tensor x = draw({5, 2, 12}, device).set_requires_grad(true);
    const Tensor y = b->forward(std::get<0>(a->forward(x, x, x)));
    y.pow(2).sum().backward();
    return with_gradients(with_gradients({y, x.grad()}, *a), *b);
  });
}

TEST(PretendModels, FusedAttention) {
  for (const bool is_causal : {false, true}) {
    for (const bool has_mask : {false, true}) {
      if (is_causal && has_mask) continue;
      SCOPED_TRACE(::testing::Message() << is_causal << has_mask);
      expect_same([&](at::Device device) {
        const Tensor qkv = draw({3, 2, 4, 9, 8}, device).set_requires_grad(true);
        const Tensor mask = draw({9, 9}, device);
        const Tensor out = at::scaled_dot_product_attention(
            qkv[0], qkv[1], qkv[2], has_mask ? std::optional(mask) : std::nullopt, 0.0, is_causal);
        out.pow(2).sum().backward();
        return std::vector<Tensor>{out, qkv.grad()};
      });
    }
  }
}

TEST(PretendModels, Recurrent) {
  const nn::LSTM lstm(nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true));
  const nn::GRU gru(nn::GRUOptions(14, 6));
  const nn::RNN rnn(nn::RNNOptions(6, 4));
  const nn::LSTMCell cell(4, 3);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    expect_same([&](at::Device device) {
      const auto a = copy_on(lstm, device, dtype);
      const auto b = copy_on(gru, device, dtype);
      const auto c = copy_on(rnn, device, dtype);
      const auto d = copy_on(cell, device, dtype);
      const Tensor x = draw({4, 3, 5}, device).to(dtype).set_requires_grad(true);
      Tensor y = std::get<0>(a->forward(x));
      y = std::get<0>(b->forward(y));
      y = std::get<0>(c->forward(y));
      y = std::get<0>(d->forward(y[3]));
      y.pow(2).sum().backward();
      return with_gradients(with_gradients(with_gradients({y, x.grad()}, *a), *b), *c);
    });
  }
}

TEST(PretendModels, RecurrentWithDropoutTrains) {
  nn::LSTM lstm(nn::LSTMOptions(5, 7).num_layers(2).dropout(0.5));
  nn::GRU gru(nn::GRUOptions(7, 6).num_layers(2).dropout(0.5));
  // Each device draws its own numbers, so compare the gradient with a numeric slope at one point.
  lstm->to(a_gpu(), at::kDouble);
  gru->to(a_gpu(), at::kDouble);
  const Tensor x = draw({4, 3, 5}, a_gpu()).to(at::kDouble);
  const auto loss = [&] {
    torch::manual_seed(2);
    return std::get<0>(gru->forward(std::get<0>(lstm->forward(x)))).pow(2).sum();
  };
  loss().backward();
  for (const nn::Module* module : std::vector<nn::Module*>{lstm.get(), gru.get()}) {
    for (const auto& entry : module->named_parameters()) {
      const at::NoGradGuard no_gradients;
      Tensor element = entry.value().view(-1)[3];
      const auto value_at = [&](double distance) {
        element.add_(distance);
        const double value = loss().item<double>();
        element.sub_(distance);
        return value;
      };
      const double slope = (value_at(1e-5) - value_at(-1e-5)) / 2e-5;
      EXPECT_NEAR(entry.value().grad().view(-1)[3].item<double>(), slope, 1e-7) << entry.key();
    }
  }
}

TEST(PretendModels, DerivativesOfDerivatives) {
  expect_same([](at::Device device) {
    const Tensor x = draw({3, 4}, device).set_requires_grad(true);
    const Tensor weight = draw({2, 4}, device).set_requires_grad(true);
    const Tensor y = at::gelu(at::linear(x, weight)).softmax(1).pow(2).sum();
    const Tensor slope = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
    // Without y: the order of more than two summands depends on the thread.
    slope.pow(2).sum().backward();
    return std::vector<Tensor>{y, slope, x.grad(), weight.grad()};
  });
}

TEST(PretendModels, Autocast) {
  expect_same([](at::Device device) {
    nn::Sequential model(nn::Linear(7, 9), nn::ReLU(), nn::Linear(9, 5));
    model->to(device);
    const Tensor x = draw({4, 7}, device);
    at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
    at::autocast::set_autocast_enabled(device.type(), true);
    const Tensor y = model->forward(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device.type(), false);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).pow(2).sum().backward();
    return with_gradients({y}, *model);
  });
}

/// Three steps with AdamW.
std::vector<Tensor> train(const Subject& subject, at::ScalarType dtype, at::Device device) {
  const std::shared_ptr<Net> net = prepare(subject.make(), dtype, 3);
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    const Batch batch = draw_batch(subject, dtype, 4, 100 + step);
    optimizer.zero_grad();
    const Tensor output = net->forward(batch.input.to(device), {.step = step, .rank = 0});
    const Tensor loss = (output - batch.target.to(device)).pow(2).mean();
    loss.backward();
    for (const Tensor& parameter : net->parameters()) {
      const Tensor grad = parameter.grad();
      if (grad.defined() && grad.is_sparse()) parameter.mutable_grad() = grad.to_dense();
    }
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    all.push_back(loss);
  }
  return with_gradients(all, *net);
}

class PretendSubjects : public ::testing::TestWithParam<Subject> {};

TEST_P(PretendSubjects, Trains) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(at::toString(dtype));
    expect_same([&](at::Device device) { return train(GetParam(), dtype, device); });
  }
}

INSTANTIATE_TEST_SUITE_P(All, PretendSubjects, ::testing::ValuesIn(subjects()),
                         [](const auto& test) { return test.param.name; });

TEST(PretendModels, RanksThatAreThreadsTrainOnGpusOfTheirOwn) {
  const auto expected = train(subject("OddMlp"), at::kFloat, at::kCPU);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&, rank] {
      const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
      for (int again = 0; again < 5; ++again) {
        const auto got = train(subject("OddMlp"), at::kFloat, device);
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(expected[i], got[i]));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace tessera::internal::testing
