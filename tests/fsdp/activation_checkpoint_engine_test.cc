#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "tessera/activation_checkpoint.h"
#include "tessera/parallelize.h"
#include "tessera/rendezvous.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/rank_threads.h"

// Checkpointed models have the bits of plain ones under every strategy.

namespace tessera::internal::testing {
namespace {

using at::Tensor;

const std::vector<Strategy> kStrategies = {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2,
                                           Strategy::kZero3};

enum class Mode : uint8_t {
  kPlain,
  kCheckpointed,
  kForgetful,  ///< does not restore the random state
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double dropout_rate)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})))),
        attention(register_module("attention", torch::nn::MultiheadAttention(12, 3))),
        in(register_module("in", torch::nn::Linear(12, 19))),
        out(register_module("out", torch::nn::Linear(19, 12))),
        dropout(dropout_rate) {}

  Tensor forward(const Tensor& x) {
    const Tensor normed = norm(x);
    const Tensor attended = std::get<0>(attention(normed, normed, normed));
    return x + at::dropout(out(at::gelu(in(attended))), dropout, is_training());
  }

  torch::nn::LayerNorm norm;
  torch::nn::MultiheadAttention attention;
  torch::nn::Linear in, out;
  double dropout;
};
TORCH_MODULE(Block);

/// A small language model: token ids, blocks (two of them nested), logits.
struct Net : torch::nn::Module {
  Net(Mode run_mode, double dropout) : mode(run_mode) {
    table = register_module("table", torch::nn::Embedding(11, 12));
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(dropout)));
    }
    last = register_module("last", torch::nn::Linear(12, 11));
  }

  template <typename Fn>
  Tensor run(Fn fn, const Tensor& x) const {
    if (mode == Mode::kPlain) return fn(x);
    return checkpoint({.preserve_random_state = mode == Mode::kCheckpointed}, fn, x);
  }

  Tensor forward(const Tensor& tokens) {
    // The first block needs gradients for its parameters, not for the token ids.
    Tensor x = run([this](const Tensor& ids) { return blocks[0](table(ids)); }, tokens);
    x = run(blocks[1], x);
    x = run([this](const Tensor& in) { return run(blocks[3], run(blocks[2], in)); }, x);
    return last(x);
  }

  Mode mode;
  torch::nn::Embedding table = nullptr;
  std::vector<Block> blocks;
  torch::nn::Linear last = nullptr;
};

/// An autocast region on the CPU, if wanted.
class Autocast {
 public:
  explicit Autocast(bool is_wanted) : is_wanted_(is_wanted) {
    at::autocast::set_autocast_enabled(at::kCPU, is_wanted_);
    if (is_wanted_) at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (is_wanted_ && at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }

 private:
  bool is_wanted_;
};

enum class Compute : uint8_t { kFloat, kBFloat16 };

/// Trains for three steps of two micro-steps and returns the hash of the parameters.
uint64_t train(Mode mode, Strategy strategy, Compute compute, double dropout,
               const std::shared_ptr<ProcessGroup>& world) {
  const auto net = std::make_shared<Net>(mode, dropout);
  {
    const at::NoGradGuard no_grad;
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(17);
    for (Tensor& parameter : net->parameters()) parameter.normal_(0.0, 0.3, generator);
  }
  const auto engine =
      parallelize(net, torch::optim::AdamWOptions(0.02), {.strategy = strategy}, world);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(100 + world->rank());
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const Tensor tokens = at::randint(0, 11, {5, 4}, generator, at::kLong);
      Tensor loss;
      {
        const Autocast autocast(compute == Compute::kBFloat16);
        const Tensor logits = net->forward(tokens).to(at::kFloat).view({-1, 11});
        loss = at::cross_entropy_loss(logits, tokens.roll(1, 0).view(-1)) / 2;
      }
      loss.backward();
    }
    engine->step();
  }
  return parameter_hash(*engine);
}

using ComputeCase = std::tuple<Strategy, int, Compute>;
class ActivationCheckpointEngine : public ::testing::TestWithParam<ComputeCase> {};

std::string compute_name(const ::testing::TestParamInfo<ComputeCase>& info) {
  const auto& [strategy, size, compute] = info.param;
  return std::string(to_string(strategy)) + "_World" + std::to_string(size) +
         (compute == Compute::kFloat ? "_Float" : "_BFloat16");
}

TEST_P(ActivationCheckpointEngine, TrainsToTheBitsOfThePlainModel) {
  const auto [strategy, size, compute] = GetParam();
  const auto hash = [&](Mode mode, Compute in) {
    std::vector<uint64_t> hashes(static_cast<size_t>(size));
    run_ranks(size, [&, by = strategy](const std::shared_ptr<ProcessGroup>& world) {
      hashes[static_cast<size_t>(world->rank())] = train(mode, by, in, 0.0, world);
    });
    return hashes;
  };
  const std::vector<uint64_t> expected = hash(Mode::kPlain, compute);
  EXPECT_EQ(hash(Mode::kCheckpointed, compute), expected);
  // The negative control: a forward in the other dtype gives another hash.
  const Compute other = compute == Compute::kFloat ? Compute::kBFloat16 : Compute::kFloat;
  EXPECT_NE(hash(Mode::kCheckpointed, other), expected);
}

INSTANTIATE_TEST_SUITE_P(, ActivationCheckpointEngine,
                         ::testing::Combine(::testing::ValuesIn(kStrategies),
                                            ::testing::Values(1, 3),
                                            ::testing::Values(Compute::kFloat, Compute::kBFloat16)),
                         compute_name);

// These models draw random numbers; ranks that are threads would share the generator.

constexpr const char* kStrategyVariable = "TESSERA_TEST_STRATEGY";

const RankProcessBody kDropout("checkpointed_dropout", [] {
  const auto world = init_process_group();
  at::set_num_threads(1);
  const Strategy strategy = kStrategies.at(std::stoul(std::getenv(kStrategyVariable)));
  for (const Mode mode : {Mode::kPlain, Mode::kCheckpointed, Mode::kForgetful}) {
    torch::manual_seed(static_cast<uint64_t>(100 + world->rank()));
    const uint64_t hash = train(mode, strategy, Compute::kBFloat16, 0.3, world);
    std::cout << "result " << std::hex << hash << "\n";
  }
});

class ActivationCheckpointProcesses : public ::testing::TestWithParam<size_t> {};

TEST_P(ActivationCheckpointProcesses, DropWhatThePlainModelDrops) {
  RankProcessOptions options;
  options.environment[kStrategyVariable] = std::to_string(GetParam());
  for (const RankResult& rank : run_rank_processes(3, "checkpointed_dropout", options)) {
    ASSERT_EQ(rank.exit_code, 0) << rank.output;
    std::istringstream output(rank.output);
    std::vector<std::string> hashes;
    for (std::string line; std::getline(output, line);) {
      if (line.rfind("result ", 0) == 0) hashes.push_back(line);
    }
    ASSERT_EQ(hashes.size(), 3u) << rank.output;
    EXPECT_EQ(hashes[1], hashes[0]);
    EXPECT_NE(hashes[2], hashes[0]) << "the negative control must differ";
  }
}

INSTANTIATE_TEST_SUITE_P(, ActivationCheckpointProcesses,
                         ::testing::Range(size_t{0}, kStrategies.size()), [](const auto& info) {
                           return std::string(to_string(kStrategies.at(info.param)));
                         });

}  // namespace
}  // namespace tessera::internal::testing
