#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/sched/lane.h"
#include "tessera/tests/support/forwarding_group.h"

namespace tessera::testing {

struct DelayOptions {
  uint64_t seed = 1;  ///< each rank derives its own delays from it
  std::chrono::microseconds longest = std::chrono::microseconds(2000);
};

/// Runs every asynchronous collective late: in order, in another thread, after a random time. Until
/// then results hold NaN (0x7f bytes for integers) and inputs are as the caller left them, so that
/// a missing wait() shows. Inputs given to reduce are read late on purpose: what is written to them
/// before wait() is reduced, and so shows as well. Reads of windows take a random time too; until
/// they return, what they read into holds NaN.
class DelayedGroup final : public ForwardingGroup {
 public:
  explicit DelayedGroup(std::shared_ptr<ProcessGroup> inner, DelayOptions options = {});
  ~DelayedGroup() override;

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {},
                                       int slice = kOwnRank) override;
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                  std::string_view tag = {}) override;
  void barrier(std::string_view tag = {}) override;
  bool runs_in_background() const override { return true; }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  /// Delayed too, in a thread of its own.
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;

 private:
  std::shared_ptr<Work> late(std::function<void()> collective);

  DelayOptions options_;
  std::mt19937_64 random_;
  Lane lane_;
};

}  // namespace tessera::testing
