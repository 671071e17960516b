#include "tessera/partial_state.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine/engine_fixture.h"
#include "tessera/tests/zero/engine/thawed_rank.h"

// States of runs that trained other parameters: refused by default, loaded if asked for.
namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool is_bias_name(std::string_view name) { return name.ends_with("bias"); }
bool is_no_bias(std::string_view name) { return !is_bias_name(name); }

/// Expects that the entry of `state` has the bits of `expected`.
void expect_bits(const StateDict& state, const std::string& name, const at::Tensor& expected) {
  ASSERT_EQ(state.entries.count(name), 1U) << name;
  EXPECT_TRUE(have_same_bits(state.entries.at(name).tensor(), expected)) << name;
}

class PartialStates : public EngineTest {};
INSTANTIATE_TEST_SUITE_P(Configurations, PartialStates, configurations_and_worlds(), name_of);

TEST_P(PartialStates, OfFewerTrainedParametersBeginAnewWhereThatIsAccepted) {
  Configuration configuration = this->configuration();
  configuration.precision.parameters = at::kBFloat16;
  configuration.average = WeightAverage{.decay = 0.9};
  run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank saved(group, "OddMlp", configuration, &is_no_bias);
    saved.train(0, 2);
    const StateDict state = saved.state();
    const ThawedRank run(group, "OddMlp", configuration, all_train, 77);
    run.train(0, 3);
    const StateDict before = run.state();
    EXPECT_THAT(message_of([&] { run.engine->load_state_dict(state); }),
                AllOf(HasSubstr("'optimizer.layer0.bias.exp_avg': missing"),
                      HasSubstr("accept it by PartialState::may_lack")));
    EXPECT_THAT(message_of([&] {
                  run.engine->load_state_dict(state, {.may_lack = [](std::string_view name) {
                                                return name == "layer0.bias";
                                              }});
                }),
                HasSubstr("'optimizer.layer1.bias.exp_avg': missing"));
    EXPECT_EQ(bit_differences(run.state(), before), "");

    run.engine->load_state_dict(state, {.may_lack = &is_bias_name});
    const StateDict after = run.state();
    for (const auto& [name, entry] : state.entries) expect_bits(after, name, entry.tensor());
    const at::Tensor value = state.entries.at("model.layer0.bias").tensor();
    expect_bits(after, "optimizer.layer0.bias.exp_avg", at::zeros(value.sizes(), at::kFloat));
    expect_bits(after, "optimizer.layer0.bias.master", value.to(at::kFloat));
    expect_bits(after, "optimizer.layer0.bias.average", value.to(at::kFloat));
    expect_bits(after, "optimizer.layer0.bias.step", at::zeros({}, at::kLong));
    run.train(2, 3);
  });
}

TEST_P(PartialStates, OfMoreTrainedParametersAreLeftOut) {
  run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank saved(group, "OddMlp", configuration(), all_train);
    saved.train(0, 2);
    const StateDict state = saved.state();
    const ThawedRank run(group, "OddMlp", configuration(), &is_no_bias, 77);
    EXPECT_THAT(message_of([&] { run.engine->load_state_dict(state); }),
                AllOf(HasSubstr("'optimizer.layer0.bias.exp_avg': got an entry that this run does "
                                "not have; the parameter is frozen"),
                      HasSubstr("PartialState::leaves_out_frozen")));
    run.engine->load_state_dict(state, {.leaves_out_frozen = true});
    for (const auto& [name, entry] : run.state().entries) {
      expect_bits(state, name, entry.tensor());
    }
    run.train(2, 3);
  });
}

TEST_P(PartialStates, WithoutAParameterLeaveItAsItIs) {
  run_ranks(size(), [&](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank saved(group, "OddMlp", configuration(), all_train);
    saved.train(0, 2);
    StateDict state = saved.state();
    std::erase_if(state.entries, [](const auto& entry) {
      return entry.first.find("layer0") != std::string::npos;
    });
    const ThawedRank run(group, "OddMlp", configuration(), all_train, 77);
    run.train(0, 3);
    const StateDict before = run.state();
    const auto is_first_layer = [](std::string_view name) { return name.starts_with("layer0"); };
    run.engine->load_state_dict(state, {.may_lack = is_first_layer});
    const StateDict after = run.state();
    for (const auto& [name, entry] : before.entries) {
      const bool stays = !state.entries.contains(name);
      expect_bits(after, name, (stays ? entry : state.entries.at(name)).tensor());
    }
  });
}

TEST(PartialState, BeginsWithWhatTheAlgorithmBeginsWith) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const OptimizerPlan plan = torch::optim::AdagradOptions(0.01).initial_accumulator_value(0.25);
    const Configuration zero2 = configuration_of(Strategy::kZero2);
    const ThawedRank saved(group, "OddMlp", zero2, &is_no_bias, 3, plan);
    saved.train(0, 2);
    const ThawedRank run(group, "OddMlp", zero2, all_train, 77, plan);
    run.train(0, 2);
    run.engine->load_state_dict(saved.state(), {.may_lack = all_train});
    const StateDict state = run.state();
    const at::Tensor value = state.entries.at("model.layer1.bias").tensor();
    expect_bits(state, "optimizer.layer1.bias.sum", at::full_like(value, 0.25));
  });
}

TEST(PartialState, MustBeTheSameOnAllRanks) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const ThawedRank run(group, "OddMlp", configuration_of(Strategy::kZero1), all_train);
    const StateDict state = run.state();
    const bool is_odd_one = group->rank() == 2;
    EXPECT_THAT(message_of([&] {
                  run.engine->load_state_dict(
                      state, {.may_lack = is_odd_one ? &is_bias_name : &is_no_bias});
                }),
                HasSubstr("rank 2 differs from rank 0"));
    EXPECT_THAT(
        message_of([&] {
          run.engine->load_state_dict(state, {.may_lack = [&](std::string_view) -> bool {
                                        if (is_odd_one) throw std::runtime_error("ask me");
                                        return true;
                                      }});
        }),
        HasSubstr("[state] rank 2: PartialState::may_lack threw for 'layer0.weight': ask me"));
    run.train(0, 1);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
