#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/faults/fault_ranks.h"
#include "tessera/tests/faults/trainer.h"

// Models, options and plans that differ between ranks: parallelize() names the first difference on
// every rank.
namespace tessera::internal::testing {
namespace {

struct Difference {
  std::string name;
  /// Makes a rank's model; `odd` on the rank that differs.
  std::function<std::shared_ptr<torch::nn::Module>(bool odd)> make;
  Parts parts;  ///< parts of every rank's error
};

std::shared_ptr<torch::nn::Module> net_with(
    bool odd, const std::function<void(torch::nn::Module&)>& usual,
    const std::function<void(torch::nn::Module&)>& unusual) {
  auto net = std::make_shared<FaultNet>();
  (odd ? unusual : usual)(*net);
  return net;
}

void nothing(torch::nn::Module&) {}

auto parameter(const std::string& name, const at::Tensor& tensor, bool requires_grad = true) {
  return [=](torch::nn::Module& module) {
    module.register_parameter(name, tensor.detach().clone(), requires_grad);
  };
}

auto buffer(const std::string& name, const at::Tensor& tensor) {
  return [=](torch::nn::Module& module) { module.register_buffer(name, tensor.clone()); };
}

std::vector<Difference> differences() {
  const at::Tensor values = torch::ones({2, 3});
  const auto usual = parameter("more", values);
  const auto pair = [usual](bool odd, const auto& unusual) {
    return net_with(odd, usual, unusual);
  };
  const auto tied = [](torch::nn::Module& module) {
    const at::Tensor shared = module.register_parameter("more", torch::ones({2, 3}));
    module.register_parameter("again", shared);
  };
  const auto untied = [](torch::nn::Module& module) {
    module.register_parameter("more", torch::ones({2, 3}));
    module.register_parameter("again", torch::ones({2, 3}));
  };
  const at::Tensor image = torch::ones({4, 3, 2, 2});
  // Different strides with equal shapes.
  const auto channels_last = [image](torch::nn::Module& module) {
    module.register_parameter("more", image.clone(at::MemoryFormat::ChannelsLast));
  };
  return {
      {"ExtraParameter",
       [=](bool odd) { return net_with(odd, nothing, usual); },
       {"'more'", "shape [2, 3]"}},
      {"RenamedParameter",
       [=](bool odd) { return pair(odd, parameter("other", values)); },
       {"'more'", "'other'"}},
      {"Shape",
       [=](bool odd) {
         return pair(odd, parameter("more", torch::ones({3, 2})));
       },
       {"'more'", "shape [2, 3]", "shape [3, 2]"}},
      {"Dtype",
       [=](bool odd) { return pair(odd, parameter("more", values.to(torch::kDouble))); },
       {"'more'", "Float", "Double"}},
      {"Strides",
       [=](bool odd) { return net_with(odd, parameter("more", image), channels_last); },
       {"'more'", "strides [12, 4, 2, 1]", "strides [12, 1, 6, 3]"}},
      {"RequiresGrad",
       [=](bool odd) { return pair(odd, parameter("more", values, /*requires_grad=*/false)); },
       {"'more'", "trainable", "frozen"}},
      {"Tie", [=](bool odd) { return net_with(odd, untied, tied); }, {"'more'", "'again'"}},
      {"ExtraBuffer",
       [=](bool odd) { return net_with(odd, nothing, buffer("mean", values)); },
       {"buffer mean"}},
      {"BufferShape",
       [=](bool odd) {
         return net_with(odd, buffer("mean", values), buffer("mean", torch::ones({7})));
       },
       {"buffer mean", "[2, 3]", "[7]"}},
      {"BufferDtype",
       [=](bool odd) {
         return net_with(odd, buffer("mean", values), buffer("mean", values.to(torch::kLong)));
       },
       {"buffer mean", "Float", "Long"}},
      {"BufferName",
       [=](bool odd) { return net_with(odd, buffer("mean", values), buffer("average", values)); },
       {"buffer mean", "buffer average"}},
  };
}

class ModelDifference : public ::testing::TestWithParam<Difference> {};

TEST_P(ModelDifference, IsNamedOnEveryRank) {
  for (const int size : {2, 3}) {
    for (const Who who : kOneRank) {
      SCOPED_TRACE(::testing::Message() << "world " << size << ", " << who);
      const auto outcomes = outcomes_of_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
        const auto model = GetParam().make(is_among(who, *world));
        parallelize(model, adamw(), small_options_of(configuration_of(Strategy::kZero1)), world);
      });
      Parts parts = GetParam().parts;
      parts.push_back("[parallelize] rank ");
      parts.push_back("differs from rank 0");
      parts.push_back("all ranks must pass the same");
      // If the odd rank is rank 0, rank 1 is the first that differs from it.
      parts.push_back(who == Who::kLastRank ? first_of(who, size) : "rank 1");
      EXPECT_THAT(outcomes, every_rank_refuses(parts));
    }
  }
}

// Negative control: each of these models works if all ranks have it.
TEST_P(ModelDifference, IsFineWhenAllRanksHaveIt) {
  const auto outcomes = outcomes_of_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    parallelize(GetParam().make(true), adamw(),
                small_options_of(configuration_of(Strategy::kZero1)), world);
  });
  EXPECT_THAT(outcomes, ::testing::Each(is_fine()));
}

INSTANTIATE_TEST_SUITE_P(Faults, ModelDifference, ::testing::ValuesIn(differences()),
                         [](const auto& info) { return info.param.name; });

struct Recipe {
  Options options = small_options_of(configuration_of(Strategy::kDdp));
  OptimizerPlan plan = adamw();
};

struct RecipeDifference {
  std::string name;
  std::function<void(Recipe&)> change;
  Parts parts;
};

OptimizerGroup biases(double decay) {
  return {"biases", [](std::string_view name) { return name.ends_with("bias"); },
          adamw().weight_decay(decay)};
}

std::vector<RecipeDifference> recipe_differences() {
  return {
      {"Strategy",
       [](Recipe& recipe) { recipe.options.strategy = Strategy::kZero1; },
       {"strategy ddp", "strategy zero1"}},
      {"OtherStrategy",
       [](Recipe& recipe) { recipe.options.strategy = Strategy::kZero2; },
       {"strategy ddp", "strategy zero2"}},
      {"SplitStrategy",
       [](Recipe& recipe) {
         recipe.options = small_options_of(configuration_of(Strategy::kZero3));
       },
       {"strategy ddp", "strategy zero3"}},
      {"MaxGradNorm",
       [](Recipe& recipe) { recipe.options.max_grad_norm = 0.1; },
       {"max_grad_norm inf", "max_grad_norm 0.1"}},
      {"BucketBytes",
       [](Recipe& recipe) {
         recipe.options.bucket_bytes = {1024, 1025};
       },
       {"bucket_bytes 1024 1024", "bucket_bytes 1024 1025"}},
      {"ReorderReductions",
       [](Recipe& recipe) { recipe.options.reorder_reductions = false; },
       {"reorder_reductions true", "reorder_reductions false"}},
      {"PoisonFreed",
       [](Recipe& recipe) { recipe.options.poison_freed = true; },
       {"poison_freed false", "poison_freed true"}},
      {"LearningRateInTheLastDigit",
       [](Recipe& recipe) { adamw_of(recipe.plan).lr(0.010000000000000002); },
       {"lr 0.01 ", "lr 0.010000000000000002"}},
      {"Beta",
       [](Recipe& recipe) {
         adamw_of(recipe.plan).betas({0.9, 0.95});
       },
       {"beta2 0.999", "beta2 0.95"}},
      {"Eps", [](Recipe& recipe) { adamw_of(recipe.plan).eps(1e-6); }, {"eps 1e-08", "eps 1e-06"}},
      {"WeightDecay",
       [](Recipe& recipe) { adamw_of(recipe.plan).weight_decay(0.2); },
       {"weight_decay 0.1", "weight_decay 0.2"}},
      {"Group", [](Recipe& recipe) { recipe.plan.groups.push_back(biases(0.0)); }, {"biases"}},
  };
}

class RecipeDiffers : public ::testing::TestWithParam<RecipeDifference> {};

TEST_P(RecipeDiffers, IsNamedOnEveryRank) {
  for (const int size : {2, 3}) {
    for (const Who who : kOneRank) {
      SCOPED_TRACE(::testing::Message() << "world " << size << ", " << who);
      const auto outcomes = outcomes_of_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
        Recipe recipe;
        if (is_among(who, *world)) GetParam().change(recipe);
        parallelize(std::make_shared<FaultNet>(), recipe.plan, recipe.options, world);
      });
      Parts parts = GetParam().parts;
      parts.push_back("differs from rank 0");
      EXPECT_THAT(outcomes, every_rank_refuses(parts));
    }
  }
}

TEST_P(RecipeDiffers, IsFineWhenAllRanksHaveIt) {
  const auto outcomes = outcomes_of_ranks(2, [&](std::shared_ptr<ProcessGroup> world) {
    Recipe recipe;
    GetParam().change(recipe);
    parallelize(std::make_shared<FaultNet>(), recipe.plan, recipe.options, world);
  });
  EXPECT_THAT(outcomes, ::testing::Each(is_fine()));
}

INSTANTIATE_TEST_SUITE_P(Faults, RecipeDiffers, ::testing::ValuesIn(recipe_differences()),
                         [](const auto& info) { return info.param.name; });

// The same options, but a group's predicate selects other parameters on one rank.
TEST(RecipeDiffersBySelection, IsNamedOnEveryRank) {
  const auto outcomes = outcomes_of_ranks(3, [&](std::shared_ptr<ProcessGroup> world) {
    const std::string suffix = world->rank() == 2 ? "weight" : "bias";
    OptimizerGroup group{"some", [suffix](std::string_view name) { return name.ends_with(suffix); },
                         adamw()};
    parallelize(std::make_shared<FaultNet>(), OptimizerPlan(adamw(), {group}),
                small_options_of(configuration_of(Strategy::kDdp)), world);
  });
  EXPECT_THAT(outcomes, every_rank_refuses({"rank 2 differs from rank 0", "'first."}));
}

}  // namespace
}  // namespace tessera::internal::testing
