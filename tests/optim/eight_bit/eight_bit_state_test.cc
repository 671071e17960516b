// Conversion of states to 8 bits and back, and its refusals.
#include "tessera/eight_bit_state.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/eight_bit_options.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/optimizer_plan.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

StateEntry entry_of(const at::Tensor& values) {
  return {.sizes = values.sizes().vec(),
          .strides = values.strides().vec(),
          .dtype = values.scalar_type(),
          .pieces = {{0, values.reshape({-1}).clone()}}};
}

StateDict adamw_state(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(5);
  StateDict state;
  for (const char* name : {"a.weight", "b"}) {
    const at::Tensor moment = torch::randn({13, 11}, at::kDouble) * 1e-3;
    state.entries[std::string("optimizer.") + name + ".exp_avg"] = entry_of(moment.to(dtype));
    state.entries[std::string("optimizer.") + name + ".exp_avg_sq"] =
        entry_of((moment * moment).to(dtype));
  }
  state.entries["model.a.weight"] = entry_of(torch::randn({13, 11}));
  state.entries["optimizer.defaults.algorithm.AdamW"] = entry_of(torch::ones({}, at::kLong));
  state.entries["optimizer.no decay.algorithm.AdamW"] = entry_of(torch::ones({}, at::kLong));
  return state;
}

std::vector<std::string> entry_names(const StateDict& state) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state.entries) names.push_back(name);
  return names;
}

TEST(EightBitState, TurnsMomentsIntoCodesAndBack) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const StateDict state = adamw_state(dtype);
    const StateDict coded = quantize_state(state);
    EXPECT_THAT(entry_names(coded),
                ::testing::UnorderedElementsAre(
                    "model.a.weight", "optimizer.a.weight.exp_avg_codes",
                    "optimizer.a.weight.exp_avg_scales", "optimizer.a.weight.exp_avg_sq_codes",
                    "optimizer.a.weight.exp_avg_sq_scales", "optimizer.b.exp_avg_codes",
                    "optimizer.b.exp_avg_scales", "optimizer.b.exp_avg_sq_codes",
                    "optimizer.b.exp_avg_sq_scales", "optimizer.defaults.algorithm.AdamW8bit",
                    "optimizer.no decay.algorithm.AdamW8bit"));
    const StateEntry& codes = coded.entries.at("optimizer.b.exp_avg_codes");
    EXPECT_EQ(codes.sizes, (std::vector<int64_t>{13, 11}));
    EXPECT_EQ(codes.dtype, at::kByte);
    const StateEntry& scales = coded.entries.at("optimizer.b.exp_avg_scales");
    EXPECT_EQ(scales.sizes, (std::vector<int64_t>{3}));
    EXPECT_EQ(scales.dtype, at::kFloat);
    const StateDict back = dequantize_state(coded, {.dtype = dtype});
    EXPECT_EQ(entry_names(back), entry_names(state));
    for (const char* name : {"optimizer.b.exp_avg", "optimizer.b.exp_avg_sq"}) {
      const at::Tensor expected = state.entries.at(name).tensor();
      const at::Tensor got = back.entries.at(name).tensor();
      EXPECT_EQ(got.scalar_type(), dtype);
      const double largest = expected.abs().max().item<double>();
      EXPECT_TRUE(torch::allclose(got, expected, /*rtol=*/0, /*atol=*/0.01 * largest)) << name;
      EXPECT_FALSE(got.equal(expected)) << "else nothing was rounded";
    }
  }
}

TEST(EightBitState, ChangesTheSelectedPartOnly) {
  const EightBitPart part = {.parameters = [](std::string_view name) { return name == "b"; },
                             .groups = [](std::string_view name) { return name == "no decay"; }};
  const StateDict state = adamw_state();
  const StateDict coded = quantize_state(state, part);
  EXPECT_TRUE(coded.entries.contains("optimizer.a.weight.exp_avg"));
  EXPECT_TRUE(coded.entries.contains("optimizer.b.exp_avg_codes"));
  EXPECT_TRUE(coded.entries.contains("optimizer.defaults.algorithm.AdamW"));
  EXPECT_TRUE(coded.entries.contains("optimizer.no decay.algorithm.AdamW8bit"));
  EXPECT_EQ(entry_names(dequantize_state(coded, part)), entry_names(state));
}

TEST(EightBitState, RefusesWhatItCannotTurn) {
  StateDict cut = adamw_state();
  StateEntry& moment = cut.entries["optimizer.b.exp_avg"];
  moment.pieces = {{3, torch::zeros({64})}};
  EXPECT_THAT(message_of([&] { quantize_state(cut); }),
              HasSubstr("'optimizer.b.exp_avg': got a piece of elements 3 to 67, expected whole "
                        "blocks of 64"));
  moment.pieces = {{0, torch::zeros({200})}};
  EXPECT_THAT(message_of([&] { quantize_state(cut); }), HasSubstr("'optimizer.b.exp_avg'"));
  moment = entry_of(torch::zeros({13, 11}, at::kHalf));
  EXPECT_THAT(message_of([&] { quantize_state(cut); }), HasSubstr("got dtype Half"));
  cut = adamw_state();
  cut.entries["optimizer.b.max_exp_avg_sq"] = entry_of(torch::zeros({13, 11}));
  EXPECT_THAT(message_of([&] { quantize_state(cut); }), HasSubstr("AMSGrad's maxima"));

  StateDict coded = quantize_state(adamw_state());
  EXPECT_THAT(message_of([&] { dequantize_state(coded, {.dtype = at::kHalf}); }),
              HasSubstr("got Half, expected Float or Double"));
  coded.entries["optimizer.b.exp_avg_scales"].pieces = {{0, torch::zeros({2})}};
  EXPECT_THAT(message_of([&] { dequantize_state(coded); }), HasSubstr("got no scale of block 2"));
  coded.entries.erase("optimizer.b.exp_avg_scales");
  EXPECT_THAT(message_of([&] { dequantize_state(coded); }),
              HasSubstr("'optimizer.b.exp_avg_scales': missing"));
}

TEST(EightBitOptions, AreCheckedAndHaveNoKernelsForDevices) {
  const ParameterTable table({{"w", torch::zeros({3}).requires_grad_()}});
  EXPECT_TRUE(OptimizerPlan(AdamW8bitOptions()).assign(table).ok());
  const auto problem = OptimizerPlan(AdamW8bitOptions(-1).eps(-1)).assign(table).status();
  EXPECT_THAT(std::string(problem.message()), HasSubstr("lr: got -1"));
  EXPECT_THAT(std::string(problem.message()), HasSubstr("eps: got -1"));
  EXPECT_EQ(without_kernels(OptimizerPlan(AdamW8bitOptions())), "AdamW8bit");
  EXPECT_EQ(without_kernels(OptimizerPlan(Lion8bitOptions())), "Lion8bit");
}

}  // namespace
}  // namespace tessera::internal
