#pragma once

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// Forwards all calls to another group except one, in which this rank throws std::bad_alloc before
/// taking part. Its subgroups do the same.
class FailingGroup final : public ForwardingGroup {
 public:
  explicit FailingGroup(std::shared_ptr<ProcessGroup> inner)
      : FailingGroup(std::move(inner), std::make_shared<Plan>()) {}

  /// Makes the next call of `op` ("all_gather", "barrier", ...) with this tag fail; "" for any tag.
  void fail_in(std::string op, std::string tag) {
    plan_->op = std::move(op);
    plan_->tag = std::move(tag);
  }
  /// Returns true if that call has failed.
  bool has_failed() const { return plan_->has_failed; }

  std::shared_ptr<Work> run(const Collective& collective) override {
    check(to_string(collective.op), collective.tag);
    return inner_->run(collective);
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::shared_ptr<ProcessGroup>(new FailingGroup(std::move(inner), plan_));
  }

 private:
  struct Plan {
    std::string op, tag;
    bool has_failed = false;
  };

  FailingGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Plan> plan)
      : ForwardingGroup(std::move(inner)), plan_(std::move(plan)) {}

  void check(std::string_view op, std::string_view tag) {
    if (plan_->op != op || (!plan_->tag.empty() && plan_->tag != tag)) return;
    plan_->op.clear();
    plan_->has_failed = true;
    throw std::bad_alloc();
  }

  const std::shared_ptr<Plan> plan_;
};

}  // namespace tessera::internal::testing
