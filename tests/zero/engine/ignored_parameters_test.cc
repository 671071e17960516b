#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <torch/torch.h>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Options::ignores: parameters that the engine leaves alone.

namespace tessera::internal::testing {
namespace {

/// Two layers, and a parameter of the rank's own with two names.
struct OwnScale : torch::nn::Module {
  explicit OwnScale(int rank) {
    scale = register_parameter("scale", at::full({5}, 1.0 + rank, at::kDouble));
    register_parameter("same_scale", scale);
    first = register_module("first", torch::nn::Linear(7, 5));
    second = register_module("second", torch::nn::Linear(5, 3));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double value = 0.1;
    for (at::Tensor& parameter : parameters()) {
      if (!parameter.is_same(scale)) parameter.fill_(value += 0.05);
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    return second(torch::relu(first(input)) * scale).sum();
  }

  at::Tensor scale;
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};

class IgnoredParameters : public ::testing::TestWithParam<std::pair<Configuration, int>> {};

TEST_P(IgnoredParameters, AreNotSynchronisedSplitHookedOrUpdated) {
  run_ranks(GetParam().second, [](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<OwnScale>(world->rank());
    const at::Tensor before = model->scale.detach().clone();
    const void* address = model->scale.const_data_ptr();
    Options options = small_options_of(GetParam().first);
    options.ignores = [](std::string_view name) { return name == "same_scale"; };
    const auto engine = parallelize(model, adamw(), options, world);
    EXPECT_EQ(engine->parameters().size(), 4u);
    const at::Tensor weight_before = model->first->weight.detach().clone();

    model->forward(at::ones({2, 7}, at::kDouble)).backward();
    ASSERT_TRUE(model->scale.grad().defined()) << "autograd's own gradient, on this rank alone";
    EXPECT_GT(model->scale.grad().abs().sum().item<double>(), 0.0);
    EXPECT_TRUE(engine->step().committed);

    EXPECT_EQ(model->scale.const_data_ptr(), address);
    EXPECT_TRUE(at::equal(model->scale, before)) << "each rank's own values";
    EXPECT_FALSE(at::equal(model->first->weight, weight_before));
    EXPECT_EQ(engine->state_dict(StateScope::kEveryRank).entries.count("model.scale"), 0u);
    EXPECT_NO_THROW(parameter_hash(*engine)) << "ranks may differ in what is ignored";
  });
}

TEST_P(IgnoredParameters, AreNotAll) {
  run_ranks(GetParam().second, [](std::shared_ptr<ProcessGroup> world) {
    Options options = small_options_of(GetParam().first);
    options.ignores = [](std::string_view) { return true; };
    EXPECT_THAT(
        message_of([&] { parallelize(std::make_shared<OwnScale>(0), adamw(), options, world); }),
        ::testing::HasSubstr("[options] ignores: leaves the engine none"));
  });
}

/// The control: without the option the same parameter is broadcast and trained.
TEST_P(IgnoredParameters, AreTrainedLikeTheOthersWithoutTheOption) {
  run_ranks(GetParam().second, [](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<OwnScale>(world->rank());
    const auto engine = parallelize(model, adamw(), small_options_of(GetParam().first), world);
    EXPECT_EQ(engine->parameters().size(), 5u);
    EXPECT_TRUE(at::equal(model->scale, at::full({5}, 1.0, at::kDouble))) << "rank 0's";
    model->forward(at::ones({2, 7}, at::kDouble)).backward();
    engine->step();
    EXPECT_FALSE(at::equal(model->scale, at::full({5}, 1.0, at::kDouble)));
  });
}

INSTANTIATE_TEST_SUITE_P(, IgnoredParameters, configurations_and_worlds(), name_of);

}  // namespace
}  // namespace tessera::internal::testing
