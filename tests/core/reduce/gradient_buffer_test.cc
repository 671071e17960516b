#include "tessera/core/reduce/gradient_buffer.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <ATen/ATen.h>

namespace tessera::internal {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

at::Tensor leaf_of(const at::Tensor& values) { return values.set_requires_grad(true); }

/// Three parameters of 15, 2*3*2*2 (channels_last) and 1 elements in one unit.
class GradientBufferTest : public ::testing::Test {
 protected:
  GradientBufferTest() {
    buffer.fill_(kNotANumber);
    gradient_buffer.open(buffer);
  }

  at::Tensor arrived(size_t position) const {
    const Range range = unit().layout.parameter_range(position);
    return buffer.narrow(0, range.begin, range.numel);
  }
  const PlannedUnit& unit() const { return plan[0]; }

  ParameterTable table{
      {{"weight", leaf_of(at::zeros({3, 5}))},
       {"kernel", leaf_of(at::zeros({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast))},
       {"scale", leaf_of(at::zeros({}))}}};
  UnitPlan plan{table, {{"bucket 0", {0, 1, 2}}}, 3};
  at::Tensor buffer = at::empty({plan[0].layout.numel()});
  GradientBuffer gradient_buffer{table, plan[0]};
};

TEST_F(GradientBufferTest, CopiesTheFirstGradientAndAddsTheNext) {
  const at::Tensor gradient = at::randn({3, 5});
  EXPECT_EQ(gradient_buffer.receive(0, gradient), 0);
  EXPECT_TRUE(at::equal(arrived(0), gradient.flatten()));
  gradient_buffer.receive(0, gradient);
  EXPECT_TRUE(at::equal(arrived(0), (gradient + gradient).flatten()));
}

TEST_F(GradientBufferTest, TakesAnyStrides) {
  const at::Tensor gradient = at::randn({5, 3}).t();
  gradient_buffer.receive(0, gradient);
  EXPECT_TRUE(at::equal(arrived(0), gradient.contiguous().flatten()));
  gradient_buffer.receive(0, at::ones({}).expand({3, 5}));
  EXPECT_TRUE(at::equal(arrived(0), gradient.contiguous().flatten() + 1));
}

TEST_F(GradientBufferTest, LaysGradientsOutLikeTheirParameter) {
  const at::Tensor gradient = at::randn({2, 3, 2, 2});
  gradient_buffer.receive(1, gradient);
  EXPECT_TRUE(at::equal(arrived(1), gradient.permute({0, 2, 3, 1}).flatten()));
  gradient_buffer.receive(1, gradient.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(arrived(1), (gradient + gradient).permute({0, 2, 3, 1}).flatten()));
}

TEST_F(GradientBufferTest, TakesSparseGradientsFirstAndLater) {
  const at::Tensor rows = at::tensor({0, 2, 0}, at::kLong).unsqueeze(0);
  const at::Tensor gradient = at::sparse_coo_tensor(rows, at::ones({3, 5}), {3, 5});
  gradient_buffer.receive(0, gradient);
  EXPECT_TRUE(at::equal(arrived(0), gradient.to_dense().flatten()));
  gradient_buffer.receive(0, gradient);
  EXPECT_TRUE(at::equal(arrived(0), 2 * gradient.to_dense().flatten()));
}

TEST_F(GradientBufferTest, MultipliesWithTheWeightAndTakesNothingOfWeightZero) {
  const at::Tensor gradient = at::randn({3, 5});
  const at::Tensor nothing = at::full({3, 5}, kNotANumber);
  EXPECT_EQ(gradient_buffer.receive(0, nothing, 0.0), 0);
  EXPECT_TRUE(at::equal(arrived(0), at::zeros({15})));
  gradient_buffer.receive(0, gradient, 3.0);
  EXPECT_TRUE(at::equal(arrived(0), (3 * gradient).flatten()));
  EXPECT_EQ(gradient_buffer.receive(0, nothing, 0.0), 0);
  EXPECT_TRUE(at::equal(arrived(0), (3 * gradient).flatten()));
  EXPECT_EQ(gradient_buffer.receive(0, nothing, 1e-9), 15);
  const at::Tensor rows = at::tensor({0, 2, 0}, at::kLong).unsqueeze(0);
  gradient_buffer.drop(0);
  gradient_buffer.receive(0, at::sparse_coo_tensor(rows, at::ones({3, 5}), {3, 5}), 5.0);
  EXPECT_EQ(arrived(0).sum().item<float>(), 75.0F);
}

TEST_F(GradientBufferTest, DoesNotRoundAWeightToTheGradientsDtype) {
  gradient_buffer.receive(2, at::ones({}, at::kBFloat16), 1001.0);  // 1000 in bf16
  EXPECT_EQ(arrived(2).item<float>(), 1001.0F);
}

TEST_F(GradientBufferTest, IsCompleteWhenEveryParameterHasArrived) {
  gradient_buffer.receive(0, at::ones({3, 5}));
  gradient_buffer.receive(0, at::ones({3, 5}));
  gradient_buffer.receive(2, at::ones({}));
  EXPECT_FALSE(gradient_buffer.is_complete());
  gradient_buffer.receive(1, at::ones({2, 3, 2, 2}));
  EXPECT_TRUE(gradient_buffer.is_complete());
}

TEST_F(GradientBufferTest, FillsWhatIsMissingAndThePaddingWithZeros) {
  gradient_buffer.receive(0, at::ones({3, 5}));
  gradient_buffer.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 15.0F);  // no NaN is left
  gradient_buffer.receive(2, at::full({}, 4.0F));
  EXPECT_EQ(buffer.sum().item<float>(), 19.0F);
}

TEST_F(GradientBufferTest, KeepsValuesAcrossMicroStepsAndAddsToThem) {
  gradient_buffer.receive(2, at::full({}, 1.0F));
  gradient_buffer.begin_micro_step();
  EXPECT_FALSE(gradient_buffer.is_complete());
  gradient_buffer.receive(2, at::full({}, 2.0F));
  EXPECT_EQ(arrived(2).item<float>(), 3.0F);
  gradient_buffer.begin_micro_step();
  gradient_buffer.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 3.0F);
}

TEST_F(GradientBufferTest, DropsOneParameter) {
  gradient_buffer.receive(0, at::ones({3, 5}));
  gradient_buffer.receive(2, at::ones({}));
  gradient_buffer.drop(0);
  EXPECT_FALSE(gradient_buffer.is_complete());
  gradient_buffer.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 1.0F);
}

TEST_F(GradientBufferTest, CountsNonFiniteElementsOfTheParameterOnly) {
  at::Tensor gradient = at::zeros({3, 5});
  gradient[1][1] = kNotANumber;
  gradient[2][4] = std::numeric_limits<double>::infinity();
  gradient[0][0] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(gradient_buffer.receive(0, gradient), 3);
  EXPECT_EQ(gradient_buffer.receive(2, at::ones({})), 0);  // the buffer's other places hold NaN
}

TEST_F(GradientBufferTest, GivesTheBufferAwayAndBeginsAnew) {
  gradient_buffer.receive(0, at::ones({3, 5}));
  gradient_buffer.fill_missing();
  EXPECT_TRUE(gradient_buffer.close().is_same(buffer));
  EXPECT_FALSE(gradient_buffer.is_open());
  buffer.fill_(kNotANumber);
  gradient_buffer.open(buffer);
  gradient_buffer.receive(0, at::ones({3, 5}));  // copies: adding would keep the NaN
  gradient_buffer.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 15.0F);
}

/// One parameter of dtype `parameters` whose gradients are communicated in `communication`.
struct CommunicationCase {
  CommunicationCase(at::ScalarType parameters, at::ScalarType communication)
      : table({{"weight", leaf_of(at::zeros({3, 5}, parameters))}}),
        plan(table, {{"bucket 0", {0}}}, 1,
             {.communication = communication, .reduce = at::kDouble}),
        buffer(at::empty({plan[0].layout.numel()}, communication)),
        gradient_buffer(table, plan[0]) {
    gradient_buffer.open(buffer);
  }
  at::Tensor arrived() const { return buffer.narrow(0, 0, 15); }

  ParameterTable table;
  UnitPlan plan;
  at::Tensor buffer;
  GradientBuffer gradient_buffer;
};

TEST(ReducedDtype, RoundsOnceToTheCommunicationDtype) {
  for (const at::ScalarType communication : {at::kBFloat16, at::kHalf, at::kDouble}) {
    CommunicationCase sent(at::kFloat, communication);
    const at::Tensor first = at::randn({3, 5});
    sent.gradient_buffer.receive(0, first);
    EXPECT_TRUE(at::equal(sent.arrived(), first.to(communication).flatten()));
    const at::Tensor second = at::randn({5, 3}).t();
    sent.gradient_buffer.receive(0, second);
    // The sum of the buffer's value and the gradient in its own dtype, rounded once.
    const auto wide = at::promote_types(communication, at::kFloat);
    const at::Tensor sum = (first.to(communication).to(wide) + second.to(wide)).to(communication);
    EXPECT_TRUE(at::equal(sent.arrived(), sum.flatten()));
  }
}

TEST(ReducedDtype, WidensExactly) {
  CommunicationCase sent(at::kBFloat16, at::kFloat);
  const at::Tensor gradient = at::randn({3, 5}).to(at::kBFloat16);
  sent.gradient_buffer.receive(0, gradient);
  EXPECT_TRUE(at::equal(sent.arrived(), gradient.to(at::kFloat).flatten()));
}

TEST(ReducedDtype, TakesSparseGradients) {
  for (const at::ScalarType communication : {at::kBFloat16, at::kDouble}) {
    CommunicationCase sent(at::kFloat, communication);
    const at::Tensor rows = at::tensor({0, 2, 0}, at::kLong).unsqueeze(0);
    const at::Tensor gradient = at::sparse_coo_tensor(rows, at::ones({3, 5}), {3, 5});
    sent.gradient_buffer.receive(0, gradient);
    EXPECT_TRUE(at::equal(sent.arrived(), gradient.to_dense().to(communication).flatten()));
  }
}

TEST(ReducedDtype, CountsWhatOverflowsThere) {
  CommunicationCase sent(at::kFloat, at::kHalf);
  at::Tensor gradient = at::ones({3, 5});
  gradient[0][0] = 70000.0F;
  gradient[2][2] = -1e30F;
  EXPECT_EQ(sent.gradient_buffer.receive(0, gradient), 2);
  CommunicationCase wide(at::kFloat, at::kBFloat16);
  EXPECT_EQ(wide.gradient_buffer.receive(0, gradient), 0);
}

TEST(ReducedDtype, RefusesABufferOfAnotherDtype) {
  const CommunicationCase sent(at::kFloat, at::kHalf);
  GradientBuffer other(sent.table, sent.plan[0]);
  EXPECT_THROW(other.open(at::empty({sent.buffer.numel()}, at::kFloat)), c10::Error);
}

/// Negative control of the sums above: without fill_missing() the garbage is visible.
TEST_F(GradientBufferTest, WithoutFillingGarbageStays) {
  gradient_buffer.receive(0, at::ones({3, 5}));
  EXPECT_TRUE(std::isnan(buffer.sum().item<float>()));
}

TEST_F(GradientBufferTest, RefusesABufferOfAnotherSize) {
  GradientBuffer other(table, unit());
  EXPECT_THROW(other.open(at::empty({buffer.numel() + 1})), c10::Error);
}

}  // namespace
}  // namespace tessera::internal
