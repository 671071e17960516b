// Dtypes of communication, of sums and of masters, compared with the same arithmetic in plain
// tensors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/core/reduce/reduction_rig.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

constexpr auto kBf16 = at::kBFloat16;
constexpr auto kFp16 = at::kHalf;
constexpr auto kFp32 = at::kFloat;
constexpr auto kFp64 = at::kDouble;

struct Dtypes {
  at::ScalarType parameters, communication, reduce, master;
  Precision precision() const { return {parameters, communication, reduce, master}; }
};

std::string name_of(const Dtypes& dtypes) {
  std::string name;
  for (const at::ScalarType dtype :
       {dtypes.parameters, dtypes.communication, dtypes.reduce, dtypes.master}) {
    name += c10::toString(dtype);
  }
  return name;
}

at::ScalarType accumulator_of(at::ScalarType communication) {
  return communication == kBf16 || communication == kFp16 ? kFp32 : communication;
}

/// Gradients are rounded to the communication dtype; summed in rank order in at least fp32, divided
/// and rounded once to the communication dtype; micro-steps are added in the reduce dtype; the
/// result is rounded to the masters' dtype.
std::vector<at::Tensor> expected_means(const ReductionRig& rig, const Dtypes& dtypes,
                                       int micro_steps) {
  const int world = rig.group->size();
  std::vector<at::Tensor> means(ReductionRig::kParameters);
  for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
    for (size_t i = 0; i < means.size(); ++i) {
      at::Tensor sum;
      for (int rank = 0; rank < world; ++rank) {
        const at::Tensor sent = random_gradients(rig, rank, micro_step, dtypes.parameters)[i]
                                    .to(dtypes.communication)
                                    .to(accumulator_of(dtypes.communication));
        sum = sum.defined() ? sum + sent : sent;
      }
      const at::Tensor mean = sum.div(world).to(dtypes.communication).to(dtypes.reduce);
      means[i] = means[i].defined() ? means[i] + mean : mean;
    }
  }
  for (at::Tensor& mean : means) mean = mean.to(dtypes.master);
  return means;
}

class PrecisionTest : public ::testing::TestWithParam<Dtypes> {};

TEST_P(PrecisionTest, EveryConfigurationGivesTheSameBits) {
  const Dtypes dtypes = GetParam();
  for (const int world : {1, 2, 3, 4}) {
    for (const Degrees& configuration : all_degrees(world)) {
      if (!sums_in_rank_order(configuration)) continue;
      run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
        ReductionRig rig(std::move(group), configuration, dtypes.precision(), dtypes.parameters);
        for (int micro_step = 0; micro_step < 2; ++micro_step) {
          rig.micro_step(random_gradients(rig, rig.group->rank(), micro_step, dtypes.parameters));
        }
        const std::vector<at::Tensor> means = expected_means(rig, dtypes, 2);
        std::vector<at::Tensor> held;
        for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
          held.push_back(rig.reducer.gradient(unit));
          EXPECT_EQ(held.back().scalar_type(), dtypes.master);
        }
        // Compare only now: each unit's values must stay while they are held.
        for (size_t unit = 0; unit < held.size(); ++unit) {
          EXPECT_TRUE(at::equal(held[unit], rig.kept(unit, means)))
              << to_string(configuration) << " " << rig.plan[unit].name;
        }
        // The squares are those of the gradients that the optimizer gets.
        EXPECT_EQ(rig.squares_of_all_ranks().value(), rig.squares_of(means).value());
      });
    }
  }
}

TEST_P(PrecisionTest, PartialSumsAreCloseInTheirDtype) {
  const Dtypes dtypes = GetParam();
  run_ranks(4, [&](std::shared_ptr<ProcessGroup> group) {
    ReductionRig rig(std::move(group), {1, 2, 4}, dtypes.precision(), dtypes.parameters);
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step(random_gradients(rig, rig.group->rank(), micro_step, dtypes.parameters));
    }
    rig.reducer.finish();
    const std::vector<at::Tensor> means = expected_means(rig, dtypes, 2);
    for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
      const at::Tensor expected = rig.kept(unit, means).to(kFp64);
      const at::Tensor error = (rig.reducer.gradient(unit).to(kFp64) - expected).abs();
      const double largest = rig.flat(unit, means).to(kFp64).abs().max().item<double>();
      EXPECT_LE(error.max().item<double>(), 0.02 * largest);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    , PrecisionTest,
    ::testing::Values(Dtypes{kBf16, kBf16, kFp32, kFp32}, Dtypes{kFp16, kFp16, kFp32, kFp32},
                      Dtypes{kBf16, kFp32, kFp32, kFp32}, Dtypes{kBf16, kBf16, kBf16, kFp32},
                      Dtypes{kFp32, kBf16, kFp32, kFp32}, Dtypes{kFp32, kFp16, kFp16, kFp32},
                      Dtypes{kFp32, kFp32, kFp64, kFp64}, Dtypes{kFp32, kFp32, kFp64, kFp32},
                      Dtypes{kFp64, kFp64, kFp64, kFp64}, Dtypes{kFp64, kFp32, kFp64, kFp64}),
    [](const auto& info) { return name_of(info.param); });

/// Negative control of the reference: sums in another dtype differ.
TEST(PrecisionControl, SumsInAnotherDtypeDiffer) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Dtypes used{kBf16, kBf16, kFp32, kFp32};
    ReductionRig rig(std::move(group), {1, 1, 1}, used.precision(), kBf16);
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step(random_gradients(rig, rig.group->rank(), micro_step, kBf16));
    }
    const std::vector<at::Tensor> others = expected_means(rig, {kBf16, kBf16, kBf16, kFp32}, 2);
    EXPECT_FALSE(at::equal(rig.reducer.gradient(1), rig.kept(1, others)));
  });
}

TEST(Overflow, InCommunicationCountsAsNonFinite) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    for (const Degrees& configuration : all_degrees(3)) {
      ReductionRig rig(duplicate(*group, to_string(configuration)), configuration,
                       {.communication = kFp16});
      std::vector<at::Tensor> gradients = random_gradients(rig, 0, 0);
      if (rig.group->rank() == 1) gradients[2][8][130] = 1e6F;
      rig.micro_step(gradients);
      EXPECT_EQ(rig.reducer.non_finite()[2], rig.group->rank() == 1 ? 1 : 0);
      EXPECT_FALSE(std::isfinite(rig.squares_of_all_ranks().value()));
    }
  });
}

TEST(Overflow, OfTheSumIsNoneWhereTheMeanFits) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    ReductionRig rig(std::move(group), {1, 2, 2}, {.communication = kFp16});
    rig.micro_step(
        {at::full({7, 11}, 60000.0F), at::zeros({}), at::zeros({9, 131}), at::zeros({300})});
    const at::Tensor expected = at::full({7, 11}, 60000.0F);  // fits fp16; 120000 does not
    EXPECT_TRUE(at::equal(rig.reducer.gradient(0), rig.kept(0, {expected, at::zeros({})})));
  });
}

TEST(Overflow, OfMicroStepsAddedIn16BitsReachesTheNorm) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    ReductionRig rig(std::move(group), {1, 2, 2}, {.communication = kFp16, .reduce = kFp16});
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step({at::full({7, 11}, 60000.0F), {}, {}, {}});
    }
    EXPECT_EQ(rig.reducer.non_finite()[0], 0);
    EXPECT_FALSE(std::isfinite(rig.squares_of_all_ranks().value()));
  });
}

TEST(Overflow, OfNarrowerMastersReachesTheNorm) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    ReductionRig rig(std::move(group), {1, 2, 2}, {.reduce = kFp64});
    const float largest = std::numeric_limits<float>::max();
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      rig.micro_step({at::full({7, 11}, largest), {}, {}, {}});
    }
    EXPECT_EQ(rig.reducer.non_finite()[0], 0);
    EXPECT_FALSE(std::isfinite(rig.squares_of_all_ranks().value()));
  });
}

TEST(ConvertedGradients, NeedMemoryForOneUnitIfTakenOneByOne) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    ReductionRig rig(std::move(group), {1, 2, 2}, {.communication = kBf16, .reduce = kBf16});
    rig.micro_step(random_gradients(rig, 0, 0));
    const int64_t before = rig.meter.now()[MemoryClass::kGradientBuffers];
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) rig.reducer.gradient(unit);
    }
    const int64_t root_numel = rig.plan[1].layout.slice_numel();
    EXPECT_EQ(rig.meter.now()[MemoryClass::kGradientBuffers] - before, 4 * root_numel);

    std::vector<at::Tensor> held;
    for (size_t unit = 0; unit < rig.plan.trainable_size(); ++unit) {
      held.push_back(rig.reducer.gradient(unit));
    }
    EXPECT_FALSE(held[0].is_alias_of(held[1]));
    EXPECT_FALSE(held[1].is_alias_of(held[2]));
    EXPECT_FALSE(held[0].is_alias_of(held[2]));
  });
}

// --- The users' .grad ---

TEST(GradientViews, AreWholeUnderDdpInTheParametersDtypeOnly) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const auto views_of = [&](const Degrees& configuration, const Precision& precision,
                              at::ScalarType dtype, const char* name) {
      ReductionRig rig(duplicate(*group, name), configuration, precision, dtype);
      rig.micro_step(random_gradients(rig, 0, 0, dtype));
      std::vector<GradientView> views = rig.reducer.gradient_views();
      EXPECT_EQ(views.size(), 5u);
      EXPECT_FALSE(views[4].whole.defined());  // frozen
      return views;
    };
    const auto whole = views_of({1, 1, 1}, {}, kFp32, "fp32");
    EXPECT_EQ(whole[2].whole.sizes(), at::IntArrayRef({9, 131}));
    const auto narrow = views_of({1, 1, 1}, {.reduce = kBf16}, kBf16, "bf16");
    EXPECT_EQ(narrow[2].whole.scalar_type(), kBf16);
    const auto wide = views_of({1, 1, 1}, {}, kBf16, "bf16 summed in fp32");
    EXPECT_FALSE(wide[2].whole.defined());
    EXPECT_EQ(wide[2].obstacle,
              "is kept in Float (Precision::reduce), which .grad of a parameter in BFloat16 cannot "
              "be");
    const auto sharded = views_of({1, 2, 2}, {}, kFp32, "sharded");
    EXPECT_FALSE(sharded[2].whole.defined());
    EXPECT_EQ(sharded[2].obstacle, "is sharded over ranks");
  });
}

}  // namespace
}  // namespace tessera::internal::testing
