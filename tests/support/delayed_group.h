#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/core/sched/lane.h"
#include "tessera/process_group.h"

namespace tessera::internal::testing {

struct DelayOptions {
  uint64_t seed = 1;  ///< each rank derives its own delays from it
  std::chrono::microseconds longest = std::chrono::microseconds(2000);
};

/// Runs every asynchronous collective late: in order, in another thread, after a random time. Until
/// then results hold NaN (0x7f bytes for integers) and inputs are unchanged, so that a missing
/// wait() is noticed. Inputs to reduce are deliberately read late: data written to them before
/// wait() is reduced, which tests notice too. Reads of windows take a random time; until they
/// return, their destination holds NaN.
class DelayedGroup final : public ForwardingGroup {
 public:
  explicit DelayedGroup(std::shared_ptr<ProcessGroup> inner, DelayOptions options = {});
  ~DelayedGroup() override;

  std::shared_ptr<Work> run(const Collective& collective) override;
  Capabilities can() const override {
    Capabilities can = inner_->can();
    can.in_background = true;
    return can;
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  /// Returns a group that is delayed too, in its own thread.
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override;

 private:
  std::shared_ptr<Work> late(std::function<void()> collective);
  std::shared_ptr<Work> late_barrier(const Collective& barrier);

  DelayOptions options_;
  std::mt19937_64 random_;
  std::atomic<int> in_flight_{0};
  internal::Lane lane_;
};

}  // namespace tessera::internal::testing
