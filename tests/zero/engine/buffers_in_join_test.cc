#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/tests/support/message_of.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

// Options::buffers and SyncBatchNorm when ranks have different numbers of batches.

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// A layer, and a buffer that holds the number of the last sample of this rank.
struct SampleNet : torch::nn::Module {
  SampleNet() {
    layer = register_module("layer", torch::nn::Linear(3, 5));
    last = register_buffer("last", at::zeros({3}, at::kDouble));
    count = register_buffer("count", at::zeros({}, at::kLong));
    to(at::kDouble);
  }
  at::Tensor forward(int sample) {
    last.fill_(sample);
    count.fill_(sample);
    return layer(at::full({2, 3}, sample, at::kDouble)).pow(2).sum();
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor last;
  at::Tensor count;
};

/// Rank r has r + 1 batches, so rank 0 ends first. Batch b has the sample number 100 r + b + 1.
std::vector<int> samples_of(int rank) {
  std::vector<int> samples;
  for (int batch = 0; batch <= rank; ++batch) samples.push_back(100 * rank + batch + 1);
  return samples;
}

void train_in_join(BufferSync sync, std::shared_ptr<ProcessGroup> world, double last, int count) {
  auto net = std::make_shared<SampleNet>();
  Options options{.strategy = Strategy::kZero2};
  options.buffers = sync;
  const auto engine = parallelize(net, adamw(), options, world);
  std::vector<int> samples = samples_of(world->rank());
  for (const int sample : engine->join(samples)) {
    net->forward(sample).backward();
    engine->step();
  }
  EXPECT_EQ(engine->steps(), world->size());
  EXPECT_EQ(net->last[0].item<double>(), last);
  EXPECT_EQ(net->count.item<int64_t>(), count);
}

class BuffersInJoin : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, BuffersInJoin, ::testing::Values(1, 2, 3));

// Only the last rank has a batch in the last step.
TEST_P(BuffersInJoin, AreThoseOfRanksThatHaveBatches) {
  const int last = samples_of(GetParam() - 1).back();
  for (const BufferSync sync : {BufferSync::kBroadcast, BufferSync::kMean}) {
    SCOPED_TRACE(to_string(sync));
    run_ranks(GetParam(), [&](std::shared_ptr<ProcessGroup> world) {
      train_in_join(sync, std::move(world), last, last);
    });
  }
}

TEST(BufferMeansInJoin, AreOverRanksThatHaveBatches) {
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    auto net = std::make_shared<SampleNet>();
    Options options{.strategy = Strategy::kDdp};
    options.buffers = BufferSync::kMean;
    const auto engine = parallelize(net, adamw(), options, world);
    std::vector<double> seen;
    std::vector<int> samples = samples_of(world->rank());
    for (const int sample : engine->join(samples)) {
      net->forward(sample).backward();
      engine->step();
      seen.push_back(net->last[0].item<double>());
    }
    const std::vector<double> expected = {(1 + 101 + 201) / 3.0, (102 + 202) / 2.0, 203};
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], expected[i]) << i;
    EXPECT_EQ(net->last[0].item<double>(), 203);
  });
}

TEST(BufferMeansInJoin, SyncBatchNormIsRefusedByName) {
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    auto net = std::make_shared<NormNet>(world);
    const auto engine = parallelize(net, adamw(), {}, world);
    std::vector<int> batches = {0};
    EXPECT_THAT(message_of([&] { (void)engine->join(batches); }),
                HasSubstr("join: got a model with the SyncBatchNorm 'norm'"));
    const JoinOptions options{.throws_when_one_ends = true};
    for (const int batch : engine->join(batches, options)) {
      net->norm(at::ones({2 + batch, 4}) * world->rank()).sum().backward();
      engine->step();
    }
    net->eval();
    for (const int batch : engine->join(batches)) (void)batch;
  });
}

}  // namespace
}  // namespace tessera::internal::testing
