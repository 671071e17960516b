#include "tessera/optim/slices/flat_optimizer.h"

#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using torch::optim::AdamWOptions;

class FlatOptimizerMisuse : public ::testing::Test {
 protected:
  void update(size_t shard = 0) {
    optimizer_->update(shard, gradient_, std::vector<size_t>{0}, used_, 1.0);
  }

  const ParameterTable table_{{{"w", torch::ones({3}).requires_grad_()}, {"f", torch::ones({3})}}};
  const OptimizerPlan plan_{AdamWOptions(0.1)};
  const at::Tensor values_ = torch::ones({64});
  at::Tensor gradient_ = torch::ones({64});
  std::vector<uint8_t> used_ = {1, 0};
  std::unique_ptr<CpuOptimizer> optimizer_ =
      make_cpu_optimizer(table_, plan_, {0, 0}, {{values_, {{0, 0, 0, 3}}}});
};

TEST_F(FlatOptimizerMisuse, StepSaveAndLoadSayWhatToDo) {
  EXPECT_THAT(message_of([&] { optimizer_->step(); }), HasSubstr("[optim] step: "));
  EXPECT_THAT(message_of([&] { optimizer_->step(); }), HasSubstr("call engine->step()"));
  std::stringstream stream;
  EXPECT_THAT(message_of([&] { torch::save(*optimizer_, stream); }),
              HasSubstr("[optim] save: got torch::save"));
  torch::serialize::InputArchive archive;
  EXPECT_THAT(message_of([&] { optimizer_->load(archive); }),
              HasSubstr("[optim] load: got torch::load"));
}

// LibTorch 2.15's own groups take the defaults' value if theirs equals the type's initial one.
TEST(FlatOptimizerGroups, HaveTheOptionsThatTheyWereGivenAndNoOthers) {
  const ParameterTable table({{"a", torch::ones({3}).set_requires_grad(true)},
                              {"b", torch::ones({3}).set_requires_grad(true)},
                              {"c", torch::ones({3}).set_requires_grad(true)}});
  const OptimizerPlan plan(
      AdamWOptions(0.5).weight_decay(0.25).eps(0.125),
      {{"b", [](std::string_view name) { return name == "b"; }, AdamWOptions()},
       {"c", [](std::string_view name) { return name == "c"; }, torch::optim::SGDOptions(0.1)}});
  const auto optimizer = make_cpu_optimizer(table, plan, plan.assign(table).value(), {});
  RefusingOptimizer shown(plan.defaults.clone());  // as the engine does
  optimizer->groups().show_in(shown);
  const auto& groups = shown.param_groups();
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(optimizer->groups().problem(), "");
  const auto& defaults = static_cast<const AdamWOptions&>(groups[0].options());
  EXPECT_EQ(defaults.weight_decay(), 0.25);
  const auto& b = static_cast<const AdamWOptions&>(groups[1].options());
  EXPECT_EQ(b.lr(), AdamWOptions().lr());
  EXPECT_EQ(b.weight_decay(), AdamWOptions().weight_decay());
  EXPECT_EQ(b.eps(), AdamWOptions().eps());
  EXPECT_NE(dynamic_cast<const torch::optim::SGDOptions*>(&groups[2].options()), nullptr);
}

TEST_F(FlatOptimizerMisuse, ForeignParametersAreRefused) {
  optimizer_->param_groups()[0].params().push_back(torch::ones({2}));
  EXPECT_THAT(message_of([&] { update(); }),
              HasSubstr("[optim] defaults: got a foreign list of parameters"));
  optimizer_->param_groups()[0].params() = {torch::ones({3})};
  EXPECT_THAT(message_of([&] { update(); }), HasSubstr("got a foreign list of parameters"));
  EXPECT_TRUE(values_.eq(1).all().item<bool>()) << "nothing was applied";
}

TEST_F(FlatOptimizerMisuse, AddedGroupsAreRefusedAndShowInTheVote) {
  std::vector<int64_t> before;
  optimizer_->groups().append_hyper_parameters(before);
  optimizer_->add_param_group(torch::optim::OptimizerParamGroup({torch::ones({2})}));
  std::vector<int64_t> after;
  optimizer_->groups().append_hyper_parameters(after);
  EXPECT_EQ(before.size(), after.size());
  EXPECT_NE(before, after);
  EXPECT_THAT(message_of([&] { update(); }),
              HasSubstr("[optim] parameter groups: got 2, expected 1; groups are fixed"));
}

TEST_F(FlatOptimizerMisuse, OptionsOfAnotherTypeOrOutOfRangeAreRefused) {
  auto& group = optimizer_->param_groups()[0];
  group.options().set_lr(-1);
  EXPECT_THAT(message_of([&] { update(); }), HasSubstr("[optim] defaults: lr: got -1"));
  static_cast<AdamWOptions&>(group.options()).lr(0.1).amsgrad(true);
  EXPECT_THAT(message_of([&] { update(); }),
              HasSubstr("got options that need the state 'max_exp_avg_sq'"));
  group.set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THAT(message_of([&] { update(); }),
              HasSubstr("[optim] defaults: got options of another type, expected AdamWOptions"));
  std::vector<int64_t> words;
  optimizer_->groups().append_hyper_parameters(words);
  EXPECT_EQ(words.size(), optimizer_->groups().hyper_parameter_names().size());
}

TEST_F(FlatOptimizerMisuse, WrongArgumentsOfUpdateAreRefused) {
  used_.pop_back();
  EXPECT_THAT(message_of([&] { update(); }), HasSubstr("[optim] used: got 1 entries, expected 2"));
  used_.push_back(0);
  gradient_ = torch::ones({63});
  EXPECT_THAT(message_of([&] { update(); }),
              HasSubstr("[optim] gradient 0: got 63 elements of Float"));
  gradient_ = torch::ones({64}, torch::kDouble);
  EXPECT_THAT(message_of([&] { update(); }), HasSubstr("64 elements of Double"));
  gradient_.reset();
  EXPECT_THAT(message_of([&] { update(); }), HasSubstr("0 elements of nothing"));
  EXPECT_THAT(message_of([&] { update(1); }),
              HasSubstr("[optim] shard: got number 1, expected less than 1"));
}

TEST_F(FlatOptimizerMisuse, WrongShardsAreRefused) {
  const auto make = [&](OptimizerShard shard) {
    return message_of([&] { make_cpu_optimizer(table_, plan_, {0, 0}, {std::move(shard)}); });
  };
  EXPECT_THAT(make({torch::ones({64}, torch::kBFloat16), {}}),
              HasSubstr("[optim] parameter dtype: got BFloat16, expected Float or Double; "
                        "parameters of 16 bits train over masters"));
  EXPECT_THAT(make({torch::ones({8, 8}), {}}), HasSubstr("[optim] shard: got 2 dimensions"));
  EXPECT_THAT(make({torch::ones({64}), {{0, 62, 0, 3}}}),
              HasSubstr("[optim] segment: got parameter 0 at elements 62 to 65"));
  EXPECT_THAT(make({torch::ones({64}), {{1, 0, 0, 3}}}),
              HasSubstr("[optim] segment: got parameter 1"));
  EXPECT_THAT(message_of([&] { make_cpu_optimizer(table_, plan_, {0}, {}); }),
              HasSubstr("[optim] group_of: got 1 entries, expected 2"));
  EXPECT_THAT(message_of([&] {
                make_cpu_optimizer(table_, plan_, {1, 0}, {});
              }),
              HasSubstr("[optim] group_of: got group 1 for parameter 'w', expected less than 1"));
}

TEST_F(FlatOptimizerMisuse, NegativeControlRightUseIsAccepted) {
  EXPECT_EQ(message_of([&] { update(); }), "nothing was thrown");
  EXPECT_TRUE(values_.narrow(0, 0, 3).ne(1).all().item<bool>());
  EXPECT_TRUE(values_.slice(0, 3).eq(1).all().item<bool>()) << "outside the segment";
}

}  // namespace
}  // namespace tessera::internal
