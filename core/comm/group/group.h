#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/group/member.h"
#include "tessera/core/comm/group/sibling_groups.h"
#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// A group whose ranks a Link connects. In a child of fork() every call throws CommError at once.
/// See Note [Fork].
class Group final : public ProcessGroup {
 public:
  /// If `mode` is kThread, collectives run in the background, on a thread of the group. A subgroup
  /// gets the `siblings` of the group that it is made from.
  Group(std::unique_ptr<Link> link, std::string name, Lane::Mode mode, Member::Patience patience,
        std::shared_ptr<SiblingGroups> siblings = std::make_shared<SiblingGroups>());
  ~Group() override;

  int rank() const override { return link().rank(); }
  int size() const override { return link().size(); }
  std::string_view name() const override { return member_->name(); }
  std::string_view backend() const override { return link().backend(); }
  Capabilities can() const override;

  std::shared_ptr<Work> run(const Collective& collective) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override;
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override {
    if (link().origin().is_here()) link().fail_world(cause);
  }

  Link& link() const { return member_->link(); }
  const Member::Patience& patience() const { return member_->patience(); }
  /// Collective. Makes the link of a subgroup for subgroup(). Returns null on ranks outside the
  /// subgroup.
  std::unique_ptr<Link> make_link(const std::vector<int>& ranks, std::string_view name);

 private:
  const Unwinding unwinding_;
  const Lane::Mode mode_;  // as passed to the constructor
  const std::shared_ptr<Member> member_;
  const std::shared_ptr<SiblingGroups> siblings_;
  std::set<std::string, std::less<>> subgroup_names_;
};

}  // namespace tessera::internal
