#include "tessera/memory_formula.h"

#include <string>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

/// Expected bytes in the tests' notation; control is always 0.
struct Expected {
  int64_t parameters = 0, gradients = 0, optimizer = 0, buffers = 0, root = 0, gradient_buffer = 0;

  operator MemoryBytes() const {  // NOLINT: a notation
    MemoryBytes bytes;
    bytes[MemoryClass::kParameters] = parameters;
    bytes[MemoryClass::kGradients] = gradients;
    bytes[MemoryClass::kOptimizer] = optimizer;
    bytes[MemoryClass::kUnshardedParameters] = buffers;
    bytes[MemoryClass::kRoot] = root;
    bytes[MemoryClass::kGradientBuffers] = gradient_buffer;
    return bytes;
  }
};

const std::vector<KeptState> kTwoMoments = {{{"exp_avg"}}, {{"exp_avg_sq"}}};

MemorySetting resident(Degrees degrees, int micro_steps = 1) {
  return {.degrees = degrees, .micro_steps = micro_steps, .states = kTwoMoments};
}

MemorySetting split(Degrees degrees, int ranks_after_forward = 0) {
  return {.degrees = degrees,
          .is_split = true,
          .ranks_after_forward = ranks_after_forward,
          .states = kTwoMoments};
}

at::Tensor trainable(int64_t numel, at::ScalarType dtype = at::kFloat) {
  return at::zeros({numel}, dtype).requires_grad_();
}

/// Two buckets. In a world of 3, 1000 fp32 elements are padded to 1024, for slices to 1152 (4608
/// bytes); 10 fp64 elements to 64, for slices to 192 (1536 bytes). P = 6144 bytes.
UnitPlan buckets(int slices) {
  const ParameterTable table({{"a", trainable(1000)},
                              {"frozen", at::zeros({1 << 20})},
                              {"b", trainable(10, at::kDouble)}});
  return UnitPlan(table, {{"bucket 0", {2}}, {"bucket 1", {0}}}, slices);
}

/// The units of a wrapped model. In a world of 4, slices are multiples of 64 elements in fp32 and
/// of 128 in bf16, so buffers are multiples of 256 and of 512. In elements:
///    blocks.1 700 -> 768 (bf16: 1024), blocks.0 500 -> 512, root 100 -> 256 (bf16: 512),
///    frozen 2000 -> 2048.
UnitPlan wrapped(const Precision& precision = {}) {
  const ParameterTable table({{"embedding", trainable(100)},
                              {"blocks.0", trainable(500)},
                              {"blocks.1", trainable(700)},
                              {"frozen", at::zeros({2000})}});
  return UnitPlan(table,
                  {{"blocks.1", {2}, UnitKind::kPlain},
                   {"blocks.0", {1}, UnitKind::kPlain},
                   {"root", {0}, UnitKind::kRoot},
                   {"frozen", {3}, UnitKind::kFrozen}},
                  4, precision);
}

TEST(MemoryFormula, ConfigurationsWithWholeParametersByHand) {
  const UnitPlan plan = buckets(3);
  ASSERT_EQ(plan.bytes(), 6144);
  for (const int micro_steps : {1, 2, 5}) {
    SCOPED_TRACE(micro_steps);
    EXPECT_EQ(memory_formula(plan, resident({1, 1, 1}, micro_steps)),
              (Expected{.parameters = 6144, .gradients = 6144, .optimizer = 12288}))
        << "ddp";
    EXPECT_EQ(memory_formula(plan, resident({1, 3, 3}, micro_steps)),
              (Expected{.parameters = 6144, .gradients = 2048, .optimizer = 4096}))
        << "zero2";
  }
  EXPECT_EQ(memory_formula(plan, resident({1, 1, 3})),
            (Expected{.parameters = 6144, .optimizer = 4096, .gradient_buffer = 6144}))
      << "zero1";
  EXPECT_EQ(
      memory_formula(plan, resident({1, 1, 3}, 2)),
      (Expected{.parameters = 6144, .gradients = 2048, .optimizer = 4096, .gradient_buffer = 6144}))
      << "zero1, two micro-steps";
}

TEST(MemoryFormula, UpdatesInBackwardKeepNoGradients) {
  MemorySetting alone = resident({1, 1, 1});
  alone.updates_in_backward = true;
  EXPECT_EQ(memory_formula(buckets(3), alone), (Expected{.parameters = 6144, .optimizer = 12288}));
  EXPECT_EQ(memory_peak_formula(buckets(3), alone)[MemoryClass::kGradientBuffers], 4608 + 1536)
      << "there are no sums to collect in";
  MemorySetting zero3 = split({4, 4, 4});
  const MemoryBytes with_sums = memory_formula(wrapped(), zero3);
  zero3.updates_in_backward = true;
  EXPECT_EQ(with_sums.total() - memory_formula(wrapped(), zero3).total(), 6144 / 4);
  EXPECT_EQ(memory_peak_formula(wrapped(), zero3)[MemoryClass::kGradientBuffers], 3072 + 1024);
  EXPECT_EQ(memory_peak_formula(wrapped({.parameters = at::kBFloat16}),
                                zero3)[MemoryClass::kGradientBuffers],
            2048 + 1024 + 4096 / 4)
      << "and a slice of 1024 elements in fp32";
}

TEST(MemoryFormula, SplitConfigurationsByHand) {
  const UnitPlan plan = wrapped();
  // fp32: 3072 + 2048 + 1024 trainable bytes, 8192 frozen ones.
  ASSERT_EQ(plan.bytes(), 6144 + 8192);
  EXPECT_EQ(memory_formula(plan, split({4, 4, 4})), (Expected{.parameters = 14336 / 4,
                                                              .gradients = 6144 / 4,
                                                              .optimizer = 2 * 6144 / 4,
                                                              .buffers = 2 * 8192,
                                                              .root = 1024}))
      << "zero3; a frozen unit needs unsharded-parameter buffers too and is the largest";
  EXPECT_EQ(memory_formula(plan, split({4, 4, 4}, 4)), memory_formula(plan, split({4, 4, 4})))
      << "freed after forward, said aloud";
  EXPECT_EQ(memory_formula(plan, split({4, 4, 4}, 1)), (Expected{.parameters = 14336 / 4,
                                                                 .gradients = 6144 / 4,
                                                                 .optimizer = 2 * 6144 / 4,
                                                                 .buffers = 3072 + 2048 + 8192,
                                                                 .root = 1024}))
      << "zero3, units stay whole after forward";
  EXPECT_EQ(memory_formula(plan, split({4, 4, 4}, 2)),
            (Expected{.parameters = 14336 / 4 + 14336 / 2,
                      .gradients = 6144 / 4,
                      .optimizer = 2 * 6144 / 4,
                      .buffers = 2 * 8192,
                      .root = 1024}))
      << "zero3 with a second shard over two ranks";
}

TEST(MemoryFormula, HybridConfigurationsByHand) {
  const UnitPlan plan = wrapped();
  EXPECT_EQ(memory_formula(plan, split({2, 2, 2})), (Expected{.parameters = 14336 / 2,
                                                              .gradients = 6144 / 2,
                                                              .optimizer = 2 * 6144 / 2,
                                                              .buffers = 2 * 8192,
                                                              .root = 1024}))
      << "HSDP";
  EXPECT_EQ(memory_formula(plan, split({2, 4, 4})), (Expected{.parameters = 14336 / 2,
                                                              .gradients = 6144 / 4,
                                                              .optimizer = 2 * 6144 / 4,
                                                              .buffers = 2 * 8192,
                                                              .root = 1024}))
      << "parameters split inside a smaller group";
  const UnitPlan whole = buckets(4);
  // 1024 fp32 elements need no padding for 4 slices; 64 fp64 elements do: 256. P = 4096 + 2048
  // bytes.
  ASSERT_EQ(whole.bytes(), 6144);
  EXPECT_EQ(memory_formula(whole, resident({1, 2, 4})),
            (Expected{.parameters = 6144, .gradients = 6144 / 2, .optimizer = 2 * 6144 / 4}))
      << "partial sums: gradients of the larger slice are kept";
  EXPECT_EQ(memory_formula(whole, resident({1, 1, 2})),
            (Expected{.parameters = 6144, .optimizer = 2 * 6144 / 2, .gradient_buffer = 6144}))
      << "zero1 over two of four ranks";
}

TEST(MemoryFormula, SixteenBitsByHand) {
  // Communication bf16; sums and masters fp32. Elements: 1024 + 512 + 512 trainable, 2048 frozen.
  const UnitPlan plan = wrapped({.parameters = at::kBFloat16});
  ASSERT_EQ(plan.numel(), 2048 + 2048);
  ASSERT_EQ(plan.bytes(), 2 * 4096);
  EXPECT_EQ(memory_formula(plan, split({4, 4, 4})), (Expected{.parameters = 2 * 4096 / 4,
                                                              .gradients = 4 * 2048 / 4,
                                                              .optimizer = 3 * 4 * 2048 / 4,
                                                              .buffers = 2 * 2 * 2048,
                                                              .root = 2 * 512}));
  const ParameterTable table({{"w", trainable(1024)}});
  const UnitPlan one(table, {{"bucket 0", {0}}}, 4, {.parameters = at::kBFloat16});
  EXPECT_EQ(memory_formula(one, resident({1, 1, 4})), (Expected{.parameters = 2 * 1024,
                                                                .gradients = 4 * 1024 / 4,
                                                                .optimizer = 3 * 4 * 1024 / 4,
                                                                .gradient_buffer = 2 * 1024}))
      << "zero1: sums in fp32 cannot stay in a gradient buffer of bf16";
  const UnitPlan narrow(table, {{"bucket 0", {0}}}, 4,
                        {.parameters = at::kBFloat16, .reduce = at::kBFloat16});
  EXPECT_EQ(memory_formula(narrow, resident({1, 1, 4}))[MemoryClass::kGradients], 0);
}

TEST(MemoryFormula, EachDtypeHasBuffersOfItsOwn) {
  const ParameterTable table({{"a", trainable(256)},
                              {"b", trainable(512)},
                              {"c", trainable(1024)},
                              {"d", trainable(100, at::kDouble)}});
  const UnitPlan plan(table, {{"d", {3}}, {"c", {2}}, {"b", {1}}, {"a", {0}}}, 2);
  // Two buffers of fp32's largest size, one for the only fp64 unit: 100 elements are padded to 128.
  EXPECT_EQ(memory_formula(plan, split({2, 2, 2}))[MemoryClass::kUnshardedParameters],
            2 * 4096 + 1024);
}

TEST(MemoryFormula, AtWorldOneAllStrategiesAreOne) {
  const UnitPlan plan = buckets(1);
  ASSERT_EQ(plan.bytes(), 1024 * 4 + 64 * 8);
  EXPECT_EQ(memory_formula(plan, resident({1, 1, 1})),
            (Expected{.parameters = 4608, .gradients = 4608, .optimizer = 9216}));
  // Freed eagerly, for tests: the shard is whole, and the units also have unsharded-parameter
  // buffers.
  EXPECT_EQ(
      memory_formula(plan, split({1, 1, 1}, 1)),
      (Expected{.parameters = 4608, .gradients = 4608, .optimizer = 9216, .buffers = 4096 + 512}));
}

TEST(MemoryFormula, TotalsAreTheTextbookOnesWithoutPadding) {
  // 64 * 4 * 3 elements in one parameter need no padding at a world of 4; each class takes 4 bytes
  // per element.
  const ParameterTable table({{"w", trainable(768)}});
  const UnitPlan plan(table, {{"bucket 0", {0}}}, 4);
  const int64_t p = 768 * 4;
  ASSERT_EQ(plan.bytes(), p);
  EXPECT_EQ(memory_formula(plan, resident({1, 1, 1})).total(), 4 * p);
  EXPECT_EQ(memory_formula(plan, resident({1, 1, 4})).total(), 2 * p + 2 * p / 4);
  EXPECT_EQ(memory_formula(plan, resident({1, 4, 4})).total(), p + 3 * p / 4);
  EXPECT_EQ(memory_formula(plan, split({4, 4, 4})).total(), 4 * p / 4 + /*gathered*/ p);
}

TEST(MemoryFormula, TheOptimizersStatesAreWhatItSaysTheyAre) {
  const UnitPlan plan = buckets(3);  // 1152 elements of fp32, 192 of fp64
  MemorySetting setting = resident({1, 3, 3});
  const auto optimizer_bytes = [&](std::vector<KeptState> states) {
    setting.states = std::move(states);
    return memory_formula(plan, setting)[MemoryClass::kOptimizer];
  };
  EXPECT_EQ(optimizer_bytes({}), 0);
  EXPECT_EQ(optimizer_bytes({{{"momentum"}}}), (1152 * 4 + 192 * 8) / 3);
  EXPECT_EQ(optimizer_bytes({{{"codes", at::kByte}}}), (1152 + 192) / 3);
  EXPECT_EQ(optimizer_bytes({{{"momentum"}}, {{"half", at::kHalf}}}),
            (1152 * 4 + 192 * 8 + 1344 * 2) / 3);

  // Masters are not the optimizer's states: bf16 parameters have them whatever its states are.
  const MemorySetting none = {.degrees = {4, 4, 4}, .is_split = true};
  const UnitPlan narrow = wrapped({.parameters = at::kBFloat16});
  EXPECT_EQ(memory_formula(narrow, none)[MemoryClass::kOptimizer] * 3,
            memory_formula(narrow, split({4, 4, 4}))[MemoryClass::kOptimizer]);
}

TEST(MemoryFormula, AnAverageOfWeightsIsAsLargeAsTheMasters) {
  const auto added = [](const UnitPlan& plan, MemorySetting setting) {
    const MemoryBytes without = memory_formula(plan, setting);
    setting.has_average = true;
    MemoryBytes bytes = memory_formula(plan, setting);
    for (size_t i = 0; i < kMemoryClasses; ++i) bytes.by_class[i] -= without.by_class[i];
    return bytes;
  };
  EXPECT_EQ(added(buckets(3), resident({1, 1, 1})), (Expected{.optimizer = 6144})) << "ddp";
  EXPECT_EQ(added(buckets(3), resident({1, 1, 3})), (Expected{.optimizer = 2048})) << "zero1";
  EXPECT_EQ(added(wrapped(), split({4, 4, 4})), (Expected{.optimizer = 6144 / 4}))
      << "of frozen parameters there is none";
  // 1024 + 512 + 512 elements, masters in fp32.
  EXPECT_EQ(added(wrapped({.parameters = at::kBFloat16}), split({2, 2, 2})),
            (Expected{.optimizer = 2048 * 4 / 2}));
  MemorySetting offloaded = split({4, 4, 4});
  offloaded.offload = Offload::kParameters;
  EXPECT_EQ(added(wrapped(), offloaded)[MemoryClass::kHost], 6144 / 4);
}

TEST(MemoryFormula, AStateOfSomeParametersCountsTheirPartOfTheRanksSlice) {
  // One unit: "a" at 0 to 100 (padded to 128), "b" at 128 to 328 (to 384); two slices of 192.
  const ParameterTable table({{"a", trainable(100)}, {"b", trainable(200)}});
  const UnitPlan plan(table, {{"unit", {0, 1}}}, 2);
  ASSERT_EQ(plan[0].layout.numel(), 384);
  MemorySetting setting = resident({1, 1, 2});
  const auto elements = [&](std::vector<uint8_t> has, int slice) {
    setting.states = {{{"momentum"}, std::move(has)}};
    setting.optimizer_slice = slice;
    return memory_formula(plan, setting)[MemoryClass::kOptimizer] / 4;
  };
  EXPECT_EQ(elements({1, 0}, 0), 128);
  EXPECT_EQ(elements({1, 0}, 1), 0);
  EXPECT_EQ(elements({0, 1}, 0), 64);
  EXPECT_EQ(elements({0, 1}, 1), 192);
  EXPECT_EQ(elements({1, 1}, 0), 192);
  EXPECT_EQ(elements({0, 0}, 1), 0);
  // A rank with padding only has no state: "c" is in slice 0 of 2.
  const ParameterTable small({{"c", trainable(3)}});
  const UnitPlan padded(small, {{"unit", {0}}}, 2);
  setting.states = {{{"momentum"}, {1}}};
  EXPECT_EQ(memory_formula(padded, setting)[MemoryClass::kOptimizer], 64 * 4);
  setting.optimizer_slice = 2;
  EXPECT_THROW(memory_formula(plan, setting), c10::Error);
}

TEST(MemoryFormula, NothingTrainableNeedsNothing) {
  const ParameterTable table({{"frozen", at::zeros({5})}});
  EXPECT_EQ(memory_formula(UnitPlan(table, {}, 2), resident({1, 2, 2}, 3)), MemoryBytes{});
}

TEST(MemoryPeakFormula, AddsThePooledBufferByHand) {
  const auto gradient_buffer = [](const UnitPlan& plan, const MemorySetting& setting) {
    const MemoryBytes peak = memory_peak_formula(plan, setting);
    MemoryBytes persistent = memory_formula(plan, setting);
    const int64_t pooled =
        peak[MemoryClass::kGradientBuffers] - persistent[MemoryClass::kGradientBuffers];
    persistent[MemoryClass::kGradientBuffers] += pooled;
    EXPECT_EQ(peak, persistent) << "only gradient buffers differ";
    return pooled;
  };
  EXPECT_EQ(gradient_buffer(buckets(3), resident({1, 1, 1})), 0)
      << "ddp collects where the sums are";
  EXPECT_EQ(gradient_buffer(buckets(3), resident({1, 1, 1}, 2)), 4608 + 1536)
      << "one of each dtype";
  EXPECT_EQ(gradient_buffer(buckets(3), resident({1, 3, 3})), 4608 + 1536);
  EXPECT_EQ(gradient_buffer(buckets(3), resident({1, 1, 3})), 0) << "zero1 has no pool";
  EXPECT_EQ(gradient_buffer(wrapped(), split({4, 4, 4})), 3072 + 1024)
      << "no frozen unit has gradients";
  EXPECT_EQ(gradient_buffer(wrapped({.parameters = at::kBFloat16}), split({4, 4, 4})), 2048 + 1024);
}

TEST(MemoryFormulaNegativeControl, ConfigurationsDifferAndWrongArgumentsAreRefused) {
  const UnitPlan plan = buckets(3);
  EXPECT_NE(memory_formula(plan, resident({1, 1, 3})),
            memory_formula(plan, resident({1, 1, 3}, 2)));
  EXPECT_NE(memory_formula(plan, resident({1, 1, 3})), memory_formula(plan, resident({1, 3, 3})));
  EXPECT_NE(memory_formula(plan, resident({1, 3, 3})),
            memory_formula(buckets(2), resident({1, 2, 2})));
  EXPECT_NE(memory_formula(wrapped(), split({4, 4, 4})),
            memory_formula(wrapped(), split({4, 4, 4}, 1)));
  EXPECT_NE(memory_formula(wrapped(), split({4, 4, 4})),
            memory_formula(wrapped(), split({2, 4, 4})));
  const auto message_of = [&](const MemorySetting& setting) -> std::string {
    try {
      memory_formula(plan, setting);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message_of(resident({1, 0, 3})),
              ::testing::HasSubstr("[memory] degrees: got 1 | 0 | 3, expected at least 1 each"));
  EXPECT_THAT(message_of(resident({1, 1, 3}, 0)),
              ::testing::HasSubstr("[memory] micro_steps: got 0, expected at least 1"));
  EXPECT_THAT(message_of(resident({3, 3, 3})),
              ::testing::HasSubstr("[memory] is_split: got false with 3 slices of the parameters"));
  EXPECT_THAT(message_of(split({3, 3, 3}, 2)),
              ::testing::HasSubstr("[memory] ranks_after_forward: got 2, expected a divisor of 3"));
}

}  // namespace
}  // namespace tessera::internal
