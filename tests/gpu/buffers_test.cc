// Buffers that steps make equal on all ranks (Options::buffers), and SyncBatchNorm, on GPUs, also
// with asynchronous steps.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/sync_batch_norm.h"
#include "tessera/tests/gpu/gpu_comparison.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// Each rank's forward writes its own numbers into two buffers.
struct NormOnGpu : torch::nn::Module {
  explicit NormOnGpu(const std::shared_ptr<ProcessGroup>& group) {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(5, 4).bias(false)));
    norm = register_module("norm", tessera::nn::SyncBatchNorm1d(4, group));
    last = register_module("last", torch::nn::Linear(4, 3));
    seen = register_buffer("seen", at::zeros({3}));
    count = register_buffer("count", at::zeros({}, at::kLong));
    auto generator = at::detail::createCPUGenerator(5);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters()) {
      parameter.copy_(at::randn(parameter.sizes(), generator, at::kFloat));
    }
    to(group->device());
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor output = last(torch::tanh(norm(first(input))));
    seen.copy_(output.detach().mean(0));
    count.add_(input.size(0));
    return output.pow(2).mean();
  }
  torch::nn::Linear first{nullptr};
  tessera::nn::SyncBatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
  at::Tensor seen, count;
};

/// Parameters and buffers after three steps, equal on all ranks.
Outcome train_buffers(BufferSync sync, int size, const Decorate& decorate) {
  std::vector<Outcome> by_rank(static_cast<size_t>(size));
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    if (decorate) world = decorate(std::move(world));
    const auto net = std::make_shared<NormOnGpu>(world);
    const auto engine =
        parallelize(net, torch::optim::AdamWOptions(0.02).eps(1e-6), {.buffers = sync}, world);
    for (int step = 0; step < 3; ++step) {
      auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(10 * step + rank));
      const at::Tensor rows = at::randn({rank + 2, 5}, generator, at::kFloat);
      net->forward(rows.to(world->device())).backward();
      engine->step();
    }
    engine->wait();
    Outcome& outcome = by_rank[static_cast<size_t>(rank)];
    outcome.parameters = copy_parameters(*net);
    for (const auto& buffer : net->named_buffers()) {
      outcome.parameters[buffer.key()] = buffer.value().cpu().clone();
    }
  });
  for (const Outcome& outcome : by_rank) EXPECT_EQ(gpu_differences(outcome, by_rank[0]), "");
  return by_rank[0];
}

TEST(BuffersOnGpu, BecomeWhatTheyBecomeOnTheCpu) {
  const int size = std::min(3, most_rank_threads());
  for (const BufferSync sync : {BufferSync::kBroadcast, BufferSync::kMean}) {
    SCOPED_TRACE(to_string(sync));
    const Outcome expected = train_buffers(sync, size, {});
    EXPECT_EQ(gpu_differences(train_buffers(sync, size, staged_over_host()), expected), "");
    EXPECT_EQ(gpu_differences(train_buffers(sync, size, over_nccl()), expected), "");
  }
}

TEST(BuffersOnGpu, AnotherShapeOnARankIsThrownByTheNextStep) {
  const int size = std::min(2, most_rank_threads());
  if (size < 2) return;
  run_ranks(size, [&, decorate = over_nccl()](std::shared_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    world = decorate(std::move(world));
    const auto net = std::make_shared<NormOnGpu>(world);
    const auto engine =
        parallelize(net, torch::optim::AdamWOptions(0.02), {.buffers = BufferSync::kMean}, world);
    const auto backward = [&] {
      net->forward(at::ones({2, 5}, at::device(world->device())) * (rank + 1)).backward();
    };
    backward();
    if (rank == 1) net->seen.resize_({7});
    engine->step();
    EXPECT_THAT(message_of([&] { engine->wait(); }), HasSubstr("rank 1: buffer 'seen': got Float"));
  });
}

}  // namespace
}  // namespace tessera::internal::testing
