#include "tessera/zero/engine/gradient_handles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Content = GradientHandles::Content;

at::Tensor leaf(at::IntArrayRef sizes) { return at::zeros(sizes).set_requires_grad(true); }

/// Two parameters; the first one's gradient is whole, the second one's never.
class GradientHandlesTest : public ::testing::Test {
 protected:
  const at::Tensor& grad(size_t index) const { return table[index].tensor.grad(); }
  at::Tensor& mutable_grad(size_t index) const { return table[index].tensor.mutable_grad(); }

  at::Tensor buffer = at::arange(10, at::kFloat);
  ParameterTable table{{{"whole", leaf({2, 3})}, {"sharded", leaf({3, 5})}}};
  GradientHandles handles{
      table, {{buffer.narrow(0, 4, 6).view({2, 3}), ""}, {at::Tensor(), "is sharded over ranks"}}};
};

TEST_F(GradientHandlesTest, ShowsWholeGradientsWithoutACopy) {
  handles.show(0, Content::kReduced);
  EXPECT_TRUE(at::equal(grad(0), at::arange(4, 10, at::kFloat).view({2, 3})));
  buffer.zero_();
  EXPECT_EQ(grad(0).sum().item<float>(), 0.0F);
}

TEST_F(GradientHandlesTest, ShowsATombstoneOfTheRightShapeElsewhere) {
  handles.show(1, Content::kReduced);
  EXPECT_EQ(grad(1).sizes(), at::IntArrayRef({3, 5}));
  EXPECT_THAT([&] { grad(1).sum(); }, ThrowsMessage<c10::Error>(HasSubstr(
                                          "[grad] the gradient of 'sharded' is sharded "
                                          "over ranks, so .grad can be neither read nor written")));
  EXPECT_THAT([&] { torch::nn::utils::clip_grad_norm_(table[1].tensor, 1.0); },
              ThrowsMessage<c10::Error>(HasSubstr("[grad] the gradient of 'sharded'")));
}

TEST_F(GradientHandlesTest, ALocalSumIsNeverReadable) {
  handles.show(0, Content::kLocal);
  EXPECT_THAT([&] { grad(0).clone(); },
              ThrowsMessage<c10::Error>(HasSubstr("[grad] the gradient of 'whole' is sharded or "
                                                  "not reduced yet")));
}

TEST_F(GradientHandlesTest, HidesBeforeAutogradAccumulates) {
  handles.show(0, Content::kReduced);
  handles.show(1, Content::kReduced);
  handles.hide(0);
  EXPECT_FALSE(grad(0).defined());
  EXPECT_TRUE(grad(1).defined());
  handles.hide_all();
  EXPECT_FALSE(grad(1).defined());
}

TEST_F(GradientHandlesTest, RefusesToHideWhatItDidNotShow) {
  mutable_grad(0) = at::ones({2, 3});
  EXPECT_THAT([&] { handles.hide(0); },
              ThrowsMessage<c10::Error>(::testing::AllOf(
                  HasSubstr("[grad] 'whole': .grad was assigned outside"),
                  HasSubstr("this run cannot go on; in the next one leave .grad alone"))));
  EXPECT_EQ(handles.replaced(), 0u);
  handles.hide_all();
  EXPECT_TRUE(grad(0).defined()) << "the user's own";
  handles.drop_all();
  EXPECT_FALSE(grad(0).defined());
}

TEST_F(GradientHandlesTest, TellsWhatUsersCleared) {
  EXPECT_FALSE(handles.cleared().all);
  handles.show(0, Content::kReduced);
  handles.show(1, Content::kReduced);
  mutable_grad(1).reset();
  EXPECT_THAT(handles.cleared().parameters, ElementsAre(1));
  EXPECT_FALSE(handles.cleared().all);
  mutable_grad(0).reset();
  EXPECT_THAT(handles.cleared().parameters, ElementsAre(0, 1));
  EXPECT_TRUE(handles.cleared().all);
  handles.forget(0);
  EXPECT_THAT(handles.cleared().parameters, ElementsAre(1));
}

/// Optimizer::zero_grad() detaches in place, which autograd refuses for views.
TEST_F(GradientHandlesTest, TorchOptimizersAndModulesCanClearBothKinds) {
  torch::optim::SGD optimizer({table[0].tensor, table[1].tensor}, 0.1);
  handles.show(0, Content::kReduced);
  handles.show(1, Content::kReduced);
  optimizer.zero_grad();
  EXPECT_TRUE(handles.cleared().all);

  torch::nn::ParameterList module;
  for (const Parameter& parameter : table) module->append(parameter.tensor);
  handles.show(0, Content::kReduced);
  handles.show(1, Content::kReduced);
  module->zero_grad();
  EXPECT_TRUE(handles.cleared().all);
}

TEST_F(GradientHandlesTest, KnowsTheAliasThatAModuleLeavesWhenItZeroesGradients) {
  handles.show(0, Content::kReduced);
  handles.show(1, Content::kReduced);
  mutable_grad(0) = grad(0).detach();  // Module::zero_grad(false)
  grad(0).zero_();
  mutable_grad(1) = grad(1).detach();
  EXPECT_EQ(handles.replaced(), std::nullopt);
  EXPECT_EQ(handles.count_edits(), 1);
  handles.hide(0);
  handles.hide(1);
  EXPECT_FALSE(grad(0).defined());
  EXPECT_FALSE(grad(1).defined());
}

TEST_F(GradientHandlesTest, CountsWritesToWholeGradients) {
  handles.show(0, Content::kReduced);
  EXPECT_EQ(handles.count_edits(), 0);
  mutable_grad(0).mul_(0.5);
  EXPECT_EQ(handles.count_edits(), 1);
  EXPECT_EQ(handles.count_edits(), 1);
  mutable_grad(0).add_(1.0);
  EXPECT_EQ(handles.count_edits(), 2);
  handles.hide_all();
  EXPECT_EQ(handles.count_edits(), 0);
}

}  // namespace
}  // namespace tessera::internal
