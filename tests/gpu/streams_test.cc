// Models that run on the user's own streams.
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/core/device/cuda_device.h"
#include "tessera/core/sched/stream_join.h"
#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/gate.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {
namespace {

c10::Stream stream_of_pool(at::Device device) {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)
      ->getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

/// Each forward and backward runs on another stream than the one before, and step() on the default
/// stream.
Outcome train_on_streams(const Configuration& configuration, const Decorate& on_gpus, int size,
                         bool switches) {
  Outcome outcome;
  run_ranks(size, [&](std::shared_ptr<ProcessGroup> given) {
    const std::shared_ptr<ProcessGroup> world = on_gpus(std::move(given));
    const Subject& model = subject("DeepMlp");
    const std::shared_ptr<Net> net = prepare(model.make(), at::kFloat, 7);
    net->to(world->device());
    Schedule schedule;
    Options options = options_of(configuration, schedule);
    const std::unique_ptr<Engine> engine = parallelize(net, make_plan(*net), options, world);
    StreamJoin user(world->device());
    const c10::Stream streams[] = {stream_of_pool(world->device()),
                                   stream_of_pool(world->device())};
    for (int step = 0; step < 6; ++step) {
      const Moment moment{.step = step, .rank = world->rank()};
      const Batch drawn = batch_of(model, at::kFloat, schedule, moment, 0);
      const Batch batch{drawn.input.to(world->device()), drawn.target.to(world->device())};
      user.pass();
      {
        const c10::OptionalStreamGuard guard(switches ? std::optional(streams[step % 2])
                                                      : std::nullopt);
        user.pass();
        loss_of(*net, batch, moment, schedule).backward();
        user.pass();
      }
      user.pass();
      engine->step();
    }
    engine->wait();
    if (world->rank() == 0) outcome.parameters = copy_parameters(*net);
    if (world->rank() != 0) copy_parameters(*net);
  });
  return outcome;
}

TEST(Streams, OfTheUserTrainAsTheDefaultOne) {
  const int world = most_rank_threads() < 3 ? 1 : 3;
  for (const Configuration& configuration : named_configurations()) {
    const Decorate first = world == 1 ? alone() : over_nccl();
    const Decorate second = world == 1 ? alone() : over_nccl();
    EXPECT_EQ(bit_differences(train_on_streams(configuration, first, world, true).parameters,
                              train_on_streams(configuration, second, world, false).parameters),
              "")
        << configuration.name;
  }
}

/// Once armed, the all-gathers of this rank do not begin before `gate` is opened.
struct GatedGathers final : ForwardingGroup {
  struct Arm {
    bool is_armed = false;
    std::optional<Gate> gate;
  };
  GatedGathers(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Arm> arm)
      : ForwardingGroup(std::move(inner)), arm(std::move(arm)) {}

  std::shared_ptr<Work> run(const Collective& collective) override {
    if (collective.op == Op::kAllGather && arm->is_armed && !arm->gate.has_value()) {
      arm->gate.emplace(CudaDevice(device().index()).current_stream()->handle());
    }
    return ForwardingGroup::run(collective);
  }
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<GatedGathers>(std::move(inner), arm);
  }

  const std::shared_ptr<Arm> arm;
};

/// Returns true if the stream is still busy after many looks.
bool stays_busy(const c10::Stream& stream) {
  for (int look = 0; look < 1000; ++look) {
    if (stream.query()) return false;
    std::this_thread::yield();
  }
  return true;
}

// Copies from a GPU to itself are queued, so the thread does not wait for the first stream before
// the second one reads. Gates exist only on fake GPUs.
TEST(PretendStreams, EachWaitsForTheUpdatesThatItReads) {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2}) {
    const Decorate on_gpus = over_nccl();
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> given) {
      const auto arm = std::make_shared<GatedGathers::Arm>();
      const auto world = std::make_shared<GatedGathers>(on_gpus(std::move(given)), arm);
      const Subject& model = subject("DeepMlp");
      const Schedule schedule;
      const std::shared_ptr<Net> net = prepare(model.make(), at::kFloat, 7);
      net->to(world->device());
      const auto engine = parallelize(net, make_plan(*net),
                                      options_of(configuration_of(strategy), schedule), world);
      const Moment moment{.step = 0, .rank = world->rank()};
      const Batch batch = batch_of(model, at::kFloat, schedule, moment, 0);
      loss_of(*net, {batch.input.to(world->device()), batch.target.to(world->device())}, moment,
              schedule)
          .backward();
      const at::Tensor parameter = net->parameters()[0];
      std::vector<at::Tensor> copies;
      std::vector<c10::Stream> streams;
      for (int i = 0; i < 3; ++i) {
        streams.push_back(stream_of_pool(world->device()));
        copies.push_back(at::zeros_like(parameter.detach()));
      }

      arm->is_armed = true;
      engine->step();
      for (int i = 0; i < 3; ++i) {
        if (i == 2) engine->wait();  // only the current stream waits
        const c10::StreamGuard guard(streams[i]);
        copies[i].copy_(parameter.detach());
      }
      for (const c10::Stream& stream : streams) EXPECT_TRUE(stays_busy(stream));
      arm->gate->open();
      for (const c10::Stream& stream : streams) stream.synchronize();
      engine->wait();
      for (const at::Tensor& copy : copies) EXPECT_TRUE(at::equal(copy, net->parameters()[0]));
    });
  }
}

TEST(Streams, AreJoinedOnlyWhenTheyChange) {
  CudaDevice device(0);
  device.make_current();
  StreamJoin join(device.torch_device());
  const c10::Stream other = stream_of_pool(device.torch_device());
  at::Tensor values = device.allocate(1 << 20, at::kFloat);
  at::Tensor source = at::ones({1 << 20}, at::TensorOptions().pinned_memory(true));
  join.pass();
  values.copy_(source, /*non_blocking=*/true);
  const c10::StreamGuard guard(other);
  join.pass();
  at::Tensor sum = values.sum();
  EXPECT_EQ(sum.item<float>(), static_cast<float>(1 << 20));
}

}  // namespace
}  // namespace tessera::internal::testing
