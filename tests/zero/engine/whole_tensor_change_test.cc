// Parameters that get whole_tensor() later, or by loading the state of another run.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/breadth.h"
#include "tessera/tests/support/factored.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/state_run.h"
#include "tessera/tests/zero/engine/thawed_rank.h"
#include "tessera/tests/zero/state/saved_rank.h"
#include "tessera/torch_elementwise.h"
#include "tessera/whole_tensor.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

bool is_of_last_layer(std::string_view name) { return name.starts_with("layer2."); }
bool is_of_others(std::string_view name) { return !is_of_last_layer(name); }

class WholeTensorChange : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, WholeTensorChange, ::testing::ValuesIn(spanning_worlds()));

TEST_P(WholeTensorChange, AGroupThatIsAddedHasTheBitsOfDdp) {
  const AlgorithmOptions factored = whole_tensor<Factored>(FactoredOptions());
  const auto end_of = [&](Strategy strategy) {
    return on_ranks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) {
      const ThawedRank run(std::move(group), "OddMlp", configuration_of(strategy), &is_of_others);
      run.train(0, 2);
      EXPECT_THAT(message_of([&] {
                    run.engine->add_group({"first", &is_of_others, factored});
                  }),
                  HasSubstr("which AdamW trains, expected options of AdamW too"));
      run.engine->add_group({"last", &is_of_last_layer, factored});
      run.engine->set_trainable(&all_train);
      run.train(2, 4);
      return run.state();
    });
  };
  const StateDict expected = end_of(Strategy::kDdp).back();
  EXPECT_TRUE(expected.entries.contains("optimizer.last.algorithm.Factored"));
  EXPECT_TRUE(expected.entries.contains("optimizer.layer2.weight.preconditioner"));
  EXPECT_FALSE(expected.entries.contains("optimizer.layer2.weight.exp_avg"));
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
    EXPECT_EQ(bit_differences(end_of(strategy).back(), expected), "") << to_string(strategy);
  }
}

/// An elementwise rule does the same on whole parameters, and its states have the same names.
TEST_P(WholeTensorChange, ContinuesWhatAnElementwiseRunBegan) {
  const torch::optim::AdamWOptions adamw(0.02);
  const OptimizerPlan by_slices = elementwise<torch::optim::AdamW>(adamw);
  const OptimizerPlan whole = whole_tensor<torch::optim::AdamW>(adamw);
  const auto trained = [&](const OptimizerPlan& plan, int begin, int end, const States& start) {
    return on_ranks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) {
      const auto rank = static_cast<size_t>(group->rank());
      const ThawedRank run(std::move(group), "OddMlp", configuration_of(Strategy::kZero2),
                           &all_train, 3, plan);
      if (!start.empty()) run.engine->load_state_dict(start[rank]);
      run.train(begin, end);
      return run.state();
    });
  };
  const States expected = trained(by_slices, 0, 4, {});
  EXPECT_EQ(bit_differences(trained(whole, 0, 4, {}).back(), expected.back()), "");
  const States half = trained(by_slices, 0, 2, {});
  EXPECT_EQ(bit_differences(trained(whole, 2, 4, half).back(), expected.back()), "");
}

}  // namespace
}  // namespace tessera::internal::testing
