#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/power_sgd.h"
#include "tessera/tests/ddp/hooked_rank.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/same_bits.h"
#include "tessera/tests/support/temporary_directory.h"

// PowerSGD's state as a part of a run's: in memory and on disk, loaded in the same and in other
// worlds, by runs without a hook, and after set_trainable().

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::shared_ptr<CommHook> compressing() {
  return power_sgd_hook(
      {.matrix_approximation_rank = 2, .start_power_sgd_iter = 1, .min_compression_rate = 1.0});
}

using Tensors = std::map<std::string, at::Tensor>;

/// Everything in the state.
Tensors values_of(const StateDict& state) {
  Tensors tensors;
  for (const auto& [name, entry] : state.entries) tensors[name] = entry.tensor();
  return tensors;
}

Tensors state_of_run(const HookedRank& rank) {
  return values_of(rank.engine->state_dict(StateScope::kEveryRank));
}

void expect_same(const Tensors& got, const Tensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(have_same_bits(got.at(name), tensor)) << name;
  }
}

std::unique_ptr<HookedRank> trained(const std::shared_ptr<ProcessGroup>& world, Strategy strategy,
                                    int steps,
                                    const std::shared_ptr<CommHook>& hook = compressing()) {
  auto rank = std::make_unique<HookedRank>(world, hook, "OddMlp",
                                           small_options_of(configuration_of(strategy)));
  for (int step = 0; step < steps; ++step) rank->train(step);
  return rank;
}

TEST(PowerSgdState, GoesOnToTheBitFromMemoryAndFromDisk) {
  const TemporaryDirectory directory;
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
      const std::string path =
          directory.path() + "/" + std::string(to_string(strategy)) + "-checkpoints";
      const auto rank_made = trained(world, strategy, 3);
      HookedRank& rank = *rank_made;
      const StateDict state = rank.engine->state_dict(StateScope::kSharded);
      save_checkpoint(*rank.engine, path);
      const auto from_memory_made = trained(world, Strategy::kDdp, 0);
      HookedRank& from_memory = *from_memory_made;
      from_memory.engine->load_state_dict(state);
      const auto from_disk_made = trained(world, Strategy::kZero1, 0);
      HookedRank& from_disk = *from_disk_made;
      EXPECT_TRUE(load_checkpoint(*from_disk.engine, path).has_value());
      for (int step = 3; step < 6; ++step) {
        for (HookedRank* each : {&rank, &from_memory, &from_disk}) each->train(step);
      }
      const Tensors expected = state_of_run(rank);
      EXPECT_TRUE(expected.contains("comm_hook.powersgd.iteration"));
      expect_same(state_of_run(from_memory), expected);
      expect_same(state_of_run(from_disk), expected);
    }
  });
}

/// Negative control: without loaded errors the run trains to other values.
TEST(PowerSgdState, ForgottenErrorsAreNoticed) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto rank_made = trained(world, Strategy::kDdp, 3);
    HookedRank& rank = *rank_made;
    const StateDict state = rank.engine->state_dict(StateScope::kEveryRank);
    const auto hook = compressing();
    const auto other_made = trained(world, Strategy::kDdp, 0, hook);
    HookedRank& other = *other_made;
    other.engine->load_state_dict(state);
    for (const CommHook::State& tensor : hook->state()) {
      if (tensor.name.ends_with(".error")) tensor.tensor.zero_();
    }
    rank.train(3);
    other.train(3);
    EXPECT_NE(parameter_hash(*rank.engine), parameter_hash(*other.engine));
  });
}

/// In other worlds every rank continues with the mean of the ranks' errors.
TEST(PowerSgdState, MovesToOtherWorldsWithTheMeanOfTheErrors) {
  StateDict state;
  Tensors errors;  // their mean before saving
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    const auto hook = compressing();
    const auto rank_made = trained(world, Strategy::kDdp, 3, hook);
    HookedRank& rank = *rank_made;
    for (const CommHook::State& tensor : hook->state()) {
      if (!tensor.name.ends_with(".error")) continue;
      const at::Tensor mean = tensor.tensor.clone();
      world->all_reduce(mean, ReduceOp::kAvg)->wait();
      EXPECT_FALSE(have_same_bits(mean, tensor.tensor)) << "each rank has errors of its own";
      if (world->rank() == 0) errors["comm_hook.powersgd." + tensor.name] = mean;
    }
    StateDict saved = rank.engine->state_dict(StateScope::kEveryRank);
    if (world->rank() == 0) state = std::move(saved);
  });
  EXPECT_EQ(errors.size(), 3U);
  for (const int size : {1, 2, 4}) {
    run_ranks(size, [&](const std::shared_ptr<ProcessGroup>& world) {
      const auto hook = compressing();
      const auto rank_made = trained(world, Strategy::kZero1, 0, hook);
      HookedRank& rank = *rank_made;
      rank.engine->load_state_dict(state);
      for (const CommHook::State& tensor : hook->state()) {
        if (!tensor.name.ends_with(".error")) continue;
        const at::Tensor& mean = errors.at("comm_hook.powersgd." + tensor.name);
        EXPECT_TRUE(at::allclose(tensor.tensor, mean, 0, 1e-6 * mean.abs().max().item<double>()));
      }
      rank.train(3);
      parameter_hash(*rank.engine);
    });
  }
}

TEST(PowerSgdState, IsRefusedByNameWhereItDoesNotFitUntilThatIsSaid) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto hook = compressing();
    const auto hooked_made = trained(world, Strategy::kDdp, 2, hook);
    HookedRank& hooked = *hooked_made;
    const StateDict with = hooked.engine->state_dict(StateScope::kEveryRank);
    const auto plain_made = trained(world, Strategy::kDdp, 1, nullptr);
    HookedRank& plain = *plain_made;
    const StateDict without = plain.engine->state_dict(StateScope::kEveryRank);

    EXPECT_THAT(message_of([&] { plain.engine->load_state_dict(with); }),
                AllOf(HasSubstr("'comm_hook.powersgd.iteration': got an entry that this run does "
                                "not have"),
                      HasSubstr("register_comm_hook()"), HasSubstr("leaves_out_comm_hook")));
    plain.engine->load_state_dict(with, {.leaves_out_comm_hook = true});
    EXPECT_EQ(plain.engine->steps(), 2);

    EXPECT_THAT(message_of([&] { hooked.engine->load_state_dict(without); }),
                HasSubstr("'comm_hook.powersgd.iteration': missing"));
    hooked.engine->load_state_dict(
        without, {.may_lack = [](std::string_view, const at::Tensor&) { return true; }});
    EXPECT_EQ(hooked.engine->steps(), 1);
    for (const CommHook::State& tensor : hook->state()) {
      EXPECT_EQ(tensor.tensor.count_nonzero().item<int64_t>(), 0) << tensor.name << " begins anew";
    }
    hooked.train(4);
    parameter_hash(*hooked.engine);
  });
}

TEST(PowerSgdState, StaysWithParametersThatStayTrained) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto hook = compressing();
    const auto rank_made = trained(world, Strategy::kDdp, 3, hook);
    HookedRank& rank = *rank_made;
    Tensors before;
    for (const CommHook::State& tensor : hook->state()) before[tensor.name] = tensor.tensor.clone();
    const std::string frozen = rank.engine->parameters()[0].name;
    rank.engine->set_trainable(
        [&](std::string_view name, const at::Tensor&) { return name != frozen; });
    size_t found = 0;
    for (const CommHook::State& tensor : hook->state()) {
      EXPECT_FALSE(tensor.name.starts_with(frozen + "."));
      EXPECT_TRUE(have_same_bits(tensor.tensor, before.at(tensor.name))) << tensor.name;
      ++found;
    }
    EXPECT_EQ(found, before.size() - 2) << "but for the frozen parameter's error and Q";
    rank.train(3);
    rank.engine->set_trainable([](std::string_view, const at::Tensor&) { return true; });
    EXPECT_EQ(hook->state().size(), before.size());
    for (const CommHook::State& tensor : hook->state()) {
      if (tensor.name == frozen + ".error") {
        EXPECT_EQ(tensor.tensor.abs().max().item<float>(), 0.0F);
      }
    }
    rank.train(4);
    parameter_hash(*rank.engine);
  });
}

}  // namespace
}  // namespace tessera::internal::testing
