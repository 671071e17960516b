#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/zero/engine/engine_fixture.h"

// Views and aliases of parameters that a model made before parallelize().

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A model that keeps views or aliases of its parameters.
struct Keeper : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  at::Tensor loss() {
    return (forward(at::linspace(-1, 1, 24, at::kDouble).view({4, 6})) - 1).pow(2).mean();
  }

  /// Of shape 6 x 3.
  at::Tensor weight =
      register_parameter("weight", at::linspace(-0.5, 0.7, 18, at::kDouble).view({6, 3}).clone());
  at::Tensor scale = register_parameter("scale", at::full({3}, 0.5, at::kDouble));
};

/// Keeps a view with its graph.
struct KeepsTranspose final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(transpose.t()) * scale;
  }
  at::Tensor transpose = weight.t();
};

/// Keeps views of parts.
struct KeepsSlices final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(at::cat({first, others})) * scale;
  }
  at::Tensor first = weight.narrow(0, 0, 1);
  at::Tensor others = weight.narrow(0, 1, 5);
};

/// Keeps an alias unknown to autograd; adding it to the loss shows its values.
struct KeepsDetached final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(weight) * scale + detached.sum();
  }
  at::Tensor detached = weight.detach();
};

struct KeepsData final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(weight) * scale + data[2].sum();
  }
  at::Tensor data = weight.data();
};

/// Keeps an alias as a buffer.
struct KeepsBuffer final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(weight) * scale + alias.sum() + part.sum();
  }
  at::Tensor alias = register_buffer("alias", weight.detach());
  at::Tensor part = register_buffer("part", scale.detach().narrow(0, 1, 2));
};

/// Parameters that are views themselves: of memory in another order, and of memory that nothing
/// else uses.
struct ViewsAsParameters final : Keeper {
  ViewsAsParameters() {
    const at::Tensor both = at::linspace(0, 1, 6, at::kDouble).view({2, 3}).clone();
    first = register_parameter("first", both[0]);
    second = register_parameter("second", both[1]);
    permuted =
        register_parameter("permuted", at::linspace(0, 1, 9, at::kDouble).view({3, 3}).clone().t());
    flat = permuted.t().view({9});
  }
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(weight).matmul(permuted) * scale * first + second + flat[2];
  }
  at::Tensor first;
  at::Tensor second;
  at::Tensor permuted;
  at::Tensor flat;
};

/// A kernel in channels_last order, and its elements in memory order.
struct KeepsChannelsLast final : Keeper {
  KeepsChannelsLast() {
    kernel = register_parameter("kernel", at::linspace(-1, 1, 24, at::kDouble)
                                              .view({3, 2, 2, 2})
                                              .contiguous(at::MemoryFormat::ChannelsLast));
    flat = kernel.permute({0, 2, 3, 1}).view({24});
  }
  at::Tensor forward(const at::Tensor& input) override {
    const at::Tensor image = input.matmul(weight).view({1, 3, 2, 2}).narrow(1, 0, 2);
    return at::conv2d(image, kernel).sum() * scale + flat.pow(2).sum();
  }
  at::Tensor kernel;
  at::Tensor flat;
};

/// A frozen parameter, which is in no unit if parameters are not split.
struct KeepsFrozen final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    return input.matmul(weight) * scale * part.sum();
  }
  at::Tensor frozen =
      register_parameter("frozen", at::full({4}, 1.25, at::kDouble), /*requires_grad=*/false);
  at::Tensor part = register_buffer("part", frozen.narrow(0, 1, 2));
};

/// A buffer that the model writes and whose elements share one place.
struct KeepsExpanded final : Keeper {
  at::Tensor forward(const at::Tensor& input) override {
    {
      const at::NoGradGuard no_grad;
      count.add_(0.25);
    }
    return input.matmul(weight) * scale + counts;
  }
  at::Tensor count = at::zeros({1}, at::kDouble);
  at::Tensor counts = register_buffer("counts", count.expand({3}));
};

struct Kind {
  std::string name;
  std::function<std::shared_ptr<Keeper>()> make;
};

std::vector<Kind> kinds() {
  return {
      {"transpose", [] { return std::make_shared<KeepsTranspose>(); }},
      {"slices", [] { return std::make_shared<KeepsSlices>(); }},
      {"detached", [] { return std::make_shared<KeepsDetached>(); }},
      {"data", [] { return std::make_shared<KeepsData>(); }},
      {"buffer", [] { return std::make_shared<KeepsBuffer>(); }},
      {"views as parameters", [] { return std::make_shared<ViewsAsParameters>(); }},
      {"channels_last", [] { return std::make_shared<KeepsChannelsLast>(); }},
      {"frozen", [] { return std::make_shared<KeepsFrozen>(); }},
      {"expanded", [] { return std::make_shared<KeepsExpanded>(); }},
  };
}

constexpr int kSteps = 4;

/// Losses of plain LibTorch. All ranks have the same batch, so their mean equals one rank's.
std::vector<double> losses_without_engine(const Kind& kind) {
  const std::shared_ptr<Keeper> model = kind.make();
  torch::optim::AdamW optimizer(model->parameters(), adamw());
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = model->loss();
    loss.backward();
    losses.push_back(loss.item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

class KeptAliases : public ::testing::TestWithParam<std::pair<Configuration, int>> {
 protected:
  const Configuration& configuration() const { return GetParam().first; }
  int size() const { return GetParam().second; }
  std::unique_ptr<Engine> engine_of(const std::shared_ptr<Keeper>& model,
                                    const std::shared_ptr<ProcessGroup>& world) const {
    return parallelize(model, adamw(), small_options_of(configuration()), world);
  }
};

TEST_P(KeptAliases, FollowTheParameterThroughTraining) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const std::vector<double> expected = losses_without_engine(kind);
    EXPECT_NE(expected.front(), expected.back()) << "it has to learn something";
    run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
      const std::shared_ptr<Keeper> model = kind.make();
      const auto engine = engine_of(model, world);
      for (int step = 0; step < kSteps; ++step) {
        const at::Tensor loss = model->loss();
        EXPECT_NEAR(loss.item<double>(), expected[step], 1e-12) << kind.name << ", step " << step;
        loss.backward();
        engine->step();
      }
    });
  }
}

TEST_P(KeptAliases, FollowWhenParametersAreWrittenSavedAndLoaded) {
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<KeepsBuffer>();
    const auto engine = engine_of(model, world);
    const StateDict before = engine->state_dict(StateScope::kEveryRank);
    EXPECT_EQ(before.entries.count("model.alias"), 0u) << "the parameter's entry has it";
    EXPECT_EQ(before.entries.count("model.part"), 0u);

    const at::NoGradGuard no_grad;
    engine->modify_parameters(0, [&] { model->weight.fill_(3); });
    EXPECT_TRUE(at::full({6, 3}, 3.0, at::kDouble).equal(model->alias + 0));
    engine->load_state_dict(before);
    EXPECT_TRUE(at::equal(model->alias + 0, before.entries.at("model.weight").tensor()));
  });
}

TEST_P(KeptAliases, AWriteByWayOfOneIsRefused) {
  for (const Kind& kind : {kinds()[0], kinds()[2], kinds()[3]}) {
    SCOPED_TRACE(kind.name);
    const auto errors =
        run_ranks_expecting_errors(size(), [&](std::shared_ptr<ProcessGroup> world) {
          const std::shared_ptr<Keeper> model = kind.make();
          const auto engine = engine_of(model, world);
          model->loss().backward();
          engine->step();
          {
            const at::NoGradGuard no_grad;
            if (auto* keeper = dynamic_cast<KeepsTranspose*>(model.get()))
              keeper->transpose.add_(1);
            if (auto* keeper = dynamic_cast<KeepsDetached*>(model.get())) keeper->detached.add_(1);
            if (auto* keeper = dynamic_cast<KeepsData*>(model.get())) keeper->data.add_(1);
          }
          model->loss().backward();
          engine->step();
        });
    for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("'weight'"));
  }
}

TEST_P(KeptAliases, AGraphFromBeforeAStepIsRefusedAsInPlainLibTorch) {
  const auto errors = run_ranks_expecting_errors(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<KeepsTranspose>();
    const at::Tensor from_before = model->loss();
    const auto engine = engine_of(model, world);
    model->loss().backward();
    engine->step();
    from_before.backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("modified by an inplace operation"));
  }
}

TEST_P(KeptAliases, AGraphFromBeforeParallelizeTrains) {
  double expected = 0;
  {
    const auto model = std::make_shared<KeepsTranspose>();
    torch::optim::AdamW optimizer(model->parameters(), adamw());
    model->loss().backward();
    optimizer.step();
    expected = model->loss().item<double>();
  }
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<KeepsTranspose>();
    const at::Tensor loss = model->loss();
    const auto engine = engine_of(model, world);
    loss.backward();
    engine->step();
    EXPECT_NEAR(model->loss().item<double>(), expected, 1e-12);
  });
}

TEST_P(KeptAliases, AParameterCannotBeResized) {
  const auto errors = run_ranks_expecting_errors(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<KeepsTranspose>();
    const auto engine = engine_of(model, world);
    const at::NoGradGuard no_grad;
    model->weight.resize_({100, 100});
  });
  for (const std::string& error : errors) EXPECT_NE(error, "");
}

TEST_P(KeptAliases, GoTheWayOfTheParameterWhenTheEngineEnds) {
  const bool is_split =
      configuration().splits_parameters() && (size() > 1 || configuration().free_eagerly);
  run_ranks(size(), [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<KeepsTranspose>();
    engine_of(model, world).reset();
    if (is_split) {
      EXPECT_THROW(model->transpose.sum(), c10::Error) << "the engine that could gather is gone";
      return;
    }
    EXPECT_TRUE(at::equal(model->transpose, model->weight.t()));
    const auto engine = engine_of(model, world);  // they follow the next engine, too
    model->loss().backward();
    engine->step();
    EXPECT_TRUE(at::equal(model->transpose, model->weight.t()));
  });
}

INSTANTIATE_TEST_SUITE_P(, KeptAliases, configurations_and_worlds(), name_of);

/// Such a view carries the key by which the former engine observed it.
TEST(ViewsOfFormerParameters, MayBecomeParametersOfAnyEngine) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3}) {
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& world) {
      torch::nn::Linear former(3, 5);
      parallelize(former, adamw(), {.strategy = Strategy::kZero2, .share_parameters = false}, world)
          ->wait();
      torch::nn::Linear model(3, 5);
      model->weight.set_data(former->weight.detach());
      const auto engine = parallelize(model, adamw(), {.strategy = strategy}, world);
      model(at::ones({2, 3})).sum().backward();
      EXPECT_TRUE(engine->step().committed);
    });
  }
}

TEST(KeptAliasesRefusal, IsGivenOnAllRanksIfOneHasAnAliasThatCannotFollow) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    const auto errors = run_ranks_expecting_errors(3, [&](std::shared_ptr<ProcessGroup> world) {
      const auto model = std::make_shared<KeepsSlices>();
      at::Tensor larger = at::ones({4}, at::kDouble);
      model->register_parameter("part", larger.narrow(0, 0, 3));
      if (world->rank() != 1) larger.reset();
      Options options = small_options_of(configuration_of(strategy));
      const auto engine = parallelize(model, adamw(), options, world);
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error,
                  AllOf(HasSubstr("rank 1"), HasSubstr("parameter 'part'"), HasSubstr("clone()")));
    }
  }
}

TEST(KeptAliasesRefusal, IsGivenWhereTheDtypeChanges) {
  const auto errors = run_ranks_expecting_errors(2, [&](std::shared_ptr<ProcessGroup> world) {
    const auto model = std::make_shared<KeepsBuffer>();
    Options options = small_options_of(configuration_of(Strategy::kZero1));
    options.precision.parameters = at::kFloat;
    const auto engine = parallelize(model, adamw(), options, world);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("'weight'"), HasSubstr("'scale'"),
                             HasSubstr("converted from Double to Float")));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
