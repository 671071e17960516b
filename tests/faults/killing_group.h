#pragma once

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/watched_window.h"

namespace tessera::internal::testing {

/// Forwards all calls to another group until a collective or a read of a window has a given tag;
/// then kills the process with SIGKILL. Its subgroups do the same.
class KillingGroup final : public ForwardingGroup {
 public:
  explicit KillingGroup(std::shared_ptr<ProcessGroup> inner)
      : KillingGroup(std::move(inner), std::make_shared<std::string>()) {}

  /// From now on die at this tag; "" for never.
  void die_in(std::string tag) { *deadly_tag_ = std::move(tag); }

  std::shared_ptr<Work> run(const Collective& collective) override {
    check(collective.tag);
    return inner_->run(collective);
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    check(name);
    const auto before = [deadly_tag = deadly_tag_](int, const at::Tensor&, std::string_view tag) {
      die_if(*deadly_tag, tag);
    };
    return std::make_unique<WatchedWindow>(inner_->make_window(own, name), before);
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::shared_ptr<ProcessGroup>(new KillingGroup(std::move(inner), deadly_tag_));
  }

 private:
  KillingGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<std::string> deadly_tag)
      : ForwardingGroup(std::move(inner)), deadly_tag_(std::move(deadly_tag)) {}

  void check(std::string_view tag) { die_if(*deadly_tag_, tag); }
  static void die_if(const std::string& deadly_tag, std::string_view tag) {
    if (!deadly_tag.empty() && tag == deadly_tag) ::kill(::getpid(), SIGKILL);
  }

  std::shared_ptr<std::string> deadly_tag_;
};

}  // namespace tessera::internal::testing
