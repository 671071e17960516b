// Graphs of training on a real or fake GPU: LibTorch's own autograd is captured and replayed.
// tests/core/device/graph_test.cc tests the rules of a capture.
#include "tessera/core/device/graph.h"

#include <cstring>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/tests/support/same_bits.h"

namespace tessera::internal {
namespace {

using testing::have_same_bits;

const at::Device kPlace(at::kCUDA, 0);

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU); }

at::TensorOptions options() { return at::TensorOptions(at::kFloat).device(kPlace); }

/// 0, 1, ... in fp32.
at::Tensor numbers(int64_t numel) { return at::arange(numel, options()); }

/// Embedding, layer norm, two linear layers (one used twice), and a loss.
struct Model {
  at::Tensor table = leaf({11, 6});
  at::Tensor scale = leaf({6});
  at::Tensor weight = leaf({6, 6});
  at::Tensor bias = leaf({6});

  static at::Tensor leaf(at::IntArrayRef sizes) {
    at::Tensor made = at::empty(sizes, at::TensorOptions(at::kFloat).device(kPlace));
    made.copy_(at::linspace(-1, 1, made.numel()).view(sizes));
    return made.set_requires_grad(true);
  }

  at::Tensor loss(const at::Tensor& ids) const {
    at::Tensor x = at::embedding(table, ids);
    x = at::layer_norm(x, {6}, scale, bias);
    x = at::gelu(at::addmm(bias, x, weight));
    return at::addmm(bias, x, weight).square().mean();
  }

  std::vector<at::Tensor> leaves() const { return {table, scale, weight, bias}; }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& leaf : leaves()) copies.push_back(on_host(leaf.grad()));
    return copies;
  }

  void forget_gradients() const {
    for (const at::Tensor& leaf : leaves()) leaf.mutable_grad().reset();
  }
};

at::Tensor ids_from(int64_t first) { return (at::arange(5, at::kLong) * 3 + first) % 11; }

class GraphOnGpu : public ::testing::Test {
 protected:
  void SetUp() override { CudaDevice(kPlace.index()).make_current(); }
};

TEST_F(GraphOnGpu, ReplaysOverOtherInputsHaveTheBitsOfEagerSteps) {
  const Model model;
  at::Tensor ids = at::empty({5}, options().dtype(at::kLong));
  std::vector<std::vector<at::Tensor>> eager;
  std::vector<at::Tensor> losses;
  for (const int64_t first : {0, 4, 7}) {
    ids.copy_(ids_from(first));
    model.forget_gradients();
    const at::Tensor loss = model.loss(ids);
    loss.backward();
    eager.push_back(model.gradients());
    losses.push_back(on_host(loss));
  }

  const auto graph = make_graph(kPlace);
  model.forget_gradients();
  graph->begin();
  const at::Tensor loss = model.loss(ids);
  loss.backward();
  graph->end();
  for (const size_t turn : {1, 0, 2, 1}) {  // another order than the capture's, with a repetition
    const int64_t first[] = {0, 4, 7};
    ids.copy_(ids_from(first[turn]));
    graph->replay();
    EXPECT_TRUE(have_same_bits(loss, losses[turn])) << turn;
    const auto gradients = model.gradients();
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(have_same_bits(gradients[i], eager[turn][i])) << turn << " " << i;
    }
  }
}

// Like every micro-step after the first.
TEST_F(GraphOnGpu, GradientsThatAreThereAddUpInEachReplay) {
  const Model model;
  const at::Tensor ids = ids_from(2).to(kPlace);
  const auto graph = make_graph(kPlace);
  {
    const c10::StreamGuard nodes_belong_to(graph->stream());
    model.loss(ids).backward();
  }
  for (int i = 0; i < 2; ++i) model.loss(ids).backward();
  const auto thrice = model.gradients();

  model.forget_gradients();
  model.loss(ids).backward();
  graph->begin();
  model.loss(ids).backward();
  graph->end();
  graph->replay();
  EXPECT_FALSE(have_same_bits(model.gradients()[2], thrice[2]))
      << "one of two, if the capture ran none";
  graph->replay();
  for (size_t i = 0; i < thrice.size(); ++i) {
    EXPECT_TRUE(have_same_bits(model.gradients()[i], thrice[i])) << i;
  }
}

// A capture stores addresses, not tensors.
TEST_F(GraphOnGpu, ATensorThatMovesIsNotFollowed) {
  at::Tensor input = at::ones({4}, options());
  const at::Tensor was = input.detach();
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor doubled = input * 2;
  graph->end();
  input.set_data(at::full({4}, 9, options()));
  graph->replay();
  EXPECT_TRUE(have_same_bits(doubled, at::full({4}, 2.0F)));
  at::Tensor(was).fill_(5);
  graph->replay();
  EXPECT_TRUE(have_same_bits(doubled, at::full({4}, 10.0F)));
}

TEST_F(GraphOnGpu, NodesOfParametersThatWereMadeOnItsStreamDoNot) {
  const Model model;
  const at::Tensor ids = ids_from(1).to(kPlace);
  const auto graph = make_graph(kPlace);
  at::Tensor keeps_nodes;
  {
    const c10::StreamGuard guard(graph->stream());
    keeps_nodes = model.loss(ids);
  }
  model.loss(ids).backward();  // on the default stream, between the replays
  const auto eager = model.gradients();
  model.forget_gradients();
  graph->begin();
  model.loss(ids).backward();
  graph->end();
  graph->replay();
  for (size_t i = 0; i < eager.size(); ++i) {
    EXPECT_TRUE(have_same_bits(model.gradients()[i], eager[i])) << i;
  }
}

TEST_F(GraphOnGpu, BackwardsThreadSeesTheCapture) {
  at::Tensor leaf = at::ones({2}, options()).set_requires_grad(true);
  std::thread::id caller = std::this_thread::get_id();
  std::vector<bool> seen;
  const auto step = [&] {
    const at::Tensor product = leaf * 3;
    product.register_hook([&](const at::Tensor& /*gradient*/) {
      EXPECT_NE(std::this_thread::get_id(), caller);
      seen.push_back(is_capturing());
    });
    product.sum().backward();
  };
  step();
  const auto graph = make_graph(kPlace);
  EXPECT_FALSE(is_capturing());
  graph->begin();
  EXPECT_TRUE(is_capturing());
  std::thread([] { EXPECT_FALSE(is_capturing()); }).join();
  {
    const c10::StreamGuard elsewhere(
        c10::impl::getDeviceGuardImpl(at::kCUDA)->getStreamFromGlobalPool(kPlace, false));
    EXPECT_FALSE(is_capturing());
  }
  step();
  graph->end();
  EXPECT_FALSE(is_capturing());
  graph->replay();
  EXPECT_THAT(seen, ::testing::ElementsAre(false, true));
}

TEST_F(GraphOnGpu, MemoryOfACaptureLivesAsLongAsTheGraph) {
  const at::Tensor input = numbers(1000);
  const auto graph = make_graph(kPlace);
  graph->begin();
  at::Tensor result;
  {
    const at::Tensor between = input * 2;
    result = between + 1;
  }
  graph->end();
  for (int i = 0; i < 100; ++i) at::full({1000}, i, options());
  graph->replay();
  EXPECT_TRUE(have_same_bits(result, at::arange(1000, at::kFloat) * 2 + 1));
}

TEST_F(GraphOnGpu, ResultsOutliveTheGraph) {
  const at::Tensor input = numbers(4);
  auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor result = input * 2;
  graph->end();
  graph->replay();
  graph.reset();  // the replayed work continues
  for (int i = 0; i < 10; ++i) at::full({4}, i, options());
  EXPECT_TRUE(have_same_bits(result, at::arange(4, at::kFloat) * 2));
}

TEST_F(GraphOnGpu, AGraphBesideAnotherHasItsStreamAndOutlivesIt) {
  at::Tensor sum = at::zeros({2}, options());
  auto first = make_graph(kPlace);
  first->begin();
  sum.add_(1);
  first->end();
  const auto second = make_graph_beside(*first);
  EXPECT_EQ(second->stream(), first->stream());
  second->begin();
  sum.mul_(10);
  second->end();
  first->replay();
  second->replay();
  first->replay();
  EXPECT_TRUE(have_same_bits(sum, at::full({2}, 11.0F)));
  first.reset();
  second->replay();
  const auto third = make_graph_beside(*second);
  third->begin();
  sum.sub_(1);
  third->end();
  third->replay();
  EXPECT_TRUE(have_same_bits(sum, at::full({2}, 109.0F)));
}

TEST_F(GraphOnGpu, RandomNumbersGoOnFromReplayToReplay) {
  const at::Tensor input = at::ones({64}, options());
  const at::Generator& generator = at::globalContext().defaultGenerator(kPlace);
  const auto seed = [&] { at::Generator(generator).set_current_seed(7); };
  const auto draw = [&] { return std::get<0>(at::native_dropout(input, 0.5, true)); };
  seed();
  const at::Tensor first = on_host(draw());
  const at::Tensor second = on_host(draw());
  EXPECT_FALSE(have_same_bits(first, second));

  seed();
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor drawn = draw();
  graph->end();
  graph->replay();
  EXPECT_TRUE(have_same_bits(drawn, first));
  graph->replay();
  EXPECT_TRUE(have_same_bits(drawn, second));
}

}  // namespace
}  // namespace tessera::internal
