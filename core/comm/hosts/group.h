#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/comm/hosts/host_layout.h"
#include "tessera/core/comm/hosts/member.h"
#include "tessera/core/comm/hosts/read_cache.h"
#include "tessera/core/comm/hosts/world.h"
#include "tessera/process_group.h"

namespace tessera::internal::hosts {

/// Ranks on several hosts, equally many on each: shared memory inside each host, another group
/// between hosts. Made of groups, whatever carries these. Reductions sum inside a host first, so
/// that a host sends once what its ranks have summed: Note [Traffic between hosts], Note [Sums of
/// two levels]. Collectives run in the background: Note [Two lanes].
///
/// Memory from allocate() is shared on the host. While they run, a reduction to a root and a
/// reduce_scatter hold their input's bytes, and an all_gather its output's, divided by the ranks of
/// a host; twice as much or more where hosts' ranks are no neighbours or slices are not in order.
/// The windows of a group share memory for what they read from other hosts: as much as four of the
/// largest from every rank of other hosts, at most ReadCache::kMostBytes for a host, of which only
/// what is used takes up space. Two threads for each group that communicates.
///
/// A failure of any group poisons all groups of the world, on all ranks: ranks of other hosts learn
/// of it in their next call that goes between hosts, and wake those of their host.
class Group final : public ProcessGroup {
 public:
  Group(std::shared_ptr<World> world, Levels levels);
  ~Group() override;

  int rank() const override { return member_->levels().rank; }
  int size() const override { return member_->levels().layout.ranks(); }
  std::string_view name() const override { return member_->levels().flat->name(); }
  std::string_view backend() const override { return "hosts"; }
  Capabilities can() const override;

  std::shared_ptr<Work> run(const Collective& collective) override;
  std::vector<std::shared_ptr<Work>> run_batch(const std::vector<Collective>& messages) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Where the group between hosts has windows. Costs a window of either group.
  std::unique_ptr<tessera::Window> make_window(const at::Tensor& own,
                                               std::string_view name) override;
  /// Null: ranks of several hosts share no memory.
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override;
  /// Ranks of one host get a group of its shared memory; ranks that lie as two levels one like
  /// this; others one of what connects hosts.
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;

 private:
  template <typename Body>
  void run_in_lane(const Collective& call, Body&& body, int64_t numel = -1);
  std::shared_ptr<ProcessGroup> make_subgroup(const std::vector<int>& ranks,
                                              const std::string& name);
  std::unique_ptr<tessera::Window> make_windows(const at::Tensor& own, const std::string& name);
  std::shared_ptr<Work> couple(std::shared_ptr<Work> work) const;
  template <typename Body>
  auto with_messages(const Collective& message, Body&& body);

  const Unwinding unwinding_;
  const std::shared_ptr<World> world_;
  std::unique_ptr<Member> member_;
  std::set<std::string, std::less<>> subgroup_names_;
  std::shared_ptr<ReadCache> cache_;  // of its windows, from the first one on
  int64_t windows_ = 0;
};

/// Collective over `flat`, the world of all ranks, whose places `layout` says; `inside`: the world
/// of this host's ranks, in their order, whose memory they share. Tensors lie on the CPU. Returns
/// `flat` itself unless the layout has two levels.
std::shared_ptr<ProcessGroup> make_group(std::shared_ptr<ProcessGroup> flat,
                                         std::shared_ptr<ProcessGroup> inside, HostLayout layout);

}  // namespace tessera::internal::hosts
