#pragma once

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/core/comm/groups/host_ranks.h"
#include "tessera/work.h"

namespace tessera::internal::hosts {

/// Of the ranks that this rank shares memory with, for as long as it has not left them.
using WeakHostRanks = std::weak_ptr<HostRanks>;

/// Of a group of this host's ranks; nobody's where it has none.
WeakHostRanks host_ranks_of(ProcessGroup& inside);

/// What other hosts take part in: who waits for it is absent. Note [Absent ranks].
class OuterWork final : public Work {
 public:
  OuterWork(std::shared_ptr<Work> inner, WeakHostRanks host_ranks);

  bool is_completed() override { return inner_->is_completed(); }
  void wait() override;
  bool wait_for(std::chrono::milliseconds longest) override;
  int source() const override { return inner_->source(); }

 private:
  const std::shared_ptr<Work> inner_;
  const WeakHostRanks host_ranks_;
};

/// A group of ranks of several hosts: another one, while whose calls block this rank is absent, and
/// that of its windows and subgroups, too.
class OuterGroup final : public ForwardingGroup {
 public:
  OuterGroup(std::shared_ptr<ProcessGroup> inner, WeakHostRanks host_ranks);

  std::shared_ptr<Work> run(const Collective& collective) override;
  std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages) override;
  std::unique_ptr<tessera::Window> make_window(const at::Tensor& own,
                                               std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;

 private:
  std::shared_ptr<Work> as_outer(std::shared_ptr<Work> work) const;
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override;

  const WeakHostRanks host_ranks_;
};

}  // namespace tessera::internal::hosts
