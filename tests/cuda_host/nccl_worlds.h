#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/core/comm/nccl/group.h"
#include "tessera/tests/support/training.h"

namespace tessera::internal::testing {

struct NcclWorldOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  /// Upper bound of the delay of each piece of work on a lane.
  std::chrono::microseconds longest_delay = std::chrono::microseconds(300);
};

/// For train_on_threads() and run_ranks(): makes a world over the fake NCCL for the ranks of a
/// given world, on CallerDevices. Usable for one run, after which await_no_communicators() shows
/// that it ended cleanly.
Decorate over_nccl(const NcclWorldOptions& options = {});

/// A group that does not wait for one kind of operation.
class ForgetfulGroup final : public ForwardingGroup {
 public:
  ForgetfulGroup(std::shared_ptr<ProcessGroup> inner, Op what)
      : ForwardingGroup(std::move(inner)), forgets_(what) {}

  std::shared_ptr<Work> run(const Collective& collective) override;

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<ForgetfulGroup>(std::move(inner), forgets_);
  }

 private:
  const Op forgets_;
};

}  // namespace tessera::internal::testing
