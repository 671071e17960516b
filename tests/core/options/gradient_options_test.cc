#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/options/resolved_options.h"
#include "tessera/options.h"

// Refusals of the options that scale, divide and clip gradients.

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WorldTraits on_cpus() { return {.size = 4}; }
WorldTraits on_gpus() {
  return {.size = 4, .device = at::Device(at::kCUDA, 0), .can = {.completes_on_host = false}};
}

std::string refusal_in(const Options& options, const WorldTraits& world) {
  return std::string(resolve(options, nullptr, world).status().message());
}

TEST(GradientOptions, WhatCannotClipOrDivideIsRefused) {
  const auto message = [](const Options& options) {
    return std::string(validate(options).message());
  };
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double p : {0.0, -2.0, nan}) {
    EXPECT_THAT(message({.grad_norm_type = p}), HasSubstr("[options] grad_norm_type: got "));
    EXPECT_THAT(message({.max_grad_value = p}), HasSubstr("[options] max_grad_value: got "));
    EXPECT_THAT(message({.max_grad_norm_by_group = {{"a", 1.0}, {"b", p}}}),
                AllOf(HasSubstr("[options] max_grad_norm_by_group: got "), HasSubstr("for 'b'")));
    EXPECT_THAT(message({.gradient_divide_factor = p}),
                HasSubstr("[options] gradient_divide_factor: got "));
  }
  for (const double factor : {infinity, 3.5e38, 1e50, 1e-44, 1e-46}) {
    EXPECT_THAT(message({.gradient_divide_factor = factor}),
                HasSubstr("; allowed 1.2e-38 to 3.4e38; leave it out"));
  }
  for (const double factor : {3.4e38, 1.2e-38}) {
    EXPECT_EQ(message({.gradient_divide_factor = factor}), "");
  }
  EXPECT_THAT(message({.max_grad_norm = 1.0, .max_grad_norm_by_group = {{"a", 1.0}}}),
              HasSubstr("max_grad_norm_by_group: is set beside max_grad_norm"));
  EXPECT_EQ(message({.grad_norm_type = infinity,
                     .max_grad_norm_by_group = {{"a", infinity}},
                     .max_grad_value = 0.5,
                     .gradient_divide_factor = 0.25}),
            "")
      << "the control";
}

TEST(GradientOptions, WhatUpdatesInBackwardCannotClip) {
  const Options options{.strategy = Strategy::kZero3,
                        .grad_norm_type = 1.0,
                        .max_grad_norm_by_group = {{"defaults", 1.0}},
                        .max_grad_value = 1.0,
                        .gradient_divide_factor = 3.0,
                        .optimizer_in_backward = true};
  const std::vector<std::string> all = absl::StrSplit(refusal_in(options, on_cpus()), '\n');
  EXPECT_THAT(all,
              ElementsAre(HasSubstr("optimizer_in_backward: is set beside max_grad_norm_by_group"),
                          HasSubstr("optimizer_in_backward: is set beside max_grad_value"),
                          HasSubstr("optimizer_in_backward: is set beside grad_norm_type")));
}

TEST(GradientOptions, WhatAGpuHasNoKernelForIsRefusedUnlessTheHostClips) {
  Options options{
      .grad_norm_type = 1.0, .max_grad_norm_by_group = {{"defaults", 1.0}}, .max_grad_value = 1.0};
  const std::vector<std::string> all = absl::StrSplit(refusal_in(options, on_gpus()), '\n');
  EXPECT_THAT(all, ElementsAre(HasSubstr("[options] grad_norm_type: is set, but the kernels"),
                               HasSubstr("[options] max_grad_norm_by_group: is set, but the"),
                               HasSubstr("[options] max_grad_value: is set, but the kernels")));
  options.offload = Offload::kOptimizer;
  EXPECT_EQ(refusal_in(options, on_gpus()), "");
  EXPECT_EQ(refusal_in({.max_grad_norm = 1.0, .grad_norm_type = 2.0}, on_gpus()), "")
      << "the control";
  const WorldTraits world = on_gpus();
  EXPECT_THAT(refusal_in({.gradient_divide_factor = world.size + 0.5}, world),
              HasSubstr("[options] gradient_divide_factor: got "));
  EXPECT_EQ(refusal_in({.gradient_divide_factor = world.size}, world), "");
}

TEST(GradientOptions, ALossScaleIsANormalNumberOfFp32) {
  const auto message = [](double initial) {
    const Options options{.loss_scale = LossScale{.initial = initial}};
    return std::string(validate(options).message());
  };
  for (const double scale : {1.2e-38, 1e-30, 65536.0, 3.4e38}) EXPECT_EQ(message(scale), "");
  for (const double scale :
       {-1.0, 0.0, 1e-40, 1e-320, 3.5e38, 1e300, std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message(scale), AllOf(HasSubstr("[options] loss_scale.initial: got "),
                                      HasSubstr("; allowed 1.2e-38 to 3.4e38;")));
  }
}

TEST(GradientOptions, BucketsAreSmallerWhereTheyCrossANetwork) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto buckets = [](const Options& options, const WorldTraits& world) {
    return resolve(options, nullptr, world)->bucket_bytes;
  };
  WorldTraits over_network = on_cpus();
  over_network.can.crosses_network = true;
  EXPECT_THAT(buckets({}, on_cpus()), ElementsAre(kMiB, 25 * kMiB));
  EXPECT_THAT(buckets({}, over_network), ElementsAre(kMiB));
  EXPECT_THAT(buckets({.bucket_bytes = {5 * kMiB}}, over_network), ElementsAre(5 * kMiB));
}

}  // namespace
}  // namespace tessera::internal
