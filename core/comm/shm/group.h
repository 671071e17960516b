#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/host_ranks.h"
#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/comm/shm/exchange.h"
#include "tessera/core/comm/shm/mailbox.h"
#include "tessera/core/comm/shm/member.h"
#include "tessera/core/comm/shm/posted_ring.h"
#include "tessera/core/comm/shm/window.h"
#include "tessera/core/sched/lane.h"
#include "tessera/process_group.h"

namespace tessera::internal::shm {

/// Ranks of one host that work in each other's memory. Buffers from allocate() are read and written
/// in place; private ones are copied through a staging area (Exchange). Ranks may be processes or
/// threads of one process, and may mix both kinds of buffer in one collective. In a child of fork()
/// every call throws CommError at once, and the destructor releases only what belongs to the child:
/// see Note [Fork].
class Group final : public ProcessGroup, public HasHostRanks {
 public:
  Group(std::unique_ptr<Member> member, Lane::Mode mode);
  ~Group() override;

  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  std::string_view name() const override { return member_->group_name(); }
  std::string_view backend() const override { return "shm"; }
  Capabilities can() const override {
    return {.in_background = lane_.mode() == Lane::Mode::kThread, .one_sided_reads = true};
  }

  std::shared_ptr<Work> run(const Collective& collective) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Costs one collective and the mapping of peers' segments that are not mapped yet.
  std::unique_ptr<tessera::Window> make_window(const at::Tensor& own,
                                               std::string_view name) override;
  std::unique_ptr<tessera::SharedBuffer> make_shared_buffer(int64_t bytes,
                                                            std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;
  std::shared_ptr<HostRanks> host_ranks() override { return member_->world_ptr(); }
  /// This rank makes no more calls, as its process ends: who waits for one hears it.
  void leave() { member_->leave(); }

 private:
  std::shared_ptr<Work> run_message(const Collective& message);
  void await_other(Collective& call);
  template <typename Body>
  std::shared_ptr<Work> on_lane(Op op, std::string_view tag, Body&& body);
  template <typename Body>
  void guard(Body&& body);
  std::unique_ptr<Window> do_make_window(const at::Tensor& own, std::string_view name,
                                         std::string& problem);
  std::unique_ptr<Member> do_subgroup(const std::vector<int>& ranks, std::string_view name);

  const Unwinding unwinding_;
  std::unique_ptr<Member> member_;
  std::shared_ptr<Arena> arena_;
  Exchange exchange_;
  std::set<std::string, std::less<>> subgroup_names_;
  PostedRing posted_;
  std::shared_ptr<Mailbox> mailbox_;  // from the first message on
  Lane lane_;                         // last: its thread uses the rest
};

}  // namespace tessera::internal::shm
