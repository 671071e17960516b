#include "tessera/zero/engine/dot_grad_views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Content = DotGradViews::Content;

at::Tensor leaf(at::IntArrayRef sizes) { return at::zeros(sizes).set_requires_grad(true); }

/// Two parameters; the first one's gradient is whole, the second one's never.
class DotGradViewsTest : public ::testing::Test {
 protected:
  const at::Tensor& grad(size_t index) const { return table[index].tensor.grad(); }
  at::Tensor& mutable_grad(size_t index) const { return table[index].tensor.mutable_grad(); }

  at::Tensor buffer = at::arange(10, at::kFloat);
  ParameterTable table{{{"whole", leaf({2, 3})}, {"sharded", leaf({3, 5})}}};
  DotGradViews dot_grads{
      table, {{buffer.narrow(0, 4, 6).view({2, 3}), ""}, {at::Tensor(), "is sharded over ranks"}}};
};

TEST_F(DotGradViewsTest, ShowsWholeGradientsWithoutACopy) {
  dot_grads.show(0, Content::kReduced);
  EXPECT_TRUE(at::equal(grad(0), at::arange(4, 10, at::kFloat).view({2, 3})));
  buffer.zero_();
  EXPECT_EQ(grad(0).sum().item<float>(), 0.0F);
}

TEST_F(DotGradViewsTest, ShowsATombstoneOfTheRightShapeElsewhere) {
  dot_grads.show(1, Content::kReduced);
  EXPECT_EQ(grad(1).sizes(), at::IntArrayRef({3, 5}));
  EXPECT_THAT([&] { grad(1).sum(); }, ThrowsMessage<c10::Error>(HasSubstr(
                                          "[grad] the gradient of 'sharded' is sharded "
                                          "over ranks, so .grad can be neither read nor written")));
  EXPECT_THAT([&] { torch::nn::utils::clip_grad_norm_(table[1].tensor, 1.0); },
              ThrowsMessage<c10::Error>(HasSubstr("[grad] the gradient of 'sharded'")));
}

TEST_F(DotGradViewsTest, ALocalSumIsNeverReadable) {
  dot_grads.show(0, Content::kLocal);
  EXPECT_THAT([&] { grad(0).clone(); },
              ThrowsMessage<c10::Error>(HasSubstr("[grad] the gradient of 'whole' is sharded or "
                                                  "not reduced yet")));
}

TEST_F(DotGradViewsTest, HidesBeforeAutogradAccumulates) {
  dot_grads.show(0, Content::kReduced);
  dot_grads.show(1, Content::kReduced);
  dot_grads.hide(0);
  EXPECT_FALSE(grad(0).defined());
  EXPECT_TRUE(grad(1).defined());
  dot_grads.hide_all();
  EXPECT_FALSE(grad(1).defined());
}

TEST_F(DotGradViewsTest, RefusesToHideWhatItDidNotShow) {
  mutable_grad(0) = at::ones({2, 3});
  EXPECT_THAT([&] { dot_grads.hide(0); },
              ThrowsMessage<c10::Error>(::testing::AllOf(
                  HasSubstr("[grad] 'whole': .grad was assigned outside"),
                  HasSubstr("this run cannot go on; in the next one leave .grad alone"))));
  EXPECT_EQ(dot_grads.replaced(), 0u);
  dot_grads.hide_all();
  EXPECT_TRUE(grad(0).defined()) << "the user's own";
  dot_grads.drop_all();
  EXPECT_FALSE(grad(0).defined());
}

TEST_F(DotGradViewsTest, TellsWhatUsersCleared) {
  EXPECT_FALSE(dot_grads.cleared().all);
  dot_grads.show(0, Content::kReduced);
  dot_grads.show(1, Content::kReduced);
  mutable_grad(1).reset();
  EXPECT_THAT(dot_grads.cleared().parameters, ElementsAre(1));
  EXPECT_FALSE(dot_grads.cleared().all);
  mutable_grad(0).reset();
  EXPECT_THAT(dot_grads.cleared().parameters, ElementsAre(0, 1));
  EXPECT_TRUE(dot_grads.cleared().all);
  dot_grads.forget(0);
  EXPECT_THAT(dot_grads.cleared().parameters, ElementsAre(1));
}

/// Optimizer::zero_grad() detaches in place, which autograd refuses for views.
TEST_F(DotGradViewsTest, TorchOptimizersAndModulesCanClearBothKinds) {
  torch::optim::SGD optimizer({table[0].tensor, table[1].tensor}, 0.1);
  dot_grads.show(0, Content::kReduced);
  dot_grads.show(1, Content::kReduced);
  optimizer.zero_grad();
  EXPECT_TRUE(dot_grads.cleared().all);

  torch::nn::ParameterList module;
  for (const Parameter& parameter : table) module->append(parameter.tensor);
  dot_grads.show(0, Content::kReduced);
  dot_grads.show(1, Content::kReduced);
  module->zero_grad();
  EXPECT_TRUE(dot_grads.cleared().all);
}

TEST_F(DotGradViewsTest, KnowsTheAliasThatAModuleLeavesWhenItZeroesGradients) {
  dot_grads.show(0, Content::kReduced);
  dot_grads.show(1, Content::kReduced);
  mutable_grad(0) = grad(0).detach();  // Module::zero_grad(false)
  grad(0).zero_();
  mutable_grad(1) = grad(1).detach();
  EXPECT_EQ(dot_grads.replaced(), std::nullopt);
  EXPECT_EQ(dot_grads.count_edits(), 1);
  dot_grads.hide(0);
  dot_grads.hide(1);
  EXPECT_FALSE(grad(0).defined());
  EXPECT_FALSE(grad(1).defined());
}

TEST_F(DotGradViewsTest, CountsWritesToWholeGradients) {
  dot_grads.show(0, Content::kReduced);
  EXPECT_EQ(dot_grads.count_edits(), 0);
  mutable_grad(0).mul_(0.5);
  EXPECT_EQ(dot_grads.count_edits(), 1);
  EXPECT_EQ(dot_grads.count_edits(), 1);
  mutable_grad(0).add_(1.0);
  EXPECT_EQ(dot_grads.count_edits(), 2);
  dot_grads.hide_all();
  EXPECT_EQ(dot_grads.count_edits(), 0);
}

}  // namespace
}  // namespace tessera::internal
