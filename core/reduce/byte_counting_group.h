#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/comm/groups/forwarding_group.h"

namespace tessera::internal {

/// Decorator: counts the bytes of the tensors that this rank passes to the group's collectives.
/// Does not count subgroups.
class ByteCountingGroup final : public ForwardingGroup {
 public:
  /// `group` must outlive it.
  explicit ByteCountingGroup(ProcessGroup& group)
      : ForwardingGroup(std::shared_ptr<ProcessGroup>(std::shared_ptr<void>(), &group)) {}

  int64_t bytes() const { return bytes_; }

  std::shared_ptr<Work> run(const Collective& collective) override {
    if (collective.input.defined()) bytes_ += static_cast<int64_t>(collective.input.nbytes());
    return inner_->run(collective);
  }

 private:
  int64_t bytes_ = 0;
};

}  // namespace tessera::internal
