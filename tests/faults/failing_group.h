#pragma once

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/comm/process_group.h"
#include "tessera/tests/support/forwarding_group.h"

namespace tessera::testing {

/// Passes everything on to another group, but one call, which this rank leaves by std::bad_alloc
/// before it has taken part. Its subgroups do the same.
class FailingGroup final : public ForwardingGroup {
 public:
  explicit FailingGroup(std::shared_ptr<ProcessGroup> inner)
      : FailingGroup(std::move(inner), std::make_shared<Plan>()) {}

  /// The next call of `op` ("all_gather", "barrier", ...) with this tag fails; "" for any tag.
  void fail_in(std::string op, std::string tag) {
    plan_->op = std::move(op);
    plan_->tag = std::move(tag);
  }
  /// Whether it has.
  bool has_failed() const { return plan_->has_failed; }

  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag) override {
    check("all_reduce", tag);
    return inner_->all_reduce(tensor, op, tag);
  }
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag, int slice) override {
    check("reduce_scatter", tag);
    return inner_->reduce_scatter(output, input, op, tag, slice);
  }
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag) override {
    check("all_gather", tag);
    return inner_->all_gather(output, input, tag);
  }
  void barrier(std::string_view tag) override {
    check("barrier", tag);
    inner_->barrier(tag);
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    std::shared_ptr<ProcessGroup> group = inner_->subgroup(ranks, name);
    if (group == nullptr) return nullptr;
    return std::shared_ptr<ProcessGroup>(new FailingGroup(std::move(group), plan_));
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

}  // namespace tessera::testing
