#include "tessera/core/grad/gradient_hook.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera::internal {
namespace {

struct Received {
  size_t index;
  at::Tensor gradient;
};

struct Sink final : GradientSink {
  void before_gradient(size_t index) override { announced.push_back(index); }
  void gradient(size_t index, at::Tensor gradient) override {
    if (throws) throw std::runtime_error("the sink is full");
    received.push_back({index, std::move(gradient)});
  }
  std::vector<size_t> announced;
  std::vector<Received> received;
  bool throws = false;
};

at::Tensor leaf_matrix() { return at::ones({3, 5}).set_requires_grad(true); }

TEST(GradientHook, GivesTheGradientAwayAndLeavesGradUndefined) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  const GradientHook hook(weight, 7, sink);
  (weight * 2).sum().backward();
  ASSERT_EQ(sink.received.size(), 1u);
  EXPECT_EQ(sink.announced, std::vector<size_t>{7});
  EXPECT_EQ(sink.received[0].index, 7u);
  EXPECT_TRUE(at::equal(sink.received[0].gradient, at::full({3, 5}, 2.0F)));
  EXPECT_FALSE(weight.grad().defined());
}

/// Returns a gradient whose address is known.
struct KnownGradient : torch::autograd::Function<KnownGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const void** address) {
    context->saved_data["address"] = reinterpret_cast<int64_t>(address);
    return x.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    at::Tensor gradient = at::ones({3, 5});
    const auto address = reinterpret_cast<const void**>(context->saved_data["address"].toInt());
    *address = gradient.const_data_ptr();
    return {std::move(gradient), at::Tensor()};
  }
};

TEST(GradientHook, TakesTheFreshGradientWithoutACopy) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  const GradientHook hook(weight, 0, sink);
  const void* fresh = nullptr;
  KnownGradient::apply(weight, &fresh).backward();
  ASSERT_EQ(sink.received.size(), 1u);
  EXPECT_EQ(sink.received[0].gradient.const_data_ptr(), fresh);
}

TEST(GradientHook, SeesTheSumOfAllUsesOfOneBackwardOnce) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  const GradientHook hook(weight, 0, sink);
  (weight * 2 + weight * 3).sum().backward();
  ASSERT_EQ(sink.received.size(), 1u);
  EXPECT_TRUE(at::equal(sink.received[0].gradient, at::full({3, 5}, 5.0F)));
}

TEST(GradientHook, NeverAddsToAnEarlierGradient) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  const GradientHook hook(weight, 0, sink);
  for (int i = 0; i < 3; ++i) weight.sum().backward();
  ASSERT_EQ(sink.received.size(), 3u);
  EXPECT_TRUE(at::equal(sink.received[2].gradient, at::ones({3, 5})));
}

TEST(GradientHook, PassesSparseGradientsOn) {
  Sink sink;
  const at::Tensor table = at::ones({11, 7}).set_requires_grad(true);
  const GradientHook hook(table, 0, sink);
  at::embedding(table, at::tensor({1, 1, 4}, at::kLong), /*padding_idx=*/-1,
                /*scale_grad_by_freq=*/false, /*sparse=*/true)
      .sum()
      .backward();
  ASSERT_EQ(sink.received.size(), 1u);
  EXPECT_TRUE(sink.received[0].gradient.is_sparse());
}

TEST(GradientHook, AnExceptionOfTheSinkReachesTheCaller) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  const GradientHook hook(weight, 0, sink);
  sink.throws = true;
  EXPECT_THROW(weight.sum().backward(), std::exception);
  sink.throws = false;
  weight.sum().backward();
  EXPECT_EQ(sink.received.size(), 1u);
}

TEST(GradientHook, AutogradGradDoesNotReachTheSink) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  const GradientHook hook(weight, 0, sink);
  torch::autograd::grad({weight.sum()}, {weight});
  EXPECT_TRUE(sink.received.empty());
  EXPECT_TRUE(sink.announced.empty());
}

TEST(GradientHook, AGraphThatOutlivesItAccumulatesAsUsual) {
  Sink sink;
  const at::Tensor weight = leaf_matrix();
  auto hook = std::make_unique<GradientHook>(weight, 0, sink);
  EXPECT_TRUE(GradientHook::is_taken(weight));
  const at::Tensor loss = weight.sum();
  hook.reset();
  EXPECT_FALSE(GradientHook::is_taken(weight));
  loss.backward();
  EXPECT_TRUE(sink.received.empty());
  EXPECT_TRUE(sink.announced.empty());
  EXPECT_TRUE(at::equal(weight.grad(), at::ones({3, 5})));
}

TEST(GradientHook, ASecondHookAfterTheFirstReceivesAlone) {
  Sink first;
  Sink second;
  const at::Tensor weight = leaf_matrix();
  { const GradientHook hook(weight, 0, first); }
  const GradientHook hook(weight, 1, second);
  weight.sum().backward();
  EXPECT_TRUE(first.received.empty());
  EXPECT_TRUE(first.announced.empty());
  ASSERT_EQ(second.received.size(), 1u);
  EXPECT_EQ(second.announced, std::vector<size_t>{1});
}

}  // namespace
}  // namespace tessera::internal
