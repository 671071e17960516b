#include "tessera/core/comm/group/group.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"

namespace tessera::internal {

Group::Group(std::unique_ptr<Link> link, std::string name, Lane::Mode mode,
             Member::Patience patience, std::shared_ptr<SiblingGroups> siblings)
    : mode_(mode),
      member_(std::make_shared<Member>(std::move(link), std::move(name), mode, patience)),
      siblings_(std::move(siblings)) {
  siblings_->add(member_);
  this->link().attach(member_);
}

Group::~Group() {
  if (!link().origin().is_here()) {
    never_destroy(member_);
    return;
  }
  if (unwinding_.is_by_own_error()) {
    // This group, or another group of the world, may have failed, and this exception may be the
    // result. Other ranks may not know that failure yet, so pass on its cause. If none has failed,
    // the cause is that this rank left.
    const std::string cause = siblings_->cause();
    link().fail_world(!cause.empty() ? cause
                                     : absl::StrCat("rank ", link().number_of(rank()),
                                                    " left while an exception unwound"));
  }
  member_->close();
}

Capabilities Group::can() const {
  Capabilities can = link().can();
  can.in_background = can.in_background || member_->mode() == Lane::Mode::kThread;
  return can;
}

std::shared_ptr<Work> Group::run(const Collective& collective) {
  const OpTraits traits = traits_of(collective.op);
  if (!traits.is_collective || traits.is_on_host) refuse(collective);
  if (collective.order == SumOrder::kBinaryTree && !link().can().tree_sums) {
    refuse(collective, "in a tree's order");
  }
  const bool is_message = traits.tensors == OpTraits::Tensors::kMessage;
  if (is_message && link().messages() != nullptr) return link().messages()->start(collective);
  const bool is_posted = collective.posted && link().is_in_place(collective.input);
  const bool is_inline = member_->mode() == Lane::Mode::kInline && !link().has_thread();
  const bool is_waited_for = is_inline && !is_message && !is_posted;
  return is_waited_for || collective.op == Op::kBarrier ? member_->run(collective)
                                                        : member_->start(collective);
}

at::Tensor Group::allocate(int64_t numel, at::ScalarType dtype) {
  member_->require_own_process("allocate", "");
  return link().allocate(numel, dtype);
}

std::unique_ptr<Window> Group::make_window(const at::Tensor& own, std::string_view name) {
  if (!link().can().one_sided_reads) return ProcessGroup::make_window(own, name);
  check_window(own, name);
  const auto call = member_->run({.op = Op::kMakeWindow, .output = own, .input = own, .tag = name});
  const Made& made = call->made();
  TORCH_CHECK(made.problem.empty(), made.problem);
  return window_over(made.memory, own, {rank(), size(), link().number_of(rank()), member_->name()});
}

std::unique_ptr<SharedBuffer> Group::make_shared_buffer(int64_t bytes, std::string_view name) {
  member_->require_own_process(to_string(Op::kSharedBuffer), name);
  return link().make_shared_buffer(*this, bytes, name);
}

std::unique_ptr<Link> Group::make_link(const std::vector<int>& ranks, std::string_view name) {
  check_subgroup(ranks, name, size(), subgroup_names_);
  subgroup_names_.insert(std::string(name));
  const std::string tag = absl::StrCat(std::string(name), " [", absl::StrJoin(ranks, ", "), "]");
  const auto call = member_->start({.op = Op::kSubgroup, .tag = tag}, ranks);
  call->wait();
  return std::move(call->made().link);
}

std::shared_ptr<ProcessGroup> Group::subgroup(const std::vector<int>& ranks,
                                              std::string_view name) {
  std::unique_ptr<Link> link = make_link(ranks, name);
  if (link == nullptr) return nullptr;
  return std::make_shared<Group>(std::move(link),
                                 absl::StrCat(member_->name(), "/", std::string(name)), mode_,
                                 member_->patience(), siblings_);
}

}  // namespace tessera::internal
