#include "tessera/core/access/access_observer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

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
  return {tensor.storage(), std::move(target)};
}

class AccessObserverTest : public ::testing::Test {
 protected:
  const at::Tensor tensor = at::ones({3});
  const std::shared_ptr<Target::Counts> counts = std::make_shared<Target::Counts>();
};

TEST_F(AccessObserverTest, PinsWhatOperatorsUseWhileItLives) {
  {
    const AccessObserver observer({watch(tensor, std::make_shared<Target>(counts))});
    at::sum(tensor);
    EXPECT_GE(counts->pins, 1);
    const int pins = counts->pins;
    tensor.view({3, 1});
    at::sum(at::ones({3}));
    EXPECT_EQ(counts->pins, pins) << "neither views nor other tensors";
  }
  const int pins = counts->pins;
  EXPECT_EQ(counts->unpins, pins);
  at::sum(tensor);
  EXPECT_EQ(counts->pins, pins);
}

/// When the observer is destroyed, an operator of another thread may be anywhere between its start
/// and its end.
TEST_F(AccessObserverTest, ATargetOutlivesTheOperatorsThatPinIt) {
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

}  // namespace
}  // namespace tessera::internal
