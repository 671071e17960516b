// Graphs over the fake libtorch_cuda.so: LibTorch's own autograd, guards and operators, captured by
// CUDA's rules. What holds for every backend is checked here; that LibTorch's real class behaves so
// needs a GPU.
#include "tessera/core/device/graph.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/core/device/cuda_library.h"
#include "tessera/core/device/host_device.h"
#include "tessera/core/error_text.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr c10::DeviceIndex kIndex = 1;
const at::Device kPlace(at::kCUDA, kIndex);

/// The message of what `call` throws; "none" if it does not.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "none";
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU); }

bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = on_host(one).contiguous();
  const at::Tensor b = on_host(other).contiguous();
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

c10::Stream current_stream() { return c10::impl::getDeviceGuardImpl(at::kCUDA)->getStream(kPlace); }

c10::Stream other_stream() {
  return c10::impl::getDeviceGuardImpl(at::kCUDA)->getStreamFromGlobalPool(kPlace, false);
}

/// A stream that does nothing until it is opened.
class Gate {
 public:
  explicit Gate(const c10::Stream& stream) {
    const auto* handle = static_cast<HostStreamHandle*>(stream.native_handle());
    handle->enqueue(
        handle->stream,
        [](void* opened) {
          const std::unique_ptr<std::shared_future<void>> wait(
              static_cast<std::shared_future<void>*>(opened));
          wait->wait();
        },
        new std::shared_future<void>(opened_.get_future()));
  }
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

class GraphTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto library = load_cuda_library([](const char* name) {
      return std::string(name) == "TESSERA_CUDA_LIBRARIES" ? std::optional<std::string>(FAKE_CUDA)
                                                           : std::nullopt;
    });
    ASSERT_TRUE(library.ok()) << library.status();
    ::setenv("TESSERA_CUDA_GRAPH_MODULE", FAKE_CUDA_GRAPH, /*overwrite=*/1);
  }

  void SetUp() override { device_.make_current(); }

  static at::TensorOptions options() { return at::TensorOptions(at::kFloat).device(kPlace); }

  /// 0, 1, ... in fp32.
  static at::Tensor numbers(int64_t numel) { return at::arange(numel, options()); }

  CudaDevice device_{kIndex};
};

/// Look-up, a layer norm, two layers of which one is used twice, a loss.
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

TEST_F(GraphTest, ReplaysOverOtherInputsHaveTheBitsOfEagerSteps) {
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
  for (const size_t turn : {1, 0, 2, 1}) {  // an order and a repetition of its own
    const int64_t first[] = {0, 4, 7};
    ids.copy_(ids_from(first[turn]));
    graph->replay();
    EXPECT_TRUE(same_bits(loss, losses[turn])) << turn;
    const auto gradients = model.gradients();
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(same_bits(gradients[i], eager[turn][i])) << turn << " " << i;
    }
  }
}

// What a micro-step after the first one does.
TEST_F(GraphTest, GradientsThatAreThereAddUpInEachReplay) {
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
  EXPECT_FALSE(same_bits(model.gradients()[2], thrice[2])) << "one of two, if the capture ran none";
  graph->replay();
  for (size_t i = 0; i < thrice.size(); ++i) {
    EXPECT_TRUE(same_bits(model.gradients()[i], thrice[i])) << i;
  }
}

TEST_F(GraphTest, NothingRunsInACapture) {
  at::Tensor sum = at::zeros({3}, options());
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor fresh = sum + 5;
  const at::Tensor filled = at::full({3}, 7, options());
  sum.add_(1);
  sum.copy_(sum * 2);
  graph->end();
  EXPECT_TRUE(same_bits(sum, at::zeros({3})));
  EXPECT_TRUE(on_host(fresh).isnan().all().item<bool>());
  EXPECT_TRUE(on_host(filled).isnan().all().item<bool>());
  graph->replay();
  EXPECT_TRUE(same_bits(sum, at::full({3}, 2.0F)));
  EXPECT_TRUE(same_bits(fresh, at::full({3}, 5.0F)));
  EXPECT_TRUE(same_bits(filled, at::full({3}, 7.0F)));
  graph->replay();
  EXPECT_TRUE(same_bits(sum, at::full({3}, 6.0F)));
  EXPECT_TRUE(same_bits(fresh, at::full({3}, 7.0F)));
}

// Addresses are captured, not tensors.
TEST_F(GraphTest, ATensorThatMovesIsNotFollowed) {
  at::Tensor input = at::ones({4}, options());
  const at::Tensor was = input.detach();
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor doubled = input * 2;
  graph->end();
  input.set_data(at::full({4}, 9, options()));
  graph->replay();
  EXPECT_TRUE(same_bits(doubled, at::full({4}, 2.0F)));
  at::Tensor(was).fill_(5);
  graph->replay();
  EXPECT_TRUE(same_bits(doubled, at::full({4}, 10.0F)));
}

TEST_F(GraphTest, WhatWaitsOnTheHostIsRefusedAndTheCaptureFails) {
  const at::Tensor one = at::ones({1}, options());
  const std::vector<std::pair<const char*, std::function<void(const at::Tensor&)>>> calls = {
      {"item", [](const at::Tensor& t) { t.item<float>(); }},
      {"copy to the host", [](const at::Tensor& t) { t.to(at::kCPU); }},
      {"copy from the host", [](const at::Tensor&) { at::ones({2}).to(kPlace); }},
      {"shapes from data", [](const at::Tensor& t) { t.nonzero(); }},
      {"stream", [](const at::Tensor&) { current_stream().synchronize(); }},
      {"stream query", [](const at::Tensor&) { current_stream().query(); }},
      {"device",
       [](const at::Tensor&) {
         c10::impl::getDeviceGuardImpl(at::kCUDA)->synchronizeDevice(kIndex);
       }},
  };
  for (const auto& [name, call] : calls) {
    const c10::Stream caller = current_stream();
    const auto graph = make_graph(kPlace);
    graph->begin();
    const at::Tensor two = one * 2;
    EXPECT_THAT(error_of([&] { call(two); }),
                HasSubstr("operation not permitted when stream is capturing"))
        << name;
    EXPECT_THAT(
        error_of([&] { graph->end(); }),
        AllOf(HasSubstr("[graph] end: got 'CUDA error: operation not permitted when stream "
                        "is capturing', expected code that can be captured"),
              HasSubstr("take what reads tensors on the host"), HasSubstr("train without graphs")))
        << name;
    EXPECT_EQ(current_stream(), caller) << name;
    EXPECT_FALSE(is_capturing()) << name;
    EXPECT_THAT(error_of([&] { graph->replay(); }),
                HasSubstr("[graph] replay: got a graph without a capture that ended well"))
        << name;
    EXPECT_EQ((one * 3).item<float>(), 3.0F) << "the stream works again after " << name;
  }
}

TEST_F(GraphTest, TheHostMayNotAskForAnEventOfACapture) {
  for (const bool waits : {false, true}) {
    const auto graph = make_graph(kPlace);
    const auto event = device_.make_event();
    graph->begin();
    device_.current_stream()->record(*event);
    EXPECT_THAT(error_of([&] { waits ? event->synchronize() : void(event->is_done()); }),
                HasSubstr("an event last recorded in a capturing stream"));
    EXPECT_THAT(error_of([&] { graph->end(); }), HasSubstr("last recorded in a capturing stream"));
    device_.current_stream()->record(*event);
    event->synchronize();
  }
}

// As the thread does that watches collectives.
TEST_F(GraphTest, AnotherThreadMayAskForOtherEventsMeanwhile) {
  const auto lane = device_.make_stream(Device::Priority::kHigh);
  const auto event = device_.make_event();
  const auto graph = make_graph(kPlace);
  graph->begin();
  std::thread([&] {
    lane->record(*event);
    event->synchronize();
    EXPECT_TRUE(event->is_done());
  }).join();
  graph->end();
}

TEST_F(GraphTest, BeginIsBehindTheCallersStreamAndTheCallerBehindEnd) {
  const c10::Stream caller = other_stream();
  const c10::StreamGuard guard(caller);
  {
    const auto graph = make_graph(kPlace);
    Gate gate(caller);
    graph->begin();
    EXPECT_EQ(current_stream(), graph->stream());
    graph->end();
    EXPECT_EQ(current_stream(), caller);
    EXPECT_FALSE(graph->stream().query());
    gate.open();
    graph->stream().synchronize();
  }
  {
    const auto graph = make_graph(kPlace);
    Gate gate(graph->stream());
    graph->begin();
    graph->end();
    EXPECT_FALSE(caller.query());
    gate.open();
    caller.synchronize();
  }
}

TEST_F(GraphTest, AReplayIsQueuedOnTheCurrentStream) {
  at::Tensor sum = at::zeros({3}, options());
  const auto graph = make_graph(kPlace);
  graph->begin();
  sum.add_(1);
  graph->end();
  const c10::Stream stream = other_stream();
  {
    const c10::StreamGuard guard(stream);
    Gate gate(stream);
    graph->replay();  // returns, though nothing has run
    EXPECT_FALSE(stream.query());
    gate.open();
    stream.synchronize();
  }
  EXPECT_TRUE(same_bits(sum, at::ones({3})));
}

TEST_F(GraphTest, StreamsThatComeBackAreCapturedToo) {
  const at::Tensor input = numbers(6);
  at::Tensor there = at::zeros({6}, options());
  const auto side = device_.make_stream(Device::Priority::kHigh);
  const auto forth = device_.make_event();
  const auto back = device_.make_event();
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor doubled = input * 2;
  device_.current_stream()->record(*forth);
  side->wait(*forth);
  side->copy(there, doubled);
  side->record(*back);
  device_.current_stream()->wait(*back);
  const at::Tensor result = there + 1;
  graph->end();
  EXPECT_TRUE(same_bits(there, at::zeros({6})));
  graph->replay();
  EXPECT_TRUE(same_bits(result, at::arange(6, at::kFloat) * 2 + 1));
}

TEST_F(GraphTest, AStreamThatDoesNotComeBackIsRefused) {
  at::Tensor there = at::zeros({6}, options());
  const at::Tensor input = numbers(6);
  const auto side = device_.make_stream(Device::Priority::kUsual);
  const auto forth = device_.make_event();
  const auto graph = make_graph(kPlace);
  graph->begin();
  device_.current_stream()->record(*forth);
  side->wait(*forth);
  side->copy(there, input);
  EXPECT_THAT(error_of([&] { graph->end(); }), HasSubstr("capturing stream has unjoined work"));
}

TEST_F(GraphTest, WorkFromBeforeCannotBeWaitedForInside) {
  const auto lane = device_.make_stream(Device::Priority::kHigh);
  const auto event = device_.make_event();
  lane->record(*event);
  const auto graph = make_graph(kPlace);
  graph->begin();
  EXPECT_THAT(error_of([&] { device_.current_stream()->wait(*event); }),
              HasSubstr("dependency created on uncaptured work in another stream"));
  EXPECT_THAT(error_of([&] { graph->end(); }), HasSubstr("uncaptured work"));
}

// Note [Backward in a capture].
TEST_F(GraphTest, NodesOfParametersThatWereMadeOnTheDefaultStreamBreakBackward) {
  const Model model;
  const at::Tensor ids = ids_from(1).to(kPlace);
  const at::Tensor keeps_nodes = model.loss(ids);
  const auto graph = make_graph(kPlace);
  graph->begin();
  EXPECT_THAT(error_of([&] { model.loss(ids).backward(); }), HasSubstr("legacy stream"));
  EXPECT_THAT(error_of([&] { graph->end(); }), HasSubstr("legacy stream"));
}

TEST_F(GraphTest, NodesOfParametersThatWereMadeOnItsStreamDoNot) {
  const Model model;
  const at::Tensor ids = ids_from(1).to(kPlace);
  const auto graph = make_graph(kPlace);
  at::Tensor keeps_nodes;
  {
    const c10::StreamGuard guard(graph->stream());
    keeps_nodes = model.loss(ids);
  }
  model.loss(ids).backward();  // on the default stream, between them
  const auto eager = model.gradients();
  model.forget_gradients();
  graph->begin();
  model.loss(ids).backward();
  graph->end();
  graph->replay();
  for (size_t i = 0; i < eager.size(); ++i) {
    EXPECT_TRUE(same_bits(model.gradients()[i], eager[i])) << i;
  }
}

TEST_F(GraphTest, BackwardsThreadSeesTheCapture) {
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
    const c10::StreamGuard elsewhere(other_stream());
    EXPECT_FALSE(is_capturing());
  }
  step();
  graph->end();
  EXPECT_FALSE(is_capturing());
  graph->replay();
  EXPECT_THAT(seen, ::testing::ElementsAre(false, true));
}

TEST_F(GraphTest, MemoryOfACaptureLivesAsLongAsTheGraph) {
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
  EXPECT_TRUE(same_bits(result, at::arange(1000, at::kFloat) * 2 + 1));
}

TEST_F(GraphTest, ResultsOutliveTheGraph) {
  const at::Tensor input = numbers(4);
  auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor result = input * 2;
  graph->end();
  graph->replay();
  graph.reset();  // what was replayed runs on
  for (int i = 0; i < 10; ++i) at::full({4}, i, options());
  EXPECT_TRUE(same_bits(result, at::arange(4, at::kFloat) * 2));
}

TEST_F(GraphTest, AGraphBesideAnotherHasItsStreamAndOutlivesIt) {
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
  EXPECT_TRUE(same_bits(sum, at::full({2}, 11.0F)));
  first.reset();
  second->replay();
  const auto third = make_graph_beside(*second);
  third->begin();
  sum.sub_(1);
  third->end();
  third->replay();
  EXPECT_TRUE(same_bits(sum, at::full({2}, 109.0F)));
}

TEST_F(GraphTest, RandomNumbersGoOnFromReplayToReplay) {
  const at::Tensor input = at::ones({64}, options());
  const at::Generator& generator = at::globalContext().defaultGenerator(kPlace);
  const auto seed = [&] { at::Generator(generator).set_current_seed(7); };
  const auto draw = [&] { return std::get<0>(at::native_dropout(input, 0.5, true)); };
  seed();
  const at::Tensor first = on_host(draw());
  const at::Tensor second = on_host(draw());
  EXPECT_FALSE(same_bits(first, second));

  seed();
  const auto graph = make_graph(kPlace);
  graph->begin();
  const at::Tensor drawn = draw();
  graph->end();
  graph->replay();
  EXPECT_TRUE(same_bits(drawn, first));
  graph->replay();
  EXPECT_TRUE(same_bits(drawn, second));
}

// As libtessera_cuda.so queues kernels.
TEST_F(GraphTest, WorkBesideLibTorchIsCapturedIfItMayRunOften) {
  static int runs;
  static int drops;
  runs = drops = 0;
  auto graph = make_graph(kPlace);
  graph->begin();
  const auto* handle = static_cast<HostStreamHandle*>(current_stream().native_handle());
  ASSERT_NE(handle->enqueue_repeatable, nullptr);
  handle->enqueue_repeatable(
      handle->stream, [](void* count) { ++*static_cast<int*>(count); },
      [](void* /*count*/) { ++drops; }, &runs);
  graph->end();
  EXPECT_EQ(runs, 0);
  for (int i = 0; i < 3; ++i) graph->replay();
  current_stream().synchronize();
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(drops, 0);
  graph.reset();
  current_stream().synchronize();
  EXPECT_EQ(drops, 1);

  const auto once = make_graph(kPlace);
  once->begin();
  const auto* other = static_cast<HostStreamHandle*>(current_stream().native_handle());
  EXPECT_THAT(error_of([&] {
                other->enqueue(
                    other->stream, [](void*) { ++runs; }, nullptr);
              }),
              HasSubstr("operation not permitted when stream is capturing"));
  EXPECT_NE(error_of([&] { once->end(); }), "none");
  EXPECT_EQ(runs, 3);
}

TEST_F(GraphTest, ACaptureThatIsGivenUpLeavesTheCallerAsItWas) {
  const c10::Stream caller = current_stream();
  at::Tensor sum = at::zeros({2}, options());
  {
    const auto graph = make_graph(kPlace);
    graph->begin();
    sum.add_(1);
  }
  EXPECT_EQ(current_stream(), caller);
  EXPECT_FALSE(is_capturing());
  EXPECT_TRUE(same_bits(sum.add_(3), at::full({2}, 3.0F)));
}

TEST_F(GraphTest, CallsOutOfOrderAreRefused) {
  const auto graph = make_graph(kPlace);
  EXPECT_THAT(error_of([&] { graph->replay(); }),
              HasSubstr("[graph] replay: got a graph without a capture that ended well, expected "
                        "one; call begin() and end() first"));
  EXPECT_THAT(error_of([&] { graph->end(); }),
              HasSubstr("[graph] end: got no capture, expected one; call begin()"));
  graph->begin();
  const auto inner = make_graph(kPlace);
  EXPECT_THAT(error_of([&] { inner->begin(); }),
              HasSubstr("[graph] begin: got a current stream that is being captured, expected one "
                        "that is not; end that capture first"));
  std::thread([&] {
    EXPECT_THAT(error_of([&] { graph->end(); }),
                HasSubstr("[graph] end: got another thread than begin(), expected the same"));
  }).join();
  graph->end();
  EXPECT_THAT(error_of([&] { graph->begin(); }),
              HasSubstr("[graph] begin: got a second call, expected one per graph; make another"));
  for (const at::Device place : {at::Device(at::kCPU), at::Device(at::kCUDA)}) {
    EXPECT_THAT(error_of([&] { make_graph(place); }),
                HasSubstr("expected a GPU with an index (cuda:0)"));
  }
}

}  // namespace
}  // namespace tessera
