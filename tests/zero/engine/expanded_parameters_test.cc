#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/tests/zero/engine/engine_fixture.h"

// Parameters and buffers whose elements share one place (expand()): they get memory of their own
// and train like ordinary tensors.

namespace tessera::internal::testing {
namespace {

struct Expanded : torch::nn::Module {
  Expanded(bool is_expanded, int rank) {
    const auto grown = [&](double value, at::IntArrayRef sizes) {
      const at::Tensor tensor = at::full({1}, value + rank, at::kDouble).expand(sizes);
      return is_expanded ? tensor : tensor.contiguous();
    };
    layer = register_module("layer", torch::nn::Linear(7, 5));
    layer->to(at::kDouble);
    row = register_parameter("row", grown(0.5, {5}));
    table = register_parameter("table", grown(0.25, {3, 5}));
    frozen = register_parameter("frozen", grown(2.0, {5}), /*requires_grad=*/false);
    shift = register_buffer("shift", grown(1.0, {5}));
    const at::NoGradGuard no_grad;
    layer->weight.fill_(0.1);
    layer->bias.fill_(0.2);
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor weights = torch::arange(15, at::kDouble).view({3, 5});
    return (torch::tanh(layer(input)) * row * frozen + shift).sum() + (table * weights).sum();
  }

  torch::nn::Linear layer{nullptr};
  at::Tensor row, table, frozen, shift;
};

std::vector<at::Tensor> values_of(Engine& engine) {
  const StateDict state = engine.state_dict(StateScope::kEveryRank);
  std::vector<at::Tensor> values;
  for (const auto& [name, entry] : state.entries) values.push_back(entry.tensor());
  return values;
}

std::vector<at::Tensor> train(bool is_expanded, const Configuration& configuration,
                              const std::shared_ptr<ProcessGroup>& world) {
  const auto model = std::make_shared<Expanded>(is_expanded, world->rank());
  const auto engine = parallelize(model, adamw(), small_options_of(configuration), world);
  EXPECT_TRUE(at::equal(model->shift, at::full({5}, 1.0, at::kDouble))) << "rank 0's";
  for (int step = 0; step < 3; ++step) {
    model->forward(at::full({2, 7}, 0.1 * (1 + step + world->rank()), at::kDouble)).backward();
    EXPECT_TRUE(engine->step().committed);
  }
  engine->modify_parameters(world->size() - 1, [&] {
    model->row[1].fill_(3.0);
    model->frozen[2].fill_(4.0);
    EXPECT_EQ(model->frozen.sum().item<double>(), 4 * 2.0 + 4.0) << "each has a place of its own";
  });
  const StateDict state = engine->state_dict(StateScope::kEveryRank);
  engine->load_state_dict(state);
  return values_of(*engine);
}

using ExpandedParameters = EngineTest;
INSTANTIATE_TEST_SUITE_P(, ExpandedParameters, configurations_and_worlds(), name_of);

TEST_P(ExpandedParameters, TrainLikeContiguousOnes) {
  std::vector<int> sizes = {size()};
  if (size() == 3) sizes.push_back(2);
  for (const int world_size : sizes) {
    SCOPED_TRACE(world_size);
    run_ranks(world_size, [this](std::shared_ptr<ProcessGroup> world) {
      const std::vector<at::Tensor> expanded = train(true, configuration(), world);
      const std::vector<at::Tensor> contiguous = train(false, configuration(), world);
      ASSERT_EQ(expanded.size(), contiguous.size());
      for (size_t i = 0; i < expanded.size(); ++i) {
        EXPECT_TRUE(at::equal(expanded[i], contiguous[i])) << i;
      }
    });
  }
}

}  // namespace
}  // namespace tessera::internal::testing
