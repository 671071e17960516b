#include "tessera/core/grad/backward_end.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tessera/core/grad/autograd_node.h"

namespace tessera::internal {
namespace {

struct Counter final : BackwardListener {
  void backward_ended() override {
    ++ended;
    if (throws_at_end) throw std::runtime_error("the listener fails");
  }
  void backward_failed() noexcept override { ++failed; }

  int ended = 0;
  int failed = 0;
  bool throws_at_end = false;
};

at::Tensor leaf_vector() { return at::ones({3}, at::kFloat).set_requires_grad(true); }

using Block = std::function<at::Tensor(const at::Tensor&)>;

/// Calls backward inside backward, as re-entrant checkpointing does.
class Rerun final : public torch::autograd::Node {
 public:
  Rerun(Block block, const at::Tensor& input)
      : Node(torch::autograd::collect_next_edges(input)),
        block_(std::move(block)),
        input_(input.detach()) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const at::AutoGradMode grad_mode(true);
    const at::Tensor input = input_.detach().set_requires_grad(true);
    torch::autograd::backward({block_(input)}, {gradients[0]});
    return {input.grad()};
  }

 private:
  Block block_;
  at::Tensor input_;
};

/// Runs `block` without a graph, and again in backward.
at::Tensor rerun_in_backward(Block block, const at::Tensor& input) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = block(input);
  }
  torch::autograd::create_gradient_edge(output, make_node<Rerun>(std::move(block), input));
  return output;
}

class BackwardEnd : public ::testing::Test {
 protected:
  Counter counter;
  BackwardWatch watch{counter};
};

TEST_F(BackwardEnd, ComesOnceForAPlainBackward) {
  const at::Tensor x = leaf_vector();
  at::tanh(x * x).sum().backward();
  EXPECT_EQ(counter.ended, 1);
  EXPECT_EQ(counter.failed, 0);
  (x * 2).sum().backward();
  EXPECT_EQ(counter.ended, 2);
}

TEST_F(BackwardEnd, ComesAfterTheLastGradient) {
  const at::Tensor x = leaf_vector();
  const at::Tensor y = leaf_vector();
  std::vector<int> ended_at_hook;
  for (const at::Tensor& tensor : {x, y}) {
    tensor.register_hook([&](const at::Tensor&) { ended_at_hook.push_back(counter.ended); });
  }
  (at::tanh(x) * y).sum().backward();
  EXPECT_EQ(ended_at_hook, (std::vector<int>{0, 0}));
  EXPECT_EQ(counter.ended, 1);
}

TEST_F(BackwardEnd, ComesForAutogradGradToo) {
  const at::Tensor x = leaf_vector();
  torch::autograd::grad({(x * x).sum()}, {x});
  EXPECT_EQ(counter.ended, 1);
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(BackwardEnd, ComesOncePerBackwardOfADoubleBackward) {
  const at::Tensor x = leaf_vector();
  const at::Tensor gradient =
      torch::autograd::grad({x.pow(3).sum()}, {x}, {}, /*retain_graph=*/true,
                            /*create_graph=*/true)[0];
  EXPECT_EQ(counter.ended, 1);
  gradient.sum().backward();
  EXPECT_EQ(counter.ended, 2);
  EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 6.0F)));
}

TEST_F(BackwardEnd, ComesEachTimeAKeptGraphRuns) {
  const at::Tensor x = leaf_vector();
  const at::Tensor loss = at::tanh(x).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_EQ(counter.ended, 2);
}

TEST_F(BackwardEnd, ComesOnceAtTheOutermostEndOfNestedBackwards) {
  const at::Tensor weight = leaf_vector();
  std::vector<int> ended_at_hook;
  weight.register_hook([&](const at::Tensor&) { ended_at_hook.push_back(counter.ended); });
  const auto inner = [&](const at::Tensor& x) { return at::tanh(x * weight); };
  const auto outer = [&](const at::Tensor& x) { return rerun_in_backward(inner, inner(x)); };
  const at::Tensor x = leaf_vector();
  rerun_in_backward(outer, rerun_in_backward(outer, at::tanh(x))).sum().backward();
  EXPECT_EQ(counter.ended, 1);
  EXPECT_EQ(counter.failed, 0);
  EXPECT_GE(ended_at_hook.size(), 4u);
  for (const int ended : ended_at_hook) EXPECT_EQ(ended, 0);
}

/// Nesting deeper than autograd's limit for one thread: it continues on its pool's threads.
TEST_F(BackwardEnd, ComesOnceWhenNestingMovesToOtherThreads) {
  const at::Tensor weight = leaf_vector();
  std::function<at::Tensor(const at::Tensor&, int)> nested = [&](const at::Tensor& x, int depth) {
    if (depth == 0) return at::tanh(x * weight);
    return rerun_in_backward(
        [&nested, depth](const at::Tensor& y) { return nested(y * 1.0, depth - 1); }, x);
  };
  const at::Tensor x = leaf_vector();
  nested(x * 1.0, 80).sum().backward();
  EXPECT_EQ(counter.ended, 1);
  EXPECT_EQ(counter.failed, 0);
}

TEST_F(BackwardEnd, AnExceptionInAHookIsAFailureAndTheNextBackwardWorks) {
  const at::Tensor x = leaf_vector();
  bool throws = true;
  x.register_hook([&](const at::Tensor&) {
    if (throws) throw std::runtime_error("the hook fails");
  });
  EXPECT_ANY_THROW(at::tanh(x).sum().backward());
  EXPECT_EQ(counter.ended, 0);
  EXPECT_EQ(counter.failed, 1);
  throws = false;
  at::tanh(x).sum().backward();
  EXPECT_EQ(counter.ended, 1);
  EXPECT_EQ(counter.failed, 1);
}

struct FailingOperator : torch::autograd::Function<FailingOperator> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("the operator fails");
  }
};

TEST_F(BackwardEnd, AnExceptionInAnOperatorIsAFailureAndTheNextBackwardWorks) {
  const at::Tensor x = leaf_vector();
  EXPECT_ANY_THROW(at::tanh(FailingOperator::apply(at::tanh(x))).sum().backward());
  EXPECT_EQ(counter.ended, 0);
  EXPECT_EQ(counter.failed, 1);
  at::tanh(x).sum().backward();
  EXPECT_EQ(counter.ended, 1);
}

TEST_F(BackwardEnd, AnExceptionInsideANestedBackwardIsOneFailure) {
  const at::Tensor x = leaf_vector();
  const auto failing = [](const at::Tensor& y) { return FailingOperator::apply(at::tanh(y)); };
  EXPECT_ANY_THROW(rerun_in_backward(failing, at::tanh(x)).sum().backward());
  EXPECT_EQ(counter.ended, 0);
  EXPECT_EQ(counter.failed, 1);
}

TEST_F(BackwardEnd, AllListenersAreToldInTheOrderTheyCame) {
  Counter second;
  std::optional<BackwardWatch> second_watch(std::in_place, second);
  leaf_vector().sum().backward();
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(counter.ended, second.ended);
  EXPECT_EQ(counter.ended, 2);
  second_watch.reset();
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(counter.ended, 3);
  EXPECT_EQ(second.ended, 2);
}

TEST_F(BackwardEnd, AListenerThatThrowsFailsTheOthersAndReachesTheCaller) {
  Counter second;
  const BackwardWatch second_watch(second);
  counter.throws_at_end = true;
  EXPECT_ANY_THROW(at::tanh(leaf_vector()).sum().backward());
  EXPECT_EQ(second.ended, 0);
  EXPECT_EQ(second.failed, 1);
  counter.throws_at_end = false;
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(second.ended, 1);
}

TEST_F(BackwardEnd, OnlyCodeInsideBackwardIsInside) {
  EXPECT_FALSE(watch.is_inside_backward());
  const at::Tensor x = leaf_vector();
  bool inside = false;
  x.register_hook([&](const at::Tensor&) { inside = watch.is_inside_backward(); });
  at::tanh(x).sum().backward();
  EXPECT_TRUE(inside);
  EXPECT_FALSE(watch.is_inside_backward());
}

TEST_F(BackwardEnd, ABackwardOfAnotherThreadIsNotOurs) {
  const at::Tensor x = leaf_vector();
  bool inside = true;
  x.register_hook([&](const at::Tensor&) { inside = watch.is_inside_backward(); });
  std::thread([&] { at::tanh(x).sum().backward(); }).join();
  EXPECT_FALSE(inside);
  EXPECT_EQ(counter.ended, 0);
  EXPECT_EQ(counter.failed, 0);
}

TEST_F(BackwardEnd, TwoThreadsWithWatchesOfTheirOwnDoNotMeet) {
  std::vector<int> ended(2);
  std::vector<std::thread> threads;
  for (int& count : ended) {
    threads.emplace_back([&count] {
      Counter own;
      const BackwardWatch own_watch(own);
      for (int i = 0; i < 50; ++i) at::tanh(leaf_vector()).sum().backward();
      count = own.ended;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, (std::vector<int>{50, 50}));
  EXPECT_EQ(counter.ended, 0);
}

// --- The callback's cost ---

/// Returns true if LibTorch prepares calls of callbacks for autograd nodes.
bool nodes_are_observed() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::BACKWARD_FUNCTION).has_value();
}

/// Runs a backward and returns what nodes_are_observed() returned inside.
bool are_observed_in_backward() {
  bool observed = false;
  const at::Tensor y = at::tanh(leaf_vector());
  y.register_hook([&](const at::Tensor&) { observed = nodes_are_observed(); });
  y.sum().backward();
  return observed;
}

TEST_F(BackwardEnd, ObservesNodesOnlyWhileAListenerWaitsForABackward) {
  EXPECT_TRUE(nodes_are_observed());
  EXPECT_FALSE(are_observed_in_backward());
  EXPECT_TRUE(nodes_are_observed());
  watch.tell(nullptr);
  EXPECT_FALSE(nodes_are_observed());
  watch.tell(&counter);
  EXPECT_TRUE(nodes_are_observed());
  EXPECT_EQ(counter.ended, 1);
}

TEST_F(BackwardEnd, ObservesNodesAgainAfterAFailure) {
  const at::Tensor y = at::tanh(leaf_vector());
  y.register_hook([](const at::Tensor&) { throw std::runtime_error("the hook fails"); });
  EXPECT_THROW(y.sum().backward(), std::exception);
  EXPECT_TRUE(nodes_are_observed());
  EXPECT_EQ(counter.failed, 1);
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(counter.ended, 1);
}

TEST_F(BackwardEnd, ComesToAThreadWhoseBackwardBeginsInsideAnothersBackward) {
  std::promise<void> has_listener, inside_backward;
  std::thread other([&] {
    Counter own;
    const BackwardWatch own_watch(own);
    has_listener.set_value();
    inside_backward.get_future().wait();
    EXPECT_FALSE(are_observed_in_backward()) << "both backwards are under way";
    EXPECT_EQ(own.ended, 1);
  });
  has_listener.get_future().wait();
  const at::Tensor y = at::tanh(leaf_vector());
  y.register_hook([&](const at::Tensor&) {
    EXPECT_TRUE(nodes_are_observed()) << "the other thread waits for its backward";
    inside_backward.set_value();
    other.join();
    EXPECT_FALSE(nodes_are_observed()) << "the other thread's listener is gone";
  });
  y.sum().backward();
  EXPECT_EQ(counter.ended, 1);
}

// --- Other thread-local state ---

/// A profiler's entry in LibTorch's view, because it reports memory.
struct SomebodysEntry : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

/// Kinds of entries in LibTorch's stack of debug information, including its profilers'.
const std::vector<c10::DebugInfoKind> kKinds = {
    c10::DebugInfoKind::PRODUCER_INFO, c10::DebugInfoKind::MOBILE_RUNTIME_INFO,
    c10::DebugInfoKind::PROFILER_STATE, c10::DebugInfoKind::TEST_INFO};

TEST_F(BackwardEnd, ComesInsideAGuardOfAnyDebugInfo) {
  for (const c10::DebugInfoKind kind : kKinds) {
    const c10::DebugInfoGuard guard(kind, std::make_shared<SomebodysEntry>());
    const int before = counter.ended;
    const at::Tensor x = leaf_vector();
    bool inside = false;
    x.register_hook([&](const at::Tensor&) { inside = watch.is_inside_backward(); });
    at::tanh(x).sum().backward();
    EXPECT_EQ(counter.ended, before + 1);
    EXPECT_TRUE(inside);
  }
}

TEST(BackwardWatch, LastsBeyondAGuardOfDebugInfoThatItIsMadeIn) {
  for (const c10::DebugInfoKind kind : kKinds) {
    Counter counter;
    std::optional<BackwardWatch> watch;
    {
      const c10::DebugInfoGuard guard(kind, std::make_shared<SomebodysEntry>());
      watch.emplace(counter);
      at::tanh(leaf_vector()).sum().backward();
      EXPECT_EQ(counter.ended, 1);
    }
    at::tanh(leaf_vector()).sum().backward();
    EXPECT_EQ(counter.ended, 2);
    Counter second;
    const BackwardWatch second_watch(second);
    at::tanh(leaf_vector()).sum().backward();
    EXPECT_EQ(counter.ended, 3);
    EXPECT_EQ(second.ended, 1);
  }
}

/// A guard of all thread-local state, as at::launch and others use it.
TEST(BackwardWatch, LastsBeyondAGuardOfThreadLocalStateThatItIsMadeIn) {
  Counter counter;
  std::optional<BackwardWatch> watch;
  {
    const at::ThreadLocalStateGuard guard{at::ThreadLocalState()};
    watch.emplace(counter);
  }
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(counter.ended, 1);
}

TEST(BackwardWatch, LeavesTheStackOfDebugInfoAlone) {
  std::thread([] {  // a thread that has had no watch
    const auto entry = std::make_shared<SomebodysEntry>();
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, entry);
    Counter counter;
    const BackwardWatch watch(counter);
    EXPECT_EQ(c10::ThreadLocalDebugInfo::_peek(c10::DebugInfoKind::PROFILER_STATE), entry);
    EXPECT_EQ(c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE), entry);
    at::tanh(leaf_vector()).sum().backward();
    EXPECT_EQ(counter.ended, 1);
  })
      .join();
}

/// Runs `body` on a thread with the calling thread's state, and waits for it.
template <typename Body>
void run_elsewhere(Body&& body) {
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    body();
  }).join();
}

/// As on a device: autograd's thread for it takes over the calling thread's state.
TEST_F(BackwardEnd, ComesWhereAutogradCarriesTheThreadsStateToAnotherOne) {
  const at::Tensor x = leaf_vector();
  bool inside = false;
  x.register_hook([&](const at::Tensor&) { inside = watch.is_inside_backward(); });
  run_elsewhere([&] {
    c10::setThreadName("pt_autograd_0");
    at::tanh(x).sum().backward();
  });
  EXPECT_TRUE(inside);
  EXPECT_EQ(counter.ended, 1);
}

/// at::launch carries the thread's state too, but its task is not the rank's thread.
TEST_F(BackwardEnd, DoesNotComeForABackwardThatIsLaunched) {
  bool inside = false;
  run_elsewhere([&] {
    const at::Tensor x = leaf_vector();
    x.register_hook([&](const at::Tensor&) { inside = watch.is_inside_backward(); });
    at::tanh(x).sum().backward();
  });
  EXPECT_FALSE(inside);
  EXPECT_EQ(counter.ended, 0);
}

/// A launched task may be a rank itself.
TEST_F(BackwardEnd, ComesToTheWatchOfTheLaunchedTaskThatMadeIt) {
  Counter own;
  run_elsewhere([&] {
    const BackwardWatch own_watch(own);
    at::tanh(leaf_vector()).sum().backward();
  });
  EXPECT_EQ(own.ended, 1);
  EXPECT_EQ(counter.ended, 0);
}

/// The state of a rank's thread that has ended belongs to no rank.
TEST(BackwardWatch, AStateOfAThreadThatHasEndedIsNobodys) {
  std::optional<at::ThreadLocalState> state;
  std::thread([&] {
    Counter counter;
    const BackwardWatch watch(counter);
    state.emplace();
  }).join();
  const at::ThreadLocalStateGuard guard(*state);
  at::tanh(leaf_vector()).sum().backward();
  Counter counter;
  const BackwardWatch watch(counter);
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(counter.ended, 1);
}

TEST(BackwardWatch, NothingIsToldAfterItsEnd) {
  Counter counter;
  { const BackwardWatch watch(counter); }
  at::tanh(leaf_vector()).sum().backward();
  EXPECT_EQ(counter.ended, 0);
}

}  // namespace
}  // namespace tessera::internal
