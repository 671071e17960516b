#include "tessera/core/access/access_observer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "tessera/core/access/access_key.h"

namespace tessera::internal {
namespace {

/// Counts its pins, and can block the operator that pins it.
class Target final : public AccessTarget, public AccessTarget::Pin {
 public:
  struct Counts {
    std::atomic<int> pins{0};
    std::atomic<int> unpins{0};
    std::atomic<bool> stops{false};
    std::atomic<bool> has_ended{false};
  };

  explicit Target(std::shared_ptr<Counts> counts) : counts_(std::move(counts)) {}
  ~Target() override { counts_->has_ended = true; }

  AccessTarget::Pin& pin(Use) noexcept override {
    ++counts_->pins;
    while (counts_->stops) std::this_thread::yield();
    return *this;
  }
  void unpin(Use) noexcept override { ++counts_->unpins; }

 private:
  const std::shared_ptr<Counts> counts_;
};

AccessObserver::Watched watch(const at::Tensor& tensor, std::shared_ptr<AccessTarget> target) {
  return {.storage = tensor.storage(),
          .target = std::move(target),
          .has_unkeyed = !has_access_key(tensor)};
}

bool are_all_operators_called_back() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

/// With the key, or without it and by the callback.
class AccessObserverTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      ASSERT_TRUE(add_access_key(tensor));
    }
  }
  bool is_keyed() const { return GetParam(); }

  const at::Tensor tensor = at::ones({3, 3});
  const std::shared_ptr<Target::Counts> counts = std::make_shared<Target::Counts>();
};

TEST_P(AccessObserverTest, PinsWhatOperatorsUseWhileItLives) {
  const at::Tensor view = tensor.t();
  {
    const AccessObserver observer({watch(tensor, std::make_shared<Target>(counts))});
    EXPECT_EQ(are_all_operators_called_back(), !is_keyed());
    int pins = 0;
    const auto expect_pinned = [&](const char* what) {
      EXPECT_GT(counts->pins, pins) << what;
      EXPECT_EQ(counts->unpins, counts->pins) << what;
      pins = counts->pins;
    };
    at::sum(tensor);
    expect_pinned("an operator");
    at::sum(view[1]);
    expect_pinned("a view of a view from before");
    at::sum(tensor.detach());
    expect_pinned("detach()");
    tensor.data().add_(1);
    expect_pinned("data(), written");
    at::cat({at::ones({1, 3}), tensor});
    expect_pinned("in a list");
    at::linear(at::ones({2, 3}), tensor);
    expect_pinned("operators inside an operator");
    tensor.to(at::kDouble);
    expect_pinned("to(), which copies here");
    EXPECT_THROW(at::mm(tensor, at::ones({2, 2})), c10::Error);
    expect_pinned("an operator that throws");
    tensor.to(at::kFloat).contiguous().view({9, 1});
    at::sum(at::ones({3}));
    EXPECT_EQ(counts->pins, pins) << "neither views nor other tensors";
    const at::Tensor copy = tensor.clone();
    expect_pinned("clone()");
    copy.add_(1);
    EXPECT_EQ(counts->pins, pins) << "a copy is another tensor";
  }
  EXPECT_FALSE(are_all_operators_called_back());
  const int pins = counts->pins;
  at::sum(tensor);
  EXPECT_EQ(counts->pins, pins);
}

/// When the observer is destroyed, an operator of another thread may be anywhere between its start
/// and its end.
TEST_P(AccessObserverTest, ATargetOutlivesTheOperatorsThatPinIt) {
  counts->stops = true;
  std::optional<AccessObserver> observer(
      std::in_place,
      std::vector<AccessObserver::Watched>{watch(tensor, std::make_shared<Target>(counts))});
  std::thread reader([this] { at::sum(tensor); });
  while (counts->pins == 0) std::this_thread::yield();
  observer.reset();
  EXPECT_FALSE(counts->has_ended);
  counts->stops = false;
  reader.join();
  EXPECT_EQ(counts->unpins, counts->pins);
  EXPECT_TRUE(counts->has_ended) << "nobody needs it any more";
}

/// Runs an operator when its thread ends.
struct ReadsAtEnd {
  ~ReadsAtEnd() {
    if (tensor.defined()) at::sum(tensor);
  }
  at::Tensor tensor;
};

TEST_P(AccessObserverTest, SeesOperatorsOfThreadLocalDestructors) {
  const AccessObserver observer({watch(tensor, std::make_shared<Target>(counts))});
  std::thread([this] {
    // Made before what the observer keeps for the thread, so destroyed after it.
    thread_local ReadsAtEnd reads;
    reads.tensor = tensor;
    at::sum(tensor);
    counts->pins = counts->unpins = 0;
  }).join();
  EXPECT_GT(counts->pins, 0);
  EXPECT_EQ(counts->unpins, counts->pins);
}

INSTANTIATE_TEST_SUITE_P(, AccessObserverTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Keyed" : "CalledBack"; });

/// In a process of its own, because in this one other tests have made observers.
TEST(AccessKey, MayBeThereBeforeTheFirstObserver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const at::Tensor weight = at::ones({3, 3});
        add_access_key(weight);
        std::_Exit(weight.sum().item<float>() == 9 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(AccessKey, ChangesNoResultGradientOrText) {
  const auto run = [](const at::Tensor& weight) {
    std::ostringstream text;
    const at::Tensor result = at::linear(at::ones({2, 3}), weight.t()).tanh();
    result.sum().backward();
    text << weight << weight.grad() << result << weight.toString() << weight.options();
    return text.str();
  };
  const auto make = [] { return at::arange(9, at::kFloat).view({3, 3}).clone().requires_grad_(); };
  const at::Tensor keyed = make();
  ASSERT_TRUE(add_access_key(keyed));
  EXPECT_EQ(run(keyed), run(make()));
  EXPECT_FALSE(has_access_key(keyed.grad()));
  remove_access_key(keyed);
  EXPECT_FALSE(has_access_key(keyed));
  EXPECT_TRUE(keyed.key_set() == make().key_set());
}

}  // namespace
}  // namespace tessera::internal
