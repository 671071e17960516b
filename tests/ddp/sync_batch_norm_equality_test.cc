#include "tessera/sync_batch_norm.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/rank_threads.h"

// SyncBatchNorm on the batches of several ranks equals BatchNorm on all of them at once.

namespace tessera::internal::testing {
namespace {

constexpr int64_t kChannels = 5;

/// A layer and its batches.
struct NormCase {
  std::string name;
  std::vector<int64_t> rows;               ///< by rank
  std::vector<int64_t> features = {3, 4};  ///< sizes after the channels
  torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(kChannels);
  at::ScalarType dtype = at::kDouble;
  at::ScalarType parameters = at::kDouble;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  bool turned = false;  ///< inputs and gradients are stored channel by channel
  double shift = 0.0;   ///< of all inputs
  double tolerance = 1e-12;
};

std::ostream& operator<<(std::ostream& stream, const NormCase& test) { return stream << test.name; }

std::vector<NormCase> norm_cases() {
  const torch::nn::BatchNormOptions usual(kChannels);
  const auto options = [&usual] { return usual; };
  return {
      {.name = "TwoRanks", .rows = {4, 4}},
      {.name = "ThreeRanksUneven", .rows = {2, 1, 6}},
      {.name = "FourRanks", .rows = {1, 2, 3, 4}},
      {.name = "FirstEmpty", .rows = {0, 3, 2}},
      {.name = "LastEmpty", .rows = {5, 0}},
      {.name = "AllButOneEmpty", .rows = {0, 4, 0}},
      {.name = "World1", .rows = {7}},
      {.name = "Rows", .rows = {3, 4, 5}, .features = {}},
      {.name = "Sequences", .rows = {2, 3}, .features = {7}},
      {.name = "Volumes", .rows = {1, 2, 1}, .features = {2, 3, 2}},
      {.name = "OneRowEach", .rows = {1, 1, 1}, .features = {}},
      {.name = "NoAffine", .rows = {2, 3, 1}, .options = options().affine(false)},
      {.name = "NoRunningStatistics",
       .rows = {2, 3},
       .options = options().track_running_stats(false)},
      {.name = "NeitherOfBoth",
       .rows = {2, 0, 3},
       .options = options().affine(false).track_running_stats(false)},
      {.name = "CumulativeAverage", .rows = {2, 3, 1}, .options = options().momentum(std::nullopt)},
      {.name = "OtherMomentumAndEps", .rows = {2, 3}, .options = options().momentum(0.7).eps(0.3)},
      {.name = "ChannelsLast", .rows = {2, 3, 1}, .format = at::MemoryFormat::ChannelsLast},
      {.name = "ChannelsLastEmpty", .rows = {2, 0, 3}, .format = at::MemoryFormat::ChannelsLast},
      {.name = "Turned", .rows = {2, 3, 1}, .turned = true},
      {.name = "FarFromZero", .rows = {3, 2, 4}, .shift = 1e4, .tolerance = 1e-8},
      {.name = "Fp32",
       .rows = {3, 2, 4},
       .dtype = at::kFloat,
       .parameters = at::kFloat,
       .tolerance = 2e-6},
      {.name = "Fp32ChannelsLast",
       .rows = {3, 0, 4},
       .dtype = at::kFloat,
       .parameters = at::kFloat,
       .format = at::MemoryFormat::ChannelsLast,
       .tolerance = 2e-6},
      {.name = "Bf16BesideFp32",
       .rows = {3, 2, 4},
       .dtype = at::kBFloat16,
       .parameters = at::kFloat,
       .tolerance = 2e-2},
      {.name = "Bf16NoAffine",
       .rows = {3, 2},
       .options = options().affine(false),
       .dtype = at::kBFloat16,
       .parameters = at::kFloat,
       .tolerance = 2e-2},
      {.name = "Bf16",
       .rows = {3, 2},
       .dtype = at::kBFloat16,
       .parameters = at::kBFloat16,
       .tolerance = 4e-2},
      {.name = "Fp16",
       .rows = {3, 0, 2},
       .dtype = at::kHalf,
       .parameters = at::kFloat,
       .tolerance = 4e-3},
  };
}

int64_t rows_before(const NormCase& test, int rank) {
  return std::accumulate(test.rows.begin(), test.rows.begin() + rank, int64_t{0});
}
int64_t rows_of_all(const NormCase& test) {
  return rows_before(test, static_cast<int>(test.rows.size()));
}

at::Tensor draw(const NormCase& test, uint64_t seed, double shift) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<int64_t> sizes = {rows_of_all(test), kChannels};
  sizes.insert(sizes.end(), test.features.begin(), test.features.end());
  const at::Tensor drawn = at::randn(sizes, generator, at::kDouble) + shift;
  return drawn.to(test.dtype)
      .contiguous(test.features.size() == 2 ? test.format : at::MemoryFormat::Contiguous);
}

/// The results of two batches, in fp64, with the rows of all ranks.
struct SeenByLayer {
  at::Tensor output, input_grad, weight_grad, bias_grad, mean, variance, batches, evaluated;
};

/// The same values with other strides.
at::Tensor turned(const at::Tensor& tensor) {
  return tensor.transpose(0, 1).contiguous().transpose(0, 1);
}

template <typename Norm>
void set_parameters(Norm& norm, const NormCase& test) {
  norm->to(test.parameters);
  if (norm->num_batches_tracked.defined()) {
    norm->num_batches_tracked.set_data(norm->num_batches_tracked.to(at::kLong));
  }
  if (!norm->weight.defined()) return;
  const at::NoGradGuard no_grad;
  norm->weight.copy_(at::linspace(0.5, -1.5, kChannels));
  norm->bias.copy_(at::linspace(-1.0, 2.0, kChannels));
}

/// Two forwards and backwards of `norm` over rows [begin, begin + count) of the batches.
template <typename Norm>
SeenByLayer run(Norm norm, const NormCase& test, int64_t begin, int64_t count) {
  set_parameters(norm, test);
  SeenByLayer seen;
  for (const uint64_t batch : {1, 2}) {
    const at::Tensor input = draw(test, batch, test.shift).narrow(0, begin, count);
    const at::Tensor leaf = (test.turned ? turned(input) : input.clone()).set_requires_grad(true);
    const at::Tensor drawn = draw(test, 10 + batch, 0.3).narrow(0, begin, count);
    const at::Tensor gradient = test.turned ? turned(drawn) : drawn;
    seen.output = norm->forward(leaf);
    EXPECT_EQ(seen.output.scalar_type(), test.dtype);
    EXPECT_TRUE(test.turned || seen.output.strides() == leaf.strides()) << "its memory format";
    seen.output.backward(gradient);
    seen.input_grad = leaf.grad();
    EXPECT_EQ(seen.input_grad.scalar_type(), test.dtype);
  }
  if (norm->weight.defined()) {
    seen.weight_grad = norm->weight.grad();
    seen.bias_grad = norm->bias.grad();
    EXPECT_EQ(seen.weight_grad.scalar_type(), test.parameters);
  }
  seen.mean = norm->running_mean;
  seen.variance = norm->running_var;
  seen.batches = norm->num_batches_tracked;
  norm->eval();
  if (count > 0) {
    seen.evaluated = norm->forward(draw(test, 3, test.shift).narrow(0, begin, count)).detach();
  }
  return seen;
}

template <typename Norm1, typename Norm2, typename Norm3, typename... Arguments>
SeenByLayer run_of_dimension(const NormCase& test, int64_t begin, int64_t count,
                             Arguments... arguments) {
  switch (test.features.size()) {
    case 2:
      return run(Norm2(test.options, arguments...), test, begin, count);
    case 3:
      return run(Norm3(test.options, arguments...), test, begin, count);
    default:
      return run(Norm1(test.options, arguments...), test, begin, count);
  }
}

SeenByLayer run_synchronised(const NormCase& test, const std::shared_ptr<ProcessGroup>& group) {
  const int rank = group->rank();
  return run_of_dimension<tessera::nn::SyncBatchNorm1d, tessera::nn::SyncBatchNorm2d,
                          tessera::nn::SyncBatchNorm3d>(
      test, rows_before(test, rank), test.rows[static_cast<size_t>(rank)], group);
}

/// BatchNorm in fp64 on all rows at once, with the same rounded inputs.
SeenByLayer run_whole(const NormCase& test) {
  using torch::nn::BatchNorm1d, torch::nn::BatchNorm2d, torch::nn::BatchNorm3d;
  NormCase in_double = test;
  in_double.parameters = at::kDouble;
  SeenByLayer seen;
  const auto forward = [&](auto norm) {
    set_parameters(norm, in_double);
    for (const uint64_t batch : {1, 2}) {
      const at::Tensor leaf = draw(test, batch, test.shift).to(at::kDouble).set_requires_grad(true);
      seen.output = norm->forward(leaf);
      seen.output.backward(draw(test, 10 + batch, 0.3).to(at::kDouble));
      seen.input_grad = leaf.grad();
    }
    if (norm->weight.defined()) {
      seen.weight_grad = norm->weight.grad();
      seen.bias_grad = norm->bias.grad();
    }
    seen.mean = norm->running_mean;
    seen.variance = norm->running_var;
    seen.batches = norm->num_batches_tracked;
    norm->eval();
    seen.evaluated = norm->forward(draw(test, 3, test.shift).to(at::kDouble)).detach();
  };
  if (test.features.size() == 2) {
    forward(BatchNorm2d(test.options));
  } else if (test.features.size() == 3) {
    forward(BatchNorm3d(test.options));
  } else {
    forward(BatchNorm1d(test.options));
  }
  return seen;
}

/// The largest difference, relative to the largest element of `expected` if that is above 1.
double distance(const at::Tensor& got, const at::Tensor& expected) {
  if (!got.defined() || !expected.defined()) return got.defined() == expected.defined() ? 0 : 1e9;
  if (got.numel() == 0 && expected.numel() == 0) return 0;
  const at::Tensor difference = (got.detach().to(at::kDouble) - expected.detach()).abs();
  return difference.max().item<double>() /
         std::max(1.0, expected.detach().abs().max().item<double>());
}

class SyncBatchNormTest : public ::testing::TestWithParam<NormCase> {};

TEST_P(SyncBatchNormTest, EqualsBatchNormOnAllRowsAtOnce) {
  const NormCase& test = GetParam();
  const SeenByLayer whole = run_whole(test);
  const auto size = static_cast<int>(test.rows.size());
  std::vector<SeenByLayer> seen(test.rows.size());
  run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
    seen[static_cast<size_t>(world->rank())] = run_synchronised(test, world);
  });
  at::Tensor weight_grad, bias_grad;
  for (int rank = 0; rank < size; ++rank) {
    SCOPED_TRACE(::testing::Message() << "rank " << rank);
    const SeenByLayer& mine = seen[static_cast<size_t>(rank)];
    const int64_t count = test.rows[static_cast<size_t>(rank)];
    const auto rows = [&](const at::Tensor& all) {
      return all.narrow(0, rows_before(test, rank), count);
    };
    EXPECT_LE(distance(mine.output, rows(whole.output)), test.tolerance);
    EXPECT_LE(distance(mine.input_grad, rows(whole.input_grad)), test.tolerance);
    EXPECT_LE(distance(mine.mean, whole.mean), test.tolerance);
    EXPECT_LE(distance(mine.variance, whole.variance), test.tolerance);
    if (test.options.track_running_stats()) {
      EXPECT_EQ(mine.batches.item<int64_t>(), whole.batches.item<int64_t>());
      EXPECT_TRUE(at::equal(mine.mean, seen[0].mean)) << "the same bits on all ranks";
      EXPECT_TRUE(at::equal(mine.variance, seen[0].variance));
      EXPECT_LE(count == 0 ? 0 : distance(mine.evaluated, rows(whole.evaluated)), test.tolerance);
    }
    if (!mine.weight_grad.defined()) continue;
    const auto add = [](at::Tensor& sum, const at::Tensor& one) {
      sum = sum.defined() ? sum + one.to(at::kDouble) : one.to(at::kDouble);
    };
    add(weight_grad, mine.weight_grad);
    add(bias_grad, mine.bias_grad);
  }
  EXPECT_LE(distance(weight_grad, whole.weight_grad), test.tolerance);
  EXPECT_LE(distance(bias_grad, whole.bias_grad), test.tolerance);
}

INSTANTIATE_TEST_SUITE_P(, SyncBatchNormTest, ::testing::ValuesIn(norm_cases()),
                         [](const auto& info) { return info.param.name; });

// Negative control: BatchNorm of each rank's own rows is far from it.
TEST(SyncBatchNorm, BatchNormOfOneRanksRowsIsSeenToDiffer) {
  const NormCase test{.name = "", .rows = {3, 4}};
  const SeenByLayer whole = run_whole(test);
  const SeenByLayer alone = run(torch::nn::BatchNorm2d(test.options), test, 0, 3);
  EXPECT_GT(distance(alone.output, whole.output.narrow(0, 0, 3)), 1e-3);
  EXPECT_GT(distance(alone.input_grad, whole.input_grad.narrow(0, 0, 3)), 1e-3);
  EXPECT_GT(distance(alone.variance, whole.variance), 1e-3);
}

}  // namespace
}  // namespace tessera::internal::testing
