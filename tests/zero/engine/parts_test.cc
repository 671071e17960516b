#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/zero/engine/average_in_use.h"
#include "tessera/zero/engine/backward.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/engine_plan.h"
#include "tessera/zero/engine/engine_report.h"
#include "tessera/zero/engine/engine_state.h"
#include "tessera/zero/engine/engine_step.h"
#include "tessera/zero/engine/evaluation.h"
#include "tessera/zero/engine/join_loop.h"
#include "tessera/zero/engine/sharded_engine.h"
#include "tessera/zero/engine/step_gradients.h"
#include "tessera/zero/engine/trained_parameters.h"

// The parts of an engine without the engine: each with the parts that it uses and no others.
namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Call = JoinProtocol::Call;

constexpr int kWorld = 3;

EngineParts parts_of(const torch::nn::Module& model, std::shared_ptr<ProcessGroup> group,
                     const Options& given) {
  std::vector<NamedTensor> parameters;
  for (const auto& parameter : model.named_parameters()) {
    parameters.push_back({parameter.key(), parameter.value()});
  }
  ParameterTable table(std::move(parameters));
  const WorldTraits traits{.size = group->size(), .can = group->can()};
  ResolvedOptions options = resolve(given, &table, traits).value();
  OptimizerPlan optimizer(torch::optim::AdamWOptions(0.1));
  std::vector<size_t> group_of = optimizer.assign(table).value();
  std::vector<std::string> problems;
  UnitPlan plan = plan_units(model, table, optimizer, options, *group, problems).value();
  return {.group = std::move(group),
          .table = std::move(table),
          .plan = std::move(plan),
          .options = std::move(options),
          .optimizer = std::move(optimizer),
          .group_of = std::move(group_of)};
}

/// A linear module of odd sizes, equal on all ranks, and the objects that outlive its engine.
struct Trainee {
  explicit Trainee(std::shared_ptr<ProcessGroup> group)
      : persistent{.group = std::move(group),
                   .model = model.ptr(),
                   .buffers = {},
                   .optimizer = std::make_unique<RefusingOptimizer>(
                       std::make_unique<torch::optim::AdamWOptions>(0.1)),
                   .trace = nullptr} {}

  torch::nn::Linear model = [] {
    torch::nn::Linear linear(5, 3);
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(0.5);
    linear->bias.fill_(0.25);
    return linear;
  }();
  PersistentState persistent;
};

/// The lowest parts, which every other part needs.
struct Base : Trainee {
  explicit Base(std::shared_ptr<ProcessGroup> group, const Options& options = {})
      : Trainee(group),
        context(parts_of(*model, std::move(group), options), persistent),
        trained(context, Values::kOfParameters),
        gradients(context, trained) {}

  /// Gives gradients as a backward does, all equal to `value`.
  void give(double value) {
    gradients.begin(Reducer::Mode::kReduce, /*factor=*/1.0);
    for (size_t i = context.parts.table.size(); i-- > 0;) {
      gradients.receive(i, torch::full_like(context.parts.table[i].tensor, value));
    }
    gradients.count_backward();
    EXPECT_FALSE(gradients.end(/*objects=*/false));
  }

  EngineContext context;
  TrainedParameters trained;
  StepGradients gradients;
};

void in_world(const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  run_ranks(kWorld, body);
}

TEST(TrainedParametersAlone, CountWhatTheyHoldWhileTheyLive) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    PersistentState* persistent = nullptr;
    Base base(group, {.strategy = Strategy::kZero3});
    persistent = &base.persistent;
    EXPECT_GT(persistent->meter.now()[MemoryClass::kOptimizer], 0);
    EXPECT_FALSE(base.trained.is_updated());
    base.trained.settle();
    EXPECT_EQ(base.trained.optimizer().groups().size(), 1U);
  });
}

TEST(StepGradientsAlone, AreTheMeanOverRanksUntilTheyAreDropped) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group);
    const int64_t before = base.gradients.history();
    base.give(group->rank());
    EXPECT_TRUE(base.gradients.has_backward());
    EXPECT_EQ(base.gradients.reductions(), 1);
    EXPECT_TRUE(base.model->bias.grad().equal(torch::ones({3}))) << "0, 1 and 2";
    EXPECT_NE(base.gradients.history(), before);

    base.model->bias.mutable_grad().reset();
    base.gradients.adopt_cleared();
    EXPECT_EQ(base.gradients.reducer().used()[1], 0) << "one of them";
    EXPECT_EQ(base.gradients.reducer().used()[0], 1);

    base.gradients.clear();
    EXPECT_FALSE(base.gradients.has_backward());
    EXPECT_FALSE(base.model->weight.grad().defined());
    EXPECT_EQ(base.gradients.history(), before);
  });
}

TEST(StepGradientsAlone, ALateStepThatIsRefusedTakesItsHistoryAlong) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(std::move(group));
    base.gradients.note_step(0, /*counts=*/true);
    base.gradients.note_agreement();
    const int64_t agreed = base.gradients.history();
    base.give(1.0);
    base.gradients.note_step(1, /*counts=*/true);
    EXPECT_NE(base.gradients.history(), agreed);
    base.gradients.take_back_step();
    EXPECT_EQ(base.gradients.history(), agreed);
  });
}

TEST(JoinLoopAlone, RanksWithoutBatchesLearnWhatTheOthersCall) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group);
    JoinLoop join(base.context, base.trained, base.gradients.weight());
    EXPECT_EQ(join.announce(Call::kStep, "step"), Call::kStep) << "outside a loop nothing is sent";
    EXPECT_EQ(join.ranks_with_batches().count, kWorld);
    std::vector<Call> followed;
    const auto follow = [&] {
      join.follow([&](Call call) {
        EXPECT_TRUE(join.is_following());
        join.announce(call, "what is followed");  // sends nothing
        followed.push_back(call);
      });
    };
    int on_step = 0;
    JoinScope scope = join.begin({.on_step = [&] { ++on_step; }}, follow);
    EXPECT_TRUE(join.is_open());
    if (group->rank() != 1) {
      join.announce(Call::kMicroStep, "backward");
      EXPECT_EQ(join.ranks_with_batches().count, 2);
      join.announce(Call::kStep, "step");
    }
    scope.follow();
    EXPECT_FALSE(join.is_open());
    if (group->rank() == 1) {
      EXPECT_THAT(followed, ElementsAre(Call::kMicroStep, Call::kStep));
      EXPECT_EQ(on_step, 1);
    } else {
      EXPECT_THAT(followed, ElementsAre());
    }
  });
}

TEST(AverageInUseAlone, EndsByItsScopeOrByACallThatEndsIt) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group, {.average = WeightAverage{.decay = 0.5}});
    AverageInUse average(base.context, base.trained);
    const auto begin = [&] {
      return average.begin(1, [&] { average.leave("end", AverageInUse::Inside::kEnds); });
    };
    EXPECT_THAT(message_of([&] { (void)begin(); }), HasSubstr("got an average of no step"));

    JoinLoop join(base.context, base.trained, base.gradients.weight());
    EngineStep step(base.context, base.trained, base.gradients, join);
    base.give(1.0);
    EXPECT_TRUE(step.make().committed);
    const at::Tensor live = base.model->weight.detach().clone();

    Engine::AverageScope scope = begin();
    EXPECT_TRUE(average.is_open());
    average.leave("evaluate", AverageInUse::Inside::kAllowed);
    EXPECT_TRUE(average.is_open());
    EXPECT_THAT(message_of([&] { average.leave("step", AverageInUse::Inside::kRefused); }),
                HasSubstr("step: called inside begin_average()"));
    scope.end();
    EXPECT_FALSE(average.is_open());
    EXPECT_TRUE(base.model->weight.equal(live));

    { const Engine::AverageScope dropped = begin(); }
    average.leave("step", AverageInUse::Inside::kRefused);
    EXPECT_FALSE(average.is_open()) << "its scope was dropped";
  });
}

TEST(EngineStepAlone, AppliesTheGradientsOnceAndRefusesToDoItWithoutAny) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group, {.strategy = Strategy::kZero1});
    JoinLoop join(base.context, base.trained, base.gradients.weight());
    EngineStep step(base.context, base.trained, base.gradients, join);
    EXPECT_THAT(message_of([&] { step.make(); }), HasSubstr("backward"));
    base.give(1.0);
    EXPECT_TRUE(step.make().committed);
    EXPECT_EQ(step.steps(), 1);
    EXPECT_EQ(step.last().reductions, 1);
    EXPECT_LT(base.model->bias.max().item<float>(), 0.25F);
    EXPECT_FALSE(base.gradients.has_backward());
    const Report report = report_of(base.context, base.trained, base.gradients, step);
    EXPECT_EQ(report.steps, 1);
    EXPECT_EQ(report.world, kWorld);
  });
}

struct WithBackward : Base {
  using Base::Base;
  JoinLoop join{context, trained, gradients.weight()};
  AverageInUse average{context, trained};
  EngineStep step{context, trained, gradients, join};
  Backward backward{{context, trained, gradients, join, step, average}};
};

TEST(BackwardAlone, TakesWhatAutogradGives) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    WithBackward base(group);
    EXPECT_FALSE(base.backward.is_running());
    base.model->forward(torch::ones({2, 5})).sum().backward();
    EXPECT_EQ(base.gradients.backwards(), 1);
    EXPECT_TRUE(base.model->bias.grad().equal(torch::full({3}, 2.0)));
    base.backward.accumulate({.placed = {{1, torch::ones({3})}}, .problem = ""}, {},
                             /*is_announced=*/false);
    EXPECT_EQ(base.gradients.backwards(), 2);
    EXPECT_TRUE(base.model->bias.grad().equal(torch::full({3}, 3.0)));
    EXPECT_TRUE(base.step.make().committed);
  });
}

TEST(ShardedEngineAlone, NamesWhereACallWasMade) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Trainee trainee(group);
    ShardedEngine engine(parts_of(*trainee.model, std::move(group), {}), trainee.persistent);
    EXPECT_EQ(engine.misplaced(), "");
    engine.trained.access.modify(0, [&] {
      EXPECT_THAT(message_of([&] { engine.require_between_steps("step"); }),
                  HasSubstr("step: called inside modify_parameters"));
    });
    trainee.persistent.running = "a schedule";
    EXPECT_THAT(engine.misplaced(), HasSubstr("called inside a schedule"));
    trainee.persistent.running = nullptr;
    engine.require_between_steps("step");
  });
}

TEST(EngineStateAlone, PutsBackWhatItGave) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group, {.strategy = Strategy::kZero2});
    JoinLoop join(base.context, base.trained, base.gradients.weight());
    EngineStep step(base.context, base.trained, base.gradients, join);
    EngineState state(base.context, base.trained, base.gradients, step);
    const StateDict before = state.state_dict(StateScope::kSharded, 0);
    const at::Tensor weight = base.model->weight.detach().clone();
    base.give(1.0);
    EXPECT_TRUE(step.make().committed);
    EXPECT_FALSE(base.model->weight.equal(weight));
    state.load_state_dict(before, {});
    EXPECT_EQ(step.steps(), 0);
    EXPECT_TRUE(base.model->weight.equal(weight));
  });
}

TEST(EvaluateAlone, IsTheMeanOverAllRanks) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group);
    int batches = group->rank() + 1;
    const Mean mean = evaluate(
        base.context, base.trained, [&] { return batches-- > 0; },
        [&](Mean& sum) { sum.add(static_cast<double>(group->rank()), 1.0); });
    EXPECT_DOUBLE_EQ(mean.value(), (0.0 + 2 * 1.0 + 3 * 2.0) / 6.0);
  });
}

TEST(PartsNegativeControl, RanksThatGiveDifferentGradientsAreRefusedByTheStep) {
  in_world([](std::shared_ptr<ProcessGroup> group) {
    Base base(group);
    JoinLoop join(base.context, base.trained, base.gradients.weight());
    EngineStep step(base.context, base.trained, base.gradients, join);
    base.give(1.0);
    if (group->rank() == 0) base.gradients.note_step(7, /*counts=*/true);
    EXPECT_THAT(message_of([&] { step.make(); }), HasSubstr("rank"));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
