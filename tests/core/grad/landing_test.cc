#include "tessera/core/grad/landing.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include <ATen/ATen.h>

namespace tessera {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

at::Tensor leaf_of(at::Tensor values) { return values.set_requires_grad(true); }

/// Three parameters of 15, 2*3*2*2 (channels_last) and 1 elements in one unit.
class LandingTest : public ::testing::Test {
 protected:
  LandingTest() {
    buffer.fill_(kNotANumber);
    landing.open(buffer);
  }

  at::Tensor landed(size_t position) const {
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
  Landing landing{table, plan[0]};
};

TEST_F(LandingTest, CopiesTheFirstGradientAndAddsTheNext) {
  const at::Tensor gradient = at::randn({3, 5});
  EXPECT_EQ(landing.land(0, gradient), 0);
  EXPECT_TRUE(at::equal(landed(0), gradient.flatten()));
  landing.land(0, gradient);
  EXPECT_TRUE(at::equal(landed(0), (gradient + gradient).flatten()));
}

TEST_F(LandingTest, TakesAnyStrides) {
  const at::Tensor gradient = at::randn({5, 3}).t();
  landing.land(0, gradient);
  EXPECT_TRUE(at::equal(landed(0), gradient.contiguous().flatten()));
  landing.land(0, at::ones({}).expand({3, 5}));
  EXPECT_TRUE(at::equal(landed(0), gradient.contiguous().flatten() + 1));
}

TEST_F(LandingTest, LaysGradientsOutLikeTheirParameter) {
  const at::Tensor gradient = at::randn({2, 3, 2, 2});
  landing.land(1, gradient);
  EXPECT_TRUE(at::equal(landed(1), gradient.permute({0, 2, 3, 1}).flatten()));
  landing.land(1, gradient.contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(landed(1), (gradient + gradient).permute({0, 2, 3, 1}).flatten()));
}

TEST_F(LandingTest, TakesSparseGradientsFirstAndLater) {
  const at::Tensor rows = at::tensor({0, 2, 0}, at::kLong).unsqueeze(0);
  const at::Tensor gradient = at::sparse_coo_tensor(rows, at::ones({3, 5}), {3, 5});
  landing.land(0, gradient);
  EXPECT_TRUE(at::equal(landed(0), gradient.to_dense().flatten()));
  landing.land(0, gradient);
  EXPECT_TRUE(at::equal(landed(0), 2 * gradient.to_dense().flatten()));
}

TEST_F(LandingTest, IsCompleteWhenEveryParameterHasLanded) {
  landing.land(0, at::ones({3, 5}));
  landing.land(0, at::ones({3, 5}));
  landing.land(2, at::ones({}));
  EXPECT_FALSE(landing.is_complete());
  landing.land(1, at::ones({2, 3, 2, 2}));
  EXPECT_TRUE(landing.is_complete());
}

TEST_F(LandingTest, FillsWhatIsMissingAndThePaddingWithZeros) {
  landing.land(0, at::ones({3, 5}));
  landing.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 15.0F);  // not one NaN left
  landing.land(2, at::full({}, 4.0F));
  EXPECT_EQ(buffer.sum().item<float>(), 19.0F);
}

TEST_F(LandingTest, KeepsValuesAcrossMicroStepsAndAddsToThem) {
  landing.land(2, at::full({}, 1.0F));
  landing.begin_micro_step();
  EXPECT_FALSE(landing.is_complete());
  landing.land(2, at::full({}, 2.0F));
  EXPECT_EQ(landed(2).item<float>(), 3.0F);
  landing.begin_micro_step();
  landing.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 3.0F);
}

TEST_F(LandingTest, DropsOneParameter) {
  landing.land(0, at::ones({3, 5}));
  landing.land(2, at::ones({}));
  landing.drop(0);
  EXPECT_FALSE(landing.is_complete());
  landing.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 1.0F);
}

TEST_F(LandingTest, CountsNonFiniteElementsOfTheParameterOnly) {
  at::Tensor gradient = at::zeros({3, 5});
  gradient[1][1] = kNotANumber;
  gradient[2][4] = std::numeric_limits<double>::infinity();
  gradient[0][0] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(landing.land(0, gradient), 3);
  EXPECT_EQ(landing.land(2, at::ones({})), 0);  // the buffer's other places hold NaN
}

TEST_F(LandingTest, GivesTheBufferAwayAndBeginsAnew) {
  landing.land(0, at::ones({3, 5}));
  landing.fill_missing();
  EXPECT_TRUE(landing.close().is_same(buffer));
  EXPECT_FALSE(landing.is_open());
  buffer.fill_(kNotANumber);
  landing.open(buffer);
  landing.land(0, at::ones({3, 5}));  // copies: adding would keep the NaN
  landing.fill_missing();
  EXPECT_EQ(buffer.sum().item<float>(), 15.0F);
}

/// One parameter of the dtype of `parameters` whose gradients are sent in `wire`.
struct WireCase {
  WireCase(at::ScalarType parameters, at::ScalarType wire)
      : table({{"weight", leaf_of(at::zeros({3, 5}, parameters))}}),
        plan(table, {{"bucket 0", {0}}}, 1, {.wire = wire, .reduce = at::kDouble}),
        buffer(at::empty({plan[0].layout.numel()}, wire)),
        landing(table, plan[0]) {
    landing.open(buffer);
  }
  at::Tensor landed() const { return buffer.narrow(0, 0, 15); }

  ParameterTable table;
  UnitPlan plan;
  at::Tensor buffer;
  Landing landing;
};

TEST(LandingOnTheWire, RoundsOnceToTheWiresDtype) {
  for (const at::ScalarType wire : {at::kBFloat16, at::kHalf, at::kDouble}) {
    WireCase wired(at::kFloat, wire);
    const at::Tensor first = at::randn({3, 5});
    wired.landing.land(0, first);
    EXPECT_TRUE(at::equal(wired.landed(), first.to(wire).flatten()));
    const at::Tensor second = at::randn({5, 3}).t();
    wired.landing.land(0, second);
    // The sum of what is there and the gradient as it came, rounded once.
    const auto wide = at::promote_types(wire, at::kFloat);
    const at::Tensor sum = (first.to(wire).to(wide) + second.to(wide)).to(wire);
    EXPECT_TRUE(at::equal(wired.landed(), sum.flatten()));
  }
}

TEST(LandingOnTheWire, WidensExactly) {
  WireCase wired(at::kBFloat16, at::kFloat);
  const at::Tensor gradient = at::randn({3, 5}).to(at::kBFloat16);
  wired.landing.land(0, gradient);
  EXPECT_TRUE(at::equal(wired.landed(), gradient.to(at::kFloat).flatten()));
}

TEST(LandingOnTheWire, TakesSparseGradients) {
  for (const at::ScalarType wire : {at::kBFloat16, at::kDouble}) {
    WireCase wired(at::kFloat, wire);
    const at::Tensor rows = at::tensor({0, 2, 0}, at::kLong).unsqueeze(0);
    const at::Tensor gradient = at::sparse_coo_tensor(rows, at::ones({3, 5}), {3, 5});
    wired.landing.land(0, gradient);
    EXPECT_TRUE(at::equal(wired.landed(), gradient.to_dense().to(wire).flatten()));
  }
}

TEST(LandingOnTheWire, CountsWhatOverflowsThere) {
  WireCase wired(at::kFloat, at::kHalf);
  at::Tensor gradient = at::ones({3, 5});
  gradient[0][0] = 70000.0F;
  gradient[2][2] = -1e30F;
  EXPECT_EQ(wired.landing.land(0, gradient), 2);
  WireCase wide(at::kFloat, at::kBFloat16);
  EXPECT_EQ(wide.landing.land(0, gradient), 0);
}

TEST(LandingOnTheWire, RefusesABufferOfAnotherDtype) {
  const WireCase wired(at::kFloat, at::kHalf);
  Landing other(wired.table, wired.plan[0]);
  EXPECT_THROW(other.open(at::empty({wired.buffer.numel()}, at::kFloat)), c10::Error);
}

/// The negative control of the sums above: without fill_missing the garbage would show.
TEST_F(LandingTest, WithoutFillingGarbageStays) {
  landing.land(0, at::ones({3, 5}));
  EXPECT_TRUE(std::isnan(buffer.sum().item<float>()));
}

TEST_F(LandingTest, RefusesABufferOfAnotherSize) {
  Landing other(table, unit());
  EXPECT_THROW(other.open(at::empty({buffer.numel() + 1})), c10::Error);
}

}  // namespace
}  // namespace tessera
