#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/options/resolved_options.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"

// The combinations that Options::reproducible refuses.

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Options any_world_size(Options options = {}) {
  options.reproducible = Reproducible::kAnyWorldSize;
  return options;
}

std::string refusal_of_any_size(const Options& options, const WorldTraits& world,
                                const ParameterTable* model = nullptr) {
  return std::string(resolve(options, model, world).status().message());
}

ParameterTable table_in(at::ScalarType dtype) {
  return ParameterTable(
      std::vector<NamedTensor>{{"first", torch::zeros({3}, dtype).requires_grad_()},
                               {"second", torch::zeros({3}, dtype).requires_grad_()}});
}

TEST(ReproducibleOptions, NeedAPowerOfTwoOfRanksOnCpus) {
  for (const int size : {1, 2, 4, 8, 64}) {
    EXPECT_EQ(refusal_of_any_size(any_world_size(), {.size = size}), "") << size;
  }
  for (const int size : {3, 5, 6, 12}) {
    EXPECT_THAT(refusal_of_any_size(any_world_size(), {.size = size}),
                HasSubstr("[options] reproducible: is set in a world of " + std::to_string(size) +
                          " ranks, expected a power of two"));
    EXPECT_EQ(refusal_of_any_size({}, {.size = size}), "") << "the control";
  }
  EXPECT_THAT(refusal_of_any_size(any_world_size(), {.size = 2,
                                                     .device = at::Device(at::kCUDA, 0),
                                                     .can = {.completes_on_host = false}}),
              HasSubstr("reproducible: is set, but parameters lie on a GPU"));
}

TEST(ReproducibleOptions, RefuseWhatRoundsOrDependsOnTheRanks) {
  const auto message = [](const Options& options) {
    return std::string(validate(any_world_size(options)).message());
  };
  EXPECT_THAT(message({.gradient_divide_factor = 3.0}),
              HasSubstr("reproducible: is set beside gradient_divide_factor 3, which rounds"));
  EXPECT_EQ(message({.gradient_divide_factor = 0.5}), "");
  EXPECT_THAT(message({.loss_scale = LossScale{}}),
              HasSubstr("reproducible: is set beside loss_scale"));
  EXPECT_THAT(message({.buffers = BufferSync::kMean}),
              HasSubstr("reproducible: is set beside buffers"));
  EXPECT_EQ(message({.max_grad_norm = 1.0, .grad_norm_type = 3.0, .max_grad_value = 2.0}), "");
  Options unknown;
  unknown.reproducible = static_cast<Reproducible>(9);
  EXPECT_THAT(std::string(validate(unknown).message()),
              HasSubstr("reproducible: got 9, expected 0 to 1"));
}

TEST(ReproducibleOptions, NeedOneWideDtypeForGradients) {
  const auto message = [](at::ScalarType dtype, const Precision& precision) {
    const ParameterTable table = table_in(dtype);
    return refusal_of_any_size(any_world_size({.precision = precision}), {.size = 2}, &table);
  };
  EXPECT_EQ(message(at::kFloat, {}), "");
  EXPECT_EQ(message(at::kDouble, {}), "");
  const Precision sixteen{.parameters = at::kBFloat16};
  EXPECT_THAT(message(at::kFloat, sixteen),
              AllOf(HasSubstr("gradients of parameter 'first' are sent in BFloat16 and summed in "
                              "Float, expected Float or Double for both"),
                    HasSubstr("set precision.communication and precision.reduce to Float"),
                    Not(HasSubstr("'second'"))));
  EXPECT_EQ(message(at::kFloat, {.parameters = at::kBFloat16, .communication = at::kFloat}), "");
  EXPECT_THAT(message(at::kFloat, {.communication = at::kBFloat16, .reduce = at::kBFloat16}),
              HasSubstr("are sent in BFloat16 and summed in BFloat16"));
  EXPECT_THAT(message(at::kFloat, {.communication = at::kFloat, .reduce = at::kDouble}),
              HasSubstr("are sent in Float and summed in Double"));
  EXPECT_THAT(message(at::kHalf, {.communication = at::kFloat}),
              HasSubstr("parameter 'first' is Half, whose gradients underflow"));
}

}  // namespace
}  // namespace tessera::internal
