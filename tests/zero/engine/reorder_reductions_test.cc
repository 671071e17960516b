#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tessera.h"
#include "tessera/tests/support/configuration.h"
#include "tessera/tests/support/rank_threads.h"

// Options::reorder_reductions under every strategy: from the second backward on units are reduced
// in the order in which the first one completed them, with the same bits.
namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAre;

/// Layers used in another order than registered.
struct ShuffledNet : torch::nn::Module {
  ShuffledNet() {
    const torch::NoGradGuard no_grad;
    for (const char* name : {"third", "first", "fourth", "second"}) {
      const auto layer = register_module(name, torch::nn::Linear(17, 17));
      layer->weight.copy_(torch::sin(torch::arange(17 * 17, torch::kFloat)).view({17, 17}) / 4);
      layer->bias.zero_();
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const char* name : {"first", "second", "third", "fourth"}) {
      x = torch::tanh(named_children()[name]->as<torch::nn::Linear>()->forward(x));
    }
    return x;
  }
};

/// The layer in a bucket: buckets have the reverse order of registration.
std::string layer_of(std::string_view unit) {
  const std::map<std::string, std::string, std::less<>> layers = {
      {"bucket 0", "second"}, {"bucket 1", "fourth"}, {"bucket 2", "first"}, {"bucket 3", "third"}};
  const auto layer = layers.find(unit);
  return layer != layers.end() ? layer->second : std::string(unit);
}

struct Reordered {
  std::vector<std::vector<std::string>> reduced;  ///< layers, per backward
  uint64_t hash = 0;
};

Reordered train_in_order(std::shared_ptr<ProcessGroup> world, const Configuration& configuration,
                         bool reorders) {
  Options options = options_of(configuration);
  options.reorder_reductions = reorders;
  options.trace = true;
  if (!configuration.splits_parameters()) options.bucket_bytes = {1024};
  const int rank = world->rank();
  const auto net = std::make_shared<ShuffledNet>();
  const auto engine = parallelize(net, torch::optim::SGDOptions(0.1), options, std::move(world));
  Reordered trained;
  size_t seen = 0;
  for (int step = 0; step < 3; ++step) {
    // Ranks are threads, which share LibTorch's generator.
    const auto elements = torch::arange(3 * 17, torch::kFloat).view({3, 17});
    net->forward(torch::sin(elements + 100 * step + 10 * rank)).square().sum().backward();
    std::vector<std::string>& layers = trained.reduced.emplace_back();
    const std::vector<Trace::Span> spans = trace_of(*engine)->spans();
    for (; seen < spans.size(); ++seen) {
      const bool is_unit = spans[seen].track == TraceTrack::kReduce;
      if (is_unit && spans[seen].name != "partial sums")
        layers.push_back(layer_of(spans[seen].name));
    }
    engine->step();
  }
  trained.hash = parameter_hash(*engine);
  return trained;
}

class ReorderReductions : public ::testing::TestWithParam<Configuration> {};

TEST_P(ReorderReductions, FollowTheFirstBackwardWithTheSameBits) {
  const Configuration& configuration = GetParam();
  run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& world) {
    const Reordered learned = train_in_order(duplicate(*world, "learned"), configuration, true);
    const Reordered fixed = train_in_order(duplicate(*world, "fixed"), configuration, false);
    EXPECT_EQ(learned.hash, fixed.hash);
    EXPECT_EQ(learned.reduced[0], fixed.reduced[0]);
    for (size_t step = 1; step < 3; ++step) {
      EXPECT_THAT(learned.reduced[step], ElementsAre("fourth", "third", "second", "first"));
      EXPECT_EQ(fixed.reduced[step], fixed.reduced[0]);
    }
    EXPECT_NE(learned.reduced[1], learned.reduced[0]) << "the control";
  });
}

INSTANTIATE_TEST_SUITE_P(, ReorderReductions, ::testing::ValuesIn(named_and_apart_configurations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::internal::testing
