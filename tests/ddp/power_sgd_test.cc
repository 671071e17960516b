#include "tessera/power_sgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include "tessera/memory_formula.h"
#include "tessera/tests/ddp/hooked_rank.h"
#include "tessera/tests/ddp/plain_power_sgd.h"
#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/given_gradients.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/recording_group.h"
#include "tessera/tests/support/same_bits.h"

// PowerSGD compared with a reference that has all ranks' gradients; its bits, traffic and memory.
// Its state is tested in power_sgd_state_test.cc, its refusals in power_sgd_refusals_test.cc.

namespace tessera::internal::testing {
namespace {

/// Compresses from the first backward on, wherever it pays.
PowerSgdOptions at_once(int64_t rank = 1) {
  return {
      .matrix_approximation_rank = rank, .start_power_sgd_iter = 0, .min_compression_rate = 1.0};
}

/// Every rank's `own`, by rank.
std::vector<at::Tensor> gathered(ProcessGroup& group, const at::Tensor& own) {
  const at::Tensor all = at::empty({group.size() * own.numel()}, own.options());
  group.all_gather(all, own.contiguous().view({-1}))->wait();
  std::vector<at::Tensor> by_rank;
  for (const at::Tensor& part : all.view({group.size(), -1}).unbind()) {
    by_rank.push_back(part.view(own.sizes()));
  }
  return by_rank;
}

std::map<std::string, at::Tensor> state_of(CommHook& hook) {
  std::map<std::string, at::Tensor> tensors;
  for (const CommHook::State& state : hook.state()) tensors[state.name] = state.tensor;
  return tensors;
}

/// Gives the hook known Qs, and makes references that begin with them.
std::map<std::string, PlainPowerSgd> references_of(CommHook& hook, int size, bool feeds_back) {
  std::map<std::string, PlainPowerSgd> references;
  uint64_t seed = 1;
  for (const CommHook::State& state : hook.state()) {
    if (!state.name.ends_with(".q")) continue;
    state.tensor.copy_(at::randn(state.tensor.sizes(),
                                 at::make_generator<at::CPUGeneratorImpl>(seed++), at::kDouble));
    references.emplace(state.parameter, PlainPowerSgd(state.tensor.t().clone(), size, feeds_back));
  }
  return references;
}

/// The largest difference of an element, relative to the largest element.
double difference(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

struct Case {
  int size;
  int64_t rank;
  bool feeds_back;
};
class PowerSgdSteps : public ::testing::TestWithParam<Case> {};

/// fp64; QR and Gram-Schmidt round differently.
constexpr double kTolerance = 1e-10;

/// The largest difference from the reference, of gradients and errors, over several steps.
double largest_difference(const Case& run, const std::string& model, bool reference_feeds_back) {
  double largest = 0.0;
  run_ranks(run.size, [&](const std::shared_ptr<ProcessGroup>& world) {
    PowerSgdOptions options = at_once(run.rank);
    options.use_error_feedback = run.feeds_back;
    const auto hook = power_sgd_hook(options);
    HookedRank rank(world, hook, model, HookedRank::small_ddp(), at::kDouble);
    std::map<std::string, PlainPowerSgd> references =
        references_of(*hook, world->size(), reference_feeds_back);
    EXPECT_GE(references.size(), 1U) << model;
    double own = 0.0;
    const auto see = [&own](double value) {
      own = std::isnan(own) || value <= own ? own : value;
    };  // NaN stays
    for (int step = 0; step < 4; ++step) {
      std::map<std::string, at::Tensor> expected;
      for (const NamedTensor& gradient : gradients_of(*rank.engine, rank.loss(step))) {
        const std::vector<at::Tensor> all = gathered(*world, gradient.tensor);
        const auto reference = references.find(gradient.name);
        if (reference == references.end()) {
          expected[gradient.name] = at::stack(all).mean(0);
          continue;
        }
        std::vector<at::Tensor> matrices;
        matrices.reserve(all.size());
        for (const at::Tensor& each : all) matrices.push_back(each.flatten(1));
        expected[gradient.name] = reference->second.mean(matrices).view(gradient.tensor.sizes());
      }
      rank.backward(step);
      for (const Parameter& parameter : rank.engine->parameters()) {
        see(difference(parameter.tensor.grad(), expected.at(parameter.name)));
      }
      const auto state = state_of(*hook);
      for (const auto& [name, reference] : references) {
        if (!run.feeds_back) continue;
        const at::Tensor& error = reference.errors()[static_cast<size_t>(world->rank())];
        see(difference(state.at(name + ".error").flatten(1), error));
      }
      rank.engine->step();
      parameter_hash(*rank.engine);  // throws where ranks differ in a bit
    }
    if (world->rank() == world->size() - 1) largest = own;
  });
  return largest;
}

TEST_P(PowerSgdSteps, FollowTheReferenceOnAllRanksGradients) {
  for (const char* model : {"OddMlp", "DeepMlp", "Conv"}) {
    EXPECT_LT(largest_difference(GetParam(), model, GetParam().feeds_back), kTolerance) << model;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, PowerSgdSteps,
                         ::testing::Values(Case{1, 1, true}, Case{2, 2, true}, Case{3, 1, true},
                                           Case{3, 3, true}, Case{3, 2, false}, Case{4, 2, true}),
                         [](const auto& info) {
                           return absl::StrCat("World", info.param.size, "_rank", info.param.rank,
                                               info.param.feeds_back ? "" : "_plain");
                         });

/// Negative control: without the earlier steps' errors the gradient differs.
TEST(PowerSgdNegativeControl, ForgettingErrorsIsNoticed) {
  EXPECT_GT(largest_difference({3, 1, true}, "OddMlp", /*reference_feeds_back=*/false), 1e-3);
}

/// The sum of what was sent and the remaining errors equals the gradients.
TEST(PowerSgd, OwesExactlyWhatItHasNotSent) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    Options options = HookedRank::small_ddp();
    // Errors are then still proportional to the ranks' gradients.
    options.gradient_divide_factor = 2.0;
    for (const bool warm_start : {true, false}) {
      PowerSgdOptions powersgd = at_once();
      powersgd.warm_start = warm_start;
      const auto hook = power_sgd_hook(powersgd);
      HookedRank rank(world, hook, "OddMlp", options, at::kDouble);
      std::map<std::string, at::Tensor> due;
      for (int step = 0; step < 3; ++step) {
        for (const NamedTensor& gradient : gradients_of(*rank.engine, rank.loss(step))) {
          const at::Tensor sum = at::stack(gathered(*world, gradient.tensor)).sum(0) / 2;
          at::Tensor& total = due[gradient.name];
          total = total.defined() ? total + sum : sum;
        }
        rank.backward(step);
        for (const Parameter& parameter : rank.engine->parameters()) {
          due.at(parameter.name) = due.at(parameter.name) - parameter.tensor.grad();
        }
        rank.engine->step();
      }
      size_t compressed = 0;
      for (const auto& [name, error] : state_of(*hook)) {
        if (!name.ends_with(".error")) continue;
        const at::Tensor owed = at::stack(gathered(*world, error)).sum(0) / 2;
        EXPECT_LT(difference(owed, due.at(name.substr(0, name.size() - 6))), kTolerance) << name;
        ++compressed;
      }
      EXPECT_GE(compressed, 2U);
    }
  });
}

TEST(PowerSgd, HasTheBitsOfTheEngineUntilItStartsAndForWhatItDoesNotCompress) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    PowerSgdOptions options = at_once();
    options.start_power_sgd_iter = 2;
    HookedRank plain(world, nullptr);
    HookedRank hooked(world, power_sgd_hook(options));
    for (int step = 0; step < 3; ++step) {
      plain.backward(step);
      hooked.backward(step);
      int64_t others = 0;
      for (size_t i = 0; i < plain.engine->parameters().size(); ++i) {
        const Parameter& parameter = plain.engine->parameters()[i];
        const bool is_same =
            have_same_bits(parameter.tensor.grad(), hooked.engine->parameters()[i].tensor.grad());
        EXPECT_EQ(is_same, step < 2 || parameter.tensor.dim() < 2) << parameter.name << " " << step;
        others += is_same ? 0 : 1;
      }
      EXPECT_EQ(others, step < 2 ? 0 : 3);
      plain.engine->step();
      hooked.engine->step();
    }
  });
}

/// Every backward that reduces counts, whatever the number of steps.
TEST(PowerSgd, TrainsToTheSameBitsUnderEveryConfigurationThatItRunsUnder) {
  for (const int size : {1, 2, 3, 4}) {
    for (const char* model : {"OddMlp", "ChannelsLast", "Branches", "TiedMlp", "MixedDtypes"}) {
      const auto train_under = [&](const Configuration& configuration) {
        return train_on_threads(subject(model), at::kFloat, configuration,
                                schedule_called("ThriceClipped"), size,
                                {.backward = hooked([] { return power_sgd_hook(at_once()); })});
      };
      const Outcome ddp = train_under(configuration_of(Strategy::kDdp));
      EXPECT_EQ(bit_differences(train_under(configuration_of(Strategy::kZero1)), ddp), "")
          << model << " " << size;
      EXPECT_NE(bit_differences(ddp, expected_outcome(subject(model), at::kFloat,
                                                      configuration_of(Strategy::kDdp),
                                                      schedule_called("ThriceClipped"), size)),
                "")
          << model << " " << size << " was not compressed";
      if (size != 4) continue;
      EXPECT_EQ(bit_differences(train_under(hybrid(1, 1, 2)), ddp), "") << model;
    }
  }
}

TEST(PowerSgd, HasTheSameBitsWhereCommunicationRunsInAThread) {
  std::vector<uint64_t> hashes;
  using Lane = ProcessGroupOptions::Lane;
  for (const Lane lane : {Lane::kInline, Lane::kThread}) {
    run_ranks(3,
              [&](const std::shared_ptr<ProcessGroup>& world) {
                HookedRank rank(world, power_sgd_hook(at_once(2)), "DeepMlp");
                for (int step = 0; step < 3; ++step) rank.train(step);
                const uint64_t hash = parameter_hash(*rank.engine);
                if (world->rank() == 0) hashes.push_back(hash);
              },
              {.lane = lane});
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

/// The matrices of two blocks of a GPT of width 64, with its defaults.
struct TwoBlocks : torch::nn::Module {
  TwoBlocks() {
    for (int block = 0; block < 2; ++block) {
      for (const auto& [in, out] :
           {std::pair(64, 192), std::pair(64, 64), std::pair(64, 256), std::pair(256, 64)}) {
        layers.push_back(
            register_module(absl::StrCat("layer", layers.size()), torch::nn::Linear(in, out)));
      }
    }
  }
  at::Tensor loss(int rank) {
    at::Tensor sum = at::zeros({});
    for (auto& layer : layers) {
      const int64_t in = layer->options.in_features();
      sum = sum + layer(at::arange(2 * in, at::kFloat).view({2, in}).sin() + rank).square().mean();
    }
    return sum;
  }
  std::vector<torch::nn::Linear> layers;
};

TEST(PowerSgd, SendsLessThanAQuarterAndNoMoreThanItsFormula) {
  const auto sent = [](const std::shared_ptr<CommHook>& hook,
                       const std::shared_ptr<ProcessGroup>& world) {
    const auto recording = std::make_shared<Recording>();
    auto model = std::make_shared<TwoBlocks>();
    const auto engine =
        parallelize(model, torch::optim::AdamWOptions(0.01), {.strategy = Strategy::kDdp},
                    std::make_shared<RecordingGroup>(world, recording));
    if (hook != nullptr) engine->register_comm_hook(hook);
    recording->clear();
    model->loss(world->rank()).backward();
    return recording->sent_bytes("all_reduce");
  };
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
    const double plain = sent(nullptr, world);
    const double compressed = sent(power_sgd_hook({.start_power_sgd_iter = 0}), world);
    EXPECT_LE(compressed, plain / 4);
    // Per block: (n + m) for each matrix, and the biases; 2 (N-1)/N of it in fp32.
    const double numel = 2 * ((64 + 192) + (64 + 64) + 2 * (64 + 256) + (192 + 64 + 256 + 64));
    EXPECT_NEAR(compressed, numel * 4 * 2 * 2 / 3, 1e-6);
    EXPECT_EQ(sent(power_sgd_hook(), world), plain) << "the first 1000 backwards are sent whole";
    EXPECT_GT(
        sent(power_sgd_hook({.matrix_approximation_rank = 16, .start_power_sgd_iter = 0}), world),
        plain / 4)
        << "the negative control";
  });
}

TEST(PowerSgd, IsInTheMemoryFormula) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    const auto gradients = [](const HookedRank& rank) {
      const int64_t bytes = rank.engine->memory().now()[MemoryClass::kGradients];
      EXPECT_EQ(predicted_memory(*rank.engine, 1)[MemoryClass::kGradients], bytes);
      return bytes;
    };
    const HookedRank plain(world, nullptr);
    const HookedRank hooked(world, power_sgd_hook(at_once()));
    // The errors and Qs of weights; in addition the bias and the largest bucket's P and Q.
    EXPECT_GT(gradients(hooked) - gradients(plain), (7 * 13 + 13 * 13 + 13 * 5) * 4);
    hooked.train(0);
    gradients(hooked);
    hooked.engine->set_trainable(
        [](std::string_view name, const at::Tensor&) { return name.find("bias") != name.npos; });
    EXPECT_LT(gradients(hooked), gradients(plain));
  });
}

/// A gradient of zeros has no directions; later ones must not use a Q of zeros.
TEST(PowerSgd, BeginsAnewWhereAGradientWasZero) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& world) {
    HookedRank rank(world, power_sgd_hook(at_once(2)), "OddMlp", HookedRank::small_ddp(),
                    at::kDouble);
    const auto largest = [&] {
      double value = 0.0;
      for (const Parameter& parameter : rank.engine->parameters()) {
        if (parameter.tensor.dim() < 2) continue;
        value = std::max(value, parameter.tensor.grad().abs().max().item<double>());
      }
      return value;
    };
    for (int step = 0; step < 2; ++step) {
      (rank.loss(step) * 0).backward();
      EXPECT_EQ(largest(), 0.0);
      rank.engine->step();
    }
    rank.backward(2);
    EXPECT_GT(largest(), 0.0);
    EXPECT_TRUE(std::isfinite(largest()));
  });
}

TEST(PowerSgd, KeepsItsStateWhereAGradientIsNotFinite) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
      Options options = small_options_of(configuration_of(strategy));
      options.on_non_finite = NonFinite::kSkip;
      const auto hook = power_sgd_hook(at_once());
      HookedRank rank(world, hook, "OddMlp", options);
      rank.train(0);
      std::map<std::string, at::Tensor> before;
      for (const auto& [name, tensor] : state_of(*hook)) before[name] = tensor.clone();
      (rank.loss(1) * (world->rank() == 1 ? INFINITY : 1.0)).backward();
      EXPECT_FALSE(rank.engine->step().committed);
      for (const auto& [name, tensor] : state_of(*hook)) {
        if (name == "iteration") continue;
        EXPECT_TRUE(have_same_bits(tensor, before.at(name))) << name;
      }
      EXPECT_TRUE(rank.train(2).committed);
      parameter_hash(*rank.engine);
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing
