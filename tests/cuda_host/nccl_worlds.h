#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/group.h"
#include "tessera/tests/support/forwarding_group.h"
#include "tessera/tests/support/training.h"

namespace tessera::testing {

struct NcclWorldOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  /// Of each piece of work on a lane.
  std::chrono::microseconds longest_delay = std::chrono::microseconds(300);
};

/// For train_on_threads() and run_ranks(): makes a world over the fake NCCL of the ranks of a world
/// that is given, on CallerDevices. Good for one run, after which await_no_communicators() shows
/// that the end was clean.
Decorate over_nccl(const NcclWorldOptions& options = {});

/// A group that forgets to wait for one kind of collective.
class ForgetfulGroup final : public ForwardingGroup {
 public:
  enum class Forgets : uint8_t { kAllReduce, kReduceScatter, kAllGather };
  ForgetfulGroup(std::shared_ptr<ProcessGroup> inner, Forgets what)
      : ForwardingGroup(std::move(inner)), forgets_(what) {}

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {},
                                       int slice = kOwnRank) override;
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) override;
  void all_gather_on_host(const at::Tensor& output, const at::Tensor& input,
                          std::string_view tag = {}) override {
    inner_->all_gather_on_host(output, input, tag);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;

 private:
  std::shared_ptr<Work> wait_unless(Forgets what, std::shared_ptr<Work> work) const;

  const Forgets forgets_;
};

}  // namespace tessera::testing
